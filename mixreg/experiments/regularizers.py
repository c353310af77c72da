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

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mixreg.experiments import moments, regularised, regulariser_runs
from mixreg.experiments.claims import Comparison, exceeds, follows
from mixreg.experiments.experiment import Claim, Experiment, Results, Sizes, Table
from mixreg.experiments.regulariser_runs import METHODS, Measured, noise_name, noises
from mixreg.report.curves import new_figure
from mixreg.report.intervals import interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TEMPERED = "temperature scaling of ERM"
# A panel whose values differ by more than this factor has a logarithmic axis.
_LOGARITHMIC_FROM = 10


def figure(results: Results, sizes: Sizes) -> Figure:
    """A row per method, a panel per kind of measure; the line is ERM."""
    measured = Measured(results, sizes)
    columns = {method: measured.columns(method) for method in METHODS}
    noise_columns = [f"accuracy, {noise_name(noise)}" for noise in noises(sizes)]
    panels = {
        "calibration: ECE": ["ECE", "ECE, rescaled"],
        "Jacobian: ‖∇f‖ at test points": ["Jacobian"],
        "R1 + R3": ["R1 + R3"],
        "label noise: test accuracy": noise_columns,
        "moved inputs: accuracy lost": ["lost, shifted", "lost, scaled"],
        "cost of a step (ERM = 1)": ["cost of a step"],
    }
    drawing = new_figure(17, 1.6 + 0.33 * len(METHODS))
    axes = drawing.subplots(1, len(panels), sharey=True)
    for place, (title, names) in zip(axes, panels.items(), strict=True):
        for index, name in enumerate(names):
            _dots(place, [columns[method][name] for method in METHODS], index, len(names), name)
        place.set_title(title, fontsize=9)
        place.grid(axis="y", alpha=0.25)
        if len(names) > 1:
            # Below: every row is taken.
            place.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.05))
        means = [sum(columns[method][name]) / len(columns[method][name]) for method in METHODS for name in names]
        if min(means) > 0 and max(means) > _LOGARITHMIC_FROM * min(means):
            place.set_xscale("log")
    axes[0].set_yticks(range(len(METHODS)), [title for title, _ in METHODS.values()], fontsize=8)
    axes[0].invert_yaxis()
    return drawing


def _dots(axes: Axes, rows: Sequence[Sequence[float]], index: int, count: int, label: str) -> None:
    """Means with their intervals, a row per method, and a line through the first one, ERM."""
    spans = [interval(list(values)) for values in rows]
    places = [row + 0.18 * (index - (count - 1) / 2) for row in range(len(rows))]
    half = [0.0 if span.half_width != span.half_width else span.half_width for span in spans]
    axes.errorbar(
        [span.mean for span in spans], places, xerr=half, fmt="o", markersize=3.5, color=f"C{index}", label=label
    )
    axes.axvline(spans[0].mean, color=f"C{index}", linewidth=0.8, alpha=0.6)


def table(results: Results, sizes: Sizes) -> Table:
    """Every number of the figure, with temperature scaling as a method of its own."""
    measured = Measured(results, sizes)
    rows = {title: measured.columns(method) for method, (title, _) in METHODS.items()}
    rows[TEMPERED] = measured.columns("erm", is_tempered=True)
    names = list(rows["ERM"])
    shown = [[title, *(f"{interval(columns[name]):.3g}" for name in names)] for title, columns in rows.items()]
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
        "label smoothing calibrates": ("Its ECE is below ERM's.", [calibrates("uniform"), calibrates("smoothing")]),
        "temperature scaling calibrates": ("ERM's ECE falls.", [calibrates("erm", "plain, tempered")]),
        "spectral regularisation keeps the Jacobian small": ("Its Jacobian is below ERM's.", [flattens("parseval")]),
        "dropout calibrates": ("Its ECE is below ERM's.", [calibrates("dropout")]),
        "dropout keeps the Jacobian small": ("Its Jacobian is below ERM's.", [flattens("dropout")]),
        "dropout withstands label noise": ("It is more accurate than ERM at every noise.", withstands("dropout")),
        "Mixup calibrates": ("Its ECE is below ERM's, rescaled.", [calibrates("mixup", "rescaled")]),
        "Mixup keeps the Jacobian small": ("Its Jacobian is below ERM's.", [flattens("mixup")]),
        "Mixup withstands label noise": ("It is more accurate than ERM at every noise.", withstands("mixup")),
        "Mixup normalises inputs": ("It loses less accuracy than ERM when inputs are moved.", steadier),
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
        Claim("Mixup is more than its parts", "Mixing one part only, or both apart, is worse.", "Discussion", apart),
        Claim(
            "Gaussian noise will do",
            "Noise with Mixup's covariances gives Mixup's accuracy, within half of the gap between Mixup and ERM.",
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
