"""Modified data (eq. modif), and the way back (eq. testmodif).

By Theorem 1, Mixup fits a network on data shrunk towards its mean,

    x̃ = x̄ + θ̄ (x − x̄),        ỹ = ȳ + θ̄ (y − ȳ).

`shrink` makes it and `stretch` is its inverse. A sample may keep the same share everywhere (a number, θ̄) or a share of
its own in every coordinate (a map, as with CutMix).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def shrink(x: Tensor, mean: Tensor, share: float | Tensor) -> Tensor:
    """x̄ + S ∘ (x − x̄), in one pass.

    Args:
        x: n × ….
        mean: x̄, of one sample's shape or one that broadcasts to it.
        share: S, a number, or a map that broadcasts to one sample.
    """
    mean = _in_format(fitted_mean(mean, x, "x_mean"), x)
    if isinstance(share, Tensor):
        return torch.lerp(mean.expand_as(x), x, fitted_mean(share, x, "x_share").expand_as(x))
    return x if share == 1 else torch.lerp(mean, x, share)


def stretch(u: Tensor, mean: Tensor, share: float | Tensor) -> Tensor:
    """ȳ + (u − ȳ) / t, in one pass: the inverse of `shrink`; u: n × …, mean: ȳ, share: t, or one for every output."""
    mean = fitted_mean(mean, u, "y_mean")
    if isinstance(share, Tensor):
        return torch.lerp(mean.expand_as(u), u, (1 / fitted_mean(share, u, "y_share")).expand_as(u))
    # At t = 1 not even the masked logits of −∞ may change.
    return u if share == 1 else torch.lerp(mean, u, 1 / share)


def _in_format(mean: Tensor, x: Tensor) -> Tensor:
    """`mean` in the memory format of x, which the result takes from it."""
    kind = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.ndim)
    if kind is None or mean.ndim < x.ndim - 1 or x.is_contiguous() or not x.is_contiguous(memory_format=kind):
        return mean
    return mean.reshape(1, *mean.shape[-(x.ndim - 1) :]).contiguous(memory_format=kind)


def fitted_mean(mean: Tensor, batch: Tensor, name: str) -> Tensor:
    """A mean or a map in the batch's dtype, if its shape fits one sample of the batch."""
    sample, shape = batch.shape[1:], mean.shape
    if len(shape) == len(sample) + 1 and shape[0] == 1:
        shape = shape[1:]  # a mean that kept its batch dimension, as in Algorithm 1
    if torch.compiler.is_compiling():
        return mean.to(batch.dtype)  # sizes may be symbols, of which one cannot ask
    trailing = sample[len(sample) - len(shape) :]
    if len(shape) > len(sample) or any(m not in (1, s) for m, s in zip(shape, trailing, strict=True)):
        raise ValueError(f"{name} has shape {tuple(mean.shape)}, which does not fit samples of shape {tuple(sample)}")
    return mean.to(batch.dtype)


def require_mean(x_mean: Any) -> Tensor:
    """x̄ itself, if it is a tensor."""
    if not isinstance(x_mean, Tensor):
        raise TypeError(f"x_mean must be a tensor, the mean of the training data, got {type(x_mean).__name__}")
    return x_mean
