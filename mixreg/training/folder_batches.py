"""Batches from a folder of class folders.

Here a process reads only its own rows: partners and means are those of its own share of a batch, and means are joined
when they are needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from mixreg._support.random import permutation, stream
from mixreg._support.tasks import CLASSES
from mixreg.data import fingerprints, folders
from mixreg.data.folders import ImageFiles, labelled, part_of, read_batches
from mixreg.theory.moments import DataMoments
from mixreg.training.batches import (
    Batch,
    Pixels,
    Preparation,
    count_steps,
    noisy_labels,
    own_rows,
    require_two_classes,
    split_holdout,
)
from mixreg.training.config import Config
from mixreg.training.targets import Targets

# Images read at once for testing: few enough for 224 × 224 pixels.
TEST_BATCH = 100


class FolderBatches:
    """Batches from `DIR/train/CLASS/*`; see `Batches`.

    Args:
        folder: with train and val (or test).
        config: of the run.
        rank, world: this process and how many there are.
        workers: processes that read images.
        like: how to scale bytes, if not as published ImageNet networks do, and classes, if not all subfolders of train.
    """

    is_whole, cut_off = False, 0

    def __init__(
        self,
        folder: Path,
        config: Config,
        rank: int = 0,
        world: int = 1,
        workers: int = 2,
        like: Preparation | None = None,
    ) -> None:
        self.config, self.rank, self.world, self.workers = config, rank, world, workers
        like = like or Preparation()
        paths, labels, classes = labelled(part_of(folder, "train"), like.classes or None)
        self.num_classes = max(2, len(classes))
        self.targets = Targets(CLASSES, self.num_classes)
        test_paths, test_labels, _ = labelled(part_of(folder, "test"), classes)
        self.fingerprint = fingerprints.of_folder(folder, paths, test_paths)
        kept, held = split_holdout(labels, config)
        require_two_classes(labels[kept], classes, str(folder))
        self.y = noisy_labels(labels[kept], self.num_classes, config)
        seed = config.seed if config.augment == "standard" else None
        size = config.image_size
        self.files = ImageFiles(paths.chosen(kept.numpy()), self.y, size, seed)
        self.held_out = ImageFiles(paths.chosen(held.numpy()), labels[held], size, None)
        self.test = ImageFiles(test_paths, test_labels, size, None)
        self.shape: tuple[int, ...] = (3, size, size)
        self.pixels = like.pixels or Pixels(torch.tensor(folders.PIXEL_MEAN), torch.tensor(folders.PIXEL_STD))
        self.preparation = Preparation(self.pixels, classes=tuple(classes))
        self.steps = count_steps(len(self.y), config.batch_size, world)

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from `first_step` on: this process's rows of each."""
        order = permutation(len(self.y), stream(self.config.seed, "order", epoch))
        chosen = order.split(self.config.batch_size)[first_step : self.steps]
        own = (part[own_rows(len(part), self.rank, self.world)].tolist() for part in chosen)
        for part, (x, y) in zip(chosen, read_batches(self.files, own, epoch, self.workers), strict=True):
            yield Batch(self.scaled(x), y, slice(None), len(part))

    def scaled(self, x: Tensor) -> Tensor:
        """Images as the network takes them."""
        return self.pixels.scaled(x.contiguous(memory_format=torch.channels_last))

    def _read(self, files: ImageFiles, rank: int, world: int) -> Iterator[tuple[Tensor, Tensor]]:
        indices = [part.tolist() for part in torch.arange(rank, len(files), world).split(TEST_BATCH)]
        for x, y in read_batches(files, [part for part in indices if part], 0, self.workers):
            yield self.scaled(x), y

    def test_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """This process's share of the test set, prepared, with labels."""
        return self._read(self.test, self.rank, self.world)

    def held_out_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """All of what was held out of the training set, prepared, with labels."""
        return self._read(self.held_out, 0, 1)

    def moments(self) -> DataMoments:
        """x̄ from one pass over the training images with crops of their own, and ȳ of all labels."""
        seen = DataMoments(self.num_classes)
        for batch in self.epoch(-1):
            seen.update(batch.x, batch.y)
        y_mean = torch.bincount(self.y, minlength=self.num_classes).double() / len(self.y)
        return DataMoments.from_means(seen.joined().x_mean, y_mean, self.num_classes, len(self.y))
