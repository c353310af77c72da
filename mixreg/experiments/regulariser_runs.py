"""The runs behind Table 1, measured: one network, many ways to train it, with clean, flipped and human labels."""

from __future__ import annotations

from typing import Any

from mixreg.experiments.experiment import Results, Sizes, is_at_hand, missing_for_training
from mixreg.experiments.store import Run

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
_NO_DATA = "none"


def sizes(scale: str) -> dict[str, Any]:
    """Digits as pictures where CIFAR-10 is not at hand (and always for a smoke test)."""
    shared: dict[str, Any] = {"model": "lenet", "lr": 0.03, "rounds": 10, "noises": ["0", "0.2", "0.4"]}
    shared |= {"shifts": [-1.0, -0.5, 0.5, 1.0], "scales": [0.5, 0.75, 1.5, 2.0]}
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


def noises(chosen: Sizes) -> list[str]:
    """Kinds of label noise: fractions of flipped labels, and people's labels where they are at hand."""
    return [*chosen["noises"], *([] if chosen["human"] == _NO_DATA else ["human"])]


def _config(chosen: Sizes, method: str) -> dict[str, Any]:
    config = {key: chosen[key] for key in ("data", "model", "lr", "samples", "epochs")}
    return config | {"method": "erm", "drops": [0.5], "augment": "none"} | METHODS[method][1]


def run(chosen: Sizes, method: str, noise: str, seed: int) -> Run:
    """One training run; moved inputs and derivatives are measured on networks that saw clean labels."""
    config = _config(chosen, method) | {"seed": seed}
    config |= {"data": chosen["human"]} if noise == "human" else {"label_noise": float(noise)}
    look = {key: chosen[key] for key in ("shifts", "scales", "images", "points")} if noise == "0" else None
    return Run("regularised", {"config": config, "look": look})


def steps_run(chosen: Sizes) -> Run:
    """The timing of all methods' steps."""
    configs = {method: _config(chosen, method) for method in METHODS}
    return Run("steps", {"configs": configs, "rounds": chosen["rounds"]})


def runs(chosen: Sizes) -> list[Run]:
    """All of them, one repetition after another, and the timing of steps."""
    trained = [
        run(chosen, method, noise, seed)
        for seed in range(chosen["repetitions"])
        for noise in noises(chosen)
        for method in METHODS
    ]
    return [steps_run(chosen), *trained]


class Measured:
    """The numbers of the table: lists over repetitions, by method."""

    def __init__(self, results: Results, chosen: Sizes) -> None:
        self.results, self.chosen = results, chosen

    def _all(self, method: str, noise: str) -> list[dict[str, Any]]:
        return [self.results[run(self.chosen, method, noise, s).key] for s in range(self.chosen["repetitions"])]

    def test(self, method: str, predictor: str, measure: str, noise: str = "0") -> list[float]:
        """A measure on test data."""
        return [found["test"][predictor][measure] for found in self._all(method, noise)]

    def derivative(self, method: str, name: str) -> list[float]:
        """`jacobian`, `r1` or `r1_r3`."""
        return [found[name] for found in self._all(method, "0")]

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
        ratios: list[float] = self.results[steps_run(self.chosen).key]["ratios"][method]
        return ratios

    def columns(self, method: str, is_tempered: bool = False) -> dict[str, list[float]]:
        """Every column of the table; temperature scaling changes calibration only."""
        suffix = ", tempered" if is_tempered else ""
        columns = {
            "ECE": self.test(method, f"plain{suffix}", "ece"),
            "ECE, rescaled": self.test(method, f"rescaled{suffix}", "ece"),
            "Jacobian": self.derivative(method, "jacobian"),
            "R1": self.derivative(method, "r1"),
            "R1 + R3": self.derivative(method, "r1_r3"),
        }
        for noise in noises(self.chosen):
            columns[f"accuracy, {noise_name(noise)}"] = self.test(method, "plain", "accuracy", noise)
        columns["accuracy, rescaled"] = self.test(method, "rescaled", "accuracy")
        for sign, name in (("+", "shifted"), ("×", "scaled")):
            columns[f"lost, {name}"] = self.lost(method, "plain", sign)
        return columns | {"cost of a step": self.cost(method)}


def noise_name(noise: str) -> str:
    """What to call it."""
    return {"0": "clean", "human": "human noise"}.get(noise) or f"{float(noise):.0%} flipped"


def made_with(chosen: Sizes) -> str:
    """What the figure says of its runs."""
    names = {"cifar10": "CIFAR-10", "digits-32": "digits"}
    human = ", human noise: CIFAR-10N's worst labels" if chosen["human"] != _NO_DATA else ""
    data = names.get(chosen["data"], chosen["data"])
    return (
        f"LeNet on {chosen['samples']:,} training samples of {data}{human}; SGD with step {chosen['lr']:g} (÷ 10 at "
        f"half time), {chosen['epochs']} epochs, no augmentation; α = 1 where nothing else is said; temperatures from "
        f"a clean tenth held out; {chosen['images']:,} moved test images, derivatives at {chosen['points']} points; "
        f"mean and 95 % interval of {chosen['repetitions']} repetitions ({chosen['rounds']} rounds for the cost of a "
        f"step)"
    )


def missing(chosen: Sizes) -> list[str]:
    """Datasets that are not at hand."""
    return missing_for_training([name for name in (chosen["data"], chosen["human"]) if name != _NO_DATA])
