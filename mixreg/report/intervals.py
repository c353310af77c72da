"""Mean and 95 % interval over repetitions, as the paper reports its results.

    mean ± t_{0.975, n−1} · s / √n

with the sample standard deviation s: Student's interval, which holds for few repetitions.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Interval(NamedTuple):
    """A mean and the half-width of its 95 % interval (NaN for a single repetition); – in print if there is none."""

    mean: float
    half_width: float

    def __format__(self, spec: str) -> str:
        if math.isnan(self.mean):
            return "–"
        if math.isnan(self.half_width):
            return format(self.mean, spec)
        # A sign belongs to the mean only.
        return f"{self.mean:{spec}} ± {self.half_width:{spec.removeprefix('+')}}"


def interval(values: Sequence[float]) -> Interval:
    """The mean of independent repetitions and its 95 % interval.

    >>> f"{interval([1.0, 2.0, 3.0]):.2f}"
    '2.00 ± 2.48'
    """
    from scipy.stats import t

    n = len(values)
    if n == 0:
        raise ValueError("an interval needs at least one value")
    if n == 1:
        return Interval(float(values[0]), math.nan)
    error = np.std(values, ddof=1) / math.sqrt(n)
    return Interval(float(np.mean(values)), float(t.ppf(0.975, n - 1) * error))


class Cell(str):
    """An interval as text, which still knows the values that it is of."""

    values: tuple[float, ...]


def cell(values: Sequence[float], spec: str) -> Cell:
    """The interval of repetitions as a cell of a table.

    >>> found = cell([1.0, 2.0, 3.0], ".2f")
    >>> found, found.values
    ('2.00 ± 2.48', (1.0, 2.0, 3.0))
    """
    text = Cell(format(interval(values), spec))
    text.values = tuple(float(value) for value in values)
    return text


def csv_text(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table for programs: of every mean also half of its interval, and the values it is of.

    >>> print(csv_text(["method", "loss"], [["ERM", cell([1.0, 2.0, 3.0], ".2f")]]), end="")
    method,loss,loss ± 95 %,"loss, runs"
    ERM,2,2.484137712,1 2 3
    """
    with_runs = [any(isinstance(row[place], Cell) for row in rows) for place in range(len(columns))]
    lines: list[list[str]] = [[]]
    for name, is_mean in zip(columns, with_runs, strict=True):
        lines[0] += [name, f"{name} ± 95 %", f"{name}, runs"] if is_mean else [name]
    for row in rows:
        line: list[str] = []
        for content, is_mean in zip(row, with_runs, strict=True):
            if isinstance(content, Cell):
                mean, half = interval(content.values)
                runs = " ".join(f"{value:.10g}" for value in content.values)
                line += [f"{mean:.10g}", "" if math.isnan(half) else f"{half:.10g}", runs]
            else:
                line += [content, "", ""] if is_mean else [content]
        lines.append(line)
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows(lines)
    return written.getvalue()
