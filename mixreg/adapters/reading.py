"""Batches of somebody's loader as pairs (x, y): which can be gone through again, and averaged without a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, Subset

from mixreg._support.processes import rank, world_size
from mixreg.theory.moments import DataMoments


class Pairs:
    """(x, y) of every batch of a loader.

    Args:
        loader: of batches; to be gone through as often as this is.
        read: takes x and y from a batch.
        place: brings a batch to where the network is.
        most: how many batches; by default all.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        read: Callable[[Any], tuple[Any, Any]],
        place: Callable[[Any], Any],
        most: int | None = None,
    ) -> None:
        self.loader, self.read, self.place, self.most = loader, read, place, most

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return (self.read(self.place(batch)) for batch in islice(self.loader, self.most))


def in_order(loader: Any, why: str) -> DataLoader[Any]:
    """The samples of a training loader in their order, each once over all processes, whatever its sampler does.

    Args:
        loader: of PyTorch, with a dataset that has a length.
        why: what needs them, for an error where there is no such thing.
    """
    dataset = getattr(loader, "dataset", None)
    if not isinstance(loader, DataLoader) or dataset is None or isinstance(dataset, IterableDataset):
        raise TypeError(f"{why}, which takes a DataLoader whose dataset has a length, got {type(loader).__name__}")
    own = Subset(dataset, range(rank(), len(dataset), world_size()))
    size = loader.batch_size or 128
    return DataLoader(own, batch_size=size, collate_fn=loader.collate_fn, num_workers=loader.num_workers)


def mean_of_pairs(pairs: Iterable[tuple[Any, Any]], num_classes: int | None) -> DataMoments:
    """x̄ and ȳ of all processes' pairs; what the datasets draw meanwhile from PyTorch's generator is drawn aside."""
    moments = DataMoments(num_classes)
    with torch.random.fork_rng(devices=[]):
        for x, y in pairs:
            moments.update(x, y)
    return moments.all_reduce()
