"""Stored results as pages use them: the runs of an experiment with its sizes, and what is still missing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from mixreg.experiments.experiment import Experiment
from mixreg.experiments.registry import EXPERIMENTS
from mixreg.experiments.results import Results
from mixreg.experiments.store import Run

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
# Where runs are collected until all of an experiment are there.
EVIDENCE = RESULTS / "evidence"


@dataclass(frozen=True)
class Stored:
    """What a folder holds of an experiment.

    Attributes:
        experiment: which one.
        entry: scale, changes and sizes it was asked for with.
        results: of its finished runs.
        finished: how many those are.
        wanted: how many there are to be.
    """

    experiment: Experiment
    entry: dict[str, Any]
    results: Results
    finished: int
    wanted: int

    @property
    def sizes(self) -> dict[str, Any]:
        """All sizes, also those that an older version did not name."""
        return {**self.experiment.earlier, **self.entry["sizes"]}


def stored(name: str, folder: Path = RESULTS) -> Stored | None:
    """An experiment's runs in a folder; None where the folder was not asked for it."""
    plan, records = _folder(folder)
    if name not in plan:
        return None
    experiment, entry = EXPERIMENTS[name], plan[name]
    wanted = {run.key for run in experiment.runs({**experiment.earlier, **entry["sizes"]})}
    runs = [(Run(r["kind"], r["settings"]), r["result"]) for r in records if r["key"] in wanted]
    return Stored(experiment, entry, Results(runs), len(runs), len(wanted))


@lru_cache(maxsize=4)
def _folder(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The plan of a folder and its records."""
    plan, records = (
        json.loads((folder / name).read_text(encoding="utf-8")) for name in ("experiments.json", "results.json")
    )
    return plan, records
