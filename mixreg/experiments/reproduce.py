"""Carrying out experiments: the sweep, then figures, tables, verdicts and the report from stored results.

A folder holds

    experiments.json    what was asked for in this folder so far
    results.sqlite      every finished run (results.json: the same as text, which is taken in if it is there)
    runs/               half-finished runs
    figures/            NAME.png and NAME.pdf
    claims.json         the verdicts
    report.html         all of it on one page
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixreg.evaluation.figures import save_figure
from mixreg.experiments import (
    approximation,
    confidence,
    expansions,
    imagenet_ood,
    label_smoothing,
    least_squares,
    ood,
    overview,
    regularizers,
    rescaling,
    terms,
    two_moons,
)
from mixreg.experiments.claims import Claim
from mixreg.experiments.experiment import SCALES, Experiment, changed
from mixreg.experiments.store import Store
from mixreg.experiments.summary import Chapter, write_report
from mixreg.experiments.sweep import Report, SweepError, Workers, sweep
from mixreg.files import waiting_for, write_json

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        overview,
        regularizers,
        approximation,
        terms,
        rescaling,
        ood,
        imagenet_ood,
        confidence,
        two_moons,
        least_squares,
        label_smoothing,
        expansions,
    )
}
PLAN = "experiments.json"


@dataclass(frozen=True)
class Reproduction:
    """What a folder holds after a command: verdicts, files for a person to look at, and what had to be left out."""

    claims: list[Claim]
    figures: list[Path]
    report: Path
    skipped: dict[str, list[str]]


def chosen(names: Sequence[str], scale: str) -> list[Experiment]:
    """The experiments of these names, all if there are none."""
    for name in names:
        if name not in EXPERIMENTS:
            raise ValueError(f"unknown experiment {name!r}; known are {', '.join(EXPERIMENTS)}")
    if scale not in SCALES:
        raise ValueError(f"unknown scale {scale!r}; known are {', '.join(SCALES)}")
    return [EXPERIMENTS[name] for name in dict.fromkeys(names or EXPERIMENTS)]


def reproduce(
    names: Sequence[str],
    scale: str,
    out: Path,
    workers: Workers,
    report: Report,
    changes: Mapping[str, Any] | None = None,
) -> Reproduction:
    """Carry out what is missing, then draw and judge everything that was asked for in the folder `out`.

    Args:
        names: of experiments, all if empty; those that were not named are left out if something is missing for them.
        scale: smoke, laptop or paper.
        out: the folder.
        workers: who does the runs.
        report: is told how far it is.
        changes: sizes other than the scale's.
    """
    changes = changes or {}
    experiments = chosen(names, scale)
    sizes = {e.name: changed(e.sizes(scale), changes) for e in experiments}
    for size in changes:
        if not any(size in e.sizes(scale) for e in experiments):
            known = sorted({name for e in experiments for name in e.sizes(scale)})
            raise ValueError(f"none of the experiments has a size {size!r}; they have {', '.join(known)}")
    lacking = {e.name: e.missing(sizes[e.name]) for e in experiments}
    if names and any(lacking.values()):
        raise ValueError("; ".join(dict.fromkeys(reason for reasons in lacking.values() for reason in reasons)))
    store = open_store(out)
    _note(out, scale, changes, sizes, {e.name for e in experiments if lacking[e.name]})
    runs = [run for e in experiments if not lacking[e.name] for run in e.runs(sizes[e.name])]
    try:
        sweep(runs, store, out / "runs", workers, report)
    except SweepError as error:
        # What did finish is worth looking at.
        draw(out)
        raise SweepError(f"{error} ({out / 'report.html'} shows what is there)") from error
    return draw(out)


def _note(out: Path, scale: str, changes: Mapping[str, Any], sizes: Mapping[str, Any], left_out: set[str]) -> None:
    """Add what was asked for to the folder's plan; what cannot be carried out does not push out what was."""
    with waiting_for(out / f".{PLAN}.lock"):
        plan = read_plan(out)
        for name, found in sizes.items():
            if name not in left_out or name not in plan:
                plan[name] = {"scale": scale, "changes": dict(changes), "sizes": found}
        write_json(out / PLAN, plan)


def open_store(out: Path) -> Store:
    """The results of a folder, with those that were kept as text."""
    store = Store(out / "results.sqlite")
    if (out / "results.json").exists():
        store.read_json(out / "results.json")
    return store


def read_plan(out: Path) -> dict[str, Any]:
    """What was asked for in this folder so far, by experiment."""
    path = out / PLAN
    if not path.exists():
        return {}
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(plan, dict) or any(set(entry) != {"scale", "changes", "sizes"} for entry in plan.values()):
            raise ValueError("every entry has scale, changes and sizes")
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{path} does not say what to reproduce: {error}") from error
    return {name: plan[name] for name in EXPERIMENTS if name in plan}


def draw(out: Path) -> Reproduction:
    """Figures, tables, verdicts and the report of a folder, from stored results alone."""
    plan = read_plan(out)
    if not plan:
        raise ValueError(f"{out} holds no results; name experiments to carry out")
    store = open_store(out)
    chapters = [_chapter(EXPERIMENTS[name], entry, store, out / "figures") for name, entry in plan.items()]
    store.write_json(out / "results.json")
    verdicts = [
        {"experiment": c.experiment.name, "scale": c.entry["scale"], "sizes": c.entry["sizes"], **claim.to_json()}
        for c in chapters
        for claim in c.claims
    ]
    write_json(out / "claims.json", {"claims": verdicts})
    write_report(out / "report.html", chapters)
    return Reproduction(
        [claim for chapter in chapters for claim in chapter.claims],
        [path for chapter in chapters for path in chapter.figures],
        out / "report.html",
        {chapter.experiment.name: chapter.lacking for chapter in chapters if chapter.lacking},
    )


def _chapter(experiment: Experiment, entry: dict[str, Any], store: Store, folder: Path) -> Chapter:
    """What there is to say of an experiment: all of it, or why there is nothing."""
    sizes = entry["sizes"]
    try:
        wanted = experiment.runs(sizes)
        results = store.get(wanted)
        absent = sum(run.key not in results for run in wanted)
        lacking = [] if not absent else experiment.missing(sizes)
        if absent and not lacking:
            lacking = [f"{absent} of {len(wanted)} runs are not finished"]
        if not lacking:
            figure = experiment.figure(results, sizes)
            table, claims = experiment.table(results, sizes), experiment.claims(results, sizes)
            made_with = " ".join(figure.get_suptitle().split())
            paths = save_figure(figure, folder, experiment.name)
            return Chapter(experiment, entry, paths, made_with, table, claims, store.records(wanted), [])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        # Sizes that make no sense must not hide the other experiments.
        lacking = [*experiment.missing(sizes), f"it cannot be drawn at these sizes ({type(error).__name__}: {error})"]
    unknown = Claim(experiment.title.rstrip("."), "; ".join(lacking), experiment.paper, ())
    return Chapter(experiment, entry, [], "", None, [unknown], [], lacking)
