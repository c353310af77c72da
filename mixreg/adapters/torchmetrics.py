"""The calibration measures as `torchmetrics.Metric`s: in a `MetricCollection`, in Lightning's `self.log`.

    self.ece = CalibrationMetric(ExpectedCalibrationError(bins=15))
    self.log("val_ece", self.ece)

Values are those of `mixreg.calibration`; what torchmetrics adds is its own: the value of one batch when called, sums
over processes, resetting between epochs.

Needs torchmetrics: `pip install 'mixreg[torchmetrics]'`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mixreg.calibration import Reliability
from mixreg.calibration.streaming import StreamingMetric

try:
    from torchmetrics import Metric
except ImportError as error:
    raise ImportError("CalibrationMetric needs torchmetrics: pip install 'mixreg[torchmetrics]'") from error


class CalibrationMetric(Metric):
    """A streaming measure as a torchmetrics metric.

    Its sums stay float64 when a model is cast to another precision: float16 cannot count past 2048. Only `set_dtype`
    changes it.

    Args:
        measure: which measure, with its settings. It is not changed, nor do the samples count that it has seen.
        settings: of every torchmetrics metric: `sync_on_compute`, `dist_sync_on_step`, `process_group`, ….

    >>> from mixreg.calibration import Accuracy
    >>> metric = CalibrationMetric(Accuracy())
    >>> metric(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
    tensor(0.5000, dtype=torch.float64)
    """

    is_differentiable = False
    full_state_update = False

    def __init__(self, measure: StreamingMetric, **settings: Any) -> None:
        if not isinstance(measure, StreamingMetric):
            raise TypeError(f"measure must be one of mixreg.calibration's streaming measures, got {measure!r}")
        super().__init__(**settings)
        self.measure = measure
        # A collection lets metrics share their state, and `merge_state` adds it up, if it has the same name and shape
        # (in a collection: and happens to be equal after one batch). So the name says which measure, and how set.
        self._state = "sums_of_" + re.sub(r"\W+", "_", repr(measure)).strip("_")
        self.add_state(self._state, torch.zeros(measure.sums.shape, dtype=torch.float64), dist_reduce_fx="sum")

    @property
    def higher_is_better(self) -> bool | None:  # type: ignore[override]
        """As the measure says."""
        return self.measure.higher_is_better

    @property
    def sums(self) -> Tensor:
        """The sums over the samples so far."""
        return getattr(self, self._state)

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Take in a batch; preds: logits (or probabilities, if the measure is set so), n × c or n; target: n labels."""
        # Not in place: sums that torchmetrics reset in inference mode cannot be changed outside it.
        setattr(self, self._state, self.sums + self.measure.batch_sums(preds, target).to(self.sums))

    def compute(self) -> Any:
        """The measure over all batches so far, of all processes; a `Reliability` as a dict of its tensors."""
        value = self.measure.value(self.sums)
        # torchmetrics copies a value tensor by tensor, which a frozen dataclass does not allow.
        return vars(value) if isinstance(value, Reliability) else value

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Take in everything that another metric of the same measure and settings has seen."""
        super().merge_state(incoming_state)
        # torchmetrics would go on returning what was computed before.
        self._computed = None

    def extra_repr(self) -> str:
        """Shown by `print(metric)`."""
        return repr(self.measure)

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> nn.Module:
        def moved(tensor: Tensor) -> Tensor:
            device = fn(torch.empty(0, device=tensor.device)).device
            # Apple's GPUs have no float64.
            return tensor.to("cpu" if device.type == "mps" else device)

        # torchmetrics keeps the precision in `.half()`, but not in `.to(torch.float16)`, which Lightning calls.
        return super()._apply(fn if self._dtype_convert else moved, exclude_state)
