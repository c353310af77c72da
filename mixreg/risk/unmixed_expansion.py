"""The expansion of the Mixup risk around unmixed points (Zhang et al., 2021, Lemma 3.1), to hold beside Theorem 3.

For ℓ(y, u) = h(u) − yᵀu the label need not be mixed: the Mixup risk is E ℓ(y_i, f(x_i + (1 − λ)(x_j − x_i))) with
λ ~ Beta(α + 1, α). Expanded around x_i,

    ℓ + E(1−λ) · ℓu J (x̄ − x_i) + ½ E(1−λ)² · (tr(ℓuu J A Jᵀ) + ⟨A, ℓu ∇²f⟩),      A = Σxx + a_i a_iᵀ,

with E(1−λ) = α / (2α + 1) and E(1−λ)² = α / (2 (2α + 1)). Squared error is of this form up to ½‖y‖², whose expectation
over mixed labels is added exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mixreg._autodiff.derivatives import jacobians
from mixreg._autodiff.network import Network, evaluating
from mixreg._autodiff.problem import Problem, require_differentiable
from mixreg.risk.directions import EXACT_DIRECTIONS, PROBES, Directions, chunks, quadratic_form, samples_at_once
from mixreg.risk.samples import Samples, covariances_of
from mixreg.theory.moments import DataMoments
from mixreg.theory.perturbation import Perturbation

_NAMES = ("base", "r1", "r2", "r3")


@dataclass(frozen=True)
class UnmixedExpansion:
    """The terms of Zhang et al. (2021), Lemma 3.1, with the names used there; float64 tensors of no dimension.

    Attributes:
        base: mean ℓ(y_i, f(x_i)), the empirical risk.
        r1: of first order.
        r2: with the Jacobian squared.
        r3: with the Hessian of f.
        constant: what mixing labels adds whatever f is (squared error only).
        r3_stderr: of a randomised R3.
        total: their sum.
    """

    base: Tensor
    r1: Tensor
    r2: Tensor
    r3: Tensor
    constant: Tensor
    r3_stderr: Tensor
    total: Tensor


def unmixed(
    net: Network,
    x: Any,
    y: Tensor | None = None,
    alpha: float = 1.0,
    loss: str = "cross_entropy",
    moments: DataMoments | None = None,
    *,
    weights: Tensor | None = None,
    chunk_size: int | None = None,
    exact_directions: int = EXACT_DIRECTIONS,
    probes: int = PROBES,
    across_processes: bool = False,
    generator: torch.Generator | None = None,
) -> UnmixedExpansion:
    """The second-order expansion of the Mixup risk around (x, y), term by term; arguments as for `risk.quadratic`.

    `loss` is one of the built-in names: they are of the form h(u) − yᵀu.
    """
    if callable(loss):
        raise ValueError("the unmixed expansion holds for losses h(u) − yᵀu only: one of the built-in ones")
    samples = Samples(net, x, y, loss, weights, across_processes)
    moments = covariances_of(samples, moments)
    sums = torch.zeros(6, dtype=torch.float64)
    for problem, weight in samples:
        require_differentiable(problem.net, problem.x)
        perturbation = Perturbation(problem.x, problem.y, alpha, moments, weight)
        directions = Directions(perturbation, exact_directions, probes, generator)
        with evaluating(net), torch.enable_grad():
            found = _terms(problem, perturbation, directions, samples_at_once(problem, chunk_size))
        parts = [weight @ found[name] for name in _NAMES]
        sums += torch.stack([weight.sum(), *parts, weight.square() @ found["variance"]]).cpu()
    sums = samples.total(sums)
    means = dict(zip(_NAMES, (sums[1:-1] / sums[0]).unbind(), strict=True))
    constant = torch.zeros((), dtype=torch.float64)
    if loss == "squared_error":
        # ½ E‖λ y_i + (1−λ) y_j‖² − ½ mean ‖y_i‖² = −½ · 2 E λ(1−λ) · (mean ‖y‖² − ‖ȳ‖²) = −E λ(1−λ) tr Σyy.
        constant = -_first(perturbation.alpha) / 2 * torch.trace(perturbation.yy).cpu()
    total = sum(means.values(), constant)
    return UnmixedExpansion(**means, constant=constant, r3_stderr=sums[-1].sqrt() / sums[0], total=total)


def _first(alpha: float) -> float:
    """E(1 − λ) = α / (2α + 1), also at ∞."""
    return 1 / (2 + 1 / alpha) if alpha > 0 else 0.0


def _terms(problem: Problem, perturbation: Perturbation, directions: Directions, size: int) -> dict[str, Tensor]:
    """The terms of each sample, n, and the variance of its R3."""
    loss, white = problem.loss, perturbation.whitening
    first = _first(perturbation.alpha)
    second = first / 2
    found: dict[str, list[Tensor]] = {key: [] for key in (*_NAMES, "variance")}
    for rows in chunks(problem.count, size):
        x, y = problem.x[rows], problem.y[rows]
        u, jacobian = jacobians(problem.net, x, rows.start)
        a, _ = perturbation.centred(rows)
        slope = loss.u(y, u)
        uu = loss.uu(y.double(), u.double())
        projected = (jacobian @ white.factor.to(jacobian.dtype)).double()
        along_a = (jacobian @ a.to(jacobian.dtype).unsqueeze(2)).double()
        own, spread, variance = directions.curvature(problem.net, x, slope, a)
        found["base"].append(loss.value(y, u).double())
        found["r1"].append(-first * (slope.double() * along_a.squeeze(2)).sum(1))
        spread_form = quadratic_form(uu, along_a, along_a) + quadratic_form(uu, projected, projected)
        found["r2"].append(0.5 * second * spread_form)
        found["r3"].append(0.5 * second * (own + spread))
        found["variance"].append((0.5 * second) ** 2 * variance)
    return {key: torch.cat(parts).detach() for key, parts in found.items()}
