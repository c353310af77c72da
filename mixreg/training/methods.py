"""What each method makes of a batch, and the loss it puts on it.

A method turns the whole batch into tensors of one row per sample (`prepare`, with all its randomness), and rows of
those into losses (`losses`): a process trains on its own rows of what was prepared alike everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mixreg.approximate import ApproximateMixup, Perturbed
from mixreg.losses import cross_entropy
from mixreg.mixing import draw_pairing, mix
from mixreg.moments import DataMoments
from mixreg.network import Network
from mixreg.rescaling import shrink
from mixreg.smoothing import smooth_labels
from mixreg.targets import to_values
from mixreg.theta import Theta, scalar_forms

Rows = tuple[Tensor, ...]


class Method(NamedTuple):
    """`prepare(x, y, generator)` gives rows; `losses(net, rows)` one loss per row and the logits, if at hand."""

    prepare: Callable[[Tensor, Tensor, torch.Generator], Rows]
    losses: Callable[[Network, Rows], tuple[Tensor, Tensor | None]]


def _plain_losses(net: Network, rows: Rows) -> tuple[Tensor, Tensor]:
    x, y = rows
    logits = net(x)
    return cross_entropy(y, logits), logits.detach()


def make_method(name: str, alpha: float, classes: int, means: Callable[[], tuple[Tensor, Tensor]]) -> Method:
    """A method by name.

    Args:
        name: one of `METHODS`.
        alpha: of Mixup.
        classes: c.
        means: gives x̄ and ȳ of the training set as the network sees it, if they are needed.
    """
    theta, theta_mean = Theta(alpha), scalar_forms(alpha, "a training run").mean
    needs_means = name in ("approximate", "modified", "smoothing")
    x_mean, y_mean = (mean.float() for mean in means()) if needs_means else (torch.empty(0), torch.empty(0))

    def erm(x: Tensor, y: Tensor, _: torch.Generator) -> Rows:
        return x, to_values(y, classes, x.dtype)

    def mixup(x: Tensor, y: Tensor, generator: torch.Generator) -> Rows:
        if alpha == 0:
            return erm(x, y, generator)
        pairing = draw_pairing(len(y), theta, generator=generator, dtype=x.dtype)
        return mix(x, pairing), mix(to_values(y, classes, x.dtype), pairing)

    def modified(x: Tensor, y: Tensor, _: torch.Generator) -> Rows:
        values = to_values(y, classes, x.dtype)
        return shrink(x, x_mean.to(x.device), theta_mean), shrink(values, y_mean.to(x.device), theta_mean)

    def smoothing(x: Tensor, y: Tensor, _: torch.Generator) -> Rows:
        return x, smooth_labels(to_values(y, classes, x.dtype), y_mean.to(x.device), alpha=alpha)

    if name == "approximate":
        criterion = ApproximateMixup(alpha, DataMoments.from_means(x_mean, y_mean, classes))

        def perturb(x: Tensor, y: Tensor, generator: torch.Generator) -> Rows:
            criterion.generator = generator
            return criterion.perturb(x, y)

        def values(net: Network, rows: Any) -> tuple[Tensor, None]:
            return criterion.values(net, Perturbed(*rows)), None

        return Method(perturb, values)
    prepare = {"erm": erm, "mixup": mixup, "modified": modified, "smoothing": smoothing}[name]
    return Method(prepare, _plain_losses)
