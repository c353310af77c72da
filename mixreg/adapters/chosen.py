"""The method of an adapter: Mixup with the settings given, or another augmentation that brings its own."""

from __future__ import annotations

from mixreg._support.random import seeded
from mixreg.methods.method import Augmentation
from mixreg.methods.mixup import Mixup


def chosen_method(
    method: Augmentation | None, alpha: float | None, num_classes: int | None, per_sample: bool, seed: int | None
) -> Augmentation:
    """The method to train with; settings beside a method of one's own are refused, as nobody would use them."""
    if method is None:
        return Mixup(1.0 if alpha is None else alpha, num_classes, per_sample, seeded(seed))
    if not isinstance(method, Augmentation):
        raise TypeError(
            f"method must be an augmentation, which changes a batch (Mixup, CutMix, …), got {type(method).__name__}; a "
            "loss of the network, or what mixes inside of it, needs a training step of your own"
        )
    beside = {"alpha": alpha, "num_classes": num_classes, "seed": seed}
    given = [name for name, value in beside.items() if value is not None] + ([] if per_sample else ["per_sample"])
    if given:
        raise TypeError(f"{', '.join(given)} beside a method would not be used: give them to {type(method).__name__}")
    return method
