"""Figure 7: Mixup, approximate Mixup and label smoothing make networks less sure of themselves than ERM does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mixreg.experiments import lenet_runs
from mixreg.experiments.claims import Claim, exceeds
from mixreg.experiments.experiment import Experiment, Results, Sizes, Table
from mixreg.experiments.store import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PANELS = (("erm", "smoothing", "mixup"), ("erm", "mixup", "approximate"))
_METHODS = ("erm", "smoothing", "mixup", "approximate")


def runs(sizes: Sizes) -> list[Run]:
    """ERM, label smoothing, Mixup and approximate Mixup."""
    return lenet_runs.runs(sizes, _METHODS)


def _means(results: Results, sizes: Sizes, method: str, predictor: str = "plain") -> list[float]:
    return [result["confidence"][predictor]["mean"] for result in lenet_runs.repetitions(results, sizes, method)]


def figure(results: Results, sizes: Sizes) -> Figure:
    """Histograms of the largest probability on test points."""
    from matplotlib.figure import Figure

    from mixreg.report.curves import caption, mean_histogram

    drawing = Figure(figsize=(11, 4.2), layout="constrained")
    for axes, methods in zip(drawing.subplots(1, 2, sharey=True), _PANELS, strict=True):
        for method in methods:
            counts = [r["confidence"]["plain"]["counts"] for r in lenet_runs.repetitions(results, sizes, method)]
            shares = [[count / sum(row) for count in row] for row in counts]
            style = {"color": lenet_runs.COLOURS[method], "linewidth": 2}
            mean_histogram(axes, shares, 0.0, lenet_runs.METHODS[method], **style)
        axes.legend(fontsize=8, loc="upper left")
        axes.set(ylabel="fraction of test points")
    caption(drawing, lenet_runs.made_with(sizes).replace("mean and 95 % interval", "mean"))
    return drawing


def table(results: Results, sizes: Sizes) -> Table:
    """Mean confidence beside accuracy and calibration."""
    from mixreg.report.intervals import interval

    alpha = f"{sizes['alpha']:g}"
    rows = []
    for method in _METHODS:
        found = lenet_runs.repetitions(results, sizes, method)
        shown = ["plain", alpha] if method in ("mixup", "approximate") else ["plain"]
        for predictor in shown:
            cells = [interval(_means(results, sizes, method, predictor))]
            cells += [interval([r["test"][predictor][m] for r in found]) for m in ("accuracy", "ece")]
            name = lenet_runs.METHODS[method] + ("" if predictor == "plain" else ", rescaled")
            rows.append([name, *(f"{cell:.3f}" for cell in cells)])
    return Table(["method", "mean confidence", "accuracy", "ECE"], rows)


def claims(results: Results, sizes: Sizes) -> list[Claim]:
    """Who is surer than whom."""

    def surer(more: str, less: str) -> tuple[str, list[float], list[float]]:
        about = f"mean confidence, {lenet_runs.METHODS[more]} − {lenet_runs.METHODS[less]}"
        return about, _means(results, sizes, more), _means(results, sizes, less)

    return [
        Claim(
            "Mixup and label smoothing lower confidence",
            "ERM is surest, label smoothing less so, Mixup even less.",
            "Figure 7, left",
            (exceeds(*surer("erm", "smoothing")), exceeds(*surer("smoothing", "mixup"))),
        ),
        Claim(
            "approximate Mixup lowers confidence",
            "Like Mixup, approximate Mixup is less sure than ERM.",
            "Figure 7, right",
            (exceeds(*surer("erm", "approximate")),),
        ),
    ]


EXPERIMENT = Experiment(
    "confidence",
    "Figure 7",
    "How sure networks are on test points: ERM, label smoothing, Mixup, approximate Mixup.",
    lenet_runs.sizes,
    runs,
    figure,
    table,
    claims,
    lenet_runs.missing,
)
