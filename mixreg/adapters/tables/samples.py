"""Distinct samples of a table, and its parts: what is trained on, what is held out, folds."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from sklearn.model_selection import KFold, StratifiedKFold, train_test_split

from mixreg._support.random import stream_seed
from mixreg.adapters.tables.columns import Columns, Inputs
from mixreg.adapters.tables.settings import DTYPES, Settings
from mixreg.adapters.tables.training import Data
from mixreg.losses import Loss


@dataclass(frozen=True)
class Table:
    """Distinct samples of a table.

    Attributes:
        columns: what its columns are; scales are learnt from what is trained on.
        rows: n × columns, an array or CSR.
        values: n × outputs, targets as values.
        weights: n.
        strata: n, by which parts are made alike; None for numbers.
        loss: of values and outputs.
        loss_name: what the fit of a rule calls it; None where there is no fit.
        in_units: makes what draws partners see targets as they were given; None where values are that.
    """

    columns: Columns
    rows: Any
    values: np.ndarray
    weights: np.ndarray
    strata: np.ndarray | None
    loss: Loss
    loss_name: str | None
    in_units: Callable[[Any], Any] | None = None

    def part(self, index: np.ndarray) -> Table:
        """Some of the samples."""
        strata = None if self.strata is None else self.strata[index]
        return replace(
            self, rows=self.rows[index], values=self.values[index], weights=self.weights[index], strata=strata
        )

    def learn_scales(self) -> Table:
        """The same, with scales of these samples."""
        columns = copy.copy(self.columns)
        columns.learn_scales(self.rows, self.weights)
        return replace(self, columns=columns)

    def data(self, settings: Settings) -> Data:
        """As tensors."""
        dtype = DTYPES[settings.dtype]
        targets = torch.from_numpy(self.values).to(settings.device, dtype)
        return Data(Inputs(self.columns, self.rows, dtype, settings.device), targets, self.weights)


def held_out_split(table: Table, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Which samples are trained on and which are held out, with classes as in the whole where there are enough."""
    n = len(table.weights)
    out = round(fraction * n)
    if not 0 < out < n:
        raise ValueError(
            f"validation_fraction={fraction} of {n} distinct samples leaves none to train or none to validate on"
        )
    strata = table.strata
    if strata is not None:
        counts = np.unique(strata, return_counts=True)[1]
        strata = strata if counts.min() > 1 and min(out, n - out) >= len(counts) else None
    kept, out_index = train_test_split(
        np.arange(n), test_size=out, stratify=strata, random_state=stream_seed(seed, "held out") % 2**32
    )
    return np.sort(kept), np.sort(out_index)


def folds(table: Table, count: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Samples to train on and to judge, `count` times."""
    n, state = len(table.weights), stream_seed(seed, "folds") % 2**32
    if n < count:
        raise ValueError(f"{count} folds need as many distinct samples, got {n}")
    if table.strata is not None and np.unique(table.strata, return_counts=True)[1].min() >= count:
        return StratifiedKFold(count, shuffle=True, random_state=state).split(np.zeros(n), table.strata)
    return KFold(count, shuffle=True, random_state=state).split(np.zeros(n))
