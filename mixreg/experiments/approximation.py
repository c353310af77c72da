"""Figure 2: training on the quadratic risk of Theorem 3 instead of on mixed pairs gives networks that behave alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mixreg.experiments import lenet_runs, moments, trained
from mixreg.experiments.claims import stays_within
from mixreg.experiments.experiment import Claim, Experiment, Results, Run, Sizes, Table
from mixreg.report.curves import mean_curve, new_figure
from mixreg.report.intervals import interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_METHODS = ("mixup", "approximate")
_PREDICTORS = {"plain": "", "rescaled": ", rescaled"}
# How far apart final values may be and still count as following each other: nats, and a fraction of the test set.
LOSS_MARGIN, ACCURACY_MARGIN = 0.1, 0.02


def runs(sizes: Sizes) -> list[Run]:
    return lenet_runs.runs(sizes, _METHODS)


def _curves(results: Results, method: str, measure: str, predictor: str = "plain") -> list[list[float]]:
    """Repetitions × epochs."""
    logs = [result["log"] for result in results.select(method=method)]
    if measure == "train_loss":
        return [[record["train_loss"] for record in log] for log in logs]
    return [[record["test"][predictor][measure] for record in log] for log in logs]


def _final(results: Results, method: str, measure: str, predictor: str = "plain") -> list[float]:
    return [curve[-1] for curve in _curves(results, method, measure, predictor)]


def figure(results: Results, sizes: Sizes) -> Figure:
    """Train loss, test loss and test accuracy over epochs."""
    drawing = new_figure(13, 4.2)
    left, middle, right = drawing.subplots(1, 3)
    epochs = range(1, sizes["epochs"] + 1)
    for method in _METHODS:
        name, colour = lenet_runs.METHODS[method], lenet_runs.COLOURS[method]
        mean_curve(left, epochs, _curves(results, method, "train_loss"), name, color=colour)
        for predictor, suffix in _PREDICTORS.items():
            style = {"color": colour, "linestyle": "--" if suffix else "-"}
            for axes, measure in ((middle, "cross_entropy"), (right, "accuracy")):
                mean_curve(axes, epochs, _curves(results, method, measure, predictor), name + suffix, **style)
    left.set(title="train loss (each method's own)", xlabel="epoch")
    middle.set(title="test loss (cross-entropy)", xlabel="epoch")
    right.set(title="test accuracy", xlabel="epoch")
    right.legend(fontsize=8)
    return drawing


def table(results: Results, sizes: Sizes) -> Table:
    """The same at the last epoch."""
    rows = []
    for method in _METHODS:
        for predictor, suffix in _PREDICTORS.items():
            measures = ("train_loss", "cross_entropy", "accuracy")
            cells = [f"{interval(_final(results, method, measure, predictor)):.3f}" for measure in measures]
            rows.append([lenet_runs.METHODS[method] + suffix, *cells])
    return Table(["method", "train loss", "test cross-entropy", "test accuracy"], rows)


def claims(results: Results, sizes: Sizes) -> list[Claim]:
    """That approximate Mixup follows Mixup."""
    parts = [
        stays_within(
            f"{label}, approximate − Mixup, at the end (margin {margin:g})",
            _final(results, "approximate", measure),
            _final(results, "mixup", measure),
            margin,
        )
        for measure, label, margin in (
            ("train_loss", "train loss", LOSS_MARGIN),
            ("cross_entropy", "test loss", LOSS_MARGIN),
            ("accuracy", "test accuracy", ACCURACY_MARGIN),
        )
    ]
    statement = "Training on the quadratic risk follows training with Mixup in train loss, test loss and accuracy."
    return [Claim("approximate Mixup follows Mixup", statement, "Figure 2", tuple(parts))]


EXPERIMENT = Experiment(
    name="approximation",
    paper="Figure 2",
    title="Train loss, test loss and accuracy over epochs: Mixup and approximate Mixup.",
    sizes_at=lenet_runs.sizes_at,
    kinds=trained.KINDS,
    runs=runs,
    caption=lenet_runs.caption,
    figure=figure,
    table=table,
    claims=claims,
    missing=lenet_runs.missing,
    earlier=moments.EARLIER,
)
