"""Held-out data for fitting a rule: batches however they were given, a network's outputs on them, and losses of both.

With w = u − m_y a loss of the logits m_y + β w is convex in β; each kind of loss gives its two derivatives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from mixreg._autodiff.network import evaluating
from mixreg._support.processes import world_size
from mixreg._support.structure import leaves, rebuild
from mixreg.losses import cross_entropy, logistic, squared_error
from mixreg.losses.targets import is_class_index, require_labels_in_range, require_probabilities

if TYPE_CHECKING:
    from mixreg.prediction.family import RuleFamily

# Outputs that are looked at together.
_CHUNK_ELEMENTS = 1 << 22


def batches_of(held_out: Any, y: Tensor | None) -> Iterable[Any]:
    """Batches of (x, y), however they were given."""
    if y is not None:
        return _split(held_out, y)
    if isinstance(held_out, Tensor):
        raise TypeError("held-out data is a loader of (x, y) batches, or x with y; got x alone")
    if isinstance(held_out, Iterator):
        raise TypeError("held-out data is gone through several times: give a loader or a list, not an iterator")
    if not isinstance(held_out, Iterable):
        raise TypeError(f"held-out data is a loader of (x, y) batches, or x with y; got {type(held_out).__name__}")
    return held_out


def _split(x: Any, y: Tensor, rows: int = 512) -> Iterator[tuple[Any, Tensor]]:
    counts = {len(tensor) for _, tensor in leaves(x)} | {len(y)}
    if len(counts) != 1:
        raise ValueError(f"x and y must be equally many, got {', '.join(map(str, sorted(counts)))}")
    for start in range(0, len(y), rows):
        yield rebuild(x, lambda tensor, s=start: tensor[s : s + rows]), y[start : start + rows]  # type: ignore[misc]


class HeldOut(NamedTuple):
    """Outputs on shrunk inputs (n × c) and targets (n, or n × c)."""

    u: Tensor
    y: Tensor

    def chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """In float64, some rows at a time."""
        rows = max(1, _CHUNK_ELEMENTS // max(1, self.u.shape[1]))
        for u, y in zip(self.u.split(rows), self.y.split(rows), strict=True):
            yield u.double(), y


@torch.no_grad()
def outputs_of(model: RuleFamily, batches: Iterable[Any], may_be_empty: bool = False) -> HeldOut:
    """What a model makes of shrunk inputs; a process of several may have no share of them."""
    like = next((p for p in model.net.parameters() if p.is_floating_point()), model.y_mean)
    outputs, targets = [], []
    with evaluating(model):
        for batch in batches:
            if not isinstance(batch, (tuple, list)) or len(batch) != 2:
                raise TypeError(f"held-out batches are pairs (x, y), got {type(batch).__name__}")
            x, y = batch
            u = model.outputs_on_shrunk(
                rebuild(x, lambda t: t.to(like) if t.is_floating_point() else t.to(like.device))
            )
            if len(u) != len(y):
                raise ValueError(f"the network gave {len(u)} outputs for {len(y)} targets")
            outputs.append(u.flatten(1) if u.ndim > 1 else u.unsqueeze(1))
            targets.append(torch.as_tensor(y).to(like.device))
    if not outputs or sum(map(len, outputs)) == 0:
        if may_be_empty and world_size() > 1:
            return HeldOut(
                like.new_empty(0, model.y_mean.numel()), torch.empty(0, dtype=torch.long, device=like.device)
            )
        raise ValueError("there is no held-out sample to fit on")
    u = torch.cat(outputs)
    if not bool(torch.isfinite(u).all()):
        raise ValueError("the network's outputs on held-out data are not finite")
    return HeldOut(u, torch.cat(targets))


class ScaledLoss(Protocol):
    """A loss of the logits m_y + β w."""

    def check(self, held: HeldOut) -> None:
        """An error that says what is wrong with the targets."""

    def derivatives(self, mean: Tensor, w: Tensor, y: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over samples of the first and second derivative in β: 1 each, or one for every output."""

    def losses(self, u: Tensor, y: Tensor) -> Tensor:
        """Of predicted logits, n."""


class _CrossEntropy:
    """Class indices, or rows of probabilities."""

    def check(self, held: HeldOut) -> None:
        classes = held.u.shape[1]
        if classes < 2:
            raise ValueError("cross_entropy needs outputs of shape n × c; for one logit use loss='logistic'")
        if is_class_index(held.y) and held.y.ndim == 1:
            require_labels_in_range(held.y, classes)
        elif held.y.shape != held.u.shape or not held.y.is_floating_point():
            raise ValueError(
                f"cross_entropy takes class indices, or probabilities of shape {tuple(held.u.shape)}, got "
                f"{held.y.dtype} of shape {tuple(held.y.shape)}; for several labels or numbers give loss="
            )
        else:
            require_probabilities(held.y)

    def values(self, u: Tensor, y: Tensor) -> Tensor:
        """Targets as probabilities, n × c."""
        return torch.nn.functional.one_hot(y.long(), u.shape[1]).double() if y.ndim == 1 else y.double()

    def derivatives(self, mean: Tensor, w: Tensor, y: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
        p = torch.softmax(mean + beta * w, 1)
        centre = (p * w).sum(1, keepdim=True)
        slope = (centre - (self.values(w, y) * w).sum(1, keepdim=True)).sum(0)
        return slope, (p * (w - centre).square()).sum().reshape(1)

    def losses(self, u: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(self.values(u, y), u)


class _Logistic:
    """Several labels at once, or one."""

    def check(self, held: HeldOut) -> None:
        if held.y.numel() != held.u.numel() or not bool(((held.y >= 0) & (held.y <= 1)).all()):
            given = f"{held.y.dtype} of shape {tuple(held.y.shape)}"
            raise ValueError(f"logistic takes targets in [0, 1] of shape {tuple(held.u.shape)}, got {given}")

    def derivatives(self, mean: Tensor, w: Tensor, y: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
        u = mean + beta * w
        s = torch.sigmoid(u)
        return ((s - y.reshape(w.shape).double()) * w).sum(0), (s * torch.sigmoid(-u) * w.square()).sum(0)

    def losses(self, u: Tensor, y: Tensor) -> Tensor:
        return logistic(y.reshape(u.shape).double(), u)


class _SquaredError:
    """Numbers: no temperature."""

    def check(self, held: HeldOut) -> None:
        if held.y.numel() != held.u.numel() or not held.y.is_floating_point():
            given = f"{held.y.dtype} of shape {tuple(held.y.shape)}"
            raise ValueError(f"squared_error takes floating-point targets of shape {tuple(held.u.shape)}, got {given}")

    def derivatives(self, mean: Tensor, w: Tensor, y: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError("squared errors have no temperature")

    def losses(self, u: Tensor, y: Tensor) -> Tensor:
        return squared_error(y.reshape(u.shape).double(), u)


SCALED_LOSSES: dict[str, ScaledLoss] = {
    "cross_entropy": _CrossEntropy(),
    "logistic": _Logistic(),
    "squared_error": _SquaredError(),
}
