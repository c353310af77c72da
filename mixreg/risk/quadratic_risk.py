"""The quadratic risk and its terms (Theorem 3, Lemma 2, eq. Ji).

With J = ∇f(x̃_i), ℓ's derivatives at (ỹ_i, f(x̃_i)) and A_i, B_i, C_i of Lemma 2,

    Q_i = ℓ + ½ tr(ℓuu J A_i Jᵀ) + tr(ℓyu J B_i) + ½ ⟨A_i, ℓu ∇²f⟩ + ½ ⟨C_i, ℓyy⟩
              └────────── R1 + R3 ──────────┘     └──── R2 ────┘     └── R4 ──┘

Completing the square in J splits the first two terms,

    R1 = ½ tr(ℓuu (J − J⁽ⁱ⁾) A_i (J − J⁽ⁱ⁾)ᵀ)        R3 = −½ tr(ℓyu ℓuu⁺ ℓuy B_iᵀ A_i⁺ B_i).

In the whitened coordinates of `mixreg.theory.perturbation` (P = J L, N = ℓuu⁺ ℓuy) everything is a c × r matrix per
sample:

    (J − J⁽ⁱ⁾) L = P + N (V + κ_i e_i z_iᵀ)        (J − J⁽ⁱ⁾) a_i = J a_i + N (b_i − (1 − κ_i s_i) e_i)

and tr(ℓuu M A_i Mᵀ) = σ² (M a_i)ᵀ ℓuu (M a_i) + γ² ‖ℓuu^½ M L‖². R2 is a sum of second derivatives along a_i and along
the columns of L (`mixreg.risk.directions`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mixreg._autodiff.derivatives import jacobians
from mixreg._autodiff.network import Network, evaluating
from mixreg._autodiff.problem import Problem, check_problem
from mixreg.losses import SampleLoss, require_curvature
from mixreg.risk.directions import EXACT_DIRECTIONS, PROBES, Directions, chunks, quadratic_form, samples_at_once
from mixreg.theory.moments import DataMoments
from mixreg.theory.perturbation import Perturbation

# Condition number of ℓuu from which R1 is taken as what R3 leaves of R1 + R3.
_SWAMPED = 1e6


@dataclass(frozen=True)
class Quadratic:
    """The terms of Theorem 3, averaged over samples; float64 tensors of no dimension.

    Attributes:
        base: mean ℓ(ỹ_i, f(x̃_i)), the loss on modified data (eq. ermtild).
        r1, r2, r3, r4: the regularisation terms.
        r2_stderr: of a randomised R2; 0 where R2 is exact.
        total: the quadratic risk, from R1 + R3 without any inverse.
        per_sample: each term before averaging, n.
    """

    base: Tensor
    r1: Tensor
    r2: Tensor
    r3: Tensor
    r4: Tensor
    r2_stderr: Tensor
    total: Tensor
    per_sample: dict[str, Tensor]


def quadratic(
    net: Network,
    x: Tensor,
    y: Tensor,
    alpha: float,
    loss: str | SampleLoss = "cross_entropy",
    moments: DataMoments | None = None,
    *,
    chunk_size: int | None = None,
    exact_directions: int = EXACT_DIRECTIONS,
    probes: int = PROBES,
    generator: torch.Generator | None = None,
) -> Quadratic:
    """The second-order expansion of the Mixup risk around (x̃, ỹ), term by term.

    Args:
        net: maps n × … inputs to n × … outputs; twice differentiable, or piecewise linear (then R2 = 0).
        x: n × …, floating point.
        y: n integer labels, or n × … targets.
        alpha: in [0, ∞].
        loss: a name or a twice differentiable callable on one sample.
        moments: of the whole training set, kept with `covariance=True`, if (x, y) is a part of it.
        chunk_size: samples at once, which bounds the memory.
        exact_directions: R2 is exact up to this rank of the covariance, and estimated beyond.
        probes: random directions per sample of the estimate, at least 2.
        generator: random number generator for them.
    """
    problem = check_problem(net, x, y, loss)
    perturbation = Perturbation(problem.x, problem.y, alpha, moments)
    directions = Directions(perturbation, exact_directions, probes, generator)
    with evaluating(net), torch.enable_grad():
        return _terms(problem, perturbation, directions, samples_at_once(problem, chunk_size))


def _terms(problem: Problem, perturbation: Perturbation, directions: Directions, size: int) -> Quadratic:
    loss, var, gamma2 = problem.loss, perturbation.var, perturbation.gamma2
    white = perturbation.whitening
    yy, slopes = perturbation.yy, white.slopes
    gram = slopes @ slopes.T
    names = ("base", "r1", "r2", "r3", "r4", "joint", "r2_variance")
    found: dict[str, list[Tensor]] = {name: [] for name in names}
    x_modified, y_modified = perturbation.x_modified, perturbation.y_modified
    for rows in chunks(problem.count, size):
        u, jacobian = jacobians(problem.net, x_modified[rows], rows.start)
        y = y_modified[rows]
        reg = perturbation.regressions(rows)
        # In float64 whatever the network's precision: 1/p overflows early in float32.
        precise = y.double(), u.double()
        uu, uy, ell_yy = (_finite(part(*precise), rows.start) for part in (loss.uu, loss.uy, loss.yy))
        inverse = loss.uu_inverse(*precise)
        projected = (jacobian @ white.factor.to(jacobian.dtype)).double()
        along_a = (jacobian @ reg.a.to(jacobian.dtype).unsqueeze(2)).double()
        b, e = reg.b.unsqueeze(2), reg.e.unsqueeze(2)
        # R1 + R3 as they stand, and the two apart.
        joint = 0.5 * (var * quadratic_form(uu, along_a, along_a) + gamma2 * quadratic_form(uu, projected, projected))
        joint += var * quadratic_form(uy, along_a, b) + gamma2 * (uy * (projected @ slopes.T)).sum((1, 2))
        change = inverse @ uy
        gap = projected + change @ (slopes + (reg.weight.reshape(-1, 1, 1) * e) @ reg.z.unsqueeze(1))
        gap_a = along_a + change @ (b - (1 - reg.fraction).reshape(-1, 1, 1) * e)
        r1 = 0.5 * (var * quadratic_form(uu, gap_a, gap_a) + gamma2 * quadratic_form(uu, gap, gap))
        middle = uy.transpose(1, 2) @ change
        explained = quadratic_form(middle, b, b) - (1 - reg.fraction) * quadratic_form(middle, e, e)
        r3 = -0.5 * (gamma2 * (middle * gram).sum((1, 2)) + var * explained)
        # Where predictions are so confident that ℓuu⁺ swamps everything, the sum is known better than the square.
        swamped = inverse.abs().amax((1, 2)) * uu.abs().amax((1, 2)) > _SWAMPED
        r1 = torch.where(swamped, joint - r3, r1)
        r4 = 0.5 * (var * quadratic_form(ell_yy, b, b) + gamma2 * (ell_yy * yy).sum((1, 2)))
        own, spread, variance = directions.curvature(problem.net, x_modified[rows], loss.u(y, u), reg.a)
        values = (
            loss.value(y, u).double(),
            r1,
            0.5 * (var * own + gamma2 * spread),
            r3,
            r4,
            joint,
            (0.5 * gamma2) ** 2 * variance,
        )
        for name, value in zip(names, values, strict=True):
            found[name].append(value.detach())
        require_curvature(loss, y, u)
    samples = {name: torch.cat(parts) for name, parts in found.items()}
    means = {name: values.mean() for name, values in samples.items()}
    stderr = samples.pop("r2_variance").sum().sqrt() / problem.count
    total = means["base"] + means["joint"] + means["r2"] + means["r4"]
    apart = means["r1"].abs() + means["r3"].abs()
    if (means["r1"] + means["r3"] - means["joint"]).abs() > 1e-5 * (apart + means["joint"].abs()):
        raise ValueError(
            "R1 and R3 do not exist apart for this loss: its ℓuu is singular in directions in which ℓuy is not (a loss "
            "that is not twice differentiable, or linear in the outputs)"
        )
    samples.pop("joint")
    terms = {name: means[name] for name in ("base", "r1", "r2", "r3", "r4")}
    return Quadratic(**terms, r2_stderr=stderr, total=total, per_sample=samples)


def _finite(values: Tensor, first: int) -> Tensor:
    bad = ~torch.isfinite(values).flatten(1).all(1)
    if bool(bad.any()):
        raise ValueError(f"the loss has no finite second derivative at sample {first + int(bad.nonzero()[0])}")
    return values
