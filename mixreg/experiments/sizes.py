"""Sizes of an experiment: those of a scale, with what somebody changed, and whether they make sense.

A scale changes sizes only: `smoke` takes seconds and is part of the tests, `laptop` minutes, `paper` has the sizes of
the paper, as far as it measures what an experiment does. Nothing but theorems is judged at `smoke`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

SCALES = ("smoke", "laptop", "paper")
JUDGED_SCALES = SCALES[1:]

Sizes = Mapping[str, Any]


class SizesError(ValueError):
    """Sizes that make no sense; one sentence that names one of them."""


def changed(sizes: Sizes, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes with those changes that they know, checked to be of the same kind: counts from 1, numbers above 0."""
    known = {name: value for name, value in changes.items() if name in sizes}
    return {**sizes, **{name: _like(sizes[name], value, name) for name, value in known.items()}}


def check_sizes(sizes: Sizes, expected: Sizes) -> None:
    """An error unless these are sizes like the `expected` ones: the same names, values of the same kind."""
    for name in sorted(sizes.keys() ^ expected.keys()):
        raise SizesError(f"{name} is not given" if name in expected else f"there is no size {name!r}")
    for name, value in sizes.items():
        # A list of what was at hand may be empty.
        if value != []:
            _like(expected[name], value, name)


def _like(before: Any, value: Any, name: str) -> Any:
    """A value of the kind of the one before it."""
    if isinstance(before, list):
        given = value if isinstance(value, list) else [value]
        if not given:
            raise SizesError(f"{name} must hold at least one value")
        return [_like(before[0], part, name) if before else part for part in given]
    if isinstance(before, float) and type(value) is int:
        value = float(value)
    if type(before) is not type(value):
        raise SizesError(f"{name} is like {json.dumps(before)}, got {json.dumps(value)}")
    if isinstance(value, (int, float)) and not (math.isfinite(value) and (value > 0 or before <= 0)):
        raise SizesError(f"{name} must be a number above 0, got {value}")
    return value
