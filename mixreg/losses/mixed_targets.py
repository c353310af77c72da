"""Targets that are mixed, as their parts: one's own, the partner's, and how much of the partner's.

    ŷ = (1 − s) y + s y'

Kept apart, labels stay labels: a loss that wants class indices gets them, twice (`mixreg.mixed_loss`), and nothing of
the width of all classes has to be made. Each mixed sample is named by its larger part, s ≤ ½, so that y is the label to
count hits against. Dense targets that CutMix cuts have a map of zeros and ones for s.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mixreg.losses.targets import is_class_index, to_values


class MixedTargets(NamedTuple):
    """y: n × … one's own, y_partner: the same of the partner, share: the partner's, n or a map that broadcasts to y.

    >>> mixed = MixedTargets(torch.tensor([0, 1]), torch.tensor([2, 1]), torch.tensor([0.25, 0.5]))
    >>> mixed.soft(num_classes=3)
    tensor([[0.7500, 0.0000, 0.2500],
            [0.0000, 1.0000, 0.0000]])
    """

    y: Tensor
    y_partner: Tensor
    share: Tensor

    def spread_share(self) -> Tensor:
        """The share for every number of y, in its shape."""
        return over_samples(self.share, self.y.ndim).expand(self.y.shape)

    def values(self) -> Tensor:
        """(1 − s) y + s y', of numbers: n × …."""
        share = over_samples(self.share, self.y.ndim).to(self.y.device)
        kind = torch.promote_types(self.y.dtype, share.dtype)
        return torch.lerp(self.y.to(kind), self.y_partner.to(kind), share.to(kind)).to(self.y.dtype)

    def soft(self, num_classes: int | None = None) -> Tensor:
        """The mixed target itself, class indices as soft labels along dimension 1: n × c × …."""
        own, other = (to_values(y, num_classes, self.share.dtype) for y in (self.y, self.y_partner))
        share = self.share
        if is_class_index(self.y) and share.ndim > 1:
            share = share.unsqueeze(1)
        return MixedTargets(own, other, share).values()


def over_samples(share: Tensor, dimensions: int) -> Tensor:
    """A share of each sample (n) as one that broadcasts to tensors of so many dimensions; maps as they are."""
    return share.reshape(-1, *[1] * (dimensions - 1)) if share.ndim == 1 else share
