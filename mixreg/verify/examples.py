"""A row of the verification, and the small network and data that it is made on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mixreg._support.random import normal


@dataclass(frozen=True)
class Row:
    """One statement and how far it is from holding.

    Attributes:
        name: as in the paper.
        statement: in short.
        residual: the largest difference between its two sides.
        tolerance: what rounding may cause.
        printed: for an erratum, the residual of what the paper prints.
    """

    name: str
    statement: str
    residual: float
    tolerance: float
    printed: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the residual is within its tolerance."""
        return self.residual <= self.tolerance


def generator() -> torch.Generator:
    """The same stream for every check."""
    return torch.Generator().manual_seed(2022)


def with_random_weights(net: nn.Module, stream: torch.Generator) -> nn.Module:
    """`net` in float64 with normal weights that need no gradients."""
    net = net.double().requires_grad_(False)
    for parameter in net.parameters():
        parameter.copy_(normal(parameter.shape, stream, torch.float64))
    return net


def example(loss: str, n: int = 8) -> tuple[nn.Module, Tensor, Tensor]:
    """A tanh network with three outputs, and data that fits the loss; float64."""
    stream = generator()
    net = with_random_weights(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), stream)
    x = normal((n, 4), stream, torch.float64)
    if loss == "cross_entropy":
        return net, x, torch.arange(n) % 3
    y = normal((n, 3), stream, torch.float64)
    return net, x, (y > 0).double() if loss == "logistic" else y
