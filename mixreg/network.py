"""Asking a network for its outputs and derivatives, sample by sample and in bounded memory.

A network is any module or callable x ↦ u on batches that treats samples independently. Modules are asked in evaluation
mode (running statistics, no dropout) and put back as they were: the quantities of the paper belong to one function f.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel

from mixreg.losses import Loss, SampleLoss, require_known, resolve
from mixreg.structure import validate_batch
from mixreg.targets import binary_values, is_class_index, require_probabilities, to_values

Network = Callable[[Tensor], Tensor]

# Network evaluations per chunk, and numbers in their inputs: enough to keep cores busy, few enough to stay in cache.
CHUNK_EVALUATIONS = 1 << 14
CHUNK_ELEMENTS = 1 << 20


@contextmanager
def evaluating(net: Network) -> Iterator[None]:
    """Modules in evaluation mode inside, and exactly as they were afterwards."""
    modules = list(net.modules()) if isinstance(net, nn.Module) else []
    modes = [module.training for module in modules]
    try:
        for module in modules:
            module.training = False
        yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode


@contextmanager
def explaining_dtypes(net: Network, x: Tensor) -> Iterator[None]:
    """Where the network fails because its parameters are of another dtype than `x`, an error that says so."""
    try:
        yield
    except RuntimeError as error:
        parameter = next(iter(net.parameters()), None) if isinstance(net, nn.Module) else None
        if parameter is None or parameter.dtype == x.dtype or "dtype" not in str(error):
            raise
        raise TypeError(
            f"x is {x.dtype} and the network's parameters are {parameter.dtype}; convert one to the other"
        ) from error


def plain_attention() -> AbstractContextManager[None]:
    """Attention in elementary steps inside: PyTorch's fused kernels have no second and no forward-mode derivative."""
    if torch.compiler.is_compiling():
        return nullcontext()
    return sdpa_kernel(SDPBackend.MATH)


def is_wrapped(net: Network) -> bool:
    """Whether `net` is a network in a wrapper that watches its forward pass: DDP's, or Lightning Fabric's."""
    return isinstance(net, DistributedDataParallel) or hasattr(net, "_forward_module")


def uncompiled(net: Any) -> Any:
    """The network that `torch.compile` was given, which sees hooks; others as they are."""
    return getattr(net, "_orig_mod", net)


def bare(net: Any) -> Any:
    """The network itself, out of any wrapper."""
    net = uncompiled(net)
    return uncompiled(net.module) if is_wrapped(net) else net


def inside(net: Network, run: Callable[..., Any], *tensors: Tensor) -> Any:
    """`run(forward, module, *tensors)`, where the forward pass of a wrapped network runs.

    The wrapper sees one ordinary forward pass, whatever `run` does with `forward` (what to call) and `module` (where
    the layers are). For a network that is not wrapped both are the network itself.
    """
    if not is_wrapped(net):
        return run(net, net, *tensors)
    module: Any = net.module  # type: ignore[attr-defined]
    forward, own = module.forward, module.__dict__.get("forward")
    module.forward = lambda *given: run(forward, module, *given)
    try:
        return net(*tensors)
    finally:
        del module.forward
        if own is not None:
            module.forward = own


def require_tensor(u: object) -> Tensor:
    """The output of a network, which must be one tensor."""
    if not isinstance(u, Tensor):
        raise TypeError(f"the network must return a tensor, got {type(u).__name__}")
    return u


def outputs_of(net: Network, x: Tensor) -> Tensor:
    """u: n × …, one output for each input."""
    u = require_tensor(net(x))
    if u.ndim == 0 or u.shape[0] != x.shape[0]:
        raise ValueError(f"the network must return {x.shape[0]} outputs for {x.shape[0]} inputs, got {tuple(u.shape)}")
    return u


def flat_outputs(net: Network, x: Tensor) -> Tensor:
    """u: n × c, whatever the shape of one output."""
    return outputs_of(net, x).reshape(x.shape[0], -1)


def refuse_non_finite(values: Tensor, what: str, where: Callable[[int], str]) -> Tensor:
    """`values` (n × …) themselves, or an error that says where the first non-finite one is."""
    if not bool(torch.isfinite(values.sum())):
        bad = ~torch.isfinite(values.reshape(values.shape[0], -1)).all(1)
        if bool(bad.any()):
            raise ValueError(f"{what} is not finite at {where(int(bad.nonzero()[0]))}")
    return values


@dataclass(frozen=True)
class Problem:
    """A network, data and a loss that fit together.

    Attributes:
        net: the network.
        x: n × …, floating point.
        y: n × k, targets as values.
        loss: on n × k targets and n × c outputs.
        classes: c.
    """

    net: Network
    x: Tensor
    y: Tensor
    loss: Loss
    classes: int

    @property
    def count(self) -> int:
        """n."""
        return self.x.shape[0]

    def chunk_size(self, asked: int | None) -> int:
        """How many network evaluations to do at once."""
        if asked is None:
            return max(1, min(CHUNK_EVALUATIONS, CHUNK_ELEMENTS // max(1, self.x[0].numel())))
        if isinstance(asked, bool) or not isinstance(asked, int) or asked < 1:
            raise ValueError(f"chunk_size must be a positive integer, got {asked!r}")
        return asked


def pose(net: Network, x: Tensor, y: Tensor, loss: str | SampleLoss) -> Problem:
    """Check that network, data and loss fit together; integer labels become one-hot.

    Args:
        net: maps n × … inputs to n × … outputs.
        x: n × …, floating point.
        y: n integer labels, or n × … targets.
        loss: a name or a callable on one sample.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a tensor, got {type(x).__name__}")
    n = validate_batch(x)
    if n == 0:
        raise ValueError("there is no sample: x has shape " + str(tuple(x.shape)))
    require_known(loss)
    refuse_non_finite(x, "x", lambda row: f"sample {row}")
    with evaluating(net), torch.no_grad(), explaining_dtypes(net, x):
        u = require_tensor(net(x[:1].clone()))
    if u.ndim == 0 or u.shape[0] != 1:
        flat_outputs(lambda _: u, x[:1])  # says what is wrong
    is_index = isinstance(y, Tensor) and is_class_index(y)
    if is_index and loss == "logistic" and y.ndim == 1 and u.numel() == 1:
        values = binary_values(y, u.shape[1:], u.dtype)
    elif is_index and u.ndim == 2:
        values = to_values(y, u.shape[1], u.dtype)
    else:
        values = to_values(y, None, u.dtype)
    if values.shape[0] != n:
        raise ValueError(f"x has {n} samples and y has {values.shape[0]}; they must be equally many")
    resolved = resolve(loss, values.shape[1:], u.shape[1:])
    if loss == "cross_entropy":
        require_probabilities(values)
    return Problem(net, x.detach(), values.detach().to(u.dtype).reshape(n, -1), resolved, u[0].numel())


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
