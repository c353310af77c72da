"""Layers linear in their input, with a tangent of their own, against PyTorch's."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixreg.linear_layers import linear_tangents

LAYERS = {
    "dense": (nn.Linear(4, 3), (4,)),
    "dense, no bias, in the middle": (nn.Linear(4, 3, bias=False), (2, 4)),
    "1d, strided": (nn.Conv1d(4, 6, 3, stride=2, padding=1), (4, 9)),
    "2d": (nn.Conv2d(3, 4, 3), (3, 6, 6)),
    "2d, no bias, grouped": (nn.Conv2d(4, 4, (3, 1), padding=(1, 0), groups=2, bias=False), (4, 6, 5)),
    "2d, dilated": (nn.Conv2d(2, 3, 3, dilation=2), (2, 7, 7)),
    "2d, same": (nn.Conv2d(2, 3, 3, padding="same"), (2, 5, 5)),
    "2d, reflected": (nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), (2, 5, 5)),
    "2d, transposed": (nn.ConvTranspose2d(3, 4, 3, stride=2, output_padding=1), (3, 4, 4)),
    "3d": (nn.Conv3d(2, 3, 2), (2, 4, 3, 4)),
}


def derivatives(net, x: Tensor, delta: Tensor, order: int, parameters: list[Tensor]) -> list[Tensor]:
    """The derivative along δ, and the gradient of its square."""

    def tangent(f, depth: int):
        return f if depth == 0 else tangent(lambda z: torch.func.jvp(f, (z,), (delta,))[1], depth - 1)

    derivative = tangent(net, order)(x)
    assert derivative.abs().max() > 1e-3
    return [derivative, *torch.autograd.grad(derivative.square().sum(), [x, *parameters], materialize_grads=True)]


def require_the_same(net, shape: tuple[int, ...], order: int, parameters: list[Tensor]) -> None:
    x, delta = torch.randn(2, 5, *shape, dtype=torch.float64)
    x.requires_grad_()
    expected = derivatives(net, x, delta, order, parameters)
    with linear_tangents():
        found = derivatives(net, x, delta, order, parameters)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("kind", LAYERS)
def test_values_tangents_and_gradients(kind, order) -> None:
    layer, shape = LAYERS[kind]
    layer = layer.double()
    # Sines before and after, so that nothing is zero by itself.
    require_the_same(lambda z: torch.sin(layer(torch.sin(z))), shape, order, list(layer.parameters()))


@pytest.mark.parametrize("order", [1, 2])
def test_weights_and_biases_that_move_with_the_input(order) -> None:
    weight, bias = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 4), (3,)))

    def by_weight(z: Tensor) -> Tensor:
        return F.linear(z.sin(), weight * z.mean(), bias)

    def by_bias(z: Tensor) -> Tensor:
        return F.linear(z.sin(), weight, bias=bias * z.sum())

    def only_bias(z: Tensor) -> Tensor:
        return F.linear(z.detach(), weight, bias=bias * z.exp().sum())

    for net in (by_weight, by_bias, only_bias):
        require_the_same(net, (4,), order, [weight, bias])


@pytest.mark.parametrize("order", [1, 2])
def test_networks_that_transform_themselves(order) -> None:
    """`vmap` and `grad` inside the network."""
    layer = nn.Linear(4, 3).double()

    def by_sample(z: Tensor) -> Tensor:
        return torch.func.vmap(lambda row: layer(row).sin())(z)

    def slopes(z: Tensor) -> Tensor:
        return torch.func.grad(lambda w: layer(w).sin().sum())(z).sin()

    for net in (by_sample, slopes):
        require_the_same(net, (4,), order, [layer.weight])


def test_outside_of_any_derivative_nothing_changes() -> None:
    layer, x = nn.Conv2d(3, 4, 3), torch.randn(2, 3, 6, 6)
    expected = layer(x)
    with linear_tangents():
        assert torch.equal(layer(x), expected)
        assert torch.equal(F.conv2d(input=x, weight=layer.weight, bias=layer.bias), expected)
