"""ECE over 50,000 × 1,000 logits in batches: mixreg beside torchmetrics, with a plain memory copy as the floor.

    python benchmarks/calibration.py

Without torchmetrics its stated algorithm (keep all confidences, bucketize at the end) is written out in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import torch
from timing import medians, show
from torch import Tensor

from mixreg import calibration

SAMPLES, CLASSES, BINS, BATCH = 50_000, 1000, 15, 1000


def torchmetrics_ece() -> tuple[str, Callable[[list[tuple[Tensor, Tensor]]], Tensor]]:
    """A `MulticlassCalibrationError`, or what it does."""
    if find_spec("torchmetrics") is not None:
        from torchmetrics.classification import MulticlassCalibrationError

        def theirs(batches: list[tuple[Tensor, Tensor]]) -> Tensor:
            metric = MulticlassCalibrationError(num_classes=CLASSES, n_bins=BINS)
            for logits, labels in batches:
                metric.update(logits, labels)
            value: Tensor = metric.compute()
            return value

        return "torchmetrics", theirs

    def stated(batches: list[tuple[Tensor, Tensor]]) -> Tensor:
        kept = []
        for logits, labels in batches:
            confidence, predicted = logits.softmax(1).max(1)
            kept.append(torch.stack([confidence, (predicted == labels).float()]))
        confidence, hit = torch.cat(kept, 1)
        place = torch.bucketize(confidence, torch.linspace(0, 1, BINS + 1)) - 1
        sums = torch.zeros(2, BINS).index_add_(1, place, torch.stack([confidence, hit]))
        return (sums[0] - sums[1]).abs().sum() / len(confidence)

    return "torchmetrics' algorithm", stated


def ours(batches: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The streaming class."""
    metric = calibration.ExpectedCalibrationError(BINS)
    for logits, labels in batches:
        metric.update(logits, labels)
    value: Tensor = metric.compute()
    return value


def main() -> None:
    """Print the table and the size of the state."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(SAMPLES, CLASSES, generator=generator)
    labels = torch.multinomial((logits / 1.5).softmax(1), 1, generator=generator).squeeze(1)
    batches = list(zip(logits.split(BATCH), labels.split(BATCH), strict=True))
    buffer = torch.empty_like(logits)
    name, theirs = torchmetrics_ece()
    contestants: dict[str, Callable[[], object]] = {
        "copy into a buffer": lambda: buffer.copy_(logits),
        name: lambda: theirs(batches),
        "mixreg": lambda: ours(batches),
    }
    title = f"ECE over {SAMPLES:,} × {CLASSES:,} logits in batches of {BATCH:,}, {torch.get_num_threads()} threads"
    show(title, medians(contestants, rounds=7), ["copy into a buffer", name])
    state = calibration.ExpectedCalibrationError(BINS).sums.nbytes
    print(f"mixreg {ours(batches):.6f}, {name} {theirs(batches):.6f}; mixreg's state: {state} bytes")


if __name__ == "__main__":
    main()
