"""Where Mixup does not pay: a network that has not learnt its training set yet.

Mixup makes the training set harder to learn. Its first author advises a network "that severely overfits"
(moskomule/mixup.pytorch#1); a small one that is trained for a few epochs is the opposite: what it lacks is time, and
Mixup takes more of it. Here one small network is trained for several lengths of time, each a whole schedule of its own,
with ERM and with Mixup: Mixup's *gain* is how much better it is than ERM (higher accuracy, lower cross-entropy), plain
and rescaled. How much of the training set was learnt stands beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mixreg.experiments import trained
from mixreg.experiments.alpha_runs import MEASURES, shown_name, shown_network
from mixreg.experiments.claims import exceeds, is_positive
from mixreg.experiments.experiment import Claim, Experiment, Results, Run, Sizes, Table
from mixreg.experiments.predictors import rescaled_name
from mixreg.experiments.requirements import is_at_hand, missing_for_training
from mixreg.experiments.sizes import SizesError
from mixreg.report.curves import label_ends, mean_curve, new_figure, say_better, zero_line
from mixreg.report.intervals import interval
from mixreg.report.palette import style
from mixreg.training.held_out_fit import PLAIN, RESCALED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_JUDGED = {name: MEASURES[name] for name in ("accuracy", "cross_entropy")}
_SOURCE = "advice of Mixup's first author"


def sizes_at(scale: str) -> dict[str, Any]:
    """CIFAR-10 where it is at hand, digits as pictures where it is not (and always for a smoke test)."""
    sizes: dict[str, Any] = {"alpha": 1.0, "model": "lenet", "lr": 0.01}
    cifar = sizes | {"data": "cifar10", "lengths": [2.0, 5.0, 10.0, 20.0]}
    if scale == "paper":
        return cifar | {"repetitions": 10}
    if scale == "laptop" and is_at_hand("cifar10"):
        return cifar | {"repetitions": 3}
    lengths = [1.0, 2.0] if scale == "smoke" else [2.0, 5.0, 10.0, 20.0, 40.0]
    return sizes | {"data": "digits-32", "lengths": lengths, "repetitions": 2 if scale == "smoke" else 5}


def runs(sizes: Sizes) -> list[Run]:
    """For each repetition and length, ERM and Mixup."""
    if any(length < 1 or length != int(length) for length in sizes["lengths"]):
        raise SizesError(f"lengths must be numbers of epochs, got {sizes['lengths']}")
    if len(set(sizes["lengths"])) < 2:
        raise SizesError(f"lengths must be at least two different ones, got {sizes['lengths']}")
    shared = {key: sizes[key] for key in ("data", "model", "lr", "alpha")}
    shared |= {"drops": [0.5], "augment": "none", "holdout": 0.1}
    return [
        Run(
            "training",
            {
                "config": {**shared, "method": method, "epochs": int(length), "seed": seed},
                "rescale": [sizes["alpha"]],
                "fit": True,
                "evaluate_every": int(length),
            },
        )
        for seed in range(sizes["repetitions"])
        for length in sizes["lengths"]
        for method in ("erm", "mixup")
    ]


def _test(results: Results, sizes: Sizes, method: str, predictor: str, measure: str) -> np.ndarray:
    """A measure on test data: repetitions × lengths."""
    columns = [results.select(method=method, epochs=int(length)) for length in sizes["lengths"]]
    return np.array([[found["test"][predictor][measure] for found in column] for column in columns]).T


def _gain(results: Results, sizes: Sizes, predictor: str, measure: str) -> np.ndarray:
    """How much better Mixup is than plain ERM: repetitions × lengths."""
    sign = 1 if measure == "accuracy" else -1
    mixup = _test(results, sizes, "mixup", predictor, measure)
    return sign * (mixup - _test(results, sizes, "erm", PLAIN, measure))


def _learnt(results: Results, sizes: Sizes, method: str) -> np.ndarray:
    """The training set's share that is right: repetitions × lengths."""
    columns = [results.select(method=method, epochs=int(length)) for length in sizes["lengths"]]
    return np.array([[found["train"]["accuracy"] for found in column] for column in columns]).T


