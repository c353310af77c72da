"""Published test sets that differ from the training data, in the layouts they are published in.

A shifted set has parts (the corruptions and severities of CIFAR-C and ImageNet-C, or just one), and may have classes of
its own: ImageNet-A keeps 200 of the 1,000 classes; ObjectNet, Vid-Robust and YTBB-Robust merge them into 113, 30 and
24. `members` then says which outputs of a 1,000-way network belong to each class; the probability of a class is the sum
over its members, among members only. (Published accuracies take the largest member, which can differ slightly.)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mixreg._support.near_misses import unknown
from mixreg.data.arrays import DataError, Split
from mixreg.data.corruptions import CORRUPTIONS, corrupted_splits
from mixreg.data.folders import ImageFiles, class_folders, images_in, read_batches
from mixreg.data.formats import naming

ImageBatches = Iterator[tuple[Tensor, Tensor]]
_BATCH = 500


@dataclass(frozen=True)
class Part:
    """One test set of a shifted set.

    Attributes:
        name: the corruption, or the set's own name.
        severity: from 1 to 5, or 0 where there is none.
        batches: gives images (n × channels × h × w bytes) with one label each, in the set's classes.
    """

    name: str
    severity: int
    batches: Callable[[], ImageBatches]


@dataclass(frozen=True)
class ShiftedSet:
    """A shifted test set.

    Attributes:
        kind: its layout, a key of `LAYOUTS`.
        parts: an iterator over its parts, read when they are asked for.
        members: outputs of the network for each class, or None if classes are the network's own.
        allowed: for videos, all right classes of each image.
        neighbourhoods: for videos, the image numbers of each anchor frame followed by its neighbours.
    """

    kind: str
    parts: Callable[[], Iterator[Part]]
    members: list[list[int]] | None = None
    allowed: list[list[int]] | None = None
    neighbourhoods: list[list[int]] | None = None


def subsets() -> dict[str, Any]:
    """ImageNet indices (of 0..999) that the classes of other sets consist of."""
    content = files("mixreg.data").joinpath("imagenet_subsets.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(content)
    return loaded


def _array_batches(split: Split) -> Callable[[], ImageBatches]:
    def batches() -> ImageBatches:
        for start in range(0, len(split.y), _BATCH):
            x = torch.from_numpy(np.array(split.x[start : start + _BATCH]))
            yield x.permute(0, 3, 1, 2), torch.from_numpy(np.array(split.y[start : start + _BATCH])).long()

    return batches


def file_batches(
    paths: list[Path], labels: list[int], size: int, workers: int, border: int = 0
) -> Callable[[], ImageBatches]:
    """Images of files, cropped in the middle."""
    if not paths:
        raise DataError("a shifted set holds no images: its folders are there and empty")

    def batches() -> ImageBatches:
        images = ImageFiles(paths, torch.tensor(labels), size, None, border)
        return read_batches(images, [part.tolist() for part in torch.arange(len(paths)).split(100)], 0, workers)

    return batches


def _cifar_c(folder: Path, size: int, workers: int) -> ShiftedSet:
    """CORRUPTION.npy with 5 blocks of images, severity by severity, and labels.npy."""
    with naming(folder / "labels.npy"):
        labels = np.load(folder / "labels.npy", allow_pickle=False)
        labels = labels.astype(labels.dtype.newbyteorder("="))
        if not np.issubdtype(labels.dtype, np.integer) or int(labels.min()) < 0:
            raise ValueError(f"it must hold class indices, got {labels.dtype}")
        if labels.ndim != 1 or len(labels) % 5 or not (labels.reshape(5, -1) == labels[: len(labels) // 5]).all():
            raise ValueError("it must hold the labels of 5 equal blocks")
    count = len(labels) // 5
    names = [name for name in CORRUPTIONS if (folder / f"{name}.npy").is_file()]
    if not names:
        raise DataError(f"{folder} holds none of {', '.join(list(CORRUPTIONS)[:3])}.npy, …")

    def parts() -> Iterator[Part]:
        for name in names:
            path = folder / f"{name}.npy"
            with naming(path):
                images = np.load(path, mmap_mode="r", allow_pickle=False)
                if images.dtype != np.uint8 or images.ndim != 4 or len(images) != len(labels):
                    raise ValueError(f"expected {len(labels)} images of bytes, got {images.dtype} {images.shape}")
            for severity in range(1, 6):
                rows = slice((severity - 1) * count, severity * count)
                yield Part(name, severity, _array_batches(Split(images[rows], labels[rows])))

    return ShiftedSet("cifar-c", parts)


def _imagenet_c(folder: Path, size: int, workers: int) -> ShiftedSet:
    """CORRUPTION/SEVERITY/WNID/*, with or without folders noise, blur, weather, digital, extra above."""
    places = {path.name: path for path in [*folder.glob("*"), *folder.glob("*/*")] if path.name in CORRUPTIONS}
    if not places:
        raise DataError(f"{folder} holds no folder of a corruption (gaussian_noise, …)")

    def parts() -> Iterator[Part]:
        for name in CORRUPTIONS:
            for severity in range(1, 6) if name in places else ():
                paths, labels = by_class(places[name] / str(severity), 1000)
                yield Part(name, severity, file_batches(paths, labels, size, workers))

    return ShiftedSet("imagenet-c", parts)


