"""Proposition on label smoothing: how confident, at most, a linear model is after its labels were smoothed.

    θ̄ · mean H(p_i) + (1 − θ̄) · H(ȳ) ≤ mean H(p̃_i)

with both models fitted to convergence (`mixreg.theory.smoothing.entropy_bound`), over α and datasets whose classes a
linear model does not separate.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mixreg._support.random import integers, permutation, stream
from mixreg.experiments.claims import always
from mixreg.experiments.experiment import Claim, Experiment, Progress, Results, Run, Sizes, Table, rounded
from mixreg.report.curves import label_ends, mean_curve, new_figure
from mixreg.report.intervals import cell
from mixreg.report.palette import METHODS, REFERENCE
from mixreg.theory.smoothing import entropy_bound

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Data, and how many principal components of it a linear model may see.
_DATASETS = {"iris": 2, "wine": 2, "breast cancer": 2, "digits": 3}
# The part of the labels that is flipped.
_FLIPPED = 0.1
# Newton's method leaves the entropies this uncertain.
ROUNDING = 1e-7


def sizes_at(scale: str) -> dict[str, Any]:
    """More data, more α, more repetitions with the scale."""
    alphas = {"smoke": [0.3, 3.0], "laptop": [0.1, 0.3, 1.0, 3.0, 10.0]}
    repetitions = {"smoke": 3, "laptop": 5, "paper": 20}[scale]
    datasets = list(_DATASETS) if scale != "smoke" else ["iris", "breast cancer"]
    return {
        "datasets": datasets,
        "alphas": alphas.get(scale, [0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0]),
        "repetitions": repetitions,
    }


def runs(sizes: Sizes) -> list[Run]:
    """One run per dataset and repetition, all α."""
    return [
        Run("label-smoothing", {"data": data, "flipped": _FLIPPED, "alphas": list(sizes["alphas"]), "seed": seed})
        for data in sizes["datasets"]
        for seed in range(sizes["repetitions"])
    ]


def points(name: str, flipped: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A random 80 % of a dataset on its first principal components, with a constant input; and its labels."""
    from sklearn import datasets
    from sklearn.decomposition import PCA
    from sklearn.preprocessing import StandardScaler

    load = {
        "iris": datasets.load_iris,
        "wine": datasets.load_wine,
        "breast cancer": datasets.load_breast_cancer,
        "digits": datasets.load_digits,
    }[name]
    x, y = load(return_X_y=True)
    kept = permutation(len(y), stream("label smoothing", name, seed))[: round(0.8 * len(y))].numpy()
    scaled = StandardScaler().fit_transform(x)[kept]
    seen = PCA(_DATASETS[name], svd_solver="full").fit_transform(scaled)
    labels = torch.from_numpy(y[kept]).long()
    # Some labels are wrong, so that no line separates any two classes.
    wrong, classes = stream("label smoothing, noise", name, seed), int(labels.max()) + 1
    chosen = permutation(len(labels), wrong)[: round(flipped * len(labels))]
    labels[chosen] = (labels[chosen] + 1 + integers(classes - 1, chosen.shape, wrong)) % classes
    return torch.from_numpy(np.column_stack([seen, np.ones(len(seen))])), labels


def measure(settings: dict[str, Any], folder: Path, progress: Progress) -> dict[str, Any]:
    """Both sides of the bound, for every α."""
    x, y = points(settings["data"], settings["flipped"], settings["seed"])
    found: dict[str, list[float]] = {"lower": [], "smoothed": [], "plain": [], "mean_label": [], "gap": []}
    for done, alpha in enumerate(settings["alphas"], start=1):
        bound = entropy_bound(x, y, alpha)
        for name in ("lower", "smoothed", "plain", "mean_label"):
            found[name].append(float(getattr(bound, name)))
        found["gap"].append(float(bound.smoothed - bound.lower))
        progress(done / len(settings["alphas"]))
    return rounded(found)


