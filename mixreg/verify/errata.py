"""What the paper prints wrongly, beside what holds."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from mixreg import risk
from mixreg._autodiff.derivatives import jacobians
from mixreg.losses import BUILT_IN
from mixreg.losses.targets import to_values
from mixreg.theory.least_squares import linear_mixup_risk, printed_linear_mixup_risk
from mixreg.theory.perturbation import Perturbation
from mixreg.verify.examples import Row, example, generator, with_random_weights


def errata() -> Iterator[Row]:
    """The three errata: what holds, and beside it what the paper prints."""
    _, x, y = example("squared_error", n=12)
    stream = generator()
    models = [with_random_weights(nn.Linear(4, 3), stream) for _ in range(2)]
    exact = [risk.mixup(f, x, y, 1.0, "squared_error") for f in models]
    # The printed formula has an unknown constant: compare the differences between two models.
    residuals = []
    for formula in (linear_mixup_risk, printed_linear_mixup_risk):
        values = [formula(w, b, x, y, 1.0) for w, b in (f.parameters() for f in models)]
        residuals.append(abs(float((values[0] - values[1]) - (exact[0] - exact[1]))))
    yield Row(
        "Erratum 1, eq. (mixupOLS)", "constants of the Mixup risk of a linear model", residuals[0], 1e-11, residuals[1]
    )

    net, x, y = example("cross_entropy")

    def gap(alpha: float) -> float:
        whole, terms = risk.mixup(net, x, y, alpha), risk.quadratic(net, x, y, alpha)
        return abs(float(terms.total - whole))

    yield Row("Erratum 2, §5", "the expansion becomes exact as α → 0 (printed: α → ∞)", gap(1e-8), 1e-7, gap(1e6))

    terms = risk.quadratic(net, x, y, 1.0)
    joint = float(terms.total - terms.base - terms.r2 - terms.r4)
    yield Row(
        "Erratum 3, Corollary CE",
        "H⁻¹ is a pseudo-inverse: R1 + R3 is what it should be (printed: an inverse)",
        abs(float(terms.r1 + terms.r3) - joint),
        1e-9,
        abs(_with_plain_inverse(net, x, y) - joint),
    )


def _with_plain_inverse(net: nn.Module, x: Tensor, y: Tensor) -> float:
    """R1 + R3 for cross-entropy with H⁻¹ taken literally, though H is singular: infinite where rounding finds none."""
    p = Perturbation(x, to_values(y, 3, torch.float64), 1.0)
    u, jacobian = jacobians(net, p.x_modified)
    hessians = BUILT_IN["cross_entropy"].uu(p.y_modified, u)
    total = 0.0
    eye = torch.eye(x.shape[1], dtype=torch.float64)
    for i in range(len(p)):
        inverse = torch.linalg.inv_ex(hessians[i]).inverse
        xx, xy = p.covariance_xx(i, eye), p.covariance_xy(i)
        gap = jacobian[i] - inverse @ xy.T @ torch.linalg.inv(xx)
        total += 0.5 * float(torch.trace(hessians[i] @ gap @ xx @ gap.T))
        total -= 0.5 * float(torch.trace(xy.T @ torch.linalg.inv(xx) @ xy @ inverse))
    return total / len(p) if math.isfinite(total) else math.inf
