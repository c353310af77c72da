"""Covariances of noise in the form in which they are known, checked, and never written out for every sample.

| given                          | means                                        | kept as                |
|--------------------------------|----------------------------------------------|------------------------|
| a number s                     | s I                                          | 1 number               |
| a vector of d variances        | their diagonal matrix                        | d numbers              |
| `Diagonal(n × d)`              | a diagonal of its own for every sample       | n × d                  |
| `LowRank(d × r)`, `(n × d × r)`| F Fᵀ                                         | F                      |
| a matrix d × d, or n × d × d   | itself; symmetric, without negative eigenvalue | a root, of its own shape |

All that is asked of S is a root, S = F Fᵀ: J S Jᵀ is (J F)(J F)ᵀ, ⟨S, M⟩ is the sum of fᵀM f over F's columns f, and
F g with standard normal g is noise with this covariance.

**Inputs and targets together.** With G = F⁺ S_xy (r × k), a pair of noises is (F g, Gᵀg + R h), R Rᵀ = S_yy − GᵀG, for
independent standard normal g and h: its covariances are F Fᵀ, F G and S_yy. It exists, and the three fit together, if
S_xy lies in the range of S_xx (F G = S_xy) and S_yy − GᵀG (k × k, the Schur complement) has no negative eigenvalue.
Where S_xx is a matrix, F⁺ would cost half of its digits: the three are put into one matrix, whose root is (F, G).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from mixreg._support.random import normal


@dataclass(frozen=True)
class Diagonal:
    """A diagonal covariance; variances: d for all samples, or n × d."""

    variances: Tensor


@dataclass(frozen=True)
class LowRank:
    """The covariance F Fᵀ; factor: d × r for all samples, or n × d × r."""

    factor: Tensor


Covariance = float | Tensor | Diagonal | LowRank

_NO_FIT = (
    "the covariances of inputs and outputs do not fit together: xx, xy and yy as one matrix have a negative eigenvalue"
)


class Root(ABC):
    """F with S = F Fᵀ, for each of n samples or (m = 1) for all of them; float64."""

    # r, the number of F's columns, and the total variance of each sample: m.
    rank: int
    variance: Tensor

    @abstractmethod
    def times(self, g: Tensor) -> Tensor:
        """F g: n × d, for g: n × r."""

    @abstractmethod
    def after(self, jacobian: Tensor) -> Tensor:
        """J F: n × c × r, for J: n × c × d."""

    @abstractmethod
    def columns(self, n: int) -> Iterator[Tensor]:
        """The columns of F, n × d each."""

    @abstractmethod
    def inner(self, matrix: Tensor) -> Tensor:
        """⟨S, M⟩: n, for M: n × d × d."""

    @abstractmethod
    def solve(self, right: Tensor, slack: float) -> tuple[Tensor, Tensor, Tensor]:
        """F⁺ B and F F⁺ B, for B: m × d × k, and the condition number of F, m or 1."""

    @abstractmethod
    def matrix(self) -> Tensor:
        """S: m × d × d."""


class DiagonalRoot(Root):
    """F = diag(s); deviations: m × d."""

    def __init__(self, deviations: Tensor) -> None:
        self.deviations, self.rank = deviations, deviations.shape[1]
        self.variance = deviations.square().sum(1)

    def times(self, g: Tensor) -> Tensor:
        return self.deviations * g

    def after(self, jacobian: Tensor) -> Tensor:
        return jacobian * self.deviations.unsqueeze(1)

    def columns(self, n: int) -> Iterator[Tensor]:
        for k in range(self.rank):
            column = self.deviations.new_zeros(n, self.rank)
            column[:, k] = self.deviations[:, k]
            yield column

    def inner(self, matrix: Tensor) -> Tensor:
        return (matrix.diagonal(dim1=1, dim2=2) * self.deviations.square()).sum(1)

    def solve(self, right: Tensor, slack: float) -> tuple[Tensor, Tensor, Tensor]:
        spread = self.deviations.unsqueeze(2)
        solution = torch.where(spread > 0, right / spread, 0.0)
        return solution, spread * solution, right.new_ones(1)

    def matrix(self) -> Tensor:
        return torch.diag_embed(self.deviations.square())


class MatrixRoot(Root):
    """F itself; factor: m × d × r."""

    def __init__(self, factor: Tensor) -> None:
        self.factor, self.rank = factor, factor.shape[2]
        self.variance = factor.square().sum((1, 2))

    def times(self, g: Tensor) -> Tensor:
        if len(self.factor) == 1:
            return g @ self.factor[0].T
        return (self.factor @ g.unsqueeze(2)).squeeze(2)

    def after(self, jacobian: Tensor) -> Tensor:
        return jacobian @ (self.factor[0] if len(self.factor) == 1 else self.factor)

    def columns(self, n: int) -> Iterator[Tensor]:
        for column in self.factor.unbind(2):
            yield column.expand(n, -1)

    def inner(self, matrix: Tensor) -> Tensor:
        return (self.factor * (matrix @ self.factor)).sum((1, 2))

    def solve(self, right: Tensor, slack: float) -> tuple[Tensor, Tensor, Tensor]:
        left, values, turned = torch.linalg.svd(self.factor, full_matrices=False)
        keep = values > slack**0.5 * values.amax(1, keepdim=True)
        inside = torch.where(keep.unsqueeze(2), left.transpose(1, 2) @ right, 0.0)
        scale = torch.where(keep, values, 1.0)
        smallest = torch.where(keep, values, torch.inf).amin(1)
        condition = torch.where(keep.any(1), values.amax(1) / smallest, 1.0)
        return turned.transpose(1, 2) @ (inside / scale.unsqueeze(2)), left @ inside, condition

    def matrix(self) -> Tensor:
        return self.factor @ self.factor.transpose(1, 2)


@dataclass(frozen=True)
class JointNoise:
    """Noise of inputs and of targets that fit together, as roots.

    Attributes:
        x: of S_xx.
        y: of S_yy, or None without noise of the targets.
        xy: S_xy, m × d × k, or None.
        drawn: F, by which inputs' noise is drawn.
        shared: G, m × r × k, or None without S_xy.
        rest: R, by which the rest of the targets' noise is drawn, or None without any.
    """

    x: Root
    y: Root | None
    xy: Tensor | None
    drawn: Root
    shared: Tensor | None
    rest: Root | None

    def draw(self, n: int, k: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """(δ, ε): n × d and n × k, jointly Gaussian."""
        device = self.x.variance.device
        g = normal((n, self.drawn.rank), generator, torch.float64, device)
        epsilon = torch.zeros(n, k, dtype=torch.float64, device=device)
        if self.rest is not None:
            epsilon = self.rest.times(normal((n, self.rest.rank), generator, torch.float64, device))
        if self.shared is not None:
            epsilon = epsilon + (g.unsqueeze(1) @ self.shared).squeeze(1)
        return self.drawn.times(g), epsilon


def joint_noise(
    xx: Covariance,
    xy: Tensor | None,
    yy: Covariance | None,
    sizes: tuple[int, int, int],
    device: torch.device,
) -> JointNoise:
    """The covariances of n samples with d inputs and k targets, `sizes` = (n, d, k), checked each and together."""
    n, d, k = sizes
    slack = 10 * (d + k) * max(_rounding(part) for part in (xx, xy, yy))
    x = root(xx, "xx", n, d, slack, device)
    y = None if yy is None else root(yy, "yy", n, k, slack, device)
    if xy is None:
        return JointNoise(x, y, None, x, None, y)
    cross = _tensor(xy, "xy", device)
    if cross.shape not in ((d, k), (n, d, k)):
        raise ValueError(f"xy must be a matrix, {d} × {k} or {n} × {d} × {k}, got shape {tuple(cross.shape)}")
    cross = cross if cross.ndim == 3 else cross.unsqueeze(0)
    of_targets = torch.zeros(1, k, k, dtype=torch.float64, device=device) if y is None else y.matrix()
    if isinstance(xx, Tensor) and xx.ndim > 1:
        return _of_one_matrix(x, y, cross, of_targets, slack)
    shared, inside, condition = x.solve(cross, slack)
    variance = of_targets.diagonal(dim1=1, dim2=2).sum(1)
    values, vectors = torch.linalg.eigh(of_targets - shared.transpose(1, 2) @ shared)
    # Of an exact fit, rounding of the three leaves this much.
    outside = (cross - inside).abs().amax((1, 2)) > (slack * x.variance * variance).sqrt()
    if bool((values.amin(1) < -slack * condition * variance).any() or outside.any()):
        raise ValueError(_NO_FIT)
    return JointNoise(x, y, cross, x, shared, MatrixRoot(vectors * values.clamp(min=0).sqrt().unsqueeze(1)))


def _of_one_matrix(x: Root, y: Root | None, cross: Tensor, of_targets: Tensor, slack: float) -> JointNoise:
    """The same, by the root of the joint matrix, m × (d + k) × (d + k), in units of its standard deviations."""
    of_inputs = x.matrix()
    m, d = max(len(part) for part in (of_inputs, cross, of_targets)), cross.shape[1]
    upper = torch.cat([of_inputs.expand(m, -1, -1), cross.expand(m, -1, -1)], 2)
    lower = torch.cat([cross.transpose(1, 2).expand(m, -1, -1), of_targets.expand(m, -1, -1)], 2)
    joint = torch.cat([upper, lower], 1)
    spread = joint.diagonal(dim1=1, dim2=2).sqrt().unsqueeze(2)
    spread = torch.where(spread > 0, spread, 1.0)
    values, vectors = torch.linalg.eigh(joint / spread / spread.transpose(1, 2))
    if bool((values[:, 0] < -slack * values[:, -1].clamp(min=0)).any()):
        raise ValueError(_NO_FIT)
    factor = spread * vectors * values.clamp(min=0).sqrt().unsqueeze(1)
    return JointNoise(x, y, cross, MatrixRoot(factor[:, :d]), factor[:, d:].transpose(1, 2), None)


def root(given: Covariance, name: str, n: int, d: int, slack: float, device: torch.device) -> Root:
    """The root of one covariance of d coordinates; `name` is for errors."""
    if isinstance(given, LowRank):
        factor = _tensor(given.factor, f"the factor of {name}", device)
        if factor.ndim not in (2, 3) or factor.shape[-2] != d or (factor.ndim == 3 and len(factor) != n):
            raise ValueError(
                f"the factor of {name} must be {d} × r or {n} × {d} × r for {n} samples of {d} numbers, got shape "
                f"{tuple(factor.shape)}"
            )
        if factor.shape[-1] == 0:
            return root(0.0, name, n, d, slack, device)
        return MatrixRoot(factor if factor.ndim == 3 else factor.unsqueeze(0))
    values = _tensor(given.variances if isinstance(given, Diagonal) else given, name, device)
    is_rows = isinstance(given, Diagonal) and values.shape == (n, d)
    if values.ndim == 0 or values.shape == (d,) or is_rows:
        if bool((values < 0).any()):
            raise ValueError(f"{name} has a negative variance, {float(values.min()):.6g}: it is no covariance")
        return DiagonalRoot(values.sqrt().reshape(-1, d) if values.ndim else values.sqrt().expand(1, d))
    if isinstance(given, Diagonal) or values.shape not in ((d, d), (n, d, d)):
        raise ValueError(
            f"{name} must be a number, {d} variances, a matrix {d} × {d} or {n} × {d} × {d}, a Diagonal or a LowRank "
            f"for {n} samples of {d} numbers, got shape {tuple(values.shape)}"
        )
    return _root_of_matrix(values if values.ndim == 3 else values.unsqueeze(0), name, slack)


def _root_of_matrix(matrix: Tensor, name: str, slack: float) -> Root:
    """Of S: m × d × d, which must be symmetric and without negative eigenvalues."""
    mirrored = matrix.transpose(1, 2)
    skew = (matrix - mirrored).abs().amax((1, 2))
    if bool((skew > slack * matrix.abs().amax((1, 2))).any()):
        raise ValueError(f"{name} is not symmetric: entries differ from their mirror images by {float(skew.max()):.6g}")
    values, vectors = torch.linalg.eigh((matrix + mirrored) / 2)
    smallest, largest = values[:, 0], values[:, -1].clamp(min=0)
    if bool((smallest < -slack * largest).any()):
        raise ValueError(f"{name} has a negative eigenvalue, {float(smallest.min()):.6g}: it is no covariance")
    if len(matrix) == 1 and bool(largest > 0):
        keep = values[0] > slack * largest
        values, vectors = values[:, keep], vectors[:, :, keep]
    return MatrixRoot(vectors * values.clamp(min=0).sqrt().unsqueeze(1))


def _tensor(given: object, name: str, device: torch.device) -> Tensor:
    if isinstance(given, bool) or not isinstance(given, (int, float, Tensor)):
        raise TypeError(f"{name} must be a number, a tensor, a Diagonal or a LowRank, got {type(given).__name__}")
    values = given.detach() if isinstance(given, Tensor) else torch.tensor(given, dtype=torch.float64)
    if isinstance(given, Tensor) and not values.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {values.dtype}")
    values = values.to(device, torch.float64)
    if not bool(torch.isfinite(values).all()):
        raise ValueError(f"{name} is not finite")
    return values


def _rounding(given: object) -> float:
    """The relative rounding that a covariance comes with."""
    values = getattr(given, "variances", getattr(given, "factor", given))
    if isinstance(values, Tensor) and values.is_floating_point():
        return torch.finfo(values.dtype).eps
    return torch.finfo(torch.float64).eps
