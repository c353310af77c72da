"""The runs that Figures 4, 5 and 6 share: ERM, and Mixup for several α, each measured plain, rescaled and fitted.

ERM is measured rescaled for every α too. The paper's networks are ResNet-34 (CIFAR) and ResNet-50 (ImageNet) with the
schedules of `mixreg.training.config.PRESETS`. The paper names no augmentation for CIFAR; none is used here. A tenth of
the training images is held out, to fit strengths and temperatures on.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mixreg.data.registry import IMAGENET
from mixreg.experiments.experiment import Results, Run, Sizes
from mixreg.experiments.predictors import refreshed, rescaled_name
from mixreg.experiments.requirements import is_at_hand, missing_for_training
from mixreg.experiments.sizes import SizesError
from mixreg.report.curves import label_ends, mean_curve, say_better, zero_line
from mixreg.report.palette import style
from mixreg.training.config import PRESETS
from mixreg.training.held_out_fit import FITTED, PLAIN

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEASURES = {"accuracy": "accuracy", "cross_entropy": "cross-entropy", "ece": "ECE"}
_NAMES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagenet": "ImageNet", "digits-32": "digits"}
_PRESETS = {"resnet34": "cifar-resnet34", "lenet": "cifar-lenet", "resnet9": "cifar-resnet9"}
_NETWORKS = {"lenet": "LeNet", "resnet34": "ResNet-34", "resnet9": "ResNet-9"}
# The paper repeats ImageNet less often.
_MOST_ON_IMAGENET = 5
# Networks with batch normalisation, whose statistics can be refreshed.
NORMALISED = ("resnet34", "resnet9")
# Evaluations on test data along a run.
_LOOKS = 4
# α of the networks that are kept, of the first repetition; 0 is ERM.
_KEPT = (0.0, 0.25, 1.0)
_ALPHAS = [0.1, 0.25, 0.5, 1.0, 2.0]
# What plans of earlier versions do not name: all data trained alike.
EARLIER = {"longer": 1.0}
# Sizes that matter to corrupted images alone.
OF_CORRUPTED = ("corrupted", "corruptions", "images")


class Curve(NamedTuple):
    """A curve over α: of Mixup's networks or of ERM's, as which predictor, and how it is drawn."""

    name: str
    is_mixup: bool
    predictor: Callable[[float], str]
    style: dict[str, Any]

    @property
    def label(self) -> str:
        """Its name at its end, in a colour that says whose it is."""
        return self.name.rpartition(", ")[2] if self.is_mixup else self.name


def _plain(alpha: float) -> str:
    return PLAIN


def _fitted(alpha: float) -> str:
    return FITTED


def refreshed_name(alpha: float) -> str:
    """The prediction rescaled for α with refreshed statistics."""
    return refreshed(rescaled_name(alpha))


# A measure of the networks of one α (0 is ERM) by one predictor ("plain", or the α it is rescaled for); the first
# dimension are repetitions.
Values = Callable[[float, str], np.ndarray]


def sizes_at(scale: str) -> dict[str, Any]:
    """Digits as pictures where CIFAR is not at hand (and always for a smoke test)."""
    paper = {"model": "resnet34", "epochs": 200, "images": 10000, "corruptions": "generated"}
    # Of the first dataset, of the others, and on corrupted images; and how much longer the others train.
    paper |= {"repetitions": 10, "others": 10, "corrupted": 10, "longer": 1.0}
    if scale == "paper":
        at_hand = [IMAGENET] if is_at_hand(IMAGENET) else []
        return paper | {"datasets": ["cifar10", "cifar100", *at_hand], "alphas": _ALPHAS}
    small = paper | {"model": "lenet"}
    if scale == "smoke":
        return small | {"datasets": ["digits-32"], "alphas": [0.5, 2.0], "epochs": 1, "repetitions": 2, "images": 20}
    cifar = [name for name in ("cifar10", "cifar100") if is_at_hand(name)]
    small |= {"alphas": [0.25, 1.0, 4.0], "repetitions": 3, "others": 3}
    if cifar:
        return small | {"datasets": cifar, "epochs": 4, "images": 300}
    return small | {"datasets": ["digits-32"], "epochs": 20, "images": 100}


def _run(sizes: Sizes, data: str, alpha: float, seed: int) -> Run:
    """One training run; α = 0 is ERM."""
    config = {
        "data": data,
        "model": sizes["model"],
        "method": "mixup" if alpha > 0 else "erm",
        "alpha": alpha or 1.0,
        "epochs": _epochs(sizes, data),
        "augment": "none",
        "holdout": 0.1,
        "seed": seed,
    }
    settings: dict[str, Any] = {"rescale": [alpha] if alpha > 0 else list(sizes["alphas"]), "fit": True}
    settings["evaluate_every"] = max(1, config["epochs"] // _LOOKS)
    if data == IMAGENET:
        config |= PRESETS["imagenet-resnet50"] | {"augment": "standard", "epochs": config["epochs"]}
    else:
        preset = PRESETS[_PRESETS[sizes["model"]]]
        config |= {key: preset[key] for key in ("lr", "drops", "schedule", "nesterov") if key in preset}
        if seed < sizes["corrupted"]:
            own = [rescaled_name(alpha), FITTED] if alpha > 0 else []
            if own and sizes["model"] in NORMALISED:
                own.append(refreshed(rescaled_name(alpha)))
            shown = {"source": sizes["corruptions"], "images": sizes["images"], "predictors": [PLAIN, *own]}
            settings["corruptions"] = shown
        if seed == 0 and alpha in _KEPT:
            settings["keep"] = f"{data}-{sizes['model']}-{f'mixup{alpha:g}' if alpha > 0 else 'erm'}"
    return Run("training", {"config": config, **settings})


def _epochs(sizes: Sizes, data: str) -> int:
    """More classes take longer to be learnt by heart."""
    return round(sizes["epochs"] * (1 if data == sizes["datasets"][0] else sizes["longer"]))


def _repetitions(sizes: Sizes, data: str) -> int:
    """How often a dataset's runs are repeated."""
    asked: int = sizes["repetitions"] if data == sizes["datasets"][0] else sizes["others"]
    return min(asked, _MOST_ON_IMAGENET) if data == IMAGENET else asked


