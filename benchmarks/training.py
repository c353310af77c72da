"""An epoch of `mixreg train` beside the loop that one writes in ten lines; CIFAR-10-sized noise, batches of 128.

    python benchmarks/training.py [--models lenet small-resnet resnet9] [--images 6400] [--rounds 7] [--threads 1 2]
                                  [--json FILE]

The loop (`naive`) has its images in memory as scaled floats with channels first, indexes them, mixes with one λ for
each batch, adds two cross-entropies and steps by SGD with momentum; it counts nothing, logs nothing, tracks no means
and saves nothing. `mixreg train` does all of that, with bytes for images; its evaluation on the test set, which the
loop does not have, is left out. Each has a process of its own, as the command keeps freed memory and a loop does not;
they take turns within one run, without crops and flips; medians.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from timing import keep, medians
from torch.nn.functional import cross_entropy

from mixreg._support.freed_memory import keep_freed_memory
from mixreg.data import Dataset, Split
from mixreg.models import build
from mixreg.training import Config
from mixreg.training.array_batches import ArrayBatches
from mixreg.training.build import build_method
from mixreg.training.engine import Engine
from mixreg.training.loop import Trainer
from mixreg.training.observer import Observer

METHODS, BATCH = ("mixup", "erm"), 128


def naive(images: np.ndarray, labels: np.ndarray, model: str, method: str) -> Callable[[], None]:
    """A plain PyTorch loop."""
    x = torch.from_numpy(images).permute(0, 3, 1, 2).float().div(255).sub(0.5).div(0.29).contiguous()
    y, net = torch.from_numpy(labels), build(model, (3, 32, 32), 10)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    random = np.random.default_rng(0)

    def epoch() -> None:
        for i in torch.randperm(len(x)).split(BATCH):
            inputs, targets = x[i], y[i]
            if method == "mixup":
                lam, p = random.beta(1, 1), torch.randperm(len(i))
                outputs = net(lam * inputs + (1 - lam) * inputs[p])
                loss = lam * cross_entropy(outputs, targets) + (1 - lam) * cross_entropy(outputs, targets[p])
            else:
                loss = cross_entropy(net(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return epoch


def trained(images: np.ndarray, labels: np.ndarray, model: str, method: str, folder: Path) -> Callable[[], None]:
    """The same through the trainer; its folder is written to after every epoch."""
    config = Config(model=model, method=method, lr=0.01, holdout=0.0, epochs=1, augment="none", batch_size=BATCH)
    few = Split(images[:500], labels[:500])
    batches = ArrayBatches(Dataset("noise", Split(images, labels), few, 10), config)
    net = build(model, (3, 32, 32), 10)
    used = build_method(config, net, 10, batches.moments)
    fabric = Engine(accelerator="cpu").launch()
    trainer = Trainer(config, batches, net, used, fabric, folder / f"{model}-{method}.safetensors")
    trainer.evaluate = dict  # type: ignore[method-assign]

    def epoch() -> None:
        trainer.state.epoch = trainer.state.step = 0
        trainer.run(Observer(), 30.0)

    return epoch


def take_turns(name: str, model: str, method: str, count: int, threads: int, folder: Path, pipe: Connection) -> None:
    """A contestant's process: an epoch for each word it is told, until the other end is closed."""
    torch.set_num_threads(threads)
    random = np.random.default_rng(0)
    data = random.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8), random.integers(0, 10, count)
    if name == "naive":
        epoch = naive(*data, model, method)
    else:
        keep_freed_memory()
        epoch = trained(*data, model, method, folder)
    while pipe.recv():
        epoch()
        pipe.send(True)


@contextmanager
def process(*about: object) -> Iterator[Callable[[], object]]:
    """Carries out one epoch of a contestant in its own process."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=take_turns, args=(*about, there))
    child.start()
    there.close()

    def epoch() -> object:
        here.send(True)
        return here.recv()

    try:
        yield epoch
    finally:
        here.send(False)
        child.join()


def compared(model: str, count: int, rounds: int, threads: int, folder: Path) -> dict[str, float]:
    """For each method, an epoch of `mixreg train` in epochs of the loop."""
    with ExitStack() as stack:
        contestants = {
            f"{name} {method}": stack.enter_context(process(name, model, method, count, threads, folder))
            for method in METHODS
            for name in ("naive", "mixreg")
        }
        seconds = medians(contestants, rounds)
    return {
        f"{model}, {method}, {count:,} images, threads: {threads}": seconds[f"mixreg {method}"]
        / seconds[f"naive {method}"]
        for method in METHODS
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["lenet", "small-resnet", "resnet9"])
    parser.add_argument("--images", nargs="+", type=int, default=[6400])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", nargs="+", type=int, default=[torch.get_num_threads()])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for model, count, threads in itertools.product(given.models, given.images, given.threads):
            found |= compared(model, count, given.rounds, threads, Path(folder))
    keep("training", found, given.json)
