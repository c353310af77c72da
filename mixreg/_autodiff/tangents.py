"""Directional derivatives of a network in its input, by forward mode; differentiable in the network's parameters.

**Batch normalisation** couples the samples of a batch, while the terms of Theorem 3 are defined for one sample at a
time. In training mode its statistics are computed from the batch as usual and learn as usual, but are held fixed in the
tangent (`mixreg._autodiff.normalisation`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from mixreg._autodiff.closed_forms import closed_forms
from mixreg._autodiff.jets import Order
from mixreg._autodiff.network import (
    Network,
    explaining_dtypes,
    plain_attention,
    refuse_non_finite,
    require_tensor,
    restoring_buffers,
    uncompiled,
    within_forward,
)
from mixreg._autodiff.normalisation import own_statistics
from mixreg._autodiff.reachable import modules_of
from mixreg._autodiff.written_out import written_out

Result = TypeVar("Result")


def tangents(
    net: Network, x: Tensor, delta: Tensor, second_order: bool, validate: bool = True
) -> tuple[Tensor, Tensor, Tensor | None]:
    """f(x), d/dt f(x + tδ) and, if asked for, d²/dt² f(x + tδ) at 0; differentiable in the network's parameters.

    Args:
        net: the network.
        x: n × …
        delta: the directions, of the shape of x.
        second_order: whether the second derivative is asked for.
        validate: outputs that are not finite are refused before a normalisation has learnt from them.
    """
    return within_forward(
        net, lambda f, module, x, delta: tangents_inside(f, module, x, delta, second_order, validate), x, delta
    )


def tangents_of_some(
    net: Network, x: Tensor, others: Tensor, delta: Tensor, second_order: bool, where: Callable[[int], str] | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """f of x (m × …) and then of `others` (k × …), and the derivatives of the first, in one pass for who watches it.

    Args:
        net: the network.
        x: m × …
        others: k × …
        delta: directions for x.
        second_order: whether the second derivative is asked for.
        where: names a row in the error that refuses outputs which are not finite, after which normalisations have
            learnt nothing; None to look at no value.
    """

    def run(f: Network, module: Network, x: Tensor, others: Tensor, delta: Tensor) -> Any:
        with restoring_buffers(module, where is not None):
            u, first, second = tangents_inside(f, module, x, delta, second_order, validate=False)
            rest = require_tensor(f(others))
            if u.ndim == 0 or u.shape[1:] != rest.shape[1:] or len(rest) != len(others):
                raise ValueError(f"the network must return one output for each input, got {tuple(rest.shape)}")
            u = torch.cat([u, rest])
            if where is not None:
                refuse_non_finite(u, "the network's output", where)
        return u, first, second

    return within_forward(net, run, x, others, delta)


def tangents_inside(
    net: Network, module: Network, x: Tensor, delta: Tensor, second_order: bool, validate: bool = True
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The same as `tangents`, for code that already runs where `within_forward` puts it."""
    # What is compiled knows nothing of the rules below: a compiled network, or a compiled step, runs this as it was
    # written.
    if net is module:
        net = module = uncompiled(net)
    run = torch.compiler.disable(_tangents) if torch.compiler.is_compiling() else _tangents
    return run(net, module, x, delta, second_order, validate)


def _tangents(
    net: Network, module: Network, x: Tensor, delta: Tensor, second_order: bool, validate: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """`net` is what to call and `module` where its layers are."""
    _refuse_modules(module)
    jvp: Any = torch.func.jvp
    order = Order(1 + second_order)

    def once(z: Tensor) -> tuple[Tensor, Tensor]:
        # A copy at second order: functorch cannot let a network write to what two levels share.
        return jvp(lambda z: require_tensor(net(z.clone() if second_order else z)), (z,), (delta,))

    def both() -> tuple[Tensor, Tensor, Tensor | None]:
        if not second_order:
            return (*once(x), None)
        (u, first), (_, second) = jvp(once, (x,), (delta,))
        return u, first, second

    with (
        own_statistics(module),
        written_out(x.shape[0] if x.ndim else None, order),
        closed_forms(order),
        plain_attention(),
        explaining_dtypes(module, x),
        _without_recomputation(),
    ):
        u, first, second = _naming_the_layer(module, both)
        # Before anything is learnt from this batch.
        if u.ndim and validate:
            refuse_non_finite(u.detach(), "the network's output", lambda row: f"sample {row}")
    return u, first, second


def _refuse_modules(net: Network) -> None:
    """Scripted ones, and those that wait for their first input.

    TorchScript's optimiser drops tangents from the second call on, without a word, and no rule reaches into it.
    """
    for name, layer in (named for module in modules_of(net) for named in module.named_modules()):
        where = f"layer {name!r}" if name else "the network"
        if isinstance(layer, torch.jit.ScriptModule):
            made_by = "trace" if isinstance(layer, torch.jit._trace.TracedModule) else "script"
            raise TypeError(
                f"{where} comes from torch.jit.{made_by}, which loses the forward-mode derivatives that "
                "ApproximateMixup needs; give it as it was before"
            )
        if isinstance(layer, LazyModuleMixin):
            raise TypeError(f"{where} does not know its size yet; call the network once before training")


@contextmanager
def _without_recomputation() -> Iterator[None]:
    """Inside, `torch.utils.checkpoint` is refused: it would compute again without the rules that hold here."""
    before = torch._C._autograd._saved_tensors_hooks_get_disabled_error_message()
    _disable_hooks(
        "torch.utils.checkpoint and other hooks on saved tensors do not know forward mode; call the network without"
    )
    try:
        yield
    finally:
        if before is None:
            torch._C._autograd._saved_tensors_hooks_enable()
        else:
            _disable_hooks(before)


def _disable_hooks(message: str) -> None:
    disable: Any = torch._C._autograd._saved_tensors_hooks_disable
    try:
        # Hooks around the whole step remain.
        disable(message, fail_if_non_empty=False)
    except TypeError:
        disable(message)  # older versions of PyTorch


def _naming_the_layer(net: Network, run: Callable[[], Result]) -> Result:
    """What `run` returns; where a layer has no forward-mode derivative, an error that names it."""
    try:
        return run()
    except RuntimeError as error:
        # PyTorch says so in a RuntimeError or in a NotImplementedError, which is one.
        text = str(error)
        if not isinstance(net, nn.Module) or not any(word in text for word in ("forward AD", "forward mode", "jvp")):
            raise
        name, layer = _last_entered(net, run)
        raise NotImplementedError(
            f"layer {name!r} ({type(layer).__name__}) has no forward-mode derivative, which ApproximateMixup needs: "
            f"{text.splitlines()[0]}"
        ) from error


def _last_entered(net: nn.Module, run: Callable[[], object]) -> tuple[str, nn.Module]:
    """The module in whose forward pass `run` fails: entered, and never left."""
    entered: list[tuple[str, nn.Module]] = [("", net)]
    hooks = []
    for name, module in net.named_modules():
        hooks.append(module.register_forward_pre_hook(lambda m, _, name=name: entered.append((name, m))))
        hooks.append(module.register_forward_hook(lambda *_: entered.pop() and None))
    try:
        run()
    except RuntimeError:
        pass  # as it did before: this run only finds out where
    finally:
        for hook in hooks:
            hook.remove()
    return entered[-1]
