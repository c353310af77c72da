"""Reliability: predictions grouped by confidence, and how far each group's confidence is from its accuracy.

With samples in bins b by their confidence (the largest probability),

    ECE = Σ_b (n_b / n) |acc_b − conf_b|        MCE = max_b |acc_b − conf_b|        (Guo et al., 2017)

and classwise, with the probability of class k in place of the confidence and "the label is k" in place of "the
prediction is right" (Kull et al., 2019),

    cwECE = (1/c) Σ_k Σ_b (n_kb / n) |freq_kb − mean p_kb|.

Equal-width bins are ((b−1)/B, b/B], so that a confidence of exactly 1 belongs to the last one. For equal-mass bins a
sample goes to bin ⌊B r / n⌋, where r is the number of samples of strictly smaller confidence: bins hold n/B samples
each, and equal confidences stay together in whatever order they came.

Everything follows from sums over bins of (1, confidence, hit). Sums add up over batches and processes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mixreg.calibration.predictions import (
    Predictions,
    confidences,
    confidences_and_hits,
    predictions,
    probability_chunks,
    refuse_nan,
)

DEFAULT_BINS = 15


@dataclass(frozen=True)
class Reliability:
    """What a reliability diagram shows; all float64.

    Attributes:
        lower: B, where each bin's range of confidence begins.
        upper: B, where it ends.
        count: B, samples in each bin.
        confidence: B, their mean confidence (NaN where there is none).
        accuracy: B, the share of them that is right (NaN where there is none).
    """

    lower: Tensor
    upper: Tensor
    count: Tensor
    confidence: Tensor
    accuracy: Tensor

    @property
    def expected_error(self) -> Tensor:
        """ECE."""
        gaps = self.count * (self.accuracy - self.confidence).abs()
        return gaps.nansum() / self.count.sum()

    @property
    def maximum_error(self) -> Tensor:
        """MCE, over the bins that hold samples."""
        return (self.accuracy - self.confidence).abs().nan_to_num(0.0).max()


def validate_bins(bins: int) -> int:
    """`bins` itself, or an error that says what it may be."""
    if isinstance(bins, bool) or not isinstance(bins, int) or bins < 1:
        raise ValueError(f"bins must be a positive integer, got {bins!r}")
    return bins


def bin_edges(bins: int, device: torch.device) -> Tensor:
    """0, 1/B, …, 1, each the float64 nearest to b/B (which `linspace` does not give)."""
    return torch.arange(bins + 1, dtype=torch.float64, device=device) / bins


def bin_of(confidence: Tensor, bins: int) -> Tensor:
    """The equal-width bin ((b−1)/B, b/B] of each confidence, counted from 0; 0 itself is in the first."""
    return torch.bucketize(confidence.double(), bin_edges(bins, confidence.device)[1:-1])


def sums_by(index: Tensor, confidence: Tensor, hit: Tensor, size: int) -> Tensor:
    """size × 3: for every index the sums of 1, confidence and hit; all arguments have the same n elements."""
    columns = [torch.bincount(index, minlength=size).double()]
    columns += [torch.bincount(index, weights=w.double(), minlength=size) for w in (confidence, hit)]
    return torch.stack(columns, dim=1)


def top_sums(given: Predictions, labels: Tensor, bins: int) -> Tensor:
    """B × 3 sums over equal-width bins of the top prediction; from `predictions`."""
    confidence, hit = confidences_and_hits(given, labels)
    return sums_by(bin_of(confidence, bins), confidence, hit, bins)


def classwise_sums(given: Predictions, labels: Tensor, bins: int) -> Tensor:
    """c × B × 3 sums over equal-width bins of each class's probability; from `predictions`."""
    c, device = given.values.shape[1], given.values.device
    sums = torch.zeros((c * bins, 3), dtype=torch.float64, device=device)
    classes = torch.arange(c, device=device)
    for rows, p in probability_chunks(given):
        index = classes * bins + bin_of(p, bins)
        hit = labels[rows].unsqueeze(1) == classes
        sums += sums_by(index.flatten(), p.flatten(), hit.flatten(), c * bins)
    return refuse_nan(given, sums).reshape(c, bins, 3)


