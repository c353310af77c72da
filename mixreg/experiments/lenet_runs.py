"""The runs that Figures 2, 3 and 7 share: one network, one dataset, five ways to train it.

The paper trains a LeNet on CIFAR-10 with SGD (momentum 0.9, weight decay 5·10⁻⁴, batches of 128, step 0.01 divided by
10 at half time) for 200 epochs. It names neither α nor any augmentation: α = 1 and none are used here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mixreg.experiments.experiment import Results, Sizes, is_at_hand, missing_for_training
from mixreg.experiments.store import Run

METHODS = {
    "erm": "ERM",
    "smoothing": "label smoothing",
    "modified": "ERM on modified data",
    "mixup": "Mixup",
    "approximate": "approximate Mixup",
}
COLOURS = {"erm": "C7", "smoothing": "C4", "modified": "C0", "mixup": "C3", "approximate": "C1"}
_EMBEDDED = {"data": "digits", "model": "mlp", "lr": 0.05, "alpha": 1.0}
_CIFAR = {"data": "cifar10", "model": "lenet", "lr": 0.01, "alpha": 1.0}


def sizes(scale: str) -> dict[str, Any]:
    """Digits with a small network where CIFAR-10 is not at hand (and always for a smoke test)."""
    if scale == "smoke":
        return _EMBEDDED | {"epochs": 3, "repetitions": 2, "samples": 60, "looks": 2}
    if scale == "paper":
        return _CIFAR | {"epochs": 200, "repetitions": 10, "samples": 1000, "looks": 10}
    if is_at_hand("cifar10"):
        return _CIFAR | {"epochs": 4, "repetitions": 3, "samples": 500, "looks": 4}
    return _EMBEDDED | {"epochs": 30, "repetitions": 5, "samples": 300, "looks": 5}


def look_epochs(chosen: Sizes) -> list[int]:
    """The epochs after which terms are measured."""
    return sorted({max(1, round(k * chosen["epochs"] / chosen["looks"])) for k in range(1, chosen["looks"] + 1)})


def run(chosen: Sizes, method: str, seed: int) -> Run:
    """One training run; terms of Theorem 3 are measured on the way."""
    config = {key: chosen[key] for key in ("data", "model", "lr", "alpha", "epochs")}
    config |= {"method": method, "drops": [0.5], "augment": "none", "holdout": 0.0, "seed": seed}
    terms = {"samples": chosen["samples"], "epochs": look_epochs(chosen)}
    return Run("training", {"config": config, "rescale": [chosen["alpha"]], "terms": terms})


def runs(chosen: Sizes, methods: Sequence[str]) -> list[Run]:
    """All repetitions of these methods."""
    return [run(chosen, method, seed) for seed in range(chosen["repetitions"]) for method in methods]


def repetitions(results: Results, chosen: Sizes, method: str) -> list[dict[str, Any]]:
    """The results of a method, repetition by repetition."""
    return [results[run(chosen, method, seed).key] for seed in range(chosen["repetitions"])]


def made_with(chosen: Sizes) -> str:
    """What the figures say of their runs."""
    names = {"cifar10": "CIFAR-10", "lenet": "LeNet", "mlp": "a network with two hidden layers"}
    data, model = (names.get(chosen[key], chosen[key]) for key in ("data", "model"))
    return (
        f"{model} on {data}, SGD with step {chosen['lr']:g} (÷ 10 at half time), {chosen['epochs']} epochs, no "
        f"augmentation, α = {chosen['alpha']:g}; mean and 95 % interval of {chosen['repetitions']} repetitions"
    )


def missing(chosen: Sizes) -> list[str]:
    """The dataset, if it is not at hand."""
    return missing_for_training([chosen["data"]])
