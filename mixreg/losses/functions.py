"""The losses of the paper (eq. loss and eq. lrloss), n targets and n outputs to n losses; take `.mean()` to train.

As in the paper the target comes first. Cross-entropy assumes Σ_k y_k = 1, which holds for one-hot labels and all their
mixtures.
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
    # Shifted by the largest logit, which Σ_k y_k = 1 allows: large common offsets cost no digits. Not by log_softmax,
    # whose derivative in y is another one off Σ_k y_k = 1.
    u = u - u.amax(1, keepdim=True).detach()
    return torch.logsumexp(u, dim=1) - (y * u).sum(1)


def logistic(y: Tensor, u: Tensor) -> Tensor:
    """softplus(u) − y u, summed over all but the batch dimension; y in [0, 1], u: n, or n × c for c labels at once."""
    _require_same_shape(y, u)
    # As y softplus(−u) + (1 − y) softplus(u) nothing cancels for confident outputs; and PyTorch's softplus is cut off
    # at 20, an error of 2e-9 in float64, where its logsigmoid is exact.
    log_sigmoid = torch.nn.functional.logsigmoid
    return _sum_samples(-y * log_sigmoid(u) - (1 - y) * log_sigmoid(-u))


def squared_error(y: Tensor, u: Tensor) -> Tensor:
    """½ ‖y − u‖², summed over all but the batch dimension; y, u: n × …."""
    _require_same_shape(y, u)
    return 0.5 * _sum_samples((y - u).square())


def _sum_samples(values: Tensor) -> Tensor:
    return values.flatten(1).sum(1) if values.ndim > 1 else values


def _require_same_shape(y: Tensor, u: Tensor) -> None:
    if y.shape != u.shape:
        raise ValueError(
            f"targets of shape {tuple(y.shape)} and outputs of shape {tuple(u.shape)} must have the same shape; "
            "integer labels must be one-hot (mixreg.losses.targets.to_values)"
        )
