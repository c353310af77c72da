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

**R1 + R3 needs no inverse; R1 and R3 do.** They exist apart where ℓuy B_iᵀ lies in the range of ℓuu. It does for
cross-entropy, but N is of the size of 1/p: as predictions become confident R1 → ∞ and R3 → −∞, while their sum,
`joint`, stays what it is. Where 1/p overflows, and where a loss is linear in its outputs (a hinge), R1 and R3 are NaN.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from mixreg._autodiff.derivatives import jacobians
from mixreg._autodiff.network import Network, evaluating
from mixreg._autodiff.problem import Problem, check_problem, require_differentiable
from mixreg.losses import Loss, SampleLoss
from mixreg.risk.directions import EXACT_DIRECTIONS, PROBES, Directions, chunks, quadratic_form, samples_at_once
from mixreg.theory.moments import DataMoments
from mixreg.theory.perturbation import Perturbation, Regressions

# Condition number of ℓuu from which R1 is taken as what R3 leaves of R1 + R3.
_SWAMPED = 1e6
# Squared share of ℓuy B_iᵀ outside the range of ℓuu from which R1 and R3 do not exist apart.
_MISSED = 1e-12


@dataclass(frozen=True, repr=False)
class Quadratic:
    """The terms of Theorem 3, averaged over samples; float64 tensors of no dimension.

    Attributes:
        base: mean ℓ(ỹ_i, f(x̃_i)), the loss on modified data (eq. ermtild).
        r1, r2, r3, r4: the regularisation terms; R1 and R3 are NaN where they do not exist apart.
        joint: R1 + R3 without any inverse, which is more than the sum of the two where predictions are confident.
        r2_stderr: of a randomised R2; 0 where R2 is exact.
        total: the quadratic risk, base + joint + R2 + R4.
        per_sample: base, r1, r2, r3, r4 and joint before averaging, n each.
    """

    base: Tensor
    r1: Tensor
    r2: Tensor
    r3: Tensor
    r4: Tensor
    joint: Tensor
    r2_stderr: Tensor
    total: Tensor
    per_sample: dict[str, Tensor]

    def __repr__(self) -> str:
        names = ("base", "r1", "r2", "r3", "r4", "joint", "r2_stderr", "total")
        values = ", ".join(f"{name}={float(getattr(self, name)):.6g}" for name in names)
        return f"Quadratic({values}; {len(self.per_sample['base'])} samples)"


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
    require_differentiable(net, problem.x)
    perturbation = Perturbation(problem.x, problem.y, alpha, moments)
    count, coordinates = problem.count, problem.x[0].numel()
    if moments is None and count <= coordinates and perturbation.gamma2 > 0:
        warnings.warn(
            f"{count} samples of {coordinates} coordinates: least squares, and with it R1 and R3, interpolate so few; "
            "if they are a part of the training set, give its moments=DataMoments(covariance=True)",
            stacklevel=2,
        )
    directions = Directions(perturbation, exact_directions, probes, generator)
    q, is_linear = terms(problem, perturbation, directions, samples_at_once(problem, chunk_size))
    missing = q.per_sample["r1"].isnan().nonzero()
    if len(missing):
        warnings.warn(
            f"R1 and R3 do not exist apart at {len(missing)} of {count} samples, the first is {int(missing[0])}: "
            "there ℓuu is 0 in float64 where ℓuy is not (a network so confident that 1/p overflows, or a loss that is "
            "linear in the outputs); joint = R1 + R3 and total need no inverse",
            stacklevel=2,
        )
    if is_linear:
        warnings.warn(
            "this loss is piecewise linear at these samples, all of its second derivatives are 0: what its kinks add "
            "to the risk is not in joint, R4 and total",
            stacklevel=2,
        )
    return q


def terms(problem: Problem, perturbation: Perturbation, directions: Directions, size: int) -> tuple[Quadratic, bool]:
    """The terms, and whether the loss has no second derivative at any sample; `size` samples at once."""
    loss, var, gamma2 = problem.loss, perturbation.var, perturbation.gamma2
    white = perturbation.whitening
    yy, slopes = perturbation.yy, white.slopes
    names = ("base", "r1", "r2", "r3", "r4", "joint", "r2_variance")
    found: dict[str, list[Tensor]] = {name: [] for name in names}
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
            r1, r3 = _apart(loss, precise, (uu, uy), perturbation, reg, (along_a, projected), joint)
            r4 = 0.5 * (var * quadratic_form(ell_yy, b, b) + gamma2 * (ell_yy * yy).sum((1, 2)))
            own, spread, variance = directions.curvature(problem.net, x_modified[rows], slope, reg.a)
            r2 = 0.5 * (var * own + gamma2 * spread)
            values = (loss.value(y, u).double(), r1, r2, r3, r4, joint, (0.5 * gamma2) ** 2 * variance)
            for name, value in zip(names, values, strict=True):
                found[name].append(value.detach())
    samples = {name: torch.cat(parts) for name, parts in found.items()}
    stderr = samples.pop("r2_variance").sum().sqrt() / problem.count
    means = {name: values.mean() for name, values in samples.items()}
    total = means["base"] + means["joint"] + means["r2"] + means["r4"]
    return Quadratic(**means, r2_stderr=stderr, total=total, per_sample=samples), is_flat and is_sloped


def _apart(
    loss: Loss,
    at: tuple[Tensor, Tensor],
    second: tuple[Tensor, Tensor],
    perturbation: Perturbation,
    reg: Regressions,
    derivatives: tuple[Tensor, Tensor],
    joint: Tensor,
) -> tuple[Tensor, Tensor]:
    """R1 and R3: m each, NaN where they do not exist apart.

    Args:
        loss: with y and u, `at` which ℓuu and ℓuy are `second`.
        perturbation: with its regressions for these samples.
        derivatives: J a_i, m × c × 1, and P = J L, m × c × r.
        joint: R1 + R3.
    """
    (uu, uy), (along_a, projected) = second, derivatives
    var, gamma2, slopes = perturbation.var, perturbation.gamma2, perturbation.whitening.slopes
    gram = slopes @ slopes.T
    b, e = reg.b.unsqueeze(2), reg.e.unsqueeze(2)
    inverse = loss.generalised_inverse(*at)
    inverse = torch.where(inverse.isfinite(), inverse, 0.0)
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

    def size(matrix: Tensor) -> Tensor:
        """‖M B_iᵀ‖² in whitened coordinates."""
        return var * (matrix @ b).square().sum((1, 2)) + gamma2 * (matrix * (matrix @ gram)).sum((1, 2))

    missing = size(uy - uu @ change) > _MISSED * size(uy)
    return torch.where(missing, torch.nan, r1), torch.where(missing, torch.nan, r3)


def _finite(values: Tensor, first: int) -> Tensor:
    bad = ~torch.isfinite(values).flatten(1).all(1)
    if bool(bad.any()):
        raise ValueError(f"the loss has no finite second derivative at sample {first + int(bad.nonzero()[0])}")
    return values
