"""How long `MixupClassifier` trains, against `MLPClassifier`: digits, the same network, epochs and batches.

    python benchmarks/fit_time.py [--rounds 7] [--epochs 30] [--json FILE]

Both train a hidden layer of 100 neurons by Adam, one thread, and take turns; medians of processor time, which does not
depend on who else is at work, as multiples of scikit-learn's. The first fit of each is not counted.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from timing import keep

from mixreg.adapters.sklearn import MixupClassifier


def contestants(epochs: int, batch_size: int) -> dict[str, Callable[[], Any]]:
    """Fits by name; scikit-learn's first."""
    x, y = load_digits(return_X_y=True)
    x = x / 16
    settings: dict[str, Any] = {"epochs": epochs, "batch_size": batch_size, "random_state": 0}

    def fit(**own: Any) -> Callable[[], Any]:
        return lambda: MixupClassifier(**settings | own).fit(x, y)

    return {
        "MLPClassifier": lambda: MLPClassifier(
            (100,), max_iter=epochs, batch_size=batch_size, n_iter_no_change=epochs + 1, random_state=0
        ).fit(x, y),
        "default": fit(),
        "alpha 1": fit(alpha=1.0),
        "float64": fit(dtype="float64"),
        "weights": lambda: MixupClassifier(**settings).fit(x, y, sample_weight=1 + y % 2 / 2),
    }


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ConvergenceWarning)
    found: dict[str, float] = {}
    shuffle = random.Random(0).shuffle
    for batch_size in (64, 200):
        fits = contestants(asked.epochs, batch_size)
        order = list(fits)
        times: dict[str, list[float]] = {name: [] for name in fits}
        for name in order:
            fits[name]()
        for _ in range(asked.rounds):
            shuffle(order)
            for name in order:
                start = time.process_time()
                fits[name]()
                times[name].append(time.process_time() - start)
        medians = {name: statistics.median(values) for name, values in times.items()}
        found |= {
            f"batches of {batch_size}: {name} ÷ MLPClassifier": seconds / medians["MLPClassifier"]
            for name, seconds in medians.items()
            if name != "MLPClassifier"
        }
    keep("fit_time", found, asked.json)


if __name__ == "__main__":
    main()
