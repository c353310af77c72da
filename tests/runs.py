"""Training runs for tests: as a user starts them, in a process of their own, or here and interrupted."""

import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from mixreg.training import Config
from mixreg.training.engine import Engine
from mixreg.training.observer import Observer
from mixreg.training.run import train

# PyTorch scripts its own forward-mode rules with what it has itself deprecated.
WARNINGS = ["-W", "error", "-W", "ignore::DeprecationWarning", "-W", "ignore::FutureWarning"]
COMMAND = [sys.executable, *WARNINGS, "-m", "mixreg", "train", "--accelerator", "cpu"]


def environment() -> dict[str, str]:
    # One thread: tests share the machine, and a run's arithmetic depends on the number of threads.
    return os.environ | {"OMP_NUM_THREADS": "1"}


def start(out: Path, *arguments: str) -> subprocess.Popen:
    command = [*COMMAND, "--out", str(out), *arguments]
    return subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen) -> str:
    output = process.communicate()[0]
    assert process.returncode == 0, output
    return output


def comparable_log(out: Path) -> list[dict]:
    records = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


def assert_same_run(first: Path, second: Path) -> None:
    a, b = load_file(first / "model.safetensors"), load_file(second / "model.safetensors")
    assert a.keys() == b.keys()
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()
    assert comparable_log(first) == comparable_log(second)
    assert (first / "metrics.json").read_bytes() == (second / "metrics.json").read_bytes()


class Interrupted(Exception):
    pass


class Interrupting(Observer):
    """Stops a run after some steps."""

    def __init__(self, stop_after: int) -> None:
        self.stop_after, self.steps = stop_after, 0

    def on_step(self, epoch, step, loss, accuracy) -> None:
        self.steps += 1
        if self.steps > self.stop_after:
            raise Interrupted


def carry_out(config: Config, out: Path, stop_after: int | None = None, seconds: float = 0.0) -> bool:
    """A run in this process, interrupted after some steps if asked."""
    observer = None if stop_after is None else Interrupting(stop_after)
    return train(config, out, Engine(accelerator="cpu"), observer, seconds)
