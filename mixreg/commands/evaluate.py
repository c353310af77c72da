"""`mixreg evaluate`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mixreg.commands.errors import one_line_errors
from mixreg.commands.terminal import PathType, printable, shown

if TYPE_CHECKING:
    from mixreg.evaluation.table import Outputs

Rows = list[dict[str, Any]]
# A run's network and method, where they are code of one's own.
OwnCode = tuple[str | None, str | None]


@click.command()
@click.argument("run", required=False, type=PathType(exists=True, file_okay=False, path_type=Path))
@click.option("--data", help="Another dataset with the same classes, in any form that `train` takes.")
@click.option(
    "--logits",
    type=PathType(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE.npz",
    help="Saved outputs instead of a run: arrays logits (n × c) and labels (n); see below.",
)
@click.option("--alpha", type=float, help="α of the saved outputs.")
@click.option(
    "--shifted",
    multiple=True,
    metavar="LAYOUT:FOLDER",
    help="A shifted test set: cifar-c, imagenet-c, imagenet-a, imagenet-v2, objectnet, vid-robust or ytbb-robust and "
    "its folder; or `corruptions`, which are made of the test images on the spot.",
)
@click.option(
    "--baseline",
    type=PathType(exists=True, file_okay=False, path_type=Path),
    help="A run whose errors normalise the mean corruption error (ImageNet-C: AlexNet's, if not given).",
)
@click.option("--figures", type=PathType(file_okay=False, path_type=Path), help="Folder for pictures.")
@click.option("--model", metavar="MODULE:FACTORY", help="The network's code, if the run's is your own.")
@click.option("--method", metavar="MODULE:CLASS", help="The method's code, if the run's is your own.")
@click.option("--device", default="cpu", show_default=True, help="Where to run the network.")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON.")
@one_line_errors
def evaluate(
    run: Path | None,
    data: str | None,
    logits: Path | None,
    alpha: float | None,
    shifted: tuple[str, ...],
    baseline: Path | None,
    figures: Path | None,
    model: str | None,
    method: str | None,
    device: str,
    as_json: bool,
) -> None:
    """Evaluate a trained network: accuracy, cross-entropy, ECE and Brier score.

    Plain and rescaled, each before and after temperature scaling. Temperatures are fitted on what the run held out of
    its training set, never on test data.

    Saved outputs may also hold logits_shrunk (the network's logits on shrunk inputs x̄ + θ̄ (x − x̄)), y_mean, and
    holdout_logits, holdout_labels, holdout_logits_shrunk to fit temperatures on.

    \b
    Examples:
      mixreg evaluate runs/digits
      mixreg evaluate runs/digits --figures figures --json
      mixreg evaluate runs/lenet --shifted corruptions
      mixreg evaluate runs/lenet --shifted cifar-c:CIFAR-10-C --baseline runs/erm
      mixreg evaluate --logits outputs.npz --alpha 1.0
    """
    if (run is None) == (logits is None):
        raise click.UsageError("Give a run's folder, or --logits with --alpha.")
    if (logits is None) != (alpha is None):
        raise click.UsageError("--logits and --alpha belong together.")
    if logits is not None and (shifted or data):
        raise click.UsageError("--shifted and --data need a run, not saved outputs.")
    if baseline is not None and not shifted:
        raise click.UsageError("--baseline belongs to --shifted.")
    if data == "":
        raise click.UsageError("--data names a dataset, got ''.")
    from rich.console import Console

    from mixreg.evaluation import table as tables

    _require_device(device)
    if logits is not None and alpha is not None:
        test, held = tables.saved_outputs(logits, alpha)
        caption = f"{logits.name}, α = {alpha:g}"
    else:
        assert run is not None
        with Console(stderr=True).status(shown(f"Evaluating {run}")):
            test, held, caption = _of_run(run, (model, method), data, device)
    fitted = tables.temperatures(held)
    rows = tables.table(test, fitted)
    others = [_on_shifted(run, (model, method), spec, fitted, baseline, device) for spec in shifted if run is not None]
    if as_json:
        content = {"test": rows, "shifted": others} if others else rows
        click.echo(json.dumps(_finite(content), indent=1, allow_nan=False))
    else:
        print_table(rows, caption)
        if not fitted:
            click.echo("No temperatures: nothing was held out to fit them on (--holdout at training).")
        for other in others:
            _print_shifted(other)
    if figures is not None:
        from mixreg.evaluation.figures import draw, save_figure

        for path in save_figure(draw(test, fitted, caption), figures, "calibration"):
            click.echo(printable(path), err=as_json)


def _require_device(name: str) -> None:
    import torch

    try:
        torch.device(name)
    except RuntimeError as error:
        raise click.UsageError(f"--device is cpu, cuda, cuda:1, mps or the like, got {name!r}.") from error


def _finite(content: Any) -> Any:
    """JSON has no infinity and no NaN: they become null."""
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def _of_run(run: Path, own: OwnCode, data: str | None, device: str) -> tuple[Outputs, Outputs | None, str]:
    from mixreg.evaluation.table import of_run
    from mixreg.training.trained import load_trained

    trained = load_trained(run, *own)
    test, held = of_run(trained, data, device)
    config = trained.config
    caption = (
        f"{data or config.data}, {len(test.labels):,} test samples; {config.model} trained by {config.method}, "
        f"α = {config.alpha:g}, {config.epochs} epochs, seed {config.seed}"
    )
    return test, held, caption


def _on_shifted(
    run: Path, own: OwnCode, spec: str, fitted: dict[str, float], baseline: Path | None, device: str
) -> dict[str, Any]:
    """All that is known of a run on one shifted set."""
    from rich.console import Console

    from mixreg.data import load
    from mixreg.data.shifted import generated, open_shifted
    from mixreg.evaluation.shift import (
        ALEXNET_ERROR,
        corruption_errors,
        evaluate_shifted,
        mean_corruption_error,
        summary,
    )
    from mixreg.training.trained import load_trained

    trained = load_trained(run, *own)
    kind, _, folder = spec.partition(":")
    if bool(folder) == (kind == "corruptions"):
        raise ValueError(f"--shifted takes LAYOUT:FOLDER, or corruptions alone, got {spec!r}")
    if kind == "corruptions":
        if Path(trained.config.data).is_dir():
            raise ValueError(f"corruptions are made of images in memory, and {trained.config.data} is a folder")
        dataset = load(trained.config.data)
        if not dataset.is_images:
            raise ValueError(f"corruptions are made of images, and {dataset.name} holds features")
        chosen = generated(dataset.test)
    else:
        chosen = open_shifted(kind, Path(folder), trained.config.image_size)
    with Console(stderr=True).status(shown(spec)) as status:
        rows = evaluate_shifted(trained, chosen, fitted, device, lambda part: status.update(shown(f"{spec}: {part}")))
        reference = ALEXNET_ERROR if kind == "imagenet-c" else {}
        if baseline is not None:
            other = evaluate_shifted(
                load_trained(baseline), chosen, {}, device, lambda part: status.update(shown(f"baseline: {part}"))
            )
            reference = corruption_errors(other, "plain")
    result: dict[str, Any] = {"set": spec, "mean": summary(rows), "parts": rows}
    if any(row["severity"] for row in rows):
        result["by_severity"] = summary(rows, "severity")
        for row in result["mean"]:
            errors = corruption_errors(rows, row["model"])
            result["corruptions"] = len(errors)
            if errors:
                row["mean_error"] = sum(errors.values()) / len(errors)
            if errors and reference:
                row["mce"] = mean_corruption_error(errors, reference)
    return result


def _print_shifted(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    headings = {
        "accuracy": "accuracy %",
        "cross_entropy": "cross-entropy",
        "ece": "ECE %",
        "brier": "Brier",
        "mean_error": f"error over {result.get('corruptions')} of 15 %",
        "mce": "mCE %",
        "anchor_accuracy": "anchors %",
        "pm_accuracy": "pm-10 %",
    }
    percent = {"accuracy", "ece", "mean_error", "mce", "anchor_accuracy", "pm_accuracy"}
    present = [name for name in headings if name in result["mean"][0]]
    title = shown(f"{result['set']}, means over its parts")
    table = Table("", *(headings[name] for name in present), title=title)
    for row in result["mean"]:
        table.add_row(row["model"], *(f"{100 * row[n]:.2f}" if n in percent else f"{row[n]:.4f}" for n in present))
    Console(width=120).print(table)
    if "by_severity" in result:
        models = [row["model"] for row in result["mean"]]
        table = Table("severity", *models, title="accuracy % / cross-entropy / ECE %")
        for severity in range(1, 6):
            cells = [
                f"{100 * row['accuracy']:.1f} / {row['cross_entropy']:.3f} / {100 * row['ece']:.1f}"
                for row in result["by_severity"]
                if row["severity"] == severity
            ]
            table.add_row(str(severity), *cells)
        Console(width=120).print(table)


def print_table(rows: Rows, caption: str) -> None:
    """Measures as a person reads them: in percent where they are fractions."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=shown(caption))
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
