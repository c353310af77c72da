"""Figure 3: what Mixup trades: the regularisation terms of Theorem 3 against the loss on modified data.

Both are measured during training on networks trained with Mixup, with ERM, and with ERM on modified data, over training
samples taken as a training set of their own. R1 and R3 can be large and cancel; their sum with R2 and R4 is what Mixup
adds to the loss on modified data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mixreg.experiments import lenet_runs, trained
from mixreg.experiments.claims import Comparison, exceeds
from mixreg.experiments.experiment import Claim, Experiment, Results, Run, Sizes, Table
from mixreg.report.curves import mean_curve, new_figure
from mixreg.report.intervals import interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_METHODS = ("mixup", "erm", "modified")
_TERMS = {"r1": "R1", "r2": "R2", "r3": "R3", "r4": "R4"}


def runs(sizes: Sizes) -> list[Run]:
    return lenet_runs.runs(sizes, _METHODS)


def caption(sizes: Sizes) -> str:
    return f"{lenet_runs.caption(sizes)}; terms on {sizes['samples']:,} training samples"


def _over_epochs(results: Results, method: str, term: str) -> list[list[float]]:
    """A term, repetitions × measured epochs; "regularisation" is what all four add up to."""
    found = []
    for result in results.select(method=method):
        records = [record["terms"] for record in result["log"] if "terms" in record]
        if term == "regularisation":
            found.append([record["total"] - record["base"] for record in records])
        else:
            found.append([record[term] for record in records])
    return found


def _final(results: Results, method: str, term: str) -> list[float]:
    return [values[-1] for values in _over_epochs(results, method, term)]


def figure(results: Results, sizes: Sizes) -> Figure:
    """The sum of the terms, the loss on modified data, and the two terms that nearly cancel, over epochs."""
    drawing = new_figure(13, 4.2)
    left, middle, right = drawing.subplots(1, 3)
    epochs = lenet_runs.measured_epochs(sizes)
    for method in _METHODS:
        name, style = lenet_runs.METHODS[method], {"color": lenet_runs.COLOURS[method], "marker": "."}
        mean_curve(left, epochs, _over_epochs(results, method, "regularisation"), name, **style)
        mean_curve(middle, epochs, _over_epochs(results, method, "base"), name, **style)
        first, third = (np.array(_over_epochs(results, method, term)) for term in ("r1", "r3"))
        right.semilogy(epochs, first.mean(0), label=f"{name}: R1", **style)
        right.semilogy(epochs, -third.mean(0), ":", label=f"{name}: −R3", **style)
    left.set(title="R1 + R2 + R3 + R4", xlabel="epoch")
    middle.set(title="loss on modified data", xlabel="epoch")
    right.set(title="R1 and −R3", xlabel="epoch")
    middle.legend(fontsize=8)
    right.legend(fontsize=7)
    return drawing


def table(results: Results, sizes: Sizes) -> Table:
    """All terms at the end of training."""
    columns = {"base": "loss on modified data", "regularisation": "R1 + … + R4"} | _TERMS
    rows = [
        [lenet_runs.METHODS[method]] + [f"{interval(_final(results, method, term)):.3g}" for term in columns]
        for method in _METHODS
    ]
    return Table(["trained with", *columns.values()], rows)


def claims(results: Results, sizes: Sizes) -> list[Claim]:
    """Smallest terms, but not the smallest loss on modified data."""

    def is_larger(term: str, more: str, less: str) -> Comparison:
        what = "terms" if term == "regularisation" else "loss on modified data"
        about = f"{what}, {lenet_runs.METHODS[more]} − {lenet_runs.METHODS[less]}"
        return exceeds(about, _final(results, more, term), _final(results, less, term))

    return [
        Claim(
            "Mixup has the smallest regularisation terms",
            "R1 + … + R4 is smaller for networks trained with Mixup than with ERM or ERM on modified data.",
            "Figure 3, left",
            tuple(is_larger("regularisation", other, "mixup") for other in ("erm", "modified")),
        ),
        Claim(
            "Mixup has not the smallest loss on modified data",
            "The loss on modified data is smaller for networks trained on it.",
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
)
