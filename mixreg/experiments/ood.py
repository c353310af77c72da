"""Figures 5 and 6: the same networks on corrupted images, and what rescaling gains by severity.

Measures are means over 19 corruptions; Figure 5 also averages over the five severities.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mixreg.data.registry import IMAGENET
from mixreg.experiments import alpha_runs, trained
from mixreg.experiments.alpha_runs import MEASURES, Values, curves, gain, plot_over_alpha, shown_name
from mixreg.experiments.claims import Comparison, is_positive
from mixreg.experiments.experiment import Claim, Experiment, Results, Run, Sizes, Table
from mixreg.report.curves import mean_curve, new_figure
from mixreg.report.intervals import interval

if TYPE_CHECKING:
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


def _over_severities(results: Results, data: str, measure: str) -> Values:
    """The same, averaged over severities: repetitions."""
    return lambda alpha, predictor: _by_severity(results, data, measure)(alpha, predictor).mean(1)


def _gains(results: Results, sizes: Sizes, data: str, measure: str) -> np.ndarray:
    """How much better rescaled Mixup is than plain Mixup, α × repetitions × severities."""
    values = _by_severity(results, data, measure)
    return np.stack([gain(values, measure, alpha) for alpha in sizes["alphas"]])


def caption(sizes: Sizes) -> str:
    source = f"19 corruptions of {sizes['images']:,} test images"
    if sizes["corruptions"] != "generated":
        source = f"the corruptions in {Path(sizes['corruptions']).name}"
    return f"{source} at 5 severities; {alpha_runs.caption(_without_imagenet(sizes))}"


def figure(results: Results, sizes: Sizes) -> Figure:
    """Two rows per dataset: measures against α, and what rescaling gains by severity."""
    from matplotlib import colormaps

    alphas, datasets = sizes["alphas"], _without_imagenet(sizes)["datasets"]
    drawing = new_figure(13, 0.6 + 6.8 * len(datasets))
    axes = drawing.subplots(2 * len(datasets), 3, squeeze=False)
    shades = colormaps["viridis"](np.linspace(0.9, 0, len(alphas)))
    for index, data in enumerate(datasets):
        name = shown_name(data)
        for column, (measure, label) in enumerate(MEASURES.items()):
            above, below = axes[2 * index, column], axes[2 * index + 1, column]
            values = _over_severities(results, data, measure)
            shown = curves(sizes, of_rescaled_erm=False)
            plot_over_alpha(above, alphas, values, f"{name}, corrupted: {label}", shown)
            for alpha, shade, rows in zip(alphas, shades, _gains(results, sizes, data, measure), strict=True):
                mean_curve(below, range(1, 6), rows, f"α = {alpha:g}", color=shade, marker=".")
            below.axhline(0, color="black", linewidth=0.8)
            below.set(xlabel="severity", title=f"{name}: gain of rescaling in {label}", xticks=range(1, 6))
    axes[0, 0].legend(fontsize=8)
    axes[1, 0].legend(fontsize=8)
    return drawing


def table(results: Results, sizes: Sizes) -> Table:
    """Gains of rescaling by α and severity."""
    rows = []
    for data in _without_imagenet(sizes)["datasets"]:
        for measure, label in MEASURES.items():
            for alpha, found in zip(sizes["alphas"], _gains(results, sizes, data, measure), strict=True):
                cells = [f"{interval(column.tolist()):+.4f}".replace("± +", "± ") for column in found.T]
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
                "Averaged over α, corruptions and severities, plain Mixup is better than rescaled Mixup.",
                "Figure 5",
                _worse("loss in {}, mean", {m: -by_severity[m].mean(1) for m in MEASURES}),
            ),
            Claim(
                f"{name}, corrupted: rescaling's advantage shrinks with severity",
                "The gap between plain and rescaled Mixup grows in favour of plain Mixup as corruption grows.",
                "Figure 6",
                _worse("gain in {} falls, per severity", {m: -slopes[m] for m in MEASURES}),
            ),
            Claim(
                f"{name}, corrupted: rescaling's advantage turns",
                "At the highest severity plain Mixup is better than rescaled Mixup.",
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
    caption=caption,
    figure=figure,
    table=table,
    claims=claims,
    missing=alpha_runs.missing,
    paper_sizes={"datasets": ["cifar10", "cifar100"]},
)
