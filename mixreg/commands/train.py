"""`mixreg train`."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mixreg.commands.choices import Named
from mixreg.commands.errors import one_line_errors
from mixreg.commands.terminal import PathType, printable
from mixreg.commands.train_options import help_text, settings_options
from mixreg.methods import options_of
from mixreg.training.config import BALANCED, PRESETS, UNWEIGHTED, Config

if TYPE_CHECKING:
    from mixreg.training.observer import Observer


@click.command(help=help_text(), short_help="Train a network with Mixup, or with one of its relatives.")
@click.option("--out", type=PathType(file_okay=False, path_type=Path), required=True, help="The run's folder.")
@settings_options
@click.option(
    "--method-option",
    "given_options",
    multiple=True,
    metavar="NAME=VALUE",
    show_default="none",
    help="An option of a method of your own; may be given several times.",
)
@click.option("--temperature", is_flag=True, help="Fitted and tempered rows in metrics.json, too.")
@click.option("--evaluate-every", default=1, show_default=True, help="Epochs between evaluations on the test set.")
@click.option(
    "--terms-every",
    default=0,
    show_default=True,
    help="Epochs between measurements of the terms of Theorem 3; 0: never.",
)
@click.option("--checkpoint-seconds", default=30.0, show_default=True, help="How often to save.")
@click.option(
    "--accelerator",
    type=Named(("auto", "cpu", "cuda", "mps")),
    default="auto",
    show_default=True,
    help="Lightning Fabric's: cpu, cuda, mps, …",
)
@click.option("--devices", default="1", show_default=True, help="Processes or devices per node.")
@click.option("--nodes", default=1, show_default=True, help="Machines.")
@click.option(
    "--strategy",
    type=Named(("auto", "ddp", "fsdp", "deepspeed")),
    default="auto",
    show_default=True,
    help="Lightning Fabric's: auto, ddp, …",
)
@click.option("--workers", default=2, show_default=True, help="Processes that read images from folders.")
@click.option(
    "--compile", "compiles", is_flag=True, help="Compile the network for its training steps; last digits change."
)
@click.option("--quiet", is_flag=True, help="No progress bar, no lines.")
@one_line_errors
def train(
    out: Path,
    preset: str | None,
    given_options: tuple[str, ...],
    temperature: bool,
    evaluate_every: int,
    terms_every: int,
    checkpoint_seconds: float,
    accelerator: str,
    devices: str,
    nodes: int,
    strategy: str,
    workers: int,
    compiles: bool,
    quiet: bool,
    **settings: Any,
) -> None:
    for name, value, least in (
        ("evaluate-every", evaluate_every, 1),
        ("workers", workers, 0),
        ("terms-every", terms_every, 0),
    ):
        if value < least:
            raise click.UsageError(f"--{name} must be at least {least}, got {value}.")
    if not checkpoint_seconds >= 0:
        raise click.UsageError(f"--checkpoint-seconds must be at least 0, got {checkpoint_seconds}.")
    config = _config(preset, settings, given_options)
    if temperature and config.holdout == 0:
        raise click.UsageError("--temperature needs data that is held out: give --holdout above 0.")
    from mixreg._support.freed_memory import keep_freed_memory
    from mixreg.training.engine import Engine
    from mixreg.training.run import train as train_run

    keep_freed_memory()
    count = int(devices) if devices.isdigit() else devices
    engine = Engine(accelerator, count, nodes, strategy, workers, compiles)
    try:
        is_new = train_run(config, out, engine, _observer(quiet, terms_every), checkpoint_seconds, evaluate_every)
    finally:
        _leave_other_processes()
    if temperature and is_new is not None:
        _add_tempered(out, config)
    # Of several processes one speaks.
    if is_new is not None and int(os.environ.get("RANK", "0")) == 0:
        click.echo(printable(f"{out}: {'done' if is_new else 'was done before'}"))
        if not quiet:
            _print_scores(out, config)


def _print_scores(out: Path, config: Config) -> None:
    """How good it is, and what to do with it."""
    import json

    from mixreg.training.run import METRICS

    metrics = json.loads((out / METRICS).read_text())
    for name in ("plain", "rescaled"):
        found = metrics[name]
        if "accuracy" in found:
            scores = (
                f"accuracy {found['accuracy']:.1%}, cross-entropy {found['cross_entropy']:.4f}, ECE {found['ece']:.1%}"
            )
        else:
            scores = f"RMSE {found['rmse']:.4g}, MAE {found['mae']:.4g}"
            scores += f", R² {found['r2']:.3f}" if "r2" in found else ""
        click.echo(f"  {name + ':':<10} {scores}")
    if "best_epoch" in metrics:
        click.echo(f"  stopped after epoch {metrics['stopped_after']}, the best was {metrics['best_epoch']}")
    if "cut_off_for_testing" in metrics:
        count = metrics["cut_off_for_testing"]
        click.echo(f"  {count:,} samples were cut off for testing, as the data has no test part")
    click.echo(printable(f"Next: {_next_command(out, config)}"))


def _next_command(out: Path, config: Config) -> str:
    """What evaluates the run; code of one's own is named again, as a file never chooses code."""
    own = (("--model", config.model), ("--method", config.method))
    words = [word for flag, reference in own if ":" in reference for word in (flag, reference)]
    return shlex.join(["mixreg", "evaluate", str(out), *words])


