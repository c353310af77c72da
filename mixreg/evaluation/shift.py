"""Trained networks on shifted data: measures by part and severity, mean corruption error, pm-k accuracy."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from mixreg.calibration.selective import area_under_risk_coverage
from mixreg.data.corruptions import BENCHMARK
from mixreg.data.shifted import Part, ShiftedSet
from mixreg.evaluation.table import outputs_on
from mixreg.training.held_out_fit import HeldOutFit
from mixreg.training.measures import measure
from mixreg.training.trained import Trained

# AlexNet's mean error over severities on ImageNet-C, by which published mean corruption errors are normalised
# (Hendrycks and Dietterich, 2019).
ALEXNET_ERROR = dict(
    zip(
        BENCHMARK,
        (
            0.886428,
            0.894468,
            0.922640,
            0.819880,
            0.826268,
            0.785948,
            0.798360,
            0.866816,
            0.826572,
            0.819324,
            0.564592,
            0.853204,
            0.646056,
            0.717840,
            0.606500,
        ),
        strict=True,
    )
)
_MEASURES = ("accuracy", "cross_entropy", "ece", "brier", "aurc")


def merged(logits: Tensor, members: list[list[int]] | None) -> Tensor:
    """Log-probabilities, up to a constant, of classes that consist of several outputs: n × k from n × c.

    A class without members has probability 0.
    """
    if members is None:
        return logits
    if max(index for group in members for index in group) >= logits.shape[1]:
        raise ValueError(f"this set is for networks with ImageNet's 1,000 classes, the network has {logits.shape[1]}")
    columns = [
        torch.logsumexp(logits[:, group], 1) if group else logits.new_full((len(logits),), -math.inf)
        for group in members
    ]
    return torch.stack(columns, 1)


def hits(logits: Tensor, labels: Tensor, allowed: list[list[int]] | None) -> Tensor:
    """Whether each prediction is right: n booleans."""
    predicted = logits.argmax(1)
    if allowed is None:
        return predicted == labels
    return torch.tensor([int(p) in classes for p, classes in zip(predicted, allowed, strict=True)])


def pm_k_accuracy(right: Tensor, neighbourhoods: Sequence[Sequence[int]]) -> tuple[float, float]:
    """The accuracy on anchors, and the fraction of them that are right together with all their neighbours."""
    anchors = [bool(right[frames[0]]) for frames in neighbourhoods]
    groups = [bool(right[list(frames)].all()) for frames in neighbourhoods]
    return sum(anchors) / len(anchors), sum(groups) / len(groups)


def mean_corruption_error(errors: dict[str, float], baseline: dict[str, float]) -> float:
    """The mean over corruptions of a network's error divided by a baseline's; NaN if the baseline never errs."""
    shared = [name for name in errors if baseline.get(name, 0) > 0]
    return sum(errors[name] / baseline[name] for name in shared) / len(shared) if shared else math.nan


def checked_batches(part: Part, shifted: ShiftedSet, trained: Trained) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of a part, if the network can take its images and knows its labels."""
    for x, y in part.batches():
        if tuple(x.shape[1:]) != trained.shape:
            raise ValueError(f"{part.name}: images are {tuple(x.shape[1:])}, the network takes {trained.shape}")
        if shifted.members is None and int(y.max()) >= trained.num_classes:
            raise ValueError(f"{part.name}: label {int(y.max())} of a network with {trained.num_classes} classes")
        yield x, y


def evaluate_part(
    trained: Trained, part: Part, shifted: ShiftedSet, fit: HeldOutFit | None, device: str
) -> Iterator[dict[str, Any]]:
    """A row of measures for every point of the table (`mixreg.evaluation.table`)."""
    pixels = trained.pixels
    if pixels is None:
        raise ValueError("shifted sets are of images; this network takes features")
    batches = ((pixels.scaled(x), y) for x, y in checked_batches(part, shifted, trained))
    found = outputs_on(trained, batches, fit, device)
    for name, _, logits in found.rows():
        row = _row(merged(logits, shifted.members), found.y, shifted)
        yield {"model": name, "part": part.name, "severity": part.severity} | row


def _row(logits: Tensor, labels: Tensor, shifted: ShiftedSet) -> dict[str, float]:
    right = hits(logits, labels, shifted.allowed)
    # Frames of classes that ImageNet does not have cannot be right, and have no finite cross-entropy.
    possible = torch.isfinite(logits.gather(1, labels[:, None])[:, 0])
    kept, known = logits[possible][:, torch.isfinite(logits[0])], _renumbered(labels[possible], logits[0])
    row = measure(kept, known) | {"aurc": float(area_under_risk_coverage(kept, known))}
    row["accuracy"] = float(right.double().mean())
    if shifted.neighbourhoods is not None:
        row["anchor_accuracy"], row["pm_accuracy"] = pm_k_accuracy(right, shifted.neighbourhoods)
    return row


def _renumbered(labels: Tensor, logits: Tensor) -> Tensor:
    """Labels among the classes that have members."""
    return (torch.isfinite(logits).cumsum(0) - 1)[labels]


def evaluate_shifted(
    trained: Trained,
    shifted: ShiftedSet,
    fit: HeldOutFit | None = None,
    device: str = "cpu",
    report: Callable[[str], None] = lambda name: None,
) -> list[dict[str, Any]]:
    """All rows of all parts; `report` is told about each part."""
    rows = []
    for part in shifted.parts():
        report(f"{part.name} {part.severity or ''}".strip())
        rows += list(evaluate_part(trained, part, shifted, fit, device))
    return rows


def summary(rows: list[dict[str, Any]], by: str = "model") -> list[dict[str, Any]]:
    """Means over parts, for every model (and severity, if `by` is "severity")."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[(row["model"], row["severity"]) if by == "severity" else (row["model"],)].append(row)
    result = []
    for key, members in groups.items():
        names = [name for name in (*_MEASURES, "anchor_accuracy", "pm_accuracy") if name in members[0]]
        means = {name: sum(row[name] for row in members) / len(members) for name in names}
        result.append({"model": key[0]} | ({"severity": key[1]} if by == "severity" else {}) | means)
    return result


def corruption_errors(rows: list[dict[str, Any]], model: str) -> dict[str, float]:
    """The mean error over severities of each corruption of the benchmark's 15."""
    errors: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row["model"] == model and row["part"] in BENCHMARK:
            errors[row["part"]].append(1 - row["accuracy"])
    return {name: sum(values) / len(values) for name, values in errors.items()}
