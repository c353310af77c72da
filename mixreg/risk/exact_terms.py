"""The terms of Theorem 3 exactly, sample by sample, from Jacobians: one backward pass per output.

With J = ∇f(x̃_i), ℓ's derivatives at (ỹ_i, f(x̃_i)), P = J L and V of `mixreg.theory.perturbation`,

    R1 + R3 = ½ (σ² ‖ℓuu^½ J a_i‖² + γ² ‖ℓuu^½ P‖²) + σ² b_iᵀ ℓyu J a_i + γ² tr(ℓyu P Vᵀ)

and R2 is a sum of second derivatives along a_i and along the columns of L (`mixreg.risk.directions`).
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from mixreg._autodiff.derivatives import jacobians
from mixreg._autodiff.network import evaluating
from mixreg._autodiff.problem import Problem
from mixreg.risk.apart import apart
from mixreg.risk.directions import Directions, chunks, quadratic_form
from mixreg.theory.perturbation import Perturbation

NAMES = ("base", "r1", "r2", "r3", "r4", "joint", "square")


class ExactTerms(NamedTuple):
    """The terms of each sample (n) by name; the variance of each sample's R2 (n); which kinds of derivatives exist."""

    per_sample: dict[str, Tensor]
    r2_variance: Tensor
    has_second_derivatives: bool
    has_slope: bool


def exact_terms(problem: Problem, perturbation: Perturbation, directions: Directions, size: int) -> ExactTerms:
    """All terms, `size` samples at once."""
    loss, var, gamma2 = problem.loss, perturbation.var, perturbation.gamma2
    white = perturbation.whitening
    yy, slopes = perturbation.yy, white.slopes
    found: dict[str, list[Tensor]] = {name: [] for name in (*NAMES, "r2_variance")}
    x_modified, y_modified = perturbation.x_modified, perturbation.y_modified
    is_flat, is_sloped = True, False
    with evaluating(problem.net), torch.enable_grad():
        for rows in chunks(problem.count, size):
            u, jacobian = jacobians(problem.net, x_modified[rows], rows.start)
            y = y_modified[rows]
            slope = loss.u(y, u)
            reg = perturbation.regressions(rows)
            # In float64 whatever the network's precision: 1/p overflows early in float32.
            precise = y.double(), u.double()
            uu, uy, ell_yy = (_finite(part(*precise), rows.start) for part in (loss.uu, loss.uy, loss.yy))
            is_flat = is_flat and not any(bool(part.any()) for part in (uu, uy, ell_yy))
            is_sloped = is_sloped or bool(slope.any())
            projected = (jacobian @ white.factor.to(jacobian.dtype)).double()
            along_a = (jacobian @ reg.a.to(jacobian.dtype).unsqueeze(2)).double()
            b = reg.b.unsqueeze(2)
            squares = var * quadratic_form(uu, along_a, along_a) + gamma2 * quadratic_form(uu, projected, projected)
            products = var * quadratic_form(uy, along_a, b) + gamma2 * (uy * (projected @ slopes.T)).sum((1, 2))
            joint = 0.5 * squares + products
            r1, r3 = apart(loss, precise, (uu, uy), perturbation, reg, (along_a, projected), joint)
            r4 = 0.5 * (var * quadratic_form(ell_yy, b, b) + gamma2 * (ell_yy * yy).sum((1, 2)))
            own, spread, variance = directions.curvature(problem.net, x_modified[rows], slope, reg.a)
            r2 = 0.5 * (var * own + gamma2 * spread)
            values = (loss.value(y, u).double(), r1, r2, r3, r4, joint, 0.5 * squares, (0.5 * gamma2) ** 2 * variance)
            for name, value in zip(found, values, strict=True):
                found[name].append(value.detach())
    samples = {name: torch.cat(parts) for name, parts in found.items()}
    return ExactTerms(samples, samples.pop("r2_variance"), not is_flat, is_sloped)


def _finite(values: Tensor, first: int) -> Tensor:
    bad = ~torch.isfinite(values).flatten(1).all(1)
    if bool(bad.any()):
        raise ValueError(f"the loss has no finite second derivative at sample {first + int(bad.nonzero()[0])}")
    return values


def warn_of_few_samples(problem: Problem, perturbation: Perturbation) -> None:
    """Where samples are no more than coordinates, and taken for all of the data."""
    count, coordinates = problem.count, problem.x[0].numel()
    if count <= coordinates and perturbation.gamma2 > 0:
        warnings.warn(
            f"{count} samples of {coordinates} coordinates: least squares, and with it R1 and R3, interpolate so few; "
            "if they are a part of the training set, give its moments=DataMoments(covariance=True)",
            stacklevel=4,
        )


def warn_of_missing(r1: Tensor) -> None:
    """Where R1 and R3 do not exist apart; r1: n."""
    missing = r1.isnan().nonzero()
    if len(missing):
        warnings.warn(
            f"R1 and R3 do not exist apart at {len(missing)} of {len(r1)} samples, the first is {int(missing[0])}: "
            "there ℓuu is 0 in float64 where ℓuy is not (a network so confident that 1/p overflows, or a loss that is "
            "linear in the outputs); joint = R1 + R3 and total need no inverse",
            stacklevel=4,
        )


def warn_of_kinks() -> None:
    """Where a loss has no second derivative at any sample."""
    warnings.warn(
        "this loss is piecewise linear at these samples, all of its second derivatives are 0: what its kinks add "
        "to the risk is not in joint, R4 and total",
        stacklevel=4,
    )
