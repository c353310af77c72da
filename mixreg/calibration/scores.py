"""Proper scores and accuracy of predicted probabilities p = softmax(logits), averaged over samples.

| score    | of one sample            |
|----------|--------------------------|
| accuracy | 1[argmax p = y]          |
| NLL      | −log p_y                 |
| Brier    | Σ_k (p_k − 1[k = y])²    |

Each is a sum over samples, here with the number of samples beside it: (Σ score, n), which adds up over batches.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mixreg.calibration.predictions import (
    Predictions,
    confidences_and_hits,
    predictions,
    probability_chunks,
    refuse_nan,
)


def _with_count(total: Tensor, labels: Tensor) -> Tensor:
    return torch.stack([total.double(), torch.full_like(total, labels.shape[0], dtype=torch.float64)])


def accuracy_sums(given: Predictions, labels: Tensor) -> Tensor:
    """(hits, n)."""
    return _with_count(confidences_and_hits(given, labels)[1].sum(), labels)


def nll_sums(given: Predictions, labels: Tensor) -> Tensor:
    """(Σ −log p_y, n)."""
    values, are_probabilities = given
    log_p = values.log() if are_probabilities else torch.log_softmax(values, dim=1)
    chosen = log_p.gather(1, labels.long().unsqueeze(1))
    return _with_count(refuse_nan(given, -chosen.sum(dtype=torch.float64)), labels)


def brier_sums(given: Predictions, labels: Tensor) -> Tensor:
    """(Σ ‖p − e_y‖², n)."""
    total = torch.zeros((), dtype=torch.float64, device=given.values.device)
    for rows, p in probability_chunks(given):
        label = labels[rows].long().unsqueeze(1)
        p.scatter_add_(1, label, p.new_full((1, 1), -1.0).expand_as(label))
        total += p.square_().sum(dtype=torch.float64)
    return _with_count(refuse_nan(given, total), labels)


def mean_of(sums: Tensor) -> Tensor:
    """Σ score / n."""
    return sums[0] / sums[1]


def accuracy(logits: Tensor, labels: Tensor, *, probabilities: bool = False) -> Tensor:
    """The share of samples whose most probable class is the label; logits: n × c, labels: n."""
    return mean_of(accuracy_sums(predictions(logits, labels, probabilities), labels))


def negative_log_likelihood(logits: Tensor, labels: Tensor, *, probabilities: bool = False) -> Tensor:
    """Mean cross-entropy of the labels; logits: n × c, labels: n."""
    return mean_of(nll_sums(predictions(logits, labels, probabilities), labels))


def brier_score(logits: Tensor, labels: Tensor, *, probabilities: bool = False) -> Tensor:
    """Mean squared distance of the probabilities from the one-hot label, in [0, 2]; logits: n × c, labels: n."""
    return mean_of(brier_sums(predictions(logits, labels, probabilities), labels))
