"""Figures 5 and 6: the same networks on corrupted images, and what rescaling gains by severity.

Measures are means over 19 corruptions; Figure 5 also averages over the five severities.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mixreg.data.registry import IMAGENET
from mixreg.experiments import alpha_runs
from mixreg.experiments.alpha_runs import MEASURES, NAMES
from mixreg.experiments.claims import Claim, Part, exceeds
from mixreg.experiments.experiment import Experiment, Results, Sizes, Table
from mixreg.experiments.store import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SEVERITIES = ("1", "2", "3", "4", "5")


def _datasets(sizes: Sizes) -> list[str]:
    """ImageNet has an experiment of its own."""
    return [name for name in sizes["datasets"] if name != IMAGENET]


def runs(sizes: Sizes) -> list[Run]:
    """Those of `rescaling`, but for ImageNet."""
    return alpha_runs.runs({**sizes, "datasets": _datasets(sizes)})


def values(results: Results, sizes: Sizes, data: str, alpha: float, predictor: str, measure: str) -> np.ndarray:
    """A measure under corruption of one α's networks (0 is ERM), repetitions × severities."""
    found = alpha_runs.results_of(results, sizes, data, alpha)
    return np.array([[one["corruptions"][predictor][s][measure] for s in _SEVERITIES] for one in found])


def gains(results: Results, sizes: Sizes, data: str, measure: str) -> np.ndarray:
    """How much better rescaled Mixup is than plain Mixup, α × repetitions × severities."""
    sign = 1 if measure == "accuracy" else -1
    return np.stack(
        [
            sign
            * (
                values(results, sizes, data, alpha, f"{alpha:g}", measure)
                - values(results, sizes, data, alpha, "plain", measure)
            )
            for alpha in sizes["alphas"]
        ]
    )


def figure(results: Results, sizes: Sizes) -> Figure:
    """Two rows per dataset: measures against α, and what rescaling gains by severity."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    from mixreg.report.curves import caption, mean_curve

    alphas, datasets = sizes["alphas"], _datasets(sizes)
    drawing = Figure(figsize=(13, 0.6 + 6.8 * len(datasets)), layout="constrained")
    axes = drawing.subplots(2 * len(datasets), 3, squeeze=False)
    shades = colormaps["viridis"](np.linspace(0.9, 0, len(alphas)))
    for index, data in enumerate(datasets):
        name = NAMES.get(data, data)
        for column, (measure, label) in enumerate(MEASURES.items()):
            above, below = axes[2 * index, column], axes[2 * index + 1, column]
            for method, rescaled, style in (
                ("ERM", False, {"color": "C7"}),
                ("ERM, rescaled", True, {"color": "C7", "linestyle": "--"}),
                ("Mixup", False, {"color": "C3"}),
                ("Mixup, rescaled", True, {"color": "C3", "linestyle": "--"}),
            ):
                columns = [
                    values(
                        results,
                        sizes,
                        data,
                        alpha if method.startswith("Mixup") else 0.0,
                        f"{alpha:g}" if rescaled else "plain",
                        measure,
                    ).mean(1)
                    for alpha in alphas
                ]
                mean_curve(above, alphas, np.array(columns).T, method, marker=".", **style)
            above.set(xscale="log", xlabel="α", title=f"{name}, corrupted: {label}")
            above.set_xticks(alphas, [f"{a:g}" for a in alphas])
            above.minorticks_off()
            for alpha, shade, rows in zip(alphas, shades, gains(results, sizes, data, measure), strict=True):
                mean_curve(below, range(1, 6), rows, f"α = {alpha:g}", color=shade, marker=".")
            below.axhline(0, color="black", linewidth=0.8)
            below.set(xlabel="severity", title=f"{name}: gain of rescaling in {label}", xticks=range(1, 6))
    axes[0, 0].legend(fontsize=8)
    axes[1, 0].legend(fontsize=8)
    chosen = {**sizes, "datasets": datasets}
    source = f"19 corruptions of {sizes['images']:,} test images"
    if sizes["corruptions"] != "generated":
        source = f"the corruptions in {Path(sizes['corruptions']).name}"
    caption(drawing, f"{source} at 5 severities; {alpha_runs.made_with(chosen)}")
    return drawing


def table(results: Results, sizes: Sizes) -> Table:
    """Gains of rescaling by α and severity."""
    from mixreg.report.intervals import interval

    rows = []
    for data in _datasets(sizes):
        for measure, label in MEASURES.items():
            for alpha, found in zip(sizes["alphas"], gains(results, sizes, data, measure), strict=True):
                cells = [f"{interval(column.tolist()):+.4f}".replace("± +", "± ") for column in found.T]
                rows.append([NAMES.get(data, data), f"gain in {label}, α = {alpha:g}", *cells])
    return Table(["data", "rescaled against plain Mixup", *(f"severity {s}" for s in _SEVERITIES)], rows)


def claims(results: Results, sizes: Sizes) -> list[Claim]:
    """That rescaling hurts under corruption, the more the stronger it is."""
    found = []
    for data in _datasets(sizes):
        name = NAMES.get(data, data)
        by_severity = {m: gains(results, sizes, data, m).mean(0) for m in MEASURES}
        # The slope of a line through five values, in units per severity.
        slopes = {m: by_severity[m] @ np.arange(-2, 3) / 10 for m in MEASURES}
        nothing = [0.0] * sizes["repetitions"]

        def worse(about: str, losses: dict[str, np.ndarray], zero: list[float] = nothing) -> tuple[Part, ...]:
            return tuple(exceeds(about.format(label), losses[m].tolist(), zero) for m, label in MEASURES.items())

        found += [
            Claim(
                f"{name}, corrupted: rescaling worsens Mixup",
                "Averaged over α, corruptions and severities, plain Mixup is better than rescaled Mixup.",
                "Figure 5",
                worse("loss in {}, mean", {m: -by_severity[m].mean(1) for m in MEASURES}),
            ),
            Claim(
                f"{name}, corrupted: rescaling's advantage shrinks with severity",
                "The gap between plain and rescaled Mixup grows in favour of plain Mixup as corruption grows.",
                "Figure 6",
                worse("gain in {} falls, per severity", {m: -slopes[m] for m in MEASURES}),
            ),
            Claim(
                f"{name}, corrupted: rescaling's advantage turns",
                "At the highest severity plain Mixup is better than rescaled Mixup.",
                "Figure 6",
                worse("loss in {} at severity 5", {m: -by_severity[m][:, 4] for m in MEASURES}),
            ),
        ]
    return found


EXPERIMENT = Experiment(
    "ood",
    "Figures 5 and 6",
    "Accuracy, cross-entropy and ECE on corrupted images, and what rescaling gains by severity.",
    alpha_runs.sizes,
    runs,
    figure,
    table,
    claims,
    alpha_runs.missing,
)
