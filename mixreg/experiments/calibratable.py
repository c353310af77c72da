"""After the paper: is Mixup harder to calibrate than ERM once temperatures are scaled, and does a rule change that?

Wang, Li and Zhang (*On the pitfall of Mixup for uncertainty calibration*, CVPR 2023) report that networks trained with
Mixup are less *calibratable*: after temperature scaling their calibration error is larger than ERM's. Here every
predictor of the runs of Figures 4 to 6 is divided by the temperature that is best on held-out data (a fitted rule has
its own), and what is left is measured on the test set.

The ECE of a perfectly calibrated network is not 0: each bin's accuracy is a mean over n_b samples and misses its
confidence by chance, the more so the more bins are filled, as a less confident network fills them. So a second measure
takes that away (Kumar, Liang and Ma, *Verified uncertainty calibration*, 2019, the debiased estimator):

    Σ_b n_b / n · [(acc_b − conf_b)² − acc_b (1 − acc_b) / (n_b − 1)],

whose mean is 0 for calibrated bins. It may be negative. All runs are those of `mixreg.experiments.alpha_runs`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mixreg.experiments import alpha_runs, trained
from mixreg.experiments.alpha_runs import Curve, Values, curves, plot_over_alpha, shown_name
from mixreg.experiments.claims import exceeds
from mixreg.experiments.experiment import Claim, Experiment, Results, Sizes, Table
from mixreg.experiments.predictors import tempered
from mixreg.report.curves import new_figure
from mixreg.report.intervals import cell
from mixreg.training.held_out_fit import FITTED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SQUARED = "squared"
# What is shown of predictors after temperature scaling; the second in squared per cent.
_MEASURES = {"ece": "ECE", _SQUARED: "calibration error beyond chance, %²", "cross_entropy": "cross-entropy"}
_AFTER, _ASKED_HERE = "after temperature scaling", "after the paper"


def beyond_chance(counts: list[float], confidence: list[float], accuracy: list[float]) -> float:
    """The debiased squared calibration error of the module's head, from bins; those of one sample say nothing.

    >>> beyond_chance([2.0, 1.0], [0.8, 0.9], [0.5, 1.0])
    -0.16
    """
    n, conf, acc = (np.array(values, dtype=float) for values in (counts, confidence, accuracy))
    filled = n > 1
    n, conf, acc = n[filled], conf[filled], acc[filled]
    return float(np.round((n / n.sum() * ((acc - conf) ** 2 - acc * (1 - acc) / (n - 1))).sum(), 12))


def _on_test(results: Results, data: str, measure: str) -> Values:
    """A measure of predictors as they are named: repetitions."""

    def values(alpha: float, predictor: str) -> np.ndarray:
        found = alpha_runs.select(results, data, alpha)
        if measure == _SQUARED:
            return np.array([1e4 * beyond_chance(**one["reliability"][predictor]) for one in found])
        return np.array([one["test"][predictor][measure] for one in found])

    return values


def _scaled(curve: Curve) -> Curve:
    """The same after temperature scaling; a fitted rule has had its own."""
    before = curve.predictor
    return curve._replace(predictor=lambda alpha: FITTED if before(alpha) == FITTED else tempered(before(alpha)))


def _shown(sizes: Sizes) -> list[Curve]:
    """ERM, then Mixup: plain, and under each rule."""
    return [_scaled(curve) for curve in curves(sizes, of_rescaled_erm=False)]


def _over_alpha(values: Values, curve: Curve, alphas: list[float]) -> list[float]:
    """The mean over α of each repetition."""
    columns = [values(alpha if curve.is_mixup else 0.0, curve.predictor(alpha)) for alpha in alphas]
    mean: list[float] = np.stack(columns, 1).mean(1).tolist()
    return mean


def caption(sizes: Sizes) -> str:
    return f"All {_AFTER}, on a tenth of the training set that was held out. {alpha_runs.caption(sizes)}"


def figure(results: Results, sizes: Sizes) -> Figure:
    """A row per dataset; what temperature scaling leaves, against α."""
    datasets = sizes["datasets"]
    drawing = new_figure(14, 0.6 + 3.8 * len(datasets))
    axes = drawing.subplots(len(datasets), len(_MEASURES), squeeze=False)
    for row, data in zip(axes, datasets, strict=True):
        for place, (measure, label) in zip(row, _MEASURES.items(), strict=True):
            values = _on_test(results, data, measure)
            title = f"{shown_name(data)}: {label}"
            plot_over_alpha(place, sizes["alphas"], values, title, _shown(sizes), "lower")
    return drawing


def table(results: Results, sizes: Sizes) -> Table:
    """Every point of the figure, with the ECE before."""
    rows = []
    measures = {**_MEASURES, "accuracy": "accuracy", "aurc": "AURC"}
    for data in sizes["datasets"]:
        values = {measure: _on_test(results, data, measure) for measure in measures}
        for before, after in zip(curves(sizes, of_rescaled_erm=False), _shown(sizes), strict=True):
            for alpha in sizes["alphas"] if before.is_mixup else [0.0]:
                name = f"{before.name}, α = {alpha:g}" if before.is_mixup else before.name
                first = cell(values["ece"](alpha, before.predictor(alpha)).tolist(), ".4f")
                cells = [cell(values[m](alpha, after.predictor(alpha)).tolist(), ".4f") for m in measures]
                rows.append([shown_name(data), name, first, *cells])
    heads = ["data", "network", "ECE before", *measures.values()]
    note = f"All but the ECE before are those {_AFTER}; the fitted rule's temperature is fitted with its strength."
    return Table(heads, rows, note=note)


def claims(results: Results, sizes: Sizes) -> list[Claim]:
    """Whether Mixup is harder to calibrate, what rules change, and what the fitted one gains; dataset by dataset."""
    found, alphas = [], sizes["alphas"]
    erm, mixup, *ruled = _shown(sizes)
    rescaled, *_, fitted = ruled
    for data in sizes["datasets"]:
        name = shown_name(data)

        def of(measure: str, curve: Curve, data: str = data) -> list[float]:
            return _over_alpha(_on_test(results, data, measure), curve, alphas)

        found += [
            Claim(
                f"{name}: Mixup is harder to calibrate than ERM",
                f"On {name}, averaged over α, networks trained with Mixup have a larger calibration error than those "
                "trained with ERM, both after temperature scaling on held-out data.",
                "Wang et al. (2023)",
                tuple(
                    exceeds(f"{_MEASURES[m]} {_AFTER}, Mixup − ERM, mean over α", of(m, mixup), of(m, erm))
                    for m in ("ece", _SQUARED)
                ),
            ),
            Claim(
                f"{name}: a rule makes Mixup easier to calibrate",
                f"On {name}, averaged over α, networks trained with Mixup have a smaller ECE with each of the "
                "prediction rules than plain, both after temperature scaling.",
                _ASKED_HERE,
                tuple(
                    exceeds(f"ECE {_AFTER}, Mixup − {rule.name}, mean over α", of("ece", mixup), of("ece", rule))
                    for rule in ruled
                ),
            ),
            Claim(
                f"{name}: the fitted rule beats temperature scaling",
                f"On {name}, averaged over α, the fitted rule gives networks trained with Mixup a lower cross-entropy "
                "than temperature scaling does, of the plain and of the rescaled network.",
                _ASKED_HERE,
                tuple(
                    exceeds(
                        f"cross-entropy, {other.name}, tempered − fitted, mean over α",
                        of("cross_entropy", other),
                        of("cross_entropy", fitted),
                    )
                    for other in (mixup, rescaled)
                ),
            ),
        ]
    return found


EXPERIMENT = Experiment(
    name="calibratable",
    paper="after the paper",
    title="What temperature scaling leaves of the calibration error: ERM and Mixup, plain, rescaled and fitted.",
    sizes_at=alpha_runs.sizes_at,
    kinds=trained.KINDS,
    runs=alpha_runs.runs,
    aside=alpha_runs.OF_CORRUPTED,
    earlier=alpha_runs.EARLIER,
    caption=caption,
    figure=figure,
    table=table,
    claims=claims,
    missing=alpha_runs.missing,
    unlike="not measured in the paper",
)
