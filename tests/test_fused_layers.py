"""Activations, pools and normalisations whose derivatives along a line have a closed form, against differences."""

import copy
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from along_a_line import derivatives, warmed
from torch import Tensor, nn

from mixreg._autodiff.closed_forms import closed_forms
from mixreg._autodiff.jets import Order
from mixreg._autodiff.tangents import tangents
from mixreg._autodiff.written_out import written_out


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


FUNCTIONS = {
    "relu": (nn.ReLU(), (4,)),
    "relu in place": (nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)), (4,)),
    "gelu": (nn.GELU(), (4,)),
    "gelu by tanh": (nn.GELU("tanh"), (4,)),
    "tanh": (nn.Tanh(), (4,)),
    "sigmoid": (nn.Sigmoid(), (4,)),
    "silu": (nn.SiLU(), (4,)),
    "max pool": (nn.MaxPool2d(2), (3, 6, 6)),
    "max pool that overlaps": (nn.MaxPool2d((3, 2), stride=(2, 1), padding=1, ceil_mode=True), (3, 7, 6)),
    "layer norm": (nn.LayerNorm(4), (4,)),
    "layer norm of images, no bias": (nn.LayerNorm((3, 4), bias=False), (2, 3, 4)),
    "layer norm without weights": (nn.LayerNorm(4, elementwise_affine=False), (3, 4)),
}


def by_differences(net, x: Tensor, delta: Tensor, order: int) -> Tensor:
    """Central differences, of which reverse mode is right; float64 leaves about 1e-9 and 1e-6."""
    h = 1e-5 if order == 1 else 1e-4
    ahead, behind = net(x + h * delta), net(x - h * delta)
    return (ahead - behind) / (2 * h) if order == 1 else (ahead + behind - 2 * net(x)) / h**2


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize(
    ("kind", "is_channels_last"),
    [(kind, False) for kind in FUNCTIONS] + [(kind, True) for kind in FUNCTIONS if len(FUNCTIONS[kind][1]) == 3],
)
def test_functions_against_differences(kind, order, is_channels_last) -> None:
    layer, shape = FUNCTIONS[kind]
    layer = warmed(layer)
    x, delta = torch.randn(2, 5, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    if is_channels_last:
        x, delta = (t.to(memory_format=torch.channels_last) for t in (x, delta))
    x.requires_grad_()

    def net(z: Tensor) -> Tensor:
        return torch.sin(layer(torch.sin(z)))

    parameters = list(layer.parameters())
    with written_out(5), closed_forms(Order(order)):
        found = derivatives(net, x, delta, order, parameters)
    value = by_differences(net, x, delta, order)
    expected = [value, *torch.autograd.grad(value.square().sum(), [x, *parameters], materialize_grads=True)]
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 if order == 1 else 1e-4)


