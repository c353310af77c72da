"""Figure 3: what Mixup trades: the regularisation terms of Theorem 3 against the loss on modified data.

Both are measured during training on networks trained with Mixup, with ERM, and with ERM on modified data, over samples
of the training set (`mixreg.experiments.moments`). R1 and R3 can be large and cancel; their sum with R2 and R4 is what
Mixup adds to the loss on modified data.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from mixreg.experiments import lenet_runs, moments, trained
from mixreg.experiments.claims import Comparison, exceeds
from mixreg.experiments.experiment import Claim, Experiment, Results, Run, Sizes, Table
from mixreg.report.curves import label_ends, mean_curve, new_figure, say_better, zero_line
from mixreg.report.intervals import cell
from mixreg.report.palette import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_METHODS = ("mixup", "erm", "modified")
_SHORT = {"mixup": "Mixup", "erm": "ERM", "modified": "modified data"}
_PANELS = {"regularisation": "R1 + R2 + R3 + R4", "joint": "R1 + R3", "base": "loss on modified data"}
_COLUMNS = {
    "base": "loss on modified data",
    "regularisation": "R1 + … + R4",
    "joint": "R1 + R3",
    "r2": "R2",
    "r4": "R4",
    "r1": "R1 alone",
    "r3": "R3 alone",
}


def runs(sizes: Sizes) -> list[Run]:
    return lenet_runs.runs(sizes, _METHODS)


def caption(sizes: Sizes) -> str:
    return (
        f"{lenet_runs.caption(sizes)}; terms on {sizes['samples']:,} training samples, {moments.described(sizes)}; "
        "R1 and R3 alone grow like 1/p where a network is confident, and cancel: their sum is shown"
    )


def _over_epochs(results: Results, method: str, term: str) -> list[list[float]]:
    """A term, repetitions × measured epochs; NaN where R1 and R3 do not exist apart."""
    records = [
        [record["terms"] for record in result["log"] if "terms" in record] for result in results.select(method=method)
    ]
    return [[_value(record, term) for record in one] for one in records]


def _value(record: dict[str, float | None], term: str) -> float:
    """A term of a record; "regularisation" is what all four add up to, "joint" R1 + R3 as the total knows them."""
    known = {name: math.nan if value is None else value for name, value in record.items()}
    if term == "regularisation":
        return known["total"] - known["base"]
    if term == "joint":
        return known["total"] - known["base"] - known["r2"] - known["r4"]
    return known[term]


def _final(results: Results, method: str, term: str) -> list[float]:
    return [values[-1] for values in _over_epochs(results, method, term)]


def figure(results: Results, sizes: Sizes) -> Figure:
    """R1 + R3 (either alone cancels the other), all terms where R2 and R4 are not 0, and the loss on modified data."""
    epochs, panels = lenet_runs.measured_epochs(sizes), dict(_PANELS)
    if not any(np.any(_over_epochs(results, method, term)) for method in _METHODS for term in ("r2", "r4")):
        # As for every piecewise linear network; the sum of all terms is R1 + R3 again.
        del panels["regularisation"]
        panels["joint"] += " (R2 = R4 = 0)"
    drawing = new_figure(4.7 * len(panels), 4.4)
    for axes, (term, title) in zip(drawing.subplots(1, len(panels)), panels.items(), strict=True):
        for method in _METHODS:
            mean_curve(axes, epochs, _over_epochs(results, method, term), _SHORT[method], marker=".", **style(method))
        axes.set(title=title, xlabel="epoch")
        say_better(axes, "lower")
        if term != "base":
            zero_line(axes)
        label_ends(axes)
    return drawing


def table(results: Results, sizes: Sizes) -> Table:
    """All terms at the end of training."""
    rows = [
        [lenet_runs.METHODS[method]] + [cell(_final(results, method, term), ".3g") for term in _COLUMNS]
        for method in _METHODS
    ]
    return Table(["trained with", *_COLUMNS.values()], rows, note=moments.NOTE)


def claims(results: Results, sizes: Sizes) -> list[Claim]:
    """Smallest terms, but not the smallest loss on modified data."""

    def is_larger(term: str, more: str, less: str) -> Comparison:
        what = "terms" if term == "regularisation" else "loss on modified data"
        about = f"{what}, {lenet_runs.METHODS[more]} − {lenet_runs.METHODS[less]}"
        return exceeds(about, *lenet_runs.of_both(*(_final(results, method, term) for method in (more, less))))

    return [
        Claim(
            "Mixup has the smallest regularisation terms",
            "R1 + … + R4 is smaller for networks trained with Mixup than with ERM or ERM on modified data.",
            "Figure 3, left",
            tuple(is_larger("regularisation", other, "mixup") for other in ("erm", "modified")),
        ),
        Claim(
            "Mixup has not the smallest loss on modified data",
            "The loss on modified data is smaller for networks trained by ERM on modified data than with Mixup.",
            "Figure 3, right",
            (is_larger("base", "mixup", "modified"),),
        ),
    ]


EXPERIMENT = Experiment(
    name="terms",
    paper="Figure 3",
    title="Regularisation terms and loss on modified data during training: Mixup, ERM, ERM on modified data.",
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
