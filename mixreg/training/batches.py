"""Batches of a dataset in memory: one gather, one crop and one scaling for the whole batch, no loader.

Epoch and step name a batch completely. Every process prepares the whole batch, so that partners, crops and means do not
depend on how many processes there are, and trains on its own rows of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from mixreg.data.arrays import Dataset, Split, checksum
from mixreg.streams import stream
from mixreg.training.config import Config

PADDING = 4
# Test images at once: enough to keep cores busy.
TEST_BATCH = 500
# A smaller last batch would be noise, and nothing for batch normalisation.
SMALLEST_REST = 16


class Batch(NamedTuple):
    """x: n × … prepared inputs; y: n class indices; own: the rows this process trains on; total: of all processes."""

    x: Tensor
    y: Tensor
    own: slice
    total: int


class Batches(Protocol):
    """Where training takes its batches from."""

    steps: int
    num_classes: int
    shape: tuple[int, ...]
    pixels: Pixels | None
    # Names of the classes, where they have names; and a checksum of the training data.
    classes: list[str]
    fingerprint: str
    # Whether every process sees whole batches (and so all means), or its own rows only.
    is_whole: bool

    def epoch(self, epoch: int, first_step: int) -> Iterator[Batch]:
        """The batches of an epoch, from `first_step` on."""

    def means(self) -> tuple[Tensor, Tensor]:
        """x̄ and ȳ of what an epoch shows, before it starts."""

    def test_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """This process's share of the test set, prepared, with labels."""

    def held_out_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """All of what was held out of the training set, prepared, with labels."""


def own_rows(count: int, rank: int, world: int) -> slice:
    """The rows of a batch of `count` that process `rank` of `world` trains on."""
    return slice(count * rank // world, count * (rank + 1) // world)


def count_steps(samples: int, batch_size: int, world: int) -> int:
    """Steps of an epoch; a rest of fewer than 16 samples is left out, whatever the number of processes."""
    if min(samples, batch_size) < world:
        raise ValueError(f"batches of {min(samples, batch_size)} samples cannot be shared by {world} processes")
    full, rest = divmod(samples, batch_size)
    return full + (rest >= SMALLEST_REST or full == 0)


class Pixels(NamedTuple):
    """Bytes to numbers: x ↦ (x / 255 − mean) / std per channel; both of shape channels."""

    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, images: np.ndarray) -> Pixels:
        """From training images, n × height × width × channels bytes."""
        # Sums over each value's count: exact, and without a floating-point copy of the images.
        counts = [np.bincount(images[..., c].ravel(), minlength=256) for c in range(images.shape[-1])]
        values = np.arange(256) / 255
        mean = np.array([count @ values / count.sum() for count in counts])
        square = np.array([count @ values**2 / count.sum() for count in counts])
        std = np.sqrt(np.maximum(square - mean**2, 1e-12))
        return cls(torch.from_numpy(mean).float(), torch.from_numpy(std).float())

    def scaled(self, images: Tensor) -> Tensor:
        """N × channels × height × width bytes as float32."""
        scale, shift = 1 / (255 * self.std), -self.mean / self.std
        return images.to(torch.float32, copy=True).mul_(scale.reshape(-1, 1, 1)).add_(shift.reshape(-1, 1, 1))


def prepared(split: Split, pixels: Pixels | None) -> tuple[Tensor, Tensor]:
    """Inputs as the network takes them (still bytes if `pixels` will scale them), channels first; and labels."""
    x = torch.from_numpy(split.x)
    return (x.permute(0, 3, 1, 2).contiguous() if pixels is not None else x), torch.from_numpy(split.y)


def split_holdout(labels: Tensor, config: Config) -> tuple[Tensor, Tensor]:
    """Indices to train on and indices held out, both sorted."""
    order = torch.randperm(len(labels), generator=stream(config.seed, "holdout"))
    held = round(config.holdout * len(labels))
    kept = order[held:][: config.samples or None]
    if len(kept) < max(1, config.samples):
        asked = f"to train on {config.samples}" if config.samples else "to train on"
        raise ValueError(f"holding out {config.holdout:g} of {len(labels)} samples leaves too few {asked}")
    return kept.sort().values, order[:held].sort().values


def noisy_labels(labels: Tensor, num_classes: int, config: Config) -> Tensor:
    """Labels of which exactly the fraction `config.label_noise` is replaced by another class."""
    generator = stream(config.seed, "label noise")
    flipped = torch.randperm(len(labels), generator=generator)[: round(config.label_noise * len(labels))]
    other = torch.randint(1, num_classes, (len(flipped),), generator=generator)
    labels = labels.clone()
    labels[flipped] = (labels[flipped] + other) % num_classes
    return labels


def crop_and_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Images padded by 4 black pixels, cropped at random to their size, mirrored half of the time; n × c × h × w."""
    n, channels, height, width = images.shape
    offset = torch.randint(2 * PADDING + 1, (2, n, 1), generator=generator)
    is_mirrored = torch.rand(n, 1, generator=generator) < 0.5
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
        self.fingerprint = checksum(dataset.train.x) + checksum(dataset.train.y)
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

    def numbers(self, x: Tensor) -> Tensor:
        """Inputs as the network takes them: scaled if they are images."""
        return x if self.pixels is None else self.pixels.scaled(x)

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from `first_step` on."""
        order = torch.randperm(len(self.y), generator=stream(self.config.seed, "order", epoch))
        chosen = order.split(self.config.batch_size)
        for step in range(first_step, self.steps):
            x, y = self.x.index_select(0, chosen[step]), self.y.index_select(0, chosen[step])
            if self.is_augmented:
                x = crop_and_flip(x, stream(self.config.seed, "augment", epoch, step))
            yield Batch(self.numbers(x), y, own_rows(len(y), self.rank, self.world), len(y))

    def test_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """This process's share of the test set, prepared, with labels."""
        mine = slice(self.rank, None, self.world)
        return self._batched(self.test[0][mine], self.test[1][mine])

    def held_out_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """All of what was held out of the training set, prepared, with labels."""
        return self._batched(*self.held_out)

    def _batched(self, x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        for part, labels in zip(x.split(TEST_BATCH), y.split(TEST_BATCH), strict=True):
            yield self.numbers(part), labels

    def means(self) -> tuple[Tensor, Tensor]:
        """x̄ and ȳ exactly, averaged over all crops and flips."""
        # Sums of up to 4,096 bytes are exact in float32, and quicker.
        kind = torch.float64 if self.pixels is None else torch.float32
        sums = [part.to(kind).sum(0).double() for part in self.x.split(4096)]
        mean = torch.stack(sums).sum(0) / len(self.y)
        if self.is_augmented:
            mean = mean_crop_and_flip(mean)
        y_mean = torch.bincount(self.y, minlength=self.num_classes).double() / len(self.y)
        return self.numbers(mean).double(), y_mean
