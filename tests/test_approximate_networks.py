"""Training on the quadratic risk with any layer, compiled, over processes; layers that cannot are named."""

import copy
from pathlib import Path

import pytest
import torch
import torch._inductor.config
from processes import run_processes
from test_approximate import moments_of
from test_risk import problem
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mixreg import ApproximateMixup
from mixreg._autodiff.derivatives import curvature
from mixreg._autodiff.tangents import tangents


def normalised(dimensions: int) -> nn.Module:
    torch.manual_seed(0)
    if dimensions == 1:
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)).double()
    layers = [nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4, momentum=None), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3)]
    return nn.Sequential(*layers).double()


@pytest.mark.parametrize("second_order", [False, True])
@pytest.mark.parametrize("dimensions", [1, 2])
def test_batch_normalisation_holds_its_statistics_and_learns(dimensions, second_order) -> None:
    x = torch.randn(10, 4, dtype=torch.float64) if dimensions == 1 else torch.randn(10, 2, 4, 4, dtype=torch.float64)
    delta = torch.randn_like(x)
    net, ordinary = normalised(dimensions), normalised(dimensions)
    for _ in range(2):
        u, first, second = tangents(net, x, delta, second_order)
        expected = ordinary(x)
    torch.testing.assert_close(u, expected, rtol=0, atol=1e-12)
    for got, want in zip(net[1].buffers(), ordinary[1].buffers(), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    # With the batch's own statistics as running ones, evaluation mode is the function to differentiate.
    fixed = normalised(dimensions)
    with torch.no_grad():
        h = fixed[0](x)
        over = [d for d in range(h.ndim) if d != 1]
        fixed[1].running_mean.copy_(h.mean(over))
        fixed[1].running_var.copy_(h.var(over, correction=0))
    fixed.eval()
    along = lambda z: torch.func.jvp(fixed, (z,), (delta,))[1]  # noqa: E731
    torch.testing.assert_close(first, along(x), rtol=0, atol=1e-12)
    if second_order:
        torch.testing.assert_close(second, torch.func.jvp(along, (x,), (delta,))[1], rtol=0, atol=1e-12)
    # Gradients of the outputs are those of ordinary training, through the statistics.
    for a, b in zip(
        torch.autograd.grad(u.square().sum(), list(net.parameters())),
        torch.autograd.grad(expected.square().sum(), list(ordinary.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    assert "forward" not in net[1].__dict__


def test_evaluation_mode_leaves_running_statistics_alone() -> None:
    net = normalised(1).eval()
    before = copy.deepcopy(net.state_dict())
    x, y = torch.randn(8, 4, dtype=torch.float64), torch.arange(8) % 3
    ApproximateMixup(1.0, moments_of(x, y, 3))(net, x, y).backward()
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())


def test_dropout_uses_one_mask_for_value_and_tangent() -> None:
    net = nn.Sequential(nn.Dropout(0.5)).double()
    x = torch.ones(200, 4, dtype=torch.float64)
    u, first, _ = tangents(net, x, x, False)
    assert torch.equal(u, first)
    assert 0.4 < (u == 0).double().mean() < 0.6


def lenet(normalised: bool) -> nn.Module:
    torch.manual_seed(0)
    norms = [nn.BatchNorm2d(4), nn.Dropout(0.3)] if normalised else []
    return nn.Sequential(nn.Conv2d(1, 4, 3), *norms, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3))


# The compiler looks at the .grad of tensors that come out of a part it does not trace.
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("second_order", [False, True])
def test_compiled_networks_and_compiled_steps(second_order, normalised) -> None:
    x, y = torch.randn(6, 1, 8, 8), torch.arange(6) % 3
    m = moments_of(x, y, 3)

    step = ApproximateMixup(0.5, m, second_order=second_order)
    values = []
    for compile_net, compile_step in ((False, False), (True, False), (False, True)):
        torch._dynamo.reset()
        net = torch.compile(lenet(normalised)) if compile_net else lenet(normalised)
        run = torch.compile(lambda *batch: step(*batch)) if compile_step else step
        torch.manual_seed(5)
        # Compiled code draws random numbers in its own way, unless it is told not to.
        with torch._inductor.config.patch(fallback_random=True):
            value = run(net, x, y)
        value.backward()
        gradient = torch.cat([p.grad.flatten() for p in net.parameters()])
        values.append((value.detach(), gradient))
    for value, gradient in values[1:]:
        torch.testing.assert_close(value, values[0][0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(gradient, values[0][1], rtol=1e-4, atol=1e-6)


class Doubled(torch.autograd.Function):
    """A function that its author gave no forward-mode rule."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


class Stubborn(nn.Module):
    def forward(self, x):
        return Doubled.apply(x)


def test_scripted_layers_are_refused() -> None:
    x, y = torch.randn(5, 4), torch.arange(5) % 3
    scripted = torch.jit.script(nn.Linear(4, 3))
    approximate = ApproximateMixup(1.0, moments_of(x, y, 3))
    for net, place in ((scripted, "the network"), (nn.Sequential(nn.Tanh(), scripted), "layer '1'")):
        with pytest.raises(TypeError, match=f"^{place} comes from torch.jit.script"):
            approximate(net, x, y)


def test_a_layer_without_a_forward_rule_is_named() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), Stubborn()), nn.Linear(4, 3))
    x, y = torch.randn(5, 4), torch.arange(5) % 3
    with pytest.raises(NotImplementedError, match=r"layer '1\.1' \(Stubborn\) has no forward-mode derivative"):
        ApproximateMixup(1.0, moments_of(x, y, 3))(net, x, y)


@pytest.mark.parametrize("activation", [nn.SiLU, nn.GELU, nn.Softplus, nn.Tanh])
def test_second_tangents_agree_with_backward_passes(activation) -> None:
    net = nn.Sequential(nn.Linear(4, 4), activation(), nn.Linear(4, 3)).double()
    x, delta = torch.randn(2, 5, 4, dtype=torch.float64)
    slope = torch.randn(5, 3, dtype=torch.float64)
    _, _, second = tangents(net, x, delta, True)
    torch.testing.assert_close((slope * second).sum(1), curvature(net, x, slope)(delta), rtol=0, atol=1e-12)


def _gradient_of_half(rank: int, distributed: bool) -> torch.Tensor:
    net, x, y = problem("cross_entropy", n=12)
    m = moments_of(x, y, 3)
    wrapped = DistributedDataParallel(net) if distributed else net
    half = slice(6 * rank, 6 * rank + 6)
    criterion = ApproximateMixup(0.6, m, generator=torch.Generator().manual_seed(rank))
    # More than one step: the wrapper rearranges its buckets after the first.
    for _ in range(3):
        wrapped.zero_grad()
        criterion(wrapped, x[half], y[half]).backward()
    return torch.cat([p.grad.flatten() for p in net.parameters()])


def _distributed_gradient(rank: int) -> torch.Tensor:
    return _gradient_of_half(rank, distributed=True)


def test_two_processes_average_their_gradients(tmp_path: Path) -> None:
    expected = (_gradient_of_half(0, False) + _gradient_of_half(1, False)) / 2
    for gradient in run_processes(_distributed_gradient, 2, tmp_path):
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-12)


def _distributed_with_norms(rank: int) -> torch.Tensor:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))
    wrapped = DistributedDataParallel(net)
    x, y = torch.randn(12, 4), torch.arange(12) % 3
    criterion = ApproximateMixup(0.6, moments_of(x, y, 3), second_order=True)
    for _ in range(3):
        wrapped.zero_grad()
        criterion(wrapped, x[6 * rank : 6 * rank + 6], y[6 * rank : 6 * rank + 6]).backward()
    assert "forward" not in net.__dict__
    assert net[1].num_batches_tracked == 3
    return net[0].weight.grad


def test_two_processes_with_batch_normalisation(tmp_path: Path) -> None:
    first, second = run_processes(_distributed_with_norms, 2, tmp_path)
    torch.testing.assert_close(first, second)


def test_a_layer_used_twice_learns_twice_and_keeps_its_forward() -> None:
    layer = nn.BatchNorm1d(4).double()
    ordinary = copy.deepcopy(layer)
    x = torch.randn(6, 4, dtype=torch.float64)
    tangents(nn.Sequential(layer, nn.Tanh(), layer), x, x, False)
    nn.Sequential(ordinary, nn.Tanh(), ordinary)(x)
    for got, want in zip(layer.buffers(), ordinary.buffers(), strict=True):
        torch.testing.assert_close(got, want)
    mine = layer.forward
    layer.forward = mine
    tangents(layer, x, x, False)
    assert layer.__dict__["forward"] is mine
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        tangents(nn.BatchNorm1d(4).double(), x[:1], x[:1], False)
