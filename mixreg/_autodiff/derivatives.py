"""Jacobians and curvatures of a network, sample by sample, by backward passes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mixreg._autodiff.network import Network, flat_outputs, plain_attention, refuse_non_finite


def jacobians(net: Network, x: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
    """u: n × c and J = ∇f(x_i): n × c × d, with one backward pass per output."""
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        # A copy, should the network write to its input.
        u = refuse_non_finite(flat_outputs(net, x.clone()), "the network's output", lambda row: f"sample {first + row}")
        # A network that does not look at its input has no gradient in it.
        rows = [_gradient(u[:, k].sum(), x) for k in range(u.shape[1])]
    return u.detach(), torch.stack([row.reshape(x.shape[0], -1) for row in rows], dim=1)


def _gradient(value: Tensor, x: Tensor, create_graph: bool = False) -> Tensor:
    if not value.requires_grad:
        return torch.zeros_like(x)
    (found,) = torch.autograd.grad(value, x, retain_graph=True, create_graph=create_graph, allow_unused=True)
    return torch.zeros_like(x) if found is None else found


def curvature(net: Network, x: Tensor, slope: Tensor) -> Callable[[Tensor], Tensor]:
    """The map δ ↦ slope_i · f″(x_i)[δ_i, δ_i] (n), by a backward pass through the gradient of slope · f.

    The gradient is taken once for all directions. Where it does not depend on x, as for piecewise linear networks, the
    curvature is exactly 0.

    Args:
        net: the network.
        x: n × …
        slope: n × c, held fixed.
    """
    x = x.detach().requires_grad_()
    with torch.enable_grad(), plain_attention():
        weighted = (slope.detach() * flat_outputs(net, x.clone())).sum()
        gradient = _gradient(weighted, x, create_graph=True)

    def along(direction: Tensor) -> Tensor:
        direction = direction.to(x.dtype).reshape(x.shape)
        with torch.enable_grad():
            change = _gradient((gradient * direction).sum(), x)
        return (change * direction).reshape(x.shape[0], -1).sum(1)

    return along
