"""Convolutions whose tangent costs one convolution.

A convolution is linear in its input: d conv(x, w) = conv(ẋ, w) when only x moves. PyTorch's forward mode adds
conv(x, ẇ) with ẇ = 0 and computes it, which doubles the price of every tangent and, nested, makes a second derivative
four times too dear. `tangent_convolutions` replaces convolutions inside it by one that knows better.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)


class _LinearInInput(torch.autograd.Function):
    """conv(x, w, b), with tangents in x alone and gradients in all three."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, convolve: Any, options: tuple[Any, ...]) -> Tensor:
        return convolve(x, weight, bias, *options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, _, ctx.convolve, ctx.options = inputs
        ctx.save_for_backward(x, weight)
        ctx.save_for_forward(weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        *geometry, groups = ctx.options
        stride, padding, dilation = ([v] * (x.ndim - 2) if isinstance(v, int) else list(v) for v in geometry)
        needed = list(ctx.needs_input_grad[:3])
        gradients = torch.ops.aten.convolution_backward(
            gradient, x, weight, [weight.shape[0]], stride, padding, dilation, False, [0] * (x.ndim - 2), groups, needed
        )
        return (*(g if is_needed else None for g, is_needed in zip(gradients, needed, strict=True)), None, None)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        (weight,) = ctx.saved_tensors
        return _LinearInInput.apply(tangent, weight, None, ctx.convolve, ctx.options)  # type: ignore[no-untyped-call]


class tangent_convolutions(TorchFunctionMode):
    """Inside, batched convolutions whose parameters stand still are `_LinearInInput`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _CONVOLUTIONS and not kwargs:
            x, weight = args[:2]
            bias, *options = list(args[2:]) + [None, 1, 0, 1, 1][len(args) - 2 :]
            if x.ndim == weight.ndim and not isinstance(options[1], str):
                return _LinearInInput.apply(x, weight, bias, func, tuple(options))  # type: ignore[no-untyped-call]
        return func(*args, **kwargs)
