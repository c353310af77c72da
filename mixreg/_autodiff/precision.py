"""Whether a network computes in full precision, wherever in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mixreg._autodiff.network import Network
from mixreg._autodiff.reachable import modules_of

_BYTES = 4


def _is_half(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.dtype.itemsize < _BYTES


@contextmanager
def require_full_precision(net: Network, is_asked: bool) -> Iterator[None]:
    """Inside, an error where a layer has weights or an output in half precision, of its own or by autocast.

    What is compiled is not looked into: its layers are not called one by one.
    """
    roots = modules_of(net) if is_asked else []
    every = [module for root in roots for module in root.modules()]
    if any(module._compiled_call_impl is not None or hasattr(module, "_orig_mod") for module in every):
        roots = []
    hooks = []
    try:
        for name, layer in (named for root in roots for named in root.named_modules()):
            if any(map(_is_half, layer.parameters(recurse=False))):
                _refuse(name, layer)
            if not any(True for _ in layer.children()):
                hooks.append(layer.register_forward_hook(_refusing(name)))
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _refusing(name: str) -> Any:
    def look(layer: nn.Module, _: Any, output: Any) -> None:
        if _is_half(output) or torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu"):
            _refuse(name, layer)

    return look


def _refuse(name: str, layer: nn.Module) -> None:
    raise TypeError(
        f"layer {name!r} ({type(layer).__name__}) computes in half precision, which leaves differences few digits; "
        'use derivatives="forward"'
    )
