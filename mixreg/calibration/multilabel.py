"""Calibration of several labels at once: each label k is a question of its own, answered with p_k = sigmoid(u_k).

    ECE_k = Σ_b (n_kb / n) |freq_kb − mean p_kb|        ECE = (1/c) Σ_k ECE_k

over equal-width bins of p_k: of the samples to which a label is given with probability p, a share p should have it.
Accuracy, cross-entropy and Brier score are means over samples and labels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mixreg._support.processes import sum_over_processes
from mixreg.calibration import bins as binning


def _checked(logits: Tensor, targets: Tensor, probabilities: bool) -> tuple[Tensor, Tensor]:
    """p and y, n × c float64."""
    if not isinstance(logits, Tensor) or not logits.is_floating_point() or logits.ndim != 2 or 0 in logits.shape:
        given = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(f"logits of several labels must be n × c floating-point numbers, got {given}")
    if not isinstance(targets, Tensor) or targets.shape != logits.shape:
        given = tuple(targets.shape) if isinstance(targets, Tensor) else type(targets).__name__
        raise ValueError(f"targets must be zeros and ones of shape {tuple(logits.shape)}, got {given}")
    values, y = logits.detach().double(), targets.detach().double()
    if not bool(((y == 0) | (y == 1)).all()):
        raise ValueError("targets of several labels must be zeros and ones")
    if not bool(torch.isfinite(values).all()):
        raise ValueError("logits must be finite")
    if probabilities and not bool(((values >= 0) & (values <= 1)).all()):
        raise ValueError("with probabilities=True every value must lie in [0, 1]")
    return (values if probabilities else torch.sigmoid(values)), y


def multilabel_sums(p: Tensor, y: Tensor, bins: int) -> Tensor:
    """(n, Σ p, Σ y) by label and bin: c × bins × 3."""
    n, labels = p.shape
    place = binning.bin_of(p.flatten(), bins) + bins * torch.arange(labels, device=p.device).repeat(n)
    return binning.sums_by(place, p.flatten(), y.flatten() == 1, labels * bins).reshape(labels, bins, 3)


def multilabel_calibration_error(
    logits: Tensor, targets: Tensor, bins: int = binning.DEFAULT_BINS, *, probabilities: bool = False
) -> Tensor:
    """The mean over labels of their ECE; logits: n × c, targets: n × c zeros and ones."""
    p, y = _checked(logits, targets, probabilities)
    return binning.expected_error(multilabel_sums(p, y, binning.validate_bins(bins))).mean()


class MultilabelScores:
    """Accuracy, cross-entropy, ECE and Brier score of several labels, batch by batch.

    Args:
        num_labels: c.
        bins: of the ECE.
    """

    def __init__(self, num_labels: int, bins: int = binning.DEFAULT_BINS) -> None:
        self.bins = binning.validate_bins(bins)
        self.by_bin = torch.zeros(num_labels, bins, 3, dtype=torch.float64)
        # Values, hits, Σ loss, Σ (p − y)².
        self.totals = torch.zeros(4, dtype=torch.float64)

    def update(self, logits: Tensor, targets: Tensor) -> None:
        """Take in a batch; logits: n × c, targets: n × c zeros and ones."""
        p, y = _checked(logits, targets, False)
        self.by_bin += multilabel_sums(p, y, self.bins)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits.double(), y, reduction="sum")
        hits = ((logits > 0) == (y == 1)).sum()
        self.totals += torch.stack([torch.tensor(p.numel()), hits, loss, (p - y).square().sum()]).double()

    def compute(self) -> dict[str, float]:
        """The measures over all batches of all processes."""
        count, hits, loss, squares = sum_over_processes(self.totals).tolist()
        if count == 0:
            raise ValueError("no sample has been seen yet: call update(logits, targets) first")
        ece = float(binning.expected_error(sum_over_processes(self.by_bin)).mean())
        return {"accuracy": hits / count, "cross_entropy": loss / count, "ece": ece, "brier": squares / count}
