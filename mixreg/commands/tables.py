"""Measures as a person reads them: in percent where they are fractions, in 80 columns where they fit."""

from __future__ import annotations

from typing import Any

from mixreg.commands.terminal import shown

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


def print_table(rows: list[dict[str, Any]], caption: str) -> None:
    """The table of a trained network."""
    from rich.console import Console
    from rich.table import Table

    names = [name for name in _HEADINGS if name in rows[0]]
    table = Table(title=shown(caption), box=None, pad_edge=False)
    table.add_column("")
    for heading in ("κ", "T", *(_HEADINGS[name] for name in names)):
        table.add_column(heading, justify="right")
    for row in rows:
        strength = "" if row["strength"] is None else f"{row['strength']:.2f}"
        table.add_row(row["model"], strength, _temperature(row["temperature"]), *_cells(row, names))
    Console().print(table)


def print_shifted(result: dict[str, Any]) -> None:
    """The tables of one shifted set."""
    from rich.console import Console
    from rich.table import Table

    names = [name for name in _HEADINGS if name in result["mean"][0]]
    table = Table("", title=shown(f"{result['set']}, means over its parts"), box=None, pad_edge=False)
    for name in names:
        table.add_column(_HEADINGS[name], justify="right")
    for row in result["mean"]:
        table.add_row(row["model"], *_cells(row, names))
    console = Console()
    console.print(table)
    if "mean_error" in names:
        console.print(f"error %: over {result['corruptions']} of the benchmark's 15 corruptions")
    if "by_severity" in result:
        table = Table("", title="accuracy % / loss / ECE % by severity", box=None, pad_edge=False)
        for severity in range(1, 6):
            table.add_column(str(severity), justify="right")
        for row in result["mean"]:
            cells = [
                f"{100 * found['accuracy']:.0f} / {found['cross_entropy']:.2f} / {100 * found['ece']:.0f}"
                for found in result["by_severity"]
                if found["model"] == row["model"]
            ]
            table.add_row(row["model"], *cells)
        console.print(table)
