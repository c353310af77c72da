"""What training takes: whole batches named by epoch and step, the same in every process that holds the data.

Epoch and step name a batch completely. Where every process prepares the whole batch, partners, crops and means do not
depend on how many processes there are; each trains on its own rows of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from mixreg._support.random import integers, permutation, stream
from mixreg.data.errors import DataError
from mixreg.theory.moments import DataMoments
from mixreg.training.config import Config
from mixreg.training.targets import Scaling, Targets

# A smaller last batch would be noise, and nothing for batch normalisation.
SMALLEST_REST = 16


class Batch(NamedTuple):
    """x: n × … prepared inputs; y: n class indices; own: the rows this process trains on; total: of all processes.

    `x_mean` is the mean of x in float64, where it came cheaper than from x itself.
    """

    x: Tensor
    y: Tensor
    own: slice
    total: int
    x_mean: Tensor | None = None

    def add_to(self, moments: DataMoments) -> None:
        """Take the batch in."""
        if self.x_mean is None or moments.covariance or moments.by_class is not False:
            moments.update(self.x, self.y)
        else:
            moments.update_by_mean(self.x_mean, self.y)


class Batches(Protocol):
    """Where training takes its batches from."""

    steps: int
    num_classes: int
    shape: tuple[int, ...]
    # A checksum of the training data.
    fingerprint: str
    # How what the network sees is prepared.
    preparation: Preparation
    # What the network learns to predict; `num_classes` of them.
    targets: Targets
    # Targets of all training samples, as they are learnt: n class indices, or n × c.
    y: Tensor
    # How many samples were cut off for testing, from data that had no test part.
    cut_off: int
    # Whether every process sees whole batches (and so all means), or its own rows only.
    is_whole: bool

    def epoch(self, epoch: int, first_step: int) -> Iterator[Batch]:
        """The batches of an epoch, from `first_step` on."""

    def moments(self) -> DataMoments:
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
        # Sums over each value's count: exact. Some images at a time: counting makes integers of bytes.
        counts = np.zeros((images.shape[-1], 256), dtype=np.int64)
        at_once = max(1, (1 << 22) // images[0].size)
        for start in range(0, len(images), at_once):
            part = images[start : start + at_once]
            for c in range(images.shape[-1]):
                counts[c] += np.bincount(part[..., c].ravel(), minlength=256)
        values = np.arange(256) / 255
        mean = np.array([count @ values / count.sum() for count in counts])
        square = np.array([count @ values**2 / count.sum() for count in counts])
        std = np.sqrt(np.maximum(square - mean**2, 1e-12))
        return cls(torch.from_numpy(mean).float(), torch.from_numpy(std).float())

    def scaled(self, images: Tensor) -> Tensor:
        """N × channels × height × width bytes as float32, in their memory format."""
        return self._scaled(images.to(torch.float32, copy=True))

    def scaled_with_mean(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The same, and its mean over the images in float64.

        Sums of up to 65,793 bytes (more images than a batch has) are exact in float32, in whatever order, and a product
        with ones is the quickest way to them.
        """
        n, channels, height, width = images.shape
        values = images.to(torch.float32, copy=True)
        lying = values.permute(0, 2, 3, 1).reshape(n, -1)
        sums = lying.new_ones(n) @ lying
        mean = (sums.double() / n).reshape(height, width, channels).permute(2, 0, 1)
        # Scaled with the roundings of the images themselves, which show where a channel hardly varies.
        return self._scaled(values), self._scaled(mean.float()).double()

    def _scaled(self, values: Tensor) -> Tensor:
        """… × channels × height × width values of bytes, scaled in place."""
        scale, shift = 1 / (255 * self.std), -self.mean / self.std
        if values.ndim == 4 and values.is_contiguous(memory_format=torch.channels_last):
            # As one row for each image: loops over as few numbers as there are channels take eight times as long.
            rows = values.permute(0, 2, 3, 1).flatten(1)
            scales, shifts = (t.expand(rows.shape[1] // len(t), -1).reshape(-1) for t in (scale, shift))
            rows.mul_(scales).add_(shifts)
            return values
        return values.mul_(scale.reshape(-1, 1, 1)).add_(shift.reshape(-1, 1, 1))


@dataclass(frozen=True)
class Preparation:
    """How a run prepared what its network sees; data that is to be shown to it later is prepared alike.

    Attributes:
        pixels: how bytes are scaled.
        columns: how the features of a table are.
        outputs: how numbers to regress on are.
        classes: names of classes, or of targets.
        features: names of a table's columns.
    """

    pixels: Pixels | None = None
    columns: Scaling | None = None
    outputs: Scaling | None = None
    classes: tuple[str, ...] = ()
    features: tuple[str, ...] = ()

    def prepared(self, x: Tensor) -> Tensor:
        """Inputs as the network takes them: bytes n × channels × height × width, or features n × …."""
        if self.pixels is not None:
            return self.pixels.scaled(x)
        return x if self.columns is None else self.columns.scaled(x)


def split_holdout(labels: Tensor, config: Config) -> tuple[Tensor, Tensor]:
    """Indices to train on and indices held out, both sorted."""
    order = permutation(len(labels), stream(config.seed, "holdout"))
    held = round(config.holdout * len(labels))
    kept = order[held:][: config.samples or None]
    if len(kept) < max(1, config.samples):
        asked = f"to train on {config.samples}" if config.samples else "to train on"
        raise ValueError(f"holding out {config.holdout:g} of {len(labels)} samples leaves too few {asked}")
    return kept.sort().values, order[:held].sort().values


def noisy_labels(labels: Tensor, num_classes: int, config: Config) -> Tensor:
    """Labels of which exactly the fraction `config.label_noise` is replaced by another class."""
    generator = stream(config.seed, "label noise")
    flipped = permutation(len(labels), generator)[: round(config.label_noise * len(labels))]
    other = 1 + integers(num_classes - 1, (len(flipped),), generator)
    labels = labels.clone()
    labels[flipped] = (labels[flipped] + other) % num_classes
    return labels


def require_two_classes(labels: Tensor, classes: Sequence[str], name: str) -> None:
    """An error where a network would learn to say the same of everything; `classes` are their names, if they have."""
    if (labels == labels[0]).all():
        label = classes[int(labels[0])] if classes else int(labels[0])
        raise DataError(f"{name}: all training labels are {label!r}, and a classifier tells at least two apart")
