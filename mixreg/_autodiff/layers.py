"""Layers of a network by name: what goes into one, changed or recorded during forward passes.

A layer is a submodule; "" is the network itself, so that its input is meant.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import checkpoint

from mixreg._autodiff.normalisation import NORMALISATIONS

INPUT = ""


@contextmanager
def changing_input(net: nn.Module, layer: str, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Inside, what goes into `layer` first in each forward pass of `net` is replaced by `change` of it."""
    is_first, needs_gradients = True, True

    def begin(*_: Any) -> None:
        nonlocal is_first, needs_gradients
        is_first, needs_gradients = True, torch.is_grad_enabled()

    def replace(_: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...] | None:
        nonlocal is_first
        if not is_first:
            return None
        is_first = False
        if needs_gradients:
            _refuse_recomputation(layer)
        if not given or not isinstance(given[0], Tensor) or not given[0].is_floating_point():
            value = given[0] if given else None
            kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(f"layer {layer!r} must take one floating-point tensor to be mixed, got {kind}")
        return (change(given[0]), *given[1:])

    handles = [net.register_forward_pre_hook(begin), find_layer(net, layer).register_forward_pre_hook(replace)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _refuse_recomputation(layer: str) -> None:
    """What is checkpointed is computed again in the backward pass, when nothing is changed any more."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename == checkpoint.__file__:
            raise ValueError(
                f"layer {layer!r} lies in a part of the network that torch.utils.checkpoint computes again for its "
                "gradients, where what goes into it cannot be changed; choose a layer outside of it, such as the input"
            )
        frame = frame.f_back


def find_layer(net: nn.Module, layer: str) -> nn.Module:
    """A submodule by its name, as `net.named_modules()` has it; "" is the network itself."""
    modules = dict(net.named_modules())
    if layer not in modules:
        raise ValueError(f"the network has no layer {layer!r}; it has {', '.join(name for name in modules if name)}")
    return modules[layer]


def first_layers(net: nn.Module, count: int = 2) -> list[str]:
    """Where to mix if nobody says: the input, and what goes into the `count` blocks after the first."""
    blocks = [
        name
        for name, child in net.named_children()
        if any(True for _ in child.parameters()) and not isinstance(child, NORMALISATIONS)
    ]
    return [INPUT, *blocks[1:][:count]]


def last_dense(net: nn.Module) -> nn.Linear:
    """The last `nn.Linear` of a network, by the order in which layers are registered: what makes the outputs."""
    layers = [module for module in net.modules() if isinstance(module, nn.Linear)]
    if not layers:
        raise ValueError(f"{type(net).__name__} has no nn.Linear layer that makes its outputs")
    return layers[-1]


@contextmanager
def recording_features(net: nn.Module) -> Iterator[list[Tensor]]:
    """Inside, every forward pass adds its features, what `last_dense` takes in (n × features), to the list."""
    seen: list[Tensor] = []
    handle = last_dense(net).register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    try:
        yield seen
    finally:
        handle.remove()
