"""The runs that Figures 2, 3 and 7 share: one network, one dataset, five ways to train it.

The paper trains a LeNet on CIFAR-10 with SGD (momentum 0.9, weight decay 5·10⁻⁴, batches of 128, learning rate 0.01,
divided by 10 halfway) for 200 epochs. It names neither α nor any augmentation: α = 1 and none are used here. What Mixup
is only held against beside ERM (`CONTROLS`) may have fewer repetitions; comparisons are over those that both have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mixreg.experiments.experiment import Run, Sizes
from mixreg.experiments.moments import EARLIER as EARLIER_MOMENTS
from mixreg.experiments.moments import TRAINING_SET, moments_setting
from mixreg.experiments.requirements import is_at_hand, missing_for_training

METHODS = {
    "erm": "ERM",
    "smoothing": "label smoothing",
    "modified": "ERM on modified data",
    "mixup": "Mixup",
    "approximate": "approximate Mixup",
}
CONTROLS = ("smoothing", "modified")
# On test data along a run: a curve of so many points shows all there is.
_MOST_EVALUATIONS = 40
# What plans of earlier versions do not name: all methods had the same repetitions.
EARLIER = {"controls": 10, **EARLIER_MOMENTS}
_EMBEDDED = {"data": "digits", "model": "mlp", "lr": 0.05, "alpha": 1.0, "moments": TRAINING_SET}
_CIFAR = {"data": "cifar10", "model": "lenet", "lr": 0.01, "alpha": 1.0, "moments": TRAINING_SET}


def sizes_at(scale: str) -> dict[str, Any]:
    """Digits with a small network where CIFAR-10 is not at hand (and always for a smoke test)."""
    if scale == "smoke":
        return _EMBEDDED | {"epochs": 3, "repetitions": 2, "controls": 2, "samples": 60, "looks": 2}
    if scale == "paper":
        return _CIFAR | {"epochs": 200, "repetitions": 10, "controls": 10, "samples": 1000, "looks": 10}
    if is_at_hand("cifar10"):
        return _CIFAR | {"epochs": 4, "repetitions": 3, "controls": 3, "samples": 500, "looks": 4}
    return _EMBEDDED | {"epochs": 30, "repetitions": 5, "controls": 5, "samples": 300, "looks": 5}


def measured_epochs(sizes: Sizes) -> list[int]:
    """The epochs after which terms are measured: `looks` of them, evenly spread."""
    return sorted({max(1, round(k * sizes["epochs"] / sizes["looks"])) for k in range(1, sizes["looks"] + 1)})


def _run(sizes: Sizes, method: str, seed: int) -> Run:
    """One training run; terms of Theorem 3 are measured on the way."""
    config = {key: sizes[key] for key in ("data", "model", "lr", "alpha", "epochs")}
    config |= {"method": method, "drops": [0.5], "augment": "none", "holdout": 0.0, "seed": seed}
    terms = {"samples": sizes["samples"], "epochs": measured_epochs(sizes), **moments_setting(sizes)}
    settings: dict[str, Any] = {"config": config, "rescale": [sizes["alpha"]], "terms": terms}
    every = sizes["epochs"] // _MOST_EVALUATIONS
    return Run("training", settings | ({"evaluate_every": every} if every > 1 else {}))


def runs(sizes: Sizes, methods: Sequence[str]) -> list[Run]:
    """All repetitions of these methods."""
    return [
        _run(sizes, method, seed)
        for seed in range(sizes["repetitions"])
        for method in methods
        if method not in CONTROLS or seed < sizes["controls"]
    ]


def of_both(first: list[float], second: list[float]) -> tuple[list[float], list[float]]:
    """Values of two methods, by seed from 0 on, for the seeds that both have.

    >>> of_both([1.0, 2.0, 3.0], [4.0, 5.0])
    ([1.0, 2.0], [4.0, 5.0])
    """
    both = min(len(first), len(second))
    return first[:both], second[:both]


def caption(sizes: Sizes, shown: str = "mean and 95 % interval") -> str:
    """What the figures say of their runs, of which they show this."""
    names = {"cifar10": "CIFAR-10", "lenet": "LeNet", "mlp": "a network with two hidden layers"}
    data, model = (names.get(sizes[key], sizes[key]) for key in ("data", "model"))
    fewer = f" ({sizes['controls']} of {_controls()})" if sizes["controls"] < sizes["repetitions"] else ""
    return (
        f"{model} on {data}, SGD with learning rate {sizes['lr']:g}, divided by 10 halfway, {sizes['epochs']} epochs, "
        f"no augmentation, α = {sizes['alpha']:g}; {shown} of {sizes['repetitions']} repetitions{fewer}"
    )


def _controls() -> str:
    return " and ".join(METHODS[method] for method in CONTROLS)


def missing(sizes: Sizes) -> list[str]:
    """The dataset, if it is not at hand."""
    return missing_for_training([sizes["data"]])
