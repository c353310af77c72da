"""Where a batch holds what is mixed: by position or by key, one or several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

from torch import Tensor

Key = int | str
Keys = Key | Sequence[Key]


def several(keys: Keys) -> tuple[Key, ...]:
    """The keys, if they are several; nothing if there is one."""
    return () if isinstance(keys, (int, str)) else tuple(keys)


def taken(batch: Any, keys: Keys) -> Any:
    """What a batch holds there; of several keys a dict."""
    try:
        return {key: batch[key] for key in several(keys)} if several(keys) else batch[keys]
    except (KeyError, IndexError, TypeError):
        held = (
            list(batch) if isinstance(batch, Mapping) else f"{len(batch)} entries" if hasattr(batch, "__len__") else ""
        )
        raise KeyError(f"the batch, a {type(batch).__name__} of {held}, has nothing at {keys!r}") from None


def placed(inputs: Keys, targets: Keys, x: Any, y: Any) -> dict[Key, Any]:
    """What `taken` took of both, by key; what is an input and a target must have stayed a tensor."""
    of_inputs, of_targets = (
        {keys: value} if isinstance(keys, (int, str)) else value for keys, value in ((inputs, x), (targets, y))
    )
    for key in of_inputs.keys() & of_targets.keys():
        if not isinstance(of_targets[key], Tensor):
            raise ValueError(f"{key!r} is an input and a target: one place cannot hold both the mixture and its parts")
    return {**of_inputs, **of_targets}


def replaced(batch: Any, changed: Mapping[Any, Any]) -> Any:
    """A batch of the same kind with some of its entries changed; the given one stays as it is."""
    if isinstance(batch, (tuple, list)):
        parts = list(batch)
        for key, value in changed.items():
            parts[key] = value
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    # A copy: the constructor of another kind of dict (Hugging Face's BatchFeature) may take something else.
    other = copy(batch)
    for key, value in changed.items():
        other[key] = value
    return other
