"""The Mixup risk by Monte Carlo, for data whose pairs are too many, or that does not fit in memory.

**In memory**: blocks of samples whose i and whose j are each drawn without replacement (every sample is used equally
often; by weight and independently, where samples have weights) and whose λ are stratified (one in each of m equally
likely intervals). Each triple (i, j, λ) by itself still has the right distribution, so the mean is unbiased;
independent blocks give its standard error.

**From a loader**: blocks of samples i and partners j, each drawn from all of the data in a pass over it
(`mixreg.risk.partners`), one pass for each block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from mixreg._autodiff.problem import Problem
from mixreg._support.processes import rank, world_size
from mixreg._support.random import permutation, uniform
from mixreg.risk.estimate import Estimate, losses_of, pair
from mixreg.risk.partners import drawn_by_weight, pool_of
from mixreg.risk.samples import Samples

# Blocks of an estimate: enough for a standard error that is itself right to about 15 %.
BLOCKS = 20


def monte_carlo(
    samples: Samples, alpha: float, count: int, chunk_size: int | None, generator: torch.Generator | None
) -> Estimate:
    """The mean over about `count` mixed pairs and its standard error; of all processes."""
    if isinstance(count, bool) or not isinstance(count, int) or count < BLOCKS:
        raise ValueError(f"samples must be an integer of at least {BLOCKS}, got {count!r}")
    world = world_size() if samples.across_processes else 1
    blocks = _streamed if samples.is_stream or world > 1 else _in_memory
    means = [_block_mean(*block, alpha, chunk_size, generator) for block in blocks(samples, count, generator)]
    found = torch.stack(means)
    if world > 1:
        # Every process has done its own part of the pairs of each block.
        found = samples.total(found) / world
    return Estimate(found.mean(), found.std() / math.sqrt(len(found)))


Block = tuple[Problem, Tensor, Tensor, Tensor, Tensor]


def _in_memory(samples: Samples, count: int, generator: torch.Generator | None) -> Iterator[Block]:
    """Blocks of i and j, as the samples and their indices."""
    problem, weight = samples.whole
    n = problem.count
    size = min(n, count // BLOCKS)
    is_even = bool((weight == weight[0]).all())
    for _ in range(math.ceil(count / size)):
        if is_even:
            i, j = (permutation(n, generator)[:size].to(weight.device) for _ in range(2))
        else:
            i, j = (drawn_by_weight(weight, size, generator) for _ in range(2))
        yield problem, problem.x, problem.y, i, j


def _streamed(samples: Samples, count: int, generator: torch.Generator | None) -> Iterator[Block]:
    """The same of pools that are drawn for each block; every process takes its part of them."""
    drawn = 0
    while drawn < count:
        problem, x, y = pool_of(samples, generator)
        # Half of the places are samples, half of them partners; at least BLOCKS blocks.
        half = max(1, min(len(x) // 2, math.ceil(count / BLOCKS)))
        mine = torch.arange(half, device=x.device)
        if samples.across_processes:
            mine = mine[rank() :: world_size()] if half >= world_size() else mine
        yield problem, x, y, mine, mine + half
        drawn += half


def _block_mean(
    problem: Problem,
    x: Tensor,
    y: Tensor,
    i: Tensor,
    j: Tensor,
    alpha: float,
    chunk_size: int | None,
    generator: torch.Generator | None,
) -> Tensor:
    size = len(i)
    lam = _stratified(alpha, size, generator).to(x.device)
    total = torch.zeros((), dtype=torch.float64, device=x.device)
    chunk = problem.chunk_size(chunk_size)
    for s in range(0, size, chunk):
        rows = slice(s, s + chunk)
        mixed = [
            torch.lerp(t[j[rows]], t[i[rows]], lam[rows].to(t.dtype).reshape(-1, *[1] * (t.ndim - 1))) for t in (x, y)
        ]
        total += losses_of(problem, mixed[0], mixed[1], pair(i[rows], j[rows])).sum()
    return total / size


def _stratified(alpha: float, size: int, generator: torch.Generator | None) -> Tensor:
    """λ, one in each of `size` equally likely intervals, in random order."""
    from scipy.special import betaincinv

    strata = ((permutation(size, generator) + uniform((size,), generator)) / size).cpu()
    if alpha == 0:
        return (strata < 0.5).double()
    if math.isinf(alpha):
        return torch.full((size,), 0.5, dtype=torch.float64)
    return torch.from_numpy(betaincinv(alpha, alpha, strata.double().numpy()))
