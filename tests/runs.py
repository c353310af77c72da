"""Training runs for tests: as a user starts them, in a process of their own, or here and interrupted."""

import json
import os
import socket
import sys
from pathlib import Path

import preloaded
import torch
from safetensors.torch import load_file

from mixreg.training import Config
from mixreg.training.engine import Engine
from mixreg.training.observer import Observer
from mixreg.training.run import train

TRAIN = ["-m", "mixreg", "train", "--accelerator", "cpu"]
COMMAND = [sys.executable, *preloaded.WARNINGS, *TRAIN]


def environment() -> dict[str, str]:
    # One thread: tests share the machine, and a run's arithmetic depends on the number of threads.
    return os.environ | {"OMP_NUM_THREADS": "1"}


def start(out: Path | str, *arguments: str, cwd: Path | None = None) -> preloaded.Started:
    return preloaded.start([*TRAIN, "--out", str(out), *arguments], cwd, environment(), merged=True)


def start_two(out: Path | str, *arguments: str, cwd: Path | None = None) -> list[preloaded.Started]:
    """Two processes that train together, in the environment that `torchrun` gives them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = [*TRAIN, "--devices", "2", "--strategy", "ddp", "--out", str(out), *arguments]
    crew = []
    for rank in range(2):
        own = shared | {"RANK": rank, "LOCAL_RANK": rank, "TORCHELASTIC_RUN_ID": "none"}
        env = environment() | {name: str(value) for name, value in own.items()}
        crew.append(preloaded.start(command, cwd, env, merged=True))
    return crew


def finish(process: preloaded.Started) -> str:
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
