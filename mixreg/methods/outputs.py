"""Mixup of labels only; see `mixreg.methods.partial`."""

from __future__ import annotations

import torch

from mixreg.methods.partial import PartialMixup


class OutputMixup(PartialMixup):
    """`PartialMixup("outputs", …)`."""

    name = "outputs"
    about = "Mixup of labels only"

    def __init__(
        self, alpha: float = 1.0, num_classes: int | None = None, generator: torch.Generator | None = None
    ) -> None:
        super().__init__("outputs", alpha, num_classes, generator)
