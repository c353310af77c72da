"""ERM and Mixup on 10,000 images of CIFAR-10: a ResNet-9, plain, rescaled and fitted, with reliability diagrams.

    mixreg data get cifar10
    python examples/cifar10.py                                # one seed: two runs of some ten minutes on a core each
    python examples/cifar10.py --seeds 5 --workers 2          # with intervals; what is finished is not trained again

Killed, it is resumed by the same command. Writes results.json (every run's numbers, with its seed, threads, versions
and seconds), table.md, summary.json and reliability.png to out/cifar10. `examples/digits.py` needs no download.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from mixreg._support.files import write_bytes, write_json
from mixreg.calibration import Reliability
from mixreg.experiments.alpha_runs import shown_name
from mixreg.experiments.requirements import missing_for_training
from mixreg.experiments.results import Results
from mixreg.experiments.store import Run, Store
from mixreg.experiments.sweep import SweepProgress, Workers, sweep
from mixreg.experiments.trained import KINDS
from mixreg.report.curves import new_figure, put_caption
from mixreg.report.diagrams import reliability_diagram
from mixreg.report.intervals import interval

METHODS = {"ERM": "erm", "Mixup": "mixup"}
# Rows of the table: how the network was trained, and the predictor (rescaled for α = 1 is called by it).
ROWS = {
    "ERM": ("ERM", "plain"),
    "ERM, tempered": ("ERM", "plain, tempered"),
    "Mixup": ("Mixup", "plain"),
    "Mixup, tempered": ("Mixup", "plain, tempered"),
    "Mixup, rescaled": ("Mixup", "1"),
    "Mixup, rescaled, tempered": ("Mixup", "1, tempered"),
    "Mixup, fitted": ("Mixup", "fitted"),
}
SHOWN = ("ERM", "Mixup", "Mixup, rescaled", "Mixup, fitted")


def run_of(method: str, seed: int, options: argparse.Namespace) -> Run:
    """One network; a tenth of the training set is held out, to fit strengths and temperatures on."""
    config = {
        "data": options.data,
        "model": "resnet9",
        "method": METHODS[method],
        "samples": options.images,
        "epochs": options.epochs,
        "lr": 0.2,
        "schedule": "one-cycle",
        "nesterov": True,
        "augment": "none",
        "holdout": 0.1,
        "seed": seed,
    }
    return Run("training", {"config": config, "rescale": [1.0], "fit": True, "evaluate_every": options.epochs})


def asked(options: argparse.Namespace) -> list[Run]:
    """All runs, one seed after another."""
    return [run_of(method, seed, options) for seed in range(options.seeds) for method in METHODS]


def carry_out(runs: list[Run], store: Store, options: argparse.Namespace) -> None:
    """Train what is not in the store."""
    columns = TextColumn("training"), BarColumn(), TextColumn("{task.fields[count]} runs"), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task("", total=len(runs), count="")

        def tell(progress: SweepProgress) -> None:
            bars.update(task, completed=progress.done, count=f"{progress.finished}/{progress.total}")

        workers = Workers(options.workers, threads=options.threads)
        sweep(runs, store, options.out / "runs", KINDS, workers, tell)


def measured(results: Results, row: str, measure: str) -> list[float]:
    """A measure of one row: seeds."""
    method, predictor = ROWS[row]
    return [result["test"][predictor][measure] for result in results.select(method=METHODS[method])]


def cells(results: Results, row: str) -> list[str]:
    """Accuracy, cross-entropy and ECE of one row, mean ± 95 % interval over seeds."""
    accuracy, loss, ece = (measured(results, row, measure) for measure in ("accuracy", "cross_entropy", "ece"))
    return [percent(accuracy), f"{interval(loss):.4f}", percent(ece)]


def percent(values: list[float]) -> str:
    """Mean ± 95 % interval over seeds, in per cent."""
    return f"{interval([100 * value for value in values]):.2f}"


def heads(options: argparse.Namespace) -> list[str]:
    """Of the table's columns."""
    about = f"{shown_name(options.data)}, {options.images:,} images, α = 1, {seeds_of(options)}"
    return [about, "accuracy %", "cross-entropy", "ECE %"]


def seeds_of(options: argparse.Namespace) -> str:
    """How many, in words."""
    return f"{options.seeds} seed{'s' if options.seeds > 1 else ''}"


