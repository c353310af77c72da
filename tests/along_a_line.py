"""Derivatives along a line, and layers whose weights are not all alike."""

import torch
from torch import Tensor, nn


def derivatives(net, x: Tensor, delta: Tensor, order: int, parameters: list[Tensor]) -> list[Tensor]:
    """The derivative along δ, and the gradient of its square."""

    def tangent(f, depth: int):
        return f if depth == 0 else tangent(lambda z: torch.func.jvp(f, (z,), (delta,))[1], depth - 1)

    derivative = tangent(net, order)(x)
    assert derivative.abs().max() > 1e-3
    return [derivative, *torch.autograd.grad(derivative.square().sum(), [x, *parameters], materialize_grads=True)]


def warmed(layer: nn.Module) -> nn.Module:
    """With weights that are not all alike."""
    torch.manual_seed(1)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer.double()
