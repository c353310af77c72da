"""J⁽ⁱ⁾, the linear model that R1 pulls the Jacobian to (eq. Ji), and in which sense it is least squares (erratum 5).

By eq. (Ji) J⁽ⁱ⁾ = −ℓuu⁺ ℓuy B_iᵀ A_i⁺, where R1 + R3 is smallest: ℓuu J⁽ⁱ⁾ A_i + ℓuy B_iᵀ = 0. Since

    A_i = γ²/n · (Σ_j a_j a_jᵀ + nσ²/γ² · a_i a_iᵀ)        and likewise B_i,

B_iᵀ A_i⁺ are the coefficients of least squares of y on x through the fixed point (x̄, ȳ), in which sample i has the
weight 1 + nσ²/γ² and all others 1. With an intercept fitted under these weights they would differ: the weighted mean is
not x̄. At α = 0 there is no noise, and no J⁽ⁱ⁾.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from mixreg._autodiff.network import flat_outputs
from mixreg._autodiff.problem import check_problem
from mixreg.losses import BUILT_IN
from mixreg.theory.perturbation import Perturbation
from mixreg.verify.examples import Row, example
from mixreg.verify.expectations import covariances


def jacobian_targets(alphas: tuple[float, ...]) -> Iterator[Row]:
    """Eq. (Ji) against the covariances of listed noise."""
    alphas = tuple(alpha for alpha in alphas if alpha > 0)
    if not alphas:
        return
    gap = slope = 0.0
    for name, loss in BUILT_IN.items():
        problem = check_problem(*example(name), name)
        for alpha in alphas:
            p = Perturbation(problem.x, problem.y, alpha)
            xx, xy, _ = covariances(p, torch.eye(4, dtype=torch.float64))
            at = p.y_modified, flat_outputs(problem.net, p.x_modified)
            uu, uy, inverse = loss.uu(*at), loss.uy(*at), loss.uu_inverse(*at)
            for i in range(len(p)):
                found = p.jacobian_target(i, inverse[i], uy[i])
                dense = torch.linalg.pinv(uu[i], rtol=1e-12, hermitian=True) @ uy[i]
                expected = -dense @ xy[i].T @ torch.linalg.pinv(xx[i], rtol=1e-12, hermitian=True)
                gap = max(gap, _relative(found, expected))
                slope = max(slope, float((uu[i] @ found @ xx[i] + uy[i] @ xy[i].T).abs().max()))
    yield Row("eq. (Ji)", "J⁽ⁱ⁾ = −ℓuu⁺ ℓuy B_iᵀ A_i⁺", gap, 1e-9)
    yield Row("eq. (Ji)", "R1 + R3 is smallest where the Jacobian is J⁽ⁱ⁾", slope, 1e-11)


def weighted_least_squares() -> Row:
    """Erratum 5: the least squares that J⁽ⁱ⁾ is, and the one with an intercept that it is not."""
    _, x, y = example("squared_error", n=12)
    eye = torch.eye(3, dtype=torch.float64)
    through_means = with_intercept = 0.0
    for alpha in (0.1, 1.0, 4.0):
        p = Perturbation(x, y, alpha)
        for i in range(len(p)):
            weights = torch.ones(len(p), dtype=torch.float64)
            weights[i] += len(p) * p.var / p.gamma2
            found = p.jacobian_target(i, eye, -eye)
            for fixed in (True, False):
                x_mean, y_mean = (part.mean(0) if fixed else (weights @ part) / weights.sum() for part in (x, y))
                a, b = x - x_mean, y - y_mean
                moments = a.T @ (weights.unsqueeze(1) * a), a.T @ (weights.unsqueeze(1) * b)
                gap = _relative(found, torch.linalg.solve(*moments).T)
                if fixed:
                    through_means = max(through_means, gap)
                else:
                    with_intercept = max(with_intercept, gap)
    return Row(
        "Erratum 5, §6",
        "J⁽ⁱ⁾ is least squares through (x̄, ȳ), sample i with weight 1 + nσ²/γ² (printed: standard, with an intercept)",
        through_means,
        1e-10,
        with_intercept,
    )


def _relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())
