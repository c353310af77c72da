"""`mixreg verify`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mixreg.commands.choices import LOSSES, Named
from mixreg.commands.errors import one_line_errors
from mixreg.commands.terminal import PathType, shown

if TYPE_CHECKING:
    from mixreg.verify import Row

SMALLEST_ALPHA, LARGEST_ALPHA = 1e-6, 1e6


@click.command()
@click.option(
    "--model",
    metavar="MODULE:FACTORY",
    show_default="small networks",
    help="Your network: a callable without arguments that returns it.",
)
@click.option(
    "--data",
    type=PathType(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE.npz",
    show_default="a few samples",
    help="Your data: arrays x (n × …, floating point) and y (n labels, or n × … targets).",
)
@click.option("--alpha", type=float, show_default="several", help="One α.")
@click.option(
    "--loss",
    type=Named(LOSSES),
    metavar=f"[{'|'.join(LOSSES)}]",
    show_default="cross_entropy",
    help="Of your network.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON.")
@one_line_errors
def verify(model: str | None, data: Path | None, alpha: float | None, loss: str | None, as_json: bool) -> None:
    """Check every theorem, lemma, corollary and proposition of the paper as a number.

    Each row gives the largest difference between the two sides of a statement, in float64. Errata show what the paper
    prints beside what holds. The exit code is 1 if any row fails.

    \b
    Examples:
      mixreg verify
      mixreg verify --json
      mixreg verify --model my_package.models:make_net --data my_data.npz
    """
    if (model is None) != (data is None):
        raise click.UsageError("--model and --data belong together: give both or neither.")
    if loss is not None and model is None:
        raise click.UsageError("--loss belongs to --model and --data: without them every statement has its own.")
    if alpha is not None and (0 < alpha < SMALLEST_ALPHA or LARGEST_ALPHA < alpha < math.inf):
        raise click.UsageError(
            f"--alpha must be 0, inf or between {SMALLEST_ALPHA:g} and {LARGEST_ALPHA:g}, where the quadrature that "
            f"statements are checked against has its digits, got {alpha:g}."
        )
    from mixreg.verify import checks

    arguments = () if model is None or data is None else (load_network(model), *load_arrays(data))
    rows = list(
        _with_progress(checks(*arguments, alpha=alpha, loss="cross_entropy" if loss is None else loss), as_json)
    )
    if as_json:
        # JSON has no infinity.
        plain = [
            {k: str(v) if v == math.inf else v for k, v in vars(row).items()} | {"holds": row.holds} for row in rows
        ]
        click.echo(json.dumps(plain, indent=1, allow_nan=False))
    else:
        _print_rows(rows)
    if not all(row.holds for row in rows):
        raise click.exceptions.Exit(1)


def load_network(model: str) -> Any:
    """The network that `MODULE:FACTORY` returns."""
    from torch import nn

    from mixreg._support.references import load_reference

    net = load_reference(model)()
    if not isinstance(net, nn.Module):
        raise TypeError(f"{model} must return a network (torch.nn.Module), got {type(net).__name__}")
    return net


def _with_progress(rows: Any, quiet: bool) -> Any:
    if quiet:
        return rows
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    def watched() -> Any:
        told = TextColumn("{task.completed} checked, last: {task.description}", markup=False)
        columns = SpinnerColumn(), told, TimeElapsedColumn()
        with Progress(*columns, transient=True) as progress:
            task = progress.add_task("nothing yet", total=None)
            for row in rows:
                progress.update(task, advance=1, description=row.name)
                yield row

    return watched()


def _print_rows(rows: list[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    title = "On Mixup Regularization, checked in float64"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("statement")
    for heading in ("residual", "tolerance", "as printed", "verdict"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        printed = "" if row.printed is None else f"{row.printed:.1e}"
        verdict = shown("holds", "green") if row.holds else shown("FAILS", "red")
        sides = f"{row.residual:.1e}", f"{row.tolerance:.0e}", printed
        table.add_row(shown(f"{row.name}: {row.statement}"), *sides, verdict)
    console = Console()
    console.print(table)
    failed = sum(not row.holds for row in rows)
    console.print(f"{len(rows) - failed} of {len(rows)} statements hold.")


def load_arrays(path: Path) -> tuple[Any, Any]:
    """x and y of an .npz file, as tensors."""
    import torch

    from mixreg.data.archives import read_npz
    from mixreg.data.errors import DataError

    content = read_npz(path, ("x", "y"))
    for name, kinds, expected in (("x", "f", "floating point"), ("y", "iuf", "labels or floating point")):
        if content[name].dtype.kind not in kinds:
            raise DataError(f"{path}: {name} must be {expected}, got {content[name].dtype}")
    return torch.from_numpy(content["x"]), torch.from_numpy(content["y"])
