"""Figure 4: predicting as eq. (testmodif) says improves Mixup networks, and only them.

A *gain* is how much better the rescaled prediction of a network is than its plain one: higher accuracy, or lower
cross-entropy or ECE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mixreg.experiments import alpha_runs, trained
from mixreg.experiments.alpha_runs import MEASURES, Values, curves, gain, plot_over_alpha, shown_name
from mixreg.experiments.claims import exceeds, is_positive
from mixreg.experiments.experiment import Claim, Experiment, Results, Sizes, Table
from mixreg.report.curves import new_figure
from mixreg.report.intervals import interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _on_test(results: Results, data: str, measure: str) -> Values:
    """A measure on test data: repetitions."""

    def values(alpha: float, predictor: str) -> np.ndarray:
        return np.array([found["test"][predictor][measure] for found in alpha_runs.select(results, data, alpha)])

    return values


def figure(results: Results, sizes: Sizes) -> Figure:
    """A row per dataset; accuracy, cross-entropy and ECE against α."""
    datasets = sizes["datasets"]
    drawing = new_figure(13, 0.6 + 3.6 * len(datasets))
    axes = drawing.subplots(len(datasets), 3, squeeze=False)
    for row, data in zip(axes, datasets, strict=True):
        for place, (measure, label) in zip(row, MEASURES.items(), strict=True):
            values = _on_test(results, data, measure)
            plot_over_alpha(place, sizes["alphas"], values, f"{shown_name(data)}: {label}", curves(sizes))
    axes[0, 0].legend(fontsize=8)
    return drawing


def table(results: Results, sizes: Sizes) -> Table:
    """Every point of the figure."""
    rows = []
    for data in sizes["datasets"]:
        shown = [("ERM", 0.0, "plain")]
        shown += [(f"ERM, rescaled for α = {a:g}", 0.0, f"{a:g}") for a in sizes["alphas"]]
        for a in sizes["alphas"]:
            shown += [(f"Mixup, α = {a:g}", a, "plain"), (f"Mixup, α = {a:g}, rescaled", a, f"{a:g}")]
            shown += [(f"Mixup, α = {a:g}, fitted", a, "fitted")]
        for name, alpha, predictor in shown:
            cells = [interval(_on_test(results, data, m)(alpha, predictor).tolist()) for m in MEASURES]
            rows.append([shown_name(data), name, *(f"{cell:.4f}" for cell in cells)])
    return Table(["data", "method", *MEASURES.values()], rows)


def claims(results: Results, sizes: Sizes) -> list[Claim]:
    """What rescaling gains and for whom, dataset by dataset."""
    found = []
    alphas = sizes["alphas"]
    low, high = min(alphas), max(alphas)
    for data in sizes["datasets"]:
        name = shown_name(data)
        values = {m: _on_test(results, data, m) for m in MEASURES}
        # By measure, each repetitions × α.
        mixup = {m: np.stack([gain(values[m], m, a) for a in alphas], 1) for m in MEASURES}
        erm = {m: np.stack([gain(values[m], m, a, of_erm=True) for a in alphas], 1) for m in MEASURES}
        larger = [
            exceeds(
                f"gain in {label}, α = {high:g} − α = {low:g}",
                mixup[m][:, alphas.index(high)].tolist(),
                mixup[m][:, alphas.index(low)].tolist(),
            )
            for m, label in MEASURES.items()
        ]
        found += [
            Claim(
                f"{name}: rescaling improves Mixup",
                "Averaged over α, rescaled Mixup networks have higher accuracy, lower cross-entropy and lower ECE.",
                "Figure 4",
                tuple(
                    is_positive(f"gain in {label}, mean over α", mixup[m].mean(1).tolist())
                    for m, label in MEASURES.items()
                ),
            ),
            Claim(
                f"{name}: rescaling matters more for larger α",
                "The gain of rescaling grows with α.",
                "Figure 4",
                tuple(larger) if high > low else (),
            ),
            Claim(
                f"{name}: rescaling hurts ERM",
                "For every α, rescaled ERM networks have lower accuracy, higher cross-entropy and higher ECE.",
                "Figure 4",
                tuple(
                    is_positive(f"loss in {label}, α = {alpha:g}", (-erm[m][:, index]).tolist())
                    for m, label in MEASURES.items()
                    for index, alpha in enumerate(alphas)
                ),
            ),
        ]
    return found


EXPERIMENT = Experiment(
    name="rescaling",
    paper="Figure 4",
    title="Accuracy, cross-entropy and ECE against α: ERM and Mixup, plain and rescaled.",
    sizes_at=alpha_runs.sizes_at,
    kinds=trained.KINDS,
    runs=alpha_runs.runs,
    caption=alpha_runs.caption,
    figure=figure,
    table=table,
    claims=claims,
    missing=alpha_runs.missing,
    paper_sizes={"datasets": ["cifar10", "cifar100", "imagenet"]},
)
