"""The one interface through which a run tells how it goes, and is asked for more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mixreg.training.config import Config
    from mixreg.training.loop import Trainer


class Observer:
    """Does nothing: override what you need. All but `measure` is called in the first of several processes only."""

    def on_start(self, config: Config, steps: int) -> None:
        """Before the first step; `steps` is the number of steps of an epoch."""

    def on_step(self, epoch: int, step: int, loss: float, accuracy: float | None) -> None:
        """After a step, a few times a second; `loss` and `accuracy` are those of the epoch so far."""

    def measure(self, trainer: Trainer, epoch: int) -> dict[str, Any]:
        """More to measure after an epoch (counted from 1), for its record; called in every process."""
        return {}

    def on_epoch(self, record: dict[str, Any]) -> None:
        """After every epoch, with its record."""

    def on_end(self) -> None:
        """After the last step, or whatever stopped the run."""


class Observers(Observer):
    """Several as one."""

    def __init__(self, *observers: Observer) -> None:
        self.observers = observers

    def on_start(self, config: Config, steps: int) -> None:
        for observer in self.observers:
            observer.on_start(config, steps)

    def on_step(self, epoch: int, step: int, loss: float, accuracy: float | None) -> None:
        for observer in self.observers:
            observer.on_step(epoch, step, loss, accuracy)

    def measure(self, trainer: Trainer, epoch: int) -> dict[str, Any]:
        measured: dict[str, Any] = {}
        for observer in self.observers:
            measured |= observer.measure(trainer, epoch)
        return measured

    def on_epoch(self, record: dict[str, Any]) -> None:
        for observer in self.observers:
            observer.on_epoch(record)

    def on_end(self) -> None:
        for observer in self.observers:
            observer.on_end()
