"""The terms of Theorem 3 of a run of `mixreg train`: on some of its training samples, as the network sees them.

R1 and R3 apart need covariances of the training set, which are taken where inputs have few coordinates; R1 + R3 does
not, and is there always.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from mixreg.theory.moments import DataMoments
from mixreg.training.array_batches import ArrayBatches
from mixreg.training.batches import Batches
from mixreg.training.config import Config
from mixreg.training.loop import Trainer
from mixreg.training.observer import Observer
from mixreg.training.targets import Targets
from mixreg.training.terms_monitor import TermsMonitor

# Of the probe set, and up to how many coordinates covariances are taken.
SAMPLES, _COORDINATES = 1000, 1024
_AT_ONCE = 4096


def monitor_of(
    batches: Batches, targets: Targets, config: Config, samples: int = SAMPLES, tangents: int | str | None = 8
) -> TermsMonitor:
    """A monitor on the first training samples of a run, with its α."""
    found, count = [], 0
    for batch in batches.epoch(0, 0):
        found.append((batch.x, batch.y))
        count += len(batch.y)
        if count >= samples:
            break
    x, y = (torch.cat(part)[:samples] for part in zip(*found, strict=True))
    return TermsMonitor(x, y, config.alpha, _moments(batches, x, y), targets.loss, tangents=tangents, seed=config.seed)


def _moments(batches: Batches, x: torch.Tensor, y: torch.Tensor) -> DataMoments:
    """Of the training set where it is in memory, else of the probe set."""
    if not isinstance(batches, ArrayBatches):
        found = DataMoments(batches.num_classes)
        found.update(x, y)
        return found
    if x[0].numel() > _COORDINATES or batches.is_augmented:
        return batches.moments()
    classes = batches.num_classes if not y.is_floating_point() else None
    found = DataMoments(classes, covariance=True)
    for part, labels in zip(batches.x.split(_AT_ONCE), batches.y.split(_AT_ONCE), strict=True):
        found.update(batches.scaled(part), labels)
    return found


def finite(record: dict[str, float]) -> dict[str, float]:
    """What a file can hold of it."""
    return {name: value for name, value in record.items() if math.isfinite(value)}


class WatchedTerms(Observer):
    """Measures them after every `every` epochs and after the last, under "terms" in an epoch's record."""

    def __init__(self, every: int, samples: int = SAMPLES) -> None:
        if every < 1:
            raise ValueError(f"terms are measured every so many epochs, at least 1, got {every}")
        self.every, self.samples = every, samples
        self._monitor: TermsMonitor | None = None

    def measure(self, trainer: Trainer, epoch: int) -> dict[str, Any]:
        """After an epoch."""
        if epoch % self.every and epoch != trainer.config.epochs:
            return {}
        if self._monitor is None:
            self._monitor = monitor_of(trainer.batches, trainer.batches.targets, trainer.config, self.samples)
        return {"terms": finite(self._monitor.measure(trainer.net))}
