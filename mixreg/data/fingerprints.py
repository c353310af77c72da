"""Whether data is still what it was: fingerprints that a run keeps with its checkpoints and its model.

Arrays are known by the SHA-256 of each. A folder of images is known by the names and sizes of all its files and by the
bytes of all of them, up to 1 GiB. Reading more at every start would take longer than it is worth: of a larger folder
as many files as make 1 GiB are read, chosen by the checksums of their names. There, a file that was replaced by another
one of exactly its size can go unnoticed; names, sizes and whatever changes many files cannot.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from mixreg._support.files import digest
from mixreg.data.arrays import DataError, Dataset, checksum

READ_BYTES = 1 << 30


def of_dataset(dataset: Dataset) -> str:
    """The fingerprint of training and test arrays."""
    return "".join(checksum(array) for split in (dataset.train, dataset.test) for array in split)


def of_folder(folder: Path, train: Sequence[Path], test: Sequence[Path]) -> str:
    """The fingerprint of these files of a folder."""
    try:
        sizes = {path: path.stat().st_size for path in (*train, *test)}
        listings = (_checksum(f"{path.relative_to(folder)} {sizes[path]}" for path in part) for part in (train, test))
        return "".join(listings) + _checksum(digest(path) for path in _read(folder, sizes))
    except OSError as error:
        raise DataError(f"{error.filename} cannot be read: {error.strerror}") from error


def _read(folder: Path, sizes: dict[Path, int]) -> list[Path]:
    """The files whose bytes count, in an order of their own."""
    names = {path: hashlib.sha256(str(path.relative_to(folder)).encode(errors="surrogateescape")) for path in sizes}
    chosen, left = [], READ_BYTES
    for path in sorted(sizes, key=lambda path: names[path].digest()):
        if left <= 0:
            break
        chosen.append(path)
        left -= sizes[path]
    return chosen


def _checksum(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()


def is_unchanged(kept: str, found: str) -> bool:
    """Whether data with the fingerprint `found` is what `kept` was taken of.

    Earlier versions kept the first part only: of what they knew nothing, nothing is said.
    """
    return bool(kept) and found.startswith(kept)
