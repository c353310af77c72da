"""The quadratic risk and its terms (Theorem 3, Lemma 2, eq. Ji), and the expansion around unmixed points.

With J = ∇f(x̃_i), ℓ's derivatives at (ỹ_i, f(x̃_i)) and A_i, B_i, C_i of Lemma 2,

    Q_i = ℓ + ½ tr(ℓuu J A_i Jᵀ) + tr(ℓyu J B_i) + ½ ⟨A_i, ℓu ∇²f⟩ + ½ ⟨C_i, ℓyy⟩
              └────────── R1 + R3 ──────────┘     └──── R2 ────┘     └── R4 ──┘

Completing the square in J splits the first two terms,

    R1 = ½ tr(ℓuu (J − J⁽ⁱ⁾) A_i (J − J⁽ⁱ⁾)ᵀ)        R3 = −½ tr(ℓyu ℓuu⁺ ℓuy B_iᵀ A_i⁺ B_i).

In the whitened coordinates of `mixreg.perturbation` (P = J L, N = ℓuu⁺ ℓuy) everything is a c × r matrix per sample:

    (J − J⁽ⁱ⁾) L = P + N (V + κ_i e_i z_iᵀ)        (J − J⁽ⁱ⁾) a_i = J a_i + N (b_i − (1 − κ_i s_i) e_i)

and tr(ℓuu M A_i Mᵀ) = σ² (M a_i)ᵀ ℓuu (M a_i) + γ² ‖ℓuu^½ M L‖². R2 is a sum of second derivatives along a_i and along
the columns of L; where these are many, along random combinations L v with E vvᵀ = I.

**Around unmixed points** (Zhang et al., 2021, Lemma 3.1). For ℓ(y, u) = h(u) − yᵀu the label need not be mixed: the
Mixup risk is E ℓ(y_i, f(x_i + (1 − λ)(x_j − x_i))) with λ ~ Beta(α + 1, α). Expanded around x_i,

    ℓ + E(1−λ) · ℓu J (x̄ − x_i) + ½ E(1−λ)² · (tr(ℓuu J A Jᵀ) + ⟨A, ℓu ∇²f⟩),      A = Σxx + a_i a_iᵀ,

with E(1−λ) = α / (2α + 1) and E(1−λ)² = α / (2 (2α + 1)). Squared error is of this form up to ½‖y‖², whose expectation
over mixed labels is added exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mixreg.losses import SampleLoss, require_curvature
from mixreg.moments import DataMoments
from mixreg.network import Network, Problem, curvature, evaluating, jacobians, pose
from mixreg.perturbation import Perturbation

# Up to this rank of Σxx, R2 takes every direction; beyond it, this many random ones per sample.
EXACT_DIRECTIONS = 128
PROBES = 8
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


@dataclass(frozen=True)
class UnmixedExpansion:
    """The terms of Zhang et al. (2021), Lemma 3.1, with the names used there; float64 tensors of no dimension.

    Attributes:
        base: mean ℓ(y_i, f(x_i)), the empirical risk.
        r1: of first order, r2: with the Jacobian squared, r3: with the Hessian of f.
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


