"""Metrics of torchmetrics in a training step that sees mixed labels: they count against the label of the larger part.

A step that was written for class indices does `self.accuracy(logits, y)` with whatever y its batch holds. When that is
the mixed label, n × c, torchmetrics refuses it. What was the label before it was mixed is the label of the larger part
(a mixed sample is named by it), and is what a metric of classes can count: a network that is right of every mixture's
larger part has an accuracy of 1. (Of the soft labels themselves `mixreg.calibration.mixed_accuracy` counts both parts,
each as much as its share.)

Only metrics of classification are given labels, and only where they are given the very tensor that was mixed; whatever
else takes soft labels, a loss or a divergence, gets them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

from torch import Tensor, nn

from mixreg._support.structure import leaves
from mixreg.losses.targets import is_class_index


def metrics_of_classes(module: nn.Module) -> list[nn.Module]:
    """The metrics of classification among a module's submodules."""
    return [part for part in module.modules() if any(_is_of_classes(kind) for kind in type(part).__mro__)]


def _is_of_classes(kind: type) -> bool:
    return kind.__module__.startswith("torchmetrics.classification.") or (
        kind.__module__ == "mixreg.adapters.torchmetrics" and kind.__name__ == "CalibrationMetric"
    )


@contextmanager
def given_labels(metrics: Sequence[nn.Module], mixed: Any, labels: Any) -> Iterator[None]:
    """Inside, metrics that are updated with a mixed target get the label that it was.

    Args:
        metrics: from `metrics_of_classes`.
        mixed: one target, or a tree of them, as the step is given them.
        labels: before they were mixed, in the same structure.
    """
    pairs = [
        (new, old)
        for (_, new), (_, old) in zip(leaves(mixed), leaves(labels), strict=True)
        if is_class_index(old) and new.is_floating_point()
    ]
    before = [(metric, metric.__dict__.get("update")) for metric in metrics] if pairs else []
    for metric, _ in before:
        update: Any = metric.update
        metric.__dict__["update"] = _translated(update, pairs)
    try:
        yield
    finally:
        for metric, own in before:
            if own is None:
                del metric.__dict__["update"]
            else:
                metric.__dict__["update"] = own


def _translated(update: Callable[..., None], pairs: Sequence[tuple[Tensor, Tensor]]) -> Callable[..., None]:
    def label(value: Any) -> Any:
        return next((_label(new, old) for new, old in pairs if value is new), value)

    @wraps(update)
    def updated(*args: Any, **kwargs: Any) -> None:
        update(*map(label, args), **{name: label(value) for name, value in kwargs.items()})

    return updated


def _label(mixed: Tensor, label: Tensor) -> Tensor:
    """Of dense targets, n × …, CutMix cuts each pixel from one image: its label is the larger part of the soft one.

    Where some are ignored, their soft labels are all 0 and have no larger part: they stay as they are.
    """
    if label.ndim == 1:
        return label
    return mixed.argmax(1) if bool((mixed.sum(1) > 0).all()) else mixed
