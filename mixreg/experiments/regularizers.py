"""Table 1, measured: which regulariser does what, on equal terms.

The paper's Table 1 ticks boxes: label smoothing calibrates; spectral regularisation keeps the Jacobian small; dropout
does both and withstands label noise; temperature scaling calibrates; Mixup does all of it, and normalises inputs. Here
every method, and Mixup's relatives, train the same network on the same data with the same optimiser, and are measured.

*Moved inputs*: how much accuracy is lost, on average, when every normalised input is shifted by a constant or scaled
by a factor. *R1* alone grows like 1/p where a network is sure of itself, and R3 makes up for it: their sum is what
counts. *Rescaled* is the prediction rule of each method (`mixreg.training.prediction`). Temperatures are fitted on
clean held-out data, after training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mixreg.experiments.claims import Claim, Part, exceeds, stays_within
from mixreg.experiments.experiment import Experiment, Results, Sizes, Table, is_at_hand, missing_for_training
from mixreg.experiments.store import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# What is trained: its name, and what its configuration differs in from ERM's.
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "erm": ("ERM", {}),
    "uniform": ("label smoothing, uniform", {"label_smoothing": 0.1}),
    "smoothing": ("label smoothing, mean label", {"method": "smoothing", "alpha": 1.0}),
    "parseval": ("Parseval", {"parseval": 0.001}),
    "dropout": ("dropout", {"dropout": 0.5}),
    "mixup": ("Mixup", {"method": "mixup", "alpha": 1.0}),
    "approximate": ("approximate Mixup", {"method": "approximate", "alpha": 1.0}),
    "gaussian": ("Gaussian Mixup", {"method": "gaussian", "alpha": 1.0}),
    "modified": ("ERM on modified data", {"method": "modified", "alpha": 1.0}),
    "inputs": ("Mixup of inputs", {"method": "inputs", "alpha": 1.0}),
    "outputs": ("Mixup of labels", {"method": "outputs", "alpha": 1.0}),
    "independent": ("Mixup, independent", {"method": "independent", "alpha": 1.0}),
    "scaled": ("Mixup, scaled (α = 2)", {"method": "scaled", "alpha": 2.0}),
    "manifold": ("Manifold Mixup (α = 2)", {"method": "manifold", "alpha": 2.0}),
    "cutmix": ("CutMix", {"method": "cutmix", "alpha": 1.0}),
    "adaptive": ("adaptive Mixup", {"method": "adaptive"}),
    "regmixup": ("RegMixup (α = 10)", {"method": "regmixup", "alpha": 10.0}),
    "mixupe": ("MixupE", {"method": "mixupe", "alpha": 1.0}),
    "combined": ("Mixup + dropout + Parseval", {"method": "mixup", "alpha": 1.0, "dropout": 0.5, "parseval": 0.001}),
}
TEMPERED = "temperature scaling of ERM"
# How far apart two accuracies may be and still count as the same.
MARGIN = 0.02
_NO_DATA = "none"
# A panel whose values differ by more than this factor has a logarithmic axis.
_LOGARITHMIC_FROM = 10


def sizes(scale: str) -> dict[str, Any]:
    """Digits as pictures where CIFAR-10 is not at hand (and always for a smoke test)."""
    shared: dict[str, Any] = {"model": "lenet", "lr": 0.03, "rounds": 10, "noises": ["0", "0.2", "0.4"]}
    shared |= {"shifts": [-1.0, -0.5, 0.5, 1.0], "scales": [0.5, 0.75, 1.5, 2.0]}
    digits = shared | {"data": "digits-32", "human": _NO_DATA}
    if scale == "smoke":
        digits |= {"noises": ["0"], "shifts": [0.5], "scales": [2.0]}
        return digits | {"samples": 64, "epochs": 1, "repetitions": 1, "images": 50, "points": 20, "rounds": 2}
    cifar = shared | {"data": "cifar10", "human": "cifar10n-worst", "images": 1000, "points": 500}
    if scale == "paper":
        return cifar | {"samples": 45000, "epochs": 200, "repetitions": 10, "lr": 0.01}
    if is_at_hand("cifar10"):
        human = "cifar10n-worst" if is_at_hand("cifar10n-worst") else _NO_DATA
        return cifar | {"samples": 5000, "epochs": 30, "repetitions": 3, "human": human}
    return digits | {"samples": 1000, "epochs": 60, "repetitions": 3, "images": 300, "points": 200}


def noises(chosen: Sizes) -> list[str]:
    """Kinds of label noise: fractions of flipped labels, and people's labels where they are at hand."""
    return [*chosen["noises"], *([] if chosen["human"] == _NO_DATA else ["human"])]


def _config(chosen: Sizes, method: str) -> dict[str, Any]:
    config = {key: chosen[key] for key in ("data", "model", "lr", "samples", "epochs")}
    return config | {"method": "erm", "drops": [0.5], "augment": "none"} | METHODS[method][1]


