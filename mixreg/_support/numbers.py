"""Numbers that users give, checked without PyTorch: the command line must answer before it is loaded."""

from __future__ import annotations

import math
from typing import Any


def require_alpha(alpha: Any) -> float:
    """Mixup's α as a float in [0, ∞], or an error that says what was given."""
    if isinstance(alpha, (bool, str)):
        raise TypeError(f"alpha must be a number or a tensor, got {alpha!r}")
    try:
        value = float(alpha)
    except (TypeError, ValueError):
        raise TypeError(f"alpha must be a number or a tensor, got {alpha!r}") from None
    if math.isnan(value) or value < 0:
        raise ValueError(f"alpha must lie in [0, inf], got {alpha!r}")
    return value


def require_weight(weight: float) -> float:
    """The weight of a part of a loss, a finite number of at least 0."""
    if not 0 <= weight < math.inf:
        raise ValueError(f"weight must be a number of at least 0, got {weight!r}")
    return weight


def require_probability(probability: float, name: str) -> float:
    """A probability below 1."""
    if isinstance(probability, (bool, str)) or not 0 <= probability < 1:
        raise ValueError(f"{name} must lie in [0, 1), got {probability!r}")
    return probability