def runs(sizes: Sizes) -> list[Run]:
    """All of them, one repetition after another."""
    if sizes["model"] not in _PRESETS:
        raise SizesError(_unknown_model(sizes))
    return [
        _run(sizes, data, alpha, seed)
        for data in sizes["datasets"]
        for seed in range(_repetitions(sizes, data))
        for alpha in (0.0, *sizes["alphas"])
    ]


def select(results: Results, data: str, alpha: float) -> list[dict[str, Any]]:
    """The results of one α (0 is ERM), repetition by repetition."""
    if alpha == 0:
        return results.select(data=data, method="erm")
    return results.select(data=data, method="mixup", alpha=alpha)


def gain(
    values: Values,
    measure: str,
    alpha: float,
    of_erm: bool = False,
    predictor: Callable[[float], str] = rescaled_name,
) -> np.ndarray:
    """How much better the prediction rescaled for α is than the plain one, of Mixup's networks or ERM's."""
    trained = 0.0 if of_erm else alpha
    return sign(measure) * (values(trained, predictor(alpha)) - values(trained, PLAIN))


def sign(measure: str) -> int:
    """1 where more is better, −1 where less is."""
    return 1 if measure == "accuracy" else -1


def better(measure: str) -> str:
    """Whether a measure is better when it is "higher" or "lower"."""
    return "higher" if sign(measure) > 0 else "lower"


def curves(sizes: Sizes, of_rescaled_erm: bool = True) -> list[Curve]:
    """ERM and Mixup, plain and rescaled, and Mixup with refreshed statistics and fitted."""
    found = [Curve("ERM", False, _plain, style("erm"))]
    if of_rescaled_erm:
        found.append(Curve("ERM, rescaled", False, rescaled_name, style("erm", "rescaled")))
    found.append(Curve("Mixup", True, _plain, style("mixup")))
    found.append(Curve("Mixup, rescaled", True, rescaled_name, style("mixup", "rescaled")))
    if sizes["model"] in NORMALISED:
        found.append(Curve("Mixup, rescaled, refreshed", True, refreshed_name, style("mixup", "refreshed")))
    return [*found, Curve("Mixup, fitted", True, _fitted, style("mixup", "fitted"))]


