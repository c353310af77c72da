"""RegMixup (Pinto et al., 2022): Mixup beside the plain loss instead of in its place.

    ℓ(y_i, f(x_i)) + η ℓ(θ y_i + (1 − θ) y_j, f(θ x_i + (1 − θ) x_j))

with α of 10 to 20, so that mixed samples lie far from the data. Both parts go through the network as one batch. Up to a
factor the loss is that of Mixup applied with probability η / (1 + η), and so is its rule.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mixreg._autodiff.network import Network, outputs_of
from mixreg._support.numbers import require_weight
from mixreg.losses import SampleLoss
from mixreg.losses.dense import dense_losses
from mixreg.losses.targets import validate_num_classes
from mixreg.methods.method import Criterion, Rows, WithMixupRule
from mixreg.methods.pairing import Mixed, mixed_copy
from mixreg.methods.partners import Partners
from mixreg.methods.recipe import Recipe
from mixreg.prediction.rule import Rule
from mixreg.theory.moments import DataMoments


class RegMixup(Recipe, WithMixupRule, Criterion):
    """The loss of a batch: `RegMixup(alpha=10.0, num_classes=10)(net, x, y).backward()`.

    Args:
        alpha: in [0, ∞].
        weight: of the mixed part, at least 0.
        num_classes: needed when targets are integer labels.
        loss: a name or a callable on one sample.
        generator: random number generator; by default PyTorch's global one.
        probability: that a sample of the mixed part is mixed, in [0, 1].
        partners: "uniform" or "balanced" over classes.
            In Python also a callable (y, generator) that gives the partner of each.
    """

    name = "regmixup"
    about = "Mixup beside the plain loss, usually α = 10 (Pinto et al., 2022)"
    options = ("weight", "probability", "partners")
    row_count = len(Mixed._fields)

    def __init__(
        self,
        alpha: float = 10.0,
        weight: float = 1.0,
        num_classes: int | None = None,
        loss: str | SampleLoss = "cross_entropy",
        generator: torch.Generator | None = None,
        probability: float = 1.0,
        partners: Partners = "uniform",
    ) -> None:
        self.partners = partners
        self.alpha, self.weight, self.probability = alpha, require_weight(weight), probability
        self.num_classes, self.loss, self.generator = validate_num_classes(num_classes), loss, generator

    def draw(self, x: Tensor, y: Tensor, generator: torch.Generator | None = None) -> Rows:
        """The data as values and what Mixup makes of it: `Mixed`."""
        values, partner = self._targets(x, y), self._drawn_partners(y, generator)
        return mixed_copy(x, values, self.alpha, generator, self.probability, partner)

    def shown(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """The mean of what both parts show, as the loss weighs them."""
        x, y, mixed_x, mixed_y = rows
        share = self.weight / (1 + self.weight)
        return torch.lerp(x, mixed_x, share), torch.lerp(y, mixed_y, share)

    def full_rule(self, moments: DataMoments) -> Rule:
        return Rule.of_mixup(self.alpha, moments.x_mean, moments.y_mean).applied(self.weight / (1 + self.weight))

    def losses(self, net: Network, rows: Rows) -> Tensor:
        x, y, mixed_x, mixed_y = rows
        u = outputs_of(net, torch.cat([x, mixed_x]))
        plain, mixed = dense_losses(self.loss, torch.cat([y, mixed_y]), u).split(len(x))
        return plain + self.weight * mixed
