"""Table 1, measured: which regulariser does what, on equal terms.

The paper's Table 1 ticks boxes: label smoothing calibrates; spectral regularisation keeps the Jacobian small; dropout
does both and withstands label noise; temperature scaling calibrates; Mixup does all of it, and normalises inputs. Here
every method, and Mixup's relatives, train the same network on the same data with the same optimiser, and are measured.

*Moved inputs*: how much accuracy is lost, on average, when every normalised input is shifted by a constant or scaled
by a factor. *R1* alone grows like 1/p where a network is confident, and R3 makes up for it: their sum is what counts.
*Rescaled* is the prediction rule of each method (`mixreg.methods`). Temperatures are fitted on clean held-out data,
after training.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from mixreg.experiments import moments, regularised, regulariser_runs
from mixreg.experiments.claims import Comparison, exceeds, follows
from mixreg.experiments.experiment import Claim, Experiment, Results, Sizes, Table
from mixreg.experiments.regulariser_runs import METHODS, WITHOUT_RULE, Measured, noise_name, noises
from mixreg.report.curves import new_figure
from mixreg.report.intervals import cell, interval
from mixreg.report.palette import METHODS as COLOURS
from mixreg.report.palette import OTHER, ink

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TEMPERED = "temperature scaling of ERM"
# A panel whose values differ by more than this factor has a logarithmic axis.
_LOGARITHMIC_FROM = 10
# Measures that share a panel: the sign that names them, and how they are drawn.
_MARKERS: tuple[tuple[str, dict[str, str]], ...] = (
    ("●", {"marker": "o"}),
    ("○", {"marker": "o", "markerfacecolor": "white"}),
    ("■", {"marker": "s"}),
    ("△", {"marker": "^", "markerfacecolor": "white"}),
)


def figure(results: Results, sizes: Sizes) -> Figure:
    """A panel per kind of measure, each with its best method on top; lines are ERM."""
    measured = Measured(results, sizes)
    columns = {method: measured.columns(method) for method in METHODS}
    for method in WITHOUT_RULE:
        del columns[method]["ECE, rescaled"]
    noisy = {f"accuracy, {noise_name(noise)}": noise_name(noise) for noise in noises(sizes)}
    panels: list[tuple[str, dict[str, str], bool]] = [
        ("calibration: ECE", {"ECE": "plain", "ECE, rescaled": "rescaled"}, False),
        ("label noise: test accuracy", noisy, True),
        ("moved inputs: accuracy lost", {"lost, shifted": "shifted", "lost, scaled": "scaled"}, False),
        ("Jacobian: ‖∇f‖ at test points", {"Jacobian": ""}, False),
        ("R1 + R3", {"R1 + R3": ""}, False),
        ("cost of a step (ERM = 1)", {"cost of a step": ""}, False),
    ]
    drawing = new_figure(16, 3 + 0.42 * len(METHODS))
    for axes, (title, names, is_higher_better) in zip(drawing.subplots(2, 3).flatten(), panels, strict=True):
        _panel(axes, columns, names, is_higher_better)
        key = "    ".join(
            f"{symbol} {name}" for (symbol, _), name in zip(_MARKERS, names.values(), strict=False) if name
        )
        axes.set_title(f"{title}\n{key}".rstrip(), fontsize=9)
    return drawing


def _panel(
    axes: Axes, columns: dict[str, dict[str, list[float]]], names: dict[str, str], is_higher_better: bool
) -> None:
    """Means with their intervals, sorted by the mean over `names`; vertical lines are ERM's."""
    means = {
        method: {name: sum(found[name]) / len(found[name]) for name in names if name in found}
        for method, found in columns.items()
    }
    order = sorted(METHODS, key=lambda m: sum(means[m].values()) / len(means[m]), reverse=is_higher_better)
    for index, name in enumerate(names):
        marker = _MARKERS[index % len(_MARKERS)][1]
        for row, method in enumerate(order):
            if name not in means[method]:
                continue
            mean, half = interval(columns[method][name])
            place, colour = row + 0.16 * (index - (len(names) - 1) / 2), COLOURS.get(method, OTHER)
            look: dict[str, Any] = {"color": colour, "markersize": 4, "elinewidth": 1, **marker}
            axes.errorbar([mean], [place], xerr=None if math.isnan(half) else [half], **look)
        if name in means["erm"]:
            axes.axvline(means["erm"][name], color=COLOURS["erm"], linewidth=0.8, alpha=0.5, zorder=1)
    values = [value for found in means.values() for value in found.values()]
    if min(values) > 0 and max(values) > _LOGARITHMIC_FROM * min(values):
        axes.set_xscale("log")
    else:
        axes.locator_params(axis="x", nbins=6)
    axes.set_yticks(range(len(order)), [METHODS[method][0] for method in order], fontsize=8)
    for tick, method in zip(axes.get_yticklabels(), order, strict=True):
        tick.set_color(ink(COLOURS.get(method, OTHER)))
    direction, by = "higher" if is_higher_better else "lower", " by the mean of all marks" if len(names) > 1 else ""
    axes.set_xlabel(f"{direction} is better, best on top{by}; lines: ERM", fontsize=8)
    axes.grid(axis="y", alpha=0.25)
    axes.margins(y=0.02)
    axes.invert_yaxis()


