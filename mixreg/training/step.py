"""One step of training, written once: for the loop, and for whoever times it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mixreg.methods.method import Method, Rows
from mixreg.regularisers.parseval import Parseval


class Step:
    """Losses of rows, a gradient, a step of the optimiser, and Parseval's retraction if there is one.

    Args:
        method: puts losses on rows.
        net: the network, as the method is to call it (in a distributed wrapper, if there is one).
        optimizer: of its parameters.
        parseval: keeps weights near orthonormal.
        backward: computes gradients of a loss.
    """

    def __init__(
        self,
        method: Method,
        net: Any,
        optimizer: torch.optim.Optimizer,
        parseval: Parseval | None = None,
        backward: Callable[[Tensor], Any] = Tensor.backward,
    ) -> None:
        self.method, self.net, self.optimizer = method, net, optimizer
        self.parseval, self.backward = parseval, backward

    def __call__(self, rows: Rows, scale: float) -> tuple[Tensor, Tensor | None]:
        """The losses of rows (n), whose sum times `scale` is made smaller, and the logits where they are at hand."""
        losses, logits = self.method.losses_and_logits(self.net, rows)
        self.optimizer.zero_grad()
        self.backward(losses.sum() * scale)
        self.optimizer.step()
        if self.parseval is not None:
            self.parseval.step()
        return losses.detach(), logits
