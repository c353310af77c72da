"""`mixreg explore`."""

from __future__ import annotations

from pathlib import Path

import click

from mixreg.commands.errors import one_line_errors
from mixreg.commands.terminal import PathType, printable


@click.command()
@click.option(
    "--out",
    type=PathType(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the page here and open nothing (default: a temporary file, opened in the browser).",
)
@click.option("--no-browser", is_flag=True, help="Only say where the page is.")
@one_line_errors
def explore(out: Path | None, no_browser: bool) -> None:
    """See Mixup from inside: seven scenes to play with, on one page that needs no network.

    \b
    Examples:
      mixreg explore
      mixreg explore --out mixup.html
    """
    import tempfile
    import webbrowser

    from mixreg.report.explorer.build import write_explorer

    path = out or Path(tempfile.mkdtemp(prefix="mixreg-")) / "explorer.html"
    write_explorer(path)
    opened = out is None and not no_browser and webbrowser.open(path.resolve().as_uri())
    click.echo(f"{'Opened' if opened else 'Wrote'} {printable(path)}{'' if opened else ': open it in any browser'}.")
