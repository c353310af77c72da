"""Norms, distances and standard deviations in elementary steps.

The second tangents of PyTorch's have no gradient: its rules set what belongs to norms of 0 in place. Here

    ‖x‖_p = m (Σ |x_k / m|^p)^(1/p),        m = max |x_k|, held fixed,

which neither overflows nor vanishes in any precision, and whose derivatives do not depend on m. As in PyTorch, the
derivatives at 0 are 0. A function that returns `NotImplemented` leaves the case to PyTorch, whose rule is right there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mixreg._autodiff.normalisation import wide

Dimensions = int | Sequence[int] | None


def vector_norm(
    input: Tensor, ord: float = 2, dim: Dimensions = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """`torch.linalg.vector_norm`."""
    if ord in (0, math.inf, -math.inf) or input.is_complex() or input.numel() == 0:
        return NotImplemented
    dtype = dtype or input.dtype
    if wide(input) is not input:
        # Autocast has rules of its own, so PyTorch is asked.
        dtype = torch.linalg.vector_norm(input.new_zeros(1), ord, dtype=dtype).dtype
    x = wide(input).to(torch.promote_types(wide(input).dtype, dtype))
    over = [dim] if isinstance(dim, int) else list(dim or range(x.ndim))
    largest = x.detach().abs().amax(over, keepdim=True)
    largest = torch.where((largest == 0) | ~largest.isfinite(), 1.0, largest)
    power = _power(x / largest, ord).sum(over, keepdim=True)
    root = _root(power) if ord == 2 else _power(power, 1 / ord)
    norm = (root * largest).to(dtype)
    return norm if keepdim else norm.squeeze(over) if over else norm


def _power(x: Tensor, exponent: float) -> Tensor:
    """|x|^exponent, whose derivatives at 0 are 0."""
    if exponent == 2:
        return x.square()
    is_zero = x == 0
    at_zero = 0.0 if exponent > 0 else math.inf
    return torch.where(is_zero, at_zero, torch.where(is_zero, 1.0, x).abs().pow(exponent))


def _root(x: Tensor) -> Tensor:
    """√x, whose derivatives at 0 are 0."""
    is_zero = x == 0
    return torch.where(is_zero, 0.0, torch.where(is_zero, 1.0, x).sqrt())


def norm(
    input: Tensor,
    p: float | str | None = "fro",
    dim: Dimensions = None,
    keepdim: bool = False,
    out: None = None,
    dtype: Any = None,
) -> Tensor:
    """`torch.norm`."""
    if p == "nuc":
        return NotImplemented
    return vector_norm(input, 2 if p is None or isinstance(p, str) else p, dim, keepdim, dtype=dtype)


def linalg_norm(
    A: Tensor, ord: float | str | None = None, dim: Dimensions = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """`torch.linalg.norm`."""
    is_of_vectors = A.ndim == 1 if dim is None else isinstance(dim, int) or len(dim) == 1
    if ord is None or (is_of_vectors and not isinstance(ord, str)):
        return vector_norm(A, 2 if ord is None else ord, dim, keepdim, dtype=dtype)
    return matrix_norm(A, ord, dim or (-2, -1), keepdim, dtype=dtype)


def matrix_norm(
    A: Tensor, ord: float | str = "fro", dim: Dimensions = (-2, -1), keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """`torch.linalg.matrix_norm`, of Frobenius."""
    return vector_norm(A, 2, dim, keepdim, dtype=dtype) if ord == "fro" else NotImplemented


def normalize(
    input: Tensor, p: float = 2.0, dim: int | tuple[int, ...] = 1, eps: float = 1e-12, out: None = None
) -> Tensor:
    """`torch.nn.functional.normalize`."""
    size = vector_norm(input, p, dim, keepdim=True)
    # PyTorch's way in its own precision: in float16, ε is 0.
    return size if size is NotImplemented else input / size.clamp_min(eps).expand_as(input)


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """`torch.nn.functional.cosine_similarity`."""
    dtype = torch.result_type(x1, x2)
    if dtype.is_complex or x1.numel() == 0 or x2.numel() == 0:
        return NotImplemented
    if wide(x1) is not x1 or wide(x2) is not x2:
        dtype = F.cosine_similarity(x1.new_zeros(1), x2.new_zeros(1), 0).dtype
    pair = torch.broadcast_tensors(wide(x1), wide(x2))
    first, second = (x / vector_norm(x, 2, dim, keepdim=True).clamp_min(eps) for x in pair)
    return (first * second).sum(dim).to(dtype)


def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    """`torch.nn.functional.pairwise_distance`."""
    return vector_norm(x1 - x2 + eps, p, -1, keepdim)


def dist(input: Tensor, other: Tensor, p: float = 2) -> Tensor:
    """`torch.dist`."""
    return vector_norm(input - other, p)


def renorm(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """`torch.renorm`."""
    size = vector_norm(input, p, [d for d in range(input.ndim) if d != dim % input.ndim], keepdim=True)
    if size is NotImplemented:
        return NotImplemented
    # PyTorch's own 1e-7.
    return input * torch.where(size > maxnorm, maxnorm / (size + 1e-7), 1.0)


def std(
    input: Tensor,
    dim: Dimensions | bool = None,
    unbiased: bool = True,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Tensor:
    """`torch.std`."""
    over, unbiased = (None, dim) if isinstance(dim, bool) else (dim, unbiased)
    variance: Any = torch.var
    value = variance(wide(input), over, correction=int(unbiased) if correction is None else correction, keepdim=keepdim)
    return _root(value).to(input.dtype)


def std_mean(input: Tensor, dim: Dimensions | bool = None, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """`torch.std_mean`."""
    value = std(input, dim, *args, **kwargs)
    keepdim = args[1] if len(args) > 1 else kwargs.get("keepdim", False)
    mean: Any = torch.mean
    return value, mean(input, None if isinstance(dim, bool) else dim, keepdim=keepdim)
