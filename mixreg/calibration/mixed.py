"""Accuracy while labels are mixed: each of both labels counts as much as its share.

    mean of (1 − s) [argmax u = y] + s [argmax u = y'],

which a network that is right of every mixture's larger part has as the mean of 1 − s, not as 1. Hits against y alone,
the larger part, are what metrics of other libraries count when they are given `mixed.y`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mixreg.losses.mixed_targets import MixedTargets
from mixreg.losses.pair_cross_entropy import IGNORED
from mixreg.losses.targets import is_label


def mixed_accuracy(logits: Tensor, mixed: MixedTargets | Tensor, ignore_index: int = IGNORED) -> Tensor:
    """The share-weighted accuracy, one number; labels that are ignored count for nothing.

    Of soft labels it is the mean of what they give to the predicted class, which is the same; of class indices it is
    the accuracy. So one line serves training, mixed or not, and validation.

    Args:
        logits: n × c × ….
        mixed: what `mix(x, y, parts=True)` gives, with class indices n × … or soft labels n × c × …; or soft labels
            n × c × … themselves (of which those that are ignored are all 0), or class indices n × ….
        ignore_index: the label that does not count.

    >>> logits = torch.tensor([[2.0, 0.0, 1.0], [0.0, 3.0, 0.0]])
    >>> mixed = MixedTargets(torch.tensor([0, 0]), torch.tensor([2, 1]), torch.tensor([0.25, 0.5]))
    >>> mixed_accuracy(logits, mixed), mixed_accuracy(logits, mixed.soft(num_classes=3))
    (tensor(0.6250), tensor(0.6250))
    """
    found = logits.detach().argmax(1)
    if isinstance(mixed, Tensor) and mixed.is_floating_point():
        if mixed.shape != logits.shape or mixed.ndim < 2:
            raise ValueError(f"outputs {tuple(logits.shape)} have no accuracy against numbers {tuple(mixed.shape)}")
        return mixed.gather(1, found.unsqueeze(1)).sum() / mixed.sum()
    if isinstance(mixed, Tensor):
        mixed = MixedTargets(mixed, mixed, logits.new_zeros(len(mixed)))
    if not isinstance(mixed, MixedTargets):
        given = type(mixed).__name__
        raise TypeError(f"mixed_accuracy counts what mix(x, y, parts=True) gives, or labels, got {given}")
    if mixed.y.is_floating_point():
        if mixed.y.ndim < 2:
            raise ValueError(f"numbers of shape {tuple(mixed.y.shape)} have no accuracy: labels or soft labels do")
        own, other = (part.argmax(1) for part in (mixed.y, mixed.y_partner))
        mixed = MixedTargets(own, other, mixed.share if mixed.share.ndim == 1 else mixed.share.flatten(1, 2))
    share = mixed.spread_share()
    if found.shape != mixed.y.shape:
        raise ValueError(f"outputs {tuple(logits.shape)} have no class for targets {tuple(mixed.y.shape)}")
    parts = ((mixed.y, 1 - share), (mixed.y_partner, share))
    counted = [weight * is_label(label, ignore_index).logical_not() for label, weight in parts]
    hits = sum(weight * (found == label) for weight, (label, _) in zip(counted, parts, strict=True))
    return torch.as_tensor(hits).sum() / torch.as_tensor(sum(counted)).sum()
