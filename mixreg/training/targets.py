"""Targets of a run as its network learns them: what they are, the loss that belongs to them, and their scale.

Numbers to regress on are standardised, y ↦ (y − m) / s with the training part's mean and standard deviation, so that
one learning rate serves all of them; what the network then predicts is put back, u ↦ m + s u.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mixreg._support.tasks import CLASSES, LOSS_OF


class Scaling(NamedTuple):
    """v ↦ (v − mean) / std; both of one sample's shape."""

    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, values: Tensor) -> Scaling:
        """From training values, n × d; what is constant is only centred."""
        std, mean = torch.std_mean(values.double(), 0, correction=0)
        std = torch.where(std > 1e-6 * mean.abs() + 1e-30, std, torch.ones_like(std))
        return cls(mean.float(), std.float())

    def scaled(self, values: Tensor) -> Tensor:
        """Standardised, n × d."""
        return (values - self.mean.to(values.device)) / self.std.to(values.device)

    def restored(self, values: Tensor) -> Tensor:
        """The inverse."""
        return self.mean.to(values) + self.std.to(values) * values


@dataclass(frozen=True)
class Targets:
    """What a run predicts.

    Attributes:
        task: see `mixreg._support.tasks`.
        width: how many numbers the network gives for one sample.
        scaling: of numbers.
    """

    task: str = CLASSES
    width: int = 0
    scaling: Scaling | None = None

    @property
    def loss(self) -> str:
        """The name of the loss that belongs to the task."""
        return LOSS_OF[self.task]

    def restored(self, outputs: Tensor) -> Tensor:
        """Outputs in the units of the targets."""
        return outputs if self.scaling is None else self.scaling.restored(outputs)
