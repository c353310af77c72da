"""Products along a dimension by multiplying pairs.

PyTorch's rules divide the product by each factor, or treat factors of 0 apart: where one is 0 exactly, as behind a
ReLU, the gradient of a tangent is not a number and second tangents are wrong. Pairs take log₂ n multiplications.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mixreg._autodiff.normalisation import wide


def prod(input: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """`torch.prod`."""
    dtype = dtype or input.dtype
    if not (dtype.is_floating_point or dtype.is_complex) or input.numel() == 0:
        return NotImplemented
    x = wide(input.to(dtype))
    x, dim = (x.reshape(-1), 0) if dim is None or x.ndim == 0 else (x, dim)
    while x.shape[dim] > 1:
        half = x.shape[dim] // 2
        first, second, rest = x.split([half, half, x.shape[dim] - 2 * half], dim)
        x = torch.cat([first * second, rest], dim)
    return (x if keepdim and input.ndim else x.squeeze(dim)).to(dtype)


def cumprod(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """`torch.cumprod`."""
    dtype = dtype or input.dtype
    if not (dtype.is_floating_point or dtype.is_complex) or input.ndim == 0:
        return NotImplemented
    x, step = wide(input.to(dtype)), 1
    length = x.shape[dim]
    # After each round an element is the product of the 2, 4, 8, … that end with it.
    while step < length:
        later = x.narrow(dim, step, length - step) * x.narrow(dim, 0, length - step)
        x, step = torch.cat([x.narrow(dim, 0, step), later], dim), 2 * step
    return x.to(dtype)
