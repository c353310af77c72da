"""A batch with its Taylor coefficients along a line, taken out of forward mode and put back.

Along x + tδ every layer has a value, a first and a second derivative in t,

    u(t) = u + t u̇ + ½ t² ü + …,

its *jet*. Nested forward mode carries four tensors for it (u̇ twice, since it cannot know that both directions are the
same) and composes each derivative of small steps. Where a layer has a closed form for its jet (`closed_forms`), its
three tensors are computed outside of forward mode, with ordinary reverse mode over them, and handed back as what nested
forward mode expects; whatever has none goes the general way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import pop_dynamic_layer_stack, push_dynamic_layer_stack
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
from torch.autograd import forward_ad
from torch.autograd.forward_ad import unpack_dual

_WIDE = (torch.float32, torch.float64)


class Jet(NamedTuple):
    """u, u̇ and ü (all of one shape); a second derivative of None is 0, or was not asked for."""

    value: Tensor
    first: Tensor
    second: Tensor | None = None


def linear(value: Tensor, jet: Jet, slope: Callable[[Tensor], Tensor]) -> Jet:
    """The jet of a function with that value whose derivative is the same linear map everywhere near."""
    return Jet(value, slope(jet.first), None if jet.second is None else slope(jet.second))


class Order:
    """How many derivatives are under way: 1 or 2 levels of forward mode that were entered here, and no others.

    Args:
        derivatives: how many levels will be entered.
    """

    def __init__(self, derivatives: int) -> None:
        # Inside of somebody else's transformation a level below could be theirs, in another direction.
        is_outermost = not _levels() and forward_ad._current_level < 0
        self.derivatives = derivatives if is_outermost else 0
        self._with_gradients = torch.is_grad_enabled()
        self._made: Tensor | None = None

    def jet(self, x: Any) -> Jet | None:
        """The jet of x; None if x does not move, or is not of a kind that can be taken out."""
        # A dual tensor is a view, and views made without gradients may not be changed in place with them.
        if type(x) is not Tensor or x.dtype not in _WIDE or torch.is_grad_enabled() is not self._with_gradients:
            return None
        # Modes have nothing to say to what follows, and would be asked at every step of it.
        with torch._C.DisableTorchFunction():
            return self._jet(x)

    def _jet(self, x: Tensor) -> Jet | None:
        levels = _levels()
        if not levels or len(levels) != self.derivatives or torch._C._functorch.maybe_get_level(x) != levels[-1]:
            return None
        value, first = _unpacked(x)
        if first is None:
            return None
        if len(levels) == 1:
            return Jet(_inner(value), _inner(first))
        with temporarily_pop_interpreter_stack():
            (value, slope), (_, second) = _unpacked(_inner(value)), _unpacked(_inner(first))
        if slope is None:
            return None
        return Jet(_inner(value), _inner(slope), None if second is None else _inner(second))

    def was_just_made(self, x: Any) -> bool:
        """Whether x came from `tensor` and this was not asked since."""
        made, self._made = self._made, None
        return x is not None and x is made

    def tensor(self, jet: Jet) -> Tensor:
        """What forward mode carries for a jet."""
        with torch._C.DisableTorchFunction():
            self._made = self._tensor(jet)
        return self._made

    def _tensor(self, jet: Jet) -> Tensor:
        levels = _levels()
        if len(levels) == 1:
            return _dual(jet.value, jet.first, levels[0])
        # u̇ stands in two places, and either may be written to.
        with outside_of_forward_mode():
            again = jet.first.clone()
        with temporarily_pop_interpreter_stack():
            below = _dual(jet.value, jet.first, levels[0])
            moved = _wrapped(again, levels[0]) if jet.second is None else _dual(again, jet.second, levels[0])
        return _dual(below, moved, levels[1])


def _levels() -> list[int]:
    """Of the transformations that are under way, the first one entered first."""
    return [part.level() for part in torch._C._functorch.get_interpreter_stack() or ()]


class outside_of_forward_mode:
    """Inside, tensors of a jet are ordinary ones, and functions what they are."""

    def __enter__(self) -> None:
        # Not as a generator, and not PyTorch's own: every layer enters it, and that took longer than it does.
        self._modes: Any = torch._C.DisableTorchFunction()
        self._modes.__enter__()
        self._transformations: list[Any] = []
        while torch._C._functorch.peek_interpreter_stack() is not None:
            self._transformations.append(pop_dynamic_layer_stack())

    def __exit__(self, *error: object) -> None:
        while self._transformations:
            push_dynamic_layer_stack(self._transformations.pop())
        self._modes.__exit__(*error)


def moves(x: Tensor) -> bool:
    """Whether x has a tangent, or does not tell.

    Tensors inside a `vmap` do not, nor do tensors of other kinds that know few operations.
    """
    try:
        return unpack_dual(x).tangent is not None
    except (RuntimeError, TypeError):
        return True


def _unpacked(x: Tensor) -> tuple[Tensor, Tensor | None]:
    """`unpack_dual`, without its questions."""
    found: tuple[Tensor, Tensor | None] = torch._VF._unpack_dual(x, level=0)
    return found


def _inner(x: Tensor) -> Tensor:
    return torch._C._functorch.get_unwrapped(x) if torch._C._functorch.is_functorch_wrapped_tensor(x) else x


def _wrapped(x: Tensor, level: int) -> Tensor:
    return torch._C._functorch._wrap_for_grad(x, level)


def _dual(value: Tensor, tangent: Tensor, level: int) -> Tensor:
    dual: Tensor = torch._VF._make_dual(_wrapped(value, level), _wrapped(tangent, level), level=0)
    return dual


def composed(function: Callable[[Tensor], Tensor], jet: Jet) -> tuple[Tensor, ...]:
    """The jet of a function by nested forward mode: u, u̇ and, if `jet` has one, ü."""
    jvp: Any = torch.func.jvp
    if jet.second is None:
        return jvp(function, (jet.value,), (jet.first,))
    (value, first), (_, second) = jvp(
        lambda x, moved: jvp(function, (x,), (moved,)), (jet.value, jet.first), (jet.first, jet.second)
    )
    return value, first, second
