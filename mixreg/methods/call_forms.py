"""How a method is called: with x and y, with one pair, or with what its `collate_fn` drew."""

from __future__ import annotations

from typing import Any


def pair_of(name: str, x: Any, y: Any) -> tuple[Any, Any]:
    """x and y, given as two or as one pair; `name`: of the method."""
    if y is not None:
        return x, y
    if not isinstance(x, (tuple, list)) or len(x) != 2:
        raise TypeError(
            f"{name} takes x and y, or one (x, y) pair, got a single {type(x).__name__}; say where other batches hold "
            "them with inputs= and targets="
        )
    return x[0], x[1]


def is_drawn(x: Any) -> bool:
    """Whether this is what `collate_fn` gave: more rows than the two of a pair."""
    return isinstance(x, (tuple, list)) and len(x) > 2
