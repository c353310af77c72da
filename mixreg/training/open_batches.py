"""The batches of a run: from a folder of class folders, or from arrays in memory."""

from __future__ import annotations

from pathlib import Path

from mixreg.data.arrays import DataError
from mixreg.data.loading import load, table_parts
from mixreg.data.registry import EMBEDDED, IMAGENET, RECIPES, imagenet_folder
from mixreg.training.array_batches import ArrayBatches
from mixreg.training.batches import Batches, Preparation
from mixreg.training.config import Config
from mixreg.training.folder_batches import FolderBatches


def open_batches(
    config: Config,
    rank: int = 0,
    world: int = 1,
    like: Preparation | None = None,
    workers: int = 2,
) -> Batches:
    """The batches of a run, prepared as it prepared them before, if it has."""
    name = config.data
    if not name:
        raise DataError("a dataset is named, got ''")
    if name == IMAGENET and imagenet_folder().is_dir():
        return FolderBatches(imagenet_folder(), config, rank, world, workers, like)
    is_known = name in EMBEDDED or name in RECIPES
    if not is_known and Path(name).is_dir() and not table_parts(Path(name)):
        return FolderBatches(Path(name), config, rank, world, workers, like)
    known = () if like is None or not like.features else like.classes
    return ArrayBatches(load(name, config.target, config.task, known), config, rank, world, like)
