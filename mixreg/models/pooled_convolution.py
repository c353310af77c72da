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

from mixreg.models.narrow_convolution import is_plain_layer, is_written_down


class _LargestOfFour(torch.autograd.Function):
    """The largest of the four quarters of the channels; the gradient goes to it, to the first in a tie.

    The quarters are places of a window: its left column, upper and lower, and its right one. `torch.maximum` looks for
    ties backwards, to part the gradient between them: longer than the convolution takes.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        left, right = y.chunk(2, 1)
        upper, lower = torch.maximum(left, right).chunk(2, 1)
        # Columns are compared first: among equals `max_pool2d` takes the first as one reads.
        return torch.maximum(upper, lower), _is_first(left, right), _is_first(upper, lower)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*output[1:])
        ctx.save_for_forward(*output[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> Tensor:
        is_left, is_upper = ctx.saved_tensors
        return _parted(_parted(gradient, is_upper), is_left)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> tuple[Tensor, None, None]:
        is_left, is_upper = (mask.bool() for mask in ctx.saved_tensors)
        left, right = tangent.chunk(2, 1)
        upper, lower = torch.where(is_left, left, right).chunk(2, 1)
        return torch.where(is_upper, upper, lower), None, None


def _is_first(first: Tensor, last: Tensor) -> Tensor:
    """1 where the first is at least as large as the last, else 0.

    Written as numbers at once: truth values take longer, to make and to multiply by.
    """
    if torch._C._functorch.is_functorch_wrapped_tensor(first):
        return (first >= last).to(first.dtype)
    return torch.ge(first, last, out=torch.empty_like(first))


def _parted(gradient: Tensor, is_first: Tensor) -> Tensor:
    """Of a gradient of o channels 2o: where it is the first half's, and where it is the last half's."""
    first = gradient * is_first
    return torch.cat((first, gradient - first), 1)


def pooled_convolution(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`max_pool2d(conv2d(x, weight, bias), 2)`, by four convolutions in one where that is quicker.

    Args:
        x: n × channels × height × width.
        weight: kernels, o × channels × h × w.
        bias: o.
    """
    # Inputs that move are pooled by a closed form (`mixreg._autodiff`).
    if is_written_down() or not _is_side_by_side(x) or unpack_dual(x).tangent is not None:
        return max_pool2d(conv2d(x, weight, bias), 2)
    moved = torch.cat([pad(weight, (column, 1 - column, row, 1 - row)) for column in (0, 1) for row in (0, 1)])
    four = conv2d(x, moved, None if bias is None else bias.repeat(4), stride=2)
    largest: Tensor = _LargestOfFour.apply(four)[0]  # type: ignore[no-untyped-call]
    return largest


def _is_side_by_side(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.ndim == 4 and x.shape[1] > 1 and x.stride(1) == 1


class PooledConvolution(nn.Conv2d):
    """A convolution whose output is the largest of every 2 × 2: a layer with the parameters of `nn.Conv2d`."""

    def __init__(self, inputs: int, outputs: int, kernel_size: int) -> None:
        super().__init__(inputs, outputs, kernel_size)

    def forward(self, x: Tensor) -> Tensor:
        """n × o × ⌊height′ / 2⌋ × ⌊width′ / 2⌋, where height′ × width′ is the convolution's own."""
        if not is_plain_layer(self):
            return max_pool2d(super().forward(x), 2)
        return pooled_convolution(x, self.weight, self.bias)
