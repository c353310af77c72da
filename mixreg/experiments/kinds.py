"""Kinds of runs: functions from JSON settings and a folder to a JSON result, which tell how far they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mixreg.experiments import (
    expansions,
    imagenet_ood,
    label_smoothing,
    least_squares,
    overview,
    regularised,
    two_moons,
)
from mixreg.experiments.experiment import Progress
from mixreg.experiments.trained import trained_network

Kind = Callable[[dict[str, Any], Path, Progress], dict[str, Any]]

KINDS: dict[str, Kind] = {
    "expansions": expansions.measure,
    "imagenet": imagenet_ood.measure,
    "label-smoothing": label_smoothing.measure,
    "least-squares": least_squares.measure,
    "overview": overview.measure,
    "regularised": regularised.measure_network,
    "steps": regularised.measure_steps,
    "training": trained_network,
    "two-moons": two_moons.measure,
}
