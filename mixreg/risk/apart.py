"""R1 and R3 apart, where they exist (eq. Ji).

Completing the square in J splits what the Jacobian adds,

    R1 = ½ tr(ℓuu (J − J⁽ⁱ⁾) A_i (J − J⁽ⁱ⁾)ᵀ)        R3 = −½ tr(ℓyu ℓuu⁺ ℓuy B_iᵀ A_i⁺ B_i).

In the whitened coordinates of `mixreg.theory.perturbation` (P = J L, N = ℓuu⁺ ℓuy) everything is a c × r matrix per
sample:

    (J − J⁽ⁱ⁾) L = P + N (V + κ_i e_i z_iᵀ)        (J − J⁽ⁱ⁾) a_i = J a_i + N (b_i − (1 − κ_i s_i) e_i)

and tr(ℓuu M A_i Mᵀ) = σ² (M a_i)ᵀ ℓuu (M a_i) + γ² ‖ℓuu^½ M L‖². R3 holds no derivative of the network.

**Their sum needs no inverse; R1 and R3 do.** They exist apart where ℓuy B_iᵀ lies in the range of ℓuu. It does for
cross-entropy, but N is of the size of 1/p: as predictions become confident R1 → ∞ and R3 → −∞, while their sum stays
what it is. Where 1/p overflows, and where a loss is linear in its outputs (a hinge), R1 and R3 are NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mixreg.losses import Loss
from mixreg.risk.directions import quadratic_form
from mixreg.theory.perturbation import Explained, Perturbation, Regressions

# Condition number of ℓuu from which R1 is taken as what R3 leaves of R1 + R3.
_SWAMPED = 1e6
# Squared share of ℓuy B_iᵀ outside the range of ℓuu from which R1 and R3 do not exist apart.
_MISSED = 1e-12


def third_term(
    loss: Loss, at: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor], scales: tuple[float, float], known: Explained
) -> Tensor:
    """R3: m, NaN where it does not exist.

    Args:
        loss: with y and u, `at` which ℓuu and ℓuy are `second`.
        scales: σ² and γ².
        known: of least squares.
    """
    (uu, uy), (var, gamma2) = second, scales
    b, e = known.b.unsqueeze(2), known.e.unsqueeze(2)
    change = _inverse(loss, at) @ uy
    middle = uy.transpose(1, 2) @ change
    explained = quadratic_form(middle, b, b) - (1 - known.fraction) * quadratic_form(middle, e, e)
    r3 = -0.5 * (gamma2 * (middle * known.gram).sum((1, 2)) + var * explained)

    def size(matrix: Tensor) -> Tensor:
        """‖M B_iᵀ‖² in whitened coordinates."""
        return var * (matrix @ b).square().sum((1, 2)) + gamma2 * (matrix * (matrix @ known.gram)).sum((1, 2))

    return torch.where(size(uy - uu @ change) > _MISSED * size(uy), torch.nan, r3)


def apart(
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
    b, e = reg.b.unsqueeze(2), reg.e.unsqueeze(2)
    inverse = _inverse(loss, at)
    change = inverse @ uy
    gap = projected + change @ (slopes + (reg.weight.reshape(-1, 1, 1) * e) @ reg.z.unsqueeze(1))
    gap_a = along_a + change @ (b - (1 - reg.fraction).reshape(-1, 1, 1) * e)
    r1 = 0.5 * (var * quadratic_form(uu, gap_a, gap_a) + gamma2 * quadratic_form(uu, gap, gap))
    known = Explained(reg.b, reg.e, reg.fraction, slopes @ slopes.T)
    r3 = third_term(loss, at, second, (var, gamma2), known)
    # Where predictions are so confident that ℓuu⁺ swamps everything, the sum is known better than the square.
    swamped = inverse.abs().amax((1, 2)) * uu.abs().amax((1, 2)) > _SWAMPED
    r1 = torch.where(swamped, joint - r3, r1)
    return torch.where(r3.isnan(), torch.nan, r1), r3


def _inverse(loss: Loss, at: tuple[Tensor, Tensor]) -> Tensor:
    inverse = loss.generalised_inverse(*at)
    return torch.where(inverse.isfinite(), inverse, 0.0)
