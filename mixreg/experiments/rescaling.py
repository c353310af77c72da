"""Figure 4: predicting as eq. (testmodif) says improves Mixup networks, and only them.

A *gain* is how much better the rescaled prediction of a network is than its plain one: higher accuracy, or lower
cross-entropy or ECE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mixreg.experiments import alpha_runs, trained
from mixreg.experiments.alpha_runs import (
    MEASURES,
    NORMALISED,
    Values,
    better,
    curves,
    gain,
    plot_gains,
    plot_over_alpha,
    refreshed_name,
    shown_name,
)
from mixreg.experiments.claims import exceeds, is_positive
from mixreg.experiments.experiment import Claim, Experiment, Results, Sizes, Table
from mixreg.report.curves import new_figure
from mixreg.report.intervals import cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _on_test(results: Results, data: str, measure: str) -> Values:
    """A measure on test data: repetitions."""

    def values(alpha: float, predictor: str) -> np.ndarray:
        return np.array([found["test"][predictor][measure] for found in alpha_runs.select(results, data, alpha)])

    return values


def figure(results: Results, sizes: Sizes) -> Figure:
    """Two rows per dataset: accuracy, cross-entropy and ECE against α, and what each rule gains."""
    datasets, alphas, shown = sizes["datasets"], sizes["alphas"], curves(sizes)
    drawing = new_figure(14, 0.6 + 7 * len(datasets))
    axes = drawing.subplots(2 * len(datasets), 3, squeeze=False)
    for index, data in enumerate(datasets):
        for column, (measure, label) in enumerate(MEASURES.items()):
            values = _on_test(results, data, measure)
            title = f"{shown_name(data)}: {label}"
            plot_over_alpha(axes[2 * index, column], alphas, values, title, shown, better(measure))
            plot_gains(axes[2 * index + 1, column], alphas, values, measure, shown)
    return drawing


def table(results: Results, sizes: Sizes) -> Table:
    """Every point of the figure."""
    rows = []
    for data in sizes["datasets"]:
        shown = [("ERM", 0.0, "plain")]
        shown += [(f"ERM, rescaled for α = {a:g}", 0.0, f"{a:g}") for a in sizes["alphas"]]
        for a in sizes["alphas"]:
            shown += [(f"Mixup, α = {a:g}", a, "plain"), (f"Mixup, α = {a:g}, rescaled", a, f"{a:g}")]
            if sizes["model"] in NORMALISED:
                shown.append((f"Mixup, α = {a:g}, rescaled, refreshed", a, refreshed_name(a)))
            shown.append((f"Mixup, α = {a:g}, fitted", a, "fitted"))
        for name, alpha, predictor in shown:
            cells = [cell(_on_test(results, data, m)(alpha, predictor).tolist(), ".4f") for m in MEASURES]
            rows.append([shown_name(data), name, *cells])
    return Table(["data", "method", *MEASURES.values()], rows)


def claims(results: Results, sizes: Sizes) -> list[Claim]:
    """What rescaling gains and for whom, dataset by dataset."""
    found = []
    alphas = sizes["alphas"]
    low, high = min(alphas), max(alphas)
    for data in sizes["datasets"]:
        name = shown_name(data)
        values = {m: _on_test(results, data, m) for m in MEASURES}
        # By measure, each repetitions × α.
        mixup = {m: np.stack([gain(values[m], m, a) for a in alphas], 1) for m in MEASURES}
        erm = {m: np.stack([gain(values[m], m, a, of_erm=True) for a in alphas], 1) for m in MEASURES}
        larger = [
            exceeds(
                f"gain in {label}, α = {high:g} − α = {low:g}",
                mixup[m][:, alphas.index(high)].tolist(),
                mixup[m][:, alphas.index(low)].tolist(),
            )
            for m, label in MEASURES.items()
        ]
        found += [
            Claim(
                f"{name}: rescaling improves Mixup",
                f"On {name}, averaged over α, networks trained with Mixup have a higher accuracy, a lower "
                "cross-entropy and a lower ECE rescaled than plain.",
                "Figure 4",
                tuple(
                    is_positive(f"gain in {label}, mean over α", mixup[m].mean(1).tolist())
                    for m, label in MEASURES.items()
                ),
            ),
            Claim(
                f"{name}: rescaling matters more for larger α",
                f"On {name}, what rescaling gains for networks trained with Mixup grows with α.",
                "Figure 4",
                tuple(larger) if high > low else (),
            ),
            Claim(
                f"{name}: rescaling hurts ERM",
                f"On {name}, networks trained with ERM have a lower accuracy, a higher cross-entropy and a higher ECE "
                "rescaled for any α than plain.",
                "Figure 4",
                tuple(
                    is_positive(f"loss in {label}, α = {alpha:g}", (-erm[m][:, index]).tolist())
                    for m, label in MEASURES.items()
                    for index, alpha in enumerate(alphas)
                ),
            ),
        ]
        if sizes["model"] in NORMALISED:
            found.append(_refreshed_claim(name, values, alphas))
    return found


def _refreshed_claim(name: str, values: dict[str, Values], alphas: list[float]) -> Claim:
    """The first one, with statistics of what the network is shown."""

    def mean_gain(measure: str) -> list[float]:
        gains = [gain(values[measure], measure, alpha, predictor=refreshed_name) for alpha in alphas]
        mean: list[float] = np.mean(gains, 0).tolist()
        return mean

    return Claim(
        f"{name}: rescaling with refreshed statistics improves Mixup",
        f"On {name}, averaged over α, networks trained with Mixup have a higher accuracy, a lower cross-entropy and a "
        "lower ECE than plain when they are rescaled and batch normalisation has the statistics of shrunk inputs.",
        "after Figure 4",
        tuple(is_positive(f"gain in {label}, mean over α", mean_gain(m)) for m, label in MEASURES.items()),
    )


EXPERIMENT = Experiment(
    name="rescaling",
    paper="Figure 4",
    title="Accuracy, cross-entropy and ECE against α: ERM and Mixup, plain and rescaled.",
    sizes_at=alpha_runs.sizes_at,
    kinds=trained.KINDS,
    runs=alpha_runs.runs,
    aside=alpha_runs.OF_CORRUPTED,
    earlier=alpha_runs.EARLIER,
    caption=alpha_runs.caption,
    figure=figure,
    table=table,
    claims=claims,
    missing=alpha_runs.missing,
    paper_sizes={"datasets": ["cifar10", "cifar100", "imagenet"]},
)
