"""Figure 3: what Mixup trades: the regularisation terms of Theorem 3 against the loss on modified data.

Both are measured during training on networks trained with Mixup, with ERM, and with ERM on modified data, over training
samples taken as a training set of their own. R1 and R3 can be large and cancel; their sum with R2 and R4 is what Mixup
adds to the loss on modified data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mixreg.experiments import lenet_runs
from mixreg.experiments.claims import Claim, exceeds
from mixreg.experiments.experiment import Experiment, Results, Sizes, Table
from mixreg.experiments.store import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_METHODS = ("mixup", "erm", "modified")
_TERMS = {"r1": "R1", "r2": "R2", "r3": "R3", "r4": "R4"}


def runs(sizes: Sizes) -> list[Run]:
    """Mixup, ERM and ERM on modified data."""
    return lenet_runs.runs(sizes, _METHODS)


def _looks(results: Results, sizes: Sizes, method: str, term: str) -> list[list[float]]:
    """Repetitions × looks of a term; "regularisation" is what all four add up to."""
    found = []
    for result in lenet_runs.repetitions(results, sizes, method):
        records = [record["terms"] for record in result["log"] if "terms" in record]
        if term == "regularisation":
            found.append([record["total"] - record["base"] for record in records])
        else:
            found.append([record[term] for record in records])
    return found


def _final(results: Results, sizes: Sizes, method: str, term: str) -> list[float]:
    return [looks[-1] for looks in _looks(results, sizes, method, term)]


def figure(results: Results, sizes: Sizes) -> Figure:
    """The sum of the terms, the loss on modified data, and the two terms that nearly cancel, over epochs."""
    import numpy as np
    from matplotlib.figure import Figure

    from mixreg.report.curves import caption, mean_curve

    drawing = Figure(figsize=(13, 4.2), layout="constrained")
    left, middle, right = drawing.subplots(1, 3)
    epochs = lenet_runs.look_epochs(sizes)
    for method in _METHODS:
        name, style = lenet_runs.METHODS[method], {"color": lenet_runs.COLOURS[method], "marker": "."}
        mean_curve(left, epochs, _looks(results, sizes, method, "regularisation"), name, **style)
        mean_curve(middle, epochs, _looks(results, sizes, method, "base"), name, **style)
        first, third = (np.array(_looks(results, sizes, method, term)) for term in ("r1", "r3"))
        right.semilogy(epochs, first.mean(0), label=f"{name}: R1", **style)
        right.semilogy(epochs, -third.mean(0), ":", label=f"{name}: −R3", **style)
    left.set(title="R1 + R2 + R3 + R4", xlabel="epoch")
    middle.set(title="loss on modified data", xlabel="epoch")
    right.set(title="R1 and −R3", xlabel="epoch")
    middle.legend(fontsize=8)
    right.legend(fontsize=7)
    caption(drawing, f"{lenet_runs.made_with(sizes)}; terms on {sizes['samples']:,} training samples")
    return drawing


def table(results: Results, sizes: Sizes) -> Table:
    """All terms at the end of training."""
    from mixreg.report.intervals import interval

    columns = {"base": "loss on modified data", "regularisation": "R1 + … + R4"} | _TERMS
    rows = [
        [lenet_runs.METHODS[method]] + [f"{interval(_final(results, sizes, method, term)):.3g}" for term in columns]
        for method in _METHODS
    ]
    return Table(["trained with", *columns.values()], rows)


def claims(results: Results, sizes: Sizes) -> list[Claim]:
    """Smallest terms, but not the smallest loss on modified data."""

    def larger(term: str, more: str, less: str) -> tuple[str, list[float], list[float]]:
        what = "terms" if term == "regularisation" else "loss on modified data"
        about = f"{what}, {lenet_runs.METHODS[more]} − {lenet_runs.METHODS[less]}"
        return about, _final(results, sizes, more, term), _final(results, sizes, less, term)

    return [
        Claim(
            "Mixup has the smallest regularisation terms",
            "R1 + … + R4 is smaller for networks trained with Mixup than with ERM or ERM on modified data.",
            "Figure 3, left",
            tuple(exceeds(*larger("regularisation", other, "mixup")) for other in ("erm", "modified")),
        ),
        Claim(
            "Mixup has not the smallest loss on modified data",
            "The loss on modified data is smaller for networks trained on it.",
            "Figure 3, right",
            (exceeds(*larger("base", "mixup", "modified")),),
        ),
    ]


EXPERIMENT = Experiment(
    "terms",
    "Figure 3",
    "Regularisation terms and loss on modified data during training: Mixup, ERM, ERM on modified data.",
    lenet_runs.sizes,
    runs,
    figure,
    table,
    claims,
    lenet_runs.missing,
)
