"""Mixup of labels only; see `mixreg.methods.partial`."""

from __future__ import annotations

import torch

from mixreg.methods.partial import PartialMixup


class OutputMixup(PartialMixup):
    """`PartialMixup("outputs", …)`.

    Args:
        alpha, num_classes, generator: as there.
        probability: that a sample is mixed, in [0, 1].
    """

    name = "outputs"
    about = "Mixup of labels only"
    options = ("probability",)

    def __init__(
        self,
        alpha: float = 1.0,
        num_classes: int | None = None,
        generator: torch.Generator | None = None,
        probability: float = 1.0,
    ) -> None:
        super().__init__("outputs", alpha, num_classes, generator, probability)
