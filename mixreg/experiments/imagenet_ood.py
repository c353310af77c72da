"""Table 2: Mixup and rescaled Mixup on ImageNet and on the test sets made to differ from it.

ImageNet and its variants cannot be fetched for anybody; they are looked for in the data folder (`mixreg data list`
names it): imagenet with train/ and val/, and beside it imagenet-a, imagenet-c, imagenet-v2, vid-robust, ytbb-robust and
objectnet in their published layouts. Variants that are not there are left out.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixreg.data.arrays import cache_folder
from mixreg.data.registry import IMAGENET
from mixreg.data.shifted import open_shifted
from mixreg.evaluation.shift import (
    ALEXNET_ERROR,
    corruption_errors,
    evaluate_shifted,
    mean_corruption_error,
    summary,
)
from mixreg.evaluation.table import of_run
from mixreg.evaluation.table import table as measured
from mixreg.experiments.claims import Claim, Part, exceeds
from mixreg.experiments.experiment import Experiment, Progress, Results, Sizes, Table, missing_for_training, rounded
from mixreg.experiments.store import Run
from mixreg.training.config import PRESETS, Config
from mixreg.training.engine import Engine
from mixreg.training.loop import Trainer, Unwatched
from mixreg.training.run import load_trained, train

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
_VIDEOS = ("vid-robust", "ytbb-robust")
_PREDICTORS = ("plain", "rescaled")


def sizes(scale: str) -> dict[str, Any]:
    """The paper's ResNet-50, or a small network on small crops."""
    at_hand = [name for name in _SETS if (cache_folder() / name).is_dir()]
    shared = {"alphas": [0.25, 0.5], "sets": at_hand}
    if scale == "paper":
        return shared | {"model": "resnet50", "epochs": 200, "image_size": 224, "batch_size": 4096, "repetitions": 10}
    small = {"model": "lenet", "image_size": 32, "batch_size": 256}
    if scale == "smoke":
        return shared | small | {"epochs": 1, "repetitions": 2}
    return shared | small | {"epochs": 5, "repetitions": 3}


def run(chosen: Sizes, alpha: float, seed: int) -> Run:
    """One training run and its evaluation on all sets."""
    config = {key: chosen[key] for key in ("model", "epochs", "image_size", "batch_size")}
    paper = PRESETS["imagenet-resnet50"]
    config |= {key: paper[key] for key in ("nesterov", "weight_decay", "drops")}
    # The paper's step belongs to its batch of 4,096.
    config |= {"lr": paper["lr"] * chosen["batch_size"] / paper["batch_size"]}
    config |= {"data": IMAGENET, "method": "mixup", "alpha": alpha, "holdout": 0.0, "seed": seed}
    return Run("imagenet", {"config": config, "sets": list(chosen["sets"])})


def runs(chosen: Sizes) -> list[Run]:
    """All α and repetitions."""
    return [run(chosen, alpha, seed) for seed in range(chosen["repetitions"]) for alpha in chosen["alphas"]]


def measure(settings: dict[str, Any], folder: Path, progress: Progress) -> dict[str, Any]:
    """Train on ImageNet, then measure plain and rescaled on every set."""
    config = Config(**settings["config"])

    def look(trainer: Trainer, epoch: int) -> dict[str, Any]:
        progress(0.9 * epoch / config.epochs)
        return {}

    train(config, folder, Engine(), lambda *_: contextlib.nullcontext(Unwatched()), look=look)
    trained = load_trained(folder)
    test, _ = of_run(trained)
    found: dict[str, Any] = {"standard": {row["model"]: _numbers(row) for row in measured(test, {})}}
    for name in settings["sets"]:
        rows = evaluate_shifted(trained, open_shifted(name, cache_folder() / name, config.image_size), {})
        found[name] = {row["model"]: _numbers(row) for row in summary(rows)}
        if name == "imagenet-c":
            for predictor in _PREDICTORS:
                errors = corruption_errors(rows, predictor)
                found[name][predictor]["mce"] = mean_corruption_error(errors, ALEXNET_ERROR)
    return rounded(found)


def _numbers(row: dict[str, Any]) -> dict[str, float]:
    return {key: value for key, value in row.items() if key in _MEASURES}


def _shown(chosen: Sizes) -> list[tuple[str, str]]:
    """The table's rows: set and measure, as in the paper."""
    found = []
    for name in ("standard", *chosen["sets"]):
        if name in _VIDEOS:
            measures = ["pm_accuracy"]
        elif name == "objectnet":
            measures = ["accuracy"]
        else:
            measures = ["accuracy", "cross_entropy", "ece"] + (["mce"] if name == "imagenet-c" else [])
        found += [(name, measure) for measure in measures]
    return found


