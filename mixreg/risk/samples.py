"""What a network is measured on: tensors, or a loader that can be gone through again.

**Trees.** Inputs of several tensors (tuples, dicts) are seen as one, all coordinates side by side, and the network as a
function of that: derivatives and mixtures are those of all tensors together.

**Weights.** With weights w_i the data is a distribution that holds sample i with probability w_i / Σ w: means, partners
and risks are those of that distribution. Whole weights are the same as repeated samples.

**Processes.** With `across_processes` every process has its own share of the data; sums are joined, and all processes
get the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mixreg._autodiff.network import Network
from mixreg._autodiff.problem import Problem, check_problem
from mixreg._support.processes import gather_objects, sum_over_processes
from mixreg._support.structure import leaves, rebuild, require_plain, validate_batch
from mixreg.losses import SampleLoss
from mixreg.theory.moments import DataMoments

# A covariance of so many coordinates is 2 GB.
LARGEST_COVARIANCE = 16_384


class Weighted(NamedTuple):
    """Some samples: a problem (x: m × …, y: m × k as values, the loss), and their weights, m, float64."""

    problem: Problem
    weight: Tensor


class Samples:
    """See the module's head.

    Args:
        net: maps n × … inputs (or trees of them) to n × … outputs.
        x: n × …, floating point, or a tree of such; or, if `y` is None, a loader of (x, y) or (x, y, weights).
        y: n integer labels, or n × … targets.
        loss: a name or a callable on one sample.
        weights: n numbers of at least 0, of tensors.
        across_processes: whether every process calls this with its own share of the data.
    """

    def __init__(
        self,
        net: Network,
        x: Any,
        y: Tensor | None,
        loss: str | SampleLoss,
        weights: Tensor | None = None,
        across_processes: bool = False,
    ) -> None:
        self.net, self.loss, self.across_processes = net, loss, across_processes
        self.is_stream = y is None
        if self.is_stream:
            if isinstance(x, (Tensor, dict)) or not isinstance(x, Iterable):
                raise TypeError(f"without y, x must be a loader of (x, y) batches, got {type(x).__name__}")
            if isinstance(x, Iterator):
                raise TypeError("the loader must be one that can be gone through again, got an iterator")
            if weights is not None:
                raise TypeError("weights of a loader come with its batches: (x, y, weights)")
        self._source = x
        self._whole = None if y is None else self._checked(x, y, weights)

    @property
    def whole(self) -> Weighted:
        """All samples of this process in memory: those of a loader are read."""
        if self._whole is None:
            parts = list(self)
            x, y = (torch.cat([getattr(part.problem, name) for part in parts]) for name in ("x", "y"))
            self._whole = Weighted(replace(parts[0].problem, x=x, y=y), torch.cat([part.weight for part in parts]))
        return self._whole

    @property
    def everything(self) -> Weighted:
        """All samples of all processes in memory."""
        problem, weight = self.whole
        if not self.across_processes:
            return self.whole
        joined = replace(problem, x=self._gathered(problem.x), y=self._gathered(problem.y))
        return Weighted(joined, self._gathered(weight))

    def __iter__(self) -> Iterator[Weighted]:
        if self._whole is not None:
            yield self._whole
            return
        count = 0
        for batch in self._source:
            if not isinstance(batch, (tuple, list)) or len(batch) not in (2, 3):
                raise TypeError(f"the loader must give (x, y) or (x, y, weights), got {type(batch).__name__}")
            found = self._checked(*batch)
            count += found.problem.count
            yield found
        if count == 0:
            raise ValueError("the loader is empty: there is no sample to measure on")

    def _checked(self, x: Any, y: Tensor, weights: Tensor | None = None) -> Weighted:
        net, device = self.net, _device_of(self.net)
        if not isinstance(x, (Tensor, tuple, dict)):
            raise TypeError(f"x must be a tensor, or a tuple or dict of tensors, got {type(x).__name__}")
        if not isinstance(x, Tensor):
            net, x = as_one_tensor(net, x)
        if device is not None and isinstance(y, Tensor):
            for name, part in (("x", x), ("y", y)):
                require_plain(part, name)
            x, y = x.to(device), y.to(device)
        problem = check_problem(net, x, y, self.loss)
        if weights is None:
            return Weighted(problem, torch.ones(problem.count, dtype=torch.float64, device=problem.x.device))
        return Weighted(problem, require_weights(weights, problem.count).to(problem.x.device))

    def moments(self, covariance: bool = False) -> DataMoments:
        """x̄, ȳ and, if asked for, covariances, in one pass; of all processes."""
        found = DataMoments(covariance=covariance)
        for problem, weight in self:
            found.update(problem.x, problem.y, None if bool((weight == 1).all()) else weight)
        return found.all_reduce() if self.across_processes else found

    def total(self, value: Tensor) -> Tensor:
        """A sum over samples, joined over processes."""
        return sum_over_processes(value) if self.across_processes else value

    def _gathered(self, value: Tensor) -> Tensor:
        """The rows of all processes, in their order."""
        return torch.cat([part.to(value.device) for part in gather_objects(value.cpu())])


def covariances_of(samples: Samples, moments: DataMoments | None) -> DataMoments | None:
    """Moments with covariances for exact terms: those given, None where samples in memory have their own, or a pass."""
    if moments is not None or not (samples.is_stream or samples.across_processes):
        return moments
    coordinates = next(iter(samples)).problem.x[0].numel()
    if coordinates > LARGEST_COVARIANCE:
        raise ValueError(
            f"exact terms of a loader need the covariance of {coordinates:,} coordinates, which fits for at most "
            f"{LARGEST_COVARIANCE:,}: estimate them with tangents=8, or give some of the samples as tensors"
        )
    return samples.moments(covariance=True)


def _device_of(net: Network) -> torch.device | None:
    parameter = next(net.parameters(), None) if isinstance(net, nn.Module) else None
    return None if parameter is None or parameter.is_meta else parameter.device


def require_weights(weights: Tensor, count: int) -> Tensor:
    """Weights as float64, if they are `count` numbers of at least 0 that are not all 0."""
    if not isinstance(weights, Tensor) or weights.shape != (count,) or weights.is_complex():
        given = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
        raise ValueError(f"weights must be {count} numbers, one for each sample, got {given}")
    values = weights.detach().double()
    if not bool((values >= 0).all() & (values.sum() > 0) & torch.isfinite(values.sum())):
        raise ValueError("weights must be finite, at least 0, and not all 0")
    return values


def as_one_tensor(net: Network, x: Any) -> tuple[Network, Tensor]:
    """The network as a function of all coordinates side by side, and the tree x like that: n × d."""
    validate_batch(x)
    parts = [part for _, part in leaves(x)]
    if len({(part.dtype, part.device) for part in parts}) > 1:
        kinds = ", ".join(sorted({str(part.dtype) for part in parts}))
        raise TypeError(f"the tensors of x must have one dtype and one device, got {kinds}")
    shapes = rebuild(x, lambda part: torch.empty(part.shape[1:], device="meta"))
    return _of_tree(net, shapes), torch.cat([part.reshape(len(part), -1) for part in parts], 1)


def _of_tree(net: Network, shapes: Any) -> Callable[[Tensor], Tensor]:
    sizes = [part.numel() for _, part in leaves(shapes)]

    def asked(flat: Tensor) -> Tensor:
        columns = iter(flat.split(sizes, 1))
        return net(rebuild(shapes, lambda like: next(columns).reshape(-1, *like.shape)))

    return asked
