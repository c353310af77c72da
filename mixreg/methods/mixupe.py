"""MixupE (Zou et al., 2023): Mixup with its first directional derivative held near 0.

For losses of the form ℓ(y, u) = h(u) − yᵀu, Mixup mixes inputs only (Zhang et al., 2021): with λ ~ Beta(α + 1, α) its
risk is the mean over i and j of E ℓ(y_i, f(x_i + (1 − λ)(x_j − x_i))). Around the data, λ = 1, the first-order term is

    E(1 − λ) · mean_i q_i,        q_i = ℓuᵀ J(x_i) (x̄ − x_i),        E(1 − λ) = α / (2α + 1),

the derivative of a sample's loss on the way to the mean. Mixup may make it as negative as it likes; MixupE adds

    η E(1 − λ) · mean_i |q_i|

to Mixup's loss. For centred data and a homogeneous network, J(x) x = f(x), so that q_i = (y_i − softmax f(x_i))ᵀ f(x_i)
for cross-entropy. Here q_i is computed as it is defined, by one tangent per sample, and the sum is used as it stands;
the authors' code holds ℓu fixed in the gradient and rescales the sum to the size of Mixup's loss.

As the network is fitted to mixed data, its predictions are to be rescaled as Mixup's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mixreg._autodiff.network import Network, outputs_of, within_forward
from mixreg._autodiff.tangents import tangents_inside
from mixreg._support.numbers import require_weight
from mixreg.losses import SampleLoss, resolve, sample_losses
from mixreg.losses.targets import validate_num_classes
from mixreg.methods.method import Criterion, Method, Rows, Setting, WithMixupRule
from mixreg.methods.pairing import Mixed, mixed_copy
from mixreg.methods.partners import Partners
from mixreg.methods.recipe import Recipe
from mixreg.theory.modified import fitted_mean, require_mean


class MixupE(Recipe, WithMixupRule, Criterion):
    """The loss of a batch: `MixupE(1.0, x_mean, num_classes=10)(net, x, y).backward()`.

    Args:
        alpha: in [0, ∞].
        x_mean: x̄, of one sample's shape.
        weight: of the slope towards the mean, at least 0.
        num_classes: needed when targets are integer labels.
        loss: a name or a differentiable callable on one sample.
        generator: random number generator; by default PyTorch's global one.
        probability: that a sample is mixed, in [0, 1].
        partners: "uniform" or "balanced" over classes.
            In Python also a callable (y, generator) that gives the partner of each.
    """

    name = "mixupe"
    about = "Mixup with its slope towards the mean held near 0 (Zou et al., 2023)"
    options = ("weight", "probability", "partners")
    row_count = len(Mixed._fields)

    def __init__(
        self,
        alpha: float,
        x_mean: Tensor,
        weight: float = 1.0,
        num_classes: int | None = None,
        loss: str | SampleLoss = "cross_entropy",
        generator: torch.Generator | None = None,
        probability: float = 1.0,
        partners: Partners = "uniform",
    ) -> None:
        self.partners = partners
        self.alpha, self.probability = alpha, probability
        self.x_mean, self.weight, self.loss = require_mean(x_mean), require_weight(weight), loss
        self.num_classes, self.generator = validate_num_classes(num_classes), generator

    @classmethod
    def build(cls, setting: Setting) -> Method:
        x_mean = setting.moments().x_mean
        return cls(setting.alpha, x_mean, num_classes=setting.num_classes, **setting.options)

    @property
    def step_mean(self) -> float:
        """E(1 − λ) = α / (2α + 1), also for α = ∞."""
        return 0.0 if self.alpha == 0 else 1 / (2 + 1 / self.alpha)

    def draw(self, x: Tensor, y: Tensor, generator: torch.Generator | None = None) -> Rows:
        """The data as values and what Mixup makes of it: `Mixed`."""
        values, partner = self._targets(x, y), self._drawn_partners(y, generator)
        return mixed_copy(x, values, self.alpha, generator, self.probability, partner)

    def shown(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """The mixed batch."""
        return rows[2], rows[3]

    def losses(self, net: Network, rows: Rows) -> Tensor:
        x, y, mixed_x, mixed_y = rows
        if self.weight * self.step_mean == 0:
            return sample_losses(self.loss, mixed_y, outputs_of(net, mixed_x))

        mean = fitted_mean(self.x_mean.to(x.device), x, "x_mean")

        def both(forward: Network, module: Network, x: Tensor, mixed_x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            u, along, _ = tangents_inside(forward, module, x, mean - x, False)
            return u, along, outputs_of(forward, mixed_x)

        u, along, mixed_u = within_forward(net, both, x, mixed_x)
        n, loss = len(x), resolve(self.loss, y.shape[1:], u.shape[1:])
        slope = (loss.u(y.reshape(n, -1), u.reshape(n, -1)) * along.reshape(n, -1)).sum(1)
        return sample_losses(self.loss, mixed_y, mixed_u) + self.weight * self.step_mean * slope.abs()