def _observer(quiet: bool, terms_every: int) -> Observer | None:
    """Who is told how it goes, and measures terms if that is asked for."""
    from mixreg.training.observer import Observers

    found: list[Observer] = []
    if not quiet:
        from mixreg.commands.progress import Bar, Lines

        found.append(Bar() if sys.stderr is not None and sys.stderr.isatty() else Lines())
    if terms_every:
        from mixreg.training.watched_terms import WatchedTerms

        found.append(WatchedTerms(terms_every))
    return Observers(*found) if found else None


def _add_tempered(out: Path, config: Config) -> None:
    """Measures of fitted and tempered predictions, beside the others in metrics.json."""
    import json

    from mixreg._support.files import write_json
    from mixreg.evaluation.runs import evaluated
    from mixreg.evaluation.table import table
    from mixreg.training.run import METRICS
    from mixreg.training.trained import load_trained

    own = [reference if ":" in reference else None for reference in (config.model, config.method)]
    outputs, _ = evaluated(load_trained(out, *own))
    rows = {row.pop("model"): row for row in table(outputs)}
    metrics = json.loads((out / METRICS).read_text())
    write_json(out / METRICS, metrics | {name: row for name, row in rows.items() if name not in metrics})


def _leave_other_processes() -> None:
    """End the talk with other processes: threads that still listen when Python ends can abort it."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def _config(preset: str | None, settings: dict[str, Any], given_options: tuple[str, ...]) -> Config:
    from mixreg.data import EMBEDDED, RECIPES
    from mixreg.training.config import preset as by_name

    given = {name: value for name, value in settings.items() if value is not None}
    own = {name.removeprefix("option_"): given.pop(name) for name in list(given) if name.startswith("option_")}
    own |= dict(_named_value(text) for text in given_options)
    if own:
        method = given.get("method", PRESETS.get(preset or "", {}).get("method", Config.method))
        known = options_of(method)
        given["options"] = {name: known[name].parse(text) if name in known else text for name, text in own.items()}
    if "drops" in given:
        try:
            given["drops"] = tuple(float(word) for word in _words(given["drops"]))
        except ValueError:
            raise click.UsageError(f"--drops takes fractions with commas, got {given['drops']!r}.") from None
    if given.get("class_weights") not in (None, UNWEIGHTED, BALANCED) and Path(given["class_weights"]).is_file():
        given["class_weights"] = _weights_in(Path(given["class_weights"]))
    if given.get("data") == "":
        raise click.UsageError("--data names a dataset, got ''.")
    if "data" in given and given["data"] not in (*EMBEDDED, *RECIPES):
        # A run can be evaluated from anywhere.
        given["data"] = str(Path(given["data"]).resolve()) if Path(given["data"]).exists() else given["data"]
    if preset is not None and "data" not in given | PRESETS.get(preset, {"data": ""}):
        raise click.UsageError(f"--preset {preset} needs --data: a folder of class folders.")
    return Config(**given) if preset is None else by_name(preset, **given)


def _weights_in(path: Path) -> str:
    """The numbers of a file, one for each class: JSON's list, or separated by white space or commas."""
    try:
        words = path.read_text(encoding="utf-8-sig").replace("[", " ").replace("]", " ").replace(",", " ").split()
        if any("_" in word for word in words):
            raise ValueError(f"got {next(word for word in words if '_' in word)!r}")
        return ",".join(repr(float(word)).removesuffix(".0") for word in words)
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--class-weights {path} must hold a number for each class: {error}.") from None


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _named_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.UsageError(f"--method-option takes NAME=VALUE, got {text!r}.")
    return name, value
