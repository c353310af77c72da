"""Table 2: Mixup and rescaled Mixup on ImageNet and on the test sets made to differ from it.

ImageNet and its variants cannot be fetched for anybody; they are looked for in the data folder (`mixreg data list`
names it): imagenet with train/ and val/, and beside it imagenet-a, imagenet-c, imagenet-v2, vid-robust, ytbb-robust and
objectnet in their published layouts. Variants that are not there are left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixreg.data.arrays import cache_folder
from mixreg.data.registry import IMAGENET
from mixreg.data.shifted import open_shifted
from mixreg.evaluation.runs import evaluated
from mixreg.evaluation.shift import (
    ALEXNET_ERROR,
    corruption_errors,
    evaluate_shifted,
    mean_corruption_error,
    summary,
)
from mixreg.evaluation.table import table as measured
from mixreg.experiments.claims import Comparison, exceeds
from mixreg.experiments.experiment import Claim, Experiment, Progress, Results, Run, Sizes, Table, rounded
from mixreg.experiments.requirements import missing_for_training
from mixreg.experiments.training import device, train_quietly
from mixreg.report.curves import label_corner, new_figure
from mixreg.report.intervals import Interval, cell, interval
from mixreg.report.palette import REFERENCE, shades
from mixreg.training.config import PRESETS, Config

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SETS = ("imagenet-a", "imagenet-c", "imagenet-v2", "vid-robust", "ytbb-robust", "objectnet")
_MEASURES = {
    "accuracy": "accuracy",
    "cross_entropy": "cross-entropy",
    "ece": "ECE",
    "mce": "mCE",
    "pm_accuracy": "pm-k accuracy",
}
_ERRORS = ("cross_entropy", "ece", "mce")
_VIDEOS = ("vid-robust", "ytbb-robust")
_PREDICTORS = ("plain", "rescaled")


def sizes_at(scale: str) -> dict[str, Any]:
    """The paper's ResNet-50, or a small network on small crops."""
    at_hand = [name for name in _SETS if (cache_folder() / name).is_dir()]
    shared = {"alphas": [0.25, 0.5], "sets": at_hand}
    if scale == "paper":
        return shared | {"model": "resnet50", "epochs": 200, "image_size": 224, "batch_size": 4096, "repetitions": 10}
    small = {"model": "lenet", "image_size": 32, "batch_size": 256}
    if scale == "smoke":
        return shared | small | {"epochs": 1, "repetitions": 2}
    return shared | small | {"epochs": 5, "repetitions": 3}


def run(sizes: Sizes, alpha: float, seed: int) -> Run:
    """One training run and its evaluation on all sets."""
    config = {key: sizes[key] for key in ("model", "epochs", "image_size", "batch_size")}
    paper = PRESETS["imagenet-resnet50"]
    config |= {key: paper[key] for key in ("nesterov", "weight_decay", "drops")}
    # The paper's learning rate belongs to its batch of 4,096.
    config |= {"lr": paper["lr"] * sizes["batch_size"] / paper["batch_size"]}
    config |= {"data": IMAGENET, "method": "mixup", "alpha": alpha, "holdout": 0.0, "seed": seed}
    return Run("imagenet", {"config": config, "sets": list(sizes["sets"])})


def runs(sizes: Sizes) -> list[Run]:
    """All α and repetitions."""
    return [run(sizes, alpha, seed) for seed in range(sizes["repetitions"]) for alpha in sizes["alphas"]]


def measure(settings: dict[str, Any], folder: Path, progress: Progress) -> dict[str, Any]:
    """Train on ImageNet, then evaluate plain and rescaled on every set."""
    config = Config(**settings["config"])
    trained = train_quietly(config, folder, progress, 0.9)
    test, _ = evaluated(trained, device=device())
    found: dict[str, Any] = {"standard": {row["model"]: _shown_measures(row) for row in measured(test)}}
    for name in settings["sets"]:
        shifted = open_shifted(name, cache_folder() / name, config.image_size)
        rows = evaluate_shifted(trained, shifted, None, device())
        found[name] = {row["model"]: _shown_measures(row) for row in summary(rows)}
        if name == "imagenet-c":
            for predictor in _PREDICTORS:
                errors = corruption_errors(rows, predictor)
                found[name][predictor]["mce"] = mean_corruption_error(errors, ALEXNET_ERROR)
    return rounded(found)


def _shown_measures(row: dict[str, Any]) -> dict[str, float]:
    return {key: value for key, value in row.items() if key in _MEASURES}


def _shown(sizes: Sizes) -> list[tuple[str, str]]:
    """The table's rows: set and measure, as in the paper."""
    found = []
    for name in ("standard", *sizes["sets"]):
        if name in _VIDEOS:
            measures = ["pm_accuracy"]
        elif name == "objectnet":
            measures = ["accuracy"]
        else:
            measures = ["accuracy", "cross_entropy", "ece"] + (["mce"] if name == "imagenet-c" else [])
        found += [(name, measure) for measure in measures]
    return found


