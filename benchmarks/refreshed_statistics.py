"""Does estimating batch normalisation anew, on shrunk inputs, help a network with a rule? CIFAR-10, three seeds.

    python benchmarks/refreshed_statistics.py [--out out/refreshed] [--seeds 3]

ResNet-9 of width 16, 10,000 images without augmentation, 12 epochs, Mixup with α = 1: its last weights, and a moving
average of them (decay 0.99). Each is used rescaled, with the statistics it has and with ones estimated anew on shrunk
inputs, on inputs as they are, and on mixed ones. Writes `docs/measured/refreshed_statistics.json`.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mixreg import Rescaled
from mixreg._support.files import write_json
from mixreg._support.random import stream
from mixreg.losses.targets import to_values
from mixreg.training import Config
from mixreg.training.engine import Engine
from mixreg.training.held_out_fit import Again
from mixreg.training.measures import measure_models
from mixreg.training.open_batches import open_batches
from mixreg.training.run import train
from mixreg.training.trained import load_trained

MEASURED = Path(__file__).parent.parent / "docs" / "measured" / "refreshed_statistics.json"
MEASURES = ("accuracy", "cross_entropy", "ece")


def run(ema: float, seed: int, out: Path) -> dict[str, dict[str, float]]:
    """The measures of one network, rescaled, by where its statistics come from."""
    config = Config(
        data="cifar10",
        model="resnet9-16",
        samples=10_000,
        epochs=12,
        schedule="one-cycle",
        lr=0.2,
        nesterov=True,
        augment="none",
        ema=ema,
        seed=seed,
    )
    folder = out / f"{ema:g}-{seed}"
    train(config, folder, Engine(accelerator="cpu"), evaluate_every=12)
    trained = load_trained(folder)
    batches, rule = open_batches(config, like=trained.preparation), trained.method.rule(trained.moments)
    generator = stream("mixed", seed)

    def shown() -> Iterator[tuple[Tensor, Tensor]]:
        return ((batch.x, batch.y) for batch in batches.epoch(0, 0))

    def mixed() -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in shown():
            yield trained.method.draw(x, to_values(y, 10), generator)[0], y

    models: dict[str, nn.Module] = {"as they are": Rescaled(trained.net, rule=rule)}
    for name, strength, source in (
        ("on shrunk inputs", 1.0, shown),
        ("on inputs as they are", 0.0, shown),
        ("on mixed inputs", 0.0, mixed),
    ):
        model = Rescaled(copy.deepcopy(trained.net), rule=rule, strength=strength)
        model.refresh_statistics(Again(source))
        model.strength = 1.0
        models[name] = model
    found = measure_models(models, batches.test_batches())
    return {name: {measure: values[measure] for measure in MEASURES} for name, values in found.items()}


def main() -> None:
    """Train, measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out/refreshed"))
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    written: dict[str, Any] = {}
    for ema in (0.0, 0.99):
        seeds = [run(ema, seed, asked.out) for seed in range(asked.seeds)]
        written[f"{ema:g}"] = seeds
        print("averaged weights" if ema else "last weights")
        for name in seeds[0]:
            means = {m: float(np.mean([seed[name][m] for seed in seeds])) for m in MEASURES}
            print(f"  {name:<22} " + "  ".join(f"{m} {value:.4f}" for m, value in means.items()))
    write_json(MEASURED, written)


if __name__ == "__main__":
    main()
