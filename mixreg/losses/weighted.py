"""Cross-entropy with a weight for each class, for labels and all their mixtures.

    ℓ(y, u) = s logsumexp(u) − (w ∘ y)ᵀu,        s = wᵀy,

which for one-hot labels is PyTorch's `CrossEntropyLoss(weight=w)` before it is averaged, and is linear in y:

    ℓu = s p − w ∘ y        ℓuu = s (diag(p) − ppᵀ)        ℓuy = p wᵀ − diag(w)        ℓyy = 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mixreg.losses.derivatives import BUILT_IN, Loss


class WeightedCrossEntropy(Loss):
    """See the module's head; weights: c numbers of at least 0."""

    def __init__(self, weights: Tensor) -> None:
        if weights.ndim != 1 or not bool((torch.isfinite(weights) & (weights >= 0)).all()):
            raise ValueError(f"class weights are c numbers of at least 0, got {weights!r}")
        self.weights = weights

    def _weighted(self, y: Tensor) -> Tensor:
        if y.shape[1] != len(self.weights):
            raise ValueError(f"there are {len(self.weights)} class weights for {y.shape[1]} classes")
        return y * self.weights.to(y)

    def value(self, y: Tensor, u: Tensor) -> Tensor:
        y = self._weighted(y)
        return -(y * torch.log_softmax(u, 1)).sum(1)

    def u(self, y: Tensor, u: Tensor) -> Tensor:
        y = self._weighted(y)
        return y.sum(1, keepdim=True) * torch.softmax(u, 1) - y

    def uu(self, y: Tensor, u: Tensor) -> Tensor:
        return self._weighted(y).sum(1).reshape(-1, 1, 1) * BUILT_IN["cross_entropy"].uu(y, u)

    def uy(self, y: Tensor, u: Tensor) -> Tensor:
        weights = self.weights.to(u)
        return torch.softmax(u, 1).unsqueeze(2) * weights - torch.diag(weights)

    def yy(self, y: Tensor, u: Tensor) -> Tensor:
        return BUILT_IN["cross_entropy"].yy(y, u)

    def along(self, y: Tensor, u: Tensor, dy: Tensor, du: Tensor) -> Tensor:
        p, y = torch.softmax(u, 1), self._weighted(y)
        centred = du - (p * du).sum(1, keepdim=True)
        return 0.5 * y.sum(1) * (p * centred.square()).sum(1) - (self.weights.to(dy) * dy * centred).sum(1)
