"""Weights that a run keeps beside those it trains: their moving average, and the best so far.

**Average.** After every step v ← d v + (1 − d) w for all weights and running statistics, starting from the first
step's; the average is what is evaluated and what the run results in (Polyak and Juditsky, 1992).

**Best.** After every epoch the loss on held-out data decides whether the weights are the best so far. A run that has
not found better ones for some epochs stops. Whether it has stopped is told by its log alone, so that a run that is
resumed stops where it would have stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

HELD_OUT_LOSS = "held_out_loss"


class WeightAverage:
    """The moving average of a network's weights and buffers.

    Args:
        net: the network.
        decay: d in (0, 1).
    """

    def __init__(self, net: nn.Module, decay: float) -> None:
        self.net, self.decay = net, decay
        self.tensors: dict[str, Tensor] = {}

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights after a step."""
        state = self.net.state_dict()
        if not self.tensors:
            self.tensors = {name: value.detach().clone() for name, value in state.items()}
            return
        is_averaged = {name: value.is_floating_point() for name, value in state.items()}
        names = [name for name in state if is_averaged[name]]
        torch._foreach_lerp_([self.tensors[n] for n in names], [state[n] for n in names], 1 - self.decay)
        for name in state:
            if not is_averaged[name]:
                # Counters are not averaged.
                self.tensors[name].copy_(state[name])

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the network has the average for its weights."""
        if not self.tensors:
            yield
            return
        trained = {name: value.detach().clone() for name, value in self.net.state_dict().items()}
        self.net.load_state_dict(self.tensors)
        try:
            yield
        finally:
            self.net.load_state_dict(trained)


class BestWeights:
    """The weights with the lowest held-out loss so far.

    Args:
        patience: epochs without a lower one after which a run stops.
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.tensors: dict[str, Tensor] = {}

    @staticmethod
    def best_epoch(log: Sequence[Mapping[str, Any]]) -> int:
        """Counted from 1; the first of equal ones; 0 before the first."""
        losses = [record[HELD_OUT_LOSS] for record in log]
        return 1 + min(range(len(losses)), key=losses.__getitem__) if losses else 0

    def is_over(self, log: Sequence[Mapping[str, Any]]) -> bool:
        """Whether a run with this log stops."""
        return len(log) - self.best_epoch(log) >= self.patience if log else False

    def take(self, log: Sequence[Mapping[str, Any]], net: nn.Module) -> None:
        """Keep the network's weights if the last epoch of the log is the best one."""
        if self.best_epoch(log) == len(log):
            self.tensors = {name: value.detach().clone() for name, value in net.state_dict().items()}
