"""Carrying out experiments: the sweep, then figures, tables, verdicts and the report from stored results.

A folder holds

    experiments.json    what was asked for in this folder so far
    results.sqlite      every finished run (results.json: the same as text, which is taken in if it is there)
    runs/               half-finished runs
    models/             networks that were kept, NAME.safetensors, each with a card NAME.json
    figures/            NAME.png, NAME.pdf and NAME.svg
    claims.json         the verdicts
    report.html         all of it on one page

The paper's experiments are known by their names. Code of one's own is only ever imported because somebody named it, not
because a folder does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mixreg._support.extras import require_package
from mixreg._support.files import locked, write_json
from mixreg._support.near_misses import meant, unknown
from mixreg.evaluation.figures import save_figure
from mixreg.experiments.cards import write_cards
from mixreg.experiments.claims import Claim
from mixreg.experiments.experiment import Experiment, Table
from mixreg.experiments.registry import EXPERIMENTS, find_experiments, is_own, kinds_of
from mixreg.experiments.report_page import write_report
from mixreg.experiments.results import Results
from mixreg.experiments.sizes import JUDGED_SCALES, SCALES, SizesError, changed, check_sizes
from mixreg.experiments.store import Store
from mixreg.experiments.summary import CORRECTED, Chapter
from mixreg.experiments.sweep import OnProgress, SweepError, Workers, sweep
from mixreg.report.curves import put_caption

PLAN = "experiments.json"


@dataclass(frozen=True)
class Reproduction:
    """What a folder holds after a command.

    Attributes:
        claims: with their verdicts.
        tables: the numbers behind them, by experiment as it was asked for.
        scales: what differs from the paper, by experiment.
        figures: their files.
        report: the page.
        skipped: experiments that were not asked for, or for which something is not at hand: why.
        undrawn: experiments that should be in the report and are not: why.
    """

    claims: list[Claim]
    tables: dict[str, Table]
    scales: dict[str, str]
    figures: list[Path]
    report: Path
    skipped: dict[str, list[str]]
    undrawn: dict[str, list[str]]


def reproduce(
    references: Sequence[str],
    scale: str,
    out: Path,
    workers: Workers,
    on_progress: OnProgress,
    changes: Mapping[str, Any] | None = None,
) -> Reproduction:
    """Carry out what is missing, then draw and judge everything that was asked for in the folder `out`.

    Args:
        references: of experiments, names or `package.module:NAME`; all of the paper's if empty, but for those that
            something is missing for.
        scale: smoke, laptop or paper.
        out: the folder.
        workers: who does the runs.
        on_progress: is told how far it is.
        changes: sizes other than the scale's.
    """
    for module in ("matplotlib", "sklearn"):
        require_package(module, "reproducing the paper")
    changes = changes or {}
    experiments = find_experiments(references or list(EXPERIMENTS))
    sizes = _sizes(experiments, scale, changes)
    lacking = {reference: e.missing(sizes[reference]) for reference, e in experiments.items()}
    if references and any(lacking.values()):
        raise ValueError("; ".join(dict.fromkeys(reason for reasons in lacking.values() for reason in reasons)))
    # Sizes that make no sense are found before anything is written.
    runs = [run for reference, e in experiments.items() if not lacking[reference] for run in e.runs(sizes[reference])]
    own = [reference for reference in experiments if is_own(reference)]
    _planned(out, own)
    store = open_store(out)
    _note(out, scale, changes, sizes, {reference for reference in experiments if lacking[reference]})
    kinds = kinds_of([*EXPERIMENTS.values(), *experiments.values()])
    try:
        sweep(runs, store, out / "runs", kinds, workers, on_progress)
    except SweepError as error:
        # What did finish is shown.
        draw(out, own)
        raise SweepError(f"{error} ({out / 'report.html'} shows what is there)") from error
    found, asked = draw(out, own), {experiment.name for experiment in experiments.values()}
    # What another command began in this folder may not be finished.
    others = {name: reasons for name, reasons in found.undrawn.items() if name not in asked}
    mine = {name: reasons for name, reasons in found.undrawn.items() if name in asked}
    return replace(found, skipped=found.skipped | others, undrawn=mine)


def _sizes(experiments: Mapping[str, Experiment], scale: str, changes: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The sizes of all experiments at a scale, with these changes."""
    if scale not in SCALES:
        raise ValueError(unknown("scale", scale, SCALES))
    before = {reference: experiment.sizes_at(scale) for reference, experiment in experiments.items()}
    known = {name for sizes in before.values() for name in sizes}
    for name in changes:
        if name not in known:
            listed = ", ".join(sorted(known))
            raise ValueError(f"none of the experiments has a size {name!r}; they have {listed}{meant(name, known)}")
    return {reference: changed(sizes, changes) for reference, sizes in before.items()}


def _note(out: Path, scale: str, changes: Mapping[str, Any], sizes: Mapping[str, Any], left_out: set[str]) -> None:
    """Add what was asked for to the folder's plan; what cannot be carried out does not push out what was."""
    with locked(out / f".{PLAN}.lock"):
        plan = read_plan(out)
        for reference, found in sizes.items():
            if reference not in left_out or reference not in plan:
                plan[reference] = {"scale": scale, "changes": dict(changes), "sizes": found}
        # What another version knows of stays.
        write_json(out / PLAN, plan | {name: entry for name, entry in _entries(out).items() if name not in plan})


