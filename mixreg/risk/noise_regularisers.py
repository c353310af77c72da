"""From a regulariser to an augmentation: noise with chosen covariances, and the regulariser it amounts to.

The paper ends with a question: given a regulariser, which augmentation induces it? To second order the answer needs
covariances only. For centred noise (δ, ε) with covariances S_xx, S_xy, S_yy per sample,

    E ℓ(y + ε, f(x + δ)) ≈ ℓ + ½ tr(ℓuu J S_xx Jᵀ) + tr(ℓyu J S_xy) + ½ ⟨S_xx, ℓu ∇²f⟩ + ½ ⟨S_yy, ℓyy⟩        (*)

and Gaussian noise, whose third moments vanish, leaves an error of fourth order. So every regulariser of the form (*) is
the augmentation that draws (δ, ε) jointly Gaussian with these covariances: `noise_regulariser` and `gaussian_noise`.

**Dropout** of inputs with probability q, scaled by 1/(1 − q), is noise with S_xx = q/(1 − q) diag(x²) and nothing else;
(*) is then the regulariser of Wager et al. (2013), for any network, to be put beside R1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from mixreg._autodiff.derivatives import curvature, jacobians
from mixreg._autodiff.network import Network, evaluating
from mixreg._autodiff.problem import Problem, check_problem
from mixreg._support.numbers import require_probability
from mixreg._support.random import normal
from mixreg.losses import SampleLoss


def _joint(xx: Tensor, xy: Tensor | None, yy: Tensor | None, n: int, d: int, k: int) -> Tensor:
    """The joint covariances, n × (d + k) × (d + k), of parts that may be the same for all samples."""
    joint = xx.new_zeros(n, d + k, d + k)
    joint[:, :d, :d] = xx
    if xy is not None:
        joint[:, :d, d:] = xy
        joint[:, d:, :d] = xy.transpose(-1, -2)
    if yy is not None:
        joint[:, d:, d:] = yy
    return joint


def gaussian_noise(
    x: Tensor,
    y: Tensor,
    xx: Tensor,
    xy: Tensor | None = None,
    yy: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Jointly Gaussian noise (δ, ε) for samples, of the shapes of x and y.

    Args:
        x: n × …, d numbers each; y: n × … values, k numbers each.
        xx: covariance of δ, n × d × d, or d × d for all.
        xy: of δ with ε, n × d × k or d × k; none by default.
        yy: of ε, n × k × k or k × k; none by default.
        generator: random number generator; by default PyTorch's global one.
    """
    n, d, k = len(x), x[0].numel(), y[0].numel()
    values, vectors = torch.linalg.eigh(_joint(xx, xy, yy, n, d, k))
    # By rounding, eigenvalues may be this much below 0, relative to the largest.
    slack = 10 * (d + k) * torch.finfo(values.dtype).eps
    if bool((values[:, 0] < -slack * values[:, -1].clamp(min=0) - torch.finfo(values.dtype).tiny).any()):
        raise ValueError("the covariances of inputs and outputs do not fit together: they have a negative eigenvalue")
    drawn = normal((n, d + k), generator, values.dtype, values.device)
    noise = (vectors @ (values.clamp(min=0).sqrt() * drawn).unsqueeze(2)).squeeze(2)
    return noise[:, :d].reshape(x.shape).to(x.dtype), noise[:, d:].reshape(y.shape).to(y.dtype)


@dataclass(frozen=True)
class NoiseRegulariser:
    """The terms of (*), averaged over samples; float64 tensors of no dimension.

    Attributes:
        base: mean ℓ.
        jacobian: ½ tr(ℓuu J S_xx Jᵀ).
        interaction: tr(ℓyu J S_xy).
        curvature: ½ ⟨S_xx, ℓu ∇²f⟩.
        labels: ½ ⟨S_yy, ℓyy⟩.
        total: their sum.
    """

    base: Tensor
    jacobian: Tensor
    interaction: Tensor
    curvature: Tensor
    labels: Tensor
    total: Tensor


def noise_regulariser(
    net: Network,
    x: Tensor,
    y: Tensor,
    xx: Tensor,
    xy: Tensor | None = None,
    yy: Tensor | None = None,
    loss: str | SampleLoss = "cross_entropy",
) -> NoiseRegulariser:
    """What noise with these covariances adds to the empirical risk, to second order: (*), term by term.

    Args:
        net: maps n × … inputs to n × … outputs.
        x: n × …, floating point.
        y: n integer labels, or n × … targets.
        xx: covariance of the inputs' noise, as for `gaussian_noise`.
        xy: of inputs' with targets'.
        yy: of targets'.
        loss: a name or a twice differentiable callable on one sample.
    """
    n, d = len(x), x[0].numel()
    values, vectors = torch.linalg.eigh(xx.double().expand(n, d, d))
    factors = vectors * values.clamp(min=0).sqrt().unsqueeze(1)
    return _terms(check_problem(net, x, y, loss), lambda jacobian: jacobian @ factors, factors.unbind(2), xy, yy)


def dropout_regulariser(
    net: Network, x: Tensor, y: Tensor, probability: float, loss: str | SampleLoss = "cross_entropy"
) -> NoiseRegulariser:
    """The second-order regulariser of dropping inputs with `probability` (Wager et al., 2013); arguments as above."""
    require_probability(probability, "the probability of dropout")
    spread = x.detach().flatten(1).double().abs() * (probability / (1 - probability)) ** 0.5
    single = torch.eye(spread.shape[1], dtype=torch.float64, device=x.device)
    directions = (spread * axis for axis in single)
    return _terms(check_problem(net, x, y, loss), lambda jacobian: jacobian * spread.unsqueeze(1), directions)


def _terms(
    problem: Problem,
    project: Callable[[Tensor], Tensor],
    directions: Iterable[Tensor],
    xy: Tensor | None = None,
    yy: Tensor | None = None,
) -> NoiseRegulariser:
    """(*) for S_xx = F Fᵀ, given as J ↦ J F (n × c × d to n × c × r) and as the columns of F (n × d each)."""
    with evaluating(problem.net), torch.enable_grad():
        u, jacobian = jacobians(problem.net, problem.x)
        loss, at = problem.loss, (problem.y.double(), u.double())
        projected = project(jacobian.double())
        bend = curvature(problem.net, problem.x, loss.u(problem.y, u))
        nothing = torch.zeros(problem.count, dtype=torch.float64, device=u.device)
        parts = (
            loss.value(problem.y, u).double(),
            0.5 * (projected * (loss.uu(*at) @ projected)).sum((1, 2)),
            nothing if xy is None else (loss.uy(*at) * (jacobian.double() @ xy.double())).sum((1, 2)),
            0.5 * sum((bend(direction).double() for direction in directions), start=nothing),
            nothing if yy is None else 0.5 * (loss.yy(*at) * yy.double()).sum((1, 2)),
        )
    base, first, interaction, bent, labels = (part.detach().mean() for part in parts)
    return NoiseRegulariser(base, first, interaction, bent, labels, base + first + interaction + bent + labels)
