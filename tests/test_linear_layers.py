"""Layers linear in their input, with a tangent of their own, against PyTorch's."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from mixreg._autodiff.linear_layers import linear_tangents

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


@pytest.mark.parametrize("order", [1, 2])
def test_ensembles(order) -> None:
    """`vmap` over parameters, with inputs that are shared."""
    weights, biases = (torch.randn(3, *shape, dtype=torch.float64, requires_grad=True) for shape in ((2, 4), (2,)))

    def ensemble(z: Tensor) -> Tensor:
        return torch.func.vmap(lambda w, b: F.linear(z.sin(), w, b).sin())(weights, biases).mean(0)

    def shared_weight(z: Tensor) -> Tensor:
        return torch.func.vmap(lambda b: F.linear(z.sin(), weights[0], b).sin())(biases).mean(0)

    for net in (ensemble, shared_weight):
        require_the_same(net, (4,), order, [weights, biases])


@pytest.mark.parametrize("order", [1, 2])
def test_frozen_layers_whose_output_is_changed_in_place(order) -> None:
    layer, shift = nn.Linear(4, 3).double(), torch.randn(3, dtype=torch.float64, requires_grad=True)

    def net(z: Tensor) -> Tensor:
        with torch.no_grad():
            hidden = layer(z.sin())
        hidden += shift
        return hidden.sin()

    require_the_same(net, (4,), order, [shift])


class Closed(Tensor):
    """A weight that knows how to multiply and nothing else, as packages for quantised networks have them."""

    @staticmethod
    def __new__(cls, values: Tensor) -> "Closed":
        weight = torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=values.dtype)
        weight.values = values
        return weight

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is F.linear:
            return F.linear(args[0], args[1].values, *args[2:])
        return super().__torch_function__(func, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return NotImplemented


def test_weights_that_know_few_operations() -> None:
    weight = torch.randn(3, 4, dtype=torch.float64)
    require_the_same(lambda z: F.linear(z.sin(), Closed(weight)).sin(), (4,), 1, [])


@pytest.mark.parametrize("kind", [kind for kind in LAYERS if "same" not in kind])
def test_a_tangent_costs_one_layer(kind) -> None:
    layer, shape = LAYERS[kind]
    layer = layer.double()
    x, delta = torch.randn(2, 5, *shape, dtype=torch.float64)

    def cost(run) -> int:
        with FlopCounterMode(display=False) as counter:
            run()
        return counter.get_total_flops()

    once = cost(lambda: layer(x))
    assert cost(lambda: torch.func.jvp(layer, (x,), (delta,))) > 2 * once
    with linear_tangents():
        assert cost(lambda: torch.func.jvp(layer, (x,), (delta,))) == 2 * once


def test_outside_of_any_derivative_nothing_changes() -> None:
    layer, x = nn.Conv2d(3, 4, 3), torch.randn(2, 3, 6, 6)
    expected = layer(x)
    with linear_tangents():
        assert torch.equal(layer(x), expected)
        assert torch.equal(F.conv2d(input=x, weight=layer.weight, bias=layer.bias), expected)
