"""A method from its name: what `mixreg train --method cutmix` and an adapter's `method="cutmix"` both mean by it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from mixreg._support.random import stream_seed
from mixreg.methods import described, load_method
from mixreg.methods.description import require_options
from mixreg.methods.method import Method, Setting


def checked_options(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a method by name, each of its type; those of one's own class are for its constructor to check."""
    require_options(name, given, load_method(name).options)
    known = described()[name].options if name in described() else {}
    return {option: known[option].checked(value) if option in known else value for option, value in given.items()}


def usual_alpha(name: str) -> float:
    """The α that a method has where nobody gives one: its constructor's (RegMixup's is 10), or 1."""
    found = inspect.signature(load_method(name)).parameters.get("alpha")
    return 1.0 if found is None or found.default is found.empty else float(found.default)


def build_named(name: str, setting: Setting, seed: int | None = None) -> Method:
    """The method of this name.

    Args:
        name: of a method, or package.module:Class.
        setting: what is known of network and data.
        seed: of what a method learns beside the network, which starts from weights of its own; by default PyTorch's
            global random number generator is used for it.
    """
    kind = load_method(name)
    checked_options(name, setting.options)
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(stream_seed(seed, "policy"))
        try:
            return kind.build(setting)
        except TypeError as error:
            if "unexpected keyword argument" not in str(error) and "missing" not in str(error):
                raise
            raise TypeError(
                f"{name} cannot be made of alpha, num_classes and its options ({error}); give it a "
                "classmethod build(setting)"
            ) from error