def by_class(folder: Path, classes: int) -> tuple[list[Path], list[int]]:
    """Images of class folders, labelled by the rank of the folder's name, of which there must be `classes`."""
    found = class_folders(folder)
    if len(found) != classes:
        raise DataError(f"{folder} has {len(found)} class folders, expected {classes}")
    paths, labels = [], []
    for label, path in enumerate(found):
        images = images_in(path)
        paths += images
        labels += [label] * len(images)
    return paths, labels


def _imagenet_a(folder: Path, size: int, workers: int) -> ShiftedSet:
    """WNID/* for 200 classes; the network chooses among these."""
    paths, labels = by_class(folder, 200)
    members = [[index] for index in subsets()["imagenet-a"]]
    return _single("imagenet-a", file_batches(paths, labels, size, workers), members)


def _imagenet_v2(folder: Path, size: int, workers: int) -> ShiftedSet:
    """0/* to 999/*: the folder's name is the label, whatever its rank among strings."""
    paths, labels = [], []
    for path in class_folders(folder):
        if not path.name.isdecimal() or not 0 <= int(path.name) < 1000:
            raise DataError(f"{path} is not a class of ImageNetV2: folders are named 0 to 999")
        images = images_in(path)
        paths += images
        labels += [int(path.name)] * len(images)
    if not paths:
        raise DataError(f"{folder} holds no images in folders 0 to 999")
    return _single("imagenet-v2", file_batches(paths, labels, size, workers))


def _objectnet(folder: Path, size: int, workers: int) -> ShiftedSet:
    """images/NAME/*: the 113 classes that ImageNet has too; a red border of 2 pixels is cut off."""
    names: dict[str, list[int]] = subsets()["objectnet"]
    folder = folder / "images" if (folder / "images").is_dir() else folder
    paths, labels = [], []
    for label, name in enumerate(names):
        images = images_in(folder / name) if (folder / name).is_dir() else []
        paths += images
        labels += [label] * len(images)
    if not paths:
        raise DataError(f"{folder} holds no images of ObjectNet's classes (alarm_clock, …)")
    return _single("objectnet", file_batches(paths, labels, size, workers, border=2), list(names.values()))


def _single(kind: str, batches: Callable[[], ImageBatches], members: list[list[int]] | None = None) -> ShiftedSet:
    return ShiftedSet(kind, lambda: iter([Part(kind, 0, batches)]), members)


def generated(split: Split, seed: int = 0) -> ShiftedSet:
    """Corruptions of a test set of images in memory, made on the spot."""

    def parts() -> Iterator[Part]:
        for name, severity, corrupted in corrupted_splits(split, seed):
            yield Part(name, severity, _array_batches(corrupted))

    return ShiftedSet("corruptions", parts)


def open_shifted(kind: str, folder: Path, size: int = 224, workers: int = 2) -> ShiftedSet:
    """A published shifted set in its folder; `size`: of the crops of image files."""
    from mixreg.data.videos import vid_robust, ytbb_robust

    layouts = LAYOUTS | {"vid-robust": vid_robust, "ytbb-robust": ytbb_robust}
    if kind not in layouts:
        raise DataError(unknown("layout", kind, layouts))
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder")
    return layouts[kind](folder, size, workers)


LAYOUTS: dict[str, Callable[[Path, int, int], ShiftedSet]] = {
    "cifar-c": _cifar_c,
    "imagenet-c": _imagenet_c,
    "imagenet-a": _imagenet_a,
    "imagenet-v2": _imagenet_v2,
    "objectnet": _objectnet,
}