def _values(results: Results, alpha: float, name: str, predictor: str, measure: str) -> list[float]:
    return [found[name][predictor][measure] for found in results.select(alpha=alpha)]


def _gain(results: Results, alpha: float, name: str, measure: str) -> Interval:
    rescaled, plain = (_values(results, alpha, name, predictor, measure) for predictor in ("rescaled", "plain"))
    return interval([a - b for a, b in zip(rescaled, plain, strict=True)])


def caption(sizes: Sizes) -> str:
    return (
        f"{sizes['model']} on ImageNet, crops of {sizes['image_size']} pixels, {sizes['epochs']} epochs, "
        f"Mixup; mean and 95 % interval of {sizes['repetitions']} repetitions"
    )


def figure(results: Results, sizes: Sizes) -> Figure:
    """What rescaling gains on each set: one panel per measure."""
    shown = _shown(sizes)
    measures = [measure for measure in _MEASURES if any(measure == other for _, other in shown)]
    drawing = new_figure(1 + 3.4 * len(measures), 4.2)
    for place, measure in zip(drawing.subplots(1, len(measures), squeeze=False)[0], measures, strict=True):
        names = [name for name, other in shown if other == measure]
        for shift, (alpha, shade) in enumerate(zip(sizes["alphas"], shades(len(sizes["alphas"])), strict=True)):
            gains = [_gain(results, alpha, name, measure) for name in names]
            at = [row + 0.2 * shift for row in range(len(names))]
            half = [g.half_width for g in gains]
            place.errorbar([g.mean for g in gains], at, xerr=half, fmt="o", color=shade, label=f"α = {alpha:g}")
        place.axvline(0, color=REFERENCE, linewidth=1)
        place.set_ylim(-0.5, len(names) + 0.3)
        place.set_xlabel(f"{'lower' if measure in _ERRORS else 'higher'} is better", fontsize=8)
        place.set_yticks(range(len(names)), names)
        place.set(title=f"{_MEASURES[measure]}, rescaled − plain")
    named = zip(sizes["alphas"], shades(len(sizes["alphas"])), strict=True)
    label_corner(drawing.axes[0], [(f"α = {alpha:g}", shade) for alpha, shade in named])
    return drawing


def table(results: Results, sizes: Sizes) -> Table:
    """Table 2."""
    heads = [(alpha, predictor) for alpha in sizes["alphas"] for predictor in ("rescaled", "plain")]
    rows = [
        [name, _MEASURES[measure]] + [cell(_values(results, a, name, p, measure), ".4f") for a, p in heads]
        for name, measure in _shown(sizes)
    ]
    return Table(["set", "measure", *(f"{p}, α = {a:g}" for a, p in heads)], rows)


def claims(results: Results, sizes: Sizes) -> list[Claim]:
    """Set by set: where rescaling improves accuracy, and what it does to corrupted images."""

    def better(name: str, measure: str, alpha: float, of_plain: bool) -> Comparison:
        """That the plain or the rescaled prediction is better; errors are better when they are smaller."""
        plain, rescaled = (_values(results, alpha, name, p, measure) for p in _PREDICTORS)
        is_error = measure in _ERRORS
        larger, smaller = (plain, rescaled) if of_plain != is_error else (rescaled, plain)
        names = ("plain", "rescaled") if larger is plain else ("rescaled", "plain")
        return exceeds(f"α = {alpha:g}: {_MEASURES[measure]}, {names[0]} − {names[1]}", larger, smaller)

    found = []
    for name in ("standard", *sizes["sets"]):
        measures = [measure for other, measure in _shown(sizes) if other == name]
        is_corrupted = name == "imagenet-c"
        judged = measures if is_corrupted else measures[:1]
        parts = tuple(better(name, m, alpha, is_corrupted) for m in judged for alpha in sizes["alphas"])
        title = "rescaling worsens all measures" if is_corrupted else "rescaling improves accuracy"
        statement = f"On {name}, for networks trained on ImageNet with Mixup, {title}."
        found.append(Claim(f"ImageNet, {name}: {title}", statement, "Table 2", parts))
    return found


def missing(sizes: Sizes) -> list[str]:
    return missing_for_training([IMAGENET])


EXPERIMENT = Experiment(
    name="imagenet-ood",
    paper="Table 2",
    title="Mixup and rescaled Mixup on ImageNet and the test sets made to differ from it.",
    sizes_at=sizes_at,
    kinds={"imagenet": measure},
    runs=runs,
    caption=caption,
    figure=figure,
    table=table,
    claims=claims,
    missing=missing,
    paper_sizes={"sets": list(_SETS)},
)
