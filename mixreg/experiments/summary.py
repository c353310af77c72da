"""The report of a folder: verdicts first, then a chapter per experiment with figure, table, claims and provenance."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixreg._support.files import write_bytes
from mixreg.experiments.against_paper import against_paper
from mixreg.experiments.claims import Claim, Comparison
from mixreg.experiments.experiment import Experiment, Table
from mixreg.experiments.registry import is_own
from mixreg.experiments.verdict_table import measured
from mixreg.experiments.verdicts import (
    CONTRADICTED,
    NOT_JUDGED,
    SUPPORTED,
    UNDECIDED,
    Verdict,
    marked,
    part_words,
)
from mixreg.report import page

_VERSIONS = ("mixreg", "python", "torch", "numpy", "scikit-learn")
_KINDS = {SUPPORTED: "good", CONTRADICTED: "bad", UNDECIDED: "open", NOT_JUDGED: "faint"}


@dataclass(frozen=True)
class Chapter:
    """What the report says of one experiment.

    Attributes:
        reference: what it is asked for as: its name, or `package.module:NAME`.
        experiment: which one.
        entry: scale, changes and sizes it was carried out with.
        figures: its files, PNG first; none if it could not be carried out.
        caption: of the figure.
        table, claims: its numbers and verdicts.
        records: its runs with their provenance.
        lacking: why it could not be carried out.
        is_skipped: whether it was never begun, because something is not at hand.
    """

    reference: str
    experiment: Experiment
    entry: dict[str, Any]
    figures: list[Path]
    caption: str
    table: Table | None
    claims: list[Claim]
    records: list[dict[str, Any]]
    lacking: list[str]
    is_skipped: bool = False

    @property
    def scale(self) -> str:
        """What was run, by its differences from the paper."""
        if self.lacking:
            return "not carried out"
        return against_paper(self.experiment, self.sizes, not is_own(self.reference))

    @property
    def command(self) -> str:
        """The command that gives this chapter."""
        words = ["mixreg", "reproduce", self.reference, "--scale", self.entry["scale"]]
        changes = {name: value for name, value in self.entry["changes"].items() if name in self.entry["sizes"]}
        # What an older version did not name, this one has to be told.
        changes |= {name: value for name, value in self.sizes.items() if name not in self.entry["sizes"]}
        return shlex.join(words + [word for name in changes for word in ("--set", f"{name}={_shown(changes[name])}")])

    @property
    def sizes(self) -> dict[str, Any]:
        """All sizes, also those that an older version did not name."""
        return {**self.experiment.earlier, **self.entry["sizes"]}


def _shown(value: Any) -> str:
    """A size as the command line takes it."""
    return ",".join(str(part) for part in value) if isinstance(value, list) else str(value)


def difference(comparison: Comparison) -> str:
    """A mean difference with its interval, as it is printed."""
    digits = ".2e" if 0 < abs(comparison.difference) < 1e-3 else ".4f"
    half = "" if comparison.half_width is None else f" ± {comparison.half_width:{digits}}"
    return f"{comparison.difference:+{digits}}{half}"


def p_value(comparison: Comparison, verdict: Verdict) -> str:
    """A p-value after correction, as it is printed; or in how many repetitions a theorem holds."""
    if comparison.exceptions is not None:
        return f"holds in {comparison.repetitions - comparison.exceptions} of {comparison.repetitions}"
    return "" if verdict.corrected is None else f"{verdict.corrected:.1e}"


def part_row(comparison: Comparison, verdict: Verdict) -> list[str]:
    """A part of a claim, as tables show it: what was measured, the difference, p, and the verdict with its sign."""
    told = [measured(comparison.about, comparison.margin), difference(comparison), p_value(comparison, verdict)]
    return [*told, marked(verdict.name, part_words(verdict))]


def _verdict(name: str, words: str) -> page.Html:
    return page.verdict(marked(name, words), _KINDS[name])


def write_report(path: Path, chapters: Sequence[Chapter]) -> None:
    counts = Counter(claim.verdict for chapter in chapters for claim in chapter.claims)
    total = ", ".join(f"{counts[name]} {name}" for name in _KINDS if counts[name])
    lead = [
        page.element(
            "p",
            "Experiments of the paper ",
            page.element("cite", "On Mixup Regularization"),
            " (Carratino, Cissé, Jenatton and Vert, JMLR 2022), carried out with mixreg. Every number below comes "
            "from a run; every claim is tested over repetitions, pair by pair, and called what the tests say.",
        ),
        page.element("p", page.element("strong", f"Claims: {total or 'none'}.")),
    ]
    contents = [("verdicts", "All verdicts")] + [(c.experiment.name, c.experiment.name) for c in chapters]
    sections = [_verdicts(chapters), *(_chapter(chapter) for chapter in chapters)]
    write_bytes(path, page.page("mixreg: reproduction report", lead, contents, sections).encode())


def _verdicts(chapters: Sequence[Chapter]) -> page.Html:
    rows = [
        [
            page.link(f"#{chapter.experiment.name}", claim.name),
            page.text(claim.statement),
            page.text(claim.source),
            page.text(chapter.scale),
            _verdict(claim.verdict, claim.words),
        ]
        for chapter in chapters
        for claim in chapter.claims
    ]
    explained = (
        "A part of a claim is supported if its paired differences have the claimed sign beyond chance (two-sided "
        "t-test; for equality, both tests against the stated margin), contradicted if they have the other sign (lie "
        "outside the margin), and undecided otherwise, with the number of repetitions that would decide it at the "
        "measured mean and spread; p < 0.05, after Holm's correction for the number of parts. A theorem is "
        "contradicted by one repetition in which it does not hold. A claim is supported if every part is, contradicted "
        "if one is, and undecided otherwise. Nothing but theorems is judged at smoke scale."
    )
    heads = ["claim", "statement", "in the paper", "beside the paper", "verdict"]
    table = page.grid(heads, rows, "Claims of the paper and their verdicts")
    heading = page.element("h2", "All verdicts")
    return page.element("section", heading, page.element("p", explained), table, id="verdicts")


def _chapter(chapter: Chapter) -> page.Html:
    experiment = chapter.experiment
    parts: list[str] = [
        page.element("h2", f"{experiment.name} ", page.element("span", f"({experiment.paper})", class_="faint")),
        page.element("p", experiment.title),
    ]
    if chapter.lacking:
        parts.append(page.element("p", "Not carried out: ", "; ".join(chapter.lacking), "."))
    else:
        parts.append(page.element("p", f"Beside the paper: {chapter.scale}."))
    if chapter.figures:
        names = " and ".join(f"figures/{figure.name}" for figure in chapter.figures)
        caption = f"{chapter.caption}. Also as {names}."
        parts.append(page.picture(chapter.figures[0].read_bytes(), experiment.title, caption))
    if chapter.claims and not chapter.lacking:
        parts.append(_parts(chapter))
    if chapter.table is not None:
        table = chapter.table
        parts.append(page.grid(table.columns, table.rows, f"{experiment.name}: {table.caption}"))
        if table.note:
            parts.append(page.element("p", table.note))
    if chapter.records:
        parts.append(page.folded("Provenance", _provenance(chapter)))
    return page.element("section", *parts, id=experiment.name)


def _parts(chapter: Chapter) -> page.Html:
    """All claims of a chapter, part by part."""
    rows = []
    for claim in chapter.claims:
        for index, (part, verdict) in enumerate(zip(claim.parts, claim.verdicts, strict=True)):
            *told, words = part_row(part, verdict)
            shown = page.verdict(words, _KINDS[verdict.name])
            rows.append(["" if index else claim.name, *told, str(part.repetitions), shown])
    heads = ["claim", "measured", "mean difference ± 95 %", "p, corrected", "repetitions", "verdict"]
    return page.grid(heads, rows, f"{chapter.experiment.name}: claims part by part")


def _provenance(chapter: Chapter) -> page.Html:
    origins = [record["provenance"] for record in chapter.records]

    def all_of(key: str) -> str:
        """The values of a key, each once; runs of older versions know fewer."""
        return ", ".join(sorted({str(origin[key]) for origin in origins if key in origin}))

    seeds = sorted({str(s) for r in chapter.records if (s := _seed(r["settings"])) is not None}, key=int)
    finished = [time.strftime("%Y-%m-%d", time.gmtime(record["finished"])) for record in chapter.records]
    pairs = [
        ("Command", page.element("code", chapter.command)),
        ("Sizes", ", ".join(f"{key} = {value}" for key, value in chapter.sizes.items())),
        ("Runs", f"{len(origins)}, {sum(o['seconds'] for o in origins):,.0f} s (of the last attempt at each)"),
        ("Seeds", ", ".join(seeds) or "one per repetition, from 0 on"),
        ("Finished", f"{min(finished)} to {max(finished)}"),
        ("Versions", ", ".join(f"{name} {all_of(name)}" for name in _VERSIONS if all_of(name))),
        ("Commit", all_of("commit") or "not noted"),
        ("Machine", _machine(origins)),
    ]
    return page.definitions(pairs)


def _machine(origins: Sequence[dict[str, Any]]) -> str:
    """What the runs were carried out on: each machine once, with what is known of it."""
    found = set()
    for origin in origins:
        cores = f"{origin['cores']} cores" if "cores" in origin else "number of cores not noted"
        found.add(f"{origin['system']} {origin['machine']}, {cores}, threads per run: {origin['threads']}")
    return "; ".join(sorted(found))


def _seed(settings: dict[str, Any]) -> int | None:
    found: int | None = settings.get("seed", settings.get("config", {}).get("seed"))
    return found
