"""Jets of normalisations in closed form.

**Layer normalisation.** With c = x − mean x, v = mean c² + ε and r = v^(−½), and ċ, c̈ the centred derivatives,

    v̇ = 2 mean cċ,                     ṙ = −½ v^(−3/2) v̇,
    v̈ = 2 mean ċ² + 2 mean c c̈,        r̈ = ¾ v^(−5/2) v̇² − ½ v^(−3/2) v̈,
    u = r c,        u̇ = r ċ + ṙ c,        ü = r c̈ + 2 ṙ ċ + r̈ c.

**Batch normalisation** in training holds its statistics fixed in t: u̇ = s ẋ and ü = s ẍ with the scale s of each
channel, through which gradients reach the batch: of s = w v^(−½) they are ∂v = −½ w v^(−3/2) ∂s.
"""

from __future__ import annotations

from collections.abc import Callable
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


def _weighted(sums: tuple[Tensor, ...], weight: Tensor | None, bias: Tensor | None) -> tuple[Tensor, ...]:
    """Results of a standardisation with their weights and bias."""
    value, *moved = sums if weight is None else tuple(t * weight for t in sums)
    return value if bias is None else value + bias, *moved


def _dots(left: Tensor, right: Tensor) -> Tensor:
    """Inner products over the last dimension, n × 1."""
    # Autocast would take sums in half precision.
    with torch.autocast(left.device.type, enabled=False):
        return torch.linalg.vecdot(left, right).unsqueeze(-1)


class _LayerNorm(torch.autograd.Function):
    """(elementary, ε, weight, bias, x, ẋ[, ẍ]) ↦ u, u̇[, ü]; x is n × d, normalised over its rows."""

    @staticmethod
    def forward(
        ctx: Any, elementary: Elementary, eps: float, weight: Any, bias: Any, x: Tensor, *moved: Tensor
    ) -> tuple[Tensor, ...]:
        d = x.shape[1]
        c, *moving = (t - t.mean(1, keepdim=True) for t in (x, *moved))
        v = _dots(c, c) / d + eps
        r = v.rsqrt()
        v1 = 2 / d * _dots(c, moving[0])
        r1 = -0.5 * r.pow(3) * v1
        sums: tuple[Tensor, ...] = r * c, torch.addcmul(r * moving[0], r1, c)
        scales: tuple[Tensor, ...] = r, v1
        if len(moving) == 2:
            v2 = 2 / d * (_dots(moving[0], moving[0]) + _dots(c, moving[1]))
            r2 = 0.75 * r.pow(5) * v1.square() - 0.5 * r.pow(3) * v2
            sums = *sums, (r * moving[1]).addcmul_(2 * r1, moving[0]).addcmul_(r2, c)
            scales = *scales, v2
        ctx.elementary, ctx.has_bias = elementary, bias is not None
        ctx.save_for_backward(x, *moved, weight, bias, c, *moving, *scales)
        return _weighted(sums, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        orders = len(gradients) - 1
        saved = ctx.saved_tensors
        moved, (weight, bias), rest = saved[: orders + 1], saved[orders + 1 : orders + 3], saved[orders + 3 :]
        if torch.is_grad_enabled():
            found = again(_composed_jet(ctx.elementary, orders), (*moved, weight, bias), gradients)
            return None, None, *found[orders + 1 :], *found[: orders + 1]
        centred, (r, v1, *v2) = rest[: orders + 1], rest[orders + 1 :]
        d = centred[0].shape[1]
        cube = r.pow(3)
        r1 = -0.5 * cube * v1
        r2 = 0.75 * r.pow(5) * v1.square() - 0.5 * cube * v2[0] if v2 else None
        g = list(gradients) if weight is None else [gradient * weight for gradient in gradients]
        to_weight = _to_weight(gradients, centred, r, r1, r2) if weight is not None else None
        # Of r, ṙ and r̈, and from them of v, v̇ and v̈.
        by_r = _dots(g[0], centred[0]) + _dots(g[1], centred[1])
        by_r1 = _dots(g[1], centred[0])
        if r2 is None:
            by_v1 = -0.5 * cube * by_r1
            by_v = -0.5 * cube * by_r + 0.75 * r.pow(5) * v1 * by_r1
            to_x = (r * g[0]).addcmul_(r1, g[1]).addcmul_(2 / d * by_v, centred[0]).addcmul_(2 / d * by_v1, centred[1])
            to_first = (r * g[1]).addcmul_(2 / d * by_v1, centred[0])
            found = (to_x, to_first)
        else:
            by_r, by_r1 = by_r + _dots(g[2], centred[2]), by_r1 + 2 * _dots(g[2], centred[1])
            by_r2, fifth = _dots(g[2], centred[0]), r.pow(5)
            by_v2 = -0.5 * cube * by_r2
            by_v1 = -0.5 * cube * by_r1 + 1.5 * fifth * v1 * by_r2
            bent = 0.75 * fifth * v2[0] - 1.875 * r.pow(7) * v1.square()
            by_v = -0.5 * cube * by_r + 0.75 * fifth * v1 * by_r1 + bent * by_r2
            to_x = (r * g[0]).addcmul_(r1, g[1]).addcmul_(r2, g[2])
            for scale, c in zip((by_v, by_v1, by_v2), centred, strict=True):
                to_x.addcmul_(2 / d * scale, c)
            to_first = (r * g[1]).addcmul_(2 * r1, g[2])
            to_first.addcmul_(2 / d * by_v1, centred[0]).addcmul_(4 / d * by_v2, centred[1])
            found = (to_x, to_first, (r * g[2]).addcmul_(2 / d * by_v2, centred[0]))
        to_bias = gradients[0].sum(0) if ctx.has_bias else None
        return None, None, to_weight, to_bias, *(t.sub_(t.mean(1, keepdim=True)) for t in found)


def _to_weight(
    gradients: tuple[Tensor, ...], centred: tuple[Tensor, ...], r: Tensor, r1: Tensor, r2: Tensor | None
) -> Tensor:
    """Σ over rows and orders of gradient × standardised value."""
    of_c = (r * gradients[0]).addcmul_(r1, gradients[1])
    of_first = r * gradients[1]
    if r2 is not None:
        of_c.addcmul_(r2, gradients[2])
        of_first.addcmul_(2 * r1, gradients[2])
    found = of_c.mul_(centred[0]).addcmul_(of_first, centred[1])
    if r2 is not None:
        found.addcmul_(r * gradients[2], centred[2])
    return found.sum(0)


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
