"""A dataset in memory: images or features with class labels, as plain arrays in one file.

The cache holds one safetensors file per dataset: tensors only, nothing that could run. Labels are class indices.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np

from mixreg.files import write_bytes


class DataError(ValueError):
    """A dataset that is missing, broken or not what it claims to be; one sentence that names it."""


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
        if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
            raise DataError(f"{name}: y_{part} must be a vector of class indices, got {y.dtype} of shape {y.shape}")
        if len(x) != len(y) or len(x) == 0:
            raise DataError(f"{name}: x_{part} has {len(x)} samples and y_{part} has {len(y)}")
        if x.dtype == np.uint8 and x.ndim not in (3, 4):
            raise DataError(f"{name}: images must be n × height × width (× channels), got shape {x.shape}")
        if x.dtype != np.uint8 and not np.isfinite(x).all():
            raise DataError(f"{name}: x_{part} holds values that are not finite")
        if int(y.min()) < 0:
            raise DataError(f"{name}: y_{part} holds a negative label, {int(y.min())}")
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
    if os.environ.get("MIXREG_DATA"):
        return Path(os.environ["MIXREG_DATA"]).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "mixreg"


def save(path: Path, dataset: Dataset, note: dict[str, str]) -> None:
    """Write a dataset to the cache; `note` says where it came from."""
    from safetensors.numpy import save as serialise

    arrays = {
        "x_train": dataset.train.x,
        "y_train": dataset.train.y,
        "x_test": dataset.test.x,
        "y_test": dataset.test.y,
    }
    sums = {f"sha256 {key}": checksum(value) for key, value in arrays.items()}
    content = {key: np.ascontiguousarray(value) for key, value in arrays.items()}
    write_bytes(path, serialise(content, {"name": dataset.name, "note": json.dumps(note), **sums}))


def load_cached(path: Path) -> Dataset:
    """Read a dataset from the cache; every array is checked against its checksum."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            note = file.metadata() or {}
            arrays = {key: file.get_tensor(key) for key in ("x_train", "y_train", "x_test", "y_test")}
    except (SafetensorError, OSError, ValueError) as error:
        raise DataError(f"{path} is broken ({error}); delete it and get the dataset again") from error
    for key, value in arrays.items():
        if note.get(f"sha256 {key}") != checksum(value):
            raise DataError(f"{path} is broken ({key} does not match its checksum); delete it and get it again")
    train, test = Split(arrays["x_train"], arrays["y_train"]), Split(arrays["x_test"], arrays["y_test"])
    return checked(note.get("name", path.stem), train, test)


def load_npz(path: Path) -> Dataset:
    """A dataset of one's own: an .npz with x_train, y_train, x_test, y_test."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            parts = [Split(arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in ("train", "test")]
    except (EOFError, KeyError, OSError, TypeError, ValueError, BadZipFile) as error:
        raise DataError(f"{path} is not an .npz with plain arrays x_train, y_train, x_test, y_test: {error}") from error
    return checked(path.stem, *parts)
