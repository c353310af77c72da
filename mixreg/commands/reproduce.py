"""`mixreg reproduce`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mixreg.commands.errors import one_line_errors

if TYPE_CHECKING:
    from mixreg.experiments.claims import Claim
    from mixreg.experiments.store import Run
    from mixreg.experiments.sweep import Report


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--scale", default="laptop", show_default=True, help="smoke, laptop or paper.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("reproduction"),
    show_default=True,
    help="Folder for results, figures and verdicts.",
)
@click.option("--workers", default=1, show_default=True, help="Processes of this machine.")
@click.option("--ray", "ray_address", metavar="ADDRESS", help="A Ray cluster to use instead.")
@one_line_errors
def reproduce(names: tuple[str, ...], scale: str, out: Path, workers: int, ray_address: str | None) -> None:
    """Reproduce experiments of the paper: figures, and a verdict on every claim.

    So far: two-moons. Results are kept in OUT/results.sqlite; the same command again carries out only what is missing,
    and draws from what is there.

    \b
    Examples:
      mixreg reproduce two-moons --scale smoke
      mixreg reproduce two-moons --scale paper --out moons
    """
    if workers < 1:
        raise click.UsageError(f"--workers must be at least 1, got {workers}.")
    from mixreg.experiments.reproduce import reproduce as carry_out

    with _progress() as report:
        claims, paths = carry_out(names, scale, out, workers, report, ray_address)
    _print_claims(claims)
    for path in paths:
        click.echo(path)


@contextmanager
def _progress() -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("runs", total=None)

        def report(finished: int, total: int, last: Run | None) -> None:
            described = "runs" if last is None else f"runs, last: {last.kind} {last.settings.get('method', '')}"
            bars.update(task, completed=finished, total=total, description=described)

        yield report


def _print_claims(claims: list[Claim]) -> None:
    from rich.console import Console
    from rich.table import Table

    colours = {"reproduced": "green", "not reproduced": "red"}
    table = Table("claim", "measured", "difference", "p", "verdict")
    for claim in claims:
        for index, part in enumerate(claim.parts):
            half = "" if part.half_width is None else f" ± {part.half_width:.4f}"
            p_value = "" if part.p_value is None else f"{part.p_value:.1e}"
            colour = colours.get(part.verdict, "yellow")
            name = claim.name if index == 0 else ""
            verdict = f"[{colour}]{part.verdict}[/{colour}]"
            table.add_row(name, part.about, f"{part.difference:+.4f}{half}", p_value, verdict)
    Console(width=140).print(table)
