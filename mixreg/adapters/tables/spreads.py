"""Weighted standard deviations of columns in any unit.

Squares of numbers above 10¹⁵⁴ overflow and those of numbers below 10⁻¹⁵⁴ vanish. With a power of two 2ᵏ near the
largest of a column, s(v) = 2ᵏ s(2⁻ᵏ v) squares numbers around 1, and is the same to the last bit where neither
happens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

# Beyond it, and below its inverse, columns are divided by their largest number first.
_LARGE = 2.0**400


def weighted_spread(rows: Any, center: np.ndarray, share: np.ndarray) -> np.ndarray:
    """The standard deviation of each column: d.

    Args:
        rows: n × d, an array or CSR.
        center: its weighted means, d.
        share: weights that sum to 1, n.
    """
    largest = abs(rows).max(0).toarray().ravel() if sparse.issparse(rows) else np.abs(rows).max(0, initial=0)
    is_extreme = (largest > _LARGE) | ((largest < 1 / _LARGE) & (largest > 0))
    # Not below 2⁻¹⁰²²: what is smaller has no inverse.
    unit = np.exp2(np.where(is_extreme, np.clip(np.frexp(largest)[1], -1022, 1023), 0).astype(float))
    center = center / unit
    if sparse.issparse(rows):
        scaled = rows.multiply(1 / unit).tocsr()
        squares = np.asarray(share @ scaled.multiply(scaled)).ravel() - center**2
    else:
        squares = share @ (rows / unit - center) ** 2
    return unit * np.sqrt(np.maximum(squares, 0))
