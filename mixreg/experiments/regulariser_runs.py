"""The runs behind Table 1: one network, many ways to train it, with clean, flipped and human labels."""

from __future__ import annotations

import math
from typing import Any

from mixreg.experiments.experiment import Results, Run, Sizes
from mixreg.experiments.moments import TRAINING_SET, described, moments_setting
from mixreg.experiments.requirements import is_at_hand, missing_for_training

# What is trained: its name, and what its configuration differs in from ERM's.
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "erm": ("ERM", {}),
    "uniform": ("label smoothing, uniform", {"label_smoothing": 0.1}),
    "smoothing": ("label smoothing, mean label", {"method": "smoothing", "alpha": 1.0}),
    "parseval": ("Parseval", {"parseval": 0.001}),
    "dropout": ("dropout", {"dropout": 0.5}),
    "mixup": ("Mixup", {"method": "mixup", "alpha": 1.0}),
    "approximate": ("approximate Mixup", {"method": "approximate", "alpha": 1.0}),
    "gaussian": ("Gaussian Mixup", {"method": "gaussian", "alpha": 1.0}),
    "modified": ("ERM on modified data", {"method": "modified", "alpha": 1.0}),
    "inputs": ("Mixup of inputs", {"method": "inputs", "alpha": 1.0}),
    "outputs": ("Mixup of labels", {"method": "outputs", "alpha": 1.0}),
    "independent": ("Mixup, independent", {"method": "independent", "alpha": 1.0}),
    "scaled": ("Mixup, scaled (α = 2)", {"method": "scaled", "alpha": 2.0}),
    "manifold": ("Manifold Mixup (α = 2)", {"method": "manifold", "alpha": 2.0}),
    "cutmix": ("CutMix", {"method": "cutmix", "alpha": 1.0}),
    "adaptive": ("adaptive Mixup", {"method": "adaptive"}),
    "regmixup": ("RegMixup (α = 10)", {"method": "regmixup", "alpha": 10.0}),
    "mixupe": ("MixupE", {"method": "mixupe", "alpha": 1.0}),
    "combined": ("Mixup + dropout + Parseval", {"method": "mixup", "alpha": 1.0, "dropout": 0.5, "parseval": 0.001}),
}
# Trained as ERM is: there is no shrinking to undo, and "rescaled" is the paper's control.
WITHOUT_RULE = tuple(method for method, (_, changes) in METHODS.items() if "method" not in changes)
# ERM, and no regulariser besides.
_PLAIN = {"method": "erm", "label_smoothing": 0.0, "dropout": 0.0, "parseval": 0.0}
_NO_DATA = "none"


def sizes_at(scale: str) -> dict[str, Any]:
    """Digits as pictures where CIFAR-10 is not at hand (and always for a smoke test)."""
    shared: dict[str, Any] = {"model": "lenet", "lr": 0.03, "rounds": 10, "noises": ["0", "0.2", "0.4"]}
    shared |= {"shifts": [-1.0, -0.5, 0.5, 1.0], "scales": [0.5, 0.75, 1.5, 2.0], "moments": TRAINING_SET}
    digits = shared | {"data": "digits-32", "human": _NO_DATA}
    if scale == "smoke":
        digits |= {"noises": ["0"], "shifts": [0.5], "scales": [2.0]}
        return digits | {"samples": 64, "epochs": 1, "repetitions": 1, "images": 50, "points": 20, "rounds": 2}
    cifar = shared | {"data": "cifar10", "human": "cifar10n-worst", "images": 1000, "points": 500}
    if scale == "paper":
        return cifar | {"samples": 45000, "epochs": 200, "repetitions": 10, "lr": 0.01}
    if is_at_hand("cifar10"):
        human = "cifar10n-worst" if is_at_hand("cifar10n-worst") else _NO_DATA
        return cifar | {"samples": 5000, "epochs": 30, "repetitions": 3, "human": human}
    return digits | {"samples": 1000, "epochs": 60, "repetitions": 3, "images": 300, "points": 200}


def noises(sizes: Sizes) -> list[str]:
    """Kinds of label noise: fractions of flipped labels, and people's labels where they are at hand."""
    return [*sizes["noises"], *([] if sizes["human"] == _NO_DATA else ["human"])]


def _data(sizes: Sizes, noise: str) -> dict[str, Any]:
    """The fields of a configuration that say what labels there are."""
    if noise == "human":
        return {"data": sizes["human"]}
    return {"data": sizes["data"], "label_noise": float(noise)}


def _config(sizes: Sizes, method: str) -> dict[str, Any]:
    config = {key: sizes[key] for key in ("data", "model", "lr", "samples", "epochs")}
    return config | {"method": "erm", "drops": [0.5], "augment": "none"} | METHODS[method][1]