def run(chosen: Sizes, method: str, noise: str, seed: int) -> Run:
    """One training run; moved inputs and derivatives are measured on networks that saw clean labels."""
    config = _config(chosen, method) | {"seed": seed}
    config |= {"data": chosen["human"]} if noise == "human" else {"label_noise": float(noise)}
    look = {key: chosen[key] for key in ("shifts", "scales", "images", "points")} if noise == "0" else None
    return Run("regularised", {"config": config, "look": look})


def _steps(chosen: Sizes) -> Run:
    configs = {method: _config(chosen, method) for method in METHODS}
    return Run("steps", {"configs": configs, "rounds": chosen["rounds"]})


def runs(chosen: Sizes) -> list[Run]:
    """All of them, one repetition after another, and the timing of steps."""
    trained = [
        run(chosen, method, noise, seed)
        for seed in range(chosen["repetitions"])
        for noise in noises(chosen)
        for method in METHODS
    ]
    return [_steps(chosen), *trained]


class Measured:
    """The numbers of the table: lists over repetitions, by method."""

    def __init__(self, results: Results, chosen: Sizes) -> None:
        self.results, self.chosen = results, chosen

    def _all(self, method: str, noise: str) -> list[dict[str, Any]]:
        return [self.results[run(self.chosen, method, noise, s).key] for s in range(self.chosen["repetitions"])]

    def test(self, method: str, predictor: str, measure: str, noise: str = "0") -> list[float]:
        """A measure on test data."""
        return [found["test"][predictor][measure] for found in self._all(method, noise)]

    def derivative(self, method: str, name: str) -> list[float]:
        """`jacobian`, `r1` or `r1_r3`."""
        return [found[name] for found in self._all(method, "0")]

    def lost(self, method: str, predictor: str, sign: str) -> list[float]:
        """Accuracy lost under shifts ("+") or scalings ("×"), averaged over them."""
        lost = []
        for found in self._all(method, "0"):
            moved = found["moved"][predictor]
            accuracies = [value for title, value in moved.items() if title.startswith(sign)]
            lost.append(moved[""] - sum(accuracies) / len(accuracies))
        return lost

    def cost(self, method: str) -> list[float]:
        """Steps of ERM that one step takes, round by round."""
        ratios: list[float] = self.results[_steps(self.chosen).key]["ratios"][method]
        return ratios

    def columns(self, method: str, is_tempered: bool = False) -> dict[str, list[float]]:
        """Every column of the table; temperature scaling changes calibration only."""
        suffix = ", tempered" if is_tempered else ""
        columns = {
            "ECE": self.test(method, f"plain{suffix}", "ece"),
            "ECE, rescaled": self.test(method, f"rescaled{suffix}", "ece"),
            "Jacobian": self.derivative(method, "jacobian"),
            "R1": self.derivative(method, "r1"),
            "R1 + R3": self.derivative(method, "r1_r3"),
        }
        for noise in noises(self.chosen):
            columns[f"accuracy, {noise_name(noise)}"] = self.test(method, "plain", "accuracy", noise)
        columns["accuracy, rescaled"] = self.test(method, "rescaled", "accuracy")
        for sign, name in (("+", "shifted"), ("×", "scaled")):
            columns[f"lost, {name}"] = self.lost(method, "plain", sign)
        return columns | {"cost of a step": self.cost(method)}


def noise_name(noise: str) -> str:
    """What to call it."""
    return {"0": "clean", "human": "human noise"}.get(noise) or f"{float(noise):.0%} flipped"


def figure(results: Results, chosen: Sizes) -> Figure:
    """A row per method, a panel per kind of measure; the line is ERM."""
    from matplotlib.figure import Figure

    from mixreg.report.curves import caption

    measured = Measured(results, chosen)
    columns = {method: measured.columns(method) for method in METHODS}
    noise_columns = [f"accuracy, {noise_name(noise)}" for noise in noises(chosen)]
    panels = {
        "calibration: ECE": ["ECE", "ECE, rescaled"],
        "Jacobian: ‖∇f‖ at test points": ["Jacobian"],
        "R1 + R3": ["R1 + R3"],
        "label noise: test accuracy": noise_columns,
        "moved inputs: accuracy lost": ["lost, shifted", "lost, scaled"],
        "cost of a step (ERM = 1)": ["cost of a step"],
    }
    drawing = Figure(figsize=(17, 1.6 + 0.33 * len(METHODS)), layout="constrained")
    axes = drawing.subplots(1, len(panels), sharey=True)
    for place, (title, names) in zip(axes, panels.items(), strict=True):
        for index, name in enumerate(names):
            _dots(place, [columns[method][name] for method in METHODS], index, len(names), name)
        place.set_title(title, fontsize=9)
        place.grid(axis="y", alpha=0.25)
        if len(names) > 1:
            place.legend(fontsize=7, loc="best")
        means = [sum(columns[method][name]) / len(columns[method][name]) for method in METHODS for name in names]
        if min(means) > 0 and max(means) > _LOGARITHMIC_FROM * min(means):
            place.set_xscale("log")
    axes[0].set_yticks(range(len(METHODS)), [title for title, _ in METHODS.values()], fontsize=8)
    axes[0].invert_yaxis()
    caption(drawing, made_with(chosen))
    return drawing


