"""Mixup of inputs and of labels, independently; see `mixreg.methods.partial`."""

from __future__ import annotations

import torch

from mixreg.methods.partial import PartialMixup


class IndependentMixup(PartialMixup):
    """`PartialMixup("independent", …)`.

    Args:
        alpha, num_classes, generator: as there.
        probability: that a sample is mixed, in [0, 1].
    """

    name = "independent"
    about = "Mixup of inputs and of labels, independently"
    options = ("probability",)

    def __init__(
        self,
        alpha: float = 1.0,
        num_classes: int | None = None,
        generator: torch.Generator | None = None,
        probability: float = 1.0,
    ) -> None:
        super().__init__("independent", alpha, num_classes, generator, probability)