def _run(sizes: Sizes, method: str, noise: str, seed: int) -> Run:
    """One training run; moved inputs and derivatives are measured on networks that saw clean labels."""
    config = _config(sizes, method) | {"seed": seed} | _data(sizes, noise)
    further = {key: sizes[key] for key in ("shifts", "scales", "images", "points")} | moments_setting(sizes)
    return Run("regularised", {"config": config, "look": further if noise == "0" else None})


def runs(sizes: Sizes) -> list[Run]:
    """The timing of all methods' steps, and all trainings, one repetition after another."""
    configs = {method: _config(sizes, method) for method in METHODS}
    trainings = [
        _run(sizes, method, noise, seed)
        for seed in range(sizes["repetitions"])
        for noise in noises(sizes)
        for method in METHODS
    ]
    return [Run("steps", {"configs": configs, "rounds": sizes["rounds"]}), *trainings]


class Measured:
    """The numbers of the table: lists over repetitions, by method."""

    def __init__(self, results: Results, sizes: Sizes) -> None:
        self.results, self.sizes = results, sizes

    def _all(self, method: str, noise: str) -> list[dict[str, Any]]:
        return self.results.select(**_PLAIN | METHODS[method][1] | _data(self.sizes, noise))

    def test(self, method: str, predictor: str, measure: str, noise: str = "0") -> list[float]:
        """A measure on test data."""
        return [found["test"][predictor][measure] for found in self._all(method, noise)]

    def derivative(self, method: str, name: str) -> list[float]:
        """`jacobian`, `r1` or `r1_r3`; NaN where R1 and R3 do not exist apart."""
        return [math.nan if found[name] is None else found[name] for found in self._all(method, "0")]

    def lost(self, method: str, predictor: str, sign: str) -> list[float]:
        """Accuracy lost under shifts ("+") or scalings ("×"), averaged over them."""
        lost = []
        for found in self._all(method, "0"):
            moved = found["moved"][predictor]
            accuracies = [value for title, value in moved.items() if title.startswith(sign)]
            lost.append(moved[""] - sum(accuracies) / len(accuracies))
        return lost

    def cost(self, method: str) -> list[float]:
        """Steps of ERM that one step takes, round by round."""
        ratios: list[float] = self.results.one(kind="steps")["ratios"][method]
        return ratios

    def columns(self, method: str, is_tempered: bool = False) -> dict[str, list[float]]:
        """Every column of the table; temperature scaling changes calibration only."""
        suffix = ", tempered" if is_tempered else ""
        columns = {
            "ECE": self.test(method, f"plain{suffix}", "ece"),
            "ECE, rescaled": self.test(method, f"rescaled{suffix}", "ece"),
            "Jacobian": self.derivative(method, "jacobian"),
            "R1 alone": self.derivative(method, "r1"),
            "R1 + R3": self.derivative(method, "r1_r3"),
        }
        for noise in noises(self.sizes):
            columns[f"accuracy, {noise_name(noise)}"] = self.test(method, "plain", "accuracy", noise)
        columns["accuracy, rescaled"] = self.test(method, "rescaled", "accuracy")
        for sign, name in (("+", "shifted"), ("×", "scaled")):
            columns[f"lost, {name}"] = self.lost(method, "plain", sign)
        return columns | {"cost of a step": self.cost(method)}


def noise_name(noise: str) -> str:
    return {"0": "clean", "human": "human noise"}.get(noise) or f"{float(noise):.0%} flipped"


def caption(sizes: Sizes) -> str:
    names = {"cifar10": "CIFAR-10", "digits-32": "digits"}
    human = ", human noise: CIFAR-10N's worst labels" if sizes["human"] != _NO_DATA else ""
    data = names.get(sizes["data"], sizes["data"])
    return (
        f"LeNet on {sizes['samples']:,} training samples of {data}{human}; SGD with learning rate {sizes['lr']:g}, "
        f"divided by 10 halfway, {sizes['epochs']} epochs, no augmentation; α = 1 where nothing else is said; "
        f"temperatures from a clean tenth held out; {sizes['images']:,} moved test images, derivatives at "
        f"{sizes['points']} points, terms on as many training samples, {described(sizes)}; mean and 95 % interval of "
        f"{sizes['repetitions']} repetitions ({sizes['rounds']} rounds for the cost of a step)"
    )


def missing(sizes: Sizes) -> list[str]:
    """Datasets that are not at hand."""
    return missing_for_training([name for name in (sizes["data"], sizes["human"]) if name != _NO_DATA])
