"""Which argument of a call is the network's input."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any


def first_parameter(function: Callable[..., Any]) -> str | None:
    """What a function calls its first argument; None where it takes any, or does not say."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    first = next(iter(parameters), None)
    is_one = first is not None and first.kind in (first.POSITIONAL_OR_KEYWORD, first.KEYWORD_ONLY)
    return first.name if first is not None and is_one else None


def input_among(given: Mapping[str, Any], first: str | None) -> str:
    """Which of the keywords of a call is the network's input; `first`: what the network calls its first argument."""
    if first is None and len(given) == 1:
        return next(iter(given))
    if first is None or first not in given:
        raise TypeError(
            f"the network was called without {'its input' if first is None else repr(first)}, with "
            f"{', '.join(given) or 'nothing'}: give the input first, or by the name of the network's first argument"
        )
    return first
