"""Centred sums of products Σ w (z − z̄)(z − z̄)ᵀ of D coordinates, as a matrix, or with low rank plus a diagonal.

Groups of samples are joined by Chan's rule (`mixreg.theory.moments`): S + T + c · step stepᵀ.

**Low rank.** For many coordinates FᵀF + diag(r) is kept in place of S, with F: k × D of at most `rank` rows. Rows of F,
of new samples and of joined groups are stacked and cut to the directions of largest variance: with G = R Rᵀ the Gram
matrix of stacked rows R and U its leading eigenvectors, F = UᵀR. The sums of squares of all coordinates are kept
exactly, and r is what F leaves of them: so the diagonal is exact, and all is, if it has no more than this rank.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from mixreg._support.processes import gather_objects, sum_over_processes
from mixreg.losses.targets import is_class_index, require_labels_in_range, to_values


class Scatter(ABC):
    """A centred sum of products; float64."""

    @abstractmethod
    def joined(self, other: Scatter, step: Tensor, weight: float) -> Scatter:
        """With that of another group, whose mean is `step` (D) away; weight: nm / (n + m)."""

    @abstractmethod
    def of_processes(self, step: Tensor, count: float) -> Scatter:
        """Of all processes, each with the `step` from the common mean to its own and its `count`."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """For a file."""

    @abstractmethod
    def trace(self) -> Tensor:
        """The sum of all squares."""


class DenseScatter(Scatter):
    """The matrix itself: D × D."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix

    def joined(self, other: Scatter, step: Tensor, weight: float) -> Scatter:
        assert isinstance(other, DenseScatter)
        matrix = self.matrix + other.matrix.to(self.matrix.device)
        return DenseScatter(matrix.addr_(step, step, alpha=weight))

    def of_processes(self, step: Tensor, count: float) -> Scatter:
        return DenseScatter(sum_over_processes(self.matrix + count * torch.outer(step, step)))

    def tensors(self) -> dict[str, Tensor]:
        return {"scatter": self.matrix}

    def trace(self) -> Tensor:
        return self.matrix.diagonal().sum()


class LowRankScatter(Scatter):
    """FᵀF plus a diagonal.

    Args:
        factor: F, k × D.
        squares: D, the diagonal of the whole.
        rank: the most rows that are kept.
    """

    def __init__(self, factor: Tensor, squares: Tensor, rank: int) -> None:
        self.factor, self.squares, self.rank = _cut(factor, rank), squares, rank

    def joined(self, other: Scatter, step: Tensor, weight: float) -> Scatter:
        assert isinstance(other, LowRankScatter)
        device = self.squares.device
        rows = torch.cat([self.factor, other.factor.to(device), weight**0.5 * step.unsqueeze(0)])
        return LowRankScatter(rows, self.squares + other.squares.to(device) + weight * step.square(), self.rank)

    def of_processes(self, step: Tensor, count: float) -> Scatter:
        own = torch.cat([self.factor, count**0.5 * step.unsqueeze(0)])
        rows = torch.cat([part.to(step.device) for part in gather_objects(own.cpu())])
        return LowRankScatter(rows, sum_over_processes(self.squares + count * step.square()), self.rank)

    def tensors(self) -> dict[str, Tensor]:
        return {"factor": self.factor, "squares": self.squares}

    def trace(self) -> Tensor:
        return self.squares.sum()

    def rest(self) -> Tensor:
        """The diagonal beside FᵀF: D."""
        return (self.squares - self.factor.square().sum(0)).clamp(min=0)


def _cut(rows: Tensor, rank: int) -> Tensor:
    """The `rank` directions of largest variance of k × D rows."""
    if len(rows) <= rank:
        return rows
    _, vectors = torch.linalg.eigh(rows @ rows.T)
    return vectors[:, -rank:].T @ rows


def no_scatter(size: int, rank: int | None, device: torch.device) -> Scatter:
    """Of no samples."""
    if rank is None:
        return DenseScatter(torch.zeros(size, size, dtype=torch.float64, device=device))
    zeros = torch.zeros(size, dtype=torch.float64, device=device)
    return LowRankScatter(zeros.new_zeros(0, size), zeros, rank)


def scatter_from(tensors: dict[str, Tensor], size: int, rank: int | None) -> Scatter:
    """What `tensors` gave, of D = `size` coordinates."""
    if rank is None:
        return DenseScatter(checked_tensor(tensors, "scatter", (size, size)))
    rows = min(rank, len(tensors["factor"]))
    return LowRankScatter(
        checked_tensor(tensors, "factor", (rows, size)), checked_tensor(tensors, "squares", (size,)), rank
    )


def checked_tensor(tensors: Mapping[str, Tensor], name: str, shape: tuple[int, ...]) -> Tensor:
    """A copy of one of them, if it holds finite float64 numbers of this shape."""
    given = tensors[name]
    if tuple(given.shape) != shape or given.dtype != torch.float64 or not bool(torch.isfinite(given).all()):
        raise ValueError(f"its {name} must be {shape} finite float64 numbers")
    return given.clone()


class CentredSums(NamedTuple):
    """total: Σ w, samples or the sum of their weights; mean: D; scatter of D coordinates, or None."""

    total: float
    mean: Tensor
    scatter: Scatter | None


def centred_sums(z: Tensor, weights: Tensor | None, covariance: bool, rank: int | None = None) -> CentredSums:
    """Of the rows of z: n × D, float64, which count by `weights` (n, at least 0) or alike."""
    n = len(z)
    weight = None if weights is None else weights.detach().to(z.device, torch.float64)
    if weight is not None and (weight.shape != (n,) or not bool((weight >= 0).all())):
        raise ValueError(f"weights must be {n} numbers of at least 0, got {tuple(weight.shape)}")
    total = n if weight is None else float(weight.sum())
    mean = z.mean(0) if weight is None else weight @ z / max(total, 1e-300)
    centred = z - mean
    if not covariance:
        return CentredSums(total, mean, None)
    if rank is not None:
        rows = centred if weight is None else weight.sqrt().unsqueeze(1) * centred
        return CentredSums(total, mean, LowRankScatter(rows, rows.square().sum(0), rank))
    weighted = centred if weight is None else weight.unsqueeze(1) * centred
    return CentredSums(total, mean, DenseScatter(centred.T @ weighted))


def mean_sample(batch: Tensor) -> Tensor:
    """The mean over the first dimension in float64."""
    if batch.ndim == 4 and batch.is_contiguous(memory_format=torch.channels_last):
        # As it lies in memory: in the order of its dimensions it takes three times as long.
        return batch.permute(0, 2, 3, 1).mean(0, dtype=torch.float64).permute(2, 0, 1)
    return batch.mean(0, dtype=torch.float64)


def mean_target(y: Tensor, num_classes: int | None) -> Tensor:
    """The mean target, without the n × c one-hot matrix where there is a shorter way; y: n × …."""
    if is_class_index(y) and y.ndim == 1 and num_classes is not None:
        require_labels_in_range(y, num_classes)
        return torch.bincount(y.long(), minlength=num_classes).double() / y.shape[0]
    return to_values(y, num_classes).mean(0, dtype=torch.float64)
