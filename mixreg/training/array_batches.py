"""Batches of a dataset in memory: one gather, one crop and one scaling for the whole batch, no loader.

Images are n × channels × height × width with channels last in memory, as datasets keep them and convolutions like them.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from mixreg._support.random import integers, permutation, stream, uniform
from mixreg._support.structure import rows_of
from mixreg._support.tasks import CLASSES, NUMBERS
from mixreg.data import fingerprints
from mixreg.data.arrays import Dataset, Split
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
from mixreg.training.config import UNWEIGHTED, Config
from mixreg.training.targets import Scaling, Targets

PADDING = 4
# Test images at once: enough to keep cores busy.
TEST_BATCH = 500


def channels_first(split: Split) -> tuple[Tensor, Tensor]:
    """Inputs in the order of dimensions that networks take, images still bytes; and targets."""
    x = torch.from_numpy(split.x)
    return (x.permute(0, 3, 1, 2) if x.dtype == torch.uint8 else x), torch.from_numpy(split.y)


def crop_and_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Images padded by 4 black pixels, cropped at random to their size, mirrored half of the time; n × c × h × w."""
    n, channels, height, width = images.shape
    offset = integers(2 * PADDING + 1, (2, n, 1), generator)
    is_mirrored = uniform((n, 1), generator) < 0.5
    across = torch.arange(width).expand(n, -1)
    columns = torch.where(is_mirrored, width - 1 - across, across) + offset[1]
    rows = torch.arange(height) + offset[0]
    position = rows.unsqueeze(2) * (width + 2 * PADDING) + columns.unsqueeze(1)
    padded = torch.nn.functional.pad(images.permute(0, 2, 3, 1), [0, 0, *[PADDING] * 4]).flatten(1, 2)
    cropped = padded.gather(1, position.reshape(n, -1, 1).expand(-1, -1, channels))
    return cropped.reshape(n, height, width, channels).permute(0, 3, 1, 2)


def mean_crop_and_flip(mean: Tensor) -> Tensor:
    """E of `crop_and_flip`, which is linear, applied to a mean image: c × h × w."""
    side = 2 * PADDING + 1
    padded = torch.nn.functional.pad(mean, [PADDING] * 4)
    # The mean over all offsets is a box filter.
    shifted = torch.nn.functional.avg_pool2d(padded.unsqueeze(0), side, stride=1)[0]
    return (shifted + shifted.flip(2)) / 2


def _require_no_class_options(config: Config, task: str) -> None:
    for name, value in (("label_smoothing", config.label_smoothing), ("label_noise", config.label_noise)):
        if value:
            raise ValueError(f"{name} is for classes, and the targets of {config.data} are {task}")
    if config.class_weights != UNWEIGHTED:
        raise ValueError(f"class_weights are for classes, and the targets of {config.data} are {task}")


class ArrayBatches:
    """Batches of a dataset in memory; see `Batches`.

    Args:
        dataset: whose training part is used, but for what is held out.
        config: of the run.
        rank, world: this process and how many there are.
        like: how to prepare inputs and targets; what it leaves open is taken from the training part.
    """

    is_whole = True

    def __init__(
        self,
        dataset: Dataset,
        config: Config,
        rank: int = 0,
        world: int = 1,
        like: Preparation | None = None,
    ) -> None:
        self.config, self.rank, self.world = config, rank, world
        self.num_classes, like = dataset.num_classes, like or Preparation()
        self.cut_off = len(dataset.test.y) if dataset.was_cut else 0
        if dataset.task != CLASSES:
            _require_no_class_options(config, dataset.task)
        self.fingerprint = fingerprints.of_dataset(dataset)
        pixels = (like.pixels or Pixels.of(dataset.train.x)) if dataset.is_images else None
        x, y = channels_first(dataset.train)
        kept, held = split_holdout(y, config)
        self.held_out = rows_of(x, held), y[held]
        self.x, self.y = (x, y) if len(kept) == len(y) else (rows_of(x, kept), y[kept])
        columns = (like.columns or Scaling.of(self.x)) if dataset.features else None
        scaling = (like.outputs or Scaling.of(self.y)) if dataset.task == NUMBERS else None
        self.preparation = Preparation(pixels, columns, scaling, dataset.classes, dataset.features)
        self.targets = Targets(dataset.task, dataset.num_classes, scaling)
        if dataset.task == CLASSES:
            require_two_classes(self.y, dataset.classes, dataset.name)
            self.y = noisy_labels(self.y, self.num_classes, config)
        self.test = channels_first(dataset.test)
        if scaling is not None:
            self.y = scaling.scaled(self.y)
            self.test, self.held_out = ((part[0], scaling.scaled(part[1])) for part in (self.test, self.held_out))
        self.shape = tuple(self.x.shape[1:])
        self.is_augmented = pixels is not None and config.augment == "standard"
        self.steps = count_steps(len(self.y), config.batch_size, world)

    def scaled(self, x: Tensor) -> Tensor:
        """Inputs as the network takes them: images and tables scaled."""
        return self.preparation.prepared(x)

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from `first_step` on."""
        order = permutation(len(self.y), stream(self.config.seed, "order", epoch))
        chosen = order.split(self.config.batch_size)
        for step in range(first_step, self.steps):
            x, y = rows_of(self.x, chosen[step]), self.y.index_select(0, chosen[step])
            if self.is_augmented:
                x = crop_and_flip(x, stream(self.config.seed, "augment", epoch, step))
            own, pixels = own_rows(len(y), self.rank, self.world), self.preparation.pixels
            shown = (self.scaled(x), None) if pixels is None else pixels.scaled_with_mean(x)
            yield Batch(shown[0], y, own, len(y), shown[1])

    def test_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """This process's share of the test set, prepared, with labels."""
        mine = slice(self.rank, None, self.world)
        return self._batched(self.test[0][mine], self.test[1][mine])

    def held_out_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """All of what was held out of the training set, prepared, with labels."""
        return self._batched(*self.held_out)

    def _batched(self, x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        if not len(y):
            return  # `split` would give one empty part
        for part, labels in zip(x.split(TEST_BATCH), y.split(TEST_BATCH), strict=True):
            yield self.scaled(part), labels

    def moments(self) -> DataMoments:
        """x̄ and ȳ exactly, averaged over all crops and flips."""
        # Sums of up to 4,096 bytes are exact in float32, and quicker.
        kind = torch.float64 if self.preparation.pixels is None else torch.float32
        sums = [part.to(kind).sum(0).double() for part in self.x.split(4096)]
        mean = torch.stack(sums).sum(0) / len(self.y)
        if self.is_augmented:
            mean = mean_crop_and_flip(mean)
        if self.targets.task == CLASSES:
            y_mean = torch.bincount(self.y, minlength=self.num_classes).double() / len(self.y)
        else:
            y_mean = self.y.double().mean(0)
        return DataMoments.from_means(self.scaled(mean).double(), y_mean, self.num_classes, len(self.y))
