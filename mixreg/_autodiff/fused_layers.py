"""Jets of dense layers, activations and pools in closed form.

With a′, a″, a‴ of an activation a at its input,

    u̇ = a′ ẋ,        ü = a″ ẋ² + a′ ẍ.

Each is one autograd function whose gradient is written out, in a few passes over memory where composed derivatives take
dozens. Where a gradient itself is to be differentiated, it is taken of the composed derivatives instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mixreg._autodiff.jets import Jet, composed

# a, a′, a″ and, for a second derivative, a‴ at x.
Derivatives = Callable[[Tensor, bool], tuple[Tensor, ...]]
_aten = torch.ops.aten


def _gelu(x: Tensor, third: bool) -> tuple[Tensor, ...]:
    slope = _aten.gelu_backward(torch.ones((), dtype=x.dtype, device=x.device).expand_as(x), x)
    square = x.square()
    density = torch.mul(square, -0.5).exp_().mul_(1 / math.sqrt(2 * math.pi))
    found = F.gelu(x), slope, (2 - square).mul_(density)
    return (*found, (square - 4).mul_(x).mul_(density)) if third else found


def _tanh(x: Tensor, third: bool) -> tuple[Tensor, ...]:
    value = torch.tanh(x)
    slope = 1 - value.square()
    found = value, slope, (value * slope).mul_(-2)
    return (*found, (value.square().mul_(3) - 1).mul_(slope).mul_(2)) if third else found


def _sigmoid(x: Tensor, third: bool) -> tuple[Tensor, ...]:
    value = torch.sigmoid(x)
    slope = value * (1 - value)
    found = value, slope, (1 - 2 * value).mul_(slope)
    return (*found, (1 - 6 * slope).mul_(slope)) if third else found


def _silu(x: Tensor, third: bool) -> tuple[Tensor, ...]:
    gate, d1, d2, *d3 = _sigmoid(x, third)
    found = x * gate, torch.addcmul(gate, x, d1), torch.addcmul(2 * d1, x, d2)
    return (*found, torch.addcmul(3 * d2, x, d3[0])) if third else found


ACTIVATIONS: dict[Any, Derivatives] = {
    F.gelu: _gelu,
    torch.tanh: _tanh,
    torch.sigmoid: _sigmoid,
    F.silu: _silu,
    torch._C._nn.silu: _silu,
}


def again(function: Callable[..., tuple[Tensor, ...]], inputs: Sequence[Any], gradients: Sequence[Any]) -> Any:
    """Gradients of `function` that can be differentiated again; None for what is no tensor or needs none."""
    # As tensors of their own: one of them may have been made of another, and gradients are to end at each.
    inputs = [x.view_as(x) if isinstance(x, Tensor) else x for x in inputs]
    asked = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
    outputs = function(*inputs)
    pairs = [(u, g) for u, g in zip(outputs, gradients, strict=True) if g is not None and u.requires_grad]
    reached, weights = ([pair[k] for pair in pairs] for k in (0, 1))
    found = iter(torch.autograd.grad(reached, asked, weights, create_graph=True, allow_unused=True))
    return tuple(next(found) if isinstance(x, Tensor) and x.requires_grad else None for x in inputs)


def parts(jet: Jet) -> tuple[Tensor, ...]:
    """x, ẋ and, if there is one, ẍ."""
    return tuple(t for t in jet if t is not None)


def curving(jet: Jet, order: int) -> Jet:
    """The jet with its second derivative, though it be 0, where two derivatives are asked for."""
    return jet if order == 1 or jet.second is not None else jet._replace(second=torch.zeros_like(jet.first))


class _Dense(torch.autograd.Function):
    """(weight, bias, x, ẋ[, ẍ]) ↦ u, u̇[, ü]; the gradients of the weight are added up by the products that make them.

    Apart, each is as large as the weight, and adding them takes as long as a product of a small batch.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor | None, *jet: Tensor) -> tuple[Tensor, ...]:
        ctx.has_bias = bias is not None
        ctx.save_for_backward(weight, *jet)
        return _dense(weight, bias, *jet)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        weight, *jet = ctx.saved_tensors
        if torch.is_grad_enabled():
            # The bias itself does not matter to any gradient.
            bias = weight.new_zeros(len(weight), requires_grad=True) if ctx.has_bias else None
            return again(_dense, (weight, bias, *jet), gradients)
        of_weight, of_bias, *of_jet = ctx.needs_input_grad
        to_weight = None
        if of_weight:
            rows = [(g.flatten(0, -2), x.flatten(0, -2)) for g, x in zip(gradients, jet, strict=True)]
            to_weight = rows[0][0].t() @ rows[0][1]
            for g, x in rows[1:]:
                to_weight.addmm_(g.t(), x)
        to_bias = gradients[0].flatten(0, -2).sum(0) if of_bias else None
        to_jet = (g @ weight if asked else None for g, asked in zip(gradients, of_jet, strict=True))
        return to_weight, to_bias, *to_jet


