"""The losses of the paper (eq. loss and eq. lrloss), per sample and for any target a Mixup batch may hold.

| loss          | ℓ(y, u)             |
|---------------|---------------------|
| cross-entropy | logsumexp(u) − yᵀu  |
| logistic      | softplus(u) − y u   |
| squared error | ½ ‖y − u‖²          |

As in the paper the target comes first. Cross-entropy assumes Σ_k y_k = 1, which holds for one-hot labels and all their
mixtures. Each function maps n targets and n outputs to n losses; take `.mean()` to train.
"""

from __future__ import annotations

import torch
from torch import Tensor


def cross_entropy(y: Tensor, u: Tensor) -> Tensor:
    """logsumexp(u) − yᵀu.

    Args:
        y: n × c × …, class probabilities along dimension 1.
        u: n × c × …, logits.

    Returns:
        n × …
    """
    _require_same_shape(y, u)
    if u.ndim < 2:
        raise ValueError(
            f"cross-entropy needs outputs of shape n × c, got {tuple(u.shape)}; for one logit use logistic"
        )
    return torch.logsumexp(u, dim=1) - (y * u).sum(1)


def logistic(y: Tensor, u: Tensor) -> Tensor:
    """softplus(u) − y u, summed over all but the batch dimension; y in [0, 1], u: n, or n × c for c labels at once."""
    _require_same_shape(y, u)
    # PyTorch's softplus is cut off at 20, an error of 2e-9 in float64; its logsigmoid is exact.
    return _sum_samples(-torch.nn.functional.logsigmoid(-u) - y * u)


def squared_error(y: Tensor, u: Tensor) -> Tensor:
    """½ ‖y − u‖², summed over all but the batch dimension; y, u: n × …."""
    _require_same_shape(y, u)
    return 0.5 * _sum_samples((y - u).square())


def _sum_samples(values: Tensor) -> Tensor:
    return values.reshape(values.shape[0], -1).sum(1) if values.ndim > 1 else values


def _require_same_shape(y: Tensor, u: Tensor) -> None:
    if y.shape != u.shape:
        raise ValueError(
            f"targets of shape {tuple(y.shape)} and outputs of shape {tuple(u.shape)} must have the same shape; "
            "integer labels must be one-hot (mixreg.targets.to_values)"
        )