def quadratic(
    net: Network,
    x: Tensor,
    y: Tensor,
    alpha: float,
    loss: str | SampleLoss = "cross_entropy",
    moments: DataMoments | None = None,
    *,
    expansion: str = "modified",
    chunk_size: int | None = None,
    exact_directions: int = EXACT_DIRECTIONS,
    probes: int = PROBES,
    generator: torch.Generator | None = None,
) -> Quadratic | UnmixedExpansion:
    """The second-order expansion of the Mixup risk, term by term.

    Args:
        net: maps n × … inputs to n × … outputs; twice differentiable, or piecewise linear (then R2 = 0).
        x: n × …, floating point.
        y: n integer labels, or n × … targets.
        alpha: in [0, ∞].
        loss: a name or a twice differentiable callable on one sample.
        moments: of the whole training set, kept with `covariance=True`, if (x, y) is a part of it.
        expansion: "modified", around (x̃, ỹ) as in Theorem 3; or "unmixed", around (x, y) as in Zhang et al., 2021.
        chunk_size: samples at once, which bounds the memory.
        exact_directions: R2 is exact up to this rank of the covariance, and estimated beyond.
        probes: random directions per sample of the estimate, at least 2.
        generator: their source of chance.
    """
    if expansion not in ("modified", "unmixed"):
        raise ValueError(f"unknown expansion {expansion!r}; known are 'modified' and 'unmixed'")
    if probes < 2:
        raise ValueError(f"a standard error needs at least 2 probes, got {probes}")
    problem = pose(net, x, y, loss)
    perturbation = Perturbation(problem.x, problem.y, alpha, moments)
    directions = _Directions(perturbation, exact_directions, probes, generator)
    # A Jacobian holds c times the input.
    size = problem.chunk_size(chunk_size) if chunk_size is not None else 0
    size = size or max(1, problem.chunk_size(None) * 4 // problem.classes)
    with evaluating(net), torch.enable_grad():
        if expansion == "unmixed":
            return _unmixed(problem, perturbation, directions, size, loss)
        return _modified(problem, perturbation, directions, size)


def _chunks(n: int, size: int) -> list[slice]:
    return [slice(s, min(s + size, n)) for s in range(0, n, size)]


def _quadratic_form(matrix: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """tr(leftᵀ M right) for every sample; matrix: m × c × k, left: m × c × q, right: m × k × q."""
    return (left * (matrix @ right)).sum((1, 2))


@dataclass(frozen=True)
class _Directions:
    """Second derivatives of ℓu f along a_i and along the columns of L."""

    perturbation: Perturbation
    exact_directions: int
    probes: int
    generator: torch.Generator | None

    def curvature(self, net: Network, x: Tensor, slope: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """⟨aaᵀ, ℓu ∇²f⟩, ⟨Σxx, ℓu ∇²f⟩ and the variance of the latter, for every sample: m each.

        Args:
            net: the network.
            x: m × …, where to differentiate.
            slope: ℓu, m × c, held fixed.
            a: m × d.
        """
        factor = self.perturbation.whitening.factor
        curve = curvature(net, x, slope)

        def along(direction: Tensor) -> Tensor:
            return curve(direction).double()

        own = along(a)
        rank = factor.shape[1]
        if rank <= self.exact_directions:
            total = torch.zeros_like(own)
            for column in factor.unbind(1):
                total += along(column.expand(len(x), -1))
            return own, total, torch.zeros_like(own)
        draws: list[Tensor] = []
        for _ in range(self.probes):
            signs = torch.randint(2, (len(x), rank), generator=self.generator).to(factor) * 2 - 1
            draws.append(along(signs @ factor.T))
            if not bool(draws[0].any() or own.any()):
                # Exactly 0 along random directions at every sample: a piecewise linear network, without curvature.
                return own, draws[0], torch.zeros_like(own)
        values = torch.stack(draws)
        return own, values.mean(0), values.var(0) / self.probes


def _modified(problem: Problem, perturbation: Perturbation, directions: _Directions, size: int) -> Quadratic:
    loss, var, gamma2 = problem.loss, perturbation.var, perturbation.gamma2
    white = perturbation.whitening
    yy, slopes = perturbation.yy, white.slopes
    gram = slopes @ slopes.T
    names = ("base", "r1", "r2", "r3", "r4", "joint", "r2_variance")
    found: dict[str, list[Tensor]] = {name: [] for name in names}
    x_modified, y_modified = perturbation.x_modified, perturbation.y_modified
    for rows in _chunks(problem.count, size):
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
        joint = 0.5 * (var * _quadratic_form(uu, along_a, along_a) + gamma2 * _quadratic_form(uu, projected, projected))
        joint += var * _quadratic_form(uy, along_a, b) + gamma2 * (uy * (projected @ slopes.T)).sum((1, 2))
        change = inverse @ uy
        gap = projected + change @ (slopes + (reg.weight.reshape(-1, 1, 1) * e) @ reg.z.unsqueeze(1))
        gap_a = along_a + change @ (b - (1 - reg.fraction).reshape(-1, 1, 1) * e)
        r1 = 0.5 * (var * _quadratic_form(uu, gap_a, gap_a) + gamma2 * _quadratic_form(uu, gap, gap))
        middle = uy.transpose(1, 2) @ change
        explained = _quadratic_form(middle, b, b) - (1 - reg.fraction) * _quadratic_form(middle, e, e)
        r3 = -0.5 * (gamma2 * (middle * gram).sum((1, 2)) + var * explained)
        # Where predictions are so confident that ℓuu⁺ swamps everything, the sum is known better than the square.
        swamped = inverse.abs().amax((1, 2)) * uu.abs().amax((1, 2)) > _SWAMPED
        r1 = torch.where(swamped, joint - r3, r1)
        r4 = 0.5 * (var * _quadratic_form(ell_yy, b, b) + gamma2 * (ell_yy * yy).sum((1, 2)))
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


def _unmixed(
    problem: Problem, perturbation: Perturbation, directions: _Directions, size: int, name: str | SampleLoss
) -> UnmixedExpansion:
    if callable(name):
        raise ValueError("the unmixed expansion holds for losses h(u) − yᵀu only: one of the built-in ones")
    alpha, loss, white = perturbation.alpha, problem.loss, perturbation.whitening
    # E(1 − λ) = α / (2α + 1), also at ∞.
    first = 1 / (2 + 1 / alpha) if alpha > 0 else 0.0
    second = first / 2
    found: dict[str, list[Tensor]] = {key: [] for key in ("base", "r1", "r2", "r3", "variance")}
    for rows in _chunks(problem.count, size):
        x, y = problem.x[rows], problem.y[rows]
        u, jacobian = jacobians(problem.net, x, rows.start)
        a, _ = perturbation.centred(rows)
        slope = loss.u(y, u)
        uu = loss.uu(y, u).double()
        projected = (jacobian @ white.factor.to(jacobian.dtype)).double()
        along_a = (jacobian @ a.to(jacobian.dtype).unsqueeze(2)).double()
        own, spread, variance = directions.curvature(problem.net, x, slope, a)
        found["base"].append(loss.value(y, u).double())
        found["r1"].append(-first * (slope.double() * along_a.squeeze(2)).sum(1))
        spread_form = _quadratic_form(uu, along_a, along_a) + _quadratic_form(uu, projected, projected)
        found["r2"].append(0.5 * second * spread_form)
        found["r3"].append(0.5 * second * (own + spread))
        found["variance"].append((0.5 * second) ** 2 * variance)
    samples = {key: torch.cat(parts).detach() for key, parts in found.items()}
    stderr = samples.pop("variance").sum().sqrt() / problem.count
    means = {key: values.mean() for key, values in samples.items()}
    constant = torch.zeros_like(means["base"])
    if name == "squared_error":
        # ½ E‖λ y_i + (1−λ) y_j‖² − ½ mean ‖y_i‖² = −½ · 2 E λ(1−λ) · (mean ‖y‖² − ‖ȳ‖²) = −E λ(1−λ) tr Σyy.
        constant = -first / 2 * torch.trace(perturbation.yy)
    return UnmixedExpansion(**means, constant=constant, r3_stderr=stderr, total=sum(means.values(), constant))


def _finite(values: Tensor, first: int) -> Tensor:
    bad = ~torch.isfinite(values).flatten(1).all(1)
    if bool(bad.any()):
        raise ValueError(f"the loss has no finite second derivative at sample {first + int(bad.nonzero()[0])}")
    return values
