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
from mixreg.training.run import train

# PyTorch scripts its own forward-mode rules with what it has itself deprecated.
WARNINGS = ["-W", "error", "-W", "ignore::DeprecationWarning"]
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


class Nobody:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def step(self, epoch, step, loss, accuracy) -> None:
        pass


class Interrupted(Exception):
    pass


def carry_out(config: Config, out: Path, stop_after: int | None = None, seconds: float = 0.0) -> bool:
    """A run in this process, interrupted after some steps if asked."""

    class Interrupting(Nobody):
        steps = 0

        def step(self, epoch, step, loss, accuracy) -> None:
            self.steps += 1
            if stop_after is not None and self.steps > stop_after:
                raise Interrupted

    return train(config, out, Engine(accelerator="cpu"), lambda config, steps: Interrupting(), seconds)
