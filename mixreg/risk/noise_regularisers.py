"""From a regulariser to an augmentation: noise with chosen covariances, and the regulariser it amounts to.

The paper ends with a question: given a regulariser, which augmentation induces it? To second order the answer needs
covariances only. For centred noise (δ, ε) with covariances S_xx, S_xy, S_yy per sample,

    E ℓ(y + ε, f(x + δ)) ≈ ℓ + ½ tr(ℓuu J S_xx Jᵀ) + tr(ℓyu J S_xy) + ½ ⟨S_xx, ℓu ∇²f⟩ + ½ ⟨S_yy, ℓyy⟩        (*)

and Gaussian noise, whose third moments vanish, leaves an error of fourth order. So every regulariser of the form (*) is
the augmentation that draws (δ, ε) jointly Gaussian with these covariances: `noise_regulariser` and `gaussian_noise`.
Covariances are given as they are known, from a number to a matrix for every sample (`mixreg.risk.covariances`).

**Dropout** of inputs with probability q, scaled by 1/(1 − q), is noise with S_xx = q/(1 − q) diag(x²) and nothing else;
(*) is then the regulariser of Wager et al. (2013), for any network, to be put beside R1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mixreg._autodiff.derivatives import curvature, jacobians
from mixreg._autodiff.network import Network, evaluating
from mixreg._autodiff.problem import Problem, check_problem, require_differentiable
from mixreg._support.numbers import require_probability
from mixreg.losses import SampleLoss
from mixreg.losses.targets import validate_pairs
from mixreg.risk.covariances import Covariance, Diagonal, JointNoise, joint_noise


def gaussian_noise(
    x: Tensor,
    y: Tensor,
    xx: Covariance,
    xy: Tensor | None = None,
    yy: Covariance | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Jointly Gaussian noise (δ, ε) for samples, of the shapes of x and y.

    Args:
        x: n × …, floating point, d numbers each.
        y: n × … values, k numbers each.
        xx: covariance of δ over the d flattened coordinates: a number (of each of them), d variances, a matrix d × d or
            n × d × d, a `Diagonal` or a `LowRank`.
        xy: of δ with ε, d × k or n × d × k; none by default.
        yy: of ε, as xx with k for d; none by default.
        generator: random number generator; by default PyTorch's global one.
    """
    validate_pairs(x, y)
    if not y.is_floating_point():
        raise TypeError(f"y must be floating-point values, got {y.dtype}; labels: mixreg.losses.targets.to_values")
    sizes = len(x), x.shape[1:].numel(), y.shape[1:].numel()
    delta, epsilon = joint_noise(xx, xy, yy, sizes, x.device).draw(sizes[0], sizes[2], generator)
    return delta.reshape(x.shape).to(x.dtype), epsilon.reshape(y.shape).to(y.dtype)


@dataclass(frozen=True)
class NoiseRegulariser:
    """The terms of the second order, averaged over samples; float64 tensors of no dimension.

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
    xx: Covariance,
    xy: Tensor | None = None,
    yy: Covariance | None = None,
    loss: str | SampleLoss = "cross_entropy",
) -> NoiseRegulariser:
    """What noise with these covariances adds to the empirical risk, to second order, term by term.

    Args:
        net: maps n × … inputs to n × … outputs.
        x: n × …, floating point.
        y: n integer labels, or n × … targets.
        xx: covariance of the inputs' noise, as for `gaussian_noise`.
        xy: of inputs' with targets'.
        yy: of targets'.
        loss: a name or a twice differentiable callable on one sample.
    """
    problem = check_problem(net, x, y, loss)
    require_differentiable(net, problem.x)
    sizes = problem.count, problem.x[0].numel(), problem.y.shape[1]
    return _terms(problem, joint_noise(xx, xy, yy, sizes, problem.x.device))


def dropout_regulariser(
    net: Network, x: Tensor, y: Tensor, probability: float, loss: str | SampleLoss = "cross_entropy"
) -> NoiseRegulariser:
    """The second-order regulariser of dropping inputs with `probability` (Wager et al., 2013); arguments as above."""
    require_probability(probability, "the probability of dropout")
    problem = check_problem(net, x, y, loss)
    require_differentiable(net, problem.x)
    variances = problem.x.flatten(1).double().square() * (probability / (1 - probability))
    sizes = (*variances.shape, problem.y.shape[1])
    return _terms(problem, joint_noise(Diagonal(variances), None, None, sizes, problem.x.device))


def _terms(problem: Problem, noise: JointNoise) -> NoiseRegulariser:
    """All terms of the second order, averaged."""
    with evaluating(problem.net), torch.enable_grad():
        u, jacobian = jacobians(problem.net, problem.x)
        jacobian = jacobian.double()
        loss, at = problem.loss, (problem.y.double(), u.double())
        projected = noise.x.after(jacobian)
        bend = curvature(problem.net, problem.x, loss.u(problem.y, u))
        nothing = torch.zeros(problem.count, dtype=torch.float64, device=u.device)
        parts = (
            loss.value(problem.y, u).double(),
            0.5 * (projected * (loss.uu(*at) @ projected)).sum((1, 2)),
            nothing if noise.xy is None else (loss.uy(*at) * (jacobian @ noise.xy)).sum((1, 2)),
            0.5 * sum((bend(direction).double() for direction in noise.x.columns(problem.count)), start=nothing),
            nothing if noise.y is None else 0.5 * noise.y.inner(loss.yy(*at)),
        )
    base, first, interaction, bent, labels = (part.detach().mean() for part in parts)
    return NoiseRegulariser(base, first, interaction, bent, labels, base + first + interaction + bent + labels)
