"""The statements about a network: Theorem 1, Lemma 2, Theorem 3 and the corollaries, for any network, data and loss.

Residuals are relative to the size of what is added up: a confident network has losses in the hundreds, and R1 and R3 of
1e18 that cancel, which is rounding and no counterexample. Theorem 3 is checked with R1 + R3 as one term; the two apart
are held against it where they exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from mixreg import risk
from mixreg._autodiff.derivatives import jacobians
from mixreg._autodiff.network import evaluating
from mixreg._autodiff.problem import Problem, check_problem, require_differentiable
from mixreg._support.random import normal
from mixreg.losses import BUILT_IN, SampleLoss
from mixreg.losses.derivatives import CustomLoss
from mixreg.risk.directions import PROBES, Directions, samples_at_once
from mixreg.risk.exact_terms import exact_terms
from mixreg.risk.quadratic_risk import Quadratic, of_samples
from mixreg.theory.perturbation import Perturbation
from mixreg.verify.examples import Row, generator
from mixreg.verify.expectations import covariances, expected_taylor, mixup_noise, signed_noise


def about_a_network(
    net: nn.Module, x: Tensor, y: Tensor, alphas: tuple[float, ...], loss: str | SampleLoss, folded: bool = False
) -> Iterator[Row]:
    """The rows for one network; x: n × … float64, over all of whose pairs the checks go.

    `folded` for networks that may have kinks, see `risk.perturbed`.
    """
    problem = check_problem(net, x, y, loss)
    require_differentiable(net, problem.x)

    def largest(difference: Callable[[float], float]) -> float:
        return max(difference(alpha) for alpha in alphas)

    def theorem_1(alpha: float) -> float:
        left, right = risk.mixup(net, x, y, alpha, loss), risk.perturbed(net, x, y, alpha, loss, folded=folded)
        return abs(float(left - right)) / max(1.0, abs(float(left)))

    yield Row("Theorem 1", "Mixup risk = risk on shrunk data with noise", largest(theorem_1), 1e-10)
    noise = {alpha: Perturbation(problem.x, problem.y, alpha) for alpha in alphas}
    yield Row("Theorem 1", "the noise is centred", largest(lambda a: _mean_noise(noise[a])), 1e-12 * _size(problem.x))
    yield Row(
        "Lemma 2",
        "covariances of the noise",
        largest(lambda a: _covariance_gap(noise[a])),
        1e-12 * _size(problem.x) ** 2,
    )
    found = {alpha: _quadratic(problem, noise[alpha]) for alpha in alphas}
    sizes = {alpha: _size_of_terms(problem, noise[alpha], found[alpha]) for alpha in alphas}

    def theorem_3(alpha: float) -> float:
        q = found[alpha]
        whole = expected_taylor(problem, noise[alpha], mixup_noise(noise[alpha]))
        return abs(float(whole - (q.base + q.joint + q.r2 + q.r4))) / sizes[alpha]

    yield Row("Theorem 3", "quadratic risk = base + (R1 + R3) + R2 + R4", largest(theorem_3), 1e-9)
    gaps = torch.cat([_gap_of_parts(q, is_convex=isinstance(loss, str)) for q in found.values()])
    if len(gaps):
        yield Row("Theorem 3", "R1 and R3 add up to R1 + R3, where they exist apart", float(gaps.max()), 1e-9)

    def same_covariances(alpha: float) -> float:
        p = noise[alpha]
        others = expected_taylor(problem, p, signed_noise(p)), _regulariser(problem, p, loss)
        return max(abs(float(other - found[alpha].total)) for other in others) / sizes[alpha]

    yield Row("Theorem 3", "any noise with the same covariances has this risk", largest(same_covariances), 1e-9)
    if isinstance(loss, str):
        yield Row(
            "Corollary", "its derivatives in closed form", largest(lambda a: _closed_forms(problem, noise[a])), 1e-9
        )


def _size(x: Tensor) -> float:
    return max(1.0, float(x.abs().max()))


def _quadratic(problem: Problem, p: Perturbation) -> Quadratic:
    """`risk.quadratic` of these few samples as all the data there is, every direction of R2 taken."""
    directions = Directions(p, 10**9, PROBES, None)
    return of_samples(exact_terms(problem, p, directions, samples_at_once(problem, None)))


def _size_of_terms(problem: Problem, p: Perturbation, q: Quadratic) -> float:
    """The largest of the terms, or of what rounding makes of outputs that change by J δ."""
    with evaluating(problem.net):
        _, jacobian = jacobians(problem.net, p.x_modified)
    steep = float(p.gamma2 * (jacobian @ p.whitening.factor).square().sum((1, 2)).mean())
    parts = (q.per_sample[name].abs().mean() for name in ("base", "joint", "r2", "r4"))
    return max(1.0, 1e-6 * steep, *(float(part) for part in parts))


def _gap_of_parts(q: Quadratic, is_convex: bool) -> Tensor:
    """How far R1 and R3 are from their sum and, for a convex loss, from R1 ≥ 0 ≥ R3, relative to their size."""
    r1, r3, joint = (q.per_sample[name] for name in ("r1", "r3", "joint"))
    gap = (r1 + r3 - joint).abs()
    if is_convex:
        gap = torch.maximum(gap, torch.maximum(-r1, r3))
    gap = gap / (1 + r1.abs() + r3.abs() + joint.abs())
    return gap[r1.isfinite() & r3.isfinite()]


def _regulariser(problem: Problem, p: Perturbation, loss: str | SampleLoss) -> Tensor:
    """Noise with the covariances of Lemma 2, given by their factors (σ a_i, γ a_j / √n for all j), as a regulariser."""
    n, (a, b) = len(p), p.centred(slice(None))

    def factor(centred: Tensor) -> Tensor:
        shared = (p.gamma2 / n) ** 0.5 * centred.T
        return torch.cat([p.var**0.5 * centred.unsqueeze(2), shared.expand(n, -1, -1)], 2)

    xx, yy = factor(a), factor(b)
    noisy = risk.noise_regulariser(
        problem.net,
        p.x_modified,
        p.y_modified,
        risk.LowRank(xx),
        xx @ yy.transpose(1, 2),
        risk.LowRank(yy),
        loss,
    )
    return noisy.total


def _one_sample(name: str) -> SampleLoss:
    """A built-in loss as a callable on one sample."""
    return lambda y, u: BUILT_IN[name].value(y.unsqueeze(0), u.unsqueeze(0))[0]


def _mean_noise(p: Perturbation) -> float:
    delta, epsilon = torch.zeros_like(p.x), torch.zeros_like(p.y)
    for weight, d, e in mixup_noise(p):
        delta, epsilon = delta + weight * d, epsilon + weight * e
    return max(float(delta.abs().max()), float(epsilon.abs().max()))


def _covariance_gap(p: Perturbation) -> float:
    probe = normal((p.x[0].numel(), 3), generator(), torch.float64)
    xx, xy, yy = covariances(p, probe)
    gap = 0.0
    for i in range(len(p)):
        pairs = ((xx[i], p.covariance_xx(i, probe)), (xy[i], p.covariance_xy(i)), (yy[i], p.covariance_yy(i)))
        gap = max(gap, *(float((a - b).abs().max()) for a, b in pairs))
    return gap


def _closed_forms(problem: Problem, p: Perturbation) -> float:
    """The built-in loss against automatic differentiation of its value, where the network's outputs are."""
    named = problem.loss
    name = next(name for name, loss in BUILT_IN.items() if loss is named)
    with evaluating(problem.net), torch.no_grad():
        u = problem.net(p.x_modified).reshape(len(p), -1)
    y = p.y_modified
    automatic = CustomLoss(_one_sample(name), y.shape[1:], u.shape[1:])
    gap = 0.0
    for part in ("u", "uu", "uy", "yy"):
        one, other = getattr(named, part)(y, u), getattr(automatic, part)(y, u)
        gap = max(gap, float(((one - other).abs() / other.abs().clamp(min=1)).max()))
    return gap
