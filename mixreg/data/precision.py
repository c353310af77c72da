"""Numbers that 32 bits can tell apart.

Networks learn from 32-bit numbers, 24 bits of each after its first digit. A column of Unix times, 1.7 · 10⁹, moves in
steps of 128 seconds there: what varies by less is constant, without a word. It is refused when data is read, before
anything is cast.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mixreg.data.errors import DataError

# Of a spread: what may be lost to 32 bits; and of a size: what rounding in 64 bits makes of a constant.
_RESOLVED, _ROUNDING = 1e-3, 1e-13


def require_resolved(values: np.ndarray, what: str, names: Sequence[str] = ()) -> None:
    """An error where numbers lie so far from 0 that 32 bits cannot tell them apart.

    Args:
        values: n × d; in 32 bits nothing can be lost any more.
        what: they are, for the error.
        names: of the d columns.
    """
    if values.dtype.itemsize <= 4 or len(values) == 0:
        return
    spread, size = np.ptp(values, 0), np.abs(values).max(0)
    # What differs by rounding alone is constant.
    varies = spread > _ROUNDING * size
    rounded = np.abs(values - values.astype(np.float32)).max(0)
    bad = np.flatnonzero(varies & (rounded > _RESOLVED * spread))
    if len(bad):
        first = int(bad[0])
        where = (
            f"{what}, column {names[first] if len(names) else first!r}" if values.shape[1] > 1 or len(names) else what
        )
        low = float(values[:, first].min())
        raise DataError(
            f"{where} varies by {spread[first]:.3g} from {low:.10g} on, which 32-bit numbers cannot tell apart: "
            "subtract a constant"
        )
