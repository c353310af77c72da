"""`mixreg train`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mixreg.commands.errors import one_line_errors

if TYPE_CHECKING:
    from mixreg.training import Config
    from mixreg.training.loop import Watcher

SECONDS_BETWEEN_LINES = 10.0

# Settings of a run and their help; defaults come from the preset, else from `Config`.
_SETTINGS: dict[str, tuple[Any, str]] = {
    "data": (str, "A dataset's name (see `mixreg data list`), an .npz file, or a folder of class folders."),
    "model": (str, "lenet, resnet34, resnet50, small-resnet, random-features, mlp, or package.module:factory."),
    "method": (str, "How to train: see below."),
    "alpha": (float, "α of Mixup, from 0 (no mixing) to inf."),
    "weight": (float, "Weight of the second part of regmixup's, mixupe's and adaptive's loss."),
    "layers": (str, "Layers that manifold chooses from, with commas: input,conv1."),
    "label_smoothing": (float, "Smoothing towards the uniform label, with any method."),
    "dropout": (float, "Probability of dropping features of the last layer, with any method."),
    "parseval": (float, "β of Parseval's retraction after each step, with any method."),
    "epochs": (int, "Passes over the data; schedules keep their shape."),
    "batch_size": (int, "Samples per step, of all processes together."),
    "lr": (float, "Learning rate of SGD."),
    "momentum": (float, "Its momentum."),
    "weight_decay": (float, "Its weight decay."),
    "augment": (str, "standard (crops and flips) or none."),
    "label_noise": (float, "Fraction of training labels replaced by another class."),
    "samples": (int, "Training samples to use; 0 for all."),
    "holdout": (float, "Fraction of the training set kept out, to fit temperatures on."),
    "image_size": (int, "Side of images read from folders."),
    "seed": (int, "Of everything that is random."),
}


def _settings(function: Any) -> Any:
    for name, (kind, text) in reversed(_SETTINGS.items()):
        function = click.option(f"--{name.replace('_', '-')}", name, type=kind, help=text)(function)
    return function


@click.command()
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="The run's folder.")
@click.option(
    "--preset",
    help="The paper's settings: cifar-resnet34, cifar-lenet, imagenet-resnet50, two-moons; other options change them.",
)
@_settings
@click.option("--nesterov/--no-nesterov", default=None, help="Nesterov's momentum.")
@click.option("--temperature", is_flag=True, help="Fit temperatures on what is held out, for metrics.json.")
@click.option("--evaluate-every", default=1, show_default=True, help="Epochs between looks at the test set.")
@click.option("--checkpoint-seconds", default=30.0, show_default=True, help="How often to save.")
@click.option("--accelerator", default="auto", show_default=True, help="Lightning Fabric's: cpu, cuda, mps, …")
@click.option("--devices", default="1", show_default=True, help="Processes or devices per node.")
@click.option("--nodes", default=1, show_default=True, help="Machines.")
@click.option("--strategy", default="auto", show_default=True, help="Lightning Fabric's: auto, ddp, …")
@click.option("--precision", default="32-true", show_default=True, help="Lightning Fabric's: bf16-mixed, …")
@click.option("--workers", default=2, show_default=True, help="Processes that read images from folders.")
@click.option("--quiet", is_flag=True, help="No progress bar, no lines.")
@one_line_errors
def train(
    out: Path,
    preset: str | None,
    nesterov: bool | None,
    temperature: bool,
    evaluate_every: int,
    checkpoint_seconds: float,
    accelerator: str,
    devices: str,
    nodes: int,
    strategy: str,
    precision: str,
    workers: int,
    quiet: bool,
    **settings: Any,
) -> None:
    """Train a network with Mixup, or with one of its relatives.

    The same command again goes on where it was, whatever stopped it, and ends with the same weights. It leaves
    model.safetensors (weights, x̄, ȳ and α), config.json, log.jsonl and metrics.json in the run's folder.

    \b
    Methods:
      erm           empirical risk minimisation
      mixup         Mixup
      approximate   Theorem 3 as a loss
      modified      ERM on shrunk data
      smoothing     labels smoothed towards the mean label, as much as Mixup does
      inputs        Mixup of inputs only
      outputs       Mixup of labels only
      independent   Mixup of both, independently
      scaled        x_i + (1/λ − 1)(x_j − x̄), for α above 1
      gaussian      Gaussian noise with Mixup's covariances
      manifold      Manifold Mixup
      cutmix        CutMix
      adaptive      adaptive Mixup: learns how much to mix
      regmixup      RegMixup: Mixup beside the plain loss (α = 10)
      mixupe        MixupE: Mixup with its slope towards the mean held near 0

    \b
    Examples:
      mixreg train --out runs/digits
      mixreg train --preset two-moons --out runs/moons
      mixreg train --preset cifar-lenet --method approximate --epochs 20 --out runs/lenet
      mixreg train --method cutmix --data digits-32 --model lenet --dropout 0.2 --out runs/cutmix
      torchrun --nproc-per-node 2 -m mixreg train --accelerator cpu --devices 2 --out runs/two
    """
    for name, value, least in (("evaluate-every", evaluate_every, 1), ("workers", workers, 0)):
        if value < least:
            raise click.UsageError(f"--{name} must be at least {least}, got {value}.")
    if not checkpoint_seconds >= 0:
        raise click.UsageError(f"--checkpoint-seconds must be at least 0, got {checkpoint_seconds}.")
    from mixreg.training.engine import Engine
    from mixreg.training.run import train as carry_out

    config = _config(preset, settings | {"nesterov": nesterov})
    if temperature and config.holdout == 0:
        raise click.UsageError("--temperature needs data that is held out: give --holdout above 0.")
    count = int(devices) if devices.isdigit() else devices
    engine = Engine(accelerator, count, nodes, strategy, precision, workers)
    display = _silent if quiet else _display if sys.stderr.isatty() else _lines
    try:
        is_new = carry_out(config, out, engine, display, checkpoint_seconds, evaluate_every)
    finally:
        _leave_other_processes()
    if temperature and is_new is not None:
        _add_tempered(out, config)
    # Of several processes one speaks.
    if is_new is not None and int(os.environ.get("RANK", "0")) == 0:
        click.echo(f"{out}: {'done' if is_new else 'was done before'}")


def _add_tempered(out: Path, config: Config) -> None:
    """Measures after temperature scaling, plain and rescaled, beside the others in metrics.json."""
    import json

    from mixreg.evaluation.table import of_run, table, temperatures
    from mixreg.files import write_json
    from mixreg.training.run import METRICS, load_trained

    trained = load_trained(out, config.model if ":" in config.model else None)
    test, held = of_run(trained)
    rows = {row.pop("model"): row for row in table(test, temperatures(held))}
    metrics = json.loads((out / METRICS).read_text())
    write_json(out / METRICS, metrics | {name: row for name, row in rows.items() if name.endswith("tempered")})


def _leave_other_processes() -> None:
    """End the talk with other processes: threads that still listen when Python ends can abort it."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def _config(preset: str | None, settings: dict[str, Any]) -> Config:
    from mixreg.data import EMBEDDED, RECIPES
    from mixreg.training import PRESETS, Config
    from mixreg.training import preset as by_name

    given = {name: value for name, value in settings.items() if value is not None}
    if "data" in given and given["data"] not in (*EMBEDDED, *RECIPES):
        # A run can be evaluated from anywhere.
        given["data"] = str(Path(given["data"]).resolve()) if Path(given["data"]).exists() else given["data"]
    if "layers" in given:
        given["layers"] = tuple(layer.strip() for layer in given["layers"].split(","))
    assert set(given) <= {field.name for field in fields(Config)}
    if preset is not None and "data" not in given | PRESETS.get(preset, {"data": ""}):
        raise click.UsageError(f"--preset {preset} needs --data: a folder of class folders.")
    return Config(**given) if preset is None else by_name(preset, **given)


