"""Empirical risk minimisation: the data as it is (eq. erm)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mixreg.losses.target_trees import part_tree
from mixreg.losses.targets import checked_values, validate_num_classes
from mixreg.methods.method import Augmentation, Rows, WithMixupControl
from mixreg.methods.pairing import unmixed_parts
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

    def draw_parts(self, x: Any, y: Any, generator: torch.Generator | None = None) -> tuple[Any, Any]:
        return unmixed_parts(x, part_tree(x, y))

    def draw_labelled(self, x: Any, y: Any, generator: torch.Generator | None = None) -> Rows:
        kind = type(self)
        if kind.draw is EmpiricalRisk.draw and kind.draw_parts is EmpiricalRisk.draw_parts:
            return x, y
        # A class of somebody's own that changes something after all.
        return super().draw_labelled(x, y, generator)

    def rule(self, moments: DataMoments) -> Rule:
        """The identity."""
        return Rule(1.0, 1.0, moments.x_mean, moments.y_mean)
