"""RegMixup (Pinto et al., 2022): Mixup beside the plain loss instead of in its place.

    ℓ(y_i, f(x_i)) + η ℓ(θ y_i + (1 − θ) y_j, f(θ x_i + (1 − θ) x_j))

with α of 10 to 20, so that mixed samples lie far from the data. Half of what the network sees is the data as it is, so
that there is no one map to undo: predictions are used as they are. Both parts go through the network as one batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mixreg.losses import SampleLoss, require_weight, sample_losses
from mixreg.mixing import Mixed, mixed_copy
from mixreg.network import Network, outputs_of
from mixreg.targets import matched_values, validate_num_classes
from mixreg.theta import Theta, scalar_forms


class RegMixup:
    """The loss of a batch: `RegMixup(alpha=10.0, num_classes=10)(net, x, y).backward()`.

    Args:
        alpha: in [0, ∞].
        weight: η, at least 0.
        num_classes: needed when targets are integer labels.
        loss: a name or a callable on one sample.
        generator: the source of chance; by default PyTorch's global one.
    """

    def __init__(
        self,
        alpha: float = 10.0,
        weight: float = 1.0,
        num_classes: int | None = None,
        loss: str | SampleLoss = "cross_entropy",
        generator: torch.Generator | None = None,
    ) -> None:
        self.theta, self.weight = Theta(scalar_forms(alpha, "RegMixup").alpha), require_weight(weight)
        self.num_classes, self.loss, self.generator = validate_num_classes(num_classes), loss, generator

    def __call__(self, net: Network, x: Tensor, y: Tensor) -> Tensor:
        """The mean loss; x: n × … floating point, y: n integer labels or n × … targets."""
        return self.values(net, *self.mixed(x, y)).mean()

    def mixed(self, x: Tensor, y: Tensor) -> Mixed:
        """The data as values and what Mixup makes of it."""
        return mixed_copy(x, matched_values(x, y, self.num_classes), self.theta, self.generator)

    def values(self, net: Network, x: Tensor, y: Tensor, mixed_x: Tensor, mixed_y: Tensor) -> Tensor:
        """The loss of each sample, n; arguments as from `mixed`."""
        u = outputs_of(net, torch.cat([x, mixed_x]))
        plain, mixed = sample_losses(self.loss, torch.cat([y, mixed_y]), u).split(len(x))
        return plain + self.weight * mixed
