"""Figures 8 and 9: random features on two moons with flipped labels; Mixup, rescaled, approximate Mixup and ERM."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mixreg.experiments import moons
from mixreg.experiments.claims import exceeds, follows
from mixreg.experiments.experiment import Claim, Experiment, Progress, Results, Run, Sizes, Table, rounded
from mixreg.report.curves import label_ends, mean_curve, mean_histogram, new_figure, say_better
from mixreg.report.intervals import cell
from mixreg.report.palette import METHODS, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# A curve: its name, the run it comes from, and the predictor.
_CURVES = (
    ("ERM", "erm", "plain"),
    ("Mixup", "mixup", "plain"),
    ("Mixup, rescaled", "mixup", "rescaled"),
    ("approximate", "approximate", "plain"),
    ("approximate, rescaled", "approximate", "rescaled"),
)
_MEASURES = {"train_loss": "train loss", "train_accuracy": "train accuracy", "test_accuracy": "test accuracy"}


def sizes_at(scale: str) -> dict[str, Any]:
    """The paper's 30 repetitions, or fewer."""
    if scale == "smoke":
        return {"alpha": 1.0, "repetitions": 2, "steps": 60, "features": 100, "looks": 6}
    repetitions = 30 if scale == "paper" else 10
    return {"alpha": 1.0, "repetitions": repetitions, "steps": 1000, "features": 1000, "looks": 50}


def runs(sizes: Sizes) -> list[Run]:
    """One run per method, with all its repetitions."""
    return [Run("two-moons", {"method": method, **sizes}) for method in moons.METHODS]


def measure(settings: dict[str, Any], folder: Path, progress: Progress) -> dict[str, Any]:
    """All repetitions of one method.

    Settings:
        method, repetitions, looks (how often its curves are measured), and any other field of `moons.Setting`.
    """
    fields = {key: value for key, value in settings.items() if key not in ("method", "repetitions", "looks")}
    setting = moons.Setting(measurements=settings["looks"], **fields)
    problems = moons.draw_problems(list(range(settings["repetitions"])), setting, torch.float32)
    curves = moons.train(settings["method"], problems, setting)
    measures = {
        name: {key: values.tolist() for key, values in found.items()} for name, found in curves.measures.items()
    }
    confidence = {name: torch.sigmoid(logits.abs()).tolist() for name, logits in curves.test_logits.items()}
    return rounded({"steps": curves.steps, "measures": measures, "confidence": confidence})


def caption(sizes: Sizes) -> str:
    return (
        f"Two moons, 150 training points, 20 % of labels flipped; logistic regression on {sizes['features']:,} random "
        f"features, {sizes['steps']:,} SGD steps, α = {sizes['alpha']:g}; mean and 95 % interval of "
        f"{sizes['repetitions']} repetitions"
    )


def figure(results: Results, sizes: Sizes) -> Figure:
    """Train loss, train and test accuracy over steps, above histograms of confidence on test points."""
    drawing = new_figure(14, 7.5)
    halves: Any = drawing.subfigures(2, 1, height_ratios=[1.15, 1])
    above, below = halves
    axes = above.subplots(1, 3)
    for place, (key, label) in zip(axes, _MEASURES.items(), strict=True):
        for name, method, predictor in _CURVES:
            result = results.one(method=method)
            mean_curve(place, result["steps"], result["measures"][predictor][key], name, **style(method, predictor))
        place.set(xlabel="step", title=label)
        if key.startswith("test"):
            # A fifth of the training labels is wrong: whoever fits them best has learnt the noise.
            say_better(place, "higher")
        label_ends(place)
    for place, (name, method, predictor) in zip(below.subplots(1, len(_CURVES), sharey=True), _CURVES, strict=True):
        confidence = np.array(results.one(method=method)["confidence"][predictor])
        shares = [np.histogram(row, 10, (0.5, 1.0))[0] / confidence.shape[1] for row in confidence]
        # Rescaled ones are outlines, dashed like their curves.
        mean_histogram(place, shares, 0.5, fill=predictor == "plain", **style(method, predictor))
        mean_histogram(place, shares, 0.5, color=METHODS[method], fill=True, alpha=0.25)
        place.set(title=name)
    below.axes[0].set(ylabel="fraction of test points")
    return drawing


def _final(results: Results, method: str, predictor: str, key: str) -> list[float]:
    return [row[-1] for row in results.one(method=method)["measures"][predictor][key]]


def _confidence(results: Results, method: str, predictor: str = "plain") -> list[float]:
    rows = results.one(method=method)["confidence"][predictor]
    return [sum(row) / len(row) for row in rows]


def table(results: Results, sizes: Sizes) -> Table:
    """The curves' ends, and mean confidence on test points."""
    rows = []
    for name, method, predictor in _CURVES:
        cells = [cell(_final(results, method, predictor, key), ".3f") for key in _MEASURES]
        rows.append(
            [
                name.replace("approximate", "approximate Mixup"),
                *cells,
                cell(_confidence(results, method, predictor), ".3f"),
            ]
        )
    return Table(["method", *_MEASURES.values(), "mean confidence"], rows)


def claims(results: Results, sizes: Sizes) -> list[Claim]:
    """What the appendix says of its figures."""

    def test(method: str, predictor: str) -> list[float]:
        return _final(results, method, predictor, "test_accuracy")

    return [
        Claim(
            "two moons: rescaling improves Mixup",
            "On two moons, rescaled prediction of a model trained with Mixup is more accurate than its plain "
            "prediction.",
            "Figure 8",
            (exceeds("test accuracy, rescaled − plain", test("mixup", "rescaled"), test("mixup", "plain")),),
        ),
        Claim(
            "two moons: rescaling hurts ERM",
            "On two moons, rescaled prediction of a model trained with ERM is less accurate than its plain prediction.",
            "Figure 4, for ERM",
            (exceeds("test accuracy, plain − rescaled", test("erm", "plain"), test("erm", "rescaled")),),
        ),
        Claim(
            "two moons: approximate Mixup follows Mixup",
            "On two moons, the test accuracy of approximate Mixup is nearer to Mixup's than half of the gap between "
            "Mixup and ERM, plain and rescaled.",
            "Figure 8",
            tuple(
                follows(
                    f"test accuracy, approximate − Mixup, {predictor}",
                    test("approximate", predictor),
                    test("mixup", predictor),
                    test("erm", "plain"),
                )
                for predictor in ("plain", "rescaled")
            ),
        ),
        Claim(
            "two moons: Mixup lowers confidence",
            "On two moons, a model trained with Mixup is less confident on test points than one trained with ERM.",
            "Figure 9",
            (exceeds("mean confidence, ERM − Mixup", _confidence(results, "erm"), _confidence(results, "mixup")),),
        ),
    ]


EXPERIMENT = Experiment(
    name="two-moons",
    paper="Figures 8 and 9",
    title="Logistic regression on random features for two moons: Mixup, rescaled, approximate Mixup and ERM.",
    sizes_at=sizes_at,
    kinds={"two-moons": measure},
    runs=runs,
    caption=caption,
    figure=figure,
    table=table,
    claims=claims,
)
