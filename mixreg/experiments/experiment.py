"""What an experiment is: runs to carry out, a figure and a table to make from their results, and claims to judge.

The scale changes sizes only: `smoke` takes seconds and is part of the tests, `laptop` minutes, `paper` is the paper's.
Single sizes can be changed; whatever they are, they are printed on the figure. Nothing but stored results goes into
figures, tables and verdicts, so that all of them can be made again without training.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mixreg.data.arrays import cache_folder
from mixreg.data.registry import EMBEDDED, IMAGENET, RECIPES, imagenet_folder
from mixreg.experiments.claims import Claim
from mixreg.experiments.store import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCALES = ("smoke", "laptop", "paper")

Results = Mapping[str, dict[str, Any]]
Sizes = Mapping[str, Any]
# Told how much of a run is done, from 0 to 1.
Progress = Callable[[float], None]


@dataclass(frozen=True)
class Table:
    """Rows of text under column heads; the first column names the row."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = "mean ± 95 % interval over repetitions"


def _nothing_missing(sizes: Sizes) -> list[str]:
    return []


@dataclass(frozen=True)
class Experiment:
    """An experiment of the paper.

    Attributes:
        name: what to ask for.
        paper: where it is in the paper.
        title: one sentence.
        sizes: its sizes at a scale.
        runs: what to carry out at these sizes.
        figure: drawn from the results, by key of their run.
        table: the same as numbers, mean ± 95 % interval over repetitions.
        claims: verdicts from the same.
        missing: what must be there first, in words; nothing, as a rule.
    """

    name: str
    paper: str
    title: str
    sizes: Callable[[str], dict[str, Any]]
    runs: Callable[[Sizes], list[Run]]
    figure: Callable[[Results, Sizes], Figure]
    table: Callable[[Results, Sizes], Table]
    claims: Callable[[Results, Sizes], list[Claim]]
    missing: Callable[[Sizes], list[str]] = field(default=_nothing_missing)


def is_at_hand(name: str) -> bool:
    """Whether a dataset can be opened without fetching it."""
    if name == IMAGENET:
        return imagenet_folder().is_dir()
    return name in EMBEDDED or (name in RECIPES and (cache_folder() / f"{name}.safetensors").exists())


def missing_datasets(names: Sequence[str]) -> list[str]:
    """A sentence for each dataset that has to be fetched first."""
    wanted = [name for name in names if not is_at_hand(name)]
    return [
        "ImageNet is not here: put or link its folders train/ and val/ into imagenet/ in the data folder (MIXREG_DATA)"
        if name == IMAGENET
        else f"{name} is not here yet: run `mixreg data get {name}`"
        for name in wanted
    ]


def changed(sizes: Sizes, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes with those changes that they know, checked to be of the same kind."""
    result = dict(sizes)
    for name, value in changes.items():
        if name not in result:
            continue
        before = result[name]
        if isinstance(before, float) and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if isinstance(before, list) and not isinstance(value, list):
            value = [value]
        if type(before) is not type(value):
            raise ValueError(f"{name} is like {json.dumps(before)}, got {json.dumps(value)}")
        result[name] = value
    return result


def rounded(content: Any) -> Any:
    """JSON with six significant digits: enough for every figure, and small in a file."""
    if isinstance(content, dict):
        return {key: rounded(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [rounded(value) for value in content]
    return float(f"{content:.6g}") if isinstance(content, float) else content