def equal_mass_bin(count: Tensor, bins: int) -> Tensor:
    """The bin ⌊B r / n⌋ of every cell, where r counts the samples in the cells before it; count: cells, in order."""
    before = count.cumsum(0) - count
    return (before * bins / count.sum()).long().clamp(max=bins - 1)


def group_cells(sums: Tensor, bins: int) -> Tensor:
    """Cells × 3 sums, in order of confidence, joined into B × 3 sums of equal mass."""
    grouped = torch.zeros((bins, 3), dtype=sums.dtype, device=sums.device)
    return grouped.index_add_(0, equal_mass_bin(sums[:, 0], bins), sums)


def equal_mass_sums(given: Predictions, labels: Tensor, bins: int) -> Tensor:
    """B × 3 sums over equal-mass bins of the top prediction; from `predictions`."""
    confidence, hit = confidences_and_hits(given, labels)
    values, cell = torch.unique(confidence, return_inverse=True)
    return group_cells(sums_by(cell, confidence, hit, values.numel()), bins)


def from_sums(sums: Tensor) -> Reliability:
    """The reliability of B × 3 sums over equal-width bins."""
    count, confidence, hits = sums.unbind(-1)
    edges = bin_edges(count.shape[0], sums.device)
    # 0 / 0 is the NaN that an empty bin should show.
    return Reliability(edges[:-1], edges[1:], count, confidence / count, hits / count)


def expected_error(sums: Tensor) -> Tensor:
    """Σ_b |Σ hit − Σ confidence| / n over the next-to-last dimension of … × B × 3 sums."""
    return (sums[..., 2] - sums[..., 1]).abs().sum(-1) / sums[..., 0].sum(-1)


def reliability(
    logits: Tensor, labels: Tensor, bins: int = DEFAULT_BINS, *, probabilities: bool = False
) -> Reliability:
    """The numbers of a reliability diagram with equal-width bins; logits: n × c, labels: n."""
    return from_sums(top_sums(predictions(logits, labels, probabilities), labels, validate_bins(bins)))


def confidence_histogram(logits: Tensor, bins: int = DEFAULT_BINS, *, probabilities: bool = False) -> Tensor:
    """B: how many samples have their largest probability in each equal-width bin; logits: n × c."""
    confidence = confidences(predictions(logits, None, probabilities))
    return torch.bincount(bin_of(confidence, validate_bins(bins)), minlength=bins)


def expected_calibration_error(
    logits: Tensor,
    labels: Tensor,
    bins: int = DEFAULT_BINS,
    *,
    equal_mass: bool = False,
    probabilities: bool = False,
) -> Tensor:
    """ECE over equal-width or equal-mass bins; logits: n × c, labels: n.

    >>> p = torch.tensor([[0.05, 0.95], [0.0, 1.0]])
    >>> round(expected_calibration_error(p, torch.tensor([1, 0]), probabilities=True).item(), 3)
    0.475
    """
    given = predictions(logits, labels, probabilities)
    return expected_error((equal_mass_sums if equal_mass else top_sums)(given, labels, validate_bins(bins)))


def maximum_calibration_error(
    logits: Tensor, labels: Tensor, bins: int = DEFAULT_BINS, *, probabilities: bool = False
) -> Tensor:
    """MCE over equal-width bins; logits: n × c, labels: n."""
    return reliability(logits, labels, bins, probabilities=probabilities).maximum_error


def classwise_calibration_error(
    logits: Tensor, labels: Tensor, bins: int = DEFAULT_BINS, *, probabilities: bool = False
) -> Tensor:
    """Classwise ECE over equal-width bins, averaged over classes; logits: n × c, labels: n."""
    sums = classwise_sums(predictions(logits, labels, probabilities), labels, validate_bins(bins))
    return expected_error(sums).mean()
