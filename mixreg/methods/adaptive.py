"""Adaptive Mixup (Guo et al., 2019): how much to mix is learnt, pair by pair.

Where the mixture of two samples is itself a typical sample of a third class, its mixed label contradicts the data: the
mixture *intrudes*. So for each pair a policy chooses an interval of λ, and a discriminator watches for intrusion. With
features h, the input of the network's last layer, both are small networks on top of it:

    (a, w, rest) = softmax policy(h_i, h_j)        λ = a + w t,   t ~ U(0, 1)

    ½ [ℓ(y_i, f(x_i)) + ℓ(λ y_i + (1 − λ) y_j, f(λ x_i + (1 − λ) x_j))]
        + η ½ [log(1 + e^{−d(h_i)}) + log(1 + e^{d(h_mixed)})],

minimised over network, policy and discriminator d together: mixtures that can be told from data do not intrude. The
derivative in λ reaches the policy through both mixtures. Half of what the network sees is the data as it is, so that
there is no one map to undo: predictions are used as they are.

The original gives the policy a network of its own, on a random blend of both inputs; here it reads the features of the
network that is being trained (held fixed for it), which are at hand, and costs next to nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from mixreg._autodiff.layers import last_dense, recording_features
from mixreg._autodiff.network import Network, outputs_of, uncompiled, within_forward
from mixreg._support.numbers import require_weight
from mixreg._support.random import uniform
from mixreg.losses import SampleLoss, sample_losses
from mixreg.losses.targets import checked_values, validate_num_classes
from mixreg.methods.method import Criterion, Method, Rows, Setting


class AdaptiveMixup(Criterion, nn.Module):
    """Policy, discriminator and the loss of a batch: `AdaptiveMixup(net, num_classes=10)(net, x, y).backward()`.

    Its own parameters are to be trained along with the network's. Where a wrapper averages gradients over processes, it
    must hold them too: wrap `WithPolicy(net, policy)` and train that.

    Args:
        net: its last dense layer makes the outputs.
        weight: of the intrusion loss, at least 0.
        num_classes: needed when targets are integer labels.
        loss: a name or a callable on one sample.
        width: of the policy's hidden layer.
        generator: random number generator; by default PyTorch's global one.
    """

    name = "adaptive"
    about = "learns how much to mix, pair by pair (Guo et al., 2019)"
    options = ("weight",)

    def __init__(
        self,
        net: nn.Module,
        weight: float = 1.0,
        num_classes: int | None = None,
        loss: str | SampleLoss = "cross_entropy",
        width: int = 100,
        generator: torch.Generator | None = None,
    ) -> None:
        nn.Module.__init__(self)
        head = last_dense(net)
        self.policy = nn.Sequential(nn.Linear(2 * head.in_features, width), nn.ReLU(), nn.Linear(width, 3))
        self.discriminator = nn.Linear(head.in_features, 1)
        self.to(head.weight.device, head.weight.dtype)
        self.weight, self.num_classes, self.loss = require_weight(weight), validate_num_classes(num_classes), loss
        self.generator = generator

    @classmethod
    def build(cls, setting: Setting) -> Method:
        return cls(setting.net, num_classes=setting.num_classes, **setting.options)

    def extended(self, net: nn.Module) -> nn.Module:
        return WithPolicy(net, self)

    def forward(self, net: nn.Module, x: Any, y: Any = None) -> Tensor:
        """The mean loss; x: n × … floating point, y: n integer labels or n × … targets, or one pair of both."""
        return Criterion.__call__(self, net, x, y)

    __call__ = nn.Module.__call__

    def draw(self, x: Tensor, y: Tensor, generator: torch.Generator | None = None) -> Rows:
        """x, y, a number by which rows are paired, and where in its interval each λ lies."""
        values = checked_values(x, y, self.num_classes)
        return x, values, *uniform((2, len(x)), generator, device=x.device).to(x.dtype)

    def losses(self, net: Network, rows: Rows) -> Tensor:
        x, y, key, place = rows
        return self.pair_losses(net, x, y, key.argsort(), place)

    def pair_losses(self, net: Network, x: Tensor, y: Tensor, partner: Tensor, place: Tensor) -> Tensor:
        """The loss of each sample, n.

        Args:
            net: the network.
            x: n × …
            y: n × … values.
            partner: n, who is mixed with whom.
            place: n, where in its interval each λ lies: t.
        """
        # A compiled network would not tell its features.
        return within_forward(uncompiled(net), self._pair_losses, x, y, partner, place)

    def share(self, features: Tensor, partner: Tensor, place: Tensor) -> Tensor:
        """λ of each pair, n, differentiable in the policy; features: n × …."""
        fixed = features.detach()
        low, width, _ = self.policy(torch.cat([fixed, fixed[partner]], 1)).softmax(1).unbind(1)
        return low + width * place

    def _pair_losses(
        self, forward: Network, module: nn.Module, x: Tensor, y: Tensor, partner: Tensor, place: Tensor
    ) -> Tensor:
        with recording_features(module) as seen:
            u = outputs_of(forward, x)
            share = self.share(seen[0], partner, place)
            mixed_x, mixed_y = (_mixed(part, partner, share) for part in (x, y))
            mixed_u = outputs_of(forward, mixed_x)
        fit = sample_losses(self.loss, y, u) + sample_losses(self.loss, mixed_y, mixed_u)
        real, mixed = (self.discriminator(features).squeeze(1) for features in seen)
        return 0.5 * fit + 0.5 * self.weight * (softplus(-real) + softplus(mixed))


def _mixed(part: Tensor, partner: Tensor, share: Tensor) -> Tensor:
    """λ_i v_i + (1 − λ_i) v_{p(i)}; part: n × …."""
    return torch.lerp(part[partner], part, share.reshape(-1, *[1] * (part.ndim - 1)))


class WithPolicy(nn.Module):
    """A network, and what adaptive Mixup learns beside it; predicts as the network does.

    Args:
        net: the network.
        policy: made for it.
    """

    def __init__(self, net: nn.Module, policy: AdaptiveMixup) -> None:
        super().__init__()
        # The network comes last, so that its last layer is the last one.
        self.policy, self.net = policy, net

    def forward(self, x: Tensor) -> Tensor:
        """What the network makes of x."""
        return self.net(x)
