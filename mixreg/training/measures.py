"""The measures of the paper's tables, over batches and processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from mixreg.calibration import Accuracy, BrierScore, ExpectedCalibrationError, NegativeLogLikelihood
from mixreg.calibration.streaming import StreamingMetric


class Measures:
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


def measure(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """The measures of logits (n × c) at hand."""
    measures = Measures()
    measures.update(logits, labels)
    return measures.compute()


def predict(
    models: dict[str, nn.Module],
    batches: Iterable[tuple[Tensor, Tensor]],
    take: Callable[[str, Tensor, Tensor], None],
    device: torch.device | str = "cpu",
) -> None:
    """Hand the logits of every model for every batch to `take(name, logits, labels)`; modes are left as they were."""
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
    models: dict[str, nn.Module], batches: Iterable[tuple[Tensor, Tensor]], device: torch.device | str = "cpu"
) -> dict[str, dict[str, float]]:
    """The measures of every model over batches of (x, y), of all processes."""
    measures = {name: Measures() for name in models}
    predict(models, batches, lambda name, logits, labels: measures[name].update(logits, labels), device)
    return {name: found.compute() for name, found in measures.items()}
