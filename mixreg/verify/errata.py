"""What the paper prints wrongly, beside what holds: errata 1, 3, 4 and 6 (2: `limits`, 5: `jacobian_targets`)."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from mixreg import risk
from mixreg._autodiff.derivatives import jacobians
from mixreg._autodiff.network import Network
from mixreg.losses import BUILT_IN
from mixreg.losses.targets import to_values
from mixreg.theory.least_squares import linear_mixup_risk, printed_linear_mixup_risk
from mixreg.theory.perturbation import Perturbation
from mixreg.theory.quadrature import lambda_nodes
from mixreg.verify.examples import Row, example, generator, with_random_weights
from mixreg.verify.expectations import mixup_noise


def errata() -> Iterator[Row]:
    """What holds, and beside it what the paper prints."""
    yield _linear_model()
    yield _inverse()
    yield _confidence()
    yield _footnote()


def _linear_model() -> Row:
    _, x, y = example("squared_error", n=12)
    stream = generator()
    models = [with_random_weights(nn.Linear(4, 3), stream) for _ in range(2)]
    exact = [risk.mixup(f, x, y, 1.0, "squared_error") for f in models]
    # The printed formula has an unknown constant: compare the differences between two models.
    residuals = []
    for formula in (linear_mixup_risk, printed_linear_mixup_risk):
        values = [formula(w, b, x, y, 1.0) for w, b in (f.parameters() for f in models)]
        residuals.append(abs(float((values[0] - values[1]) - (exact[0] - exact[1]))))
    stated = "constants of the Mixup risk of a linear model"
    return Row("Erratum 1, eq. (19, mixupOLS)", stated, residuals[0], 1e-11, residuals[1])


def _inverse() -> Row:
    net, x, y = example("cross_entropy")
    terms, joint = risk.quadratic(net, x, y, 1.0), float(_listed_joint(net, x, y, 1.0).mean())
    return Row(
        "Erratum 3, Corollary CE",
        "H⁻¹ is a pseudo-inverse: R1 + R3 is what it should be (printed: an inverse)",
        max(abs(float(terms.r1 + terms.r3) - joint), abs(float(terms.joint) - joint)),
        1e-9,
        abs(_with_plain_inverse(net, x, y) - joint),
    )


def _confidence() -> Row:
    net, x, y = example("cross_entropy")
    gap, first = 0.0, []
    for sharpness in (1.0, 4.0, 16.0, 64.0):

        def confident(z: Tensor, sharpness: float = sharpness) -> Tensor:
            return sharpness * net(z)

        terms, joint = risk.quadratic(confident, x, y, 1.0), _listed_joint(confident, x, y, 1.0)
        gap = max(gap, float(((terms.per_sample["joint"] - joint).abs() / joint.abs().clamp(min=1)).max()))
        first.append(float(terms.r1))
    grows = f"logits × 1, 4, 16: R1 = {first[0]:.1g}, {first[1]:.1g}, {first[2]:.1g}"
    return Row(
        "Erratum 4, §6",
        f"R1 grows as predictions become confident, R1 + R3 is finite (printed: R1 vanishes); {grows}",
        gap if first == sorted(first) else math.inf,
        1e-9,
        first[2],
    )


def _listed_joint(net: Network, x: Tensor, y: Tensor, alpha: float) -> Tensor:
    """R1 + R3 of cross-entropy for every sample, as a mean of ½ (Jδ)ᵀℓuu(Jδ) + εᵀℓyu Jδ over Mixup's noise."""
    p = Perturbation(x, to_values(y, 3, torch.float64), alpha)
    u, jacobian = jacobians(net, p.x_modified)
    total = torch.zeros(len(p), dtype=torch.float64)
    for weight, delta, epsilon in mixup_noise(p):
        moved = (jacobian @ delta.unsqueeze(2)).squeeze(2)
        total += weight * BUILT_IN["cross_entropy"].along(p.y_modified, u, epsilon, moved)
    return total


def _footnote() -> Row:
    gap = 0.0
    for alpha in (1.0, 10.0, 1e3, 1e6):
        nodes, weights = lambda_nodes(alpha + 1, 32)
        gap = max(gap, abs(float(weights @ (nodes - 0.5) ** 2) * 4 * (2 * alpha + 3) - 1))
    near_one = float(weights[nodes > 0.9].sum())
    return Row(
        "Erratum 6, footnote",
        "Beta(α + 1, α + 1) has variance 1/(4 (2α + 3)): it concentrates at ½ (printed: near 1 with probability ½)",
        gap,
        1e-9,
        abs(near_one - 0.5),
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
