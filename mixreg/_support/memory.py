"""Memory for large results, used again once nobody holds it.

Touching a fresh 154 MB tensor (256 images of 3 × 224 × 224) costs one page fault per 4 kB and takes several times
longer than the arithmetic that fills it. Two measures (numbers in benchmarks/mixing.py): take the memory from NumPy,
which asks Linux for 2 MB pages (from 4 MB on), and keep the last block to fill it again.

A lock keeps threads from taking the same block. A forked process starts with nothing: whoever held the lock, or was
about to replace the block, is not there to finish.

A block is free when nothing refers to it: `torch.from_numpy` holds a reference to the array for as long as any tensor,
view, saved activation or exported capsule shares its storage, so the array's reference count tells.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

# Below this a fresh block costs less than looking after an old one.
WORTHWHILE_BYTES = 1 << 22


# NumPy has no bfloat16; any type of its size holds the bits.
_NUMPY_DTYPE = {
    torch.float16: np.float16,
    torch.bfloat16: np.uint16,
    torch.float32: np.float32,
    torch.float64: np.float64,
}


_all: weakref.WeakSet[Recycler] = weakref.WeakSet()


def shares_memory_with_itself(tensor: Tensor) -> bool:
    """Whether two of its numbers may lie at one place: expanded tensors, sliding windows."""
    reach = 1
    for stride, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1):
        if stride < reach:
            return True
        reach = stride * size
    return False


def share_memory(first: Tensor, second: Tensor) -> bool:
    """Whether the memory that one reaches over overlaps with the other's."""
    if first.is_meta or first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr():
        return False
    (a, b), (c, d) = (_span(tensor) for tensor in (first, second))
    return a < d and c < b


def _span(tensor: Tensor) -> tuple[int, int]:
    """Its first byte in its storage, and the one after its last."""
    last = sum(stride * (size - 1) for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
    start = int(tensor.storage_offset()) * tensor.itemsize
    return (start, start + (int(last) + 1) * tensor.itemsize) if tensor.numel() else (start, start)


class Recycler:
    """Hands out uninitialised CPU tensors and reuses the memory of the last one when it is free."""

    def __init__(self) -> None:
        self._start()
        _all.add(self)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._block = np.empty(0, dtype=np.float32)
        self._layout: tuple[Any, ...] = ()
        self._unused_count = sys.getrefcount(self._block)

    def empty_like(self, x: Tensor) -> Tensor:
        """An uninitialised tensor of the shape, floating dtype and memory format of the CPU tensor `x`."""
        if x.nbytes < WORTHWHILE_BYTES or x.dtype not in _NUMPY_DTYPE:
            return torch.empty_like(x)
        return self._again((x.dtype, x.shape, x.stride()), lambda: _empty_array_like(x))

    def _again(self, layout: tuple[Any, ...], make: Callable[[], np.ndarray[Any, Any]]) -> Tensor:
        with self._lock:
            if layout != self._layout or sys.getrefcount(self._block) != self._unused_count:
                self._block = make()
                self._layout = layout
            fresh = torch.from_numpy(self._block)
        return fresh.view(torch.bfloat16) if layout[0] == torch.bfloat16 else fresh

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy in another process or object starts with nothing.
        return Recycler, ()


def _start_again() -> None:
    for recycler in list(_all):
        recycler._start()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_again)


def _empty_array_like(x: Tensor) -> np.ndarray[Any, Any]:
    dtype = np.dtype(_NUMPY_DTYPE[x.dtype])
    if x.is_contiguous():
        return np.empty(x.shape, dtype)
    strides = [step * dtype.itemsize for step in torch.empty_like(x, device="meta").stride()]
    return np.lib.stride_tricks.as_strided(np.empty(x.numel(), dtype), x.shape, strides)
