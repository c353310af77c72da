"""Expectations over noise, one by one: what the statements about a network are held against.

Nothing here uses the closed forms of Lemma 2 and Theorem 3: the noise of Theorem 1 is listed, every partner at every
node of θ, and derivatives along it are taken by automatic differentiation in one number t, as in eq. (taylor).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from mixreg._autodiff.network import evaluating, flat_outputs, plain_attention
from mixreg._autodiff.problem import Problem
from mixreg.theory.perturbation import Perturbation
from mixreg.theory.quadrature import theta_nodes

Noise = Iterable[tuple[float, Tensor, Tensor]]


def mixup_noise(p: Perturbation, nodes: int = 2) -> Iterator[tuple[float, Tensor, Tensor]]:
    """(probability, δ, ε) for every partner and node of θ; the noise is linear in θ, so two give its covariances."""
    theta, weights = theta_nodes(p.alpha, nodes)
    n = len(p)
    for node, weight in zip(theta.tolist(), weights.tolist(), strict=True):
        share = torch.full((n,), 1 - node, dtype=torch.float64)
        for j in range(n):
            partner = torch.full((n,), j)
            delta, epsilon = (p.noise(t, m, share, partner) for t, m in ((p.x, p.x_mean), (p.y, p.y_mean)))
            yield weight / n, delta, epsilon


def signed_noise(p: Perturbation) -> Iterator[tuple[float, Tensor, Tensor]]:
    """δ = ± (σ a_i + γ a_j) and ε = ± (σ b_i + γ b_j): other noise, with the same mean and covariances."""
    n, sigma, gamma = len(p), p.var**0.5, p.gamma2**0.5
    a, b = p.x - p.x_mean, p.y - p.y_mean
    for sign in (-1, 1):
        for j in range(n):
            yield 0.5 / n, sign * (sigma * a + gamma * a[j]), sign * (sigma * b + gamma * b[j])


def along(problem: Problem, x: Tensor, y: Tensor, delta: Tensor, epsilon: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """mean ℓ(y + tε, f(x + tδ)) at t = 0, and its first and second derivative there."""
    with evaluating(problem.net), plain_attention(), torch.enable_grad():
        t = torch.zeros((), dtype=torch.float64, requires_grad=True)
        value = problem.loss.value(y + t * epsilon, flat_outputs(problem.net, x + t * delta)).mean()
        first = _derivative(value, t)
        second = _derivative(first, t)
    return value.detach(), first.detach(), second.detach()


def _derivative(value: Tensor, t: Tensor) -> Tensor:
    """0 where `value` does not depend on t, as the second derivative of what is piecewise linear."""
    if not value.requires_grad:
        return torch.zeros_like(t)
    (found,) = torch.autograd.grad(value, t, create_graph=True, allow_unused=True)
    return torch.zeros_like(t) if found is None else found


def expected_taylor(problem: Problem, p: Perturbation, noise: Noise) -> Tensor:
    """E of the second-order Taylor polynomial of ℓ(ỹ + tε, f(x̃ + tδ)), straight from eq. (taylor)."""
    total = torch.zeros((), dtype=torch.float64)
    for weight, delta, epsilon in noise:
        value, first, second = along(problem, p.x_modified, p.y_modified, delta, epsilon)
        total += weight * (value + first + 0.5 * second)
    return total


def covariances(p: Perturbation, probe: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """E δδᵀ V (n × d × …), E δεᵀ and E εεᵀ of Mixup's noise, for V = probe: d × …."""
    n = len(p)
    xx = xy = yy = torch.zeros(())
    for weight, d, e in mixup_noise(p):
        d, e = d.reshape(n, -1), e.reshape(n, -1)
        xx = xx + weight * d.unsqueeze(2) * (d @ probe).unsqueeze(1)
        xy = xy + weight * d.unsqueeze(2) * e.unsqueeze(1)
        yy = yy + weight * e.unsqueeze(2) * e.unsqueeze(1)
    return xx, xy, yy
