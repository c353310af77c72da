"""The empirical, Mixup and perturbed risks (eq. erm, mixup, mixupERM).

**Exactly.** All pairs times the nodes of a Gauss rule, which for smooth networks converges exponentially in the number
of nodes. The pair (i, j) at λ is the pair (j, i) at 1 − λ and the rule for λ is symmetric, so pairs i < j suffice; a
sample mixed with itself is itself. That leaves n (n − 1) / 2 × nodes + n network evaluations, which several processes
share. Larger data: `mixreg.risk.monte_carlo`. Samples with weights w_i make pairs with weights w_i w_j.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, overload

import torch
from torch import Tensor

from mixreg._autodiff.network import Network, evaluating
from mixreg._support.processes import rank, world_size
from mixreg.losses import SampleLoss
from mixreg.risk.estimate import Estimate, losses_of, pair, sample
from mixreg.risk.monte_carlo import monte_carlo
from mixreg.risk.samples import Samples, Weighted
from mixreg.theory.perturbation import Perturbation
from mixreg.theory.quadrature import folded_nodes, lambda_nodes, theta_nodes
from mixreg.theory.theta import scalar_forms


def empirical(
    net: Network,
    x: Any,
    y: Tensor | None = None,
    loss: str | SampleLoss = "cross_entropy",
    *,
    weights: Tensor | None = None,
    chunk_size: int | None = None,
    across_processes: bool = False,
) -> Tensor:
    """mean ℓ(y_i, f(x_i)) (eq. erm); x, y, weights and across_processes as for `risk.quadratic`."""
    samples = Samples(net, x, y, loss, weights, across_processes)
    sums = torch.zeros(2, dtype=torch.float64)
    with evaluating(net), torch.no_grad():
        for problem, weight in samples:
            part = _sum_unmixed(Weighted(problem, weight), problem.chunk_size(chunk_size))
            sums += torch.stack([part, weight.sum()]).cpu()
    total, weight = samples.total(sums)
    return (total / weight).to(problem.x.device)


@overload
def mixup(
    net: Network,
    x: Any,
    y: Tensor | None = None,
    alpha: float = 1.0,
    loss: str | SampleLoss = "cross_entropy",
    nodes: int = 32,
    samples: None = None,
    *,
    weights: Tensor | None = None,
    chunk_size: int | None = None,
    across_processes: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor: ...


@overload
def mixup(
    net: Network,
    x: Any,
    y: Tensor | None = None,
    alpha: float = 1.0,
    loss: str | SampleLoss = "cross_entropy",
    nodes: int = 32,
    *,
    samples: int,
    weights: Tensor | None = None,
    chunk_size: int | None = None,
    across_processes: bool = False,
    generator: torch.Generator | None = None,
) -> Estimate: ...


def mixup(
    net: Network,
    x: Any,
    y: Tensor | None = None,
    alpha: float = 1.0,
    loss: str | SampleLoss = "cross_entropy",
    nodes: int = 32,
    samples: int | None = None,
    *,
    weights: Tensor | None = None,
    chunk_size: int | None = None,
    across_processes: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor | Estimate:
    """E ℓ(λ y_i + (1−λ) y_j, f(λ x_i + (1−λ) x_j)) over all pairs and λ ~ Beta(α, α) (eq. mixup).

    Args:
        net: maps n × … inputs to n × … outputs.
        x: n × …, floating point, or a tuple or dict of such; or, without y, a loader of (x, y) or (x, y, weights)
            batches that can be gone through again. For all pairs it is read into memory.
        y: n integer labels, or n × … targets.
        alpha: in [0, ∞].
        loss: a name or a callable on one sample.
        nodes: of the Gauss rule; the result is exact for smooth networks.
        samples: if given, a Monte Carlo `Estimate` from about this many mixed pairs instead.
        weights: n numbers of at least 0, by which samples count; of tensors.
        chunk_size: network evaluations at once, which bounds the memory.
        across_processes: whether every process calls this with its own share of the data; all get the same result.
        generator: random number generator for Monte Carlo.
    """
    data = Samples(net, x, y, loss, weights, across_processes)
    alpha = scalar_forms(alpha, "a risk").alpha
    with evaluating(net), torch.no_grad():
        if samples is not None:
            return monte_carlo(data, alpha, samples, chunk_size, generator)
        return _all_pairs(data, alpha, nodes, chunk_size)


def perturbed(
    net: Network,
    x: Any,
    y: Tensor | None = None,
    alpha: float = 1.0,
    loss: str | SampleLoss = "cross_entropy",
    nodes: int = 32,
    *,
    folded: bool = False,
    weights: Tensor | None = None,
    chunk_size: int | None = None,
    across_processes: bool = False,
) -> Tensor:
    """mean_i E ℓ(ỹ_i + ε_i, f(x̃_i + δ_i)) over θ and j (eq. mixupERM): the right-hand side of Theorem 1.

    Arguments as for `mixup`. Computed from shrunk data and noise, over all n² ordered pairs and a Gauss rule for
    θ on [½, 1], so that its equality with `mixup` is Theorem 1 and not an identity of code. Gauss rules differ
    by about 1e-6 for networks with kinks; `folded` takes the rule of `mixup`, folded onto [½, 1], with which the two
    sides agree to rounding for any network.
    """
    data = Samples(net, x, y, loss, weights, across_processes)
    problem, weight = data.everything
    n, place = problem.count, problem.x.device
    perturbation = Perturbation(problem.x, problem.y, alpha, None, weight)
    rule = folded_nodes if folded else theta_nodes
    theta, node_weights = (t.to(place) for t in rule(perturbation.alpha, nodes))
    x_modified, y_modified = perturbation.x_modified, perturbation.y_modified
    total = torch.zeros((), dtype=torch.float64, device=place)
    chunks = torch.arange(n * n, device=place).split(max(1, problem.chunk_size(chunk_size) // len(theta)))
    with evaluating(net), torch.no_grad():
        for pairs in _mine(chunks, data):
            i, j = pairs // n, pairs % n
            for node, node_weight in zip(theta.tolist(), node_weights.tolist(), strict=True):
                parts = []
                for values, mean, modified in (
                    (problem.x, perturbation.x_mean, x_modified),
                    (problem.y, perturbation.y_mean, y_modified),
                ):
                    mean = mean.to(values.dtype)
                    shift = node - perturbation.theta_mean
                    noise = shift * values[i] + (1 - node) * values[j] - (1 - perturbation.theta_mean) * mean
                    parts.append(modified[i] + noise)
                found = losses_of(problem, parts[0], parts[1], pair(i, j))
                total += node_weight * (weight[i] * weight[j] * found).sum()
    return data.total(total) / weight.sum().square()


def _mine(chunks: Any, data: Samples) -> Any:
    """This process's share of chunks that all of them have."""
    if not data.across_processes or world_size() == 1:
        return chunks
    return (chunk for index, chunk in enumerate(chunks) if index % world_size() == rank())


