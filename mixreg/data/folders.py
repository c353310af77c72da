"""Images in folders: read by worker processes, cropped as ImageNet's are.

`DIR/train/CLASS/*` and `DIR/val/CLASS/*` (or test). Classes are the sorted folder names. The random crop of an image is
drawn from a stream named by seed, epoch and image: it does not depend on workers or on where a run resumes.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from mixreg._support.random import stream
from mixreg.data.arrays import DataError
from mixreg.data.crops import LONGEST, Crop, centre, centre_crop, random_crop, random_window
from mixreg.data.formats import naming
from mixreg.data.images import FORMATS, read_crop, read_rgb
from mixreg.data.listings import Listing, is_picture
from mixreg.data.paths import Paths

__all__ = [
    "LONGEST",
    "PIXEL_MEAN",
    "PIXEL_STD",
    "ImageFiles",
    "centre_crop",
    "class_folders",
    "images_in",
    "is_picture",
    "labelled",
    "part_of",
    "random_crop",
    "read_batches",
]

# The statistics that published ImageNet networks were trained with.
PIXEL_MEAN, PIXEL_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Batches that each worker prepares before they are asked for: enough for one that takes twice as long as the others.
AHEAD = 2


def images_in(folder: Path) -> list[Path]:
    """The image files of a folder, sorted, its subfolders included and what is hidden left out.

    An error names a picture that could not be read: to leave it out without a word would be to train on other data.
    """
    return [folder / name for name in Listing(folder, is_kept=False).names()]


def class_folders(folder: Path) -> list[Path]:
    """The sorted subfolders of a folder."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error.strerror}") from error
    return sorted(folder / name for name in names)


def labelled(folder: Path, classes: Sequence[str] | None = None) -> tuple[Paths, Tensor, list[str]]:
    """The images of a folder of class folders, their class indices, and the names of the classes."""
    folders = class_folders(folder)
    names = list(classes) if classes is not None else [path.name for path in folders]
    numbers = {name: number for number, name in reversed([*enumerate(names)])}
    listing = Listing(folder, is_kept=True)
    found: list[str] = []
    labels, counts = [], []
    for path in folders:
        if path.name not in numbers:
            raise DataError(f"{path} is not one of the {len(names)} classes of the training set")
        images = listing.names(path.name)
        if classes is None and not images:
            raise DataError(f"{path} holds no images: a class needs some ({', '.join(FORMATS)})")
        found += images
        labels.append(numbers[path.name])
        counts.append(len(images))
    if not found:
        raise DataError(f"{folder} holds no images in class folders")
    listing.keep()
    return Paths(folder, found), torch.tensor(labels).repeat_interleave(torch.tensor(counts)), names


def part_of(folder: Path, part: str) -> Path:
    """The folder of the training ("train") or the test part ("val" or "test")."""
    names = ("train",) if part == "train" else ("val", "test", "validation")
    for name in names:
        if (folder / name).is_dir():
            return folder / name
    raise DataError(f"{folder} has no folder {' or '.join(names)}; expected train/CLASS/* and val/CLASS/*")


class ImageFiles(Dataset[tuple[Tensor, int]]):
    """Images by (epoch, index), as channels × size × size bytes with their labels.

    Args:
        paths: the files.
        labels: their class indices.
        size: of the crops.
        seed: of random crops; None for the middle of the image.
        border: pixels to cut off on every side first.
    """

    def __init__(self, paths: Sequence[Path], labels: Tensor, size: int, seed: int | None, border: int = 0) -> None:
        self.paths, self.labels, self.size, self.seed, self.border = paths, labels, size, seed, border

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, key: tuple[int, int]) -> tuple[Tensor, int]:
        """The image of this epoch and index."""
        path, choose = self.paths[key[1]], partial(self._crop, key)
        with naming(path):
            if self.border:
                image = read_rgb(path)
                width, height = image.size
                image = image.crop((self.border, self.border, width - self.border, height - self.border))
                image = choose(*image.size).of(image)
            else:
                image = read_crop(path, choose)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1), int(self.labels[key[1]])

    def _crop(self, key: tuple[int, int], width: int, height: int) -> Crop:
        if self.seed is None:
            return centre(width, height, self.size)
        return random_window(width, height, self.size, stream(self.seed, "augment", *key))


def read_batches(
    files: ImageFiles, indices: Iterable[Sequence[int]], epoch: int, workers: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of images (channels last in memory) and labels, one for each list of indices and in their order.

    Each worker prepares `AHEAD` batches before they are asked for, and no more: so many are in memory.
    """
    keys = ([(epoch, int(index)) for index in batch] for batch in indices)
    loader: DataLoader[tuple[Tensor, int]] = DataLoader(
        files,
        batch_sampler=keys,
        num_workers=workers,
        prefetch_factor=AHEAD if workers else None,
        collate_fn=_channels_last,
    )
    try:
        yield from loader
        return
    except BaseException as error:
        # What an error passed through keeps the loader alive, and that its workers.
        traceback.clear_frames(error.__traceback__)
        if not isinstance(error, DataError):
            raise
        # A worker's error arrives wrapped in its traceback; the last line is the sentence.
        sentence = str(error).strip().splitlines()[-1].split("DataError: ")[-1]
    raise DataError(sentence)


def _channels_last(samples: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    """Samples as a batch that keeps the pixels' order: the process that trains has nothing left to rearrange."""
    images, labels = default_collate([(image.permute(1, 2, 0), label) for image, label in samples])
    return images.permute(0, 3, 1, 2), labels
