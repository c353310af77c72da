"""Carrying out experiments: the sweep, then figures and verdicts from stored results.

A folder holds results.sqlite, runs (the half-finished ones), figures, and claims.json with the verdicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mixreg.evaluation.figures import save_figure
from mixreg.experiments import two_moons
from mixreg.experiments.claims import Claim
from mixreg.experiments.experiment import SCALES, Experiment
from mixreg.experiments.store import Store
from mixreg.experiments.sweep import Report, sweep
from mixreg.files import write_json

EXPERIMENTS: dict[str, Experiment] = {e.name: e for e in (two_moons.EXPERIMENT,)}


def chosen(names: Sequence[str], scale: str) -> list[Experiment]:
    """The experiments of these names, all if there are none."""
    for name in names:
        if name not in EXPERIMENTS:
            raise ValueError(f"unknown experiment {name!r}; known are {', '.join(EXPERIMENTS)}")
    if scale not in SCALES:
        raise ValueError(f"unknown scale {scale!r}; known are {', '.join(SCALES)}")
    return [EXPERIMENTS[name] for name in dict.fromkeys(names or EXPERIMENTS)]


def reproduce(
    names: Sequence[str], scale: str, out: Path, workers: int, report: Report, ray_address: str | None = None
) -> tuple[list[Claim], list[Path]]:
    """Carry out what is missing, draw, judge: the claims and the figures' paths."""
    experiments = chosen(names, scale)
    store = Store(out / "results.sqlite")
    runs = [run for experiment in experiments for run in experiment.runs(scale)]
    sweep(runs, store, out / "runs", workers, report, ray_address)
    results = store.get(runs)
    paths, claims = [], []
    for experiment in experiments:
        paths += save_figure(experiment.figure(results, scale), out / "figures", experiment.name)
        claims += experiment.claims(results, scale)
    write_json(out / "claims.json", {"scale": scale, "claims": [claim.to_json() for claim in claims]})
    return claims, paths
