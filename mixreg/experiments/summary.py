"""What a report says of one experiment, and how measured differences are printed."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixreg.experiments.against_paper import against_paper
from mixreg.experiments.claims import Claim, Comparison
from mixreg.experiments.experiment import Experiment, Table
from mixreg.experiments.registry import is_own
from mixreg.experiments.verdict_table import measured
from mixreg.experiments.verdicts import CONTRADICTED, SUPPORTED, Verdict, marked, part_words

CORRECTED = "corrected"


@dataclass(frozen=True)
class Chapter:
    """What the report says of one experiment.

    Attributes:
        reference: what it is asked for as: its name, or `package.module:NAME`.
        experiment: which one.
        entry: scale, changes and sizes it was carried out with.
        figures: its files, SVG last; none if it could not be carried out.
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

    def standing(self, claim: Claim) -> str:
        """The verdict on a claim; "corrected" if it is contradicted, and what the experiment corrects it to holds."""
        correction = self.experiment.corrections.get(claim.name)
        holds = any(other.name == correction and other.verdict == SUPPORTED for other in self.claims)
        return CORRECTED if claim.verdict == CONTRADICTED and holds else claim.verdict

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
