"""What an experiment is: runs to carry out, a figure and a table to make from their results, and claims to judge.

The scale changes sizes only: `smoke` takes seconds and is part of the tests, `laptop` minutes, `paper` is the paper's.
Single sizes can be changed; whatever they are, they are printed on the figure. Nothing but stored results goes into
figures, tables and verdicts, so that all of them can be made again without training.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
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
        missing: what stands in the way at these sizes, in sentences; nothing, as a rule.
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
        return (imagenet_folder() / "train").is_dir()
    if name in RECIPES:
        return (cache_folder() / f"{name}.safetensors").exists()
    return name in EMBEDDED or Path(name).exists()


def missing_for_training(names: Sequence[str]) -> list[str]:
    """What must be there before networks can be trained on these datasets, in sentences."""
    sentences = []
    if find_spec("lightning_fabric") is None:
        sentences.append("training needs Lightning Fabric: pip install 'mixreg[train]'")
    for name in names:
        if is_at_hand(name):
            continue
        if name == IMAGENET:
            place = "imagenet/ in the data folder (MIXREG_DATA)"
            sentences.append(f"ImageNet is not here: put or link its folders train/ and val/ into {place}")
        elif name in RECIPES:
            sentences.append(f"{name} is not here yet: run `mixreg data get {name}`")
        else:
            sentences.append(f"unknown dataset {name!r}; known are {', '.join([*EMBEDDED, *RECIPES, IMAGENET])}")
    return sentences


def changed(sizes: Sizes, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes with those changes that they know, checked to be of the same kind: counts from 1, numbers above 0."""
    result = dict(sizes)
    for name, value in changes.items():
        if name in result:
            result[name] = _like(result[name], value, name)
    return result


def _like(before: Any, value: Any, name: str) -> Any:
    """A value of the kind of the one before it."""
    if isinstance(before, list):
        given = value if isinstance(value, list) else [value]
        if not given:
            raise ValueError(f"{name} must hold at least one value")
        return [_like(before[0], part, name) if before else part for part in given]
    if isinstance(before, float) and type(value) is int:
        value = float(value)
    if type(before) is not type(value):
        raise ValueError(f"{name} is like {json.dumps(before)}, got {json.dumps(value)}")
    if isinstance(value, (int, float)) and not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be a number above 0, got {value}")
    return value


def rounded(content: Any) -> Any:
    """JSON with six significant digits: enough for every figure, and small in a file."""
    if isinstance(content, dict):
        return {key: rounded(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [rounded(value) for value in content]
    return float(f"{content:.6g}") if isinstance(content, float) else content
