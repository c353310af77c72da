"""A dataset in memory: images or features with class labels, as plain arrays in one file.

The cache holds one safetensors file per dataset: tensors only, nothing that could run. Labels are class indices.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mixreg._support.files import write_bytes
from mixreg.data.errors import DataError as DataError
from mixreg.data.limits import require_bounded

# More than any dataset has, and few enough to make a network for.
MOST_CLASSES = 100_000


class Split(NamedTuple):
    """x: n × height × width × channels (uint8), or n × … (float32); y: n class indices (int64)."""

    x: np.ndarray
    y: np.ndarray


@dataclass(frozen=True)
class Dataset:
    """Data to train on and to test on.

    Attributes:
        name: what to call it.
        train, test: the two parts.
        num_classes: labels lie in 0..num_classes − 1.
    """

    name: str
    train: Split
    test: Split
    num_classes: int

    @property
    def is_images(self) -> bool:
        """Whether the inputs are images of bytes."""
        return self.train.x.dtype == np.uint8


def checked(name: str, train: Split, test: Split) -> Dataset:
    """The dataset of these arrays, or an error that says what is wrong with them."""
    parts = []
    for part, split in (("train", train), ("test", test)):
        x, y = split
        if x.dtype != np.uint8 and not np.issubdtype(x.dtype, np.floating):
            raise DataError(f"{name}: x_{part} must be uint8 images or floating point, got {x.dtype}")
        if x.ndim < 2 or 0 in x.shape[1:]:
            raise DataError(f"{name}: x_{part} must hold samples of at least one number, got shape {x.shape}")
        if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
            raise DataError(f"{name}: y_{part} must be a vector of class indices, got {y.dtype} of shape {y.shape}")
        if len(x) != len(y) or len(x) == 0:
            raise DataError(f"{name}: x_{part} has {len(x)} samples and y_{part} has {len(y)}")
        if x.dtype == np.uint8 and x.ndim not in (3, 4):
            raise DataError(f"{name}: images must be n × height × width (× channels), got shape {x.shape}")
        if x.dtype != np.uint8 and not (np.abs(x) <= np.finfo(np.float32).max).all():
            raise DataError(f"{name}: x_{part} holds values that are not finite")
        if int(y.min()) < 0 or int(y.max()) >= MOST_CLASSES:
            raise DataError(
                f"{name}: labels lie in 0..{MOST_CLASSES - 1}, y_{part} holds {int(y.min())} to {int(y.max())}"
            )
        x = x[..., None] if x.dtype == np.uint8 and x.ndim == 3 else x
        parts.append(Split(x if x.dtype == np.uint8 else x.astype(np.float32), y.astype(np.int64)))
    if parts[0].x.shape[1:] != parts[1].x.shape[1:]:
        raise DataError(f"{name}: training inputs are {parts[0].x.shape[1:]} and test inputs {parts[1].x.shape[1:]}")
    classes = 1 + max(int(split.y.max()) for split in parts)
    return Dataset(name, parts[0], parts[1], max(classes, 2))


def checksum(array: np.ndarray) -> str:
    """SHA-256 of an array's bytes in C order."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def cache_folder() -> Path:
    """Where datasets are kept: `MIXREG_DATA`, else the user's cache."""
    own = os.environ.get("MIXREG_DATA")
    place = Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "mixreg"
    try:
        return place.expanduser()
    except RuntimeError as error:
        named = f"MIXREG_DATA={own}" if own else str(place)
        raise DataError(f"datasets cannot be kept in {named}: nobody's home folder is known by that name") from error


def save(path: Path, dataset: Dataset, note: dict[str, str]) -> None:
    """Write a dataset to the cache; `note` says where it came from."""
    from safetensors.numpy import save as serialise

    arrays = {
        "x_train": dataset.train.x,
        "y_train": dataset.train.y,
        "x_test": dataset.test.x,
        "y_test": dataset.test.y,
    }
    record = {"name": dataset.name, **note, "sha256": {key: checksum(value) for key, value in arrays.items()}}
    content = {key: np.ascontiguousarray(value) for key, value in arrays.items()}
    write_bytes(path, serialise(content, {"mixreg": json.dumps(record, sort_keys=True)}))


Sums = tuple[str, str, str, str]
_ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def published_sums(dataset: Dataset) -> Sums:
    """SHA-256 of x_train, y_train, x_test and y_test as recipes give them: labels are bytes."""
    x_train, x_test = checksum(dataset.train.x), checksum(dataset.test.x)
    y_train, y_test = (
        # Larger labels would lose what makes them larger.
        checksum(y.astype(np.uint8)) if int(y.max()) <= 255 else "labels above 255"
        for y in (dataset.train.y, dataset.test.y)
    )
    return x_train, y_train, x_test, y_test


def require_sums(dataset: Dataset, sums: Sums) -> None:
    """An error that names the first array of which the checksum is another one."""
    for key, found, expected in zip(_ARRAYS, published_sums(dataset), sums, strict=True):
        if found != expected:
            raise DataError(f"{key} does not match its checksum")


def load_cached(path: Path, sums: Sums | None = None) -> Dataset:
    """Read a dataset from the cache.

    Args:
        path: the file.
        sums: the checksums of its arrays; where none are known, those that the file itself gives.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            record = dict(json.loads((file.metadata() or {})["mixreg"]))
            arrays = {key: file.get_tensor(key) for key in _ARRAYS}
    except (SafetensorError, KeyError, OSError, TypeError, ValueError) as error:
        raise DataError(f"{path} is broken ({error}); delete it and get the dataset again") from error
    train, test = Split(arrays["x_train"], arrays["y_train"]), Split(arrays["x_test"], arrays["y_test"])
    try:
        dataset = checked(record.get("name", path.stem), train, test)
        if sums is not None:
            require_sums(dataset, sums)
        else:
            for key, value in arrays.items():
                if record.get("sha256", {}).get(key) != checksum(value):
                    raise DataError(f"{key} does not match its checksum")
    except DataError as error:
        raise DataError(f"{path} is broken ({error}); delete it and get it again") from error
    return dataset


def load_npz(path: Path) -> Dataset:
    """A dataset of one's own: an .npz with x_train, y_train, x_test, y_test."""
    content = read_npz(path, ("x_train", "y_train", "x_test", "y_test"))
    parts = [Split(content[f"x_{part}"], content[f"y_{part}"]) for part in ("train", "test")]
    return checked(path.stem, *parts)


def read_npz(path: Path, needed: tuple[str, ...]) -> dict[str, np.ndarray]:
    """All arrays of an .npz, which must hold the needed ones; nothing in it is run."""
    try:
        with path.open("rb") as file:
            with zipfile.ZipFile(file) as archive:
                unpacked = sum(member.file_size for member in archive.infolist())
            require_bounded(path, unpacked, path.stat().st_size)
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                content = {key: arrays[key] for key in arrays.files}
    except DataError:
        raise
    except Exception as error:
        # Broken archives raise almost anything.
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{path} is not an .npz with plain arrays {', '.join(needed)}: {reason}") from error
    if any(key not in content for key in needed):
        held = ", ".join(content) or "nothing"
        raise DataError(f"{path} is not an .npz with plain arrays {', '.join(needed)}: it holds {held}")
    return content
