"""`mixreg evaluate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from mixreg.evaluation.table import Outputs

Rows = list[dict[str, Any]]


@click.command()
@click.argument("run", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--data", help="Another dataset with the same classes, in any form that `train` takes.")
@click.option(
    "--logits",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE.npz",
    help="Saved outputs instead of a run: arrays logits (n × c) and labels (n); see below.",
)
@click.option("--alpha", type=float, help="α of the saved outputs.")
@click.option("--figures", type=click.Path(file_okay=False, path_type=Path), help="Folder for pictures.")
@click.option("--device", default="cpu", show_default=True, help="Where to run the network.")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON.")
def evaluate(
    run: Path | None,
    data: str | None,
    logits: Path | None,
    alpha: float | None,
    figures: Path | None,
    device: str,
    as_json: bool,
) -> None:
    """What a trained network is worth: accuracy, cross-entropy, ECE and Brier score.

    Plain and rescaled, each before and after temperature scaling. Temperatures are fitted on what the run held out of
    its training set, never on test data.

    Saved outputs may also hold logits_shrunk (the network's logits on shrunk inputs x̄ + θ̄ (x − x̄)), y_mean, and
    holdout_logits, holdout_labels, holdout_logits_shrunk to fit temperatures on.

    \b
    Examples:
      mixreg evaluate runs/digits
      mixreg evaluate runs/digits --figures figures --json
      mixreg evaluate --logits outputs.npz --alpha 1.0
    """
    if (run is None) == (logits is None):
        raise click.UsageError("Give a run's folder, or --logits with --alpha.")
    if (logits is None) != (alpha is None):
        raise click.UsageError("--logits and --alpha belong together.")
    from mixreg.evaluation import table as tables

    try:
        if logits is not None and alpha is not None:
            test, held = tables.saved_outputs(logits, alpha)
            caption = f"{logits.name}, α = {alpha:g}"
        else:
            assert run is not None
            test, held, caption = _of_run(run, data, device)
        fitted = tables.temperatures(held)
        rows = tables.table(test, fitted)
    except (ImportError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise click.ClickException(f"{str(error).rstrip('.')}.") from error
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    else:
        print_table(rows, caption)
        if not fitted:
            click.echo("No temperatures: nothing was held out to fit them on (--holdout at training).")
    if figures is not None:
        from mixreg.evaluation.figures import draw, save_figure

        for path in save_figure(draw(test, fitted, caption), figures, "calibration"):
            click.echo(path, err=as_json)


def _of_run(run: Path, data: str | None, device: str) -> tuple[Outputs, Outputs | None, str]:
    from mixreg.data import load
    from mixreg.evaluation.table import held_out, on_arrays
    from mixreg.training.run import load_trained

    trained = load_trained(run)
    own = load(trained.config.data)
    dataset = own if data is None else load(data)
    kept = held_out(trained, own)
    held = on_arrays(trained, kept, device) if kept is not None else None
    config = trained.config
    caption = (
        f"{dataset.name}, {len(dataset.test.y):,} test samples; {config.model} trained by {config.method}, "
        f"α = {config.alpha:g}, {config.epochs} epochs, seed {config.seed}"
    )
    return on_arrays(trained, dataset.test, device), held, caption


def print_table(rows: Rows, caption: str) -> None:
    """Measures as a person reads them: in percent where they are fractions."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=caption)
    table.add_column("")
    for heading in ("accuracy %", "cross-entropy", "ECE %", "Brier", "temperature"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            row["model"],
            f"{100 * row['accuracy']:.2f}",
            f"{row['cross_entropy']:.4f}",
            f"{100 * row['ece']:.2f}",
            f"{row['brier']:.4f}",
            f"{row['temperature']:.3f}",
        )
    Console(width=120).print(table)
