"""Figure 2: training on the quadratic risk of Theorem 3 instead of on mixed pairs gives networks that behave alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mixreg.experiments import lenet_runs
from mixreg.experiments.claims import Claim, stays_within
from mixreg.experiments.experiment import Experiment, Results, Sizes, Table
from mixreg.experiments.store import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_METHODS = ("mixup", "approximate")
_PREDICTORS = {"plain": "", "rescaled": ", rescaled"}
# How far apart final values may be and still count as following each other: nats, and a fraction of the test set.
LOSS_MARGIN, ACCURACY_MARGIN = 0.1, 0.02


def runs(sizes: Sizes) -> list[Run]:
    """Mixup and approximate Mixup."""
    return lenet_runs.runs(sizes, _METHODS)


def _curves(results: Results, sizes: Sizes, method: str, measure: str, predictor: str = "plain") -> list[list[float]]:
    """Repetitions × epochs."""
    logs = [result["log"] for result in lenet_runs.repetitions(results, sizes, method)]
    if measure == "train_loss":
        return [[record["train_loss"] for record in log] for log in logs]
    return [[record["test"][predictor][measure] for record in log] for log in logs]


def _final(*arguments: Any) -> list[float]:
    return [curve[-1] for curve in _curves(*arguments)]


def figure(results: Results, sizes: Sizes) -> Figure:
    """Train loss, test loss and test accuracy over epochs."""
    from matplotlib.figure import Figure

    from mixreg.report.curves import caption, mean_curve

    drawing = Figure(figsize=(13, 4.2), layout="constrained")
    left, middle, right = drawing.subplots(1, 3)
    epochs = range(1, sizes["epochs"] + 1)
    for method in _METHODS:
        name, colour = lenet_runs.METHODS[method], lenet_runs.COLOURS[method]
        mean_curve(left, epochs, _curves(results, sizes, method, "train_loss"), name, color=colour)
        for predictor, suffix in _PREDICTORS.items():
            style = {"color": colour, "linestyle": "--" if suffix else "-"}
            for axes, measure in ((middle, "cross_entropy"), (right, "accuracy")):
                mean_curve(axes, epochs, _curves(results, sizes, method, measure, predictor), name + suffix, **style)
    left.set(title="train loss (each method's own)", xlabel="epoch")
    middle.set(title="test loss (cross-entropy)", xlabel="epoch")
    right.set(title="test accuracy", xlabel="epoch")
    right.legend(fontsize=8)
    caption(drawing, lenet_runs.made_with(sizes))
    return drawing


def table(results: Results, sizes: Sizes) -> Table:
    """The same at the last epoch."""
    from mixreg.report.intervals import interval

    rows = []
    for method in _METHODS:
        for predictor, suffix in _PREDICTORS.items():
            values = [
                _final(results, sizes, method, "train_loss"),
                *(_final(results, sizes, method, measure, predictor) for measure in ("cross_entropy", "accuracy")),
            ]
            rows.append([lenet_runs.METHODS[method] + suffix, *(f"{interval(found):.3f}" for found in values)])
    return Table(["method", "train loss", "test cross-entropy", "test accuracy"], rows)


def claims(results: Results, sizes: Sizes) -> list[Claim]:
    """That approximate Mixup follows Mixup."""
    parts = [
        stays_within(
            f"{label}, approximate − Mixup, at the end (margin {margin:g})",
            _final(results, sizes, "approximate", measure),
            _final(results, sizes, "mixup", measure),
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
    "approximation",
    "Figure 2",
    "Train loss, test loss and accuracy over epochs: Mixup and approximate Mixup.",
    lenet_runs.sizes,
    runs,
    figure,
    table,
    claims,
    lenet_runs.missing,
)
