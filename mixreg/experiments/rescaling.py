"""Figure 4: predicting as eq. (testmodif) says improves Mixup networks, and only them.

A *gain* is how much better the rescaled prediction of a network is than its plain one: higher accuracy, or lower
cross-entropy or ECE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mixreg.experiments import alpha_runs
from mixreg.experiments.alpha_runs import MEASURES, NAMES
from mixreg.experiments.claims import Claim, exceeds
from mixreg.experiments.experiment import Experiment, Results, Sizes, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def values(results: Results, sizes: Sizes, data: str, alpha: float, predictor: str, measure: str) -> list[float]:
    """A measure on test data of one α's networks (0 is ERM), repetition by repetition."""
    return [found["test"][predictor][measure] for found in alpha_runs.results_of(results, sizes, data, alpha)]


def gains(results: Results, sizes: Sizes, data: str, measure: str, of_erm: bool = False) -> np.ndarray:
    """What rescaling gains, repetitions × α."""
    sign = 1 if measure == "accuracy" else -1
    columns = []
    for alpha in sizes["alphas"]:
        trained = 0.0 if of_erm else alpha
        rescaled, plain = (
            np.array(values(results, sizes, data, trained, predictor, measure)) for predictor in (f"{alpha:g}", "plain")
        )
        columns.append(sign * (rescaled - plain))
    return np.stack(columns, 1)


def figure(results: Results, sizes: Sizes) -> Figure:
    """A row per dataset; accuracy, cross-entropy and ECE against α."""
    from matplotlib.figure import Figure

    from mixreg.report.curves import caption, mean_curve

    alphas, datasets = sizes["alphas"], sizes["datasets"]
    drawing = Figure(figsize=(13, 0.6 + 3.6 * len(datasets)), layout="constrained")
    axes = drawing.subplots(len(datasets), 3, squeeze=False)
    for row, data in zip(axes, datasets, strict=True):
        for place, (measure, label) in zip(row, MEASURES.items(), strict=True):
            erm = values(results, sizes, data, 0.0, "plain", measure)
            curves = {
                "ERM": ([erm] * len(alphas), {"color": "C7"}),
                "ERM, rescaled": (
                    [values(results, sizes, data, 0.0, f"{a:g}", measure) for a in alphas],
                    {"color": "C7", "linestyle": "--"},
                ),
                "Mixup": ([values(results, sizes, data, a, "plain", measure) for a in alphas], {"color": "C3"}),
                "Mixup, rescaled": (
                    [values(results, sizes, data, a, f"{a:g}", measure) for a in alphas],
                    {"color": "C3", "linestyle": "--"},
                ),
            }
            for name, (columns, style) in curves.items():
                mean_curve(place, alphas, np.array(columns).T, name, marker=".", **style)
            place.set(xscale="log", xlabel="α", title=f"{NAMES.get(data, data)}: {label}")
            place.set_xticks(alphas, [f"{a:g}" for a in alphas], minor=False)
            place.minorticks_off()
    axes[0, 0].legend(fontsize=8)
    caption(drawing, alpha_runs.made_with(sizes))
    return drawing


def table(results: Results, sizes: Sizes) -> Table:
    """Every point of the figure."""
    from mixreg.report.intervals import interval

    rows = []
    for data in sizes["datasets"]:
        shown = [("ERM", 0.0, "plain")]
        shown += [(f"ERM, rescaled for α = {a:g}", 0.0, f"{a:g}") for a in sizes["alphas"]]
        for a in sizes["alphas"]:
            shown += [(f"Mixup, α = {a:g}", a, "plain"), (f"Mixup, α = {a:g}, rescaled", a, f"{a:g}")]
        for name, alpha, predictor in shown:
            cells = [interval(values(results, sizes, data, alpha, predictor, m)) for m in MEASURES]
            rows.append([NAMES.get(data, data), name, *(f"{cell:.4f}" for cell in cells)])
    return Table(["data", "method", *MEASURES.values()], rows)


def claims(results: Results, sizes: Sizes) -> list[Claim]:
    """What rescaling gains and for whom, dataset by dataset."""
    found = []
    alphas = sizes["alphas"]
    low, high = min(alphas), max(alphas)
    for data in sizes["datasets"]:
        name = NAMES.get(data, data)
        mixup = {m: gains(results, sizes, data, m) for m in MEASURES}
        erm = {m: gains(results, sizes, data, m, of_erm=True) for m in MEASURES}
        nothing = [0.0] * alpha_runs.repetitions(sizes, data)
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
                    exceeds(f"gain in {label}, mean over α", mixup[m].mean(1).tolist(), nothing)
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
                    exceeds(f"loss in {label}, α = {alpha:g}", (-erm[m][:, index]).tolist(), nothing)
                    for m, label in MEASURES.items()
                    for index, alpha in enumerate(alphas)
                ),
            ),
        ]
    return found


EXPERIMENT = Experiment(
    "rescaling",
    "Figure 4",
    "Accuracy, cross-entropy and ECE against α: ERM and Mixup, plain and rescaled.",
    alpha_runs.sizes,
    alpha_runs.runs,
    figure,
    table,
    claims,
    alpha_runs.missing,
)
