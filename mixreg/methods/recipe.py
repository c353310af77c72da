"""Recipes: a pairing method applied with a probability, to labels that were smoothed first.

As timm and torchvision apply them: each sample is mixed with probability p, or the whole batch is; labels may be
smoothed towards the uniform one before they are mixed. What is shown of a sample is then, on average, what the rule
with shares 1 − p (1 − S̄) and 1 − p (1 − t̄) says, with the mean of smoothed labels (`mixreg.prediction.rule`).
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Generator, Tensor

from mixreg._support.numbers import require_probability
from mixreg._support.structure import leaves, rebuild
from mixreg.losses.target_trees import part_tree, value_tree
from mixreg.losses.targets import is_class_index, is_label, require_probabilities
from mixreg.methods.method import Method
from mixreg.methods.partners import BalancedPartners, UniformPartners, draw_partners, partner_means, resolve_partners
from mixreg.prediction.rule import Rule
from mixreg.regularisers.label_smoothing import smooth_uniformly
from mixreg.theory.moments import DataMoments


class Recipe(Method):
    """A method that is applied with a probability, which stands before it among a class's bases.

    Attributes:
        probability: that a sample (or a batch) is mixed, in [0, 1].
        label_smoothing: ε in [0, 1) of the smoothing before.
        partners: who is mixed with whom; see `mixreg.methods.partners`.
        ignore_index: the class index that has no part in the loss, if there is one.
    """

    # Whether inputs may be tuples, lists and dicts of tensors.
    takes_trees: ClassVar[bool] = False

    num_classes: Any  # of one target an integer or None, see `mixreg.losses.target_trees`
    ignore_index: int | None = None
    _partners: Any = UniformPartners()
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

    @property
    def partners(self) -> Any:
        """What draws partners."""
        return self._partners

    @partners.setter
    def partners(self, partners: Any) -> None:
        self._partners = resolve_partners(partners)

    @property
    def needs_class_means(self) -> bool:
        """Whether partners are drawn balanced over classes."""
        return isinstance(self._partners, BalancedPartners)

    def _drawn_partners(self, y: Any, generator: Generator | None) -> Tensor | None:
        """n partners; None for a random permutation. y: as it was given."""
        if isinstance(self._partners, UniformPartners):
            return None
        if self.ignore_index is not None and isinstance(self._partners, BalancedPartners):
            y = rebuild(y, self._without_ignored)
        return draw_partners(self._partners, y, generator)

    def _without_ignored(self, target: Tensor) -> Tensor:
        """Labels that are ignored as no class at all."""
        assert self.ignore_index is not None
        if not is_class_index(target):
            return target
        return target.long().masked_fill(is_label(target, self.ignore_index), -1)

    def _require_takeable(self, x: Any) -> None:
        if not self.takes_trees and not isinstance(x, Tensor):
            raise TypeError(f"{type(self).__name__} takes inputs of one tensor, got {type(x).__name__}")

    def _targets(self, x: Any, y: Any) -> Any:
        """Checked targets as values, smoothed if asked: n × …, or a tree of such."""
        self._require_takeable(x)
        values = value_tree(x, y, self.num_classes, self.ignore_index)
        if not self.label_smoothing:
            return values
        if isinstance(values, Tensor):
            _require_classes(y)
            return self._smoothed(values)
        # Of several targets the labels are smoothed, numbers to regress on are not.
        given = iter([target for _, target in leaves(y, "y")])
        return rebuild(values, lambda part: self._smoothed(part) if is_class_index(next(given)) else part)

    def _parts(self, x: Any, y: Any) -> Any:
        """Checked targets as they are."""
        self._require_takeable(x)
        return part_tree(x, y, self.label_smoothing)

    def _smoothed(self, values: Tensor) -> Tensor:
        if not self.label_smoothing:
            return values
        if self.ignore_index is not None:
            raise ValueError("labels that are ignored are not smoothed before mixing: give label_smoothing to the loss")
        return smooth_uniformly(values, values.shape[1], self.label_smoothing)

    def _shown_recipe(self) -> list[str]:
        """What differs from always and unsmoothed, for a representation."""
        given = {"probability": (self.probability, 1), "label_smoothing": (self.label_smoothing, 0)}
        shown = [f"{name}={value}" for name, (value, usual) in given.items() if value != usual]
        is_usual = isinstance(self._partners, UniformPartners)
        return shown if is_usual else [*shown, f"partners={self._partners!r}"]

    def full_rule(self, moments: DataMoments) -> Rule | None:
        """The rule of the method where it is always applied; by default that of the bases after this one."""
        return super().rule(moments)

    def rule(self, moments: DataMoments) -> Rule | None:
        """That of the method with the means of its partners, applied with the probability, with smoothed labels.

        None where partners depend on whose they are.
        """
        means = partner_means(self._partners, moments)
        rule = None if means is None else self.full_rule(moments)
        if rule is None or means is None:
            return None
        if not isinstance(self._partners, UniformPartners):
            rule = Rule(rule.x_share, rule.y_share, *means)
        return rule.applied(self.probability).smoothed(self.label_smoothing)


def _require_classes(y: Tensor) -> None:
    """Class indices or soft labels, which can be smoothed, and not numbers or several labels at once."""
    message = (
        "label_smoothing is for classes, as indices or as rows that sum to 1, got targets of "
        f"{y.dtype} and shape {tuple(y.shape)}"
    )
    if y.is_floating_point() and y.ndim > 1 and y.shape[1] > 1:
        require_probabilities(y, message)
    elif not is_class_index(y):
        raise ValueError(message)
