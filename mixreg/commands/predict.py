"""`mixreg predict`."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from mixreg.commands.choices import DEVICE, own_code_options, rule_options
from mixreg.commands.errors import one_line_errors
from mixreg.commands.terminal import PathType, RunType, printable, shown


@click.command()
@click.argument("run", type=RunType(exists=True, path_type=Path))
@click.argument("files", nargs=-1, required=True, type=PathType(exists=True, path_type=Path))
@click.option(
    "--out", type=PathType(dir_okay=False, path_type=Path), show_default="the terminal", help="A .csv or .json file."
)
@rule_options
@click.option("--probabilities", is_flag=True, help="Give the probabilities of all classes.")
@own_code_options
@click.option("--device", type=DEVICE, default="cpu", show_default=True, help="Where to run the network.")
@one_line_errors
def predict(
    run: Path,
    files: tuple[Path, ...],
    out: Path | None,
    rule: str | None,
    held_out: str | None,
    probabilities: bool,
    model: str | None,
    method: str | None,
    device: str,
) -> None:
    """Predict unlabelled data with a finished run.

    FILES are pictures, folders of pictures, .npz files (array x, or x_test), and tables (.csv, .tsv, .parquet) with the
    columns that the run was trained on. Each row of the output names its input (the file, or the row's number from 0)
    and gives its class and probability; several labels or numbers have a column each. .json holds one object a line.

    \b
    Examples:
      mixreg predict runs/digits new.npz --out predictions.csv
      mixreg predict runs/animals photos/ more/cat.jpg --out predictions.json
      mixreg predict runs/iris flowers.csv --rule plain
    """
    from mixreg._support.freed_memory import keep_freed_memory
    from mixreg._support.tasks import NUMBERS
    from mixreg.commands.evaluate import require_device
    from mixreg.data.unlabelled import parts_of, sources
    from mixreg.evaluation.predictions import Writer, format_of, predicted
    from mixreg.evaluation.runs import open_run

    require_device(device)
    if out is not None and any(path.resolve() == out.resolve() for path in files):
        raise click.UsageError(f"--out {out} is one of the files to read.")
    if out is not None and out.exists() and out.resolve().parent == run.resolve():
        raise click.UsageError(f"--out {out} is a file of the run: write it somewhere else.")
    keep_freed_memory()
    kind = "csv" if out is None else format_of(out)
    finished = open_run(run, rule, held_out, model, method, device)
    if probabilities and finished.trained.targets.task == NUMBERS:
        raise click.UsageError("--probabilities are of classes and labels; this run predicts numbers.")
    trained, paths = finished.trained, sources(files)
    parts = parts_of(paths, trained.shape, trained.pixels is not None, trained.preparation.features)
    rows = 0
    with _progress() as show, _ending_well():

        def tell(count: int) -> None:
            nonlocal rows
            rows += count
            show(count)

        _write(out, predicted(finished, parts, Writer(finished, kind, probabilities), tell))
    if out is not None:
        click.echo(printable(f"{out}: {rows:,} rows, {finished.rule} predictions"), err=True)


def _write(out: Path | None, texts: Iterator[bytes]) -> None:
    """To the terminal, or to a file that is whole or not there."""
    from mixreg._support.files import replacing

    if out is None:
        for text in texts:
            click.echo(text, nl=False)
        return
    with replacing(out) as file:
        for text in texts:
            file.write(text)


@contextlib.contextmanager
def _ending_well() -> Iterator[None]:
    """Inside, a request to end is an exception, so that what is half written is removed."""

    def end(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, end)
    except ValueError:
        yield  # not in the main thread
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int], None]]:
    """Tells how many rows are done, on a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda rows: None
        return
    from rich.console import Console

    done = 0
    with Console(stderr=True).status(shown("Predicting")) as status:

        def tell(rows: int) -> None:
            nonlocal done
            done += rows
            status.update(shown(f"Predicting: {done:,} rows"))

        yield tell
