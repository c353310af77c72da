"""Jets of normalisations in closed form.

**Layer normalisation.** With x̂ = r (x − mean x) and r = (var x + ε)^(−½), the derivative of x̂ in x is the symmetric
matrix J v = r (v − mean v − x̂ mean(x̂ v)), for which PyTorch has one kernel: that of the ordinary backward pass. With
the means m = mean(x̂ ẋ) and w = mean(u̇ ẋ) over a row,

    u = x̂,        u̇ = J ẋ,        ü = J ẍ − 2 r m u̇ − r w x̂,

since ṙ = −r² m and the derivative of m along the line is w / r + mean(x̂ ẍ) (u̇ is centred). Gradients reach x through J,
too: of g · J v they are −r (mean(x̂ v) J g + mean(x̂ g) J v + mean(g · J v) x̂).

**Batch normalisation** in training holds its statistics fixed in t: u̇ = s ẋ and ü = s ẍ with the scale s of each
channel, through which gradients reach the batch: of s = w v^(−½) they are ∂v = −½ w v^(−3/2) ∂s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from mixreg._autodiff.fused_layers import again, curving, parts
from mixreg._autodiff.jets import Jet, composed

_aten = torch.ops.aten
# A normalisation of (x, weight, bias) in elementary steps, of which composed derivatives are right.
Elementary = Callable[[Tensor, Tensor | None, Tensor | None], Tensor]


def _composed_jet(elementary: Elementary, orders: int) -> Callable[..., tuple[Tensor, ...]]:
    """(x, ẋ[, ẍ], weight, bias) ↦ u, u̇[, ü], by nested forward mode."""

    def run(x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        weight, bias = rest[orders:]
        return composed(lambda x: elementary(x, weight, bias), Jet(x, *rest[:orders]))

    return run


def _dots(left: Tensor, right: Tensor) -> Tensor:
    """Means of products over the last dimension, n × 1."""
    # Autocast would take sums in half precision.
    with torch.autocast(left.device.type, enabled=False):
        return torch.linalg.vecdot(left, right).unsqueeze(-1) / left.shape[-1]


class _LayerNorm(torch.autograd.Function):
    """(elementary, ε, weight, bias, x, ẋ[, ẍ]) ↦ u, u̇[, ü]; x is n × d, normalised over its rows."""

    @staticmethod
    def forward(
        ctx: Any, elementary: Elementary, eps: float, weight: Any, bias: Any, x: Tensor, *moved: Tensor
    ) -> tuple[Tensor, ...]:
        value, mean, r = torch.native_layer_norm(x, x.shape[1:], None, None, eps)
        along = _jacobian(x, mean, r)
        turned = [along(t) for t in moved]
        jet = value, *turned
        if len(moved) == 2:
            m, w = _dots(value, moved[0]), _dots(turned[0], moved[0])
            jet = value, turned[0], torch.addcmul(turned[1], -2 * r * m, turned[0]).addcmul_(-r * w, value)
        ctx.elementary, ctx.has_bias, ctx.orders = elementary, bias is not None, len(moved)
        ctx.save_for_backward(x, *moved, weight, bias, mean, r, *jet, *turned[1:])
        if weight is not None:
            jet = tuple(t * weight for t in jet)
        return jet if bias is None else (jet[0] + bias, *jet[1:])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        orders = ctx.orders
        saved = iter(ctx.saved_tensors)
        x, *moved = islice(saved, orders + 1)
        weight, bias, mean, r = islice(saved, 4)
        if torch.is_grad_enabled():
            found = again(_composed_jet(ctx.elementary, orders), (x, *moved, weight, bias), gradients)
            return None, None, *found[orders + 1 :], *found[: orders + 1]
        jet, turned = tuple(islice(saved, orders + 1)), tuple(saved)
        to_weight = None if weight is None else _sum_of_products(gradients, jet).sum(0)
        to_bias = gradients[0].sum(0) if ctx.has_bias else None
        g = gradients if weight is None else [gradient * weight for gradient in gradients]
        along = _jacobian(x, mean, r)
        back = _first_order_gradients if orders == 1 else _second_order_gradients
        return None, None, to_weight, to_bias, *back(along, r, g, moved, (*jet[:2], *turned))


def _jacobian(x: Tensor, mean: Tensor, r: Tensor) -> Callable[[Tensor], Tensor]:
    """v ↦ J v, of each row."""
    only_input = [True, False, False]
    return lambda v: _aten.native_layer_norm_backward(v, x, x.shape[1:], mean, r, None, None, only_input)[0]


def _sum_of_products(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    total = left[0] * right[0]
    for a, b in zip(left[1:], right[1:], strict=True):
        total.addcmul_(a, b)
    return total


def _first_order_gradients(along: Any, r: Tensor, g: Any, moved: Any, jet: Any) -> tuple[Tensor, ...]:
    """Of x and ẋ: those of g₀ · x̂ + g₁ · J ẋ."""
    (value, first), (g0, g1) = jet, g
    m, a, b = _dots(value, moved[0]), _dots(value, g1), _dots(g1, first)
    to_first = along(g1)
    to_x = along(g0).addcmul_(-r * m, to_first).addcmul_(-r * a, first).addcmul_(-r * b, value)
    return to_x, to_first


def _second_order_gradients(along: Any, r: Tensor, g: Any, moved: Any, jet: Any) -> tuple[Tensor, ...]:
    """Of x, ẋ and ẍ: those of g₀ · x̂ + g₁ · J ẋ + g₂ · ü, where `jet` ends with J ẍ."""
    (value, first, turned), (g0, g1, g2) = jet, g
    m, w = _dots(value, moved[0]), _dots(first, moved[0])
    a, p = _dots(value, g2), _dots(first, g2)
    # What reaches u̇ = J ẋ and x̂ in all, with what ü holds of them.
    g1 = torch.addcmul(g1, -2 * r * m, g2).addcmul_(-r * a, moved[0])
    g0 = torch.addcmul(g0, -r * w, g2).addcmul_(-2 * r * p, moved[0])
    to_x, by_first = _first_order_gradients(along, r, (g0, g1), moved, (value, first))
    to_second = along(g2)
    to_first = torch.addcmul(by_first, -r * a, first).addcmul_(-2 * r * p, value)
    to_x.addcmul_(-r * _dots(value, moved[1]), to_second).addcmul_(-r * a, turned)
    return to_x.addcmul_(r * (r * (w * a + 2 * m * p) - _dots(g2, turned)), value), to_first, to_second


def layer_norm(
    elementary: Elementary, jet: Jet, order: int, last: int, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Jet:
    """The jet of a layer normalisation over the `last` dimensions; weights are of their shape."""
    jet, shape = curving(jet, order), jet.value.shape
    rows = [t.reshape(-1, shape[-last:].numel()) for t in parts(jet)]
    flat = [None if t is None else t.reshape(-1) for t in (weight, bias)]

    def over_rows(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        of_shape = [None if t is None else t.reshape(shape[-last:]) for t in (weight, bias)]
        return elementary(x.reshape(-1, *shape[-last:]), *of_shape).reshape(x.shape)

    apply: Any = _LayerNorm.apply
    return Jet(*(t.reshape(shape) for t in apply(over_rows, eps, *flat, *rows)))


class _BatchNorm(torch.autograd.Function):
    """(elementary, ε, weight, bias, x, ẋ[, ẍ]) ↦ mean, 1 / √(var + ε), u, u̇[, ü]; the first two without gradients."""

    @staticmethod
    def forward(
        ctx: Any, elementary: Elementary, eps: float, weight: Any, bias: Any, x: Tensor, *moved: Tensor
    ) -> tuple[Tensor, ...]:
        value, mean, deviation = torch.native_batch_norm(x, weight, bias, None, None, True, 0.0, eps)
        shape = (1, -1, *[1] * (x.ndim - 2))
        scale = (deviation if weight is None else deviation * weight).reshape(shape)
        ctx.elementary, ctx.has_bias = elementary, bias is not None
        ctx.save_for_backward(x, *moved, weight, bias, mean, deviation)
        ctx.mark_non_differentiable(mean, deviation)
        return mean, deviation, value, *(t * scale for t in moved)

    @staticmethod
    def backward(ctx: Any, _mean: Any, _deviation: Any, *gradients: Any) -> Any:
        orders = len(gradients) - 1
        x, *moved, weight, bias, mean, deviation = ctx.saved_tensors
        if torch.is_grad_enabled():
            found = again(_composed_jet(ctx.elementary, orders), (x, *moved, weight, bias), gradients)
            return None, None, *found[orders + 1 :], *found[: orders + 1]
        gradients = tuple(_laid_out_as(x, g) for g in gradients)
        shape = (1, -1, *[1] * (x.ndim - 2))
        count = x.numel() // x.shape[1]
        _, by_deviation, by_shift = _sums(gradients[0], x, mean, deviation, bias=True)
        zero, one = torch.zeros_like(mean), torch.ones_like(mean)
        by_scale = sum(_sums(g, t, zero, one)[1] for g, t in zip(gradients[1:], moved, strict=True))
        factor = deviation if weight is None else deviation * weight
        by_weight = by_deviation + by_scale * deviation
        # As in ordinary normalisation, but that the variance is also reached through s.
        slope = -factor * deviation * by_weight / count
        shift = -factor * by_shift / count - slope * mean
        slope, shift, factor = (t.reshape(shape) for t in (slope, shift, factor))
        to_x = torch.addcmul(shift, x, slope).addcmul_(gradients[0], factor)
        to_weight = None if weight is None else by_weight
        to_bias = by_shift if ctx.has_bias else None
        return None, None, to_weight, to_bias, to_x, *(g * factor for g in gradients[1:])


def _laid_out_as(x: Tensor, gradient: Tensor) -> Tensor:
    """A gradient in the memory format of x: two formats in one kernel cost several times as much."""
    if x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last):
        return gradient.contiguous(memory_format=torch.channels_last)
    return gradient


def _sums(gradient: Tensor, x: Tensor, mean: Tensor, deviation: Tensor, bias: bool = False) -> Any:
    """Per channel Σ gradient × (x − mean) × deviation, and Σ gradient if `bias`: PyTorch's gradients of both."""
    return _aten.native_batch_norm_backward(
        gradient, x, torch.ones_like(mean), None, None, mean, deviation, True, 0.0, [False, True, bias]
    )


def batch_norm(
    elementary: Elementary, jet: Jet, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Jet, Tensor, Tensor]:
    """The jet of a batch normalisation in training, and the batch's mean and 1 / √(var + ε) per channel."""
    apply: Any = _BatchNorm.apply
    mean, deviation, *found = apply(elementary, eps, weight, bias, *parts(jet))
    return Jet(*found), mean, deviation
