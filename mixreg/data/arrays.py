"""A dataset in memory: images or features with their targets, as plain arrays in one file.

The cache holds one safetensors file per dataset: tensors only, nothing that could run.

    x    uint8 images, n × height × width (× channels), or floating-point features, n × …
    y    integers, n: class indices; a 0/1 or boolean matrix, n × c: several labels at once;
         floating point, n or n × c: numbers to regress on
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mixreg._support.files import write_bytes
from mixreg._support.tasks import CLASSES, LABELS, NUMBERS
from mixreg.data.errors import DataError as DataError
from mixreg.data.precision import require_resolved

# More than any dataset has, and few enough to make a network for.
MOST_CLASSES = 100_000
# Pictures with more are taken for such with their channels first.
LARGEST_CHANNELS = 4
# Where data has no test part, one sample of so many is cut off for it.
CUT = 5


class Split(NamedTuple):
    """x: n × height × width × channels (uint8), or n × … (float32); y: n class indices (int64), or n × c (float32)."""

    x: np.ndarray
    y: np.ndarray


@dataclass(frozen=True)
class Dataset:
    """Data to train on and to test on.

    Attributes:
        name: what to call it.
        train, test: the two parts.
        num_classes: labels lie in 0..num_classes − 1; of other tasks, how many numbers a target has.
        task: what targets are, see `mixreg._support.tasks`.
        classes: names of the classes or of the targets, where they have names.
        features: names of the columns of a table, whose features are standardised before they are learnt from.
        was_cut: whether the test part was cut off the data, which had none.
    """

    name: str
    train: Split
    test: Split
    num_classes: int
    task: str = CLASSES
    classes: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    was_cut: bool = False

    @property
    def is_images(self) -> bool:
        """Whether the inputs are images of bytes."""
        return self.train.x.dtype == np.uint8


def checked(
    name: str, train: Split, test: Split, classes: tuple[str, ...] = (), features: tuple[str, ...] = ()
) -> Dataset:
    """The dataset of these arrays, or an error that says what is wrong with them."""
    parts, tasks = [], []
    for part, (x, y) in (("train", train), ("test", test)):
        task, targets = _checked_targets(name, part, y)
        tasks.append(task)
        parts.append(Split(_checked_inputs(name, part, x), targets))
        if len(x) != len(y) or len(x) == 0:
            raise DataError(f"{name}: x_{part} has {len(x)} samples and y_{part} has {len(y)}")
    if parts[0].x.shape[1:] != parts[1].x.shape[1:]:
        raise DataError(f"{name}: training inputs are {parts[0].x.shape[1:]} and test inputs {parts[1].x.shape[1:]}")
    if parts[0].x.dtype != parts[1].x.dtype:
        raise DataError(f"{name}: x_train is {train.x.dtype} and x_test {test.x.dtype}, images of bytes and features")
    if tasks[0] != tasks[1] or parts[0].y.shape[1:] != parts[1].y.shape[1:]:
        kinds = [f"{task} of shape {part.y.shape[1:]}" for task, part in zip(tasks, parts, strict=True)]
        raise DataError(f"{name}: training targets are {kinds[0]}, test targets {kinds[1]}")
    if tasks[0] == CLASSES:
        width = max(2, len(classes), 1 + max(int(split.y.max()) for split in parts))
    else:
        width = parts[0].y.shape[1]
    return Dataset(name, parts[0], parts[1], width, tasks[0], classes, features)


def _checked_inputs(name: str, part: str, x: np.ndarray) -> np.ndarray:
    if x.dtype != np.uint8 and not np.issubdtype(x.dtype, np.floating):
        raise DataError(f"{name}: x_{part} must be uint8 images or floating point, got {x.dtype}")
    if x.ndim < 2 or 0 in x.shape[1:]:
        raise DataError(f"{name}: x_{part} must hold samples of at least one number, got shape {x.shape}")
    if x.dtype == np.uint8:
        if x.ndim not in (3, 4):
            raise DataError(f"{name}: images must be n × height × width (× channels), got shape {x.shape}")
        x = x[..., None] if x.ndim == 3 else x
        if x.shape[3] > LARGEST_CHANNELS and x.shape[1] <= LARGEST_CHANNELS:
            raise DataError(
                f"{name}: images must be n × height × width × channels, got shape {x.shape}, which looks like channels "
                "first: use x.transpose(0, 2, 3, 1)"
            )
        return x
    if not (np.abs(x) <= np.finfo(np.float32).max).all():
        raise DataError(f"{name}: x_{part} holds values that are not finite")
    if part == "train":
        require_resolved(x.reshape(len(x), -1), f"{name}: x_{part}")
    return x.astype(np.float32)


def _checked_targets(name: str, part: str, y: np.ndarray) -> tuple[str, np.ndarray]:
    """The task and its targets."""
    what = f"{name}: y_{part}"
    is_integer = np.issubdtype(y.dtype, np.integer)
    if y.ndim == 1 and is_integer:
        if len(y) and (int(y.min()) < 0 or int(y.max()) >= MOST_CLASSES):
            held = f"y_{part} holds {int(y.min())} to {int(y.max())}"
            raise DataError(f"{name}: labels lie in 0..{MOST_CLASSES - 1}, {held}")
        return CLASSES, y.astype(np.int64)
    if y.ndim == 2 and y.shape[1] and (is_integer or y.dtype == np.bool_):
        if not ((y == 0) | (y == 1)).all():
            raise DataError(f"{what}: a matrix of integers holds zeros and ones, several labels at once")
        return LABELS, y.astype(np.float32)
    if y.ndim in (1, 2) and 0 not in y.shape[1:] and np.issubdtype(y.dtype, np.floating):
        if not (np.abs(y) <= np.finfo(np.float32).max).all():
            raise DataError(f"{what} holds values that are not finite")
        if part == "train":
            require_resolved(y.reshape(len(y), -1), what)
        return NUMBERS, y.reshape(len(y), -1).astype(np.float32)
    raise DataError(
        f"{what} must be a vector of class indices, a matrix of zeros and ones, or numbers to regress on, got "
        f"{y.dtype} of shape {y.shape}"
    )


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


def as_task(dataset: Dataset, task: str) -> Dataset:
    """The dataset with its targets taken for what `task` says."""
    if task == dataset.task:
        return dataset
    if task == NUMBERS:
        parts = [Split(part.x, part.y.astype(np.float64)) for part in (dataset.train, dataset.test)]
    elif dataset.task == NUMBERS and all((part.y == np.round(part.y)).all() for part in (dataset.train, dataset.test)):
        single = task == CLASSES and dataset.num_classes == 1
        parts = [
            Split(part.x, (part.y[:, 0] if single else part.y).astype(np.int64))
            for part in (dataset.train, dataset.test)
        ]
    else:
        raise DataError(f"the targets of {dataset.name} are {dataset.task}, and cannot be taken for {task}")
    train, test = parts
    return replace(checked(dataset.name, train, test, dataset.classes, dataset.features), was_cut=dataset.was_cut)


def whole(dataset: Dataset) -> Split:
    """What a dataset holds to judge a network by: its test part, or all of it if that was only cut off."""
    if not dataset.was_cut:
        return dataset.test
    x, y = (np.concatenate([first, second]) for first, second in zip(dataset.train, dataset.test, strict=True))
    return Split(x, y)


def cut(dataset: Dataset) -> Dataset:
    """The dataset with a fifth of its training part, chosen at random once and for all, as its test part."""
    x, y = dataset.train
    if len(y) < CUT:
        raise DataError(f"{dataset.name} has no test part, and {len(y)} samples are too few to cut one off")
    from mixreg._support.random import permutation, stream

    order = permutation(len(y), stream("test part")).numpy()
    test, train = np.sort(order[: len(y) // CUT]), np.sort(order[len(y) // CUT :])
    return replace(dataset, train=Split(x[train], y[train]), test=Split(x[test], y[test]), was_cut=True)
