"""After the paper: does Mixup over-train on noisy labels, and what does switching it off late do?

Liu, Wang, Guo and Mao (*Over-training with Mixup may hurt generalization*, ICLR 2023) report that the test error of
Mixup first falls and then rises again in long training, and that going over to ERM at the right time helps. Here a part
of the training labels is flipped (test and held-out labels are not), for two moons (`mixreg.experiments.moons`) and for
a network on pictures, and Mixup is compared with itself: trained to the end, and switched off for the last part.

The best time is not looked up in the curve that it is judged on, where the least of many noisy values always lies
below the last one: for each repetition it is the best one of the mean over the *other* repetitions.

A network that was switched off last saw data as it is. There is no rule for it (`docs/mathematics.md`); what the rule
of Mixup does to it is measured, and what strength κ held-out data finds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mixreg.experiments import trained, two_moons
from mixreg.experiments.alpha_runs import shown_name, shown_network
from mixreg.experiments.claims import exceeds
from mixreg.experiments.experiment import Claim, Experiment, Results, Run, Sizes, Table
from mixreg.experiments.predictors import rescaled_name
from mixreg.experiments.requirements import is_at_hand, missing_for_training
from mixreg.experiments.sizes import SizesError
from mixreg.report.curves import label_ends, mean_curve, new_figure, say_better
from mixreg.report.intervals import cell
from mixreg.report.palette import REFERENCE, style
from mixreg.training.held_out_fit import FITTED, PLAIN, RESCALED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# How networks are trained: names, and the method and whether it is switched off.
_TRAININGS = {"ERM": ("erm", False), "Mixup": ("mixup", False), "Mixup, switched off": ("mixup", True)}
# Whose colours they have.
_LOOKS = {"ERM": "erm", "Mixup": "mixup", "Mixup, switched off": "switched"}
MOONS, _SOURCE = "two moons", "Liu et al. (2023)"
_NONE = "–"


def sizes_at(scale: str) -> dict[str, Any]:
    """CIFAR-10 where it is at hand, digits as pictures where it is not (and always for a smoke test)."""
    sizes: dict[str, Any] = {"alpha": 1.0, "noise": 0.2, "switch": 0.8, "looks": 25, "lr": 0.03}
    if scale == "smoke":
        sizes |= {"data": "digits-32", "model": "lenet", "samples": 200, "epochs": 5, "repetitions": 2}
        return sizes | {"moons": 2, "steps": 60, "features": 100, "looks": 5}
    if scale == "paper":
        sizes |= {"data": "cifar10", "model": "resnet9", "lr": 0.1, "samples": 10000, "epochs": 100}
        return sizes | {"repetitions": 5, "moons": 30, "steps": 10000, "features": 1000}
    sizes |= {"model": "lenet", "repetitions": 3, "moons": 10, "steps": 5000, "features": 1000}
    if is_at_hand("cifar10"):
        return sizes | {"data": "cifar10", "samples": 5000, "epochs": 60}
    return sizes | {"data": "digits-32", "samples": 1000, "epochs": 100}


def _switched(sizes: Sizes, length: int) -> int:
    """After how many epochs or steps Mixup is switched off."""
    until = round(sizes["switch"] * length)
    if not 0 < until < length:
        raise SizesError(f"switch must leave a part of {length} on both sides, got {sizes['switch']:g}")
    return until


def _on_moons(sizes: Sizes, method: str, is_off: bool) -> Run:
    """All repetitions of one way to train on two moons."""
    settings = {key: sizes[key] for key in ("alpha", "steps", "features", "looks")}
    settings |= {"method": method, "repetitions": sizes["moons"], "flipped": sizes["noise"]}
    return Run("two-moons", settings | {"until": _switched(sizes, sizes["steps"]) if is_off else 0})


def _on_pictures(sizes: Sizes, method: str, is_off: bool, seed: int) -> Run:
    """One network on pictures."""
    config = {key: sizes[key] for key in ("data", "model", "lr", "alpha", "samples", "epochs")}
    config |= {"method": method, "until": _switched(sizes, sizes["epochs"]) if is_off else 0, "seed": seed}
    config |= {"label_noise": sizes["noise"], "drops": [0.5], "augment": "none", "holdout": 0.1}
    looks = max(1, sizes["epochs"] // sizes["looks"])
    return Run("training", {"config": config, "rescale": [sizes["alpha"]], "fit": True, "evaluate_every": looks})


def runs(sizes: Sizes) -> list[Run]:
    for name in ("repetitions", "moons"):
        if sizes[name] < 2:
            raise SizesError(f"{name} must be at least 2: the best time of one is chosen by the others")
    if sizes["noise"] >= 1:
        raise SizesError(f"noise must be a part of the labels below 1, got {sizes['noise']:g}")
    on_moons = [_on_moons(sizes, *training) for training in _TRAININGS.values()]
    return on_moons + [
        _on_pictures(sizes, *training, seed) for seed in range(sizes["repetitions"]) for training in _TRAININGS.values()
    ]


def end_after_best(curves: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """The last value of each curve, and that at the time at which the mean of the other curves is least.

    >>> end_after_best([[3.0, 1.0, 2.0], [5.0, 2.0, 4.0]])
    ([2.0, 4.0], [1.0, 2.0])
    """
    values = np.array(curves)
    total = values.sum(0)
    best = [float(row[np.argmin(total - row)]) for row in values]
    return values[:, -1].tolist(), best


def _settings(sizes: Sizes, training: str, length: int) -> dict[str, Any]:
    method, is_off = _TRAININGS[training]
    return {"method": method, "until": _switched(sizes, length) if is_off else 0}


def error_curves(
    results: Results, sizes: Sizes, data: str, training: str, predictor: str = PLAIN
) -> tuple[list[float], list[list[float]]]:
    """When test errors were measured, and the errors: repetitions × times."""
    if data == MOONS:
        found = results.one(kind="two-moons", **_settings(sizes, training, sizes["steps"]))
        rows = found["measures"][predictor]["test_accuracy"]
        return found["steps"], [[1 - value for value in row] for row in rows]
    logs = [result["log"] for result in _networks(results, sizes, training)]
    measured = [[record for record in log if "test" in record] for log in logs]
    times = [float(record["epoch"]) for record in measured[0]]
    return times, [[1 - record["test"][predictor]["accuracy"] for record in log] for log in measured]


def _networks(results: Results, sizes: Sizes, training: str) -> list[dict[str, Any]]:
    return results.select(kind="training", **_settings(sizes, training, sizes["epochs"]))


def _final(results: Results, sizes: Sizes, training: str, predictor: str, measure: str) -> list[float]:
    """A measure of networks at the end."""
    return [result["test"][predictor][measure] for result in _networks(results, sizes, training)]


def _strengths(results: Results, sizes: Sizes, training: str) -> list[float]:
    return [result["fits"][FITTED]["strength"] for result in _networks(results, sizes, training)]


def caption(sizes: Sizes) -> str:
    samples = f"{sizes['samples']:,} pictures of {shown_name(sizes['data'])}"
    return (
        f"{sizes['noise']:.0%} of the training labels flipped, α = {sizes['alpha']:g}, switched off after "
        f"{sizes['switch']:.0%}; two moons as in Figure 8 with {sizes['steps']:,} steps, {sizes['moons']} repetitions; "
        f"{shown_network(sizes['model'])} on {samples}, SGD with learning rate {sizes['lr']:g}, divided by 10 halfway, "
        f"{sizes['epochs']} epochs, no augmentation, {sizes['repetitions']} repetitions; mean and 95 % interval"
    )


def figure(results: Results, sizes: Sizes) -> Figure:
    """Test errors over time, of plain predictions and with Mixup's rule (beside plain ERM's), by dataset."""
    drawing = new_figure(12.5, 7.8)
    axes = drawing.subplots(2, 2, sharex="row", sharey="row")
    lengths = {MOONS: sizes["steps"], sizes["data"]: sizes["epochs"]}
    for row, (data, length) in zip(axes, lengths.items(), strict=True):
        for place, (predictor, label) in zip(row, ((PLAIN, "plain"), (RESCALED, "rescaled")), strict=True):
            for training, (method, _) in _TRAININGS.items():
                shown = PLAIN if method == "erm" else predictor
                times, errors = error_curves(results, sizes, data, training, shown)
                mean_curve(place, times, errors, training, **style(_LOOKS[training], shown))
            place.axvline(_switched(sizes, length), color=REFERENCE, linewidth=0.8, linestyle=":")
            place.set(title=f"{shown_name(data)}: test error, {label}", xlabel="step" if data == MOONS else "epoch")
            say_better(place, "lower")
            label_ends(place)
    return drawing


def table(results: Results, sizes: Sizes) -> Table:
    """The curves' ends and best times; of networks also losses and the fitted strength."""
    rows, own = [], rescaled_name(sizes["alpha"])
    for data in (MOONS, sizes["data"]):
        for training in _TRAININGS:
            end, best = end_after_best(error_curves(results, sizes, data, training)[1])
            ruled = [row[-1] for row in error_curves(results, sizes, data, training, RESCALED)[1]]
            cells: list[str] = [cell(values, ".3f") for values in (best, end, ruled)]
            if data == MOONS:
                cells += [_NONE] * 5
            else:
                losses = [_final(results, sizes, training, p, "cross_entropy") for p in (PLAIN, own, FITTED)]
                memorised = [result["train"]["accuracy"] for result in _networks(results, sizes, training)]
                others = [*losses, _strengths(results, sizes, training), memorised]
                cells += [cell(values, ".3f") for values in others]
            rows.append([shown_name(data), training, *cells])
    heads = ["data", "trained with", "error at the best time", "error at the end", "the same, rescaled"]
    heads += ["cross-entropy", "rescaled", "fitted", "fitted κ", "training labels learnt"]
    return Table(heads, rows, note="Training labels are counted as they were shown: the flipped ones too.")