def markdown(results: Results, options: argparse.Namespace) -> str:
    """The table for a page."""
    lines = [heads(options), ["---"] * 4, *([row, *cells(results, row)] for row in ROWS)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines).replace(
        "| --- | --- | --- | --- |", "|---|---|---|---|"
    )


def pooled(results: Results, row: str) -> Reliability:
    """The bins of all seeds' predictions together."""
    method, predictor = ROWS[row]
    found = [result["reliability"][predictor] for result in results.select(method=METHODS[method])]
    counts, confidence, accuracy = (
        torch.tensor([one[part] for one in found], dtype=torch.float64) for part in ("counts", "confidence", "accuracy")
    )
    total = counts.sum(0)
    edges = torch.arange(len(total) + 1, dtype=torch.float64) / len(total)
    means = ((counts * values).sum(0) / total for values in (confidence, accuracy))
    return Reliability(edges[:-1], edges[1:], total, *means)


def draw(results: Results, options: argparse.Namespace, path: Path) -> None:
    """ERM, Mixup, rescaled and fitted Mixup side by side."""
    figure = new_figure(13, 4.5)
    axes = figure.subplots(1, len(SHOWN), sharey=True)
    for place, row in zip(axes, SHOWN, strict=True):
        reliability_diagram(place, pooled(results, row), row, f"ECE {percent(measured(results, row, 'ece'))} %")
    axes[0].set_ylabel("accuracy, share of samples")
    # Below: bars may stand anywhere.
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    put_caption(
        figure,
        f"{shown_name(options.data)}, {options.images:,} training images, no augmentation; ResNet-9, {options.epochs} "
        f"epochs; α = 1; bars: predictions of {seeds_of(options)} pooled; ECE: mean ± 95 % interval over seeds",
    )
    figure.savefig(path, dpi=150)


def summary(results: Results, records: list[dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    """What a page says of it: sizes, the strengths that were fitted, and how long a run took."""
    strengths = [result["fits"]["fitted"]["strength"] for result in results.select(method="mixup")]
    minutes = [record["provenance"]["seconds"] / 60 for record in records]
    sizes = {name: getattr(options, name) for name in ("data", "images", "epochs", "seeds")}
    return {**sizes, "strengths": strengths, "minutes": round(sum(minutes) / len(minutes), 1)}


def parsed() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1, help="repetitions (default 1)")
    parser.add_argument("--images", type=int, default=10_000, help="training images (default 10000)")
    parser.add_argument("--epochs", type=int, default=30, help="epochs per run (default 30)")
    parser.add_argument("--data", default="cifar10", help="a dataset of images (default cifar10)")
    parser.add_argument("--workers", type=int, default=1, help="runs at a time (default 1)")
    parser.add_argument("--threads", type=int, default=1, help="threads of each run (default 1)")
    parser.add_argument("--out", type=Path, default=Path("out/cifar10"), help="folder for the results")
    options = parser.parse_args()
    for name in ("seeds", "images", "epochs", "workers", "threads"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(options, name)}")
    path = options.out / "results.json"
    stored = {record["key"] for record in json.loads(path.read_text(encoding="utf-8"))} if path.exists() else set()
    if any(run.key not in stored for run in asked(options)):
        lacking = missing_for_training([options.data])
        if lacking:
            parser.error("; ".join(lacking))
    return options


def main() -> None:
    """Train what is missing, print the table, draw the diagrams."""
    options = parsed()
    runs = asked(options)
    store = Store(options.out / "results.sqlite")
    if (options.out / "results.json").exists():
        store.read_json(options.out / "results.json")
    carry_out(runs, store, options)
    store.write_json(options.out / "results.json")
    records, found = store.records(runs), store.get(runs)
    results = Results((run, found[run.key]) for run in runs)
    table = Table(*heads(options), title="mean ± 95 % interval over seeds")
    for row in ROWS:
        table.add_row(row, *cells(results, row))
    Console().print(table)
    write_bytes(options.out / "table.md", markdown(results, options).encode())
    write_json(options.out / "summary.json", summary(results, records, options))
    draw(results, options, options.out / "reliability.png")
    print(
        f"Reliability diagrams: {options.out / 'reliability.png'}; every run's numbers: {options.out / 'results.json'}"
    )


if __name__ == "__main__":
    main()
