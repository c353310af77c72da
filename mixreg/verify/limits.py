"""What becomes of Mixup and of its expansion as α → 0 and as α → ∞ (erratum 2).

**α → 0.** The partner's share s = 1 − θ has the density α / (s (1 − s)) on (0, ½] to first order in α, so that

    (Mixup − ERM) / α → mean_{ij} ∫₀^½ (ℓ(y_i + s (y_j − y_i), f(x_i + s (x_j − x_i))) − ℓ_i) / (s (1 − s)) ds,

an average over mixtures of all shares: small α mixes few pairs, and those as strongly as ever. The moments are
1 − θ̄ ≈ α log 2 and σ² ≈ γ² ≈ α (log 2 − ½), so that with D and D² for first and second derivatives along a direction

    (quadratic − ERM) / α → mean_i (−log 2 · D ℓ_i [a_i, b_i] + ½ (log 2 − ½) (D² ℓ_i [a_i, b_i] + D²_i)),

D²_i = mean_j D² ℓ_i [a_j, b_j].

The two are not equal: "the expansion becomes exact as α → 0" is true only because both sides tend to ERM, and plain ERM
becomes exact just so. What it captures of Mixup's effect, (quadratic − ERM) / (Mixup − ERM), tends to the ratio.

**α → ∞.** θ = ½: every mixture is a midpoint, δ = ½ a_j stays random, and the expansion around ½ (x_i + x̄) is exact
only if ℓ∘f is quadratic.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from mixreg import risk
from mixreg._autodiff.network import flat_outputs
from mixreg._autodiff.problem import Problem, check_problem
from mixreg.theory.perturbation import Perturbation
from mixreg.verify.examples import Row, example
from mixreg.verify.expectations import along, expected_taylor, signed_noise

# α that stand for the limits: what is left at them, of the order of α and of α^−½, is below the tolerance.
_SMALL, _LARGE = 1e-7, 1e12
_TOLERANCE = 1e-6


def limits() -> Iterator[Row]:
    """The rows on α → 0 and α → ∞, and erratum 2."""
    net, x, y = example("logistic")
    problem = check_problem(net, x, y, "logistic")
    plain = risk.empirical(net, x, y, "logistic")

    def effects(alpha: float) -> tuple[float, float]:
        """What Mixup adds to ERM, and what its expansion does."""
        exact = risk.mixup(net, x, y, alpha, "logistic")
        return float(exact - plain), float(risk.quadratic(net, x, y, alpha, "logistic").total - plain)

    first, second = (effect / _SMALL for effect in effects(_SMALL))
    mixing, expansion = _slope_of_mixup(problem), _slope_of_expansion(problem)
    yield Row("limit α → 0", "Mixup's effect is α × a mean over all shares", abs(first - mixing), _TOLERANCE)
    yield Row("limit α → 0", "the expansion's effect is α × its derivative", abs(second - expansion), _TOLERANCE)
    far, far_expanded = effects(_LARGE)
    limit, limit_expanded = effects(math.inf)
    midpoints = _midpoints(problem) - float(plain)
    gap = max(abs(far - midpoints), abs(limit - midpoints))
    yield Row("limit α → ∞", "the Mixup risk is that of midpoints", gap, _TOLERANCE)
    p = Perturbation(problem.x, problem.y, math.inf)
    taylor = float(expected_taylor(problem, p, signed_noise(p)) - plain)
    gap = max(abs(far_expanded - taylor), abs(limit_expanded - taylor))
    yield Row("limit α → ∞", "the expansion has noise ½ (x_j − x̄)", gap, _TOLERANCE)
    shares = _share(expansion, mixing), _share(taylor, midpoints)
    gap = max(abs(_share(second, first) - shares[0]), abs(_share(far_expanded, far) - shares[1]))
    statement = f"of Mixup's effect the expansion has {shares[0]:.3f} as α → 0, {shares[1]:.3f} as α → ∞ (printed: 1)"
    yield Row("Erratum 2, §5", statement, gap, _TOLERANCE, abs(_share(far_expanded, far) - 1))


def _share(part: float, whole: float) -> float:
    return part / whole if whole else math.inf


def _mixed_loss(problem: Problem, share: float) -> Tensor:
    """mean_{ij} ℓ with this share of the partner's."""
    n = problem.count
    i, j = torch.arange(n * n) // n, torch.arange(n * n) % n
    x, y = (part[i] + share * (part[j] - part[i]) for part in (problem.x, problem.y))
    with torch.no_grad():
        return problem.loss.value(y, flat_outputs(problem.net, x)).mean()


def _midpoints(problem: Problem) -> float:
    return float(_mixed_loss(problem, 0.5))


def _slope_of_mixup(problem: Problem) -> float:
    """The integral above, by Gauss and Legendre."""
    nodes, weights = np.polynomial.legendre.leggauss(48)
    plain, total = _mixed_loss(problem, 0.0), 0.0
    for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
        s = (node + 1) / 4
        total += weight / 4 * float(_mixed_loss(problem, s) - plain) / (s * (1 - s))
    return total


def _slope_of_expansion(problem: Problem) -> float:
    x, y = problem.x, problem.y
    a, b = x - x.mean(0), y - y.mean(0)
    _, slope, own = along(problem, x, y, a, b)
    others = sum(float(along(problem, x, y, a[j], b[j])[2]) for j in range(len(x))) / len(x)
    return -math.log(2) * float(slope) + 0.5 * (math.log(2) - 0.5) * (float(own) + others)
