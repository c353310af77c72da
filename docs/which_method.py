"""Which method when: Table 1's stored measurements as a matrix, and read by wish.

A cell is a mean with its 95 % interval over repetitions, and a sign where the paired difference from ERM has an
interval without 0: ▲ better, ▼ worse. Nothing is corrected for the number of cells; the verdicts are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stored import stored

from mixreg.experiments.experiment import Sizes
from mixreg.experiments.regulariser_runs import METHODS, WITHOUT_RULE, Measured, noise_name, noises
from mixreg.experiments.verdict_table import markdown_table
from mixreg.report.intervals import interval

_BETTER, _WORSE = "▲", "▼"


@dataclass(frozen=True)
class Wish:
    """A column of the matrix.

    Attributes:
        name: what somebody wants.
        head: what was measured.
        values: over repetitions, by method; those that cannot have it are left out.
        factor: 100 for per cent.
        digits: after the point.
        more_is_better: the direction.
    """

    name: str
    head: str
    values: dict[str, list[float]]
    factor: float = 1.0
    digits: int = 1
    more_is_better: bool = False

    def against(self, method: str, other: Sequence[float]) -> str:
        """▲ or ▼ where a method differs from another beyond its interval, pair by pair; nothing otherwise."""
        sign = 1 if self.more_is_better else -1
        mean, half = interval([sign * (a - b) for a, b in zip(self.values[method], other, strict=True)])
        if abs(mean) <= half or math.isnan(half):
            return ""
        return _BETTER if mean > 0 else _WORSE

    def cell(self, method: str, erm: Sequence[float]) -> str:
        if method not in self.values:
            return "–"
        shown = f"{interval([self.factor * value for value in self.values[method]]):.{self.digits}f}"
        return f"{shown} {self.against(method, erm)}".rstrip()

    def best(self) -> str:
        means = {method: interval(values).mean for method, values in self.values.items()}
        return max(means, key=lambda m: means[m]) if self.more_is_better else min(means, key=lambda m: means[m])


def wishes(measured: Measured, sizes: Sizes) -> list[Wish]:
    """What the stored runs can say something about."""

    def accuracy(noise: str) -> dict[str, list[float]]:
        return {method: measured.test(method, "plain", "accuracy", noise) for method in METHODS}

    plain = {method: measured.test(method, "plain", "ece") for method in METHODS}
    rescaled = {m: measured.test(m, "rescaled", "ece") for m in METHODS if m not in WITHOUT_RULE}
    rescaled = {method: values for method, values in rescaled.items() if values != plain[method]}
    noise = [
        Wish(_wish_for(n), f"accuracy %, {noise_name(n)}", accuracy(n), 100, more_is_better=True) for n in noises(sizes)
    ]
    return [
        *noise,
        Wish("probabilities to be trusted, network as it is", "ECE %, plain", plain, 100),
        Wish("probabilities to be trusted, with the rule", "ECE %, rescaled", rescaled, 100),
        Wish("a smooth network", "Jacobian", {m: measured.derivative(m, "jacobian") for m in METHODS}),
        Wish("inputs may be shifted", "% lost, shifted", {m: measured.lost(m, "plain", "+") for m in METHODS}, 100),
        Wish("inputs may be scaled", "% lost, scaled", {m: measured.lost(m, "plain", "×") for m in METHODS}, 100),
        Wish("cheap steps", "cost of a step", {m: measured.cost(m) for m in METHODS}, 1, 2),
    ]


def _wish_for(noise: str) -> str:
    return "accuracy, labels clean" if noise == "0" else f"accuracy, labels with {noise_name(noise)}"


def _wishes() -> list[Wish]:
    found = stored("regularizers")
    assert found is not None, "results/ holds no runs of Table 1"
    return wishes(Measured(found.results, found.sizes), found.sizes)


def matrix() -> str:
    """A row per method, a column per wish; ERM, which all are compared with, first."""
    columns = _wishes()
    erm = {wish.head: _of_erm(wish, columns) for wish in columns}
    rows = [
        [f"**{title}**", *(wish.cell(method, erm[wish.head]) for wish in columns)]
        for method, (title, _) in METHODS.items()
    ]
    return markdown_table(["method", *(wish.head for wish in columns)], rows)


def _of_erm(wish: Wish, columns: Sequence[Wish]) -> list[float]:
    """ERM's values; a rescaled network is compared with ERM as it is."""
    (plain,) = (column for column in columns if column.head == "ECE %, plain")
    return wish.values.get("erm", plain.values["erm"])


def by_wish() -> str:
    """A row per wish: the best, what cannot be told from it, and what is worse than doing nothing."""
    columns, rows = _wishes(), []
    for wish in columns:
        best = wish.best()
        near = [m for m in wish.values if m != best and not wish.against(m, wish.values[best])]
        worse = [m for m in wish.values if wish.against(m, _of_erm(wish, columns)) == _WORSE]
        rows.append([wish.name, f"**{_titles([best])}**", _titles(near), _titles(worse)])
    heads = ["you want", "best mean", "not to be told from it", "worse than ERM"]
    return markdown_table(heads, rows)


def _titles(methods: Sequence[str]) -> str:
    return "; ".join(METHODS[method][0] for method in methods) or "–"


def caption() -> str:
    """How it was measured."""
    found = stored("regularizers")
    assert found is not None, "results/ holds no runs of Table 1"
    return found.experiment.caption(found.sizes)
