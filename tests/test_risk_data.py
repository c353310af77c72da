"""Every risk takes tensors, trees, weights, loaders, and shares of the data in several processes."""

import math
from pathlib import Path

import pytest
import torch
from processes import run_processes
from torch import nn

from mixreg import risk
from mixreg._support.random import stream


def problem(n: int = 9) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A smooth network on two outputs, and targets that are numbers."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    return net, torch.randn(n, 3, dtype=torch.float64), torch.randn(n, 2, dtype=torch.float64)


LOSS = "squared_error"
RISKS = {
    "empirical": lambda net, *data, **options: risk.empirical(net, *data, loss=LOSS, **options),
    "mixup": lambda net, *data, **options: risk.mixup(net, *data, alpha=0.6, loss=LOSS, nodes=6, **options),
    "perturbed": lambda net, *data, **options: risk.perturbed(net, *data, alpha=0.6, loss=LOSS, nodes=6, **options),
    "quadratic": lambda net, *data, **options: risk.quadratic(net, *data, alpha=0.6, loss=LOSS, **options).total,
    "unmixed": lambda net, *data, **options: risk.unmixed(net, *data, alpha=0.6, loss=LOSS, **options).total,
}


@pytest.mark.parametrize("name", RISKS)
def test_loaders_trees_and_weights(name: str) -> None:
    net, x, y = problem()
    asked = RISKS[name]
    expected = float(asked(net, x, y))
    assert float(asked(net, [(x[:4], y[:4]), (x[4:], y[4:])])) == pytest.approx(expected, rel=1e-9)
    tree = (x[:, :1], x[:, 1:])
    assert float(asked(lambda t: net(torch.cat(t, 1)), tree, y)) == pytest.approx(expected, rel=1e-9)
    weights = torch.tensor([2, 1, 0, 1, 3, 1, 1, 2, 1])
    repeated = float(asked(net, x.repeat_interleave(weights, 0), y.repeat_interleave(weights, 0)))
    assert float(asked(net, x, y, weights=weights)) == pytest.approx(repeated, rel=1e-9)
    assert abs(repeated - expected) > 1e-3
    weighted = [(x[:5], y[:5], weights[:5]), (x[5:], y[5:], weights[5:])]
    assert float(asked(net, weighted)) == pytest.approx(repeated, rel=1e-9)


def test_monte_carlo_of_weights_and_of_a_loader() -> None:
    net, x, y = problem()
    weights = torch.tensor([2.0, 1, 0, 1, 3, 1, 1, 2, 1])
    exact = float(risk.mixup(net, x, y, 0.6, LOSS, weights=weights))
    found = risk.mixup(net, x, y, 0.6, LOSS, samples=20_000, weights=weights, generator=stream("weights"))
    assert abs(float(found.value) - exact) <= 4 * float(found.stderr)
    loader = [(x[:5], y[:5], weights[:5]), (x[5:], y[5:], weights[5:])]
    found = risk.mixup(net, loader, alpha=0.6, loss=LOSS, samples=20_000, generator=stream("loader"))
    assert abs(float(found.value) - exact) <= 4 * float(found.stderr)
    assert float(found.stderr) < 0.05 * exact


def in_each_process(rank: int) -> dict[str, float]:
    """Every risk on this process's part of the data."""
    net, x, y = problem()
    mine = slice(0, 5) if rank == 0 else slice(5, 9)
    found = {name: float(asked(net, x[mine], y[mine], across_processes=True)) for name, asked in RISKS.items()}
    loader = [(x[mine], y[mine])]
    # Generators of their own: results are the same all the same.
    generator = stream("process", rank)
    q = risk.quadratic(net, loader, alpha=0.6, loss=LOSS, tangents=64, across_processes=True, generator=generator)
    found |= {"estimated": float(q.total), "stderr": float(q.stderr["total"])}
    drawn = risk.mixup(net, loader, alpha=0.6, loss=LOSS, samples=20_000, across_processes=True, generator=generator)
    return found | {"drawn": float(drawn.value), "drawn stderr": float(drawn.stderr)}


def test_two_processes_have_the_result_of_one(tmp_path: Path) -> None:
    one, other = run_processes(in_each_process, 2, tmp_path)
    assert one == other
    net, x, y = problem()
    for name, asked in RISKS.items():
        assert one[name] == pytest.approx(float(asked(net, x, y)), rel=1e-9), name
    assert abs(one["estimated"] - one["quadratic"]) <= 4 * one["stderr"]
    assert 0 < one["stderr"] < 0.2 * one["quadratic"]
    assert abs(one["drawn"] - one["mixup"]) <= 4 * one["drawn stderr"]
    assert math.isfinite(one["drawn stderr"])


def test_a_covariance_that_cannot_fit_says_what_to_do() -> None:
    net = nn.Linear(20_000, 2)
    loader = [(torch.randn(3, 20_000), torch.tensor([0, 1, 1]))]
    with pytest.raises(ValueError, match="estimate them with tangents=8"):
        risk.quadratic(net, loader, alpha=1.0)
    found = risk.quadratic(net, loader, alpha=1.0, tangents=4, generator=stream("large"))
    assert bool(found.total.isfinite())
