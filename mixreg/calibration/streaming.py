"""The calibration measures as objects that take one batch at a time.

Each keeps a fixed number of float64 sums, however many samples pass, and gives what the function of the same name gives
on all samples at once (equal-mass ECE: nearly, see there). The interface is that of `torchmetrics.Metric`: `update`,
`compute`, `reset`, calling the object (the batch's own value), `merge_state`, `clone`, `.to(device)`; `compute` sums
over `torch.distributed` processes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import deepcopy
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from mixreg.calibration import bins as binning
from mixreg.calibration import scores
from mixreg.calibration.predictions import Predictions, confidences_and_hits, predictions
from mixreg.distributed import sum_over_processes
from mixreg.targets import validate_num_classes


class StreamingMetric(nn.Module, ABC):
    """A measure that is a function of sums over samples.

    Args:
        probabilities: whether `update` receives probabilities instead of logits.
        sync_on_compute: whether `compute` sums over processes.
    """

    is_differentiable: ClassVar[bool] = False
    higher_is_better: ClassVar[bool | None] = False
    full_state_update: ClassVar[bool] = False

    sums: Tensor

    def __init__(self, shape: tuple[int, ...], probabilities: bool = False, sync_on_compute: bool = True) -> None:
        super().__init__()
        self.probabilities = probabilities
        self.sync_on_compute = sync_on_compute
        # Not part of a model's weights, as in torchmetrics.
        self.register_buffer("sums", torch.zeros(shape, dtype=torch.float64), persistent=False)
        self.update_count = 0

    @abstractmethod
    def _sums_of(self, given: Predictions, labels: Tensor) -> Tensor:
        """One batch's sums."""

    @abstractmethod
    def _value_of(self, sums: Tensor) -> Any:
        """The measure, from the sums over all samples."""

    def _batch_sums(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self._sums_of(predictions(logits, labels, self.probabilities), labels)

    @property
    def update_called(self) -> bool:
        """Whether there is anything to compute from."""
        return self.update_count > 0

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Take in a batch; logits: n × c (or n), labels: n."""
        self._add(self._batch_sums(logits, labels))

    def _add(self, sums: Tensor, updates: int = 1) -> None:
        self.sums += sums.to(self.sums.device)
        self.update_count += updates

    def compute(self) -> Any:
        """The measure over all batches so far, of all processes."""
        sums = sum_over_processes(self.sums) if self.sync_on_compute else self.sums
        if not bool(sums.any()):
            raise ValueError(f"{type(self).__name__} has seen no sample yet: call update(logits, labels) first")
        return self._value_of(sums)

    def forward(self, logits: Tensor, labels: Tensor) -> Any:
        """Take in a batch and return the measure of that batch alone, on this process alone."""
        sums = self._batch_sums(logits, labels)
        self._add(sums)
        return self._value_of(sums)

    def reset(self) -> None:
        """Forget all batches."""
        self.sums.zero_()
        self.update_count = 0

    def merge_state(self, other: StreamingMetric) -> None:
        """Take in everything that `other`, of the same kind and settings, has seen."""
        if type(other) is not type(self) or other._settings() != self._settings():
            raise ValueError(f"cannot merge {other!r} into {self!r}: they must be of one kind with the same settings")
        self._add(other.sums, other.update_count)

    def _settings(self) -> dict[str, Any]:
        names = ("bins", "equal_mass", "num_classes", "probabilities")
        return {name: getattr(self, name) for name in names if hasattr(self, name)}

    def extra_repr(self) -> str:
        """Shown by `print(metric)`."""
        return ", ".join(f"{name}={value}" for name, value in self._settings().items())

    @property
    def metric_state(self) -> dict[str, Tensor]:
        """The sums, under their name."""
        return {"sums": self.sums}

    @property
    def device(self) -> torch.device:
        """Where the sums are."""
        return self.sums.device

    def clone(self) -> StreamingMetric:
        """An independent copy."""
        return deepcopy(self)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> StreamingMetric:
        # Follow the model to its device but not to its precision: float16 cannot count past 2048.
        device = fn(torch.empty(0, device=self.sums.device)).device
        self.sums = self.sums.to("cpu" if device.type == "mps" else device)
        return self


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
        self,
        bins: int = binning.DEFAULT_BINS,
        *,
        equal_mass: bool = False,
        probabilities: bool = False,
        sync_on_compute: bool = True,
    ) -> None:
        cells = binning.validate_bins(bins) * (self.CELLS_PER_BIN if equal_mass else 1)
        super().__init__((cells, 3), probabilities, sync_on_compute)
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

    def __init__(
        self, bins: int = binning.DEFAULT_BINS, *, probabilities: bool = False, sync_on_compute: bool = True
    ) -> None:
        super().__init__((binning.validate_bins(bins), 3), probabilities, sync_on_compute)
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

    def __init__(
        self,
        num_classes: int,
        bins: int = binning.DEFAULT_BINS,
        *,
        probabilities: bool = False,
        sync_on_compute: bool = True,
    ) -> None:
        classes = validate_num_classes(num_classes)
        if classes is None:
            raise TypeError("ClasswiseCalibrationError needs num_classes, got None")
        super().__init__((classes, binning.validate_bins(bins), 3), probabilities, sync_on_compute)
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

    def __init__(self, *, probabilities: bool = False, sync_on_compute: bool = True) -> None:
        super().__init__((2,), probabilities, sync_on_compute)

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
