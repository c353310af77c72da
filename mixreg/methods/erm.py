"""Empirical risk minimisation: the data as it is (eq. erm)."""

from __future__ import annotations

import torch
from torch import Tensor

from mixreg.losses.targets import checked_values, validate_num_classes
from mixreg.methods.method import Augmentation, Rows, WithMixupControl
from mixreg.prediction.rule import Rule
from mixreg.theory.moments import DataMoments


class EmpiricalRisk(WithMixupControl, Augmentation):
    """Changes nothing.

    Args:
        alpha: of the rule that tables apply all the same: Mixup's, which hurts here and is the paper's control.
        num_classes: needed when targets are integer labels, which become one-hot.
    """

    name = "erm"
    about = "empirical risk minimisation"

    def __init__(self, alpha: float = 1.0, num_classes: int | None = None) -> None:
        self.alpha, self.num_classes = alpha, validate_num_classes(num_classes)

    def draw(self, x: Tensor, y: Tensor, generator: torch.Generator | None = None) -> Rows:
        return x, checked_values(x, y, self.num_classes)

    def rule(self, moments: DataMoments) -> Rule:
        """The identity."""
        return Rule(1.0, 1.0, moments.x_mean, moments.y_mean)
