"""Inputs without labels, to predict: pictures, folders of pictures, .npz files and tables, a part at a time.

Every part holds the inputs of some rows and what each row is called in the output. However many rows there are, only
one part is in memory: arrays of an .npz are read from the archive as they come, tables by chunks, pictures by batches.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mixreg.data.crops import fitting
from mixreg.data.errors import DataError
from mixreg.data.folders import images_in
from mixreg.data.formats import naming
from mixreg.data.images import ENDINGS as PICTURES
from mixreg.data.images import read_crop
from mixreg.data.stored_members import opened
from mixreg.data.tables import ENDINGS as TABLES
from mixreg.data.tables import chunks_of, matrix

# Arrays of an .npz that hold inputs, the first that is there.
ARRAYS = ("x", "x_test")
ROWS = 1 << 14
# Bytes of one part at the most, but for a single row.
BYTES = 1 << 26


class Part(NamedTuple):
    """names: what rows are called, or their numbers (with the file before a colon, of several files); x: n × … features
    (float32), or n × height × width × channels bytes; its file."""

    names: list[str] | range
    x: np.ndarray
    source: str


def sources(paths: Sequence[Path]) -> list[Path]:
    """All files to read, in order; those of a folder sorted by name."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = images_in(path)
            if not inside:
                raise DataError(f"{path} holds no pictures")
            found += inside
        elif not path.is_file():
            raise DataError(f"{path} is not there")
        elif path.suffix.lower() in (".npz", *TABLES, *PICTURES):
            found.append(path)
        else:
            raise DataError(f"{path} is no picture, no .npz and no table ({', '.join(TABLES)})")
    return found


def parts_of(paths: Sequence[Path], shape: tuple[int, ...], is_images: bool, features: Sequence[str]) -> Iterator[Part]:
    """The parts of files, prepared as far as a network's shape asks for it.

    Args:
        paths: from `sources`.
        shape: of one input, images channels × height × width.
        is_images: whether the network takes images of bytes.
        features: the names of its columns, if it was trained on a table.
    """
    pictures: list[Path] = []
    # Numbers of rows say which they are in one file alone.
    is_one = len(paths) == 1
    most = max(1, BYTES // max(1, math.prod(shape)))
    for path in paths:
        if path.suffix.lower() in PICTURES:
            pictures.append(path)
            if len(pictures) == min(most, 500):
                yield _pictures(pictures, shape, is_images)
                pictures = []
            continue
        if pictures:
            yield _pictures(pictures, shape, is_images)
            pictures = []
        for part in _arrays(path) if path.suffix.lower() == ".npz" else _table(path, shape, features):
            yield part if is_one else part._replace(names=[f"{path}:{row}" for row in part.names])
    if pictures:
        yield _pictures(pictures, shape, is_images)


def _pictures(paths: Sequence[Path], shape: tuple[int, ...], is_images: bool) -> Part:
    if not is_images or len(shape) != 3 or shape[0] not in (1, 3):
        raise DataError(f"{paths[0]} is a picture, and the network takes inputs of shape {shape}")
    images = []
    for path in paths:
        with naming(path):
            image = read_crop(path, partial(fitting, shape=(shape[2], shape[1])))
            images.append(
                np.asarray(image if shape[0] == 3 else image.convert("L")).reshape(shape[1], shape[2], shape[0])
            )
    return Part([str(path) for path in paths], np.stack(images), str(paths[0]))


def _table(path: Path, shape: tuple[int, ...], features: Sequence[str]) -> Iterator[Part]:
    row = 0
    for columns in chunks_of(path, ROWS, features):
        # A network of plain features takes all columns in order.
        x = matrix(columns, features or list(columns), str(path))
        if x.shape[1:] != shape:
            raise DataError(f"{path} has {x.shape[1]} columns of features, the network takes {shape}")
        yield Part(range(row, row + len(x)), x, str(path))
        row += len(x)
    if row == 0:
        raise DataError(f"{path} holds no rows")


def _arrays(path: Path) -> Iterator[Part]:
    with naming(path), zipfile.ZipFile(path) as archive:
        held = [name.removesuffix(".npy") for name in archive.namelist()]
        chosen = next((name for name in ARRAYS if name in held), None)
        if chosen is None:
            raise DataError(f"{path} must hold an array {' or '.join(ARRAYS)}, it holds {', '.join(held) or 'nothing'}")
        with opened(archive, path, f"{chosen}.npy") as file:
            row = 0
            for x in _rows(file):
                yield Part(range(row, row + len(x)), x, str(path))
                row += len(x)


def _rows(file: Any) -> Iterator[np.ndarray]:
    """The rows of an array in NumPy's format, some at a time; nothing in it is run."""
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = read_header(file)
    if dtype.hasobject or not (dtype == np.uint8 or np.issubdtype(dtype, np.floating)):
        raise ValueError(f"its array must hold bytes or floating-point numbers, got {dtype}")
    if len(shape) < 2 or 0 in shape:
        raise ValueError(f"its array must hold samples of at least one number, got shape {shape}")
    if is_fortran:
        raise ValueError("its array is in Fortran's order, by columns: save np.ascontiguousarray of it")
    size = math.prod(shape[1:]) * dtype.itemsize
    at_once = max(1, min(ROWS, BYTES // size))
    for start in range(0, shape[0], at_once):
        count = min(at_once, shape[0] - start)
        part = np.empty((count, *shape[1:]), dtype)
        if not _is_filled(part.reshape(-1).view(np.uint8), file):
            raise ValueError(f"it ends after {start} of {shape[0]} rows")
        yield part if dtype == np.uint8 else part.astype(np.float32, copy=False)


def _is_filled(place: np.ndarray, file: Any) -> bool:
    """Whether a file had enough bytes to fill an array of them."""
    while len(place):
        count = file.readinto(place)
        if not count:
            return False
        place = place[count:]
    return True
