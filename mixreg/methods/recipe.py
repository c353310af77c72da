"""Recipes: a pairing method applied with a probability, to labels that were smoothed first.

As timm and torchvision apply them: each sample is mixed with probability p, or the whole batch is; labels may be
smoothed towards the uniform one before they are mixed. What is shown of a sample is then, on average, what the rule
with shares 1 − p (1 − S̄) and 1 − p (1 − t̄) says, with the mean of smoothed labels (`mixreg.prediction.rule`).
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from mixreg._support.numbers import require_probability
from mixreg.losses.targets import checked_values
from mixreg.methods.method import Method
from mixreg.prediction.rule import Rule
from mixreg.regularisers.label_smoothing import smooth_uniformly
from mixreg.theory.moments import DataMoments


class Recipe(Method):
    """A method that is applied with a probability, which stands before it among a class's bases.

    Attributes:
        probability: that a sample (or a batch) is mixed, in [0, 1].
        label_smoothing: ε in [0, 1) of the smoothing before.
    """

    # Whether inputs may be tuples, lists and dicts of tensors.
    takes_trees: ClassVar[bool] = False

    num_classes: int | None
    _probability: float = 1.0
    _label_smoothing: float = 0.0

    @property
    def probability(self) -> float:
        """That a sample (or a batch) is mixed."""
        return self._probability

    @probability.setter
    def probability(self, probability: float) -> None:
        if isinstance(probability, (bool, str)) or not 0 <= probability <= 1:
            raise ValueError(f"probability must lie in [0, 1], got {probability!r}")
        self._probability = float(probability)

    @property
    def label_smoothing(self) -> float:
        """ε of the smoothing before mixing."""
        return self._label_smoothing

    @label_smoothing.setter
    def label_smoothing(self, label_smoothing: float) -> None:
        self._label_smoothing = require_probability(label_smoothing, "label_smoothing")

    def _targets(self, x: Any, y: Tensor) -> Tensor:
        """Checked targets as values, smoothed if asked: n × …."""
        if not self.takes_trees and not isinstance(x, Tensor):
            raise TypeError(f"{type(self).__name__} takes inputs of one tensor, got {type(x).__name__}")
        return self._smoothed(checked_values(x, y, self.num_classes))

    def _smoothed(self, values: Tensor) -> Tensor:
        if not self.label_smoothing:
            return values
        if values.ndim < 2:
            raise ValueError(f"label_smoothing is for classes, got targets of shape {tuple(values.shape)}")
        return smooth_uniformly(values, values.shape[1], self.label_smoothing)

    def _shown_recipe(self) -> list[str]:
        """What differs from always and unsmoothed, for a representation."""
        given = {"probability": (self.probability, 1), "label_smoothing": (self.label_smoothing, 0)}
        return [f"{name}={value}" for name, (value, usual) in given.items() if value != usual]

    def full_rule(self, moments: DataMoments) -> Rule | None:
        """The rule of the method where it is always applied; by default that of the bases after this one."""
        return super().rule(moments)

    def rule(self, moments: DataMoments) -> Rule | None:
        """That of the method, applied with the probability, with the mean of smoothed labels."""
        rule = self.full_rule(moments)
        return None if rule is None else rule.applied(self.probability).smoothed(self.label_smoothing)