def _values(results: Results, chosen: Sizes, alpha: float, name: str, predictor: str, measure: str) -> list[float]:
    repetitions = range(chosen["repetitions"])
    return [results[run(chosen, alpha, seed).key][name][predictor][measure] for seed in repetitions]


def figure(results: Results, chosen: Sizes) -> Figure:
    """What rescaling gains on each set: one panel per measure."""
    import numpy as np
    from matplotlib.figure import Figure

    from mixreg.report.curves import caption
    from mixreg.report.intervals import interval

    shown = _shown(chosen)
    measures = [measure for measure in _MEASURES if any(measure == other for _, other in shown)]
    drawing = Figure(figsize=(1 + 3.4 * len(measures), 4.2), layout="constrained")
    for place, measure in zip(drawing.subplots(1, len(measures), squeeze=False)[0], measures, strict=True):
        names = [name for name, other in shown if other == measure]
        for shift, alpha in enumerate(chosen["alphas"]):
            gains = [
                interval(
                    np.subtract(
                        _values(results, chosen, alpha, name, "rescaled", measure),
                        _values(results, chosen, alpha, name, "plain", measure),
                    ).tolist()
                )
                for name in names
            ]
            at = np.arange(len(names)) + 0.2 * shift
            place.errorbar(
                [g.mean for g in gains], at, xerr=[g.half_width for g in gains], fmt="o", label=f"α = {alpha:g}"
            )
        place.axvline(0, color="black", linewidth=0.8)
        place.set_yticks(range(len(names)), names)
        place.set(title=f"{_MEASURES[measure]}, rescaled − plain")
    drawing.axes[0].legend(fontsize=8)
    caption(
        drawing,
        f"{chosen['model']} on ImageNet, crops of {chosen['image_size']} pixels, {chosen['epochs']} epochs, "
        f"Mixup; mean and 95 % interval of {chosen['repetitions']} repetitions",
    )
    return drawing


def table(results: Results, chosen: Sizes) -> Table:
    """Table 2."""
    from mixreg.report.intervals import interval

    heads = [(alpha, predictor) for alpha in chosen["alphas"] for predictor in ("rescaled", "plain")]
    rows = [
        [name, _MEASURES[measure]]
        + [f"{interval(_values(results, chosen, a, name, p, measure)):.4f}" for a, p in heads]
        for name, measure in _shown(chosen)
    ]
    return Table(["set", "measure", *(f"{p}, α = {a:g}" for a, p in heads)], rows)


def claims(results: Results, chosen: Sizes) -> list[Claim]:
    """Set by set: where rescaling improves accuracy, and what it does to corrupted images."""

    def better(name: str, measure: str, alpha: float, of_plain: bool) -> Part:
        """That the plain or the rescaled prediction is better; errors are better when they are smaller."""
        plain, rescaled = (_values(results, chosen, alpha, name, p, measure) for p in _PREDICTORS)
        is_error = measure in ("cross_entropy", "ece", "mce")
        larger, smaller = (plain, rescaled) if of_plain != is_error else (rescaled, plain)
        names = ("plain", "rescaled") if larger is plain else ("rescaled", "plain")
        return exceeds(f"α = {alpha:g}: {_MEASURES[measure]}, {names[0]} − {names[1]}", larger, smaller)

    found = []
    for name in ("standard", *chosen["sets"]):
        measures = [measure for other, measure in _shown(chosen) if other == name]
        is_corrupted = name == "imagenet-c"
        judged = measures if is_corrupted else measures[:1]
        parts = tuple(better(name, m, alpha, is_corrupted) for m in judged for alpha in chosen["alphas"])
        title = "rescaling worsens all measures" if is_corrupted else "rescaling improves accuracy"
        found.append(Claim(f"ImageNet, {name}: {title}", f"On {name}, {title}.", "Table 2", parts))
    return found


def missing(chosen: Sizes) -> list[str]:
    """ImageNet, if it is not at hand."""
    return missing_for_training([IMAGENET])


EXPERIMENT = Experiment(
    "imagenet-ood",
    "Table 2",
    "Mixup and rescaled Mixup on ImageNet and the test sets made to differ from it.",
    sizes,
    runs,
    figure,
    table,
    claims,
    missing,
)
