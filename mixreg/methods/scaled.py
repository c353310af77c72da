"""The variant of Mixup that does not shrink (Zhang et al., 2021, with their centred data written out).

    x_i + (1/λ − 1)(x_j − x̄),        λ ~ Beta(α + 1, α),        y_i

Inputs are not shrunk, E[x̂ | i] = x_i, so that no rescaling is needed. The noise has a second moment for α > 1 only,
E(1/λ − 1)² = (α + 1) / (α − 1), and the covariance (1/λ − 1)² Σxx.

Beta(α + 1, α) is Beta(α, α) seen by size: of λ and 1 − λ take the first with probability λ.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mixreg._support.random import permutation, uniform
from mixreg.losses.targets import validate_num_classes
from mixreg.methods.method import Augmentation, Method, Rows, Setting
from mixreg.methods.pairing import is_chosen, unmixed_parts
from mixreg.methods.recipe import Recipe
from mixreg.prediction.rule import Rule
from mixreg.theory.modified import fitted_mean, require_mean
from mixreg.theory.moments import DataMoments
from mixreg.theory.numerics import draw_beta
from mixreg.theory.theta import ScalarForms


class ScaledMixup(Recipe, Augmentation):
    """x_i + (1/λ − 1)(x_j − x̄) with λ ~ Beta(α + 1, α); labels stay: `x, y = ScaledMixup(2.0, x_mean, 10)(x, y)`.

    Args:
        alpha: above 1, below which the noise has no variance; 0 changes nothing.
        x_mean: x̄, of one sample's shape.
        num_classes: needed when targets are integer labels, which become one-hot.
        generator: random number generator; by default PyTorch's global one.
        probability: that a sample is changed, in [0, 1].
    """

    name = "scaled"
    about = "x_i + (1/λ − 1)(x_j − x̄) with its own label, for α above 1 (Zhang et al., 2021)"
    options = ("probability",)

    def __init__(
        self,
        alpha: float,
        x_mean: Tensor,
        num_classes: int | None = None,
        generator: torch.Generator | None = None,
        probability: float = 1.0,
    ) -> None:
        self.alpha, self.probability = alpha, probability
        self.x_mean, self.num_classes, self.generator = (
            require_mean(x_mean),
            validate_num_classes(num_classes),
            generator,
        )

    @classmethod
    def build(cls, setting: Setting) -> Method:
        return cls(setting.alpha, setting.moments().x_mean, setting.num_classes, **setting.options)

    def _checked_forms(self, alpha: float) -> ScalarForms:
        forms = super()._checked_forms(alpha)
        if 0 < forms.alpha <= 1:
            raise ValueError(f"ScaledMixup needs alpha above 1, where its noise has a variance, got {alpha!r}")
        return forms

    def draw(self, x: Tensor, y: Tensor, generator: torch.Generator | None = None) -> Rows:
        values = self._targets(x, y)
        return self._spread(x, generator), values.clone()

    def draw_parts(self, x: Tensor, y: Any, generator: torch.Generator | None = None) -> tuple[Any, Any]:
        values = self._parts(x, y)
        return unmixed_parts(self._spread(x, generator), values)

    def _spread(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        if self.alpha == 0:
            return x.clone()
        n = len(x)
        partner = permutation(n, generator, x.device)
        lam = draw_beta(self.alpha, (n,), generator, torch.float64)
        lam = torch.where(uniform((n,), generator, torch.float64) < lam, lam, 1 - lam)
        weight = 1 / lam - 1
        if self.probability < 1:
            weight = weight * is_chosen(n, self.probability, generator)
        weight = weight.to(x.dtype).to(x.device).reshape(-1, *[1] * (x.ndim - 1))
        mean = fitted_mean(self.x_mean.to(x.device), x, "x_mean")
        return x + weight * (x.index_select(0, partner) - mean)

    def full_rule(self, moments: DataMoments) -> Rule:
        """The identity: nothing is shrunk."""
        return Rule(1.0, 1.0, moments.x_mean, moments.y_mean)
