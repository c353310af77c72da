"""Mixing where Hugging Face's loaders put batches together, and what is gathered there of the data."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from mixreg.adapters.embeddings import MASK, PARTNER_LABELS, PARTNER_MASK, PARTNER_TOKENS, SHARE, TOKENS, mask_of
from mixreg.adapters.token_moments import TokenMoments, is_of_tokens
from mixreg.losses.mixed_targets import MixedTargets
from mixreg.losses.targets import is_class_index
from mixreg.methods.method import Augmentation, Method
from mixreg.methods.regmixup import RegMixup
from mixreg.theory.moments import DataMoments

Collate = Callable[[list[Any]], dict[str, Any]]
Moments = DataMoments | TokenMoments


class Entries(NamedTuple):
    """Which entries of a batch are mixed, and of how many classes labels are."""

    input_name: str
    label_name: str = "labels"
    num_classes: int | None = None

    @property
    def are_text(self) -> bool:
        """Whether inputs are tokens."""
        return self.input_name == TOKENS

    def of(self, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Inputs and labels."""
        for name in (self.input_name, self.label_name):
            if name not in batch:
                held = ", ".join(batch)
                raise ValueError(f"a batch has no {name!r}, it has {held}; name what to mix: input_name, label_name")
        return batch[self.input_name], batch[self.label_name]

    def of_text(self, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens n × T, a mask of them, and labels."""
        ids, y = self.of(batch)
        if ids.ndim != 2:
            raise ValueError(f"{TOKENS} are mixed as texts of tokens, n × T, got shape {tuple(ids.shape)}")
        if is_of_tokens(y, ids) and self.num_classes is None:
            if not bool(((y == 0) | (y == 1)).all()):
                raise ValueError(
                    "labels of tokens are classes: give MixupCallback num_classes; several numbers of a text, as many "
                    f"as tokens in a batch of shape {tuple(y.shape)}, must be floating"
                )
            # Several labels of a text, of which there are by chance as many as tokens.
            y = y.float()
        mask = mask_of(ids, batch.get(MASK))
        if mask.shape != ids.shape:
            raise ValueError(f"{MASK} must be n × T, as {TOKENS}, to be joined with another, got {tuple(mask.shape)}")
        return ids, mask, y

    def moments(self, batches: Iterable[Mapping[str, Any]]) -> Moments:
        """The means of batches that are not mixed."""
        if self.are_text:
            of_tokens = TokenMoments(self.num_classes)
            for batch in batches:
                of_tokens.update(*self.of_text(batch))
            return of_tokens
        moments = DataMoments(self.num_classes)
        for batch in batches:
            moments.update(*self.of(batch))
        return moments


class Seen(NamedTuple):
    """Of one batch that is not trained on yet: the generator after it, if there is one, and its moments, if asked."""

    generator: Tensor | None
    moments: Moments | None


class MixupCollator:
    """Mixes what another collate function makes of samples.

    Text is mixed later, after its embedding: beside every text stand its partner's tokens and share, for
    `EmbeddingMixing`, and labels of texts are mixed here.

    Args:
        method: how to mix.
        collate: makes a dict of tensors of a list of samples; by default Hugging Face's.
        input_name: of the inputs, which are mixed.
        label_name: of the labels, which are mixed alike.
        gathers: whether to keep the moments of every batch.
    """

    def __init__(
        self,
        method: Method,
        collate: Collate | None = None,
        input_name: str = "pixel_values",
        label_name: str = "labels",
        gathers: bool = False,
    ) -> None:
        from transformers import default_data_collator

        self.method, self.collate, self.gathers = method, collate or default_data_collator, gathers
        self.entries = Entries(input_name, label_name, getattr(method, "num_classes", None))
        # In memory that worker processes share: those that live on for several epochs keep a copy of all else.
        self._is_off = torch.zeros((), dtype=torch.bool).share_memory_()
        # Loaders fetch ahead.
        self.seen: deque[Seen] = deque()

    @property
    def is_off(self) -> bool:
        """Whether batches stay as they are from now on, also in worker processes."""
        return bool(self._is_off)

    @is_off.setter
    def is_off(self, is_off: bool) -> None:
        self._is_off.fill_(is_off)

    def __call__(self, samples: list[Any]) -> dict[str, Any]:
        """One batch, mixed unless that is over."""
        batch: dict[str, Any] = self.collate(samples)
        if self.is_off:
            return batch
        mixed = self._mixed_text(batch) if self.entries.are_text else self._mixed(batch)
        # What a worker process keeps, nobody sees.
        if get_worker_info() is None:
            generator = self.method.generator
            state = None if generator is None else generator.get_state()
            self.seen.append(Seen(state, self.entries.moments([batch]) if self.gathers else None))
        return mixed

    def _mixed(self, batch: dict[str, Any]) -> dict[str, Any]:
        x, y = self.entries.of(batch)
        names = self.entries
        if y.ndim == 2 and not y.is_floating_point() and not bool(((y == 0) | (y == 1)).all()):
            raise ValueError(
                f"labels of shape {tuple(y.shape)} are those of tokens, of which {names.input_name!r} has none; "
                "several labels at once are zeros and ones"
            )
        if isinstance(self.method, RegMixup):
            # The data and what Mixup makes of it, one after the other: the mean loss is half of RegMixup's.
            x, y, mixed_x, mixed_y = self.method.collate_fn(list(zip(x, y, strict=True)))
            n = len(x)
            batch = {name: _twice(value, n) for name, value in batch.items()}
            return batch | {names.input_name: torch.cat([x, mixed_x]), names.label_name: torch.cat([y, mixed_y])}
        assert isinstance(self.method, Augmentation)
        x, y = self.method(x, y)
        return batch | {names.input_name: x, names.label_name: y}

    def _mixed_text(self, batch: dict[str, Any]) -> dict[str, Any]:
        ids, mask, y = self.entries.of_text(batch)
        n = len(ids)
        assert isinstance(self.method, Augmentation)
        # Labels first: they say who is whose partner, where that is not drawn uniformly.
        _, drawn = self.method(torch.zeros(n, 1), {"y": y, "row": torch.arange(n)}, parts=True)
        labels, partner, share = drawn["y"], drawn["row"].y_partner, drawn["row"].share
        added = {MASK: mask, PARTNER_TOKENS: ids[partner], PARTNER_MASK: mask[partner], SHARE: share}
        if is_of_tokens(y, ids):
            return batch | added | {PARTNER_LABELS: labels.y_partner}
        return batch | added | {self.entries.label_name: _mixed_labels(labels, self.entries.num_classes)}


def _mixed_labels(labels: MixedTargets, num_classes: int | None) -> Tensor:
    return labels.soft(num_classes) if is_class_index(labels.y) else labels.values()


def _twice(value: Any, n: int) -> Any:
    return torch.cat([value, value]) if isinstance(value, Tensor) and value.shape[:1] == (n,) else value