def caption(sizes: Sizes) -> str:
    return (
        f"{shown_network(sizes['model'])} on {shown_name(sizes['data'])}, α = {sizes['alpha']:g}; SGD with learning "
        f"rate {sizes['lr']:g}, divided by 10 halfway, no augmentation; every length is a schedule of its own; mean "
        f"and 95 % interval of {sizes['repetitions']} repetitions"
    )


def figure(results: Results, sizes: Sizes) -> Figure:
    """What Mixup gains over ERM against the length of training, and how much of the training set was learnt."""
    drawing = new_figure(14, 4.2)
    *gains, learnt = drawing.subplots(1, len(_JUDGED) + 1)
    lengths, own = sizes["lengths"], rescaled_name(sizes["alpha"])
    for place, (measure, label) in zip(gains, _JUDGED.items(), strict=True):
        for predictor, name, look in ((PLAIN, "Mixup", PLAIN), (own, "Mixup, rescaled", RESCALED)):
            rows = _gain(results, sizes, predictor, measure)
            mean_curve(place, lengths, rows, name, marker=".", **style("mixup", look))
        zero_line(place, "ERM")
        place.set(title=f"gain over ERM in {label}")
        say_better(place, "higher")
    for method, name in (("erm", "ERM"), ("mixup", "Mixup")):
        mean_curve(learnt, lengths, _learnt(results, sizes, method), name, marker=".", **style(method))
    learnt.set(title="share of training images right, without mixing")
    for place in (*gains, learnt):
        place.set(xscale="log", xlabel="epochs")
        place.set_xticks(lengths, [f"{length:g}" for length in lengths])
        place.minorticks_off()
        label_ends(place)
    return drawing


def table(results: Results, sizes: Sizes) -> Table:
    """ERM and Mixup at every length."""
    rows, own = [], rescaled_name(sizes["alpha"])
    shown = (("ERM", "erm", PLAIN), ("Mixup", "mixup", PLAIN), ("Mixup, rescaled", "mixup", own))
    for at, length in enumerate(sizes["lengths"]):
        for name, method, predictor in shown:
            cells = [_test(results, sizes, method, predictor, measure)[:, at] for measure in MEASURES]
            cells.append(_learnt(results, sizes, method)[:, at])
            rows.append([f"{length:g}", name, *(f"{interval(cell.tolist()):.4f}" for cell in cells)])
    return Table(["epochs", "trained with", *MEASURES.values(), "training set learnt"], rows)


def claims(results: Results, sizes: Sizes) -> list[Claim]:
    """Mixup loses in short training, and less so in long."""
    lengths, name = sizes["lengths"], shown_name(sizes["data"])
    gains = {measure: _gain(results, sizes, PLAIN, measure) for measure in _JUDGED}
    short, long = lengths.index(min(lengths)), lengths.index(max(lengths))
    return [
        Claim(
            f"{name}: Mixup does not help a network that underfits",
            f"Trained for {lengths[short]:g} epochs, plain Mixup has lower accuracy and higher cross-entropy than ERM.",
            _SOURCE,
            tuple(
                is_positive(f"what Mixup loses in {label}, {lengths[short]:g} epochs", (-gains[m][:, short]).tolist())
                for m, label in _JUDGED.items()
            ),
        ),
        Claim(
            f"{name}: Mixup gains with the length of training",
            "The gain of plain Mixup over ERM is larger at the longest training than at the shortest.",
            _SOURCE,
            tuple(
                exceeds(
                    f"gain in {label}, {lengths[long]:g} − {lengths[short]:g} epochs",
                    gains[m][:, long].tolist(),
                    gains[m][:, short].tolist(),
                )
                for m, label in _JUDGED.items()
            ),
        ),
    ]


def missing(sizes: Sizes) -> list[str]:
    """Datasets that are not at hand."""
    return missing_for_training([sizes["data"]])


EXPERIMENT = Experiment(
    name="underfitting",
    paper="after the paper",
    title="What Mixup gains over ERM against the length of training, on a network that underfits.",
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
