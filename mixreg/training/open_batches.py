"""The batches of a run: from a folder of class folders, or from arrays in memory."""

from __future__ import annotations

from pathlib import Path

from mixreg.data.arrays import DataError
from mixreg.data.registry import EMBEDDED, IMAGENET, RECIPES, imagenet_folder, is_parquet_folder, load
from mixreg.training.array_batches import ArrayBatches
from mixreg.training.batches import Batches, Pixels
from mixreg.training.config import Config
from mixreg.training.folder_batches import FolderBatches


def open_batches(
    config: Config,
    rank: int = 0,
    world: int = 1,
    data: str | None = None,
    pixels: Pixels | None = None,
    classes: list[str] | None = None,
    workers: int = 2,
) -> Batches:
    """The batches of a run, or of other `data` prepared like a run's (with its `pixels` and `classes`)."""
    name = config.data if data is None else data
    if not name:
        raise DataError("a dataset is named, got ''")
    if name == IMAGENET and imagenet_folder().is_dir():
        return FolderBatches(imagenet_folder(), config, rank, world, workers, pixels, classes or None)
    is_known = name in EMBEDDED or name in RECIPES
    if not is_known and Path(name).is_dir() and not is_parquet_folder(Path(name)):
        return FolderBatches(Path(name), config, rank, world, workers, pixels, classes or None)
    return ArrayBatches(load(name), config, rank, world, pixels)
