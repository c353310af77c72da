"""Layers whose derivatives along a line have a closed form, against PyTorch's own and against differences."""

import weakref

import pytest
import torch
import torch.nn.functional as F
from along_a_line import derivatives, warmed
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from mixreg._autodiff.closed_forms import closed_forms
from mixreg._autodiff.jets import Order
from mixreg._autodiff.tangents import tangents


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


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


def require_the_same(net, shape: tuple[int, ...], order: int, parameters: list[Tensor]) -> None:
    x, delta = torch.randn(2, 5, *shape, dtype=torch.float64)
    x.requires_grad_()
    expected = derivatives(net, x, delta, order, parameters)
    with closed_forms(Order(order)):
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
    with closed_forms(Order(1)):
        assert cost(lambda: torch.func.jvp(layer, (x,), (delta,))) == 2 * once


def test_outside_of_any_derivative_nothing_changes() -> None:
    layer, x = nn.Conv2d(3, 4, 3), torch.randn(2, 3, 6, 6)
    expected = layer(x)
    with closed_forms(Order(1)):
        assert torch.equal(layer(x), expected)
        assert torch.equal(F.conv2d(input=x, weight=layer.weight, bias=layer.bias), expected)


@pytest.mark.parametrize("order", [1, 2])
def test_what_is_written_to_in_place_is_seen_by_views_of_it(order) -> None:
    """A view that was taken before is of the same memory; what a layer has just made has none."""
    layer = warmed(nn.Linear(4, 4))

    def net(z: Tensor) -> Tensor:
        hidden = layer(z.sin())
        row = hidden[:, 0]
        F.relu(hidden, inplace=True)
        return row.sin() + hidden.sin().sum(1)

    def unused_result(z: Tensor) -> Tensor:
        hidden = layer(z.sin())
        torch.relu_(hidden)
        return hidden.sin()

    def written_twice(z: Tensor) -> Tensor:
        hidden = layer(z.sin())
        hidden.mul_(2)
        hidden += z
        hidden.relu_()
        return hidden.sin()

    for function in (net, unused_result, written_twice):
        require_the_same(function, (4,), order, list(layer.parameters()))


def test_second_derivatives_cost_three_layers() -> None:
    """A tanh network costs three passes: nested forward mode takes the first derivative twice."""
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))
    x, delta = torch.randn(2, 5, 4)

    def cost(run) -> int:
        with FlopCounterMode(display=False) as counter:
            run()
        return counter.get_total_flops()

    once = cost(lambda: net(x))
    assert cost(lambda: tangents(net, x, delta, False)) == 2 * once
    # The first layer's input has no second derivative.
    assert cost(lambda: tangents(net, x, delta, True)) == 3 * once - cost(lambda: net[0](x))


def test_somebody_elses_direction_is_left_alone() -> None:
    """Inside of a user's forward mode the two levels have two directions."""
    layer = warmed(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)))
    x, one, other = torch.randn(3, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))

    def slope(z: Tensor) -> Tensor:
        return tangents(layer, z, one, False)[1]

    found = torch.func.jvp(slope, (x,), (other,))[1]
    expected = torch.func.jvp(lambda z: torch.func.jvp(layer, (z,), (one,))[1], (x,), (other,))[1]
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


def test_residuals_that_are_added_in_place() -> None:
    a, b = warmed(nn.Linear(4, 4)), warmed(nn.Linear(4, 4))

    def net(z: Tensor) -> Tensor:
        hidden = a(z.sin())
        hidden += b(F.relu(hidden))
        return hidden.sin()

    require_the_same(net, (4,), 1, [*a.parameters(), *b.parameters()])


def test_what_hangs_on_a_tensor_stays_there() -> None:
    x, kept, seen = torch.randn(5, 4), [], []
    for hook in (lambda m, i, o: setattr(o, "tag", 1), lambda m, i, o: kept.append(weakref.ref(o))):
        net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
        net[0].register_forward_hook(hook)
        net[1].register_forward_hook(lambda m, i, o: seen.append(hasattr(o, "tag")))
        tangents(net, x, x, False)
    assert seen == [True, False]


def test_networks_that_begin_by_writing_to_their_input() -> None:
    net = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 3))
    x, delta = torch.randn(2, 5, 4)
    before = x.clone()
    _, first, second = tangents(net, x, delta, True)
    torch.testing.assert_close(first, (delta * (x > 0)) @ net[1].weight.t())
    assert not second.any()
    assert torch.equal(x, before)