def _rows(results: Results, data: str, key: str) -> np.ndarray:
    """Repetitions × α."""
    return np.array([found[key] for found in results.select(data=data)])


def caption(sizes: Sizes) -> str:
    return (
        "Linear models with cross-entropy, fitted to convergence; principal components of scikit-learn's datasets, "
        f"random 80 %, {_FLIPPED:.0%} of labels flipped; mean and 95 % interval of {sizes['repetitions']} repetitions"
    )


def figure(results: Results, sizes: Sizes) -> Figure:
    """Mean entropy of predictions over α, with and without smoothing, above the bound."""
    datasets = sizes["datasets"]
    rows = (len(datasets) + 1) // 2
    drawing = new_figure(12, 0.6 + 3.8 * rows)
    styles = {
        "smoothed": ("labels smoothed", {"color": METHODS["smoothing"], "marker": "."}),
        "lower": ("lower bound", {"color": REFERENCE, "linestyle": ":"}),
        "plain": ("labels as they are", {"color": METHODS["erm"]}),
    }
    places = drawing.subplots(rows, 2, squeeze=False).flatten()
    for place in places[len(datasets) :]:
        place.set_axis_off()
    for place, data in zip(places, datasets, strict=False):
        for key, (label, style) in styles.items():
            mean_curve(place, sizes["alphas"], _rows(results, data, key), label, **style)
        place.set(xscale="log", xlabel="α", title=f"{data}, {_DATASETS[data]} components")
        place.set_ylabel("mean entropy of predictions", fontsize=8)
        label_ends(place)
    return drawing


def table(results: Results, sizes: Sizes) -> Table:
    """The entropies of the figure."""
    rows = []
    for data in sizes["datasets"]:
        for index, alpha in enumerate(sizes["alphas"]):
            keys = ("plain", "lower", "smoothed")
            cells = [cell(_rows(results, data, key)[:, index].tolist(), ".4f") for key in keys]
            rows.append([data, f"{alpha:g}", *cells])
    return Table(["data", "α", "H(p), plain", "lower bound", "H(p̃), smoothed"], rows)


def claims(results: Results, sizes: Sizes) -> list[Claim]:
    """The bound, and what follows from it."""

    def least(data: str, key: str) -> list[float]:
        """The smallest over α, repetition by repetition."""
        if key == "gap":
            found = _rows(results, data, "gap")
        else:
            found = _rows(results, data, "smoothed") - _rows(results, data, "plain")
        smallest: list[float] = found.min(1).tolist()
        return smallest

    return [
        Claim(
            "the entropy bound",
            "With p the predictions of a linear model and p̃ those after label smoothing, θ̄ mean H(p) + (1 − θ̄) H(ȳ) "
            "≤ mean H(p̃) for every α.",
            "Proposition on label smoothing",
            tuple(always(f"{data}: smallest gap over α", least(data, "gap"), ROUNDING) for data in sizes["datasets"]),
        ),
        Claim(
            "label smoothing raises the entropy of predictions",
            "With p the predictions of a linear model and p̃ those after label smoothing, mean H(p) ≤ mean H(p̃) for "
            "every α.",
            "Proposition on label smoothing",
            tuple(
                always(f"{data}: smallest increase over α", least(data, "increase"), ROUNDING)
                for data in sizes["datasets"]
            ),
        ),
    ]


def missing(sizes: Sizes) -> list[str]:
    """Datasets that are not among the four."""
    known = ", ".join(_DATASETS)
    return [f"unknown dataset {name!r}; known are {known}" for name in sizes["datasets"] if name not in _DATASETS]


EXPERIMENT = Experiment(
    name="label-smoothing",
    paper="Proposition on label smoothing",
    title="The entropy of predictions with and without label smoothing, and its lower bound, over α and datasets.",
    sizes_at=sizes_at,
    kinds={"label-smoothing": measure},
    runs=runs,
    caption=caption,
    figure=figure,
    table=table,
    claims=claims,
    unlike="not measured in the paper",
    missing=missing,
)
