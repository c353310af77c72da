"""A convolution of few channels and the largest of every 2 × 2 of it, in one, for images with channels last.

The largest of four neighbouring outputs is the largest of four convolutions with stride 2, whose kernels are the one
kernel moved by nothing, a column, a row, and both:

    max over i, j ∈ {0, 1} of (w ∗ x)[2p + i, 2q + j]  =  max over i, j of (wᵢⱼ ∗₂ x)[p, q],   wᵢⱼ = w moved by (i, j),

so that four times the channels are computed at a quarter of the places. With channels last a processor computes
channels side by side, 16 at a time: six of them leave most of it idle, four times six do not, and the four to compare
lie beside each other. It has the outputs of `conv2d` and `max_pool2d`, bit for bit, and a tie goes to the place that
`max_pool2d` gives it to; what it does for an epoch of LeNet: benchmarks/training.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.forward_ad import unpack_dual
from torch.nn.functional import conv2d, max_pool2d, pad


class _LargerHalf(torch.autograd.Function):
    """The larger of the first and the last half of the channels; the gradient goes to it, to the first in a tie.

    `torch.maximum` looks for ties backwards, to part the gradient between them: longer than the convolution takes.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(y: Tensor) -> tuple[Tensor, Tensor]:
        first, last = y.chunk(2, 1)
        return torch.maximum(first, last), first >= last

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])
        ctx.save_for_forward(output[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> Tensor:
        (is_first,) = ctx.saved_tensors
        first = gradient * is_first
        return torch.cat((first, gradient - first), 1)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> tuple[Tensor, None]:
        (is_first,) = ctx.saved_tensors
        first, last = tangent.chunk(2, 1)
        return torch.where(is_first, first, last), None


def _larger_half(y: Tensor) -> Tensor:
    larger: Tensor = _LargerHalf.apply(y)[0]  # type: ignore[no-untyped-call]
    return larger


def pooled_convolution(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`max_pool2d(conv2d(x, weight, bias), 2)`, by four convolutions in one where that is quicker.

    Args:
        x: n × channels × height × width.
        weight: kernels, o × channels × h × w.
        bias: o.
    """
    is_side_by_side = x.device.type == "cpu" and x.shape[1] > 1 and x.stride(1) == 1
    # A compiler has its own ways, a file should hold the operators that everything knows, and inputs that move are
    # pooled by a closed form (`mixreg._autodiff`).
    if not is_side_by_side or torch.compiler.is_compiling() or unpack_dual(x).tangent is not None:
        return max_pool2d(conv2d(x, weight, bias), 2)
    # Columns are compared first: among equals `max_pool2d` takes the first as one reads.
    moved = torch.cat([pad(weight, (column, 1 - column, row, 1 - row)) for column in (0, 1) for row in (0, 1)])
    four = conv2d(x, moved, None if bias is None else bias.repeat(4), stride=2)
    return _larger_half(_larger_half(four))


class PooledConvolution(nn.Conv2d):
    """A convolution whose output is the largest of every 2 × 2: a layer with the parameters of `nn.Conv2d`."""

    def __init__(self, inputs: int, outputs: int, kernel_size: int) -> None:
        super().__init__(inputs, outputs, kernel_size)

    def forward(self, x: Tensor) -> Tensor:
        """n × o × ⌊height′ / 2⌋ × ⌊width′ / 2⌋, where height′ × width′ is the convolution's own."""
        return pooled_convolution(x, self.weight, self.bias)
