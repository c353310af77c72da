"""One step of training, written once: for the loop, and for whoever times it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from mixreg.losses import WeightedCrossEntropy
from mixreg.losses.targets import is_class_index, to_values
from mixreg.methods.choice import Choice
from mixreg.methods.method import Augmentation, Method, Rows
from mixreg.regularisers.label_smoothing import smooth_uniformly
from mixreg.regularisers.parseval import Parseval
from mixreg.training.batches import Batch


def draw_rows(
    method: Method, batch: Batch, num_classes: int, label_smoothing: float, generator: torch.Generator
) -> Rows:
    """What a method makes of a batch, whose labels are smoothed before any mixing.

    Pairs of class indices and shares, where the method gives these and they are compared by cross-entropy: no soft
    labels are made of them (`mixreg.losses.pair_cross_entropy`).
    """
    values = batch.y
    if is_class_index(batch.y) and not label_smoothing and has_parts(method):
        rows: Rows = cast(Augmentation, method).draw_labelled(batch.x, batch.y, generator)
    else:
        values = to_values(batch.y, num_classes, batch.x.dtype)
        if label_smoothing:
            values = smooth_uniformly(values, num_classes, label_smoothing)
        rows = method.draw(batch.x, values, generator)
    lengths = [len(row) for row in rows]
    if any(length != len(values) for length in lengths):
        raise ValueError(
            f"{type(method).__name__} drew rows of {lengths} for a batch of {len(values)} samples; there must be one "
            "for each sample"
        )
    return rows


def has_parts(method: Method) -> bool:
    """Whether a method's pairs of labels can be compared by cross-entropy in place of its soft labels.

    Not where somebody's own class draws or compares otherwise than the one that gives the pairs.
    """
    if method.loss != "cross_entropy" and not isinstance(method.loss, WeightedCrossEntropy):
        return False
    if getattr(method, "label_smoothing", 0.0):
        return False
    if isinstance(method, Choice):
        return type(method) is Choice and all(has_parts(one) for one in method.methods)
    kind = type(method)
    known = [home.__dict__ for home in kind.__mro__]
    drawing: Mapping[str, Any] = next((home for home in known if "draw" in home or "draw_parts" in home), {})
    compares = ("losses", "logits_and_targets", "losses_and_logits", "_compared")
    is_own = any(getattr(kind, name) is not getattr(Augmentation, name, None) for name in compares)
    return isinstance(method, Augmentation) and "draw_parts" in drawing and "draw" in drawing and not is_own


class Step:
    """Losses of rows, a gradient (cut to a norm, if asked), a step of the optimiser, and Parseval's retraction.

    Args:
        method: puts losses on rows.
        net: the network, as the method is to call it (in a distributed wrapper, if there is one).
        optimizer: of its parameters.
        parseval: keeps weights near orthonormal, if there is one.
        clip: the largest norm of a gradient; 0 for no limit.
        backward: computes gradients of a loss.
    """

    def __init__(
        self,
        method: Method,
        net: Any,
        optimizer: torch.optim.Optimizer,
        parseval: Parseval | None = None,
        clip: float = 0.0,
        backward: Callable[[Tensor], Any] = Tensor.backward,
    ) -> None:
        self.method, self.net, self.optimizer = method, net, optimizer
        self.parseval, self.clip, self.backward = parseval, clip, backward

    def __call__(self, rows: Rows, scale: float) -> tuple[Tensor, Tensor | None]:
        """The losses of rows (n), whose sum times `scale` is made smaller, and the logits where they are at hand."""
        losses, logits = self.method.losses_and_logits(self.net, rows)
        if losses.shape != rows[0].shape[:1]:
            raise ValueError(
                f"{type(self.method).__name__} gave losses of shape {tuple(losses.shape)} for {len(rows[0])} rows; "
                "there must be one for each row"
            )
        self.optimizer.zero_grad()
        self.backward(losses.sum() * scale)
        if self.clip:
            torch.nn.utils.clip_grad_norm_(self.net.parameters(), self.clip)
        self.optimizer.step()
        if self.parseval is not None:
            self.parseval.step()
        return losses.detach(), logits