def plot_over_alpha(
    axes: Axes, alphas: list[float], values: Values, title: str, shown: list[Curve], direction: str
) -> None:
    """These curves; `values` are repetitions, and better when they are "higher" or "lower"."""
    for curve in shown:
        columns = [values(alpha if curve.is_mixup else 0.0, curve.predictor(alpha)) for alpha in alphas]
        mean_curve(axes, alphas, np.stack(columns, 1), curve.label, marker=".", **curve.style)
    axes.set_title(title)
    say_better(axes, direction)
    _over_alpha(axes, alphas)


def plot_gains(axes: Axes, alphas: list[float], values: Values, measure: str, shown: list[Curve]) -> None:
    """What each rule gains against the plain prediction of the same network, repetition by repetition."""
    for curve in shown:
        if curve.predictor(alphas[0]) != PLAIN:
            trained = [alpha if curve.is_mixup else 0.0 for alpha in alphas]
            pairs = zip(trained, alphas, strict=True)
            columns = [sign(measure) * (values(t, curve.predictor(a)) - values(t, PLAIN)) for t, a in pairs]
            mean_curve(axes, alphas, np.stack(columns, 1), curve.label, marker=".", **curve.style)
    zero_line(axes, "plain")
    axes.set_title(f"gain in {MEASURES[measure]} over plain, paired")
    say_better(axes, "higher")
    _over_alpha(axes, alphas)


def _over_alpha(axes: Axes, alphas: list[float]) -> None:
    """Names of curves, and of all α."""
    label_ends(axes)
    axes.set(xscale="log", xlabel="α")
    axes.set_xticks(alphas, [f"{alpha:g}" for alpha in alphas])
    axes.minorticks_off()


def shown_name(data: str) -> str:
    return _NAMES.get(data, data)


def shown_network(model: str) -> str:
    return _NETWORKS.get(model, model)


def missing(sizes: Sizes) -> list[str]:
    """What is not at hand or does not fit together."""
    found = missing_for_training(sizes["datasets"])
    if sizes["model"] not in _PRESETS:
        found.append(_unknown_model(sizes))
    if sizes["corruptions"] != "generated":
        if len(sizes["datasets"]) > 1:
            found.append("a folder of corruptions belongs to one dataset: choose it with --set datasets=NAME")
        if not Path(sizes["corruptions"]).is_dir():
            found.append(f"{sizes['corruptions']} is not a folder of corrupted images")
    return found


def _unknown_model(sizes: Sizes) -> str:
    return f"model must be one of {', '.join(_PRESETS)}, got {sizes['model']}"


def caption(sizes: Sizes) -> str:
    """What the figures say of their runs."""
    small = [data for data in sizes["datasets"] if data != IMAGENET]
    parts = []
    if small:
        schedule = _schedule(_PRESETS[sizes["model"]], _each(sizes, small, _epochs))
        parts.append(f"{_NETWORKS[sizes['model']]}, {schedule}, no augmentation")
    if IMAGENET in sizes["datasets"]:
        schedule = _schedule("imagenet-resnet50", str(_epochs(sizes, IMAGENET)))
        parts.append(f"ImageNet: ResNet-50, {schedule}, crops and flips")
    repetitions = _each(sizes, sizes["datasets"], _repetitions)
    return f"{'; '.join(parts)}; mean and 95 % interval of {repetitions} repetitions"


def _each(sizes: Sizes, datasets: list[str], count: Callable[[Sizes, str], int]) -> str:
    """A count of the first dataset, and of those where it is another."""
    first = count(sizes, datasets[0])
    others = [f"{shown_name(data)}: {count(sizes, data)}" for data in datasets if count(sizes, data) != first]
    return f"{first} ({', '.join(others)})" if others else str(first)


def _schedule(preset: str, epochs: str) -> str:
    settings = PRESETS[preset]
    if settings.get("schedule") == "one-cycle":
        return f"SGD with one cycle of learning rates up to {settings['lr']:g} in {epochs} epochs"
    drops = ", ".join(f"{drop:.0%}" for drop in settings["drops"])
    return f"SGD with learning rate {settings['lr']:g}, divided by 10 after {drops} of {epochs} epochs"
