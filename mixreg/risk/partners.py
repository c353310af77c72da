"""Partners j of a sample, or noise like theirs: pairs (δ, ε) with the covariances of the data, for any number of draws.

    from samples in memory      δ = x_j − x̄, ε = y_j − ȳ, with j drawn by weight from all of them
    from a loader               the same, with j from a pool: as many samples as fit, each drawn by weight from all data
    from covariances            δ = L v, ε = V v + R w with random signs v, w, where Σxx = L Lᵀ, Σxy = L Vᵀ and
                                Σyy = V Vᵀ + R Rᵀ: for samples that are a part of the data whose moments are known

In each case E δδᵀ = Σxx, E δεᵀ = Σxy, E εεᵀ = Σyy. A pool is drawn in one pass, a place at a time: a place that holds
one of the samples seen so far, each with probability w_i / Σ w, takes the next batch's instead with probability
(weight of the batch) / (weight of all so far). Places are independent of each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mixreg._autodiff.problem import Problem
from mixreg._support.processes import gather_objects
from mixreg._support.random import integers, signs, uniform
from mixreg.risk.samples import Samples
from mixreg.theory.moments import DataMoments
from mixreg.theory.perturbation import Perturbation

# Places of a pool, and the bytes that they may take.
PLACES, POOL_BYTES = 4096, 1 << 26


class Partners(Protocol):
    """Where δ and ε come from."""

    @property
    def pool(self) -> int:
        """Places of a pool, which stand for all data; 0 where draws are from the data itself."""

    def draw(self, count: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor, Tensor]:
        """δ: count × …, ε: count × k, and the place in the pool that each comes from (count)."""


@dataclass(frozen=True)
class SamplePartners:
    """Samples x: M × … and y: M × k with weights, around the means of the data; `pool` is M, or 0 if they are all."""

    x: Tensor
    y: Tensor
    weight: Tensor
    x_mean: Tensor
    y_mean: Tensor
    pool: int

    def draw(self, count: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor, Tensor]:
        j = drawn_by_weight(self.weight, count, generator)
        return self.x[j] - self.x_mean.to(self.x.dtype), self.y[j] - self.y_mean.to(self.y.dtype).reshape(-1), j


class NoiseLikeData:
    """Noise with the covariances of `perturbation`, for inputs and targets of these kinds."""

    pool = 0

    def __init__(self, perturbation: Perturbation, x: Tensor, y: Tensor) -> None:
        white = perturbation.whitening
        self.factor, self.slopes = white.factor.to(x.dtype), white.slopes.to(y.dtype)
        rest = perturbation.yy - white.slopes @ white.slopes.T
        values, vectors = torch.linalg.eigh((rest + rest.T) / 2)
        self.root = (vectors * values.clamp(min=0).sqrt()).to(y.dtype)
        self.shape = x.shape[1:]

    def draw(self, count: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor, Tensor]:
        v, w = (
            signs(count * part.shape[1], generator, part.device).reshape(count, -1).to(part.dtype)
            for part in (self.factor, self.root)
        )
        delta, epsilon = v @ self.factor.T, v.to(self.slopes.dtype) @ self.slopes.T + w @ self.root.T
        return delta.reshape(count, *self.shape), epsilon, torch.zeros(count, dtype=torch.long, device=v.device)


class LowRankNoise:
    """The same from moments with a low rank: (δ, ε) = F v + √r ∘ w."""

    pool = 0

    def __init__(self, moments: DataMoments, x: Tensor, y: Tensor) -> None:
        factor, rest = moments.low_rank()
        self.factor, self.rest = (part.to(x.device, x.dtype) for part in (factor, rest.sqrt()))
        self.shape, self.coordinates, self.dtype = x.shape[1:], x[0].numel(), y.dtype

    def draw(self, count: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor, Tensor]:
        size, rank = self.factor.shape
        v, w = (
            signs(count * width, generator, self.rest.device).reshape(count, width).to(self.rest.dtype)
            for width in (rank, size)
        )
        both = v @ self.factor.T + w * self.rest
        delta, epsilon = both[:, : self.coordinates], both[:, self.coordinates :].to(self.dtype)
        return delta.reshape(count, *self.shape), epsilon, torch.zeros(count, dtype=torch.long, device=both.device)


def drawn_by_weight(weight: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """Indices drawn with these weights, count."""
    if bool((weight == weight[0]).all()):
        return integers(len(weight), (count,), generator, weight.device)
    ends = weight.cumsum(0)
    place = uniform((count,), generator, torch.float64, weight.device) * ends[-1]
    return torch.searchsorted(ends, place, right=True).clamp(max=len(weight) - 1)


def pooled(
    samples: Samples, moments: DataMoments | None, generator: torch.Generator | None
) -> tuple[DataMoments, SamplePartners]:
    """The means of a stream (unless they are known) and a pool of partners, in one pass; the same in all processes."""
    means = DataMoments()

    def take(problem: Problem, weight: Tensor) -> None:
        if moments is None:
            means.update(problem.x, problem.y, weight)

    _, x, y = pool_of(samples, generator, take)
    known = (means.all_reduce() if samples.across_processes else means) if moments is None else moments
    place = torch.ones(len(x), dtype=torch.float64, device=x.device)
    return known, SamplePartners(x, y, place, known.x_mean.to(x.device), known.y_mean.to(x.device), len(x))


def pool_of(
    samples: Samples,
    generator: torch.Generator | None,
    take: Callable[[Problem, Tensor], None] = lambda problem, weight: None,
) -> tuple[Problem, Tensor, Tensor]:
    """A pool of a stream, x: M × … and y: M × k, the same in all processes, and one of its batches; `take` sees all."""
    seen, x, y = 0.0, torch.empty(0), torch.empty(0)
    for problem, weight in samples:
        take(problem, weight)
        if not len(x):
            size = max(1, problem.x[0].numel() * problem.x.element_size())
            places = max(16, min(PLACES, POOL_BYTES // size))
            x, y = (part[:1].expand(places, *part.shape[1:]).clone() for part in (problem.x, problem.y))
        total = float(weight.sum())
        if total == 0:
            continue
        seen += total
        is_new = uniform((places,), generator, torch.float64, weight.device) * seen < total
        j = drawn_by_weight(weight, places, generator)[is_new]
        x[is_new], y[is_new] = problem.x[j], problem.y[j]
    if samples.across_processes:
        x, y = _shared(seen, x, y, generator)
    return problem, x, y


def _shared(seen: float, x: Tensor, y: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """One pool of those of all processes: each place is that of a process drawn by the weight of its data."""
    everyone = gather_objects((seen, x.cpu(), y.cpu()))
    weight = torch.tensor([found[0] for found in everyone], dtype=torch.float64)
    places = min(len(found[1]) for found in everyone)
    # As the first process draws it.
    owner = gather_objects(drawn_by_weight(weight, places, generator).cpu())[0]
    index = torch.arange(places)
    x_all, y_all = (torch.stack([found[part][:places] for found in everyone]) for part in (1, 2))
    return x_all[owner, index].to(x.device), y_all[owner, index].to(y.device)
