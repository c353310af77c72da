"""Hugging Face's Trainer in two real processes (DDP on gloo): text as a plain loop, means of both, a resumed run."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from mixreg import Mixup, mixed_loss
from mixreg._support.random import seeded

pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from encoders import encoder, padded, texts, trainer

pytestmark = [pytest.mark.xdist_group("huggingface")]

SCRIPT = """
import sys, torch
sys.path.insert(0, TESTS)
from encoders import encoder, texts, trainer
from mixreg.adapters.huggingface import MixupCallback, mixup_loss

folder = sys.argv[1]

def train(seed, name, checkpoint=None):
    net, callback = encoder(), MixupCallback(0.7, 3, seed=seed)
    settings = {"save_strategy": "steps", "save_steps": 1, "ddp_backend": "gloo", "eval_strategy": "epoch"}
    run = trainer(f"{folder}/{name}", net, texts(48), [callback], mixup_loss, **settings)
    run.train(resume_from_checkpoint=checkpoint)
    return run, net, callback

if __name__ == "__main__":
    run, net, callback = train(3, "whole")
    kept = {"net": net.state_dict(), "count": callback.moments.count, "predicted": run.predict(texts(48)).predictions}
    kept["x_mean"] = callback.moments.x_mean(net.get_input_embeddings())
    run, net, callback = train(99, "resumed", f"{folder}/whole/checkpoint-3")
    kept |= {"resumed": net.state_dict(), "again": run.predict(texts(48)).predictions}
    kept = {name: torch.as_tensor(value) if not isinstance(value, dict) else value for name, value in kept.items()}
    torch.save(kept, f"{folder}/rank{run.args.process_index}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> list[dict]:
    folder = tmp_path_factory.mktemp("two")
    script = folder / "two.py"
    script.write_text(SCRIPT.replace("TESTS", repr(str(Path(__file__).parent))))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    crew = []
    for rank in range(2):
        told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = os.environ | {name: str(value) for name, value in told.items()} | {"GLOO_SOCKET_IFNAME": "lo"}
        command = [sys.executable, str(script), str(folder)]
        crew.append(
            subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                start_new_session=True,
            )
        )  # fmt: skip
    try:
        outputs = [process.communicate(timeout=240)[0] for process in crew]
    except subprocess.TimeoutExpired:
        pytest.fail("two processes wait for each other")
    finally:
        for process in crew:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert not any(process.returncode for process in crew), "\n".join(outputs)
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(2)]


def test_two_processes_train_as_the_plain_loop(results, tmp_path) -> None:
    net, samples, criterion = encoder(), texts(48), mixed_loss(nn.CrossEntropyLoss())
    # Each process has every second batch, and partners of its own.
    mixes = [Mixup(0.7, generator=seeded(3 + rank)) for rank in range(2)]
    batches = trainer(tmp_path, net, samples).get_train_dataloader()
    optimizer = torch.optim.SGD(net.train().parameters(), lr=0.1)
    for epoch in range(2):
        batches.set_epoch(epoch)
        for i, batch in enumerate(batches):
            mask = batch["attention_mask"].bool()
            vectors = net.get_input_embeddings()(batch["input_ids"]) * mask.unsqueeze(2)
            (vectors, mask), mixed = mixes[i % 2]((vectors, mask), batch["labels"], parts=True)
            (criterion(net(inputs_embeds=vectors, attention_mask=mask.long()).logits, mixed) / 2).backward()
            if i % 2:
                optimizer.step()
                optimizer.zero_grad()
    for found in results:
        for key, value in net.state_dict().items():
            torch.testing.assert_close(found["net"][key], value, rtol=1e-5, atol=1e-6, msg=key)


def test_means_are_those_of_both(results) -> None:
    batch = padded(texts(48))
    for found in results:
        assert int(found["count"]) == 2 * 48
        vectors = found["net"]["bert.embeddings.word_embeddings.weight"][batch["input_ids"]].double()
        x_mean = (vectors * batch["attention_mask"].unsqueeze(2)).mean(0)
        torch.testing.assert_close(found["x_mean"], x_mean)
    torch.testing.assert_close(results[0]["predicted"], results[1]["predicted"])


def test_two_processes_are_resumed_with_the_same_bits(results) -> None:
    for found in results:
        for key, value in found["net"].items():
            assert torch.equal(value, found["resumed"][key]), key
        torch.testing.assert_close(found["again"], found["predicted"])
