"""Figure 7: Mixup, approximate Mixup and label smoothing make networks less confident than ERM does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mixreg.experiments import lenet_runs, trained
from mixreg.experiments.claims import Comparison, exceeds
from mixreg.experiments.experiment import Claim, Experiment, Results, Run, Sizes, Table
from mixreg.report.curves import label_corner, mean_histogram, new_figure
from mixreg.report.intervals import cell
from mixreg.report.palette import METHODS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PANELS = (("erm", "smoothing", "mixup"), ("erm", "mixup", "approximate"))
_METHODS = ("erm", "smoothing", "mixup", "approximate")
# Whose rows the table shows rescaled too.
_RESCALED = ("mixup", "approximate")


def runs(sizes: Sizes) -> list[Run]:
    return lenet_runs.runs(sizes, _METHODS)


def caption(sizes: Sizes) -> str:
    return lenet_runs.caption(sizes, "mean")


def _mean_confidence(results: Results, method: str, predictor: str = "plain") -> list[float]:
    return [result["confidence"][predictor]["mean"] for result in results.select(method=method)]


def figure(results: Results, sizes: Sizes) -> Figure:
    """Histograms of the largest probability on test points."""
    drawing = new_figure(11, 4.2)
    for axes, methods in zip(drawing.subplots(1, 2, sharey=True), _PANELS, strict=True):
        for method in methods:
            counts = [result["confidence"]["plain"]["counts"] for result in results.select(method=method)]
            shares = [[count / sum(row) for count in row] for row in counts]
            mean_histogram(axes, shares, 0.0, color=METHODS[method], linewidth=2)
        label_corner(axes, [(lenet_runs.METHODS[method], METHODS[method]) for method in methods])
        axes.set(ylabel="fraction of test points")
    return drawing


def table(results: Results, sizes: Sizes) -> Table:
    """Mean confidence beside accuracy and calibration."""
    alpha = f"{sizes['alpha']:g}"
    rows = []
    for method in _METHODS:
        found = results.select(method=method)
        shown = ["plain", alpha] if method in _RESCALED else ["plain"]
        for predictor in shown:
            cells = [cell(_mean_confidence(results, method, predictor), ".3f")]
            cells += [cell([r["test"][predictor][m] for r in found], ".3f") for m in ("accuracy", "ece")]
            name = lenet_runs.METHODS[method] + ("" if predictor == "plain" else ", rescaled")
            rows.append([name, *cells])
    return Table(["method", "mean confidence", "accuracy", "ECE"], rows)


def claims(results: Results, sizes: Sizes) -> list[Claim]:
    """Who is more confident than whom."""

    def is_more_confident(more: str, less: str) -> Comparison:
        about = f"mean confidence, {lenet_runs.METHODS[more]} − {lenet_runs.METHODS[less]}"
        return exceeds(about, *lenet_runs.of_both(*(_mean_confidence(results, method) for method in (more, less))))

    return [
        Claim(
            "Mixup and label smoothing lower confidence",
            "ERM gives the most confident networks, label smoothing less confident ones, Mixup the least confident of "
            "the three.",
            "Figure 7, left",
            (is_more_confident("erm", "smoothing"), is_more_confident("smoothing", "mixup")),
        ),
        Claim(
            "approximate Mixup lowers confidence",
            "Networks trained with approximate Mixup are less confident than those trained with ERM, as Mixup's are.",
            "Figure 7, right",
            (is_more_confident("erm", "approximate"),),
        ),
    ]


EXPERIMENT = Experiment(
    name="confidence",
    paper="Figure 7",
    title="How confident networks are on test points: ERM, label smoothing, Mixup, approximate Mixup.",
    sizes_at=lenet_runs.sizes_at,
    kinds=trained.KINDS,
    runs=runs,
    caption=caption,
    figure=figure,
    table=table,
    claims=claims,
    missing=lenet_runs.missing,
    earlier=lenet_runs.EARLIER,
)
