"""Figure 2 on a network with batch normalisation: does training on the quadratic risk follow Mixup there, too?

Theorem 3 expands the risk of a function of one sample. A network that normalises its batches is none while it is
trained: `ApproximateMixup` holds the statistics of a batch fixed along a tangent, and takes them from shrunk inputs,
where Mixup's are those of mixed ones. The paper shows LeNet only, which has none. Networks by ERM and Mixup are those
of Figures 4 to 6 (`mixreg.experiments.alpha_runs`); only approximate Mixup is trained besides, from the same seeds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mixreg.experiments import alpha_runs, trained
from mixreg.experiments.claims import follows
from mixreg.experiments.experiment import Claim, Experiment, Results, Run, Sizes, Table
from mixreg.experiments.lenet_runs import METHODS
from mixreg.experiments.over_epochs import Curves, over_epochs
from mixreg.experiments.predictors import rescaled_name
from mixreg.experiments.sizes import SizesError
from mixreg.report.curves import label_ends, mean_curve, new_figure, say_better
from mixreg.report.intervals import cell
from mixreg.report.palette import style
from mixreg.training.held_out_fit import FITTED, PLAIN, RESCALED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN = ("erm", "mixup", "approximate")
_MEASURES = {"train_loss": "train loss", "cross_entropy": "test cross-entropy", "accuracy": "test accuracy"}


def sizes_at(scale: str) -> dict[str, Any]:
    """Those of Figures 4 to 6 with the number of approximations; on a laptop digits, which take minutes."""
    sizes = alpha_runs.sizes_at(scale)
    if scale == "laptop":
        sizes |= {"model": "resnet9", "datasets": ["digits-32"], "alphas": [1.0], "epochs": 10, "images": 20}
    return sizes | {"approximate": sizes["repetitions"]}


def _alpha(sizes: Sizes) -> float:
    """α = 1 where the runs have it."""
    found: float = 1.0 if 1.0 in sizes["alphas"] else sizes["alphas"][0]
    return found


def _approximate(mixup: Run) -> Run:
    """The run of approximate Mixup that belongs to one of Mixup: the same but for the method."""
    kept = {key: mixup.settings[key] for key in ("rescale", "fit", "evaluate_every")}
    return Run("training", {"config": mixup.settings["config"] | {"method": "approximate"}, **kept})


def runs(sizes: Sizes) -> list[Run]:
    if sizes["approximate"] > sizes["repetitions"]:
        raise SizesError(f"approximate must be at most the {sizes['repetitions']} repetitions of Mixup")
    own = {"data": sizes["datasets"][0], "alpha": _alpha(sizes)}
    found = []
    for run in alpha_runs.runs(sizes):
        config = run.settings["config"]
        if config["data"] != own["data"] or config["seed"] >= sizes["approximate"]:
            continue
        if config["method"] == "erm":
            found.append(run)
        elif config["alpha"] == own["alpha"]:
            found += [run, _approximate(run)]
    return found


def _curves(results: Results, method: str, measure: str, predictor: str = PLAIN) -> Curves:
    return over_epochs(results.select(method=method), measure, predictor)


def _final(results: Results, method: str, measure: str) -> list[float]:
    return [curve[-1] for curve in _curves(results, method, measure)[1]]


def caption(sizes: Sizes) -> str:
    before, _, _ = alpha_runs.caption({**sizes, "datasets": sizes["datasets"][:1]}).rpartition("; ")
    data = alpha_runs.shown_name(sizes["datasets"][0])
    return f"{data}, α = {_alpha(sizes):g}: {before}; mean and 95 % interval of {sizes['approximate']} repetitions"


def figure(results: Results, sizes: Sizes) -> Figure:
    """Train loss, test loss and test accuracy over epochs."""
    drawing = new_figure(14, 4.4)
    for axes, (measure, label) in zip(drawing.subplots(1, 3), _MEASURES.items(), strict=True):
        for method in _SHOWN:
            name = METHODS[method].removesuffix(" Mixup")
            mean_curve(axes, *_curves(results, method, measure), name, marker=".", **style(method))
            if measure != "train_loss" and method != "erm":
                rows = _curves(results, method, measure, RESCALED)
                mean_curve(axes, *rows, f"{name}, rescaled", marker=".", **style(method, RESCALED))
        axes.set(title=f"{label} (each method's own)" if measure == "train_loss" else label, xlabel="epoch")
        say_better(axes, "higher" if measure == "accuracy" else "lower")
        label_ends(axes)
    return drawing


def table(results: Results, sizes: Sizes) -> Table:
    """All predictors at the end."""
    own, rows = rescaled_name(_alpha(sizes)), []
    for method in _SHOWN:
        found = results.select(method=method)
        loss = cell(_final(results, method, "train_loss"), ".4f")
        shown = {"": PLAIN, ", rescaled": own, ", fitted": FITTED} if method != "erm" else {"": PLAIN}
        for suffix, predictor in shown.items():
            measures = ("cross_entropy", "accuracy", "ece")
            cells = [cell([r["test"][predictor][m] for r in found], ".4f") for m in measures]
            rows.append([METHODS[method] + suffix, "" if suffix else loss, *cells])
    return Table(["method", "train loss", "test cross-entropy", "test accuracy", "ECE"], rows)


def claims(results: Results, sizes: Sizes) -> list[Claim]:
    """That approximate Mixup follows Mixup."""
    parts = [
        follows(
            f"{label}, approximate − Mixup, at the end",
            *(_final(results, method, measure) for method in ("approximate", "mixup", "erm")),
        )
        for measure, label in _MEASURES.items()
    ]
    statement = (
        "On a network with batch normalisation, training on the quadratic risk follows training with Mixup in train "
        "loss, test loss and accuracy: approximate Mixup ends nearer to Mixup than half of the gap between Mixup and "
        "ERM."
    )
    return [Claim("batch normalisation: approximate Mixup follows Mixup", statement, "Figure 2", tuple(parts))]


EXPERIMENT = Experiment(
    name="batch-norm",
    paper="after Figure 2",
    title="Mixup and approximate Mixup on a network with batch normalisation.",
    sizes_at=sizes_at,
    kinds=trained.KINDS,
    runs=runs,
    aside=alpha_runs.OF_CORRUPTED,
    earlier=alpha_runs.EARLIER,
    caption=caption,
    figure=figure,
    table=table,
    claims=claims,
    missing=alpha_runs.missing,
    unlike="not measured in the paper",
)