def _sum_unmixed(data: Weighted, chunk: int, squared: bool = False) -> Tensor:
    """Σ w_i ℓ(y_i, f(x_i)), or with squares of the weights."""
    problem, weight = data
    weight = weight.square() if squared else weight
    total = torch.zeros((), dtype=torch.float64, device=problem.x.device)
    for s in range(0, problem.count, chunk):
        rows = slice(s, s + chunk)
        # A copy, should the network write to its input.
        total += weight[rows] @ losses_of(problem, problem.x[rows].clone(), problem.y[rows], sample(s))
    return total


def _upper_pairs(n: int, size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """All pairs i < j, `size` at a time and without a list of all of them."""
    starts = torch.tensor([i * (2 * n - i - 1) // 2 for i in range(n)], device=device)
    for first in range(0, n * (n - 1) // 2, size):
        index = torch.arange(first, min(first + size, n * (n - 1) // 2), device=device)
        i = torch.searchsorted(starts, index, right=True) - 1
        yield i, index - starts[i] + i + 1


def _all_pairs(data: Samples, alpha: float, nodes: int, chunk_size: int | None) -> Tensor:
    problem, weight = data.everything
    x, y, n, chunk = problem.x, problem.y, problem.count, problem.chunk_size(chunk_size)
    lam, node_weights = (t.to(x.device) for t in lambda_nodes(alpha, nodes))
    k = len(lam)
    total = torch.zeros((), dtype=torch.float64, device=x.device)
    size = max(1, chunk // k)
    # Memory to mix into, used again for every chunk: fresh pages would cost as much as the mixing.
    buffers = [torch.empty((k, size, *t.shape[1:]), dtype=t.dtype, device=t.device) for t in (x, y)]
    for i, j in _mine(_upper_pairs(n, size, x.device), data):
        mixed = []
        for values, buffer in zip((x, y), buffers, strict=True):
            out = buffer if len(i) == size else buffer.new_empty((k, len(i), *values.shape[1:]))
            share = lam.to(values.dtype).reshape(k, *[1] * values.ndim)
            mixed.append(torch.lerp(values[j].unsqueeze(0), values[i].unsqueeze(0), share, out=out).flatten(0, 1))
        found = losses_of(problem, mixed[0], mixed[1], pair(i, j)).reshape(k, -1)
        total += 2 * node_weights @ (found @ (weight[i] * weight[j]))
    own = _sum_unmixed(Weighted(problem, weight), chunk, squared=True)
    return (data.total(total) + own) / weight.sum().square()
