"""Jacobians and curvatures of a network, sample by sample, by backward passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import function

from mixreg._autodiff.network import Network, flat_outputs, plain_attention, refuse_non_finite
from mixreg._autodiff.written_out import written_out


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
    try:
        (found,) = torch.autograd.grad(value, x, retain_graph=True, create_graph=create_graph, allow_unused=True)
    except NotImplementedError as error:
        # Of PyTorch's functions: "the derivative for '_cdist_backward' is not implemented."
        raise NotImplementedError(
            "the network holds a function that PyTorch can differentiate once only, and second derivatives are asked "
            f"for: {str(error).splitlines()[0]} Write it out in elementary steps"
        ) from error
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
    with torch.enable_grad(), plain_attention(), written_out():
        weighted = (slope.detach() * flat_outputs(net, x.clone())).sum()
        _refuse_once_differentiable(weighted, x)
        gradient = _gradient(weighted, x, create_graph=True)

    def along(direction: Tensor) -> Tensor:
        direction = direction.to(x.dtype).reshape(x.shape)
        with torch.enable_grad():
            change = _gradient((gradient * direction).sum(), x)
        return (change * direction).reshape(x.shape[0], -1).sum(1)

    return along


def _refuse_once_differentiable(value: Tensor, x: Tensor) -> None:
    """A function on the way from x to `value` that its author lets be differentiated once has no curvature to give.

    PyTorch reports it as it reports piecewise linear functions: the gradient does not depend on x.
    """
    users: dict[Any, list[Any]] = {}
    pending: list[Any] = [value.grad_fn]
    while pending:
        node = pending.pop()
        for source, _ in node.next_functions if node is not None else ():
            if source not in users:
                pending.append(source)
            users.setdefault(source, []).append(node)
    pending = [node for node in users if getattr(node, "variable", None) is x]
    reached = set(pending)
    while pending:
        node = pending.pop()
        backward = getattr(getattr(node, "_forward_cls", None), "backward", None)
        # What `once_differentiable` has wrapped is its own code.
        if getattr(getattr(backward, "__code__", None), "co_filename", None) == function.__file__:
            raise NotImplementedError(
                f"{node._forward_cls.__name__} can be differentiated once only, and second derivatives are asked for"
            )
        pending.extend(set(users.get(node, ())) - reached)
        reached.update(users.get(node, ()))
