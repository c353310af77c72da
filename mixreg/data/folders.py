"""Images in folders: read by worker processes, cropped as ImageNet's are.

`DIR/train/CLASS/*` and `DIR/val/CLASS/*` (or test). Classes are the sorted folder names. The random crop of an image is
drawn from a stream named by seed, epoch and image: it does not depend on workers or on where a run resumes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from mixreg._support.random import stream, uniform
from mixreg.data.arrays import DataError
from mixreg.data.formats import naming
from mixreg.data.images import ENDINGS, FORMATS, OTHER_ENDINGS, begins_like_a_picture, read_rgb

# A picture that is longer than so many times its width is cut before it is scaled.
LONGEST = 32
# The statistics that published ImageNet networks were trained with.
PIXEL_MEAN, PIXEL_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def images_in(folder: Path) -> list[Path]:
    """The image files of a folder, sorted, its subfolders included and what is hidden left out.

    An error names a picture that could not be read: to leave it out without a word would be to train on other data.
    """
    return sorted(_walk(folder, set()))


def _walk(folder: Path, seen: set[tuple[int, int]]) -> Iterator[Path]:
    try:
        place = folder.stat()
        if (place.st_dev, place.st_ino) in seen:
            return  # a link that leads back
        seen.add((place.st_dev, place.st_ino))
        entries = [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error.strerror}") from error
    for entry in entries:
        path = folder / entry.name
        if entry.is_dir():
            yield from _walk(path, seen)
        elif is_picture(path, entry.is_file()):
            yield path


def is_picture(path: Path, is_file: bool) -> bool:
    """Whether a path is a picture that is read; an error where it is one that is not."""
    ending = path.suffix.lower()
    if ending in OTHER_ENDINGS:
        raise DataError(f"{path} is a picture of a kind that is not read; {', '.join(FORMATS)} are")
    if ending in ENDINGS and not is_file:
        raise DataError(f"{path} is named like a picture and is no file, or a link to nothing")
    return ending in ENDINGS or (not ending and is_file and begins_like_a_picture(path))


def class_folders(folder: Path) -> list[Path]:
    """The sorted subfolders of a folder."""
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error.strerror}") from error


def labelled(folder: Path, classes: Sequence[str] | None = None) -> tuple[list[Path], Tensor, list[str]]:
    """The images of a folder of class folders, their class indices, and the names of the classes."""
    folders = class_folders(folder)
    names = list(classes) if classes is not None else [path.name for path in folders]
    paths, labels = [], []
    for path in folders:
        if path.name not in names:
            raise DataError(f"{path} is not one of the {len(names)} classes of the training set")
        found = images_in(path)
        if classes is None and not found:
            raise DataError(f"{path} holds no images: a class needs some ({', '.join(FORMATS)})")
        paths += found
        labels += [names.index(path.name)] * len(found)
    if not paths:
        raise DataError(f"{folder} holds no images in class folders")
    return paths, torch.tensor(labels), names


def part_of(folder: Path, part: str) -> Path:
    """The folder of the training ("train") or the test part ("val" or "test")."""
    names = ("train",) if part == "train" else ("val", "test", "validation")
    for name in names:
        if (folder / name).is_dir():
            return folder / name
    raise DataError(f"{folder} has no folder {' or '.join(names)}; expected train/CLASS/* and val/CLASS/*")


def centre_crop(image: Image.Image, size: int) -> Image.Image:
    """The middle of the image after its shorter side was scaled to 256 for a crop of 224."""
    shorter = round(size * 256 / 224)
    width, height = image.size
    if max(width, height) > LONGEST * min(width, height):
        # Scaled as a whole, 1 × 30,000 pixels would become 256 × 7,680,000.
        w, h = min(width, LONGEST * height), min(height, LONGEST * width)
        left, top = (width - w) // 2, (height - h) // 2
        image, width, height = image.crop((left, top, left + w, top + h)), w, h
    scale = shorter / min(width, height)
    image = image.resize((max(size, round(width * scale)), max(size, round(height * scale))), Image.Resampling.BILINEAR)
    left, top = (image.size[0] - size) // 2, (image.size[1] - size) // 2
    return image.crop((left, top, left + size, top + size))


def random_crop(image: Image.Image, size: int, generator: torch.Generator) -> Image.Image:
    """A window of 8 to 100 % of the area and of aspect 3/4 to 4/3, scaled to size × size and mirrored half the time."""
    width, height = image.size
    mirrored = float(uniform((), generator)) < 0.5
    for _ in range(10):
        area, aspect, across, down = uniform((4,), generator, torch.float64).tolist()
        area = width * height * (0.08 + 0.92 * area)
        aspect = math.exp(math.log(3 / 4) + aspect * math.log(16 / 9))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(across * (width - w + 1)), int(down * (height - h + 1))
            image = image.resize((size, size), Image.Resampling.BILINEAR, (left, top, left + w, top + h))
            break
    else:
        image = centre_crop(image, size)
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirrored else image


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
        self.paths, self.labels, self.size, self.seed, self.border = list(paths), labels, size, seed, border

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, key: tuple[int, int]) -> tuple[Tensor, int]:
        """The image of this epoch and index."""
        epoch, index = key
        path = self.paths[index]
        with naming(path):
            image = read_rgb(path)
            if self.border:
                width, height = image.size
                image = image.crop((self.border, self.border, width - self.border, height - self.border))
            if self.seed is None:
                image = centre_crop(image, self.size)
            else:
                image = random_crop(image, self.size, stream(self.seed, "augment", epoch, index))
        return torch.from_numpy(np.array(image)).permute(2, 0, 1), int(self.labels[index])


def read_batches(
    files: ImageFiles, indices: Iterable[Sequence[int]], epoch: int, workers: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of images and labels, one for each list of indices."""
    sampler = [[(epoch, int(index)) for index in batch] for batch in indices]
    loader: DataLoader[tuple[Tensor, int]] = DataLoader(files, batch_sampler=sampler, num_workers=workers)
    try:
        yield from loader
    except DataError as error:
        # A worker's error arrives wrapped in its traceback; the last line is the sentence.
        raise DataError(str(error).strip().splitlines()[-1].split("DataError: ")[-1]) from error
