"""Four convolutions in one against `conv2d` and `max_pool2d`: outputs, ties, and every kind of derivative."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.nn.functional import conv2d, cross_entropy, max_pool2d

from mixreg.models import LeNet
from mixreg.models.pooled_convolution import PooledConvolution, pooled_convolution


def reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return max_pool2d(conv2d(x, weight, bias), 2)


def channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def problem(side: tuple[int, int] = (9, 10), kernel: int = 3, n: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = channels_last(torch.randn(n, 3, *side, dtype=torch.float64, generator=generator))
    weight = torch.randn(6, 3, kernel, kernel, dtype=torch.float64, generator=generator)
    return x, weight, torch.randn(6, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("side", [(8, 8), (9, 10), (10, 9), (11, 13)])
@pytest.mark.parametrize("kernel", [1, 2, 3, 5])
def test_outputs_and_gradients_are_those_of_convolving_and_pooling(side: tuple[int, int], kernel: int) -> None:
    x, weight, bias = (t.requires_grad_() for t in problem(side, kernel))
    ours, theirs = pooled_convolution(x, weight, bias), reference(x, weight, bias)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    given = torch.randn_like(theirs)
    for own, other in zip(
        torch.autograd.grad(ours, (x, weight, bias), given),
        torch.autograd.grad(theirs, (x, weight, bias), given),
        strict=True,
    ):
        torch.testing.assert_close(own, other, rtol=1e-10, atol=1e-10)


def test_a_tie_goes_where_max_pool_puts_it() -> None:
    # Few values and a kernel that copies its input: most windows hold their largest value more than once.
    x = channels_last(torch.randint(0, 2, (8, 3, 12, 12)).double()).requires_grad_()
    weight = torch.eye(3, dtype=torch.float64).reshape(3, 3, 1, 1)
    given = torch.randn(8, 3, 6, 6, dtype=torch.float64)
    (ours,) = torch.autograd.grad(pooled_convolution(x, weight), x, given)
    (theirs,) = torch.autograd.grad(reference(x, weight), x, given)
    assert torch.equal(ours, theirs)


def test_layouts_that_gain_nothing_are_convolved_and_pooled() -> None:
    x, weight, bias = problem()
    for layout in (x.contiguous(), channels_last(x[:, :1])):
        given = weight[:, : layout.shape[1]]
        with torch.profiler.profile() as seen:
            found = pooled_convolution(layout, given, bias)
        assert torch.equal(found, reference(layout, given, bias))
        assert "aten::max_pool2d_with_indices" in {event.key for event in seen.key_averages()}


def test_derivatives_of_both_orders() -> None:
    x, weight, bias = (t.requires_grad_() for t in problem(side=(6, 6), n=2))
    assert torch.autograd.gradcheck(pooled_convolution, (x, weight, bias), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(pooled_convolution, (x, weight, bias), check_fwd_over_rev=True)


def test_transforms_agree_with_the_reference() -> None:
    x, weight, bias = problem(side=(6, 6))

    def smooth(function, x: Tensor, weight: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        return torch.tanh(function(x.unsqueeze(0), weight, bias)).pow(2).sum()

    def by(transform, argument: int):  # type: ignore[no-untyped-def]
        return [
            vmap(transform(lambda x, w, f=f: smooth(f, x, w), argument), (0, None))(x, weight)
            for f in (pooled_convolution, reference)
        ]

    for transform in (grad, jacfwd, jacrev):
        for argument in (0, 1):
            torch.testing.assert_close(*by(transform, argument))
    torch.testing.assert_close(*by(hessian, 1))
    tangent = torch.randn_like(x)
    ours, theirs = (jvp(lambda x, f=f: f(x, weight, bias), (x,), (tangent,)) for f in (pooled_convolution, reference))
    torch.testing.assert_close(ours, theirs)


def test_the_layer_has_the_parameters_of_a_convolution_and_its_hooks_are_called() -> None:
    layer, called = PooledConvolution(3, 6, 5), []
    plain = torch.nn.Conv2d(3, 6, 5)
    plain.load_state_dict(layer.state_dict())
    layer.register_forward_hook(lambda *_: called.append(True))
    x = channels_last(torch.randn(2, 3, 32, 32))
    assert torch.equal(layer(x), max_pool2d(plain(x), 2))
    assert called


def test_lenet_is_the_same_network_in_both_layouts() -> None:
    torch.manual_seed(0)
    net = LeNet().double()
    x, y = torch.randn(8, 3, 32, 32, dtype=torch.float64), torch.randint(0, 10, (8,))
    names, weights = zip(*net.named_parameters(), strict=True)

    def per_sample(x: Tensor) -> tuple[Tensor, ...]:
        def loss(weights: tuple[Tensor, ...], x: Tensor, y: Tensor) -> Tensor:
            return cross_entropy(functional_call(net, dict(zip(names, weights, strict=True)), x.unsqueeze(0))[0], y)

        return vmap(grad(loss), (None, 0, 0))(weights, x, y)

    torch.testing.assert_close(net(channels_last(x)), net(x), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(per_sample(channels_last(x)), per_sample(x))


def test_a_compiler_sees_the_ordinary_operators() -> None:
    net, x = LeNet().eval(), channels_last(torch.randn(4, 3, 32, 32))
    kept = torch.export.export(net, (x,))
    assert torch.equal(kept.module()(x), net(x))
    assert "max_pool2d" in str(kept.graph)
