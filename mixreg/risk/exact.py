"""The empirical, Mixup and perturbed risks (eq. erm, mixup, mixupERM).

**Exactly.** All pairs times the nodes of a Gauss rule, which for smooth networks converges exponentially in the number
of nodes. The pair (i, j) at λ is the pair (j, i) at 1 − λ and the rule for λ is symmetric, so pairs i < j suffice; a
sample mixed with itself is itself. That leaves n (n − 1) / 2 × nodes + n network evaluations.

**By Monte Carlo**, for larger data: blocks of samples whose i and whose j are each drawn without replacement (every
sample is used equally often) and whose λ are stratified (one in each of m equally likely intervals). Each triple
(i, j, λ) by itself still has the right distribution, so the mean is unbiased; independent blocks give its standard
error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple, overload

import torch
from torch import Tensor

from mixreg._autodiff.network import Network, evaluating, flat_outputs, refuse_non_finite
from mixreg._autodiff.problem import Problem, check_problem
from mixreg._support.random import permutation, uniform
from mixreg.losses import SampleLoss
from mixreg.theory.perturbation import Perturbation
from mixreg.theory.quadrature import folded_nodes, lambda_nodes, theta_nodes
from mixreg.theory.theta import scalar_forms

# Blocks of a Monte Carlo estimate: enough for a standard error that is itself right to about 15 %.
_BLOCKS = 20


class Estimate(NamedTuple):
    """A Monte Carlo mean and its standard error."""

    value: Tensor
    stderr: Tensor


def empirical(
    net: Network,
    x: Tensor,
    y: Tensor,
    loss: str | SampleLoss = "cross_entropy",
    *,
    chunk_size: int | None = None,
) -> Tensor:
    """mean ℓ(y_i, f(x_i)) (eq. erm); x: n × …, y: n integer labels or n × … targets."""
    problem = check_problem(net, x, y, loss)
    with evaluating(net), torch.no_grad():
        return _sum_unmixed(problem, problem.chunk_size(chunk_size)) / problem.count


@overload
def mixup(
    net: Network,
    x: Tensor,
    y: Tensor,
    alpha: float,
    loss: str | SampleLoss = "cross_entropy",
    nodes: int = 32,
    samples: None = None,
    *,
    chunk_size: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor: ...


@overload
def mixup(
    net: Network,
    x: Tensor,
    y: Tensor,
    alpha: float,
    loss: str | SampleLoss = "cross_entropy",
    nodes: int = 32,
    *,
    samples: int,
    chunk_size: int | None = None,
    generator: torch.Generator | None = None,
) -> Estimate: ...


def mixup(
    net: Network,
    x: Tensor,
    y: Tensor,
    alpha: float,
    loss: str | SampleLoss = "cross_entropy",
    nodes: int = 32,
    samples: int | None = None,
    *,
    chunk_size: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor | Estimate:
    """E ℓ(λ y_i + (1−λ) y_j, f(λ x_i + (1−λ) x_j)) over all pairs and λ ~ Beta(α, α) (eq. mixup).

    Args:
        net: maps n × … inputs to n × … outputs.
        x: n × …, floating point.
        y: n integer labels, or n × … targets.
        alpha: in [0, ∞].
        loss: a name or a callable on one sample.
        nodes: of the Gauss rule; the result is exact for smooth networks.
        samples: if given, a Monte Carlo `Estimate` from about this many mixed pairs instead.
        chunk_size: network evaluations at once, which bounds the memory.
        generator: random number generator for Monte Carlo.
    """
    problem = check_problem(net, x, y, loss)
    alpha = scalar_forms(alpha, "a risk").alpha
    with evaluating(net), torch.no_grad():
        if samples is not None:
            return _monte_carlo(problem, alpha, samples, problem.chunk_size(chunk_size), generator)
        return _all_pairs(problem, alpha, nodes, problem.chunk_size(chunk_size))


def perturbed(
    net: Network,
    x: Tensor,
    y: Tensor,
    alpha: float,
    loss: str | SampleLoss = "cross_entropy",
    nodes: int = 32,
    *,
    folded: bool = False,
    chunk_size: int | None = None,
) -> Tensor:
    """mean_i E ℓ(ỹ_i + ε_i, f(x̃_i + δ_i)) over θ and j (eq. mixupERM): the right-hand side of Theorem 1.

    Arguments as for `mixup`. Computed from shrunk data and noise, over all n² ordered pairs and a Gauss rule for
    θ on [½, 1], so that its equality with `mixup` is Theorem 1 and not an identity of code. Gauss rules differ
    by about 1e-6 for networks with kinks; `folded` takes the rule of `mixup`, folded onto [½, 1], with which the two
    sides agree to rounding for any network.
    """
    problem = check_problem(net, x, y, loss)
    n = problem.count
    perturbation = Perturbation(problem.x, problem.y, alpha)
    rule = folded_nodes if folded else theta_nodes
    theta, weights = (t.to(x.device) for t in rule(perturbation.alpha, nodes))
    x_modified, y_modified = perturbation.x_modified, perturbation.y_modified
    total = torch.zeros((), dtype=torch.float64, device=x.device)
    with evaluating(net), torch.no_grad():
        for pairs in torch.arange(n * n, device=x.device).split(max(1, problem.chunk_size(chunk_size) // len(theta))):
            i, j = pairs // n, pairs % n
            for node, weight in zip(theta.tolist(), weights.tolist(), strict=True):
                parts = []
                for data, mean, modified in (
                    (problem.x, perturbation.x_mean, x_modified),
                    (problem.y, perturbation.y_mean, y_modified),
                ):
                    mean = mean.to(data.dtype)
                    shift = node - perturbation.theta_mean
                    noise = shift * data[i] + (1 - node) * data[j] - (1 - perturbation.theta_mean) * mean
                    parts.append(modified[i] + noise)
                total += weight * _losses(problem, parts[0], parts[1], _pair(i, j)).sum()
    return total / n**2


def _losses(problem: Problem, x: Tensor, y: Tensor, where: Callable[[int], str]) -> Tensor:
    """ℓ of a chunk, float64: m; `where` names a row of it, should its loss not be finite."""
    values = problem.loss.value(y, flat_outputs(problem.net, x)).double()
    return refuse_non_finite(values, "the network's output or its loss", where)


def _sum_unmixed(problem: Problem, chunk: int) -> Tensor:
    """Σ ℓ(y_i, f(x_i))."""
    total = torch.zeros((), dtype=torch.float64, device=problem.x.device)
    for s in range(0, problem.count, chunk):
        rows = slice(s, s + chunk)
        # A copy, should the network write to its input.
        total += _losses(problem, problem.x[rows].clone(), problem.y[rows], _sample(s)).sum()
    return total


def _sample(first: int) -> Callable[[int], str]:
    return lambda row: f"sample {first + row}"


def _pair(i: Tensor, j: Tensor) -> Callable[[int], str]:
    """Names for the rows of mixed pairs; several nodes may follow each other with the same pairs."""
    return lambda row: f"a mixture of samples {int(i[row % len(i)])} and {int(j[row % len(j)])}"


def _upper_pairs(n: int, size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """All pairs i < j, `size` at a time and without a list of all of them."""
    starts = torch.tensor([i * (2 * n - i - 1) // 2 for i in range(n)], device=device)
    for first in range(0, n * (n - 1) // 2, size):
        pair = torch.arange(first, min(first + size, n * (n - 1) // 2), device=device)
        i = torch.searchsorted(starts, pair, right=True) - 1
        yield i, pair - starts[i] + i + 1


def _all_pairs(problem: Problem, alpha: float, nodes: int, chunk: int) -> Tensor:
    x, y, n = problem.x, problem.y, problem.count
    lam, weights = (t.to(x.device) for t in lambda_nodes(alpha, nodes))
    k = len(lam)
    total = torch.zeros((), dtype=torch.float64, device=x.device)
    size = max(1, chunk // k)
    # Memory to mix into, used again for every chunk: fresh pages would cost as much as the mixing.
    buffers = [torch.empty((k, size, *t.shape[1:]), dtype=t.dtype, device=t.device) for t in (x, y)]
    for i, j in _upper_pairs(n, size, x.device):
        mixed = []
        for data, buffer in zip((x, y), buffers, strict=True):
            out = buffer if len(i) == size else buffer.new_empty((k, len(i), *data.shape[1:]))
            share = lam.to(data.dtype).reshape(k, *[1] * data.ndim)
            mixed.append(torch.lerp(data[j].unsqueeze(0), data[i].unsqueeze(0), share, out=out).flatten(0, 1))
        total += 2 * weights @ _losses(problem, mixed[0], mixed[1], _pair(i, j)).reshape(k, -1).sum(1)
    return (total + _sum_unmixed(problem, chunk)) / n**2


def _monte_carlo(
    problem: Problem, alpha: float, samples: int, chunk: int, generator: torch.Generator | None
) -> Estimate:
    from scipy.special import betaincinv

    if isinstance(samples, bool) or not isinstance(samples, int) or samples < _BLOCKS:
        raise ValueError(f"samples must be an integer of at least {_BLOCKS}, got {samples!r}")
    x, y, n = problem.x, problem.y, problem.count
    size = min(n, samples // _BLOCKS)
    means = []
    for _ in range(math.ceil(samples / size)):
        i, j = (permutation(n, generator)[:size].to(x.device) for _ in range(2))
        strata = ((permutation(size, generator) + uniform((size,), generator)) / size).cpu()
        if alpha == 0 or math.isinf(alpha):
            lam = (strata < 0.5).double() if alpha == 0 else torch.full((size,), 0.5, dtype=torch.float64)
        else:
            lam = torch.from_numpy(betaincinv(alpha, alpha, strata.double().numpy()))
        lam = lam.to(x.device)
        total = torch.zeros((), dtype=torch.float64, device=x.device)
        for s in range(0, size, chunk):
            rows = slice(s, s + chunk)
            weight = lam[rows]
            mixed = [
                torch.lerp(t[j[rows]], t[i[rows]], weight.to(t.dtype).reshape(-1, *[1] * (t.ndim - 1))) for t in (x, y)
            ]
            total += _losses(problem, mixed[0], mixed[1], _pair(i[rows], j[rows])).sum()
        means.append(total / size)
    blocks = torch.stack(means)
    return Estimate(blocks.mean(), blocks.std() / math.sqrt(len(blocks)))