def _dense(weight: Tensor, bias: Tensor | None, x: Tensor, *moved: Tensor) -> tuple[Tensor, ...]:
    return F.linear(x, weight, bias), *(F.linear(t, weight) for t in moved)


def dense(jet: Jet, weight: Tensor, bias: Tensor | None) -> Jet:
    """The jet of `torch.nn.functional.linear`."""
    apply: Any = _Dense.apply
    return Jet(*apply(weight, bias, *parts(jet)))


class _Activation(torch.autograd.Function):
    """(function, derivatives, x, ẋ[, ẍ]) ↦ u, u̇[, ü]."""

    @staticmethod
    def forward(ctx: Any, function: Any, derivatives: Derivatives, x: Tensor, *moved: Tensor) -> tuple[Tensor, ...]:
        value, slope, *higher = derivatives(x, len(moved) > 1)
        ctx.function = function
        ctx.save_for_backward(x, *moved, slope, *higher)
        first = slope * moved[0]
        if len(moved) == 1:
            return value, first
        return value, first, torch.addcmul(slope * moved[1], higher[0], moved[0].square())

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        orders = len(gradients) - 1
        x, *rest = ctx.saved_tensors
        moved, (slope, *higher) = rest[:orders], rest[orders:]
        if torch.is_grad_enabled():
            run = lambda x, *moved: composed(ctx.function, Jet(x, *moved))  # noqa: E731
            return None, None, *again(run, (x, *moved), gradients)
        turned = higher[0] * moved[0]
        value = (gradients[0] * slope).addcmul_(gradients[1], turned)
        first = gradients[1] * slope
        if orders == 1:
            return None, None, value, first
        value.addcmul_(gradients[2], (higher[1] * moved[0].square()).addcmul_(higher[0], moved[1]))
        return None, None, value, first.addcmul_(gradients[2], turned, value=2), gradients[2] * slope


def activation(function: Any, jet: Jet, order: int) -> Jet:
    """The jet of an activation of `ACTIVATIONS`."""
    apply: Any = _Activation.apply
    return Jet(*apply(function, ACTIVATIONS[function], *parts(curving(jet, order))))


class _Relu(torch.autograd.Function):
    """(x, ẋ[, ẍ]) ↦ u, u̇[, ü]: all of them where x is positive."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *moved: Tensor) -> tuple[Tensor, ...]:
        value = F.relu(x)
        # As PyTorch does: the input may be changed in place afterwards.
        ctx.save_for_backward(value)
        return value, *(_aten.threshold_backward(t, value, 0) for t in moved)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (value,) = ctx.saved_tensors
        return tuple(_aten.threshold_backward(g, value, 0) for g in gradients)


def relu(jet: Jet) -> Jet:
    """The jet of max(x, 0)."""
    apply: Any = _Relu.apply
    return Jet(*apply(*parts(jet)))


class _MaxPool(torch.autograd.Function):
    """(settings, x, ẋ[, ẍ]) ↦ u, u̇[, ü]: all of them where x is largest."""

    @staticmethod
    def forward(ctx: Any, settings: tuple[Any, ...], x: Tensor, *moved: Tensor) -> tuple[Tensor, ...]:
        value, indices = _aten.max_pool2d_with_indices(x, *settings)
        ctx.settings = settings
        ctx.save_for_backward(x, indices)
        return value, *(_taken(t, indices) for t in moved)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, indices = ctx.saved_tensors
        return None, *(_aten.max_pool2d_with_indices_backward(g, x, *ctx.settings, indices) for g in gradients)


def _taken(x: Tensor, indices: Tensor) -> Tensor:
    """Of x (n × c × h × w) what stands at `indices` of its h × w, in their memory format."""
    if indices.is_contiguous():
        return x.flatten(2).gather(2, indices.flatten(2)).reshape(indices.shape)
    pixels, last = (t.permute(0, 2, 3, 1) for t in (x, indices))
    return pixels.flatten(1, 2).gather(1, last.flatten(1, 2)).reshape(last.shape).permute(0, 3, 1, 2)


def max_pool2d(
    jet: Jet,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Jet | None:
    """The jet of `torch.nn.functional.max_pool2d`; None where its indices are asked for."""
    if return_indices or jet.value.ndim != 4:
        return None
    sizes = [[v, v] if isinstance(v, int) else list(v) for v in (kernel_size, stride or kernel_size, padding, dilation)]
    apply: Any = _MaxPool.apply
    return Jet(*apply((*sizes, ceil_mode), *parts(jet)))
