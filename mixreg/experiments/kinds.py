"""Kinds of runs: functions from JSON settings and a folder to a JSON result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from mixreg.experiments import moons

Kind = Callable[[dict[str, Any], Path], dict[str, Any]]


def two_moons(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """All repetitions of one method on two moons.

    Settings:
        method, repetitions, and any field of `moons.Setting`.
    """
    chosen = {key: value for key, value in settings.items() if key not in ("method", "repetitions")}
    setting = moons.Setting(**chosen)
    problems = moons.draw_problems(list(range(settings["repetitions"])), setting, torch.float32)
    curves = moons.train(settings["method"], problems, setting)
    return {
        "steps": curves.steps,
        "measures": {
            name: {measure: _rounded(values) for measure, values in found.items()}
            for name, found in curves.measures.items()
        },
        "confidence": {name: _rounded(torch.sigmoid(logits.abs())) for name, logits in curves.test_logits.items()},
    }


def _rounded(values: torch.Tensor) -> Any:
    """Nested lists with six digits: enough for every figure, and small in a file."""
    return [[round(value, 6) for value in row] for row in values.double().tolist()]


KINDS: dict[str, Kind] = {"two-moons": two_moons}
