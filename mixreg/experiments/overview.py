"""Figure 1: the Bayes classifiers of original, Mixup and modified data, and how they differ.

The data is a mixture of Gaussians N(m_k, s² I) along two moons, so that all three classifiers are known. A mixed pair
of components k and l is Gaussian too, given λ, and carries the label λ y_k + (1 − λ) y_l:

    E[y | x]        = Σ_k y_k N(x; m_k, s²) / Σ_k N(x; m_k, s²)
    E[ŷ | x̂]        = ∫ Σ_kl (λ y_k + (1 − λ) y_l) N(x̂; λ m_k + (1 − λ) m_l, (λ² + (1 − λ)²) s²) dλ / ∫ Σ_kl N(…) dλ
    E[ỹ | x̃]        = ȳ + θ̄ (E[y | x = x̄ + (x̃ − x̄) / θ̄] − ȳ).

Each classifier decides where its regression function is ½.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from mixreg._support.random import integers, normal, stream
from mixreg.experiments.experiment import Claim, Experiment, Progress, Results, Run, Sizes, Table, rounded
from mixreg.methods.mixup import Mixup
from mixreg.report.curves import label_corner, new_figure
from mixreg.report.palette import CLASSES, METHODS, REFERENCE
from mixreg.theory.modified import shrink, stretch
from mixreg.theory.quadrature import theta_nodes
from mixreg.theory.theta import scalar_forms

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BOUNDS = (-1.8, 2.8, -1.5, 2.0)
_ZOOM = (-0.45, 0.65, 0.05, 0.85)
_COLOURS = {"original": METHODS["erm"], "mixup": METHODS["mixup"], "modified": METHODS["modified"]}
_TITLES = {"original": "original data", "mixup": "Mixup data", "modified": "modified data"}
_STRETCHED = {
    "original": "original data",
    "mixup": "Mixup data, rescaled",
    "modified": "modified data, rescaled: the original",
}


def sizes_at(scale: str) -> dict[str, Any]:
    """The grid grows; the mixture is the same."""
    side = {"smoke": 40, "laptop": 90, "paper": 140}[scale]
    return {"alpha": 1.0, "components": 12, "spread": 0.12, "points": 300, "side": side}


def runs(sizes: Sizes) -> list[Run]:
    """One computation, without any training."""
    return [Run("overview", dict(sizes))]


def components(count: int) -> tuple[Tensor, Tensor]:
    """Means along two moons and their classes: 2·count × 2, and 2·count zeros and ones."""
    angle = torch.linspace(0, math.pi, count, dtype=torch.float64)
    upper = torch.stack([angle.cos(), angle.sin()], 1)
    lower = torch.stack([1 - angle.cos(), 0.5 - angle.sin()], 1)
    return torch.cat([upper, lower]), torch.arange(2).repeat_interleave(count).double()


def regression(points: Tensor, means: Tensor, labels: Tensor, variances: Tensor, weights: Tensor) -> Tensor:
    """E[y | x] of a mixture of Gaussians at points p × 2; means: k × 2, the others: k."""
    log_weights = torch.log(weights / variances)
    parts = []
    for part in points.split(500):
        # As a softmax, which knows the nearest component also where all densities underflow.
        squared = torch.cdist(part, means).square()
        parts.append(torch.softmax(log_weights - squared / (2 * variances), 1) @ labels)
    return torch.cat(parts)


def measure(settings: dict[str, Any], folder: Path, progress: Progress) -> dict[str, Any]:
    """The three regression functions on a grid, and points of each kind."""
    means, labels = components(settings["components"])
    variance, theta_mean = settings["spread"] ** 2, scalar_forms(settings["alpha"], "overview").mean
    x_low, x_high, y_low, y_high = _BOUNDS
    across = torch.linspace(x_low, x_high, settings["side"], dtype=torch.float64)
    upwards = torch.linspace(y_low, y_high, settings["side"], dtype=torch.float64)
    grid = torch.cartesian_prod(upwards, across).flip(1)
    ones = torch.ones(len(means), dtype=torch.float64)
    x_mean, y_mean = means.mean(0), labels.mean()

    def original(points: Tensor) -> Tensor:
        return regression(points, means, labels, variance * ones, ones)

    found = {
        "original": original(grid),
        "mixup": _mixed(grid, means, labels, variance, settings["alpha"]),
        "modified": shrink(original(stretch(grid, x_mean, theta_mean)), y_mean, theta_mean),
    }
    side = settings["side"]
    return rounded(
        {
            "grid": {"x": across.tolist(), "y": upwards.tolist()},
            "regression": {name: values.reshape(side, side).tolist() for name, values in found.items()},
            "points": _points(settings, means, labels, theta_mean),
        }
    )


def _mixed(grid: Tensor, means: Tensor, labels: Tensor, variance: float, alpha: float) -> Tensor:
    nodes, weights = theta_nodes(alpha, 24)
    i, j = (index.reshape(-1) for index in torch.meshgrid(*[torch.arange(len(means))] * 2, indexing="ij"))
    parts = []
    for theta, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
        spread = torch.full((len(i),), (theta**2 + (1 - theta) ** 2) * variance, dtype=torch.float64)
        middle, label = theta * means[i] + (1 - theta) * means[j], theta * labels[i] + (1 - theta) * labels[j]
        parts.append((middle, label, spread, torch.full_like(spread, weight)))
    return regression(grid, *(torch.cat(columns) for columns in zip(*parts, strict=True)))


def _points(settings: dict[str, Any], means: Tensor, labels: Tensor, theta_mean: float) -> dict[str, Any]:
    generator = stream("overview")
    which = integers(len(means), (settings["points"],), generator)
    x = means[which] + settings["spread"] * normal((len(which), 2), generator, torch.float64)
    y = labels[which]
    mixed, soft = Mixup(settings["alpha"], generator=generator)(x, y)
    modified = shrink(x, x.mean(0), theta_mean), shrink(y, y.mean(), theta_mean)
    shown = {"original": (x, y), "mixup": (mixed, soft), "modified": modified}
    return {name: {"x": a.tolist(), "y": b.tolist()} for name, (a, b) in shown.items()}


def caption(sizes: Sizes) -> str:
    return (
        f"Bayes classifiers (½ of the exact regression function) of a mixture of {2 * sizes['components']} Gaussians "
        f"along two moons, spread {sizes['spread']:g}; α = {sizes['alpha']:g}; {sizes['points']} points shown; "
        "computed by quadrature, no repetitions"
    )


def figure(results: Results, sizes: Sizes) -> Figure:
    """Three kinds of data with their classifiers, above the classifiers together, in a zoom, and stretched back."""
    result = results.one()
    drawing = new_figure(12, 7.4)
    above, (together, zoom, back) = drawing.subplots(2, 3)
    for place, name in zip(above, _COLOURS, strict=True):
        _scatter(place, result["points"][name])
        _boundary(place, result, name)
        place.set(title=_TITLES[name])
    _scatter(back, result["points"]["original"], alpha=0.25)
    for place in (together, zoom):
        for name in _COLOURS:
            _boundary(place, result, name)
        label_corner(place, [(_TITLES[name], colour) for name, colour in _COLOURS.items()])
    theta_mean = scalar_forms(sizes["alpha"], "overview").mean
    _boundary(back, result, "original", linewidths=5, alpha=0.3)
    for name in ("mixup", "modified"):
        _boundary(back, result, name, theta_mean, linestyles="--")
    label_corner(back, [(_STRETCHED[name], colour) for name, colour in _COLOURS.items()])
    low_x, high_x, low_y, high_y = _ZOOM
    outline = [low_x, high_x, high_x, low_x, low_x], [low_y, low_y, high_y, high_y, low_y]
    together.plot(*outline, color=REFERENCE, linewidth=1)
    for place in drawing.axes:
        place.set(xticks=[], yticks=[], aspect="equal", xlim=_BOUNDS[:2], ylim=_BOUNDS[2:])
    zoom.set(xlim=_ZOOM[:2], ylim=_ZOOM[2:])
    for place, title in ((together, "the three classifiers"), (zoom, "zoom"), (back, "rescaled: stretched back")):
        place.set(title=title)
    return drawing


def _scatter(axes: Axes, points: dict[str, Any], alpha: float = 1.0) -> None:
    """Points in the colours of their labels."""
    x, y = (np.array(points[key]) for key in ("x", "y"))
    look: dict[str, Any] = {"cmap": CLASSES, "vmin": 0, "vmax": 1, "linewidth": 0}
    axes.scatter(x[:, 0], x[:, 1], s=12, c=y, alpha=alpha, **look)


def _boundary(axes: Axes, result: dict[str, Any], name: str, theta_mean: float = 1.0, **look: Any) -> None:
    """Where a classifier is undecided; stretched from the mean by 1/θ̄, where its rescaled prediction is.

    The rescaled predictor (eq. testmodif) looks at x̄ + θ̄ (x − x̄), so that its boundary is the stretched one; ȳ = ½
    stays where it is.
    """
    x_mean, y_mean = components(2)[0].mean(0).tolist()
    across, upwards = (
        [middle + (place - middle) / theta_mean for place in result["grid"][key]]
        for key, middle in (("x", x_mean), ("y", y_mean))
    )
    shown = {"linewidths": 2.2} | look
    axes.contour(across, upwards, np.array(result["regression"][name]), levels=[0.5], colors=_COLOURS[name], **shown)


def table(results: Results, sizes: Sizes) -> Table:
    """How much of the plane the classifiers decide differently."""
    found = {name: np.array(values) > 0.5 for name, values in results.one()["regression"].items()}
    pairs = (("original", "mixup"), ("original", "modified"), ("modified", "mixup"))
    rows = [[f"{_TITLES[a]} and {_TITLES[b]}", f"{(found[a] != found[b]).mean():.2%}"] for a, b in pairs]
    return Table(["Bayes classifiers of", "part of the picture"], rows, "where two classifiers decide differently")


def claims(results: Results, sizes: Sizes) -> list[Claim]:
    """An illustration: nothing to test."""
    return []


EXPERIMENT = Experiment(
    name="overview",
    paper="Figure 1",
    title="The Bayes classifiers of original, Mixup and modified data.",
    sizes_at=sizes_at,
    kinds={"overview": measure},
    runs=runs,
    caption=caption,
    figure=figure,
    table=table,
    claims=claims,
    unlike="a mixture of our own",
)
