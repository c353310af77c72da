"""The statements about a network: Theorem 1, Lemma 2, Theorem 3 and the corollaries, for any network, data and loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from mixreg import risk
from mixreg._autodiff.network import evaluating, flat_outputs
from mixreg._autodiff.problem import check_problem
from mixreg._support.random import normal
from mixreg.losses import BUILT_IN, SampleLoss
from mixreg.theory.perturbation import Perturbation
from mixreg.theory.quadrature import theta_nodes
from mixreg.verify.examples import Row, generator


def about_a_network(
    net: nn.Module, x: Tensor, y: Tensor, alphas: tuple[float, ...], loss: str | SampleLoss, folded: bool = False
) -> Iterator[Row]:
    """The rows for one network; x: n × … float64, over all of whose pairs the checks go.

    `folded` for networks that may have kinks, see `risk.perturbed`.
    """
    problem = check_problem(net, x, y, loss)
    scale = max(1.0, abs(float(risk.empirical(net, x, y, loss))))

    def largest(difference: Callable[[float], float]) -> float:
        return max(difference(alpha) for alpha in alphas)

    def theorem_1(alpha: float) -> float:
        left, right = risk.mixup(net, x, y, alpha, loss), risk.perturbed(net, x, y, alpha, loss, folded=folded)
        return abs(float(left - right)) / scale

    yield Row("Theorem 1", "Mixup risk = risk on shrunk data with noise", largest(theorem_1), 1e-10)
    noise = {alpha: Perturbation(problem.x, problem.y, alpha) for alpha in alphas}
    yield Row("Theorem 1", "the noise is centred", largest(lambda a: _mean_noise(noise[a])), 1e-12 * _size(problem.x))
    yield Row(
        "Lemma 2",
        "covariances of the noise",
        largest(lambda a: _covariance_gap(noise[a])),
        1e-12 * _size(problem.x) ** 2,
    )

    def theorem_3(alpha: float) -> float:
        terms = risk.quadratic(net, x, y, alpha, loss, exact_directions=10**9)
        total = terms.base + terms.r1 + terms.r2 + terms.r3 + terms.r4
        return abs(float(_expected_taylor(net, x, y, noise[alpha], loss) - total)) / scale

    yield Row("Theorem 3", "quadratic risk = base + R1 + R2 + R3 + R4", largest(theorem_3), 1e-9)
    if isinstance(loss, str):

        def corollary(alpha: float) -> float:
            named, automatic = (
                risk.quadratic(net, x, problem.y, alpha, form, exact_directions=10**9)
                for form in (loss, _one_sample(loss))
            )
            pairs = [(getattr(named, r), getattr(automatic, r)) for r in ("r1", "r2", "r3", "r4")]
            return max(abs(float(a - b)) / max(1.0, abs(float(b))) for a, b in pairs)

        yield Row("Corollary", "its derivatives in closed form", largest(corollary), 1e-9)


def _size(x: Tensor) -> float:
    return max(1.0, float(x.abs().max()))


def _one_sample(name: str) -> SampleLoss:
    """A built-in loss as a callable on one sample."""
    return lambda y, u: BUILT_IN[name].value(y.unsqueeze(0), u.unsqueeze(0))[0]


def _all_noise(p: Perturbation, nodes: int) -> Iterator[tuple[float, Tensor, Tensor]]:
    """(probability, δ, ε) for every partner and node of θ."""
    theta, weights = theta_nodes(p.alpha, nodes)
    n = len(p)
    for node, weight in zip(theta.tolist(), weights.tolist(), strict=True):
        share = torch.full((n,), 1 - node, dtype=torch.float64)
        for j in range(n):
            partner = torch.full((n,), j)
            delta, epsilon = (p.noise(t, m, share, partner) for t, m in ((p.x, p.x_mean), (p.y, p.y_mean)))
            yield weight / n, delta, epsilon


def _mean_noise(p: Perturbation) -> float:
    delta, epsilon = torch.zeros_like(p.x), torch.zeros_like(p.y)
    for weight, d, e in _all_noise(p, 2):
        delta, epsilon = delta + weight * d, epsilon + weight * e
    return max(float(delta.abs().max()), float(epsilon.abs().max()))


def _covariance_gap(p: Perturbation) -> float:
    n = len(p)
    xx = xy = yy = torch.zeros(())
    probe = normal((p.x[0].numel(), 3), generator(), torch.float64)
    for weight, d, e in _all_noise(p, 2):
        d, e = d.reshape(n, -1), e.reshape(n, -1)
        xx = xx + weight * d.unsqueeze(2) * (d @ probe).unsqueeze(1)
        xy = xy + weight * d.unsqueeze(2) * e.unsqueeze(1)
        yy = yy + weight * e.unsqueeze(2) * e.unsqueeze(1)
    gap = 0.0
    for i in range(n):
        pairs = ((xx[i], p.covariance_xx(i, probe)), (xy[i], p.covariance_xy(i)), (yy[i], p.covariance_yy(i)))
        gap = max(gap, *(float((a - b).abs().max()) for a, b in pairs))
    return gap


def _expected_taylor(net: nn.Module, x: Tensor, y: Tensor, p: Perturbation, loss: str | SampleLoss) -> Tensor:
    """E over the noise of the second-order Taylor polynomial of ℓ(ỹ + tε, f(x̃ + tδ)), straight from eq. (taylor)."""
    problem = check_problem(net, x, y, loss)
    x_modified, y_modified = p.x_modified, p.y_modified
    total = torch.zeros((), dtype=torch.float64)
    zero = torch.zeros((), dtype=torch.float64)
    with evaluating(net):
        for weight, delta, epsilon in _all_noise(p, 2):

            def along(t: Tensor, delta: Tensor = delta, epsilon: Tensor = epsilon) -> Tensor:
                values = problem.loss.value(y_modified + t * epsilon, flat_outputs(net, x_modified + t * delta))
                return values.mean()

            slope = torch.func.grad(along)
            total += weight * (along(zero) + slope(zero) + 0.5 * torch.func.grad(slope)(zero)).detach()
    return total
