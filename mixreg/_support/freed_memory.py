"""Memory that is freed stays with the process, for a process that does nothing but train or predict.

A step allocates its activations and gradients and frees them, a few megabytes each. glibc hands such blocks back to the
system, and the next step takes a page fault for every 4 kB of them (`tests/test_freed_memory.py` counts them). Told to
keep them, it gives the next step the memory of the last one. A process holds on to the most it ever
had, so this is for commands and their workers, not for whoever imports the package.
"""

from __future__ import annotations

import ctypes

# Of malloc.h, for mallopt.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
# What glibc accepts at most: larger blocks come from the system each time.
_LARGEST_BLOCK = 32 << 20
_KEPT = (1 << 31) - 1
_AHEAD = 64 << 20


def keep_freed_memory() -> bool:
    """Whether the C library could be told to keep what is freed; where it knows no such thing nothing is done."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    wanted = ((_MMAP_THRESHOLD, _LARGEST_BLOCK), (_TRIM_THRESHOLD, _KEPT), (_TOP_PAD, _AHEAD))
    told = [mallopt(name, value) == 1 for name, value in wanted]
    return all(told)
