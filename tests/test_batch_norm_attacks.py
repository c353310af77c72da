"""Batch normalisation that is written otherwise than as PyTorch's own layer, and in half precision."""

import copy

import pytest
import torch
import torch.nn.functional as F
from test_layers import LINE, Applied, Bent, require_right_derivatives
from torch import Tensor, nn

from mixreg._autodiff.tangents import tangents

DOUBLE = torch.float64


class NormalisedAndBent(nn.BatchNorm1d):
    """Batch normalisation with an activation, as in timm."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(super().forward(x))


class OwnBatchNorm(nn.Module):
    """Batch normalisation by the function, with a counter of its own."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features))
        self.register_buffer("running_mean", torch.zeros(features))
        self.register_buffer("running_var", torch.ones(features))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        self.num_batches_tracked += 1
        moved = self.running_mean, self.running_var
        return F.batch_norm(x, *moved, self.weight, self.bias, training=True, momentum=0.1).tanh()


def normalising(kind: str) -> nn.Module:
    torch.manual_seed(0)
    norm = {
        "subclass": lambda: NormalisedAndBent(6),
        "subclass, averaged over all batches": lambda: NormalisedAndBent(6, momentum=None),
        "function": lambda: OwnBatchNorm(6),
    }[kind]()
    return nn.Sequential(nn.Linear(4, 6), norm, nn.Linear(6, 3)).double()


@pytest.mark.parametrize("behind_a_function", [False, True])
@pytest.mark.parametrize("kind", ["subclass", "subclass, averaged over all batches", "function"])
def test_batch_normalisation_in_any_form_is_held_fixed_and_learns_once(kind, behind_a_function) -> None:
    net, ordinary = normalising(kind), normalising(kind)
    called = (lambda z: net(z)) if behind_a_function else net
    x, delta, weights = (torch.randn(10, width, dtype=DOUBLE) for width in (4, 4, 3))
    parameters = list(net.parameters())
    for _ in range(2):
        value, along, bent = tangents(called, x, delta, second_order=True)
        expected = ordinary(x)
    torch.testing.assert_close(value, expected)
    for got, want in zip(net[1].buffers(), ordinary[1].buffers(), strict=True):
        torch.testing.assert_close(got, want)

    def at(t: float) -> Tensor:
        """With the statistics of the batch where it is, t along δ."""
        here, there = net[0](x), net[0](x + t * delta)
        standard = (there - here.mean(0)) / (here.var(0, correction=0) + 1e-5).sqrt()
        return net[2]((standard * net[1].weight + net[1].bias).tanh())

    def gradient(of: Tensor) -> Tensor:
        found = torch.autograd.grad((weights * of).sum(), parameters, retain_graph=True, materialize_grads=True)
        return torch.cat([part.flatten() for part in found])

    slope, curve = (at(1e-5) - at(-1e-5)) / 2e-5, (at(1e-4) - 2 * at(0.0) + at(-1e-4)) / 1e-8
    for found, reference, tolerance in (
        (along, slope, 1e-7),
        (gradient(along), gradient(slope), 1e-7),
        (bent, curve, 1e-5),
        (gradient(bent), gradient(curve), 1e-5),
    ):
        torch.testing.assert_close(found, reference, rtol=tolerance, atol=tolerance)


def test_batch_normalisation_of_one_row_is_instance_normalisation() -> None:
    """All samples laid out as channels, as for adaptive instance normalisation: none is held fixed."""

    def by_rows(x: Tensor) -> Tensor:
        return F.batch_norm(x.reshape(1, -1, x.shape[-1]), None, None, training=True).reshape(x.shape)

    torch.manual_seed(0)
    require_right_derivatives(Bent(Applied(by_rows), LINE).double(), *torch.randn(2, *LINE, dtype=DOUBLE))


def test_a_pass_that_fails_counts_and_learns_nothing() -> None:
    net = nn.Sequential(*normalising("function"), Applied(lambda x: x / 0))
    before = copy.deepcopy(net.state_dict())
    x = torch.randn(10, 4, dtype=DOUBLE)
    with pytest.raises(ValueError, match="the network's output is not finite"):
        tangents(net, x, x, second_order=False)
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())


def test_an_ordinary_pass_before_a_tangent_keeps_its_graph() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))
    x = torch.randn(10, 4)
    ordinary = net(x).square().sum()
    (ordinary + tangents(net, x, x, second_order=False)[1].square().sum()).backward()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
def test_batch_normalisation_in_half_precision(dtype, autocast) -> None:
    """Against PyTorch's own; the squares of what is normalised do not fit into float16."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    x = 300 * torch.randn(64, 4)
    if not autocast:
        net[0], x = net[0].to(dtype), x.to(dtype)
    ordinary = copy.deepcopy(net)
    with torch.autocast("cpu", dtype, enabled=autocast):
        value, along, _ = tangents(net, x, x, second_order=False)
        expected = ordinary(x)
    assert value.dtype == expected.dtype == dtype
    assert bool(along.isfinite().all())
    torch.testing.assert_close(value, expected, rtol=1e-2, atol=2e-2)
    for got, want in zip(net[1].buffers(), ordinary[1].buffers(), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-2)
