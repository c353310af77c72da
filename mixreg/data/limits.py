"""How much a file may unpack to. A few megabytes can hold zeros for all of a machine's memory.

What unpacks to at most 1 GiB is read, whatever its size; beyond that, a file may unpack to at most 100 times its size:
pictures and measurements do not pack that well, and what does is no data to learn from.
"""

from __future__ import annotations

from mixreg.data.errors import DataError

ALWAYS_BYTES = 1 << 30
MOST_TIMES = 100


def require_bounded(what: object, unpacked: int, packed: int) -> None:
    """An error that names `what` if it would unpack to far more than its size (both in bytes)."""
    if unpacked > max(ALWAYS_BYTES, MOST_TIMES * packed):
        raise DataError(
            f"{what} would unpack from {packed / 1e6:,.1f} to {unpacked / 1e6:,.0f} MB or more: above "
            f"{ALWAYS_BYTES / 1e6:,.0f} MB, files that unpack to more than {MOST_TIMES} times their size are refused"
        )
