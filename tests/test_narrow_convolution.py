"""Gradients taken in two memory formats against `conv2d`'s own: values, layouts, and every kind of derivative."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.autograd.forward_ad import dual_level, make_dual, unpack_dual
from torch.func import grad, hessian, jvp, vmap
from torch.nn.functional import conv2d

from mixreg.models.lenet import LeNet
from mixreg.models.narrow_convolution import NarrowConvolution, narrow_convolution
from mixreg.models.pooled_convolution import PooledConvolution


def problem(channels: int = 6, side: tuple[int, int] = (7, 6), n: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, channels, *side, dtype=torch.float64, generator=generator)
    weight = torch.randn(4, channels, 3, 2, dtype=torch.float64, generator=generator)
    bias = torch.randn(4, dtype=torch.float64, generator=generator)
    return x.contiguous(memory_format=torch.channels_last), weight, bias


def has_own_gradient(y: Tensor) -> bool:
    assert y.grad_fn is not None
    return "NarrowConvolution" in y.grad_fn.name()


@pytest.mark.parametrize("channels", [2, 6, 16])
def test_outputs_and_gradients_are_those_of_a_convolution(channels: int) -> None:
    given = tuple(part.requires_grad_() for part in problem(channels))
    ours, theirs = narrow_convolution(*given), conv2d(*given)
    assert has_own_gradient(ours)
    assert torch.equal(ours, theirs)
    direction = torch.randn(theirs.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    own, other = (torch.autograd.grad(y, given, direction) for y in (ours, theirs))
    torch.testing.assert_close(own, other, rtol=1e-12, atol=1e-12)
    # What comes before works on with channels last.
    assert own[0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("needed", [0, 1, 2])
def test_a_gradient_that_nobody_needs_is_not_taken(needed: int) -> None:
    given = problem()
    given[needed].requires_grad_()
    with torch.profiler.profile() as seen:
        narrow_convolution(*given).sum().backward()
    names = {event.key for event in seen.key_averages()}
    assert ("aten::conv_transpose2d" in names) == (needed == 0)
    assert ("aten::convolution_backward" in names) == (needed == 1)
    assert [part.grad is not None for part in given] == [k == needed for k in range(3)]


def test_derivatives_of_both_orders() -> None:
    given = tuple(part.requires_grad_() for part in problem(2, (4, 5), 2))
    assert torch.autograd.gradcheck(narrow_convolution, given)
    assert torch.autograd.gradgradcheck(narrow_convolution, given)


def test_what_moves_or_is_transformed_goes_by_the_rules_of_pytorch() -> None:
    x, weight, bias = problem()
    for moved in range(3):
        parts = [x, weight, bias]
        with dual_level():
            parts[moved] = make_dual(parts[moved], torch.ones_like(parts[moved]))
            ours, theirs = (unpack_dual(f(*parts)).tangent for f in (narrow_convolution, conv2d))
            assert torch.equal(ours, theirs)

    def smooth(f, x: Tensor, weight: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        return torch.tanh(f(x.unsqueeze(0), weight, bias)).sum()

    def both(transformed):  # type: ignore[no-untyped-def]
        return [transformed(lambda x, w, f=f: smooth(f, x, w)) for f in (narrow_convolution, conv2d)]

    torch.testing.assert_close(*both(lambda f: vmap(grad(f, 1), (0, None))(x, weight)))
    torch.testing.assert_close(*both(lambda f: vmap(grad(f, 0), (0, None))(x, weight)))
    torch.testing.assert_close(*both(lambda f: hessian(f, 0)(x[0], weight)))
    torch.testing.assert_close(*both(lambda f: jvp(f, (x[0], weight), (x[0], weight))))


def test_inputs_that_gain_nothing_are_left_to_pytorch() -> None:
    layer = NarrowConvolution(6, 4, 3)
    x = problem()[0].float()
    assert has_own_gradient(layer(x))
    assert not has_own_gradient(layer(x.contiguous()))
    assert not has_own_gradient(NarrowConvolution(17, 4, 3)(problem(17)[0].float()))
    assert not has_own_gradient(NarrowConvolution(1, 4, 3)(problem(1)[0].float()))


def test_half_precision_outside_and_inside() -> None:
    layer, x = NarrowConvolution(6, 4, 3), problem()[0].float()
    with torch.autocast("cpu", dtype=torch.float16):
        y = layer(x)
    assert y.dtype == torch.float16
    assert not has_own_gradient(y)
    y.float().sum().backward()
    plain = torch.nn.Conv2d(6, 4, 3)
    plain.load_state_dict(layer.state_dict())
    with torch.autocast("cpu", dtype=torch.float16):
        plain(x).float().sum().backward()
    torch.testing.assert_close(layer.weight.grad, plain.weight.grad)


def test_traced_layers_are_pytorchs_own(tmp_path: Path) -> None:
    net, x = LeNet().eval(), torch.rand(2, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    for given in (net, copy.deepcopy(net).to(memory_format=torch.channels_last)):
        with warnings.catch_warnings():
            # Of newer versions tracing is an old way, and a FutureWarning.
            for kind in (DeprecationWarning, FutureWarning):
                warnings.simplefilter("ignore", kind)
            torch.jit.save(torch.jit.trace(given, x), tmp_path / "net.pt")
            again = torch.jit.load(tmp_path / "net.pt")
        torch.testing.assert_close(again(x), net(x))


def test_one_image_alone() -> None:
    image = torch.randn(3, 10, 9).transpose(1, 2)
    layer, plain = PooledConvolution(3, 4, 3), torch.nn.Conv2d(3, 4, 3)
    plain.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer(image), torch.nn.functional.max_pool2d(plain(image), 2))


def test_gradients_of_many_directions_at_once() -> None:
    x, weight, bias = problem()
    x.requires_grad_()
    directions = torch.randn(3, *conv2d(x, weight, bias).shape, dtype=torch.float64)
    ours, theirs = (
        torch.autograd.grad(f(x, weight, bias), x, directions, is_grads_batched=True)[0]
        for f in (narrow_convolution, conv2d)
    )
    torch.testing.assert_close(ours, theirs)
    y = narrow_convolution(x, weight, bias)
    mapped = vmap(lambda direction: torch.autograd.grad(y, x, direction, retain_graph=True)[0])(directions)
    torch.testing.assert_close(mapped, theirs)
    net = LeNet().double()
    inputs = torch.rand(2, 3, 32, 32, dtype=torch.float64).contiguous(memory_format=torch.channels_last)
    together, apart = (torch.autograd.functional.jacobian(net, inputs, vectorize=is_fast) for is_fast in (True, False))
    torch.testing.assert_close(together, apart)


@pytest.mark.parametrize("layer", [NarrowConvolution, PooledConvolution])
@pytest.mark.parametrize("changed", [{"stride": (2, 2)}, {"padding": (1, 1)}, {"dilation": (2, 2)}, {"bias": None}])
def test_a_layer_that_was_changed_since_is_what_pytorch_makes_of_it(layer: type, changed: dict) -> None:
    own, plain = layer(6, 4, 3), torch.nn.Conv2d(6, 4, 3)
    plain.load_state_dict(own.state_dict())
    for name, value in changed.items():
        for each in (own, plain):
            setattr(each, name, value)
    x = torch.rand(2, 6, 12, 12).contiguous(memory_format=torch.channels_last)
    expected = plain(x)
    if layer is PooledConvolution:
        expected = torch.nn.functional.max_pool2d(expected, 2)
    torch.testing.assert_close(own(x), expected)
