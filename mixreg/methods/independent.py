"""Mixup of inputs and of labels, independently; see `mixreg.methods.partial`."""

from __future__ import annotations

import torch

from mixreg.methods.partial import PartialMixup


class IndependentMixup(PartialMixup):
    """`PartialMixup("independent", …)`."""

    name = "independent"
    about = "Mixup of inputs and of labels, independently"

    def __init__(
        self, alpha: float = 1.0, num_classes: int | None = None, generator: torch.Generator | None = None
    ) -> None:
        super().__init__("independent", alpha, num_classes, generator)
