"""What was run, told by its differences from the paper: "LeNet instead of ResNet-34, 15 of 200 epochs".

"Paper scale" is what has the paper's network, data, epochs and repetitions, and all other sizes of the paper besides.
What the paper does not measure has no such scale: it is told by its differences from its own full size.
"""

from __future__ import annotations

from typing import Any

from mixreg.experiments.experiment import Experiment
from mixreg.experiments.sizes import Sizes

PAPER_SCALE, FULL_SIZE = "paper scale", "full size"
_SCALE = "paper"

_NAMES = {
    "lenet": "LeNet",
    "mlp": "a network with two hidden layers",
    "resnet9": "ResNet-9",
    "resnet34": "ResNet-34",
    "resnet50": "ResNet-50",
    "small-resnet": "ResNet-8",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "digits-32": "digits as pictures",
    "imagenet": "ImageNet",
    "training set": "the training set",
    "samples": "the samples",
}
# What sizes count or are; those that are not here are called by their own names.
_NOUNS = {
    "alpha": "α",
    "alphas": "α",
    "approximate": "repetitions of approximate Mixup",
    "batch_size": "samples per batch",
    "controls": "repetitions of label smoothing and modified data",
    "corrupted": "repetitions on corrupted images",
    "features": "random features",
    "human": "human labels",
    "image_size": "pixels a side",
    "images": "test images",
    "longer": "length of training on further data",
    "looks": "measurements on the way",
    "lr": "learning rate",
    "moments": "moments of",
    "moons": "repetitions on two moons",
    "noise": "label noise",
    "noises": "label noise",
    "others": "repetitions on further data",
    "rounds": "rounds of timing",
    "side": "grid points a side",
    "switch": "switched off after",
}
# What names itself.
_BARE = ("model", "data", "datasets")
_FIRST = (*_BARE, "samples", "epochs", "steps", "repetitions")


def against_paper(experiment: Experiment, sizes: Sizes, is_papers: bool = True) -> str:
    """What sizes of an experiment are, beside the paper's.

    Args:
        experiment: which one.
        sizes: all of its sizes.
        is_papers: whether it is one of the paper's at all, and not a user's own.
    """
    papers = {**experiment.sizes_at(_SCALE), **experiment.paper_sizes}
    found = differences(sizes, {name: size for name, size in papers.items() if name not in experiment.aside})
    if is_papers and not experiment.unlike:
        return ", ".join(found) or PAPER_SCALE
    told = ", ".join(found) or FULL_SIZE
    return f"{experiment.unlike}; {told}" if experiment.unlike else told


def differences(sizes: Sizes, paper: Sizes) -> list[str]:
    """Every size that differs, in words: network and data first, then what was done how often.

    >>> differences({"epochs": 15, "model": "lenet"}, {"epochs": 200, "model": "resnet34"})
    ['LeNet instead of ResNet-34', '15 of 200 epochs']
    """
    names = [*(name for name in _FIRST if name in paper), *(name for name in paper if name not in _FIRST)]
    differing = [name for name in names if name in sizes and sizes[name] != paper[name]]
    return [_difference(name, sizes[name], paper[name]) for name in differing]


def _difference(name: str, given: Any, paper: Any) -> str:
    noun = _NOUNS.get(name, name)
    if type(given) is int and type(paper) is int:
        between = "of" if given < paper else "instead of"
        return f"{given:,} {between} {paper:,} {noun}"
    before = "" if name in _BARE else f"{noun} "
    if isinstance(given, list) and isinstance(paper, list):
        missing, further = ([part for part in a if part not in b] for a, b in ((paper, given), (given, paper)))
        if not (missing and further):
            return f"{'without' if missing else 'also'} {before}{_shown(missing or further)}"
    return f"{before}{_shown(given)} instead of {_shown(paper)}"


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_shown(part) for part in value) or "none"
    if isinstance(value, (int, float)):
        return f"{value:,g}"
    return _NAMES.get(value, value) if isinstance(value, str) else str(value)
