"""`mixreg evaluate`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mixreg._support.extras import require_package
from mixreg._support.tasks import CLASSES
from mixreg.commands.choices import DATA, DEVICE, LAYOUTS, Named, own_code_options
from mixreg.commands.errors import one_line_errors
from mixreg.commands.tables import print_shifted, print_table
from mixreg.commands.terminal import PathType, RunType, printable, shown

if TYPE_CHECKING:
    from mixreg.training.config import Config
    from mixreg.training.held_out_fit import HeldOutFit

# A run's network and method, where they are code of one's own.
OwnCode = tuple[str | None, str | None]


@click.command()
@click.argument("run", required=False, type=RunType(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--data",
    type=DATA,
    metavar="NAME|PATH",
    show_default="the run's test set",
    help="Other labelled data with the same classes, in any form that `train` takes.",
)
@click.option(
    "--held-out",
    type=DATA,
    metavar="NAME|PATH",
    show_default="what the run held out",
    help="Labelled data to fit strength and temperature on.",
)
@click.option(
    "--logits",
    type=PathType(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE.npz",
    show_default="none",
    help="Saved outputs instead of a run: arrays logits (n × c) and labels (n); see above.",
)
@click.option("--alpha", type=float, show_default="the run's", help="α of the saved outputs, which need it.")
@click.option(
    "--shifted",
    multiple=True,
    type=Named([*(f"{layout}:" for layout in LAYOUTS), "corruptions"]),
    metavar="LAYOUT:FOLDER",
    show_default="none",
    help="A shifted test set: cifar-c, imagenet-c, imagenet-a, imagenet-v2, objectnet, vid-robust or ytbb-robust and "
    "its folder; or `corruptions`, which are made of the test images on the spot.",
)
@click.option(
    "--baseline",
    type=PathType(exists=True, file_okay=False, path_type=Path),
    show_default="AlexNet's errors for imagenet-c, else none",
    help="A run whose errors normalise the mean corruption error.",
)
@click.option(
    "--figures",
    type=PathType(file_okay=False, path_type=Path),
    show_default="none are drawn",
    help="Folder for pictures.",
)
@own_code_options
@click.option("--device", type=DEVICE, default="cpu", show_default=True, help="Where to run the network.")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON.")
@one_line_errors
def evaluate(
    run: Path | None,
    data: str | None,
    held_out: str | None,
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
    """Evaluate a trained network: accuracy, cross-entropy, ECE, Brier score and AURC.

    Plain, rescaled and fitted, each before and after temperature scaling. Strength κ and temperature T are fitted on
    what the run held out of its training set, or on --held-out, never on test data. "fitted" is what `mixreg predict`
    uses. AURC is the area under the risk–coverage curve: errors among what it is most confident of.

    Saved outputs (--logits) may also hold logits_shrunk (the network's logits on shrunk inputs x̄ + θ̄ (x − x̄)), y_mean,
    and holdout_logits, holdout_labels, holdout_logits_shrunk to fit temperatures on.

    \b
    Examples:
      mixreg evaluate runs/digits
      mixreg evaluate runs/digits --figures figures --json
      mixreg evaluate runs/digits --data new.npz --held-out calibration.npz
      mixreg evaluate runs/lenet --shifted corruptions
      mixreg evaluate runs/lenet --shifted cifar-c:CIFAR-10-C --baseline runs/erm
      mixreg evaluate --logits outputs.npz --alpha 1.0
    """
    if (run is None) == (logits is None):
        raise click.UsageError("Give a run's folder, or --logits with --alpha.")
    if (logits is None) != (alpha is None):
        raise click.UsageError("--logits and --alpha belong together.")
    if logits is not None and (shifted or data or held_out):
        raise click.UsageError("--shifted, --data and --held-out need a run, not saved outputs.")
    if baseline is not None and not shifted:
        raise click.UsageError("--baseline belongs to --shifted.")
    for option, value in (("data", data), ("held-out", held_out)):
        if value == "":
            raise click.UsageError(f"--{option} names a dataset, got ''.")
    from rich.console import Console

    from mixreg.evaluation import table as tables

    require_device(device)
    if figures is not None:
        require_package("matplotlib", "--figures")
    fit: HeldOutFit | None = None
    if logits is not None and alpha is not None:
        outputs = tables.saved_outputs(logits, alpha)
        caption = f"{logits.name}, α = {alpha:g}"
    else:
        from mixreg.evaluation.runs import evaluated
        from mixreg.training.trained import load_trained

        assert run is not None
        with Console(stderr=True).status(shown(f"Evaluating {run}")):
            trained = load_trained(run, model, method)
            outputs, fit = evaluated(trained, data, held_out, device)
        caption = _caption(trained.config, data, len(outputs.y))
    rows = tables.table(outputs)
    others = [_on_shifted(run, (model, method), spec, fit, baseline, device) for spec in shifted if run is not None]
    if as_json:
        content: Any = {"test": rows, "shifted": others} if others else rows
        click.echo(json.dumps(_finite(content), indent=1, allow_nan=False))
    else:
        print_table(rows, caption)
        _print_notes(fit, any("tempered" in row["model"] for row in rows) or fit is not None)
        for other in others:
            print_shifted(other)
    if figures is not None:
        from mixreg.evaluation.figures import draw, draw_profile, save_figure

        drawn = {} if fit is None or fit.family is None else {"strength": draw_profile(fit.family, caption)}
        if outputs.targets.task == CLASSES:
            drawn = {"calibration": draw(outputs, caption)} | drawn
        for name, figure in drawn.items():
            for path in save_figure(figure, figures, name):
                click.echo(printable(path), err=as_json)


def _print_notes(fit: HeldOutFit | None, is_fitted: bool) -> None:
    if not is_fitted:
        click.echo("Nothing fitted: nothing was held out (--holdout at training, or --held-out DATA).")
    elif fit is not None and fit.family is not None:
        family = fit.family
        about = "" if math.isnan(family.standard_error) else f" ± {family.standard_error:.2f}"
        click.echo(f"Fitted on {family.samples:,} held-out samples: best κ = {family.best.strength:.2f}{about}.")
        if family.note:
            click.echo(f"{family.note}.")


def _caption(config: Config, data: str | None, count: int) -> str:
    return (
        f"{data or config.data}, {count:,} test samples; {config.model} trained by {config.method}, "
        f"α = {config.alpha:g}, {config.epochs} epochs, seed {config.seed}"
    )


def require_device(name: str) -> None:
    """An error unless PyTorch knows a device of that name."""
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


def _on_shifted(
    run: Path, own: OwnCode, spec: str, fit: HeldOutFit | None, baseline: Path | None, device: str
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
        rows = evaluate_shifted(trained, chosen, fit, device, lambda part: status.update(shown(f"{spec}: {part}")))
        reference = ALEXNET_ERROR if kind == "imagenet-c" else {}
        if baseline is not None:
            other = evaluate_shifted(
                load_trained(baseline), chosen, None, device, lambda part: status.update(shown(f"baseline: {part}"))
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
