"""Linear least squares under Mixup, in closed form (Corollary on the squared error, eq. (19, mixupOLS), corrected).

For f(x) = W x + b and ℓ = ½‖y − u‖² the Taylor expansion is exact, and with b̄ = ȳ − W x̄

    E^Mixup(f_{W,b}) = (2σ² + θ̄² + (1 − θ̄)²) · mean ℓ(y_i, f_{W,b̄}(x_i)) + ½ ‖b − b̄‖².

The paper prints (2σ² + 2θ̄² + (1 − θ̄)²)/2 · mean ℓ + ‖b − b̄‖² + C; its proof loses the ½ of the loss in two places. The
conclusion stands: both are minimised by ordinary least squares, so Mixup does not change linear regression.

Derivation: mixed residuals are r = θ r_i + (1 − θ) r_j + (b − b̄) with centred r_i = y_i − W x_i − b̄, whose mean square
over pairs is E(θ² + (1 − θ)²) · mean ‖r_i‖² + ‖b − b̄‖², and E θ² = σ² + θ̄², E(1 − θ)² = σ² + (1 − θ̄)².
"""

from __future__ import annotations

import torch
from torch import Tensor

from mixreg.theory.theta import scalar_forms


def ordinary_least_squares(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The W: c × d and b: c of smallest norm that minimise mean ‖y_i − W x_i − b‖²; x: n × …, y: n × c (or n)."""
    x, y = _matrices(x, y)
    x_mean, y_mean = x.mean(0), y.mean(0)
    weight = (torch.linalg.pinv(x - x_mean) @ (y - y_mean)).T
    return weight, y_mean - weight @ x_mean


def linear_mixup_risk(weight: Tensor, bias: Tensor, x: Tensor, y: Tensor, alpha: float) -> Tensor:
    """The exact Mixup risk of x ↦ W x + b under squared error.

    Args:
        weight: W, c × d.
        bias: b, c.
        x: n × …
        y: n × c (or n).
        alpha: in [0, ∞].
    """
    forms = scalar_forms(alpha, "linear_mixup_risk")
    factor = 2 * forms.var + forms.mean**2 + forms.shrinkage**2
    loss, shift = _parts(weight, bias, x, y)
    return factor * loss + 0.5 * shift


def printed_linear_mixup_risk(weight: Tensor, bias: Tensor, x: Tensor, y: Tensor, alpha: float) -> Tensor:
    """Eq. (19, mixupOLS) as printed in the paper, without its constant C; wrong by its factors."""
    forms = scalar_forms(alpha, "printed_linear_mixup_risk")
    factor = (2 * forms.var + 2 * forms.mean**2 + forms.shrinkage**2) / 2
    loss, shift = _parts(weight, bias, x, y)
    return factor * loss + shift


def _matrices(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    if x.shape[0] != y.shape[0]:
        raise ValueError(f"x has {x.shape[0]} samples and y has {y.shape[0]}; they must be equally many")
    return x.reshape(x.shape[0], -1), y.reshape(y.shape[0], -1)


def _parts(weight: Tensor, bias: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """mean ℓ(y_i, f_{W,b̄}(x_i)) and ‖b − b̄‖²."""
    x, y = _matrices(x, y)
    if weight.shape != (y.shape[1], x.shape[1]) or bias.shape != (y.shape[1],):
        raise ValueError(
            f"weight and bias must have shapes {(y.shape[1], x.shape[1])} and {(y.shape[1],)}, "
            f"got {tuple(weight.shape)} and {tuple(bias.shape)}"
        )
    centred_bias = y.mean(0) - weight @ x.mean(0)
    residual = y - x @ weight.T - centred_bias
    return 0.5 * residual.square().sum(1).mean(), (bias - centred_bias).square().sum()
