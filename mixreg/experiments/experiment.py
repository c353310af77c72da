"""What an experiment is: runs to carry out, a figure to draw from their results, and claims to judge.

The scale changes sizes only: `smoke` takes seconds and is part of the tests, `laptop` minutes, `paper` is the paper's.
Nothing but stored results goes into a figure or a verdict, so that both can be made again without training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mixreg.experiments.claims import Claim
from mixreg.experiments.store import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCALES = ("smoke", "laptop", "paper")

Results = Mapping[str, dict[str, Any]]


@dataclass(frozen=True)
class Experiment:
    """An experiment of the paper.

    Attributes:
        name: what to ask for.
        paper: where it is in the paper.
        title: one sentence.
        runs: what to carry out at a scale.
        figure: drawn from the results, by key of their run, at a scale.
        claims: verdicts from the same.
    """

    name: str
    paper: str
    title: str
    runs: Callable[[str], list[Run]]
    figure: Callable[[Results, str], Figure]
    claims: Callable[[Results, str], list[Claim]]