def table(results: Results, sizes: Sizes) -> Table:
    """Every number of the figure, with temperature scaling as a method of its own."""
    measured = Measured(results, sizes)
    rows = {title: measured.columns(method) for method, (title, _) in METHODS.items()}
    rows[TEMPERED] = measured.columns("erm", is_tempered=True)
    names = list(rows["ERM"])
    shown = [[title, *(cell(columns[name], ".3g") for name in names)] for title, columns in rows.items()]
    return Table(["method", *names], shown, note=moments.NOTE)


def claims(results: Results, sizes: Sizes) -> list[Claim]:
    """The ticks of Table 1, and what the discussion says of Mixup taken apart."""
    measured = Measured(results, sizes)
    flipped = [noise for noise in noises(sizes) if noise != "0"]

    def calibrates(method: str, predictor: str = "plain") -> Comparison:
        about = f"ECE, ERM − {METHODS[method][0]}" + ("" if predictor == "plain" else f", {predictor}")
        return exceeds(about, measured.test("erm", "plain", "ece"), measured.test(method, predictor, "ece"))

    def flattens(method: str) -> Comparison:
        about = f"‖∇f‖, ERM − {METHODS[method][0]}"
        return exceeds(about, measured.derivative("erm", "jacobian"), measured.derivative(method, "jacobian"))

    def withstands(method: str) -> list[Comparison]:
        return [
            exceeds(
                f"accuracy, {noise_name(noise)}, {METHODS[method][0]} − ERM",
                measured.test(method, "plain", "accuracy", noise),
                measured.test("erm", "plain", "accuracy", noise),
            )
            for noise in flipped
        ]

    def better(method: str) -> Comparison:
        about = f"cross-entropy, {METHODS[method][0]} − Mixup, both rescaled"
        return exceeds(
            about,
            measured.test(method, "rescaled", "cross_entropy"),
            measured.test("mixup", "rescaled", "cross_entropy"),
        )

    steadier = [
        exceeds(
            f"accuracy lost, {name} inputs, ERM − Mixup",
            measured.lost("erm", "plain", sign),
            measured.lost("mixup", "plain", sign),
        )
        for sign, name in (("+", "shifted"), ("×", "scaled"))
    ]
    ticks = {
        "label smoothing calibrates": (
            "Networks trained with label smoothing have a smaller ECE than those trained with ERM.",
            [calibrates("uniform"), calibrates("smoothing")],
        ),
        "temperature scaling calibrates": (
            "Networks trained with ERM have a smaller ECE after temperature scaling than before.",
            [calibrates("erm", "plain, tempered")],
        ),
        "spectral regularisation keeps the Jacobian small": (
            "Networks trained with spectral (Parseval) regularisation have smaller Jacobians than those of ERM.",
            [flattens("parseval")],
        ),
        "dropout calibrates": (
            "Networks trained with dropout have a smaller ECE than those trained with ERM.",
            [calibrates("dropout")],
        ),
        "dropout keeps the Jacobian small": (
            "Networks trained with dropout have smaller Jacobians than those trained with ERM.",
            [flattens("dropout")],
        ),
        "dropout withstands label noise": (
            "Networks trained with dropout are more accurate than those trained with ERM at every label noise.",
            withstands("dropout"),
        ),
        "Mixup calibrates": (
            "Networks trained with Mixup have a smaller ECE, rescaled, than those trained with ERM.",
            [calibrates("mixup", "rescaled")],
        ),
        "Mixup keeps the Jacobian small": (
            "Networks trained with Mixup have smaller Jacobians than those trained with ERM.",
            [flattens("mixup")],
        ),
        "Mixup withstands label noise": (
            "Networks trained with Mixup are more accurate than those trained with ERM at every label noise.",
            withstands("mixup"),
        ),
        "Mixup normalises inputs": (
            "Networks trained with Mixup lose less accuracy than those of ERM when test inputs are shifted or scaled.",
            steadier,
        ),
    }
    found = [Claim(name, statement, "Table 1", tuple(parts)) for name, (statement, parts) in ticks.items()]
    apart = tuple(better(method) for method in ("inputs", "outputs", "independent"))
    same = follows(
        "accuracy, Gaussian Mixup − Mixup, both rescaled",
        measured.test("gaussian", "rescaled", "accuracy"),
        measured.test("mixup", "rescaled", "accuracy"),
        measured.test("erm", "plain", "accuracy"),
    )
    return [
        *found,
        Claim(
            "Mixup is more than its parts",
            "Mixing only inputs, only labels, or both independently gives a larger cross-entropy than Mixup.",
            "Discussion",
            apart,
        ),
        Claim(
            "Gaussian noise will do",
            "Training with Gaussian noise of Mixup's covariances gives Mixup's accuracy, within half of the gap "
            "between Mixup and ERM.",
            "Conclusion",
            (same,),
        ),
    ]


EXPERIMENT = Experiment(
    name="regularizers",
    paper="Table 1",
    title="What regularisers do: calibration, Jacobian, label noise, moved inputs, and what they cost.",
    sizes_at=regulariser_runs.sizes_at,
    kinds=regularised.KINDS,
    runs=regulariser_runs.runs,
    caption=regulariser_runs.caption,
    figure=figure,
    table=table,
    claims=claims,
    unlike="not measured in the paper",
    missing=regulariser_runs.missing,
    earlier=moments.EARLIER,
)
