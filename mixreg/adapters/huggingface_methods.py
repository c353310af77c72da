"""Which methods Hugging Face's `Trainer` can train with, and the loaders that it trains on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from mixreg.adapters.chosen import NamedMethod, any_method
from mixreg.adapters.huggingface_batches import Collate, Entries, Moments
from mixreg.methods import load_method
from mixreg.methods.method import Augmentation, Method
from mixreg.methods.regmixup import RegMixup


def batch_method(
    method: Method | str | None,
    alpha: float | None,
    num_classes: int | None,
    per_sample: bool,
    seed: int | None,
    options: Mapping[str, Any],
) -> Method | NamedMethod:
    """The method to train with, made or by its name: an augmentation, or RegMixup where both parts count alike.

    Arguments as of `MixupCallback`.
    """
    if method is None or isinstance(method, (Method, str)):
        kind = type(method) if isinstance(method, Method) else load_method(method or "mixup")
        if not issubclass(kind, (Augmentation, RegMixup)):
            raise TypeError(
                f"Trainer computes the loss of a batch, which augmentations change (Mixup, CutMix, …); "
                f"{kind.__name__} is a loss of the network, or mixes inside of it, and needs a training step of its own"
            )
        weight = method.weight if isinstance(method, RegMixup) else options.get("weight", 1.0)
        if issubclass(kind, RegMixup) and weight != 1:
            raise ValueError(f"as an augmentation both parts of RegMixup count alike: weight must be 1, got {weight:g}")
    is_named_loss = isinstance(method, str) and issubclass(load_method(method), RegMixup)
    loss = "cross_entropy" if is_named_loss else None
    return any_method(method, alpha, num_classes, per_sample, seed, loss, options)


def layers_of(loader: Any) -> Iterator[Any]:
    """A loader and the ones inside it: accelerate wraps loaders, and reads now from the one, now from the other."""
    while loader is not None:
        yield loader
        loader = getattr(loader, "base_dataloader", None)


def pass_over(loader: Any, collate: Collate, entries: Entries) -> Moments:
    """The means of a loader's dataset, in order and without touching PyTorch's random number generators."""
    if isinstance(loader.dataset, IterableDataset):
        raise ValueError(
            "an iterable dataset cannot be averaged beforehand, which worker processes, a resumed run and some methods "
            "need: give MixupCallback its moments="
        )
    plain = DataLoader(loader.dataset, batch_size=128, collate_fn=collate, num_workers=loader.num_workers)
    with torch.random.fork_rng(devices=[]):
        moments = entries.moments(plain)
    if moments.count == 0:
        raise ValueError("the training dataset is empty: there is no sample to average")
    return moments
