"""The Lightning callback in two real processes (DDP on gloo): training, validation, and resuming without a deadlock."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mixreg import Rescaled

pytest.importorskip("lightning.pytorch")
from test_lightning import Classifier, data

pytestmark = [pytest.mark.xdist_group("lightning")]

SCRIPT = """
import sys, torch, lightning.pytorch as pl
sys.path.insert(0, TESTS)
from test_lightning import Classifier, data
from mixreg.adapters.lightning import MixupCallback
from torch.utils.data import DataLoader

folder = sys.argv[1]

def fit(epochs, seed, ckpt_path=None):
    module, callback = Classifier(), MixupCallback(0.7, 3, seed=seed)
    run = pl.Trainer(max_epochs=epochs, accelerator="cpu", devices=2, strategy="ddp", callbacks=[callback],
                     logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    run.fit(module, DataLoader(data(), batch_size=5), DataLoader(data(), batch_size=25), ckpt_path=ckpt_path)
    return run, module, callback

if __name__ == "__main__":
    run, module, callback = fit(1, seed=3)
    run.save_checkpoint(folder + "/one.ckpt")
    kept = {"count": callback.moments.count, "stream": callback.method.generator.get_state(),
            "seen": module.seen[-1].detach(), "net": module.net.state_dict()}
    run, module, callback = fit(2, seed=3)
    kept["whole"] = module.net.state_dict()
    # The epoch was finished, so that Lightning begins with the sanity check: only the first process has restored means.
    run, module, callback = fit(2, seed=99, ckpt_path=folder + "/one.ckpt")
    kept |= {"resumed": module.net.state_dict(), "counts": callback.moments.count, "sanity": module.seen[0].detach()}
    torch.save(kept, f"{folder}/rank{run.global_rank}.pt")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    script = folder / "two.py"
    script.write_text(SCRIPT.replace("TESTS", repr(str(Path(__file__).parent))))
    command = [sys.executable, str(script), str(folder)]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        told, _ = run.communicate(timeout=150)
    except subprocess.TimeoutExpired:
        # Both processes: the second one is a child of the first, and waits for it for ever.
        os.killpg(run.pid, signal.SIGKILL)
        pytest.fail(f"two processes wait for each other:\n{run.communicate()[0]}")
    assert run.returncode == 0, told
    return folder


def results(folder: Path) -> tuple[dict, dict]:
    first, second = (torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in (0, 1))
    return first, second


def state_of(folder: Path) -> dict:
    state = torch.load(folder / "one.ckpt", weights_only=False)["callbacks"]
    (stored,) = [value for key, value in state.items() if "MixupCallback" in key]
    return stored


def network(weights: dict) -> torch.nn.Module:
    net = Classifier().net
    net.load_state_dict(weights)
    return net


def assert_among_rows(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Each process sees its half of the data."""
    assert bool(((found.unsqueeze(1) - expected).norm(dim=2).amin(1) < 1e-5).all())


def test_two_processes_train_as_one_and_validate_with_the_means_of_both(folder) -> None:
    first, second = results(folder)
    assert all(torch.equal(value, second["net"][key]) for key, value in first["net"].items())
    assert not torch.equal(first["stream"], second["stream"])
    assert first["count"] == second["count"] == 25
    stored = state_of(folder)
    assert stored["moments"]["count"] == 50
    x_mean, y_mean = data().tensors[0].mean(0), torch.bincount(data().tensors[1], minlength=3) / 50
    torch.testing.assert_close(stored["mean"], torch.cat([x_mean, y_mean]).double(), rtol=1e-6, atol=1e-6)
    rescaled = Rescaled(network(first["net"]), 0.7, x_mean, y_mean)
    assert_among_rows(first["seen"], rescaled(data().tensors[0]).detach())


def test_two_processes_resume_as_if_nothing_had_happened(folder) -> None:
    first, second = results(folder)
    assert any(not torch.equal(value, first["net"][key]) for key, value in first["whole"].items())
    for part in (first, second):
        for key, value in part["whole"].items():
            assert torch.equal(value, part["resumed"][key]), key
    # What was restored is counted once.
    assert (first["counts"], second["counts"]) == (75, 25)


def test_the_sanity_check_of_a_resumed_run_sees_the_rescaled_network_in_both_processes(folder) -> None:
    x_mean, y_mean = data().tensors[0].mean(0), torch.bincount(data().tensors[1], minlength=3) / 50
    for part in results(folder):
        expected = Rescaled(network(part["net"]), 0.7, x_mean, y_mean)(data().tensors[0]).detach()
        assert_among_rows(part["sanity"], expected)
