"""Corollary on the squared error: Mixup leaves linear regression as it is.

The exact Mixup risk of x ↦ W x + b is minimised over all pairs, with a Gauss rule for λ that is exact for it: a
weighted least-squares problem on all mixed points, solved without any formula of the paper. Its solution is compared
with ordinary least squares, and its value at other W with eq. (19, mixupOLS), corrected and as printed (see
`mixreg.theory.least_squares`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from mixreg._support.random import normal, permutation, stream
from mixreg.experiments.claims import Comparison, always_vanishes
from mixreg.experiments.experiment import Claim, Experiment, Progress, Results, Run, Sizes, Table, rounded
from mixreg.report.curves import label_ends, new_figure, say_better
from mixreg.report.palette import METHODS
from mixreg.theory.least_squares import linear_mixup_risk, ordinary_least_squares, printed_linear_mixup_risk
from mixreg.theory.quadrature import lambda_nodes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Rounding: relative distances up to which two solutions, or two risks, are equal.
ROUNDING = 1e-8


def sizes_at(scale: str) -> dict[str, Any]:
    """More points and repetitions with the scale."""
    samples, repetitions = {"smoke": (40, 3), "laptop": (100, 10), "paper": (200, 30)}[scale]
    return {"samples": samples, "repetitions": repetitions, "alphas": [0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0]}


def runs(sizes: Sizes) -> list[Run]:
    """One run per repetition, all α."""
    shared = {key: sizes[key] for key in ("samples", "alphas")}
    return [Run("least-squares", {**shared, "seed": seed}) for seed in range(sizes["repetitions"])]


def mixed_rows(x: Tensor, y: Tensor, alpha: float) -> tuple[Tensor, Tensor, Tensor]:
    """All mixed pairs at two nodes, exact for quadratic functions: inputs, outputs and weights that sum to 1."""
    nodes, weights = lambda_nodes(alpha, 2)
    n = len(x)
    i, j = torch.arange(n).repeat_interleave(n), torch.arange(n).repeat(n)
    mixed = [(share * x[i] + (1 - share) * x[j], share * y[i] + (1 - share) * y[j]) for share in nodes]
    return torch.cat([m[0] for m in mixed]), torch.cat([m[1] for m in mixed]), weights.repeat_interleave(n * n) / n**2


def minimiser(x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """(W, b) that minimises Σ w ‖y − W x − b‖², c × (d + 1)."""
    root = weights.sqrt().unsqueeze(1)
    design = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
    solved: Tensor = torch.linalg.lstsq(root * design, root * y).solution
    return solved.T


def measure(settings: dict[str, Any], folder: Path, progress: Progress) -> dict[str, Any]:
    """Relative distances and errors over α, on a random part of the diabetes data with two made-up outputs beside."""
    from sklearn.datasets import load_diabetes

    generator = stream("least squares", settings["seed"])
    points, target = load_diabetes(return_X_y=True)
    chosen = permutation(len(target), generator)[: settings["samples"]]
    x = torch.from_numpy(points)[chosen] * 20
    noise = normal((len(chosen), 2), generator, torch.float64)
    made_up = torch.stack([x[:, 2] * x[:, 3], x[:, 8].tanh()], 1) + 0.3 * noise
    y = torch.cat([torch.from_numpy(target)[chosen].unsqueeze(1) / 100, made_up], 1)
    ordinary = torch.cat([part.reshape(y.shape[1], -1) for part in ordinary_least_squares(x, y)], 1)
    # Formulae are compared away from the minimum, where every term counts, and at two places: as printed, one holds up
    # to a constant.
    places = [ordinary + normal(ordinary.shape, generator, torch.float64) for _ in range(2)]
    found: dict[str, list[float]] = {"distance": [], "corrected": [], "printed": []}
    for alpha in settings["alphas"]:
        inputs, outputs, weights = mixed_rows(x, y, alpha)
        solution = minimiser(inputs, outputs, weights)
        found["distance"].append(float((solution - ordinary).norm() / ordinary.norm()))
        exact, corrected, printed = [], [], []
        for place in places:
            weight, bias = place[:, :-1], place[:, -1]
            residual = outputs - inputs @ weight.T - bias
            exact.append(float(0.5 * (weights * residual.square().sum(1)).sum()))
            corrected.append(float(linear_mixup_risk(weight, bias, x, y, alpha)))
            printed.append(float(printed_linear_mixup_risk(weight, bias, x, y, alpha)))
        found["corrected"].append(max(abs(a / b - 1) for a, b in zip(corrected, exact, strict=True)))
        found["printed"].append(abs(printed[0] - printed[1] - exact[0] + exact[1]) / max(exact))
    return rounded(found)


def _rows(results: Results, key: str) -> list[list[float]]:
    """Repetitions × α."""
    return [found[key] for found in results.select()]


def caption(sizes: Sizes) -> str:
    return (
        f"Linear regression on {sizes['samples']} points of the diabetes data, 10 inputs, 3 outputs; exact Mixup risk "
        f"over all pairs; relative, worst of {sizes['repetitions']} repetitions"
    )


def figure(results: Results, sizes: Sizes) -> Figure:
    """Distance of the minimisers, and errors of the two formulae."""
    drawing = new_figure(12, 4.4)
    left, right = drawing.subplots(1, 2)
    alphas = sizes["alphas"]
    left.loglog(alphas, np.max(_rows(results, "distance"), 0), ".-", color=METHODS["mixup"])
    left.set(ylim=(1e-18, 1), title="distance of the Mixup minimiser from least squares", xlabel="α")
    for key, colour in (("printed", METHODS["erm"]), ("corrected", METHODS["modified"])):
        # Exact agreement is drawn at the smallest number float64 tells from 1.
        worst = np.maximum(np.max(_rows(results, key), 0), np.finfo(float).eps)
        right.loglog(alphas, worst, ".-", color=colour, label=f"eq. (19),\n{'as printed' if key == 'printed' else key}")
    right.set(ylim=(1e-17, 10), title="error of the formula for the Mixup risk", xlabel="α")
    for axes in (left, right):
        say_better(axes, "lower")
    label_ends(right)
    return drawing


def table(results: Results, sizes: Sizes) -> Table:
    """The worst repetition for each α."""
    columns = {
        "distance": "minimisers' distance",
        "corrected": "error of the corrected formula",
        "printed": "error of the printed one",
    }
    worst = {key: [max(column) for column in zip(*_rows(results, key), strict=True)] for key in columns}
    rows = [
        [f"{alpha:g}", *(f"{worst[key][index]:.1e}" for key in columns)] for index, alpha in enumerate(sizes["alphas"])
    ]
    return Table(["α", *columns.values()], rows, "the worst repetition; distances and errors are relative")


def claims(results: Results, sizes: Sizes) -> list[Claim]:
    """Equality up to rounding, in every repetition."""

    def is_exact(about: str, key: str) -> tuple[Comparison]:
        worst = [max(row) for row in _rows(results, key)]
        return (always_vanishes(f"{about}, worst α (up to {ROUNDING:g})", worst, ROUNDING),)

    return [
        Claim(
            "Mixup has no effect on linear least squares",
            "The linear model that minimises the Mixup risk is the ordinary least-squares solution.",
            "Corollary on the squared error",
            is_exact("relative distance", "distance"),
        ),
        Claim(
            "the Mixup risk of linear models, corrected constants",
            "(2σ² + θ̄² + (1−θ̄)²) · mean ℓ + ½‖b − b̄‖² is the exact Mixup risk of a linear model with squared error.",
            "eq. (19, mixupOLS), corrected",
            is_exact("relative error", "corrected"),
        ),
        Claim(
            "the Mixup risk of linear models, constants as printed",
            "(2σ² + 2θ̄² + (1−θ̄)²)/2 · mean ℓ + ‖b − b̄‖² is the exact Mixup risk of a linear model with squared "
            "error, up to a constant C.",
            "eq. (19, mixupOLS), as printed",
            is_exact("error of differences", "printed"),
        ),
    ]


def missing(sizes: Sizes) -> list[str]:
    """The diabetes data has 442 points."""
    return [] if sizes["samples"] <= 442 else [f"samples must be at most 442, got {sizes['samples']}"]


EXPERIMENT = Experiment(
    name="least-squares",
    paper="Corollary on the squared error",
    title="Mixup leaves linear regression unchanged; the formula for its risk, corrected and as printed.",
    sizes_at=sizes_at,
    kinds={"least-squares": measure},
    runs=runs,
    caption=caption,
    figure=figure,
    table=table,
    claims=claims,
    unlike="not measured in the paper",
    missing=missing,
    corrections={
        "the Mixup risk of linear models, constants as printed": "the Mixup risk of linear models, corrected constants"
    },
)
