"""Losses of dense outputs, n × c × … with a class at each place, beside those of one output for each sample."""

from __future__ import annotations

from torch import Tensor

from mixreg.losses.derivatives import AnyLoss, sample_losses
from mixreg.losses.functions import cross_entropy


def dense_losses(loss: AnyLoss, y: Tensor, u: Tensor) -> Tensor:
    """The loss of each sample, n, or of cross-entropy that of each place, n × …; y: n × … values, u: n × … outputs."""
    return cross_entropy(y, u) if loss == "cross_entropy" else sample_losses(loss, y, u)
