"""Convolutions with a tangent of their own against PyTorch's."""

import pytest
import torch
from torch import nn

from mixreg.convolution import tangent_convolutions

LAYERS = {
    "1d, strided": (nn.Conv1d(4, 6, 3, stride=2, padding=1), (4, 9)),
    "2d": (nn.Conv2d(3, 4, 3), (3, 6, 6)),
    "2d, no bias, grouped": (nn.Conv2d(4, 4, (3, 1), padding=(1, 0), groups=2, bias=False), (4, 6, 5)),
    "2d, dilated": (nn.Conv2d(2, 3, 3, dilation=2), (2, 7, 7)),
    "2d, same": (nn.Conv2d(2, 3, 3, padding="same"), (2, 5, 5)),
    "3d": (nn.Conv3d(2, 3, 2), (2, 4, 3, 4)),
}


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("kind", LAYERS)
def test_values_tangents_and_gradients(kind, order) -> None:
    layer, shape = LAYERS[kind]
    layer = layer.double()
    x, delta = torch.randn(2, 5, *shape, dtype=torch.float64)
    x.requires_grad_()

    def net(z: torch.Tensor) -> torch.Tensor:
        # Sines before and after, so that nothing is zero by itself.
        return torch.sin(layer(torch.sin(z)))

    def tangent(f, depth: int):
        return f if depth == 0 else tangent(lambda z: torch.func.jvp(f, (z,), (delta,))[1], depth - 1)

    def gradients() -> list[torch.Tensor]:
        derivative = tangent(net, order)(x)
        return [derivative, *torch.autograd.grad(derivative.square().sum(), [x, *layer.parameters()])]

    expected = gradients()
    with tangent_convolutions():
        found = gradients()
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
