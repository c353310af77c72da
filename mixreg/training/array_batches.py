"""Batches of a dataset in memory: one gather, one crop and one scaling for the whole batch, no loader."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from mixreg._support.random import integers, permutation, stream, uniform
from mixreg.data import fingerprints
from mixreg.data.arrays import Dataset, Split
from mixreg.theory.moments import DataMoments
from mixreg.training.batches import Batch, Pixels, count_steps, noisy_labels, own_rows, split_holdout
from mixreg.training.config import Config

PADDING = 4
# Test images at once: enough to keep cores busy.
TEST_BATCH = 500


def prepared(split: Split, pixels: Pixels | None) -> tuple[Tensor, Tensor]:
    """Inputs as the network takes them (still bytes if `pixels` will scale them), channels first; and labels."""
    x = torch.from_numpy(split.x)
    return (x.permute(0, 3, 1, 2).contiguous() if pixels is not None else x), torch.from_numpy(split.y)


def crop_and_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Images padded by 4 black pixels, cropped at random to their size, mirrored half of the time; n × c × h × w."""
    n, channels, height, width = images.shape
    offset = integers(2 * PADDING + 1, (2, n, 1), generator)
    is_mirrored = uniform((n, 1), generator) < 0.5
    across = torch.arange(width).expand(n, -1)
    columns = torch.where(is_mirrored, width - 1 - across, across) + offset[1]
    rows = torch.arange(height) + offset[0]
    position = rows.unsqueeze(2) * (width + 2 * PADDING) + columns.unsqueeze(1)
    padded = torch.nn.functional.pad(images, [PADDING] * 4).flatten(2)
    return padded.gather(2, position.reshape(n, 1, -1).expand(-1, channels, -1)).reshape(images.shape)


def mean_crop_and_flip(mean: Tensor) -> Tensor:
    """E of `crop_and_flip`, which is linear, applied to a mean image: c × h × w."""
    side = 2 * PADDING + 1
    padded = torch.nn.functional.pad(mean, [PADDING] * 4)
    # The mean over all offsets is a box filter.
    shifted = torch.nn.functional.avg_pool2d(padded.unsqueeze(0), side, stride=1)[0]
    return (shifted + shifted.flip(2)) / 2


class ArrayBatches:
    """Batches of a dataset in memory; see `Batches`.

    Args:
        dataset: whose training part is used, but for what is held out.
        config: of the run.
        rank, world: this process and how many there are.
        pixels: how to scale bytes, if not by the training images' own statistics.
    """

    is_whole = True

    def __init__(
        self, dataset: Dataset, config: Config, rank: int = 0, world: int = 1, pixels: Pixels | None = None
    ) -> None:
        self.config, self.rank, self.world = config, rank, world
        self.num_classes = dataset.num_classes
        self.classes: list[str] = []
        self.fingerprint = fingerprints.of_dataset(dataset)
        self.pixels = (pixels or Pixels.of(dataset.train.x)) if dataset.is_images else None
        x, y = prepared(dataset.train, self.pixels)
        kept, held = split_holdout(y, config)
        self.held_out = x[held], y[held]
        self.x, self.y = (x, y) if len(kept) == len(y) else (x[kept], y[kept])
        self.y = noisy_labels(self.y, self.num_classes, config)
        self.test = prepared(dataset.test, self.pixels)
        self.shape = tuple(self.x.shape[1:])
        self.is_augmented = self.pixels is not None and config.augment == "standard"
        self.steps = count_steps(len(self.y), config.batch_size, world)

    def scaled(self, x: Tensor) -> Tensor:
        """Inputs as the network takes them: scaled if they are images."""
        return x if self.pixels is None else self.pixels.scaled(x)

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from `first_step` on."""
        order = permutation(len(self.y), stream(self.config.seed, "order", epoch))
        chosen = order.split(self.config.batch_size)
        for step in range(first_step, self.steps):
            x, y = self.x.index_select(0, chosen[step]), self.y.index_select(0, chosen[step])
            if self.is_augmented:
                x = crop_and_flip(x, stream(self.config.seed, "augment", epoch, step))
            yield Batch(self.scaled(x), y, own_rows(len(y), self.rank, self.world), len(y))

    def test_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """This process's share of the test set, prepared, with labels."""
        mine = slice(self.rank, None, self.world)
        return self._batched(self.test[0][mine], self.test[1][mine])

    def held_out_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """All of what was held out of the training set, prepared, with labels."""
        return self._batched(*self.held_out)

    def _batched(self, x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        for part, labels in zip(x.split(TEST_BATCH), y.split(TEST_BATCH), strict=True):
            yield self.scaled(part), labels

    def moments(self) -> DataMoments:
        """x̄ and ȳ exactly, averaged over all crops and flips."""
        # Sums of up to 4,096 bytes are exact in float32, and quicker.
        kind = torch.float64 if self.pixels is None else torch.float32
        sums = [part.to(kind).sum(0).double() for part in self.x.split(4096)]
        mean = torch.stack(sums).sum(0) / len(self.y)
        if self.is_augmented:
            mean = mean_crop_and_flip(mean)
        y_mean = torch.bincount(self.y, minlength=self.num_classes).double() / len(self.y)
        return DataMoments.from_means(self.scaled(mean).double(), y_mean, self.num_classes, len(self.y))
