"""A convolution of few channels whose gradients are each taken in the memory format that suits it.

With channels last a processor computes channels side by side, 16 at a time. The outputs of a convolution, and the
gradient in its weights, have as many as there are outputs; the gradient in its input,

    ∂x = w ∗ᵀ ∂y,

has as many as there are inputs, and with six of them most of the processor is idle. There it is quicker to put the
channels first, where places lie side by side, and to put the result back: two thirds of the time of a 5 × 5 convolution
of six channels, and one of sixteen (`benchmarks/training.py` has what that does for an epoch of LeNet).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.forward_ad import unpack_dual
from torch.nn.functional import conv2d, conv_transpose2d
from torch.nn.grad import conv2d_weight

# Of inputs: as many as a processor computes side by side.
_FEW = 16


class _NarrowConvolution(torch.autograd.Function):
    """`conv2d` with stride 1 and no padding; its backward pass can be differentiated again."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return conv2d(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, of_y: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            # Many gradients at once (`is_grads_batched`, or under vmap) have no memory format that one could ask for.
            wrapped = torch._C._functorch
            is_batched = wrapped.is_legacy_batchedtensor(of_y) or wrapped.is_functorch_wrapped_tensor(of_y)
            first = conv_transpose2d(of_y if is_batched else of_y.contiguous(), weight.contiguous())
            of_x = first if is_batched else first.contiguous(memory_format=torch.channels_last)
        if ctx.needs_input_grad[1]:
            of_weight = conv2d_weight(x, weight.shape, of_y)
        if ctx.needs_input_grad[2]:
            of_bias = of_y.sum((0, 2, 3))
        return of_x, of_weight, of_bias


def narrow_convolution(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`conv2d(x, weight, bias)`, with quicker gradients where x has few channels that lie last.

    Args:
        x: n × channels × height × width.
        weight: kernels, o × channels × h × w.
        bias: o.
    """
    if not _gains(x) or not all(map(_is_plain, (x, weight, bias))):
        return conv2d(x, weight, bias)
    result: Tensor = _NarrowConvolution.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return result


def _gains(x: Tensor) -> bool:
    is_last = x.device.type == "cpu" and x.ndim == 4 and not is_written_down() and x.stride(1) == 1
    return is_last and 1 < x.shape[1] <= _FEW


def is_written_down() -> bool:
    """Whether operations go into a graph: a compiler has its own ways, and a file holds what everything knows."""
    return torch.compiler.is_compiling() or torch._C._is_tracing()


def _is_plain(x: Tensor) -> bool:
    """What moves, is transformed or is cast to another precision on its way goes by PyTorch's own rules."""
    is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor(x)
    return not is_wrapped and not torch.is_autocast_enabled("cpu") and unpack_dual(x).tangent is None


class NarrowConvolution(nn.Conv2d):
    """A convolution with stride 1 and no padding: `nn.Conv2d` with quicker gradients where it has few channels."""

    def __init__(self, inputs: int, outputs: int, kernel_size: int) -> None:
        super().__init__(inputs, outputs, kernel_size)

    def forward(self, x: Tensor) -> Tensor:
        """n × o × height′ × width′."""
        if self.bias is None or not is_plain_layer(self):
            return super().forward(x)
        return narrow_convolution(x, self.weight, self.bias)


def is_plain_layer(layer: nn.Conv2d) -> bool:
    """Whether a convolution is still what it was made as: somebody may have set its stride or padding since."""
    settings = layer.stride, layer.dilation, layer.padding, layer.groups, layer.padding_mode
    return settings == ((1, 1), (1, 1), (0, 0), 1, "zeros")
