"""The calibration measures as objects that take one batch at a time.

    ece = ExpectedCalibrationError()
    for logits, labels in batches:
        ece.update(logits, labels)
    ece.compute()

Each keeps a fixed number of float64 sums, however many samples pass, and gives what the function of the same name gives
on all samples at once (equal-mass ECE: nearly, see there). Sums add up over batches, over objects (`merge`) and over
`torch.distributed` processes (`compute`). `mixreg.adapters.torchmetrics` makes a `torchmetrics.Metric` of any of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from mixreg._support.processes import sum_over_processes
from mixreg.calibration import bins as binning
from mixreg.calibration import scores
from mixreg.calibration.predictions import Predictions, confidences_and_hits, predictions
from mixreg.losses.targets import validate_num_classes

if TYPE_CHECKING:
    from typing_extensions import Self


class StreamingMetric(ABC):
    """A measure that is a function of sums over samples.

    Args:
        shape: of the sums.
        probabilities: whether `update` receives probabilities instead of logits.

    Attributes:
        sums: of the samples seen so far, by this object in this process; float64.
        higher_is_better: None where a larger value is neither better nor worse.
    """

    higher_is_better: ClassVar[bool | None] = False

    def __init__(self, shape: tuple[int, ...], probabilities: bool = False) -> None:
        self.probabilities = probabilities
        self.sums = torch.zeros(shape, dtype=torch.float64)

    @abstractmethod
    def _sums_of(self, given: Predictions, labels: Tensor) -> Tensor:
        """One batch's sums."""

    @abstractmethod
    def _value_of(self, sums: Tensor) -> Any:
        """The measure, from the sums over all samples, of which there is at least one."""

    def batch_sums(self, logits: Tensor, labels: Tensor) -> Tensor:
        """One batch's sums, which are not taken in; logits: n × c (or n), labels: n."""
        return self._sums_of(predictions(logits, labels, self.probabilities), labels)

    def value(self, sums: Tensor) -> Any:
        """The measure of the samples that `sums` are of."""
        if not bool(sums.any()):
            raise ValueError(f"{type(self).__name__} has seen no sample yet: call update(logits, labels) first")
        return self._value_of(sums)

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Take in a batch; logits: n × c (or n), labels: n."""
        self._add(self.batch_sums(logits, labels))

    def compute(self) -> Any:
        """The measure over all batches so far, of all processes."""
        return self.value(sum_over_processes(self.sums))

    def reset(self) -> None:
        """Forget all batches."""
        self.sums = torch.zeros_like(self.sums)

    def merge(self, other: StreamingMetric) -> Self:
        """Take in everything that `other`, of the same kind and settings, has seen (and return this one)."""
        if type(other) is not type(self) or other._settings() != self._settings():
            raise ValueError(f"cannot merge {other!r} into {self!r}: they must be of one kind with the same settings")
        self._add(other.sums)
        return self

    def to(self, device: torch.device | str) -> Self:
        """Keep the sums on `device` from now on; batches may be anywhere."""
        self.sums = self.sums.to(device)
        return self

    def _add(self, sums: Tensor) -> None:
        # Not in place: sums that were made in inference mode cannot be changed outside it.
        self.sums = self.sums + sums.to(self.sums.device)

    def _settings(self) -> dict[str, Any]:
        return {name: value for name, value in sorted(vars(self).items()) if name != "sums"}

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value}" for name, value in self._settings().items())
        return f"{type(self).__name__}({settings})"


class ExpectedCalibrationError(StreamingMetric):
    """Streaming ECE.

    Equal-width bins are exact. Equal-mass bins cannot be known before the end, so confidences are counted in
    `CELLS_PER_BIN` fine cells per bin, equally wide in log-odds, and whole cells are joined into bins at the end: every
    bin edge is right to within one cell.
    """

    CELLS_PER_BIN = 64
    # Log-odds from which a float32 probability rounds to 1, and of a confidence of one in a million.
    LOG_ODDS_RANGE = (-14.0, 17.0)

    def __init__(
        self, bins: int = binning.DEFAULT_BINS, *, equal_mass: bool = False, probabilities: bool = False
    ) -> None:
        cells = binning.validate_bins(bins) * (self.CELLS_PER_BIN if equal_mass else 1)
        super().__init__((cells, 3), probabilities)
        self.bins, self.equal_mass = bins, equal_mass

    def _sums_of(self, given: Predictions, labels: Tensor) -> Tensor:
        if not self.equal_mass:
            return binning.top_sums(given, labels, self.bins)
        confidence, hit = confidences_and_hits(given, labels)
        low, high = self.LOG_ODDS_RANGE
        place = (torch.logit(confidence).clamp(low, high) - low) / (high - low)
        cells = self.sums.shape[0]
        return binning.sums_by((place * cells).long().clamp(max=cells - 1), confidence, hit, cells)

    def _value_of(self, sums: Tensor) -> Tensor:
        return binning.expected_error(binning.group_cells(sums, self.bins) if self.equal_mass else sums)


class _OverBins(StreamingMetric):
    """Anything that is read off the sums over equal-width bins of the top prediction."""

    def __init__(self, bins: int = binning.DEFAULT_BINS, *, probabilities: bool = False) -> None:
        super().__init__((binning.validate_bins(bins), 3), probabilities)
        self.bins = bins

    def _sums_of(self, given: Predictions, labels: Tensor) -> Tensor:
        return binning.top_sums(given, labels, self.bins)


class MaximumCalibrationError(_OverBins):
    """Streaming MCE."""

    def _value_of(self, sums: Tensor) -> Tensor:
        return binning.from_sums(sums).maximum_error


class ReliabilityHistogram(_OverBins):
    """Streaming `Reliability`: what a reliability diagram shows."""

    higher_is_better = None

    def _value_of(self, sums: Tensor) -> binning.Reliability:
        return binning.from_sums(sums)


class ConfidenceHistogram(_OverBins):
    """Streaming counts of confidences in equal-width bins."""

    higher_is_better = None

    def _value_of(self, sums: Tensor) -> Tensor:
        return sums[:, 0].long()


class ClasswiseCalibrationError(StreamingMetric):
    """Streaming classwise ECE."""

    def __init__(self, num_classes: int, bins: int = binning.DEFAULT_BINS, *, probabilities: bool = False) -> None:
        classes = validate_num_classes(num_classes)
        if classes is None:
            raise TypeError("ClasswiseCalibrationError needs num_classes, got None")
        super().__init__((classes, binning.validate_bins(bins), 3), probabilities)
        self.num_classes, self.bins = classes, bins

    def _sums_of(self, given: Predictions, labels: Tensor) -> Tensor:
        columns = given.values.shape[1]
        if columns != self.num_classes:
            raise ValueError(f"expected logits of {self.num_classes} classes, got {columns} columns")
        return binning.classwise_sums(given, labels, self.bins)

    def _value_of(self, sums: Tensor) -> Tensor:
        return binning.expected_error(sums).mean()


class _Mean(StreamingMetric):
    """The mean of a per-sample score."""

    def __init__(self, *, probabilities: bool = False) -> None:
        super().__init__((2,), probabilities)

    def _value_of(self, sums: Tensor) -> Tensor:
        return scores.mean_of(sums)


class Accuracy(_Mean):
    """Streaming accuracy."""

    higher_is_better = True

    def _sums_of(self, given: Predictions, labels: Tensor) -> Tensor:
        return scores.accuracy_sums(given, labels)


class NegativeLogLikelihood(_Mean):
    """Streaming mean cross-entropy."""

    def _sums_of(self, given: Predictions, labels: Tensor) -> Tensor:
        return scores.nll_sums(given, labels)


class BrierScore(_Mean):
    """Streaming Brier score."""

    def _sums_of(self, given: Predictions, labels: Tensor) -> Tensor:
        return scores.brier_sums(given, labels)