def open_store(out: Path) -> Store:
    """The results of a folder, with those that were kept as text."""
    store = Store(out / "results.sqlite")
    if (out / "results.json").exists():
        store.read_json(out / "results.json")
    return store


def read_plan(out: Path) -> dict[str, Any]:
    """What was asked for in this folder so far: the paper's experiments in their order, then one's own."""
    plan = _entries(out)
    known = [*EXPERIMENTS, *(reference for reference in plan if is_own(reference))]
    return {reference: plan[reference] for reference in known if reference in plan}


def _entries(out: Path) -> dict[str, Any]:
    """All that the plan of a folder holds."""
    path = out / PLAN
    if not path.exists():
        return {}
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(plan, dict) or not all(_is_entry(entry) for entry in plan.values()):
            raise ValueError(f"every entry has scale ({', '.join(SCALES)}), changes and sizes")
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} does not say what to reproduce: {error}") from error
    return plan


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or set(entry) != {"scale", "changes", "sizes"} or entry["scale"] not in SCALES:
        return False
    return isinstance(entry["changes"], dict) and isinstance(entry["sizes"], dict)


def _planned(out: Path, own: Sequence[str]) -> dict[str, Any]:
    """The plan of a folder, if all of one's own experiments in it are among those that were named."""
    plan = read_plan(out)
    for reference in plan:
        if is_own(reference) and reference not in own:
            raise ValueError(f"{out} holds {reference}, which is code of your own: name it on the command line too")
    return plan


def draw(out: Path, own: Sequence[str] = ()) -> Reproduction:
    """Figures, tables, verdicts and the report of a folder, from stored results alone.

    Args:
        out: the folder.
        own: one's own experiments among those that it holds, as `package.module:NAME`.
    """
    plan = _planned(out, own)
    for reference in own:
        if reference not in plan:
            raise ValueError(f"{out} holds no results of {reference}")
    if not plan:
        raise ValueError(f"{out} holds no results; name experiments to carry out")
    store, experiments = open_store(out), find_experiments(list(plan))
    chapters = [
        _chapter(reference, experiment, plan[reference], store, out / "figures")
        for reference, experiment in experiments.items()
    ]
    store.write_json(out / "results.json")
    write_cards(out / "models", store.records())
    verdicts = [
        {"experiment": c.experiment.name, "scale": c.entry["scale"], "sizes": c.entry["sizes"], **claim.to_json()}
        | ({"corrected_by": c.experiment.corrections[claim.name]} if c.standing(claim) == CORRECTED else {})
        for c in chapters
        for claim in c.claims
    ]
    drawn = {c.experiment.name: c for c in chapters if not c.lacking}
    scales = {name: {"paper": c.experiment.paper, "against_paper": c.scale} for name, c in drawn.items()}
    told = {"claims": verdicts, "experiments": scales}
    write_json(out / "claims.json", told)
    write_report(out / "report.html", chapters, told)
    return Reproduction(
        [claim for chapter in chapters for claim in chapter.claims],
        {chapter.reference: chapter.table for chapter in chapters if chapter.table is not None},
        {name: chapter.scale for name, chapter in drawn.items()},
        [path for chapter in chapters for path in chapter.figures],
        out / "report.html",
        {c.experiment.name: c.lacking for c in chapters if c.lacking and c.is_skipped},
        {c.experiment.name: c.lacking for c in chapters if c.lacking and not c.is_skipped},
    )


def _chapter(reference: str, experiment: Experiment, entry: dict[str, Any], store: Store, folder: Path) -> Chapter:
    """What there is to say of an experiment: all of it, or why there is nothing."""
    sizes = {**experiment.earlier, **entry["sizes"]}
    try:
        check_sizes(sizes, experiment.sizes_at(entry["scale"]))
        wanted = experiment.runs(sizes)
    except SizesError as error:
        # Whatever else goes wrong is a mistake in the experiment and must be seen.
        return _empty_chapter(reference, experiment, entry, [f"its sizes make no sense: {error}"])
    found = store.get(wanted)
    absent = sum(run.key not in found for run in wanted)
    if absent:
        unfinished = f"{absent} of {len(wanted)} runs are not finished"
        missing = experiment.missing(sizes)
        is_skipped = bool(missing) and not found
        return _empty_chapter(reference, experiment, entry, missing or [unfinished], is_skipped)
    results = Results((run, found[run.key]) for run in wanted)
    figure, caption = experiment.figure(results, sizes), experiment.caption(sizes)
    put_caption(figure, caption)
    is_judged = entry["scale"] in JUDGED_SCALES
    claims = [replace(claim, is_judged=is_judged) for claim in experiment.claims(results, sizes)]
    table = experiment.table(results, sizes)
    paths = save_figure(figure, folder, experiment.name)
    return Chapter(reference, experiment, entry, paths, caption, table, claims, store.records(wanted), [])


def _empty_chapter(
    reference: str, experiment: Experiment, entry: dict[str, Any], lacking: list[str], is_skipped: bool = False
) -> Chapter:
    unknown = Claim(experiment.title.rstrip("."), "; ".join(lacking), experiment.paper, ())
    return Chapter(reference, experiment, entry, [], "", None, [unknown], [], lacking, is_skipped)
