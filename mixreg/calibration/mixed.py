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


def mixed_accuracy(logits: Tensor, mixed: MixedTargets, ignore_index: int = IGNORED) -> Tensor:
    """The share-weighted accuracy, one number; labels that are ignored count for nothing.

    Args:
        logits: n × c × ….
        mixed: what `mix(x, y, parts=True)` gives, with class indices n × … or soft labels n × c × ….
        ignore_index: the label that does not count.

    >>> logits = torch.tensor([[2.0, 0.0, 1.0], [0.0, 3.0, 0.0]])
    >>> mixed_accuracy(logits, MixedTargets(torch.tensor([0, 0]), torch.tensor([2, 1]), torch.tensor([0.25, 0.5])))
    tensor(0.6250)
    """
    if not isinstance(mixed, MixedTargets):
        raise TypeError(f"mixed_accuracy counts what mix(x, y, parts=True) gives, got {type(mixed).__name__}")
    if mixed.y.is_floating_point():
        if mixed.y.ndim < 2:
            raise ValueError(f"numbers of shape {tuple(mixed.y.shape)} have no accuracy: labels or soft labels do")
        own, other = (part.argmax(1) for part in (mixed.y, mixed.y_partner))
        mixed = MixedTargets(own, other, mixed.share if mixed.share.ndim == 1 else mixed.share.flatten(1, 2))
    found, share = logits.detach().argmax(1), mixed.spread_share()
    if found.shape != mixed.y.shape:
        raise ValueError(f"outputs {tuple(logits.shape)} have no class for targets {tuple(mixed.y.shape)}")
    parts = ((mixed.y, 1 - share), (mixed.y_partner, share))
    hits = sum(weight * (found == label) * (label != ignore_index) for label, weight in parts)
    return torch.as_tensor(hits).sum() / torch.as_tensor(sum(w * (label != ignore_index) for label, w in parts)).sum()
