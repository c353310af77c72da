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

from mixreg.calibration.predictions import as_logits, confidences_and_hits, probability_chunks


def _with_count(total: Tensor, labels: Tensor) -> Tensor:
    return torch.stack([total.double(), torch.full_like(total, labels.shape[0], dtype=torch.float64)])


def accuracy_sums(logits: Tensor, labels: Tensor) -> Tensor:
    """(hits, n)."""
    return _with_count(confidences_and_hits(logits, labels)[1].sum(), labels)


def nll_sums(logits: Tensor, labels: Tensor) -> Tensor:
    """(Σ −log p_y, n)."""
    chosen = logits.gather(1, labels.long().unsqueeze(1)).squeeze(1)
    return _with_count((torch.logsumexp(logits, dim=1) - chosen).sum(dtype=torch.float64), labels)


def brier_sums(logits: Tensor, labels: Tensor) -> Tensor:
    """(Σ ‖p − e_y‖², n), as ‖p‖² − 2 p_y + 1."""
    total = torch.zeros((), dtype=torch.float64, device=logits.device)
    for rows, p in probability_chunks(logits):
        chosen = p.gather(1, labels[rows].long().unsqueeze(1))
        total += p.square().sum(dtype=torch.float64) + (1 - 2 * chosen.double()).sum()
    return _with_count(total, labels)


def mean_of(sums: Tensor) -> Tensor:
    """Σ score / n."""
    return sums[0] / sums[1]


def accuracy(logits: Tensor, labels: Tensor, *, probabilities: bool = False) -> Tensor:
    """The share of samples whose most probable class is the label; logits: n × c, labels: n."""
    return mean_of(accuracy_sums(as_logits(logits, labels, probabilities), labels))


def negative_log_likelihood(logits: Tensor, labels: Tensor, *, probabilities: bool = False) -> Tensor:
    """Mean cross-entropy of the labels; logits: n × c, labels: n."""
    return mean_of(nll_sums(as_logits(logits, labels, probabilities), labels))


def brier_score(logits: Tensor, labels: Tensor, *, probabilities: bool = False) -> Tensor:
    """Mean squared distance of the probabilities from the one-hot label, in [0, 2]; logits: n × c, labels: n."""
    return mean_of(brier_sums(as_logits(logits, labels, probabilities), labels))
