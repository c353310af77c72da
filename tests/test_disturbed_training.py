"""Training that is killed and gone on with, or spread over processes, ends as undisturbed training does."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from runs import Interrupted, assert_same_run, carry_out, comparable_log, environment, finish, start, start_two
from safetensors.torch import load_file

from mixreg._support.tensor_files import load_tensors
from mixreg.methods import described
from mixreg.training import Config


def kill_and_go_on(tmp_path: Path, kills: int, epochs: int) -> None:
    arguments = ["--epochs", str(epochs), "--method", "mixup", "--checkpoint-seconds", "0"]
    finish(start(tmp_path / "undisturbed", *arguments))
    out, moments = tmp_path / "killed", random.Random(0)
    killed = 0
    for _ in range(60 * kills):
        process = start(out, *arguments)
        # Wait for it to be at work, then strike at a random moment.
        while process.poll() is None and not (out / "config.json").exists():
            time.sleep(0.02)
        began = (out / "checkpoint.safetensors").stat().st_mtime if (out / "checkpoint.safetensors").exists() else 0.0
        deadline = time.monotonic() + 10
        while process.poll() is None and time.monotonic() < deadline:
            current = out / "checkpoint.safetensors"
            if current.exists() and current.stat().st_mtime != began:
                break
            time.sleep(0.002)
        time.sleep(moments.uniform(0, 0.15))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            killed += 1
        process.communicate()
        if (out / "checkpoint.safetensors").exists():
            load_tensors(out / "checkpoint.safetensors")  # whole, whenever the process died
        if killed == kills or (out / "metrics.json").exists():
            break
    finish(start(out, *arguments))
    assert killed == kills
    assert_same_run(tmp_path / "undisturbed", out)
    assert not list(out.glob(".*part"))


def test_killed_runs_end_with_the_same_weights(tmp_path: Path) -> None:
    kill_and_go_on(tmp_path, 3, 20)


@pytest.mark.slow
def test_twenty_kills(tmp_path: Path) -> None:
    kill_and_go_on(tmp_path, 20, 150)


@pytest.mark.parametrize("method", described())
def test_every_method_resumes_bit_for_bit(method, tmp_path: Path) -> None:
    together = {"alpha": 2.0, "label_smoothing": 0.1, "dropout": 0.2, "parseval": 0.01}
    config = Config(data="digits", model="mlp", method=method, epochs=2, batch_size=300, lr=0.05, **together)
    assert carry_out(config, tmp_path / "whole")
    with pytest.raises(Interrupted):
        carry_out(config, tmp_path / "broken", stop_after=1)
    assert (tmp_path / "broken" / "checkpoint.safetensors").exists()
    assert carry_out(config, tmp_path / "broken")
    assert_same_run(tmp_path / "whole", tmp_path / "broken")
    assert not carry_out(config, tmp_path / "whole")


def train_with_torchrun(out: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "mixreg"]
    command += ["train", "--accelerator", "cpu", "--devices", "2", "--strategy", "ddp", "--out", str(out), *arguments]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "method", ["mixup", "approximate", *(pytest.param(name, marks=SLOW) for name in ("mixupe", "regmixup", "cutmix"))]
)
def test_two_processes_are_one(method, tmp_path: Path) -> None:
    arguments = ["--epochs", "3", "--method", method, "--batch-size", "101", "--seed", "3", "--lr", "0.05"]
    finish(start(tmp_path / "one", *arguments))
    if method == "mixup":
        train_with_torchrun(tmp_path / "two", *arguments)
    else:
        for process in start_two(tmp_path / "two", *arguments):
            finish(process)
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    torch.testing.assert_close(one["x_mean"], two["x_mean"], rtol=0, atol=1e-7)
    torch.testing.assert_close(one["y_mean"], two["y_mean"], rtol=0, atol=1e-7)
    for first, second in zip(comparable_log(tmp_path / "one"), comparable_log(tmp_path / "two"), strict=True):
        assert first["train_loss"] == pytest.approx(second["train_loss"], abs=1e-5)
        for model in ("plain", "rescaled"):
            for measure, value in first["test"][model].items():
                assert value == pytest.approx(second["test"][model][measure], abs=1e-5), (model, measure)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["adaptive", "manifold"])
def test_methods_that_pair_within_a_process_train_with_two(method, tmp_path: Path) -> None:
    # Partners are others than with one process, so that weights are not the same; what is learnt is.
    arguments = ["--epochs", "15", "--method", method, "--batch-size", "64", "--lr", "0.05", "--parseval", "0.001"]
    finish(start(tmp_path / "one", *arguments))
    train_with_torchrun(tmp_path / "two", *arguments)
    one, two = (json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("one", "two"))
    assert abs(one["rescaled"]["accuracy"] - two["rescaled"]["accuracy"]) < 0.03
    assert two["rescaled"]["accuracy"] > 0.9
