"""Batch normalisation inside a tangent: its statistics come from the batch, but are held fixed.

In training mode batch normalisation makes f(x_i) depend on all of the batch through its mean and variance. The terms of
Theorem 3 are derivatives of one sample's output in its own input. So the statistics are computed from the batch, learn,
and pass gradients to the parameters as in ordinary training; only their forward-mode derivative is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

Statistics = dict[str, tuple[Tensor, Tensor]]
Layers = dict[str, _BatchNorm]
# Layers that rescale what they take and do nothing else.
NORMALISATIONS = (_BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


def coupling_layers(net: Any) -> Layers:
    """The batch normalisations of `net` that use the statistics of the batch, by name."""
    named = net.named_modules() if isinstance(net, nn.Module) else []
    return {name: m for name, m in named if isinstance(m, _BatchNorm) and (m.training or m.running_mean is None)}


class _WithoutTangent(torch.autograd.Function):
    """The identity, for which no forward-mode derivative exists but reverse-mode ones do."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return torch.zeros_like(tangent)


@contextmanager
def held_statistics(
    net: Callable[[Tensor], Tensor], layers: Layers
) -> Iterator[Callable[[Tensor], tuple[Tensor, Statistics]]]:
    """The network as x ↦ (u, batch statistics), in which `layers` hold them fixed."""
    statistics: Statistics = {}

    def held(name: str, layer: _BatchNorm) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            over = [d for d in range(x.ndim) if d != 1]
            hold = _WithoutTangent.apply
            var, mean = (hold(t) for t in torch.var_mean(x, over, correction=0))  # type: ignore[no-untyped-call]
            count = x.numel() // x.shape[1]
            if count == 1:
                raise ValueError(f"layer {name!r} needs more than 1 value per channel to train, got {tuple(x.shape)}")
            # A layer may be used several times; it learns each time.
            statistics[f"{name}#{len(statistics)}"] = mean, var * (count / (count - 1))
            scale = torch.rsqrt(var + layer.eps) * (layer.weight if layer.weight is not None else 1.0)
            shift = (layer.bias if layer.bias is not None else 0.0) - mean * scale
            shape = (1, -1, *[1] * (x.ndim - 2))
            return x * scale.reshape(shape) + shift.reshape(shape)

        return forward

    def with_statistics(x: Tensor) -> tuple[Tensor, Statistics]:
        statistics.clear()
        return net(x), dict(statistics)

    own = {name: layer.__dict__["forward"] for name, layer in layers.items() if "forward" in layer.__dict__}
    try:
        for name, layer in layers.items():
            layer.forward = held(name, layer)  # type: ignore[method-assign, assignment]
        yield with_statistics
    finally:
        for name, layer in layers.items():
            del layer.forward
            if name in own:
                layer.forward = own[name]  # type: ignore[method-assign]


@torch.no_grad()
def learn(layers: Layers, statistics: Statistics) -> None:
    """Running statistics move towards the batch's, as in an ordinary forward pass."""
    for name, (mean, var) in statistics.items():
        layer = layers[name.rpartition("#")[0]]
        if layer.running_mean is None or layer.running_var is None or layer.num_batches_tracked is None:
            continue
        layer.num_batches_tracked.add_(1)
        rate = layer.momentum if layer.momentum is not None else 1 / float(layer.num_batches_tracked)
        layer.running_mean.lerp_(mean.to(layer.running_mean.dtype), rate)
        layer.running_var.lerp_(var.to(layer.running_var.dtype), rate)
