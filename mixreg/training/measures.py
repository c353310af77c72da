"""The measures of trained networks by task, over batches and processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Protocol

import torch
from torch import Tensor, nn

from mixreg._support.processes import sum_over_processes, world_size
from mixreg._support.tasks import CLASSES, LABELS, NUMBERS
from mixreg.calibration import Accuracy, BrierScore, ExpectedCalibrationError, NegativeLogLikelihood
from mixreg.calibration.multilabel import MultilabelScores
from mixreg.calibration.streaming import StreamingMetric
from mixreg.training.targets import Targets

# What early stopping looks at.
MAIN_MEASURE = {CLASSES: "cross_entropy", LABELS: "cross_entropy", NUMBERS: "rmse"}


class Measures(Protocol):
    """Measures of a stream of outputs."""

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Take in a batch."""

    def compute(self) -> dict[str, float]:
        """The measures over all batches of all processes."""


class ClassMeasures:
    """Accuracy, cross-entropy, ECE (15 bins) and Brier score of a stream of logits."""

    def __init__(self) -> None:
        self.metrics: dict[str, StreamingMetric] = {
            "accuracy": Accuracy(),
            "cross_entropy": NegativeLogLikelihood(),
            "ece": ExpectedCalibrationError(),
            "brier": BrierScore(),
        }

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Take in a batch; logits: n × c, labels: n."""
        for metric in self.metrics.values():
            metric.update(logits, labels)

    def compute(self) -> dict[str, float]:
        """The measures over all batches of all processes."""
        return {name: float(metric.compute()) for name, metric in self.metrics.items()}


class NumberMeasures:
    """Root mean squared and mean absolute error over samples and outputs, and the mean of the outputs' R².

    Args:
        outputs: how many numbers a sample has.
    """

    def __init__(self, outputs: int) -> None:
        # By output: samples, Σ (y − o), Σ (y − o)², Σ (u − y)², Σ |u − y|, with o the first sample seen, for digits.
        self.sums = torch.zeros(5, outputs, dtype=torch.float64)
        self.origin: Tensor | None = None

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Take in a batch, n × c each."""
        y, error = targets.double(), outputs.double() - targets.double()
        if self.origin is None:
            # The same in all processes.
            self.origin = torch.zeros_like(y[0]) if world_size() > 1 else y[0]
        y = y - self.origin
        parts = (torch.ones_like(y), y, y.square(), error.square(), error.abs())
        self.sums += torch.stack([part.sum(0) for part in parts])

    def compute(self) -> dict[str, float]:
        """The measures over all batches of all processes; R² is NaN where a target does not vary."""
        count, total, squares, errors, absolute = sum_over_processes(self.sums)
        spread = squares - total.square() / count.clamp(min=1)
        r2 = torch.where(spread > 1e-12 * squares, 1 - errors / spread, math.nan)
        n = float(count.sum())
        return {
            "rmse": math.sqrt(float(errors.sum()) / n),
            "mae": float(absolute.sum()) / n,
            "r2": float(r2.mean()),
        }


def new_measures(targets: Targets) -> Measures:
    """Empty measures of a task."""
    if targets.task == CLASSES:
        return ClassMeasures()
    return MultilabelScores(targets.width) if targets.task == LABELS else NumberMeasures(targets.width)


def measure(outputs: Tensor, y: Tensor, targets: Targets | None = None) -> dict[str, float]:
    """The measures of outputs (n × c) at hand; numbers in their own units, all other outputs as logits."""
    targets = targets or Targets(CLASSES, outputs.shape[1])
    measures = new_measures(targets)
    measures.update(targets.restored(outputs), targets.restored(y))
    return measures.compute()


def training_hits(outputs: Tensor, targets: Tensor, task: str) -> tuple[float, int]:
    """How many of a batch's samples (or labels) are right, of how many."""
    if task == CLASSES:
        return float((outputs.argmax(1) == targets).sum()), len(targets)
    if task == LABELS:
        return float(((outputs > 0) == (targets == 1)).sum()), targets.numel()
    return 0.0, 0


def predict(
    models: dict[str, nn.Module],
    batches: Iterable[tuple[Tensor, Tensor]],
    take: Callable[[str, Tensor, Tensor], None],
    device: torch.device | str = "cpu",
) -> None:
    """Hand what every model makes of every batch to `take(name, outputs, targets)`; modes are left as they were."""
    modes = {name: model.training for name, model in models.items()}
    try:
        for model in models.values():
            model.eval()
        with torch.no_grad():
            for x, y in batches:
                for name, model in models.items():
                    weight = next(model.parameters(), x)
                    take(name, model(x.to(device, weight.dtype)).float().cpu(), y)
    finally:
        for name, model in models.items():
            model.train(modes[name])


def measure_models(
    models: dict[str, nn.Module],
    batches: Iterable[tuple[Tensor, Tensor]],
    device: torch.device | str = "cpu",
    targets: Targets | None = None,
) -> dict[str, dict[str, float]]:
    """The measures of every model over batches of (x, y), of all processes; by default of classes."""
    kind = targets or Targets()
    measures = {name: new_measures(kind) for name in models}

    def take(name: str, outputs: Tensor, y: Tensor) -> None:
        measures[name].update(kind.restored(outputs), kind.restored(y))

    predict(models, batches, take, device)
    return {name: found.compute() for name, found in measures.items()}