@contextmanager
def _silent(config: Config, steps: int) -> Iterator[Watcher]:
    from mixreg.training.loop import Unwatched

    yield Unwatched()


@contextmanager
def _lines(config: Config, steps: int) -> Iterator[Watcher]:
    """Where there is no screen: a line now and then."""
    begun = last = time.monotonic()

    class Lines:
        def step(self, epoch: int, step: int, loss: float, accuracy: float | None) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last >= SECONDS_BETWEEN_LINES:
                last = now
                right = "" if accuracy is None else f", accuracy {100 * accuracy:.1f} %"
                place = f"epoch {epoch + 1}/{config.epochs}, step {step}/{steps}"
                click.echo(f"{place}: loss {loss:.3f}{right}, {now - begun:.0f} s", err=True)

    yield Lines()


@contextmanager
def _display(config: Config, steps: int) -> Iterator[Watcher]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("epoch {task.fields[epoch]}"),
        BarColumn(),
        TextColumn("loss {task.fields[loss]}  accuracy {task.fields[accuracy]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task("", total=config.epochs * steps, epoch=f"1/{config.epochs}", loss="–", accuracy="–")

        class Bar:
            def step(self, epoch: int, step: int, loss: float, accuracy: float | None) -> None:
                bars.update(
                    task,
                    completed=epoch * steps + step,
                    epoch=f"{epoch + 1}/{config.epochs}",
                    loss=f"{loss:.3f}",
                    accuracy="–" if accuracy is None else f"{100 * accuracy:.1f} %",
                )

        yield Bar()
        bars.update(task, completed=config.epochs * steps)
