"""Figure 2: training on the quadratic risk of Theorem 3 instead of on mixed pairs gives networks that behave alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mixreg.experiments import lenet_runs, trained
from mixreg.experiments.claims import follows
from mixreg.experiments.experiment import Claim, Experiment, Results, Run, Sizes, Table
from mixreg.experiments.over_epochs import Curves, over_epochs
from mixreg.report.curves import label_ends, mean_curve, new_figure, say_better
from mixreg.report.intervals import cell
from mixreg.report.palette import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_METHODS = ("mixup", "approximate")
_PREDICTORS = {"plain": "", "rescaled": ", rescaled"}
# What the two of them are held against.
_BASELINE = "erm"
_SHORT = {**lenet_runs.METHODS, "approximate": "approximate"}
_MEASURES = {"train_loss": "train loss", "cross_entropy": "test cross-entropy", "accuracy": "test accuracy"}


def runs(sizes: Sizes) -> list[Run]:
    return lenet_runs.runs(sizes, (*_METHODS, _BASELINE))


def _curves(results: Results, method: str, measure: str, predictor: str = "plain") -> Curves:
    return over_epochs(results.select(method=method), measure, predictor)


def _final(results: Results, method: str, measure: str, predictor: str = "plain") -> list[float]:
    return [curve[-1] for curve in _curves(results, method, measure, predictor)[1]]


def figure(results: Results, sizes: Sizes) -> Figure:
    """Train loss, test loss and test accuracy over epochs, beside those of ERM."""
    drawing = new_figure(14, 4.4)
    left, middle, right = drawing.subplots(1, 3)
    for method in (_BASELINE, *_METHODS):
        name = _SHORT[method]
        mean_curve(left, *_curves(results, method, "train_loss"), name, **style(method))
        for predictor, suffix in _PREDICTORS.items() if method != _BASELINE else [("plain", "")]:
            for axes, measure in ((middle, "cross_entropy"), (right, "accuracy")):
                rows = _curves(results, method, measure, predictor)
                mean_curve(axes, *rows, name + suffix, **style(method, predictor))
    left.set(title="train loss (each method's own)", xlabel="epoch")
    middle.set(title="test loss (cross-entropy)", xlabel="epoch")
    right.set(title="test accuracy", xlabel="epoch")
    # Train losses of different methods are no better or worse than each other.
    say_better(middle, "lower")
    say_better(right, "higher")
    for axes in (left, middle, right):
        label_ends(axes)
    return drawing


def table(results: Results, sizes: Sizes) -> Table:
    """The same at the last epoch."""
    shown = [(method, predictor) for method in _METHODS for predictor in _PREDICTORS] + [(_BASELINE, "plain")]
    rows = []
    for method, predictor in shown:
        cells = [cell(_final(results, method, measure, predictor), ".3f") for measure in _MEASURES]
        rows.append([lenet_runs.METHODS[method] + _PREDICTORS[predictor], *cells])
    return Table(["method", *_MEASURES.values()], rows)


def claims(results: Results, sizes: Sizes) -> list[Claim]:
    """That approximate Mixup follows Mixup."""
    parts = [
        follows(
            f"{label}, approximate − Mixup, at the end",
            *(_final(results, method, measure) for method in ("approximate", "mixup", _BASELINE)),
        )
        for measure, label in _MEASURES.items()
    ]
    statement = (
        "Training on the quadratic risk follows training with Mixup in train loss, test loss and accuracy: approximate "
        "Mixup ends nearer to Mixup than half of the gap between Mixup and ERM."
    )
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
    earlier=lenet_runs.EARLIER,
)