@pytest.mark.parametrize("second_order", [False, True])
@pytest.mark.parametrize("is_affine", [True, False])
def test_batch_normalisation_against_its_elementary_steps(is_affine, second_order) -> None:
    net = nn.Sequential(
        nn.Conv2d(2, 3, 3, bias=False), nn.BatchNorm2d(3, affine=is_affine), nn.Tanh(), nn.Conv2d(3, 2, 3)
    ).double()
    warmed(net)
    x, delta = torch.randn(2, 6, 2, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    found = _losses_and_gradients(net, x, delta, second_order)
    with closed_forms_off():
        expected = _losses_and_gradients(net, x, delta, second_order)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


def _losses_and_gradients(net: nn.Module, x: Tensor, delta: Tensor, second_order: bool) -> list[Tensor]:
    """Tangents, gradients, gradients of gradients, and what the layer has learnt."""
    net = copy.deepcopy(net)
    parts = [t for t in tangents(net, x, delta, second_order) if t is not None]
    parameters = list(net.parameters())
    first = torch.autograd.grad(sum(t.square().sum() for t in parts), parameters, create_graph=True)
    second = torch.autograd.grad(sum(t.square().sum() for t in first), parameters)
    return [*parts, *first, *second, *net.buffers()]


@contextmanager
def closed_forms_off():
    """Inside, forward mode goes the general way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Order, "jet", lambda self, x: None)
        yield


@pytest.mark.parametrize("second_order", [False, True])
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_gradients_of_gradients(kind, second_order) -> None:
    layer, shape = FUNCTIONS[kind]
    net = nn.Sequential(nn.Flatten(), warmed(nn.Linear(int(torch.tensor(shape).prod()), 7))).double()
    net = nn.Sequential(warmed(layer), nn.Tanh(), net)
    x, delta = torch.randn(2, 5, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        net[2][1] = warmed(nn.Linear(layer(x).flatten(1).shape[1], 3))
    found = _losses_and_gradients(net, x, delta, second_order)
    with closed_forms_off():
        expected = _losses_and_gradients(net, x, delta, second_order)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_layer_norm_under_autocast_is_as_exact_as_pytorchs(dtype) -> None:
    net = nn.LayerNorm(256)
    x, delta = 300 * torch.randn(8, 256, generator=torch.Generator().manual_seed(0)), torch.randn(8, 256)
    expected = tangents(net, x, delta, True)
    with torch.autocast("cpu", dtype):
        found = tangents(net, x, delta, True)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * float(b.detach().abs().max()))


def shared_norm() -> nn.Sequential:
    norm = nn.BatchNorm1d(4)
    return nn.Sequential(nn.Linear(4, 4), norm, nn.Tanh(), norm)


@pytest.mark.parametrize("second_order", [False, True])
@pytest.mark.parametrize("make", [shared_norm, lambda: nn.Sequential(nn.Linear(4, 4), nn.Softmax(1), nn.GELU())])
def test_a_gradient_is_the_same_where_it_can_be_differentiated(make, second_order) -> None:
    """Of inputs of which one is made of the other, as where a layer is used twice."""
    net = warmed(make())
    x, delta = torch.randn(2, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    parameters = list(net.parameters())
    found = [
        torch.autograd.grad(
            tangents(net, x, delta, second_order)[1 + second_order].square().sum(), parameters, create_graph=c
        )
        for c in (False, True)
    ]
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("second_order", [False, True])
@pytest.mark.parametrize("frozen", ["weight", "bias", "first", ""])
def test_dense_layers_have_gradients_of_what_asks_for_them(frozen, second_order) -> None:
    """Against three calls of the layer: products that add weight gradients up leave out what is frozen."""
    layers = warmed(nn.Linear(4, 5)), warmed(nn.Linear(5, 3))
    net = nn.Sequential(layers[0], nn.Tanh(), layers[1])
    asked = {name: parameter for name, parameter in net.named_parameters() if not name.endswith(frozen or "none")}
    asked = {name: parameter for name, parameter in asked.items() if frozen != "first" or name.startswith("2")}
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name in asked)
    x, delta = torch.randn(2, 6, 2, 4, dtype=torch.float64)

    def apart(z: Tensor) -> Tensor:
        hidden = torch.tanh(z @ layers[0].weight.t() + layers[0].bias)
        return hidden @ layers[1].weight.t() + layers[1].bias

    def along(f):
        return lambda z: torch.func.jvp(f, (z,), (delta,))[1]

    expected = [apart(x), along(apart)(x), *([along(along(apart))(x)] if second_order else [])]
    found = [t for t in tangents(net, x, delta, second_order) if t is not None]
    gradients = []
    for outputs in (found, expected):
        total = sum((k + 1) * t.square().sum() for k, t in enumerate(outputs))
        gradients.append(torch.autograd.grad(total, list(asked.values()), allow_unused=True, materialize_grads=True))
    for a, b in zip((*found, *gradients[0]), (*expected, *gradients[1]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


def test_a_bias_of_each_row() -> None:
    weight, bias = torch.randn(3, 4, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    x, delta = torch.randn(2, 6, 4, dtype=torch.float64)
    _, first, _ = tangents(lambda z: F.linear(z, weight, bias).sin(), x, delta, False)
    (found,) = torch.autograd.grad(first.sum(), bias)
    line = F.linear(x, weight, bias)
    torch.testing.assert_close(first, line.cos() * F.linear(delta, weight))
    torch.testing.assert_close(found, -line.sin() * F.linear(delta, weight))
