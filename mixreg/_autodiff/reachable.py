"""The modules that a callable runs.

A network may be a function around a module, `lambda x: net(x).logits`, whose dropout must be off all the same when the
network is measured. Functions say what they refer to: by their closure, their defaults and the global names in their
code. From there modules are looked for in attributes that the code names, in containers and in callable objects.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn

# Whose functions run no module but those that they are given; their own global names would lead through all of them.
_LIBRARIES = {"torch", *sys.stdlib_module_names} - {"__main__"}
_Names = frozenset[str]


def modules_of(net: Any) -> list[nn.Module]:
    """The module that `net` is, or those that a callable refers to; submodules are not listed apart."""
    if isinstance(net, nn.Module):
        return [net]
    found: list[nn.Module] = []
    # Values are kept: the next one must not get the identity of one that is gone.
    seen: dict[int, Any] = {}
    pending: list[tuple[Any, _Names]] = [(net, frozenset())]
    while pending:
        value, names = pending.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, nn.Module):
            found.append(value)
        else:
            pending.extend(_referred(value, names))
    return found


def _referred(value: Any, names: _Names) -> Iterator[tuple[Any, _Names]]:
    """What `value` refers to, each with the attribute names by which code may go on from there."""
    if isinstance(value, FunctionType):
        names = _names_in(value.__code__)
        for cell in value.__closure__ or ():
            try:
                yield cell.cell_contents, names
            except ValueError:
                continue  # not filled yet
        for default in (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()):
            yield default, names
        # Not `__module__`, which a wrapper has from what it wraps.
        if str(value.__globals__.get("__name__")).partition(".")[0] not in _LIBRARIES:
            for name in names & value.__globals__.keys():
                yield value.__globals__[name], names
    elif isinstance(value, MethodType):
        yield value.__func__, names
        yield value.__self__, names | _names_in(getattr(value.__func__, "__code__", None))
    elif isinstance(value, partial):
        for part in (value.func, *value.args, *value.keywords.values()):
            yield part, names
    elif isinstance(value, (list, tuple, set, frozenset, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            # Not every number of a long list.
            if isinstance(part, (nn.Module, list, tuple, dict)) or callable(part) or hasattr(part, "__dict__"):
                yield part, names
    elif isinstance(value, ModuleType):
        for name in names & vars(value).keys():
            yield vars(value)[name], names
    elif not isinstance(value, (type, Tensor)):
        called = getattr(type(value), "__call__", None)  # noqa: B004
        if isinstance(called, FunctionType):
            names |= _names_in(called.__code__)
            yield called, names
        for name, part in _attributes(value):
            # A property may stand before the attribute that holds a module.
            if name in names or isinstance(part, nn.Module):
                yield part, names


def _names_in(code: CodeType | None) -> _Names:
    """The global names and attributes in a function's code, and in that of functions inside it."""
    if code is None:
        return frozenset()
    inner = (_names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return frozenset(code.co_names).union(*inner)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(value, "__dict__", {}).items()
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)
