"""`mixreg export`."""

from __future__ import annotations

from pathlib import Path

import click

from mixreg.commands.choices import own_code_options, rule_options
from mixreg.commands.errors import one_line_errors
from mixreg.commands.terminal import PathType, RunType, printable

FORMATS = ("onnx", "pt2", "safetensors")


@click.command()
@click.argument("run", type=RunType(exists=True, path_type=Path))
@click.option("--out", type=PathType(dir_okay=False, path_type=Path), required=True, help="The file to write.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(FORMATS),
    show_default="what the file's name ends with",
    help="What to write.",
)
@rule_options
@own_code_options
@one_line_errors
def export(
    run: Path,
    out: Path,
    kind: str | None,
    rule: str | None,
    held_out: str | None,
    model: str | None,
    method: str | None,
) -> None:
    """Write a finished run as one file: the network with its rule and the scaling of its inputs inside.

    Graphs (onnx, pt2) take batches of any size, images n × height × width × channels bytes or features as the training
    data had them, and give probabilities (or numbers, for regression). A safetensors file is read by `mixreg.load`.
    What is written is compared with the run first.

    \b
    Examples:
      mixreg export runs/digits --out digits.onnx
      mixreg export runs/digits --format pt2 --rule plain --out digits.pt2
    """
    if kind is None:
        kind = out.suffix.lower().removeprefix(".")
        if kind not in FORMATS:
            raise click.UsageError(f"Give --format, or a file that ends with .{', .'.join(FORMATS)}; got {out.name!r}.")
    if out.exists() and (out.resolve() == run.resolve() or out.resolve().parent == run.resolve()):
        raise click.UsageError(f"--out {out} is a file of the run: write it somewhere else.")
    from mixreg.evaluation.export import export as write
    from mixreg.evaluation.runs import open_run

    finished = open_run(run, rule, held_out, model, method)
    difference = write(finished, out, kind)
    size = out.stat().st_size / 1e6
    click.echo(printable(f"{out}: {size:.1f} MB, {finished.rule} predictions, within {difference:.1g} of the run's"))
