"""Which data the terms of Theorem 3 take for the training set: all of it, or the samples they are measured on.

R1 and R3 hold a network against J⁽ⁱ⁾, a regression of targets on inputs over the training set. On a part of it, taken
as a training set of its own, that is another regression; with fewer samples than coordinates it even passes through
every one of them, and R1 is several times as large. So means and covariances are those of the whole training set, as
the network sees it without augmentation. Results of earlier versions took the samples themselves: a size says which.
"""

from __future__ import annotations

from typing import Any

from mixreg.experiments.experiment import Sizes
from mixreg.experiments.sizes import SizesError
from mixreg.theory.moments import DataMoments
from mixreg.training.array_batches import ArrayBatches

TRAINING_SET, SAMPLES = "training set", "samples"
# What plans of earlier versions do not name.
EARLIER = {"moments": SAMPLES}
# Why a table holds what it holds of R1 and R3.
NOTE = (
    "R1 and R3 alone grow like 1/p, without bound, where a network is confident (p is the smallest probability that it "
    "gives a class), and cancel: however large they are, they say nothing about its regularisation. R1 + R3, which is "
    "computed without them, does (docs/errata.md)."
)
# Samples at once: a covariance of 50,000 images needs no copy of all of them.
_AT_ONCE = 2048


def moments_setting(sizes: Sizes) -> dict[str, Any]:
    """What a run's settings say of it; nothing where the samples are taken, as in results of earlier versions."""
    if sizes["moments"] not in (TRAINING_SET, SAMPLES):
        raise SizesError(f"moments must be {TRAINING_SET!r} or {SAMPLES!r}, got {sizes['moments']!r}")
    return {} if sizes["moments"] == SAMPLES else {"moments": sizes["moments"]}


def described(sizes: Sizes) -> str:
    """What a caption says of it."""
    if sizes["moments"] == SAMPLES:
        return "taken as a training set of their own"
    return "with the means and covariances of the whole training set"


def moments_of(settings: dict[str, Any], batches: ArrayBatches, samples: int) -> DataMoments:
    """What the terms on the first samples take for the training set, under settings that may hold `moments`."""
    own = settings.get("moments", SAMPLES) == SAMPLES
    x, y = (batches.x[:samples], batches.y[:samples]) if own else (batches.x, batches.y)
    found = DataMoments(batches.num_classes, covariance=True)
    for images, labels in zip(x.split(_AT_ONCE), y.split(_AT_ONCE), strict=True):
        found.update(batches.scaled(images), labels)
    return found
