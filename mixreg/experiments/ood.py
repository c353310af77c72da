"""Figures 5 and 6: the same networks on corrupted images, and what rescaling gains by severity.

Measures are means over 19 corruptions; Figure 5 also averages over the five severities.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mixreg.data.registry import IMAGENET
from mixreg.experiments import alpha_runs, trained
from mixreg.experiments.alpha_runs import MEASURES, Values, gain, shown_name, sign
from mixreg.experiments.claims import Comparison, is_positive
from mixreg.experiments.experiment import Claim, Experiment, Results, Run, Sizes, Table
from mixreg.report.curves import label_ends, mean_curve, new_figure, say_better, zero_line
from mixreg.report.intervals import cell, interval
from mixreg.report.palette import METHODS, REFERENCE, shades
from mixreg.training.held_out_fit import PLAIN

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SEVERITIES = ("1", "2", "3", "4", "5")


def _without_imagenet(sizes: Sizes) -> Sizes:
    """It has an experiment of its own."""
    return {**sizes, "datasets": [name for name in sizes["datasets"] if name != IMAGENET]}


def runs(sizes: Sizes) -> list[Run]:
    """Those of `rescaling`, but for ImageNet."""
    return alpha_runs.runs(_without_imagenet(sizes))


def _by_severity(results: Results, data: str, measure: str) -> Values:
    """A measure under corruption: repetitions × severities."""

    def values(alpha: float, predictor: str) -> np.ndarray:
        found = [one for one in alpha_runs.select(results, data, alpha) if "corruptions" in one]
        return np.array([[one["corruptions"][predictor][s][measure] for s in _SEVERITIES] for one in found])

    return values


def _gains(results: Results, sizes: Sizes, data: str, measure: str) -> np.ndarray:
    """How much better rescaled Mixup is than plain Mixup, α × repetitions × severities."""
    values = _by_severity(results, data, measure)
    return np.stack([gain(values, measure, alpha) for alpha in sizes["alphas"]])


def _gains_of_erm(results: Results, data: str, measure: str, alpha: float) -> np.ndarray:
    """How much better ERM is than plain Mixup, repetitions × severities."""
    values = _by_severity(results, data, measure)
    return sign(measure) * (values(0.0, PLAIN) - values(alpha, PLAIN))


def caption(sizes: Sizes) -> str:
    source = f"19 corruptions of {sizes['images']:,} test images"
    if sizes["corruptions"] != "generated":
        source = f"the corruptions in {Path(sizes['corruptions']).name}"
    return f"{source} at 5 severities; {alpha_runs.caption(_without_imagenet(sizes))}"


def figure(results: Results, sizes: Sizes) -> Figure:
    """A row per dataset: what rescaling gains over plain Mixup by severity and over all of them; and ERM, likewise."""
    alphas, datasets = sizes["alphas"], _without_imagenet(sizes)["datasets"]
    # The least, the middle and the largest α: more of them are in the table.
    shown = sorted({0, len(alphas) // 2, len(alphas) - 1})
    middle = alphas[len(alphas) // 2]
    drawing = new_figure(15, 0.6 + 4.8 * len(datasets))
    for row, data in zip(drawing.subplots(len(datasets), 3, squeeze=False), datasets, strict=True):
        for axes, (measure, label) in zip(row, MEASURES.items(), strict=True):
            gains = _gains(results, sizes, data, measure)
            rows = {f"rescaled, α = {alphas[index]:g}": gains[index] for index in shown}
            styles = dict.fromkeys(rows, "--") | {f"ERM, against α = {middle:g}": "-"}
            rows[f"ERM, against α = {middle:g}"] = _gains_of_erm(results, data, measure, middle)
            colours = [*shades(len(shown)), METHODS["erm"]]
            for place, (name, found) in enumerate(rows.items()):
                _plot(axes, found, name, 5.7 + 0.2 * place, {"color": colours[place], "linestyle": styles[name]})
            axes.axvline(5.4, color=REFERENCE, linewidth=0.6, linestyle=":")
            axes.set(xlabel="severity", title=f"{shown_name(data)}, corrupted: gain in {label}")
            axes.set_xticks([*range(1, 6), 6], [*_SEVERITIES, "mean"])
            zero_line(axes, "plain Mixup")
            say_better(axes, "higher")
            label_ends(axes)
    return drawing


def _plot(axes: Axes, rows: np.ndarray, name: str, place: float, style: dict[str, str]) -> None:
    """Gains by severity as a curve (Figure 6), and their mean over severities beside it (Figure 5), which is named."""
    mean_curve(axes, range(1, 6), rows, "", marker=".", **style)
    mean, half = interval(rows.mean(1).tolist())
    axes.errorbar([place], [mean], [[half], [half]], color=style["color"], elinewidth=1.2)
    axes.plot([place], [mean], "o", markersize=5, color=style["color"], label=name)


def table(results: Results, sizes: Sizes) -> Table:
    """Gains of rescaling by α and severity."""
    rows = []
    for data in _without_imagenet(sizes)["datasets"]:
        for measure, label in MEASURES.items():
            for alpha, found in zip(sizes["alphas"], _gains(results, sizes, data, measure), strict=True):
                cells = [cell(column.tolist(), "+.4f") for column in found.T]
                rows.append([shown_name(data), f"gain in {label}, α = {alpha:g}", *cells])
    return Table(["data", "rescaled against plain Mixup", *(f"severity {s}" for s in _SEVERITIES)], rows)


def claims(results: Results, sizes: Sizes) -> list[Claim]:
    """That rescaling hurts under corruption, the more the stronger it is."""
    found = []
    for data in _without_imagenet(sizes)["datasets"]:
        name = shown_name(data)
        by_severity = {m: _gains(results, sizes, data, m).mean(0) for m in MEASURES}
        # The slope of a line through five values, in units per severity.
        slopes = {m: by_severity[m] @ np.arange(-2, 3) / 10 for m in MEASURES}
        found += [
            Claim(
                f"{name}, corrupted: rescaling worsens Mixup",
                f"On corrupted images of {name}, averaged over α, corruptions and severities, plain Mixup is better "
                "than rescaled Mixup.",
                "Figure 5",
                _worse("loss in {}, mean", {m: -by_severity[m].mean(1) for m in MEASURES}),
            ),
            Claim(
                f"{name}, corrupted: rescaling's advantage shrinks with severity",
                f"On corrupted images of {name}, the gap between plain and rescaled Mixup grows in favour of plain "
                "Mixup as corruption grows.",
                "Figure 6",
                _worse("gain in {} falls, per severity", {m: -slopes[m] for m in MEASURES}),
            ),
            Claim(
                f"{name}, corrupted: rescaling's advantage turns",
                f"On images of {name} corrupted at the highest severity, plain Mixup is better than rescaled Mixup.",
                "Figure 6",
                _worse("loss in {} at severity 5", {m: -by_severity[m][:, 4] for m in MEASURES}),
            ),
        ]
    return found


def _worse(about: str, losses: dict[str, np.ndarray]) -> tuple[Comparison, ...]:
    return tuple(is_positive(about.format(label), losses[m].tolist()) for m, label in MEASURES.items())


EXPERIMENT = Experiment(
    name="ood",
    paper="Figures 5 and 6",
    title="Accuracy, cross-entropy and ECE on corrupted images, and what rescaling gains by severity.",
    sizes_at=alpha_runs.sizes_at,
    kinds=trained.KINDS,
    runs=runs,
    earlier=alpha_runs.EARLIER,
    caption=caption,
    figure=figure,
    table=table,
    claims=claims,
    missing=alpha_runs.missing,
    paper_sizes={"datasets": ["cifar10", "cifar100"]},
)
