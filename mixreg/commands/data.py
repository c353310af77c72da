"""`mixreg data list` and `mixreg data get`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from mixreg._support.near_misses import unknown
from mixreg.commands.choices import Named, datasets
from mixreg.commands.errors import one_line_errors
from mixreg.commands.tables import print_columns
from mixreg.commands.terminal import SafeGroup, printable

if TYPE_CHECKING:
    from mixreg.data.fetch import DownloadProgress


@click.group(cls=SafeGroup)
def data() -> None:
    """Datasets: what is known, what is here, and bringing it.

    \b
    Examples:
      mixreg data list
      mixreg data get cifar10
    """


@data.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@one_line_errors
def list_data(as_json: bool) -> None:
    """What is known by name, and what is here.

    \b
    Example:
      mixreg data list
    """
    from mixreg.data import EMBEDDED, RECIPES, cache_folder

    rows: list[dict[str, Any]] = [
        {"name": name, "about": (make.__doc__ or "").split("\n")[0].rstrip("."), "here": True, "sources": ["built in"]}
        for name, make in EMBEDDED.items()
    ]
    for recipe in RECIPES.values():
        is_here = (cache_folder() / f"{recipe.name}.safetensors").exists()
        sources = [source.title for source in recipe.sources]
        rows.append({"name": recipe.name, "about": recipe.about, "here": is_here, "sources": sources})
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    told = [(row["name"], "yes" if row["here"] else "", row["about"], ", ".join(row["sources"])) for row in rows]
    print_columns(("name", "here", "what", "from"), told)
    click.echo()
    click.echo(printable(f"Kept in {cache_folder()} (set MIXREG_DATA to change)."))
    click.echo(
        "Anywhere a name is expected, an .npz with x_train, y_train, x_test, y_test, a\n"
        "folder with train/CLASS/* and val/CLASS/* (or test/CLASS/*), or one with\n"
        "train*.parquet and test*.parquet will do too."
    )


@data.command("get")
@click.argument("name", type=Named(datasets))
@click.option("--from", "base", metavar="FOLDER|URL", show_default="their own places", help="Where files lie.")
@click.option("--again", is_flag=True, help="Bring it even if it is here.")
@one_line_errors
def get_data(name: str, base: str | None, again: bool) -> None:
    """Bring a dataset, check it and keep it.

    Its sources are tried in order. Nothing is kept unless every array matches its checksum.

    \b
    Examples:
      mixreg data get cifar10
      mixreg data get cifar100 --from ~/Downloads
    """
    from mixreg.data import EMBEDDED, RECIPES
    from mixreg.data.fetch import get

    if base == "":
        raise click.UsageError("--from names a folder or an address, got ''.")
    if name in EMBEDDED:
        click.echo(f"{name} is built in.")
        return
    if name not in RECIPES:
        raise ValueError(unknown("dataset", name, [*EMBEDDED, *RECIPES]))
    with _progress() as progress:
        path, source = get(RECIPES[name], progress, base, again)
    click.echo(printable(f"{name}: {path} (from {source})"))


@contextmanager
def _progress() -> Iterator[DownloadProgress]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, int] = {}

        def report(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name)
            bars.update(tasks[name], completed=done, total=total or None)  # type: ignore[arg-type]

        yield report
