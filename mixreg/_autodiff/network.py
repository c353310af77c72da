"""Networks as functions: evaluation mode, wrappers, outputs.

A network is any module or callable x ↦ u on batches that treats samples independently. Modules, also those that a
callable refers to, are asked in evaluation mode (running statistics, no dropout) and without the prediction rules that
adapters put on them, and put back as they were: the quantities of the paper belong to the one function f that was
trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel

from mixreg._autodiff.reachable import modules_of

Network = Callable[[Tensor], Tensor]


@contextmanager
def evaluating(net: Network) -> Iterator[None]:
    """Modules in evaluation mode and without rules inside, and exactly as they were afterwards.

    Of a callable that is no module, those that it refers to (`mixreg._autodiff.reachable`).
    """
    modules = list(dict.fromkeys(module for root in modules_of(net) for module in root.modules()))
    modes = [module.training for module in modules]
    try:
        for module in modules:
            module.training = False
        with without_rules():
            yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode


@contextmanager
def restoring_buffers(net: Network, is_asked: bool = True) -> Iterator[None]:
    """Where what is inside fails, buffers (running statistics) are as they were; nothing is kept if not asked."""
    before = _copied_buffers(net) if is_asked else []
    try:
        yield
    except Exception:
        _put_back(before)
        raise


@contextmanager
def keeping_buffers(net: Network) -> Iterator[None]:
    """Afterwards buffers (running statistics) are as they were."""
    before = _copied_buffers(net)
    try:
        yield
    finally:
        _put_back(before)


def _copied_buffers(net: Network) -> list[tuple[Tensor, Tensor]]:
    return [(buffer, buffer.clone()) for root in modules_of(net) for buffer in root.buffers()]


def _put_back(before: list[tuple[Tensor, Tensor]]) -> None:
    with torch.no_grad():
        for buffer, value in before:
            buffer.copy_(value)


class _Rules:
    """How many have asked for plain networks; of the whole process, as the mode of a module is."""

    suspended = 0


@contextmanager
def without_rules() -> Iterator[None]:
    """Inside, prediction rules that adapters keep on modules (Lightning, Hugging Face) do nothing."""
    _Rules.suspended += 1
    try:
        yield
    finally:
        _Rules.suspended -= 1


def rules_apply() -> bool:
    """Whether an adapter's prediction rule is to be obeyed now."""
    return _Rules.suspended == 0


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


@contextmanager
def uncompiled_calls(net: nn.Module) -> Iterator[None]:
    """Inside, a network that was compiled in place (`net.compile()`) runs as it is, and sees hooks."""
    compiled = {
        module: module._compiled_call_impl for module in net.modules() if module._compiled_call_impl is not None
    }
    try:
        for module in compiled:
            module._compiled_call_impl = None
        yield
    finally:
        for module, call in compiled.items():
            module._compiled_call_impl = call


def unwrapped(net: Any) -> Any:
    """The network itself, out of any wrapper."""
    net = uncompiled(net)
    return uncompiled(net.module) if is_wrapped(net) else net


def within_forward(net: Network, run: Callable[..., Any], *tensors: Tensor) -> Any:
    """`run(forward, module, *tensors)`, where the forward pass of a wrapped network runs.

    The wrapper sees one ordinary forward pass, whatever `run` does with `forward` (what to call) and `module` (where
    the layers are). For a network that is not wrapped both are the network itself.
    """
    if torch.compiler.is_compiling():
        # Compiled code cannot hold the context; it is for training steps, in which adapters keep no rule.
        return _within_forward(net, run, *tensors)
    with without_rules():
        return _within_forward(net, run, *tensors)


def _within_forward(net: Network, run: Callable[..., Any], *tensors: Tensor) -> Any:
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
