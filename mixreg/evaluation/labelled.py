"""Labelled data to judge or to fit a trained network with, prepared as its run prepared its own.

Of a dataset that has a test part, that part; of one that has none, all of it. A run's own training set is not needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mixreg._support.tasks import CLASSES
from mixreg.data.arrays import Split, whole
from mixreg.data.errors import DataError
from mixreg.data.folders import ImageFiles, labelled, part_of, read_batches
from mixreg.data.loading import is_table, load, read_table, table_parts
from mixreg.data.registry import EMBEDDED, IMAGENET, RECIPES, imagenet_folder
from mixreg.data.tables import chosen_targets, matrix, targets_of
from mixreg.training.array_batches import TEST_BATCH, channels_first
from mixreg.training.held_out_fit import Again
from mixreg.training.trained import Trained


def labelled_batches(trained: Trained, data: str, workers: int = 2) -> Again:
    """Batches of (x, y), x as the network takes it and y as it learnt them.

    Args:
        trained: whose classes, columns and scaling count.
        data: a dataset's name, a file, or a folder.
        workers: processes that read images from folders.
    """
    folder = imagenet_folder() if data == IMAGENET else Path(data)
    is_known = data in EMBEDDED or data in RECIPES
    if not is_known and folder.is_dir() and not table_parts(folder):
        return _from_folder(trained, folder, workers)
    split = _checked(trained, data, _split_of(trained, data))
    x, y = channels_first(split)
    scaling = trained.targets.scaling

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for part, labels in zip(x.split(TEST_BATCH), y.split(TEST_BATCH), strict=True):
            yield trained.preparation.prepared(part), labels if scaling is None else scaling.scaled(labels)

    return Again(batches)


def _split_of(trained: Trained, data: str) -> Split:
    how, path, task = trained.preparation, Path(data), trained.targets.task
    if is_table(path):
        # The network's columns by name, whatever else there is; those of a network of plain features in their order.
        train, test = read_table(path)
        columns = train if test is None else test
        names = chosen_targets(columns, trained.config.target, data)
        features = how.features or [name for name in columns if name not in names]
        classes = (how.classes or [str(k) for k in range(trained.num_classes)]) if task == CLASSES else ()
        y, _ = targets_of(columns, names, task, classes, data)
        return Split(matrix(columns, features, data), y if task == CLASSES else y.astype(np.float32))
    return whole(load(data, "", trained.config.task))


def _checked(trained: Trained, data: str, split: Split) -> Split:
    is_images = split.x.dtype == np.uint8
    shape = tuple(split.x.shape[1:])
    if is_images:
        shape = (shape[2], *shape[:2])
    kinds = ["features" if is_bytes is False else "images" for is_bytes in (trained.pixels is not None, is_images)]
    if shape != trained.shape or kinds[0] != kinds[1]:
        raise DataError(
            f"the network takes {kinds[0]} of shape {trained.shape}, {data} holds {kinds[1]} of shape {shape}"
        )
    is_classes = trained.targets.task == CLASSES
    if is_classes != (split.y.ndim == 1) or (not is_classes and split.y.shape[1] != trained.num_classes):
        raise DataError(
            f"the network predicts {trained.num_classes} {trained.targets.task}, the targets of {data} differ"
        )
    if is_classes and int(split.y.max()) >= trained.num_classes:
        raise DataError(f"the network knows {trained.num_classes} classes, {data} has {int(split.y.max()) + 1}")
    return split


def _from_folder(trained: Trained, folder: Path, workers: int) -> Again:
    if trained.pixels is None:
        raise DataError(f"the network takes features of shape {trained.shape}, {folder} is a folder of images")
    try:
        place = part_of(folder, "test")
    except DataError:
        place = folder
    paths, labels, _ = labelled(place, trained.preparation.classes)
    size, pixels = trained.config.image_size, trained.pixels
    if trained.shape != (3, size, size):
        raise DataError(f"the network takes images of shape {trained.shape}, not pictures from a folder")
    files = ImageFiles(paths, labels, size, None)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        indices = [part.tolist() for part in torch.arange(len(files)).split(100)]
        for x, y in read_batches(files, indices, 0, workers):
            yield pixels.scaled(x.contiguous(memory_format=torch.channels_last)), y

    return Again(batches)
