"""Figure 4 with crops and flips: what the rule and the fitted rule gain where training data is augmented, as most is.

The paper names no augmentation for CIFAR, and its figures are measured without. Crops and flips are a regularisation
of their own, beside which Mixup has less to add; x̄ is then the mean of what the network saw, crops and their borders
included. ERM and Mixup at one α are trained from the same seeds as in `mixreg.experiments.alpha_runs`, and measured
plain, rescaled and fitted, each with and without a temperature fitted on held-out images.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mixreg.experiments import alpha_runs, trained
from mixreg.experiments.alpha_runs import MEASURES, better, shown_name, sign
from mixreg.experiments.claims import exceeds, is_positive
from mixreg.experiments.experiment import Claim, Experiment, Results, Run, Sizes, Table
from mixreg.experiments.predictors import rescaled_name, tempered
from mixreg.report.curves import new_figure
from mixreg.report.intervals import cell, interval
from mixreg.report.palette import REFERENCE, ink, style
from mixreg.training.held_out_fit import FITTED, PLAIN, RESCALED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SOURCE = "Figure 4, with crops and flips"
# The method, how it predicts, and what to call that.
_SHOWN = (
    ("erm", PLAIN, "ERM"),
    ("erm", RESCALED, "ERM, rescaled"),
    ("mixup", PLAIN, "Mixup"),
    ("mixup", RESCALED, "Mixup, rescaled"),
    ("mixup", FITTED, "Mixup, fitted"),
)
# Whether temperatures are fitted besides: a fitted rule has its own.
_TEMPERED = {PLAIN: (False, True), RESCALED: (False, True), FITTED: (False,)}


def sizes_at(scale: str) -> dict[str, Any]:
    """Those of Figure 4, for one dataset and one α; on a laptop digits, which take minutes."""
    sizes = alpha_runs.sizes_at(scale)
    repetitions = 3 if scale == "paper" else sizes["repetitions"]
    return {
        "data": "digits-32" if scale == "laptop" else sizes["datasets"][0],
        "model": sizes["model"],
        "alpha": 1.0,
        "epochs": 20 if scale == "laptop" else sizes["epochs"],
        "repetitions": repetitions,
    }


def _of_figure_4(sizes: Sizes) -> dict[str, Any]:
    """The sizes of the runs of Figure 4 that these are like."""
    own = {"datasets": [sizes["data"]], "alphas": [sizes["alpha"]], "corrupted": 0}
    return alpha_runs.sizes_at("paper") | {name: sizes[name] for name in ("model", "epochs", "repetitions")} | own


def runs(sizes: Sizes) -> list[Run]:
    """Those of Figure 4 with crops and flips, of which no network is kept."""
    kept = ("rescale", "fit", "evaluate_every")
    return [
        Run(
            run.kind,
            {"config": run.settings["config"] | {"augment": "standard"}, **{key: run.settings[key] for key in kept}},
        )
        for run in alpha_runs.runs(_of_figure_4(sizes))
    ]


def _values(results: Results, sizes: Sizes, measure: str, method: str, predictor: str, temper: bool) -> list[float]:
    """A measure on test data: repetitions."""
    name = rescaled_name(sizes["alpha"]) if predictor == RESCALED else predictor
    name = tempered(name) if temper else name
    return [found["test"][name][measure] for found in results.select(method=method)]


def caption(sizes: Sizes) -> str:
    before, _, after = alpha_runs.caption(_of_figure_4(sizes)).partition("no augmentation")
    return f"{shown_name(sizes['data'])}, Mixup with α = {sizes['alpha']:g}: {before}crops and flips{after}"


def figure(results: Results, sizes: Sizes) -> Figure:
    """A row per way to predict: accuracy, cross-entropy and ECE, before and after temperature scaling."""
    drawing = new_figure(14, 3.6)
    all_axes = drawing.subplots(1, len(MEASURES), sharey=True)
    for axes, (measure, label) in zip(all_axes, MEASURES.items(), strict=True):
        for row, (method, predictor, _) in enumerate(_SHOWN):
            for temper in _TEMPERED[predictor]:
                span = interval(_values(results, sizes, measure, method, predictor, temper))
                colour = style(method, predictor)["color"]
                look = {"marker": "o", "color": colour, "markerfacecolor": "white" if temper else colour, "capsize": 2}
                axes.errorbar(span.mean, row + (0.16 if temper else -0.16), xerr=np.nan_to_num(span.half_width), **look)
        erm = interval(_values(results, sizes, measure, "erm", PLAIN, False))
        axes.axvline(erm.mean, color=REFERENCE, linewidth=1, zorder=0)
        axes.set_title(f"{label} ({better(measure)} is better)")
    _name_rows(all_axes[0])
    all_axes[0].set_ylabel("filled: as it is; open: with a temperature", fontsize=8)
    return drawing


def _name_rows(axes: Axes) -> None:
    axes.set_ylim(len(_SHOWN) - 0.5, -0.5)
    axes.set_yticks(range(len(_SHOWN)), [name for _, _, name in _SHOWN])
    for text, (method, predictor, _) in zip(axes.get_yticklabels(), _SHOWN, strict=True):
        text.set_color(ink(style(method, predictor)["color"]))


def table(results: Results, sizes: Sizes) -> Table:
    """Every point of the figure."""
    rows = []
    for method, predictor, name in _SHOWN:
        for temper in _TEMPERED[predictor]:
            cells = [cell(_values(results, sizes, m, method, predictor, temper), ".4f") for m in MEASURES]
            rows.append([name + (", with a temperature" if temper else ""), *cells])
    return Table(["method", *MEASURES.values()], rows)


def claims(results: Results, sizes: Sizes) -> list[Claim]:
    """Those of Figure 4 on the rule, and on the fitted one."""
    name = f"{shown_name(sizes['data'])} with crops and flips"

    def gains(method: str, factor: int) -> list[tuple[str, list[float]]]:
        pairs = []
        for measure, label in MEASURES.items():
            rescaled, plain = (_values(results, sizes, measure, method, p, False) for p in (RESCALED, PLAIN))
            signed = factor * sign(measure)
            pairs.append((label, [signed * (a - b) for a, b in zip(rescaled, plain, strict=True)]))
        return pairs

    fitted = _values(results, sizes, "cross_entropy", "mixup", FITTED, False)
    return [
        Claim(
            f"{name}: rescaling improves Mixup",
            f"On {name}, networks trained with Mixup have a higher accuracy, a lower cross-entropy and a lower ECE "
            "rescaled than plain.",
            _SOURCE,
            tuple(is_positive(f"gain in {label}", values) for label, values in gains("mixup", 1)),
        ),
        Claim(
            f"{name}: rescaling hurts ERM",
            f"On {name}, networks trained with ERM have a lower accuracy, a higher cross-entropy and a higher ECE "
            "rescaled than plain.",
            _SOURCE,
            tuple(is_positive(f"loss in {label}", values) for label, values in gains("erm", -1)),
        ),
        Claim(
            f"{name}: the fitted rule beats temperature scaling",
            f"On {name}, the fitted rule gives networks trained with Mixup a lower cross-entropy than temperature "
            "scaling does, of the plain and of the rescaled network.",
            "after the paper",
            tuple(
                exceeds(
                    f"cross-entropy, Mixup, {of}, tempered − fitted",
                    _values(results, sizes, "cross_entropy", "mixup", of, True),
                    fitted,
                )
                for of in (PLAIN, RESCALED)
            ),
        ),
    ]


def missing(sizes: Sizes) -> list[str]:
    return alpha_runs.missing(_of_figure_4(sizes))


EXPERIMENT = Experiment(
    name="crops-and-flips",
    paper="after Figure 4",
    title="What the rule gains where training images are cropped and flipped.",
    sizes_at=sizes_at,
    kinds=trained.KINDS,
    runs=runs,
    caption=caption,
    figure=figure,
    table=table,
    claims=claims,
    missing=missing,
    unlike="not measured in the paper",
)
