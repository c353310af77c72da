"""The report of a folder: claims by verdict, a forest plot of all differences, then a chapter per experiment.

One file without anything from elsewhere: figures are drawn in it, and its numbers can be kept as JSON and CSV.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mixreg._support.files import write_bytes
from mixreg.experiments.claims import Claim
from mixreg.experiments.provenance_words import provenance_list
from mixreg.experiments.summary import CORRECTED, Chapter, difference, part_row
from mixreg.experiments.verdicts import CONTRADICTED, NOT_JUDGED, SUPPORTED, UNDECIDED, marked, part_words
from mixreg.report import page
from mixreg.report.forest import Row, forest
from mixreg.report.intervals import csv_text
from mixreg.report.vector import embedded

# The order of all lists, and the class of the page that each has.
_KINDS = {SUPPORTED: "good", CONTRADICTED: "bad", UNDECIDED: "open", CORRECTED: "mended", NOT_JUDGED: "faint"}
_EXPLAINED = (
    "A part of a claim is supported if its paired differences have the claimed sign beyond chance (two-sided t-test; "
    "for equality, both tests against the stated margin), contradicted if they have the other sign (lie outside the "
    "margin), and undecided otherwise, with the number of repetitions that would decide it at the measured mean and "
    "spread; p < 0.05, after Holm's correction for the number of parts. A theorem is contradicted by one repetition in "
    "which it does not hold. A claim is supported if every part is, contradicted if one is, and undecided otherwise. "
    "Corrected is what is contradicted as the paper prints it, while our correction of it is supported. Nothing but "
    "theorems is judged at smoke scale."
)
_FOREST = (
    "Every part that was tested: the mean of what must be positive (a difference; for equality, its distance from the "
    "margin) in standard deviations between repetitions, with the 95 % interval of the mean. To the right of 0 it is "
    "on the claimed side. Filled circles are supported, squares on edge contradicted, open circles undecided."
)


def write_report(path: Path, chapters: Sequence[Chapter], verdicts: Mapping[str, Any]) -> None:
    """Write the page; `verdicts` is what claims.json holds."""
    lead = [
        page.element(
            "p",
            "Experiments of the paper ",
            page.element("cite", "On Mixup Regularization"),
            " (Carratino, Cissé, Jenatton and Vert, JMLR 2022), carried out with mixreg. Every number below comes "
            "from a run; every claim is tested over repetitions, pair by pair, and called what the tests say.",
        ),
    ]
    contents = [("verdicts", "Verdicts"), ("differences", "Differences")]
    contents += [(chapter.experiment.name, chapter.experiment.name) for chapter in chapters]
    sections = [_verdicts(chapters, verdicts), _differences(chapters), *(_chapter(chapter) for chapter in chapters)]
    write_bytes(path, page.page("mixreg: reproduction report", lead, contents, sections).encode())


def _claims(chapters: Sequence[Chapter]) -> Iterator[tuple[Chapter, Claim, str]]:
    """All claims, with what stands of them."""
    for chapter in chapters:
        for claim in chapter.claims:
            yield chapter, claim, chapter.standing(claim)


def _verdict(claim: Claim, standing: str) -> page.Html:
    """A verdict in words; what is corrected says so besides."""
    told = page.verdict(marked(claim.verdict, claim.words), _KINDS[standing])
    return page.Html(f"{told} {page.verdict('(corrected)', _KINDS[CORRECTED])}") if standing == CORRECTED else told


def _verdicts(chapters: Sequence[Chapter], verdicts: Mapping[str, Any]) -> page.Html:
    found = list(_claims(chapters))
    counts = Counter(standing for _, _, standing in found)
    tiles = [
        page.element(
            "button",
            page.element("b", str(counts[name])),
            name,
            **{"class_": kind, "type": "button", "data_filter": name, "aria_pressed": "false"},
        )
        for name, kind in _KINDS.items()
        if counts[name]
    ]
    rows = [
        [
            page.link(f"#{chapter.experiment.name}", claim.name),
            _verdict(claim, standing),
            claim.statement,
            claim.source,
        ]
        for chapter, claim, standing in found
    ]
    heads = ["claim", "verdict", "statement", "in the paper"]
    kinds = [standing for _, _, standing in found]
    choices = {"paper": "as in the paper", "verdict": "by verdict", "name": "by name"}
    options = [page.element("option", name, value=value) for value, name in choices.items()]
    order = page.element("label", "Sorted ", page.element("select", *options, id="order"))
    hint = page.element("span", "Choose a verdict to see only its claims; again to see all.", class_="faint")
    kept = page.download("claims.json", "application/json", json.dumps(verdicts, ensure_ascii=False))
    return page.element(
        "section",
        page.element("h2", "Verdicts"),
        page.element("div", *tiles, class_="tiles", role="group", aria_label="Claims by verdict"),
        page.element("div", order, hint, class_="tools"),
        page.grid(heads, rows, "Claims and their verdicts", "claims", kinds),
        page.element("p", "What was run, and how it differs from the paper, stands in each chapter. ", kept),
        page.folded("What the verdicts mean", page.element("p", _EXPLAINED)),
        id="verdicts",
    )


def _differences(chapters: Sequence[Chapter]) -> page.Html:
    """A forest plot of every part that was tested."""
    rows = []
    for chapter, claim, standing in _claims(chapters):
        for part, verdict in zip(claim.parts, claim.verdicts, strict=True):
            if part.is_tested and not math.isnan(part.effect):
                name = CORRECTED if standing == CORRECTED and verdict.name == CONTRADICTED else verdict.name
                told = f"{difference(part)}, {part.effect:.2g} standard deviations, n = {part.repetitions}: "
                row = Row(
                    claim.name,
                    chapter.experiment.name,
                    part.about,
                    part.effect,
                    part.repetitions,
                    told + part_words(verdict),
                    _KINDS[name],
                    name,
                )
                rows.append(row)
    content = [page.element("p", _FOREST), forest(rows)] if rows else [page.element("p", "Nothing was tested.")]
    return page.element("section", page.element("h2", "Differences"), *content, id="differences")


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
        *others, last = [f"figures/{figure.name}" for figure in chapter.figures]
        svg = embedded(chapter.figures[-1].read_text(encoding="utf-8"), experiment.name, experiment.title)
        parts.append(page.drawing(svg, f"{chapter.caption}. Also as {', '.join(others)} and {last}."))
    if chapter.claims and not chapter.lacking:
        parts.append(_parts(chapter))
    if chapter.table is not None:
        table = chapter.table
        parts.append(page.grid(table.columns, table.rows, f"{experiment.name}: {table.caption}"))
        if table.note:
            parts.append(page.element("p", table.note))
        kept = page.download(f"{experiment.name}.csv", "text/csv;charset=utf-8", csv_text(table.columns, table.rows))
        parts.append(page.element("p", kept))
    if chapter.records:
        parts.append(page.folded("Provenance", provenance_list(chapter)))
    return page.element("section", *parts, id=experiment.name)


def _parts(chapter: Chapter) -> page.Html:
    """All claims of a chapter, part by part."""
    rows = []
    for claim in chapter.claims:
        for index, (part, verdict) in enumerate(zip(claim.parts, claim.verdicts, strict=True)):
            *told, words = part_row(part, verdict)
            shown = page.verdict(words, _KINDS[verdict.name])
            rows.append(["" if index else claim.name, shown, *told, str(part.repetitions)])
    heads = ["claim", "verdict", "measured", "mean difference ± 95 %", "p, corrected", "repetitions"]
    return page.grid(heads, rows, f"{chapter.experiment.name}: claims part by part", "parts")
