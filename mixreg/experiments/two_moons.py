"""Figures 8 and 9: random features on two moons with flipped labels; Mixup, rescaled, approximate Mixup and ERM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mixreg.experiments.claims import Claim, exceeds, stays_within
from mixreg.experiments.experiment import Experiment, Results
from mixreg.experiments.store import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIZES: dict[str, dict[str, Any]] = {
    "smoke": {"repetitions": 4, "steps": 60, "features": 100, "looks": 6},
    "laptop": {"repetitions": 10, "steps": 1000, "features": 1000, "looks": 50},
    "paper": {"repetitions": 30, "steps": 1000, "features": 1000, "looks": 50},
}
# A curve: its name, the run it comes from, and the predictor.
_CURVES = (
    ("ERM", "erm", "plain"),
    ("Mixup", "mixup", "plain"),
    ("Mixup, rescaled", "mixup", "rescaled"),
    ("approximate Mixup", "approximate", "plain"),
    ("approximate, rescaled", "approximate", "rescaled"),
)
# How far apart two accuracies may be and still count as following each other.
MARGIN = 0.02


def _run(method: str, scale: str) -> Run:
    return Run("two-moons", {"method": method, "alpha": 1.0, **_SIZES[scale]})


def runs(scale: str) -> list[Run]:
    """One run per method, with all its repetitions."""
    return [_run(method, scale) for method in ("erm", "mixup", "approximate")]


def figure(results: Results, scale: str) -> Figure:
    """Train loss, train and test accuracy over steps, above histograms of confidence on test points."""
    import numpy as np
    from matplotlib.figure import Figure

    from mixreg.report.intervals import interval

    drawing = Figure(figsize=(13, 7.5), layout="constrained")
    halves: Any = drawing.subfigures(2, 1, height_ratios=[1.15, 1])
    above, below = halves
    axes = above.subplots(1, 3)
    for place, (measure, label) in zip(
        axes,
        (("train_loss", "train loss"), ("train_accuracy", "train accuracy"), ("test_accuracy", "test accuracy")),
        strict=True,
    ):
        for name, method, predictor in _CURVES:
            result = results[_run(method, scale).key]
            values = np.array(result["measures"][predictor][measure])
            spans = [interval(column) for column in values.T.tolist()]
            middle, half = (np.array([getattr(span, part) for span in spans]) for part in ("mean", "half_width"))
            (line,) = place.plot(result["steps"], middle, label=name)
            place.fill_between(result["steps"], middle - half, middle + half, alpha=0.2, color=line.get_color())
        place.set(xlabel="step", title=label)
    axes[0].legend(fontsize=8, loc="upper right")
    for place, (name, method, predictor) in zip(below.subplots(1, len(_CURVES), sharey=True), _CURVES, strict=True):
        confidence = np.array(results[_run(method, scale).key]["confidence"][predictor])
        shares = [np.histogram(row, 10, (0.5, 1.0))[0] / confidence.shape[1] for row in confidence]
        place.bar(np.linspace(0.5, 0.95, 10), np.mean(shares, 0), width=0.05, align="edge", edgecolor="white")
        place.set(title=name, xlabel="confidence on test points")
    size = _SIZES[scale]
    drawing.suptitle(
        f"Two moons, 150 training points, 20 % of labels flipped; logistic regression on {size['features']:,} random "
        f"features, {size['steps']:,} SGD steps, α = 1; mean and 95 % interval of {size['repetitions']} repetitions",
        fontsize=10,
    )
    return drawing


def _final(results: Results, scale: str, method: str, predictor: str, measure: str) -> list[float]:
    return [row[-1] for row in results[_run(method, scale).key]["measures"][predictor][measure]]


def _confidence(results: Results, scale: str, method: str) -> list[float]:
    rows = results[_run(method, scale).key]["confidence"]["plain"]
    return [sum(row) / len(row) for row in rows]


def claims(results: Results, scale: str) -> list[Claim]:
    """What the appendix says of its figures."""

    def test(method: str, predictor: str) -> list[float]:
        return _final(results, scale, method, predictor, "test_accuracy")

    return [
        Claim(
            "two-moons: rescaling improves Mixup",
            "Rescaled prediction of a Mixup model is more accurate than plain prediction.",
            "Figure 8",
            (exceeds("test accuracy, rescaled − plain", test("mixup", "rescaled"), test("mixup", "plain")),),
        ),
        Claim(
            "two-moons: rescaling hurts ERM",
            "Rescaled prediction of an ERM model is less accurate than plain prediction.",
            "Figure 4, for ERM",
            (exceeds("test accuracy, plain − rescaled", test("erm", "plain"), test("erm", "rescaled")),),
        ),
        Claim(
            "two-moons: approximate Mixup follows Mixup",
            f"With rescaled prediction, test accuracies agree within {MARGIN:.0%}.",
            "Figure 8",
            (
                stays_within(
                    "test accuracy, approximate − Mixup, both rescaled",
                    test("approximate", "rescaled"),
                    test("mixup", "rescaled"),
                    MARGIN,
                ),
            ),
        ),
        Claim(
            "two-moons: Mixup lowers confidence",
            "A model trained with Mixup is less confident on test points than one trained with ERM.",
            "Figure 9",
            (
                exceeds(
                    "mean confidence, ERM − Mixup",
                    _confidence(results, scale, "erm"),
                    _confidence(results, scale, "mixup"),
                ),
            ),
        ),
    ]


EXPERIMENT = Experiment(
    "two-moons",
    "Figures 8 and 9",
    "Logistic regression on random features for two moons: Mixup, rescaled, approximate Mixup and ERM.",
    runs,
    figure,
    claims,
)
