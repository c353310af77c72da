"""`mixreg reproduce`."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mixreg.commands.choices import Named, experiments
from mixreg.commands.errors import one_line_errors
from mixreg.commands.terminal import PathType, printable
from mixreg.commands.verdicts import print_experiments, print_reproduction
from mixreg.experiments.sizes import SCALES

if TYPE_CHECKING:
    from mixreg.experiments.store import Run
    from mixreg.experiments.sweep import OnProgress, SweepProgress


# Each holds its data in memory.
_MOST_WORKERS = 8


@click.command()
@click.argument("names", nargs=-1, type=Named(experiments), metavar="[NAME | MODULE:EXPERIMENT]...")
@click.option(
    "--scale",
    type=Named(SCALES),
    metavar=f"[{'|'.join(SCALES)}]",
    default="laptop",
    show_default=True,
    help="smoke takes seconds, laptop minutes; paper has the sizes of the paper.",
)
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="SIZE=VALUE",
    show_default="the scale's",
    help="Another size than the scale's, such as epochs=20 or alphas=0.1,1; it is printed on the figure.",
)
@click.option(
    "--out",
    type=PathType(file_okay=False, path_type=Path),
    default=Path("reproduction"),
    show_default=True,
    help="Folder for results, figures, verdicts and the report.",
)
@click.option(
    "--workers",
    default=lambda: min(_MOST_WORKERS, os.cpu_count() or 1),
    show_default=f"one per core, up to {_MOST_WORKERS}",
    type=int,
    help="Processes of this machine.",
)
@click.option(
    "--threads",
    type=int,
    show_default="its share of the cores",
    help="Threads of each run; with the same number results are the same.",
)
@click.option(
    "--ray",
    "ray_address",
    type=Named(("auto", "local")),
    metavar="ADDRESS",
    show_default="none",
    help="A Ray cluster to use instead: auto, local, or host:port.",
)
@click.option("--cpus", default=1, show_default=True, help="Cores of the cluster for each run.")
@click.option("--gpus", default=0.0, show_default=True, help="GPUs of the cluster for each run.")
@click.option("--redraw", is_flag=True, help="Carry out nothing: draw again all that the folder holds.")
@click.option("--list", "listed", is_flag=True, help="List the experiments.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdicts as JSON.")
@one_line_errors
def reproduce(
    names: tuple[str, ...],
    scale: str,
    changes: tuple[str, ...],
    out: Path,
    workers: int,
    threads: int | None,
    ray_address: str | None,
    cpus: int,
    gpus: float,
    redraw: bool,
    listed: bool,
    as_json: bool,
) -> None:
    """Reproduce experiments of the paper: figures, tables, and a verdict on every claim.

    Without NAME, all experiments (`--list`) whose data is at hand; one of your own is MODULE:EXPERIMENT. Finished runs
    are kept in OUT/results.sqlite: the same command again carries out only what is missing, after a kill too. The
    report OUT/report.html covers everything that was reproduced in the folder.

    \b
    Examples:
      mixreg reproduce two-moons --scale paper
      mixreg reproduce --scale smoke --out smoke
      mixreg reproduce rescaling ood --scale paper --set epochs=20
      mixreg reproduce --scale paper --ray auto --cpus 4 --gpus 1
      mixreg reproduce --redraw --out reproduction
      mixreg reproduce package.module:EXPERIMENT --scale smoke
    """
    counts = (
        ("--workers", workers, 1),
        ("--threads", 1 if threads is None else threads, 1),
        ("--cpus", cpus, 1),
        ("--gpus", gpus, 0),
    )
    for option, value, least in counts:
        if not least <= value < math.inf:
            raise click.UsageError(f"{option} must be a number of at least {least}, got {value:g}.")
    if listed:
        return print_experiments()
    if redraw and (changes or not all(":" in name for name in names)):
        raise click.UsageError(
            "--redraw takes no experiments of the paper and no sizes: it draws all that the folder holds."
        )
    from mixreg.experiments.reproduce import draw
    from mixreg.experiments.reproduce import reproduce as carry_out
    from mixreg.experiments.sweep import Workers

    _refuse_foreign(out)
    if redraw:
        found = draw(out, names)
    else:
        sizes = dict(_size(change) for change in changes)
        with _progress_shown() as on_progress:
            found = carry_out(names, scale, out, Workers(workers, ray_address, cpus, gpus, threads), on_progress, sizes)
    if as_json:
        click.echo((out / "claims.json").read_text().rstrip())
    else:
        print_reproduction(found, names)
    for name, reasons in found.skipped.items():
        click.echo(printable(f"{name} was left out: {'; '.join(reasons)}."), err=True)
    for path in found.figures:
        click.echo(printable(path), err=as_json)
    click.echo(printable(f"Report: {found.report}"), err=as_json)
    if found.undrawn:
        undrawn = ", ".join(f"{name} ({'; '.join(reasons)})" for name, reasons in found.undrawn.items())
        raise click.ClickException(printable(f"the report lacks what could not be drawn: {undrawn}."))


def _refuse_foreign(out: Path) -> None:
    """What `reproduce` would write over must be its own; an error names what is not."""
    from mixreg.experiments.reproduce import PLAN

    report, verdicts, figures = out / "report.html", out / "claims.json", out / "figures"
    results = [out / name for name in ("results.sqlite", "results.json")]
    if not (out / PLAN).exists():
        foreign = [path for path in (report, verdicts, *results, *figures.glob("*")) if os.path.lexists(path)]
    else:
        foreign = [path for path, mark in ((report, b"<title>mixreg: "), (verdicts, b'"claims"')) if _lacks(path, mark)]
    if foreign:
        raise ValueError(f"{foreign[0]} was not written by `mixreg reproduce`; choose another folder than {out}")


def _lacks(path: Path, mark: bytes) -> bool:
    """Whether a file is there without having this near its beginning."""
    if not os.path.lexists(path):
        return False
    with path.open("rb") as file:
        return mark not in file.read(1000)


def _size(change: str) -> tuple[str, Any]:
    """NAME=VALUE; numbers are numbers, and commas make a list."""
    name, equals, given = change.partition("=")
    if not name or not equals or not given:
        raise click.UsageError(f"--set takes SIZE=VALUE, got {change!r}.")
    parts = [_number_or_word(part) for part in given.split(",")]
    return name, parts if len(parts) > 1 else parts[0]


def _number_or_word(word: str) -> Any:
    try:
        value = json.loads(word)
    except ValueError:
        return word
    return value if isinstance(value, (int, float)) else word


@contextmanager
def _progress_shown() -> Iterator[OnProgress]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[count]} runs"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(elapsed_when_finished=False),
    )
    console = Console(stderr=True)
    if not console.is_terminal:
        # In a log file, a line for each finished run.
        told = -1

        def print_line(progress: SweepProgress) -> None:
            nonlocal told
            if progress.finished > told:
                told = progress.finished
                last = "" if progress.last is None else f", last: {_described(progress.last)}"
                click.echo(f"{progress.finished} of {progress.total} runs are finished{last}", err=True)

        yield print_line
        return
    with Progress(*columns, console=console, transient=True, speed_estimate_period=3600) as bars:
        task = bars.add_task("starting", total=None, count="")

        def move_bar(progress: SweepProgress) -> None:
            described = "running" if progress.last is None else f"running, last: {_described(progress.last)}"
            if bars.tasks[0].total is None:
                # What earlier commands did says nothing about this one's speed.
                bars.reset(task, total=progress.total, completed=progress.done, count="")  # type: ignore[arg-type]
            counted = f"{progress.finished}/{progress.total}"
            bars.update(task, completed=progress.done, description=described, count=counted)

        yield move_bar


def _described(run: Run) -> str:
    """A run in a few words."""
    settings = {**run.settings, **run.settings.get("config", {})}
    words = [str(settings[key]) for key in ("data", "method") if key in settings]
    words += [f"{key} {settings[key]}" for key in ("alpha", "seed") if key in settings]
    return printable(" ".join([run.kind, *words]))
