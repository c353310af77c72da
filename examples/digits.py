"""Three lines in an ordinary training loop: ERM and Mixup on scikit-learn's digits, plain, rescaled and tempered.

    python examples/digits.py            # about a minute; writes out/digits/reliability.png

Each seed splits the 1,797 images into 400 to train on, 300 to fit the temperature on, and 1,097 to test on.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from mixreg import Mixup, Rescaled, calibration
from mixreg.report.curves import new_figure, put_caption
from mixreg.report.diagrams import reliability_diagram
from mixreg.report.intervals import interval

ALPHA = 1.0
TRAIN, HELD_OUT = 400, 300
BINS = 15
MEASURES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "accuracy": calibration.accuracy,
    "cross-entropy": calibration.negative_log_likelihood,
    "ECE": partial(calibration.expected_calibration_error, bins=BINS),
}
NETWORK = "a LeNet-like network (two 3×3 convolutions, tanh, 16 channels)"


def load() -> tuple[Tensor, Tensor]:
    """The digits as 1,797 × 1 × 8 × 8 images in [0, 1], and their labels."""
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16, torch.tensor(labels)


def lenet() -> nn.Module:
    """A LeNet for 8 × 8 images."""
    return nn.Sequential(
        *[nn.Conv2d(1, 16, 3, padding=1), nn.Tanh(), nn.Conv2d(16, 16, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)],
        *[nn.Flatten(), nn.Linear(256, 64), nn.Tanh(), nn.Linear(64, 10)],
    )


def train(loader: DataLoader[tuple[Tensor, ...]], alpha: float, epochs: int) -> nn.Module:
    """An ordinary loop. α = 0 is ERM."""
    net = lenet()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    mix = Mixup(alpha, num_classes=10)  # the first line
    for _ in range(epochs):
        for x, y in loader:
            x, y = mix(x, y)  # the second line
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
        schedule.step()
    return net.eval()


@torch.no_grad()
def predict(seed: int, alpha: float, epochs: int) -> tuple[dict[str, Tensor], Tensor]:
    """One training run: test logits of every way to predict, and the test labels."""
    images, labels = load()
    torch.manual_seed(seed)
    order = torch.randperm(len(images))
    seen, held_out, test = order[:TRAIN], order[TRAIN : TRAIN + HELD_OUT], order[TRAIN + HELD_OUT :]
    loader = DataLoader(TensorDataset(images[seen], labels[seen]), batch_size=64, shuffle=True)
    with torch.enable_grad():
        net = train(loader, alpha, epochs)
    predictors = {"plain": net}
    if alpha > 0:
        predictors["rescaled"] = Rescaled.from_loader(net, loader, alpha=alpha, num_classes=10)  # the third line
    logits = {}
    for name, predictor in predictors.items():
        logits[name] = predictor(images[test])
        temper = calibration.TemperatureScaling().fit(predictor(images[held_out]), labels[held_out])
        logits[f"{name}, tempered"] = temper(logits[name])
    return logits, labels[test]


def main() -> None:
    """Train, print the table, draw the diagram."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="repetitions (default 10)")
    parser.add_argument("--epochs", type=int, default=60, help="epochs per run (default 60)")
    parser.add_argument("--threads", type=int, default=1, help="threads (default 1: the network is too small for more)")
    parser.add_argument("--out", type=Path, default=Path("out/digits"), help="folder for the results")
    options = parser.parse_args()
    # More threads than a network of this size can use wait for each other, for minutes on a machine that is in use.
    torch.set_num_threads(options.threads)

    values: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    diagrams: dict[tuple[str, str], calibration.ReliabilityHistogram] = defaultdict(
        lambda: calibration.ReliabilityHistogram(bins=BINS)
    )
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total} runs")
    with Progress(*columns, TimeRemainingColumn()) as progress:
        task = progress.add_task("training", total=2 * options.seeds)
        for seed in range(options.seeds):
            for method, alpha in (("ERM", 0.0), ("Mixup", ALPHA)):
                logits, labels = predict(seed, alpha, options.epochs)
                for way, u in logits.items():
                    diagrams[method, way].update(u, labels)
                    for name, measure in MEASURES.items():
                        values[method, way][name].append(measure(u, labels).item())
                progress.advance(task)

    print_table(values, options.seeds)
    options.out.mkdir(parents=True, exist_ok=True)
    rows = [{"method": method, "prediction": way, **measured} for (method, way), measured in values.items()]
    settings = {"alpha": ALPHA, "epochs": options.epochs, "seeds": options.seeds}
    (options.out / "values.json").write_text(json.dumps({**settings, "rows": rows}, indent=1))
    draw(diagrams, values, options.seeds, options.out / "reliability.png")
    print(f"Reliability diagram: {options.out / 'reliability.png'}; every run's numbers: {options.out / 'values.json'}")


def print_table(values: dict[tuple[str, str], dict[str, list[float]]], seeds: int) -> None:
    """One row per method and way to predict."""
    table = Table(title=f"Digits, {TRAIN} training images, α = {ALPHA:g}: mean ± 95 % interval over {seeds} seeds")
    for heading in ("method", "prediction"):
        table.add_column(heading)
    for heading in ("accuracy %", "cross-entropy", "ECE %"):
        table.add_column(heading, justify="right")
    for (method, way), measured in values.items():
        cells = percent(measured["accuracy"]), f"{interval(measured['cross-entropy']):.3f}", percent(measured["ECE"])
        table.add_row(method, way, *cells, end_section=way.startswith("plain,"))
    Console().print(table)


def percent(values: list[float]) -> str:
    """Mean ± 95 % interval over seeds, in per cent."""
    return f"{interval([100 * value for value in values]):.1f}"


def draw(
    diagrams: dict[tuple[str, str], calibration.ReliabilityHistogram],
    values: dict[tuple[str, str], dict[str, list[float]]],
    seeds: int,
    path: Path,
) -> None:
    """ERM, Mixup, and rescaled Mixup side by side: bars of all seeds' predictions pooled, and the table's ECE."""
    shown = {"ERM": ("ERM", "plain"), "Mixup": ("Mixup", "plain"), "Mixup, rescaled": ("Mixup", "rescaled")}
    figure = new_figure(10, 4.5)
    axes = figure.subplots(1, len(shown), sharey=True)
    for ax, (title, key) in zip(axes, shown.items(), strict=True):
        reliability_diagram(ax, diagrams[key].compute(), title, f"ECE {percent(values[key]['ECE'])} %")
    axes[0].set_ylabel("accuracy, share of samples")
    # Below: bars may stand anywhere.
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    put_caption(
        figure,
        f"scikit-learn digits, {TRAIN} training images; {NETWORK}; α = {ALPHA:g}; bars: predictions of {seeds} seeds "
        "pooled; ECE: mean ± 95 % interval over seeds, as in the table",
    )
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
