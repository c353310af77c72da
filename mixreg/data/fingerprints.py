"""Whether data is still what it was: fingerprints that a run keeps with its checkpoints and its model.

Arrays are known by the SHA-256 of each. A folder of images is known by the names and sizes of all its files and by the
bytes of all of them, up to 1 GiB. Reading more at every start would take longer than it is worth: of a larger folder
as many files as make 1 GiB are read, chosen by the checksums of their names. There, a file that was replaced by another
one of exactly its size can go unnoticed; names, sizes and whatever changes many files cannot.

The fingerprint of a large folder is kept beside its listing, with a checksum of the names, sizes, devices, inodes,
modification and change times of all files. While that is the same no file has been written to, and none is read again.
Times only say whether to read: they are no part of the fingerprint, and a folder may be copied.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import TypeVar

import numpy as np

from mixreg._support.files import digest, write_json
from mixreg.data import listings
from mixreg.data.arrays import DataError, Dataset, checksum
from mixreg.data.listings import BITS
from mixreg.data.paths import Paths

READ_BYTES = 1 << 30
# Disks and file servers answer several questions in the time of one: so many threads ask, for so many files each.
_THREADS, _AT_ONCE = 8, 500

T = TypeVar("T")
U = TypeVar("U")


def of_dataset(dataset: Dataset) -> str:
    """The fingerprint of training and test arrays."""
    return "".join(checksum(array) for split in (dataset.train, dataset.test) for array in split)


def of_folder(folder: Path, train: Sequence[Path], test: Sequence[Path]) -> str:
    """The fingerprint of these files of a folder."""
    names = [_names(folder, part) for part in (train, test)]
    began, together = time.time_ns(), names[0] + names[1]
    place = listings.remembered(folder, ".json") if len(together) >= listings.SMALLEST else None
    try:
        found = _found(folder, together)
        stamp = _stamp(names, found)
        kept = None if place is None else _kept(place, stamp)
        if kept is not None:
            return kept
        fingerprint = _computed(folder, names, found[:, 0])
    except OSError as error:
        raise DataError(f"{os.fsdecode(error.filename)} cannot be read: {error.strerror}") from error
    if place is not None and _is_settled(found, began):
        with contextlib.suppress(OSError):
            write_json(place, {"stamp": stamp, "fingerprint": fingerprint})
            listings.forget_oldest(place.parent)
    return fingerprint


def _is_settled(found: np.ndarray, began: int) -> bool:
    """Whether a file that is written to from now on will have other times: see `mixreg.data.listings`."""
    is_fuse = np.isin(found[:, 1], list(listings.fuse_devices())).any()
    return not is_fuse and int(found[:, 3:].max()) < began - listings.SETTLED_NS


def _names(folder: Path, paths: Sequence[Path]) -> list[bytes]:
    if isinstance(paths, Paths):
        return paths.names_below(folder)
    return [os.fsencode(path.relative_to(folder)) for path in paths]


def _found(folder: Path, names: Sequence[bytes]) -> np.ndarray:
    """Size, device, inode, modification and change time of every file: n × 5."""
    prefix = os.fsencode(os.path.join(folder, ""))

    def rows(part: Sequence[bytes]) -> np.ndarray:
        stats = [os.stat(prefix + name) for name in part]
        columns = [(s.st_size, s.st_dev & BITS, s.st_ino & BITS, s.st_mtime_ns, s.st_ctime_ns) for s in stats]
        return np.array(columns, np.int64).reshape(-1, 5)

    return np.concatenate([np.zeros((0, 5), np.int64), *_in_parts(rows, names)])


def _in_parts(function: Callable[[Sequence[T]], U], items: Sequence[T]) -> list[U]:
    """What a function gives for every part of the items, in order."""
    parts = (items[start : start + _AT_ONCE] for start in range(0, len(items), _AT_ONCE))
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(function, parts))


def _stamp(names: Sequence[Sequence[bytes]], found: np.ndarray) -> str:
    total = hashlib.sha256(f"{READ_BYTES} {[len(part) for part in names]}".encode())
    for part in names:
        total.update(b"\0".join(part))
    total.update(np.ascontiguousarray(found, "<i8").tobytes())
    return total.hexdigest()


def _kept(place: Path, stamp: str) -> str | None:
    """The fingerprint that was kept with this stamp; None, if there is none or it cannot be read."""
    try:
        if place.is_symlink() or not place.is_file():
            return None
        kept = json.loads(place.read_bytes())
        fingerprint = kept["fingerprint"] if kept["stamp"] == stamp else ""
        return fingerprint if re.fullmatch("[0-9a-f]{192}", fingerprint) else None
    except (OSError, LookupError, TypeError, ValueError):
        return None


def _computed(folder: Path, names: Sequence[Sequence[bytes]], sizes: np.ndarray) -> str:
    texts = [os.fsdecode(name) for part in names for name in part]
    lines = [f"{text} {size}" for text, size in zip(texts, sizes.tolist(), strict=True)]
    split = len(names[0])
    chosen = [texts[index] for index in _read(texts, sizes)]
    sums = _in_parts(lambda part: [digest(folder / text) for text in part], chosen)
    return _checksum(lines[:split]) + _checksum(lines[split:]) + _checksum(chain.from_iterable(sums))


def _read(texts: Sequence[str], sizes: np.ndarray) -> list[int]:
    """The files whose bytes count, in the order of the checksums of their names."""
    sums = b"".join(hashlib.sha256(text.encode(errors="surrogateescape")).digest() for text in texts)
    # A checksum as four large numbers, the first of which counts most; the last key of a sort does.
    order = np.lexsort(np.frombuffer(sums, ">u8").reshape(-1, 4).T[::-1])
    before = np.cumsum(sizes[order]) - sizes[order]
    return order[before < READ_BYTES].tolist()


def _checksum(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()


def is_unchanged(kept: str, found: str) -> bool:
    """Whether data with the fingerprint `found` is what `kept` was taken of.

    Earlier versions kept the first part only: of what they knew nothing, nothing is said.
    """
    return bool(kept) and found.startswith(kept)