def _dots(axes: Axes, rows: Sequence[Sequence[float]], index: int, count: int, label: str) -> None:
    """Means with their intervals, a row per method, and a line through the first one, ERM."""
    from mixreg.report.intervals import interval

    spans = [interval(list(values)) for values in rows]
    places = [row + 0.18 * (index - (count - 1) / 2) for row in range(len(rows))]
    half = [0.0 if span.half_width != span.half_width else span.half_width for span in spans]
    axes.errorbar(
        [span.mean for span in spans], places, xerr=half, fmt="o", markersize=3.5, color=f"C{index}", label=label
    )
    axes.axvline(spans[0].mean, color=f"C{index}", linewidth=0.8, alpha=0.6)


def table(results: Results, chosen: Sizes) -> Table:
    """Every number of the figure, with temperature scaling as a method of its own."""
    from mixreg.report.intervals import interval

    measured = Measured(results, chosen)
    rows = {title: measured.columns(method) for method, (title, _) in METHODS.items()}
    rows[TEMPERED] = measured.columns("erm", is_tempered=True)
    names = list(rows["ERM"])
    shown = [[title, *(f"{interval(columns[name]):.3g}" for name in names)] for title, columns in rows.items()]
    return Table(["method", *names], shown)


def claims(results: Results, chosen: Sizes) -> list[Claim]:
    """The ticks of Table 1, and what the discussion says of Mixup taken apart."""
    measured = Measured(results, chosen)
    flipped = [noise for noise in noises(chosen) if noise != "0"]

    def calibrates(method: str, predictor: str = "plain") -> Part:
        about = f"ECE, ERM − {METHODS[method][0]}" + ("" if predictor == "plain" else f", {predictor}")
        return exceeds(about, measured.test("erm", "plain", "ece"), measured.test(method, predictor, "ece"))

    def flattens(method: str) -> Part:
        about = f"‖∇f‖, ERM − {METHODS[method][0]}"
        return exceeds(about, measured.derivative("erm", "jacobian"), measured.derivative(method, "jacobian"))

    def withstands(method: str) -> list[Part]:
        return [
            exceeds(
                f"accuracy, {noise_name(noise)}, {METHODS[method][0]} − ERM",
                measured.test(method, "plain", "accuracy", noise),
                measured.test("erm", "plain", "accuracy", noise),
            )
            for noise in flipped
        ]

    def better(method: str) -> Part:
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
    same = stays_within(
        "accuracy, Gaussian Mixup − Mixup, both rescaled",
        measured.test("gaussian", "rescaled", "accuracy"),
        measured.test("mixup", "rescaled", "accuracy"),
        MARGIN,
    )
    return [
        *found,
        Claim("Mixup is more than its parts", "Mixing one part only, or both apart, is worse.", "Discussion", apart),
        Claim(
            "Gaussian noise will do",
            f"Noise with Mixup's covariances gives Mixup's accuracy, within {100 * MARGIN:g} points.",
            "Conclusion",
            (same,),
        ),
    ]


def made_with(chosen: Sizes) -> str:
    """What the figure says of its runs."""
    names = {"cifar10": "CIFAR-10", "digits-32": "digits"}
    human = ", human noise: CIFAR-10N's worst labels" if chosen["human"] != _NO_DATA else ""
    data = names.get(chosen["data"], chosen["data"])
    return (
        f"LeNet on {chosen['samples']:,} training samples of {data}{human}; SGD with step {chosen['lr']:g} (÷ 10 at "
        f"half time), {chosen['epochs']} epochs, no augmentation; α = 1 where nothing else is said; temperatures from "
        f"a clean tenth held out; {chosen['images']:,} moved test images, derivatives at {chosen['points']} points; "
        f"mean and 95 % interval of {chosen['repetitions']} repetitions ({chosen['rounds']} rounds for the cost of a "
        f"step)"
    )


def missing(chosen: Sizes) -> list[str]:
    """Datasets that are not at hand."""
    return missing_for_training([name for name in (chosen["data"], chosen["human"]) if name != _NO_DATA])


EXPERIMENT = Experiment(
    "regularizers",
    "Table 1",
    "What regularisers do: calibration, Jacobian, label noise, moved inputs, and what they cost.",
    sizes,
    runs,
    figure,
    table,
    claims,
    missing,
)
