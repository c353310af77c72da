"""An epoch of `mixreg train` beside a bare loop with the same arithmetic; LeNet on CIFAR-10-sized images.

    python benchmarks/training.py

The bare loop has its images in memory, crops, scales, mixes and steps; it counts nothing, logs nothing, tracks no means
and saves nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from timing import medians, show

from mixreg import Mixup
from mixreg.data import Dataset, Split
from mixreg.losses import cross_entropy
from mixreg.losses.targets import to_values
from mixreg.models import LeNet
from mixreg.training import Config
from mixreg.training.array_batches import ArrayBatches, crop_and_flip
from mixreg.training.build import build_method
from mixreg.training.engine import Engine
from mixreg.training.loop import Trainer
from mixreg.training.observer import Observer

STEPS = 200


def bare(batches: ArrayBatches, method: str) -> Callable[[], None]:
    """A plain PyTorch loop."""
    net = LeNet()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    mix, generator = Mixup(1.0, 10), torch.Generator()

    def epoch() -> None:
        for chosen in torch.randperm(len(batches.y)).split(128):
            x, y = batches.x[chosen], batches.y[chosen]
            x = batches.scaled(crop_and_flip(x, generator))
            x, targets = mix(x, y) if method == "mixup" else (x, to_values(y, 10))
            loss = cross_entropy(targets, net(x)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return epoch


def trained(dataset: Dataset, method: str, folder: Path) -> Callable[[], None]:
    """The same through the trainer, with checkpoints."""
    config = Config(model="lenet", method=method, lr=0.01, holdout=0.0, epochs=1)
    fabric = Engine(accelerator="cpu").launch()
    batches = ArrayBatches(dataset, config)
    net = LeNet()
    used = build_method(config, net, 10, batches.moments)
    trainer = Trainer(config, batches, net, used, fabric, folder / f"{method}.safetensors")
    # Training itself, without the evaluation that follows the last epoch.
    trainer.evaluate = dict  # type: ignore[method-assign]

    def epoch() -> None:
        trainer.state.epoch = trainer.state.step = 0
        trainer.run(Observer(), 30.0)

    return epoch


if __name__ == "__main__":
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (STEPS * 128, 32, 32, 3), dtype=np.uint8)
    split = Split(images, random.integers(0, 10, len(images)))
    dataset = Dataset("noise", split, split, 10)
    with tempfile.TemporaryDirectory() as folder:
        batches = ArrayBatches(dataset, Config(holdout=0.0))
        contestants: dict[str, Callable[[], object]] = {f"bare loop, {m}": bare(batches, m) for m in ("erm", "mixup")}
        contestants |= {
            f"mixreg train, {m}": trained(dataset, m, Path(folder)) for m in ("erm", "mixup", "approximate")
        }
        title = f"{STEPS} steps of LeNet, batch 128, {torch.get_num_threads()} threads"
        show(title, medians(contestants, 5), ["bare loop, erm", "bare loop, mixup", "mixreg train, erm"])
