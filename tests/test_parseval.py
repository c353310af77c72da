"""Parseval regularisation: retraction against the polar factor of a singular value decomposition."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mixreg.models import LeNet
from mixreg.regularisers.parseval import Parseval, deviation, orthonormalised, retract


@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (6, 6), (1, 4)])
def test_retraction_ends_at_the_polar_factor(shape) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(shape, dtype=torch.float64)
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    found = orthonormalised(matrix)
    torch.testing.assert_close(found, u @ v, atol=1e-5, rtol=0)
    assert float(deviation(found)) < 1e-6


@settings(max_examples=30)
@given(st.floats(0.05, 0.5), st.floats(0.01, 1.4))
def test_singular_values_move_towards_one(beta, value) -> None:
    """s ← s + β s (1 − s²), and the vectors stay."""
    torch.manual_seed(1)
    u, v = (torch.linalg.qr(torch.randn(n, 3, dtype=torch.float64)).Q for n in (4, 6))
    start = torch.tensor([value, 1.0, 0.5], dtype=torch.float64)
    expected = start + beta * start * (1 - start**2)
    torch.testing.assert_close(u.T @ retract(u @ torch.diag(start) @ v.T, beta) @ v, torch.diag(expected))
    assert abs(float(expected[0]) - 1) <= abs(value - 1) + 1e-12


def test_a_network_is_brought_to_orthonormal_layers_within_1e_4() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 20), nn.ReLU(), nn.Linear(20, 4))
    last = net[-1].weight.clone()
    parseval = Parseval(net, beta=0.5)
    for _ in range(200):
        parseval.step()
    assert parseval.deviation() < 1e-4
    assert float(parseval.penalty().detach()) < 1e-7
    torch.testing.assert_close(net[-1].weight, last)
    weight = net[3].weight
    torch.testing.assert_close(weight @ weight.T, torch.eye(20), atol=1e-4, rtol=0)
    # Nothing is stretched: neither by the convolution nor by the layers together.
    x, z = torch.randn(2, 50, 3, 6, 6)
    for part in (net[0], net[:-1]):
        gap = (part(x) - part(z)).flatten(1).norm(dim=1)
        assert bool((gap <= (x - z).flatten(1).norm(dim=1) * (1 + 1e-5)).all())


def test_a_step_is_a_gradient_step_on_the_penalty() -> None:
    torch.manual_seed(0)
    nets = [nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2)).double() for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    Parseval(nets[0], beta=0.01, include_last=True).step()
    Parseval(nets[1], include_last=True).penalty().backward()
    with torch.no_grad():
        for parameter in nets[1].parameters():
            if parameter.grad is not None:
                parameter -= 0.01 * parameter.grad
    for mine, expected in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        torch.testing.assert_close(mine, expected)


def test_projection_and_wrong_input() -> None:
    net = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2))
    parseval = Parseval(net)
    parseval.project()
    assert parseval.deviation() < 1e-5
    with pytest.raises(ValueError, match=r"beta must lie in \(0, 0.5\], got 2"):
        Parseval(net, beta=2)
    with pytest.raises(ValueError, match="no dense or convolutional layers"):
        Parseval(nn.Linear(3, 2))
    with pytest.raises(ValueError, match="dependent rows or columns"):
        orthonormalised(torch.ones(3, 3))


@pytest.mark.parametrize("beta", [0.01, 0.2, 0.5])
def test_large_weights_do_not_diverge(beta: float) -> None:
    torch.manual_seed(0)
    net = LeNet()
    keeper = Parseval(net, beta)
    with torch.no_grad():
        for weight, _, _ in keeper.matrices():
            weight.mul_(30)
    for _ in range(round(20 / beta)):
        keeper.step()
    assert keeper.deviation() < 1e-3


def test_memory_formats_and_groups() -> None:
    torch.manual_seed(0)
    for groups in (1, 2, 8):
        net = nn.Sequential(nn.Conv2d(8, 16, 3, groups=groups), nn.ReLU(), nn.Conv2d(16, 4, 1))
        net = net.to(memory_format=torch.channels_last)
        keeper = Parseval(net, 0.5)
        for _ in range(60):
            keeper.step()
        assert keeper.deviation() < 1e-4
        # Each group by itself, against its singular values.
        for group in net[0].weight.detach().reshape(groups, 16 // groups, -1):
            torch.testing.assert_close(3 * torch.linalg.svdvals(group), torch.ones(min(group.shape)), atol=1e-4, rtol=0)
        keeper.project()
        assert keeper.deviation() < 1e-5
