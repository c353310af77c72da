"""Many files in little memory.

A million `Path`s take 400 MB, and every process that reads some of them copies them: to look at an object changes its
count of references. Names in one array of bytes take what they are long, and are shared by all processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import overload

import numpy as np


class Paths(Sequence[Path]):
    """Files below a folder; each becomes a `Path` when it is asked for.

    Args:
        folder: that they are in.
        names: their paths relative to it.
    """

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        self.folder = folder
        # A file's name may hold any character but this one.
        self._text = np.frombuffer(os.fsencode("\0".join([*names, ""])), np.uint8)
        self._ends = np.flatnonzero(self._text == 0)
        self._starts = np.concatenate([[0], self._ends[:-1] + 1])[: len(self._ends)]

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> Path: ...
    @overload
    def __getitem__(self, index: slice) -> Paths: ...
    def __getitem__(self, index: int | slice) -> Path | Paths:
        """One file, or some."""
        if isinstance(index, slice):
            return self.chosen(np.arange(len(self))[index])
        return self.folder / os.fsdecode(self._text[self._starts[index] : self._ends[index]].tobytes())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(Path.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]

    def chosen(self, indices: Sequence[int] | np.ndarray) -> Paths:
        """The files of these indices, in that order."""
        rows = np.asarray(indices, np.int64)
        few = Paths(self.folder, ())
        few._text, few._starts, few._ends = self._text, self._starts[rows], self._ends[rows]
        return few

    def names_below(self, folder: Path) -> list[bytes]:
        """Their paths relative to a folder above them, as the file system knows them."""
        between = self.folder.relative_to(folder)
        prefix = b"" if between == Path() else os.fsencode(between) + os.fsencode(os.sep)
        text = self._text.tobytes()
        return [prefix + text[start:end] for start, end in zip(self._starts.tolist(), self._ends.tolist(), strict=True)]
