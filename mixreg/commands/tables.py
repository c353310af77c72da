"""Measures as a person reads them: in percent where they are fractions, and as wide as the terminal is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from mixreg.commands.terminal import printable, shown

_GAP = 2
# More columns than this are numbers.
_FEW = 4

_HEADINGS = {
    "accuracy": "acc. %",
    "cross_entropy": "loss",
    "ece": "ECE %",
    "brier": "Brier",
    "aurc": "AURC %",
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R²",
    "anchor_accuracy": "anchors %",
    "pm_accuracy": "pm-10 %",
    "mean_error": "error %",
    "mce": "mCE %",
}
_PERCENT = {"accuracy", "ece", "aurc", "mean_error", "mce", "anchor_accuracy", "pm_accuracy"}


def _cells(row: dict[str, Any], names: list[str]) -> list[str]:
    return [f"{100 * row[name]:.2f}" if name in _PERCENT else f"{row[name]:.4f}" for name in names]


def _temperature(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"{min(value):.2f}–{max(value):.2f}"
    return f"{value:.3f}"


def print_columns(heads: Sequence[str], rows: Sequence[Sequence[str]], title: str = "", numbers: bool = False) -> None:
    """A table as wide as the terminal; columns that do not fit follow below, beside the first column again.

    Args:
        heads: of the columns; the first column names the rows.
        rows: text.
        title: above it.
        numbers: whether columns after the first stand at the right.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table

    console = Console()
    widths = [max(cell_len(printable(row[i])) for row in (heads, *rows)) + _GAP for i in range(len(heads))]
    # Where columns are sentences they share the width; where they are numbers, whole ones go below.
    is_prose = len(heads) <= _FEW and max(widths) > console.width // 2
    groups = [list(range(1, len(heads)))] if is_prose else _fitting(widths, console.width)
    if title:
        console.print(shown(title))
    for columns in groups:
        table = Table(box=None, pad_edge=False)
        table.add_column(shown(heads[0]), overflow="fold")
        for column in columns:
            table.add_column(shown(heads[column]), justify="right" if numbers else "left", overflow="fold")
        for row in rows:
            table.add_row(shown(row[0]), *(shown(row[column]) for column in columns))
        console.print(table)


def _fitting(widths: Sequence[int], width: int) -> list[list[int]]:
    """The columns after the first, in groups of which each fits beside it.

    >>> _fitting([10, 30, 30, 30, 90], 80)
    [[1, 2], [3], [4]]
    """
    groups: list[list[int]] = [[]]
    for column in range(1, len(widths)):
        taken = widths[0] + sum(widths[one] for one in groups[-1]) + widths[column] - _GAP
        if groups[-1] and taken > width:
            groups.append([])
        groups[-1].append(column)
    return groups


def print_table(rows: list[dict[str, Any]], caption: str) -> None:
    """The table of a trained network."""
    names = [name for name in _HEADINGS if name in rows[0]]
    told = []
    for row in rows:
        strength = "" if row["strength"] is None else f"{row['strength']:.2f}"
        told.append([row["model"], strength, _temperature(row["temperature"]), *_cells(row, names)])
    print_columns(["", "κ", "T", *(_HEADINGS[name] for name in names)], told, caption, numbers=True)


def print_shifted(result: dict[str, Any]) -> None:
    """The tables of one shifted set."""
    names = [name for name in _HEADINGS if name in result["mean"][0]]
    rows = [[row["model"], *_cells(row, names)] for row in result["mean"]]
    title = f"{result['set']}, means over its parts"
    print_columns(["", *(_HEADINGS[name] for name in names)], rows, title, numbers=True)
    if "mean_error" in names:
        click.echo(f"error %: over {result['corruptions']} of the benchmark's 15 corruptions")
    if "by_severity" in result:
        for name in ("accuracy", "cross_entropy", "ece"):
            rows = []
            for row in result["mean"]:
                found = (part for part in result["by_severity"] if part["model"] == row["model"])
                rows.append([row["model"], *(_cells(part, [name])[0] for part in found)])
            heads = [f"{_HEADINGS[name]} by severity", *map(str, range(1, 6))]
            print_columns(heads, rows, numbers=True)