def claims(results: Results, sizes: Sizes) -> list[Claim]:
    """Whether Mixup over-trains, and what switching it off does to errors and to the rule; by dataset."""
    found, own = [], rescaled_name(sizes["alpha"])
    for data in (MOONS, sizes["data"]):
        name = shown_name(data)
        errors = {training: error_curves(results, sizes, data, training)[1] for training in _TRAININGS}
        ends = {training: [row[-1] for row in rows] for training, rows in errors.items()}
        off = "Mixup, switched off"
        ruled = [row[-1] for row in error_curves(results, sizes, data, off, RESCALED)[1]]
        hurts = [exceeds("test error once it is off, rescaled − plain", ruled, ends[off])]
        if data != MOONS:
            losses = (_final(results, sizes, off, predictor, "cross_entropy") for predictor in (own, PLAIN))
            hurts.append(exceeds("cross-entropy once it is off, rescaled − plain", *losses))
        found += [
            Claim(
                f"{name}, noisy labels: Mixup over-trains",
                f"On {name} with flipped labels, Mixup's test error is larger at the end of training than at the time "
                "that is best in the other repetitions.",
                _SOURCE,
                (exceeds("test error of Mixup, end − best time", *end_after_best(errors["Mixup"])),),
            ),
            Claim(
                f"{name}, noisy labels: switching Mixup off late helps",
                f"On {name} with flipped labels, Mixup that is switched off for the last part of training ends with a "
                "smaller test error than Mixup to the end.",
                _SOURCE,
                (exceeds("test error, Mixup to the end − switched off", ends["Mixup"], ends[off]),),
            ),
            Claim(
                f"{name}, noisy labels: once Mixup is off, its rule hurts",
                f"On {name} with flipped labels, networks for which Mixup was switched off predict worse rescaled, as "
                "if Mixup had stayed on, than plain.",
                "after the paper",
                tuple(hurts),
            ),
        ]
    strengths = (_strengths(results, sizes, training) for training in ("Mixup", "Mixup, switched off"))
    statement = (
        "The strength κ of the rule that fits held-out data best is smaller for networks for which Mixup was switched "
        "off than for those trained with Mixup to the end."
    )
    part = exceeds("fitted strength κ, Mixup to the end − switched off", *strengths)
    title = f"{shown_name(sizes['data'])}, noisy labels: once Mixup is off, a weaker rule fits"
    return [*found, Claim(title, statement, "after the paper", (part,))]


def missing(sizes: Mapping[str, Any]) -> list[str]:
    """The dataset, if it is not at hand."""
    return missing_for_training([sizes["data"]])


EXPERIMENT = Experiment(
    name="over-training",
    paper="after the paper",
    title="Test error over training time on noisy labels: ERM, Mixup, and Mixup that is switched off late.",
    sizes_at=sizes_at,
    kinds={**trained.KINDS, "two-moons": two_moons.measure},
    runs=runs,
    caption=caption,
    figure=figure,
    table=table,
    claims=claims,
    missing=missing,
    unlike="not measured in the paper",
)
