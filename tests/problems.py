"""Small problems to measure risks on."""

import math

import pytest
import torch
from torch import nn

from mixreg import risk

SAMPLE_LOSSES = {
    "cross_entropy": lambda y, u: torch.logsumexp(u, 0) - (y * u).sum(),
    "logistic": lambda y, u: (torch.log1p(torch.exp(-u.abs())) + u.clamp(min=0) - y * u).sum(),
    "squared_error": lambda y, u: 0.5 * ((y - u) ** 2).sum(),
    "custom": lambda y, u: torch.cosh(u - 0.5 * y).sum() + 0.1 * (y**2 * u**2).sum(),
}


def problem(loss: str, n: int = 9, shape=(2, 2), seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    x = torch.randn(n, *shape, generator=generator, dtype=torch.float64)
    net = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 6), nn.Tanh(), nn.Linear(6, 3)).double()
    if loss == "cross_entropy":
        y = torch.randint(3, (n,), generator=generator)
    elif loss == "logistic":
        y = torch.randint(2, (n, 3), generator=generator).double()
    else:
        y = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    return net, x, y


def named(loss: str):
    return SAMPLE_LOSSES["custom"] if loss == "custom" else loss


def assert_terms(q: risk.Quadratic, expected: dict[str, float], tolerance: float = 1e-9) -> None:
    for name in ("base", "r1", "r2", "r3", "r4"):
        value = getattr(q, name).item()
        assert value == pytest.approx(expected[name], rel=tolerance, abs=1e-13), name
    total = expected["base"] + expected["joint"] + expected["r2"] + expected["r4"]
    assert q.total.item() == pytest.approx(total, rel=tolerance)
    assert (q.r1 + q.r3).item() == pytest.approx(expected["joint"], rel=1e-8, abs=1e-12)
