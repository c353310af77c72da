"""Is the fitted rule better than temperature scaling? ResNet-9 on CIFAR-10, three seeds, 5,000 images held out.

    python benchmarks/fitted_rule.py [--out out/fitted-rule] [--seeds 3] [--erm-seeds 2] [--epochs 12]

Trains Mixup (α = 1) and ERM for some seeds (12 minutes each on one core; what is trained is not trained again), fits
the rule's strength and temperature on what was held out, and compares cross-entropies on the 10,000 test images: means
over seeds, paired differences with 95 % intervals. Writes `docs/measured/fitted_rule.json`, which the guide shows.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from mixreg._support.files import write_json
from mixreg.evaluation.runs import evaluated
from mixreg.evaluation.table import table
from mixreg.report.intervals import interval
from mixreg.training import Config
from mixreg.training.engine import Engine
from mixreg.training.run import train
from mixreg.training.trained import load_trained

MEASURED = Path(__file__).parent.parent / "docs" / "measured" / "fitted_rule.json"
MEASURES = ("accuracy", "cross_entropy", "ece")


def run(method: str, seed: int, epochs: int, out: Path) -> dict[str, Any]:
    """The rows of one network's table, and the strength that was fitted."""
    config = Config(
        data="cifar10",
        model="resnet9",
        method=method,
        epochs=epochs,
        schedule="one-cycle",
        lr=0.2,
        nesterov=True,
        augment="none",
        seed=seed,
    )
    folder = out / f"{method}-{seed}"
    train(config, folder, Engine(accelerator="cpu"), evaluate_every=epochs)
    outputs, fit = evaluated(load_trained(folder))
    assert fit is not None
    assert fit.family is not None
    rows = {row["model"]: {name: row[name] for name in MEASURES} for row in table(outputs)}
    family = fit.family
    return {"seed": seed, "strength": family.strength, "best": family.best.strength, "passes": len(family.points)} | {
        "rows": rows
    }


def compared(found: list[dict[str, Any]], first: str, second: str, measure: str) -> dict[str, float]:
    """The mean of the paired difference, and half of its 95 % interval."""
    difference = [seed["rows"][first][measure] - seed["rows"][second][measure] for seed in found]
    mean, half_width = interval(difference)
    return {"mean": mean, "half_width": half_width}


def main() -> None:
    """Train, compare, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out/fitted-rule"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--erm-seeds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=12)
    asked = parser.parse_args()
    found = {
        method: [run(method, seed, asked.epochs, asked.out) for seed in range(seeds)]
        for method, seeds in (("mixup", asked.seeds), ("erm", asked.erm_seeds))
    }
    differences = {
        f"fitted − {other}": compared(found["mixup"], "fitted", other, "cross_entropy")
        for other in ("plain, tempered", "rescaled, tempered", "rescaled", "plain")
    }
    for method, seeds in found.items():
        print(f"{method}: strength {[round(seed['strength'], 2) for seed in seeds]}")
        for row in seeds[0]["rows"]:
            means = {name: float(np.mean([seed["rows"][row][name] for seed in seeds])) for name in MEASURES}
            print(f"  {row:<20} " + "  ".join(f"{name} {value:.4f}" for name, value in means.items()))
    for name, value in differences.items():
        print(f"{name}: {value['mean']:+.4f} ± {value['half_width']:.4f}")
    write_json(MEASURED, {"epochs": asked.epochs, "runs": found, "cross_entropy": differences})


if __name__ == "__main__":
    main()
