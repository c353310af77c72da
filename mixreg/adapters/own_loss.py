"""The loss that a model computes of its own logits, computed again of others.

Hugging Face's models return a loss beside their logits: the cross-entropy of class indices, the squared error of a
regression, or the binary cross-entropy of several labels at once. Which one it was is not asked of the model's
configuration, which a model may not follow: it is the one that gives the same number.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss


def _classes(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1).long())


def _squares(logits: Tensor, labels: Tensor) -> Tensor:
    # n numbers and n × 1 outputs.
    return mse_loss(logits.reshape(labels.shape), labels)


_LOSSES: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (_squares, binary_cross_entropy_with_logits, cross_entropy)


def loss_again(found: Tensor, before: Tensor, after: Tensor, labels: Tensor) -> Tensor | None:
    """The loss of other logits, of the kind that gave `found`; None if it is none of these.

    Args:
        found: the model's loss, one number.
        before: the logits that it belongs to, n × ….
        after: others of the same shape.
        labels: n class indices, or n × … numbers.
    """
    if not bool(torch.isfinite(found)):
        return found.detach()
    if not labels.is_floating_point():
        candidates: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (_classes,)
        if labels.shape != before.shape[:-1]:
            return None
    elif labels.shape == before.shape:
        candidates = _LOSSES
    elif labels.numel() == before.numel():
        candidates = (_squares,)
    else:
        return None
    # As far as the logits' precision tells them.
    tolerance = max(1e-4, 8 * torch.finfo(before.dtype).eps)
    for loss in candidates:
        value = loss(before.float(), labels.float() if labels.is_floating_point() else labels)
        if torch.allclose(value, found.detach().float(), rtol=tolerance, atol=tolerance * 1e-2):
            return loss(after, labels.to(after.dtype) if labels.is_floating_point() else labels)
    return None
