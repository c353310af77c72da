"""What an experiment is: runs to carry out, a figure and a table to make from their results, and claims to judge.

Nothing but stored results goes into figures, tables and verdicts, so that all of them can be made again without
training. Whatever the sizes are, they are printed on the figure: its caption is made of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixreg.experiments.claims import Claim
from mixreg.experiments.results import Results
from mixreg.experiments.sizes import Sizes
from mixreg.experiments.store import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# All that an experiment is made of, but for its claims' tests.
__all__ = ["Claim", "Experiment", "Kind", "Progress", "Results", "Run", "Sizes", "Table", "rounded"]

# Told how much of a run is done, from 0 to 1.
Progress = Callable[[float], None]
# Carries out a run: from its settings, all JSON, and a folder of its own to its result, JSON too.
Kind = Callable[[dict[str, Any], Path, Progress], dict[str, Any]]


@dataclass(frozen=True)
class Table:
    """Rows of text under column heads; the first column names the row. A note says what a reader might stumble over."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = "mean ± 95 % interval over repetitions"
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a row of a table has {len(row)} cells, under {len(self.columns)} heads")


def _nothing_missing(sizes: Sizes) -> list[str]:
    return []


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """An experiment.

    Attributes:
        name: what to ask for; names its figure too.
        paper: where it is in the paper.
        title: one sentence.
        sizes_at: its sizes at a scale.
        kinds: the functions that carry out its runs, by kind; at the top of a module, where other processes find them.
        runs: what to carry out at these sizes.
        caption: what the figure says of how it was made.
        figure: drawn from results, without its caption.
        table: the same as numbers, mean ± 95 % interval over repetitions.
        claims: verdicts from the same.
        missing: what stands in the way at these sizes, in sentences; nothing, as a rule.
        unlike: how it differs from what the paper measured, whatever its sizes; nothing, as a rule.
        paper_sizes: sizes of the paper that its scale has only where data is at hand.
        aside: sizes of its runs that nothing in its figure, table and claims depends on.
        earlier: sizes that plans of earlier versions do not name, as these versions had them.
        corrections: names of claims as the paper prints them, each with the name of the claim that holds instead.
    """

    name: str
    paper: str
    title: str
    sizes_at: Callable[[str], dict[str, Any]]
    kinds: Mapping[str, Kind]
    runs: Callable[[Sizes], list[Run]]
    caption: Callable[[Sizes], str]
    figure: Callable[[Results, Sizes], Figure]
    table: Callable[[Results, Sizes], Table]
    claims: Callable[[Results, Sizes], list[Claim]]
    missing: Callable[[Sizes], list[str]] = _nothing_missing
    unlike: str = ""
    paper_sizes: Mapping[str, Any] = field(default_factory=dict)
    aside: Sequence[str] = ()
    earlier: Mapping[str, Any] = field(default_factory=dict)
    corrections: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", self.name):
            raise ValueError(f"an experiment's name is lower-case words with hyphens, got {self.name!r}")


def rounded(content: Any) -> Any:
    """JSON with six significant digits: enough for every figure, and small in a file."""
    if isinstance(content, dict):
        return {key: rounded(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [rounded(value) for value in content]
    return float(f"{content:.6g}") if isinstance(content, float) else content
