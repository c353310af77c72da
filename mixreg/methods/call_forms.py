"""How a method is called: with x and y, with one pair, or with what its `collate_fn` drew."""

from __future__ import annotations

from typing import Any


def pair_of(name: str, x: Any, y: Any, is_told_where: bool = False) -> tuple[Any, Any]:
    """x and y, given as two or as one pair.

    Args:
        name: of the method.
        x: one's inputs, or the pair.
        y: one's targets, or None.
        is_told_where: whether the method has `inputs` and `targets` to say where other batches hold them.
    """
    if y is not None:
        return x, y
    if not isinstance(x, (tuple, list)) or len(x) != 2:
        raise TypeError(
            f"{name} takes x and y, or one (x, y) pair, got a single {type(x).__name__}"
            + ("; say where other batches hold them with inputs= and targets=" if is_told_where else "")
        )
    return x[0], x[1]


def drawn_rows(name: str, x: Any, y: Any, count: int | None) -> tuple[Any, ...] | None:
    """What `collate_fn` gave, so many rows if that is known; None for x and y or a pair of them."""
    if y is not None or not isinstance(x, (tuple, list)) or len(x) <= 2:
        return None
    if count is not None and len(x) != count:
        raise TypeError(
            f"{name} takes x and y, one (x, y) pair, or the {count} rows that its collate_fn gives, got {len(x)}"
        )
    return tuple(x)
