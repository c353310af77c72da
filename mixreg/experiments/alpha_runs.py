"""The runs that Figures 4, 5 and 6 share: ERM, and Mixup for several α, each measured plain and rescaled.

ERM is measured rescaled for every α too. The paper's networks are ResNet-34 (CIFAR) and ResNet-50 (ImageNet) with the
schedules of `mixreg.training.config.PRESETS`. The paper names no augmentation for CIFAR; none is used here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mixreg.data.registry import IMAGENET
from mixreg.experiments.experiment import Results, Sizes, is_at_hand, missing_for_training
from mixreg.experiments.store import Run
from mixreg.training.config import PRESETS

MEASURES = {"accuracy": "accuracy", "cross_entropy": "cross-entropy", "ece": "ECE"}
NAMES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagenet": "ImageNet", "digits-32": "digits"}
_PRESETS = {"resnet34": "cifar-resnet34", "lenet": "cifar-lenet"}
# The paper repeats ImageNet less often.
_MOST_ON_IMAGENET = 5
_ALPHAS = [0.1, 0.25, 0.5, 1.0, 2.0]


def sizes(scale: str) -> dict[str, Any]:
    """Digits as pictures where CIFAR is not at hand (and always for a smoke test)."""
    paper = {"model": "resnet34", "epochs": 200, "repetitions": 10, "images": 10000, "corruptions": "generated"}
    if scale == "paper":
        at_hand = [IMAGENET] if is_at_hand(IMAGENET) else []
        return paper | {"datasets": ["cifar10", "cifar100", *at_hand], "alphas": _ALPHAS}
    small = paper | {"model": "lenet"}
    if scale == "smoke":
        return small | {"datasets": ["digits-32"], "alphas": [0.5, 2.0], "epochs": 1, "repetitions": 2, "images": 20}
    cifar = [name for name in ("cifar10", "cifar100") if is_at_hand(name)]
    small |= {"alphas": [0.25, 1.0, 4.0], "repetitions": 3}
    if cifar:
        return small | {"datasets": cifar, "epochs": 4, "images": 300}
    return small | {"datasets": ["digits-32"], "epochs": 20, "images": 100}


def run(chosen: Sizes, data: str, alpha: float, seed: int) -> Run:
    """One training run; α = 0 is ERM."""
    config = {
        "data": data,
        "model": chosen["model"],
        "method": "mixup" if alpha > 0 else "erm",
        "alpha": alpha or 1.0,
        "epochs": chosen["epochs"],
        "augment": "none",
        "holdout": 0.0,
        "seed": seed,
    }
    settings: dict[str, Any] = {"rescale": [alpha] if alpha > 0 else list(chosen["alphas"])}
    if data == IMAGENET:
        config |= PRESETS["imagenet-resnet50"] | {"augment": "standard", "epochs": chosen["epochs"]}
    else:
        config |= {key: PRESETS[_PRESETS[chosen["model"]]][key] for key in ("lr", "drops")}
        settings["corruptions"] = {"source": chosen["corruptions"], "images": chosen["images"]}
    return Run("training", {"config": config, **settings})


def repetitions(chosen: Sizes, data: str) -> int:
    """How often a dataset's runs are repeated."""
    asked: int = chosen["repetitions"]
    return min(asked, _MOST_ON_IMAGENET) if data == IMAGENET else asked


def runs(chosen: Sizes) -> list[Run]:
    """All of them, one repetition after another."""
    return [
        run(chosen, data, alpha, seed)
        for seed in range(chosen["repetitions"])
        for data in chosen["datasets"]
        if seed < repetitions(chosen, data)
        for alpha in (0.0, *chosen["alphas"])
    ]


def results_of(results: Results, chosen: Sizes, data: str, alpha: float) -> list[dict[str, Any]]:
    """The results of one α (0 is ERM), repetition by repetition."""
    return [results[run(chosen, data, alpha, seed).key] for seed in range(repetitions(chosen, data))]


def missing(chosen: Sizes) -> list[str]:
    """What is not at hand or does not fit together."""
    found = missing_for_training(chosen["datasets"])
    if chosen["model"] not in _PRESETS:
        found.append(f"model must be one of {', '.join(_PRESETS)}, got {chosen['model']}")
    if chosen["corruptions"] != "generated":
        if len(chosen["datasets"]) > 1:
            found.append("a folder of corruptions belongs to one dataset: choose it with --set datasets=NAME")
        if not Path(chosen["corruptions"]).is_dir():
            found.append(f"{chosen['corruptions']} is not a folder of corrupted images")
    return found


def made_with(chosen: Sizes) -> str:
    """What the figures say of their runs."""
    networks = {"lenet": "LeNet", "resnet34": "ResNet-34"}
    parts = [f"{networks[chosen['model']]}, {_schedule(_PRESETS[chosen['model']], chosen)}, no augmentation"]
    if IMAGENET in chosen["datasets"]:
        most = repetitions(chosen, IMAGENET)
        schedule = _schedule("imagenet-resnet50", chosen)
        parts.append(f"ImageNet: ResNet-50, {schedule}, crops and flips, {most} repetitions")
    return f"{'; '.join(parts)}; mean and 95 % interval of {chosen['repetitions']} repetitions"


def _schedule(preset: str, chosen: Sizes) -> str:
    drops = ", ".join(f"{drop:.0%}" for drop in PRESETS[preset]["drops"])
    return f"SGD with step {PRESETS[preset]['lr']:g} (÷ 10 after {drops} of {chosen['epochs']} epochs)"
