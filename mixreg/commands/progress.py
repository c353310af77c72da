"""How far training is, on a screen or in a log file."""

from __future__ import annotations

import time
from typing import Any

import click

from mixreg.training.config import Config
from mixreg.training.observer import Observer

SECONDS_BETWEEN_LINES = 10.0


class Lines(Observer):
    """Where there is no screen: a line now and then."""

    def on_start(self, config: Config, steps: int) -> None:
        self.epochs, self.steps = config.epochs, steps
        self.begun = self.last = time.monotonic()

    def on_step(self, epoch: int, step: int, loss: float, accuracy: float | None) -> None:
        now = time.monotonic()
        if now - self.last >= SECONDS_BETWEEN_LINES:
            self.last = now
            right = "" if accuracy is None else f", accuracy {100 * accuracy:.1f} %"
            place = f"epoch {epoch + 1}/{self.epochs}, step {step}/{self.steps}"
            click.echo(f"{place}: loss {loss:.3f}{right}, {now - self.begun:.0f} s", err=True)


class Bar(Observer):
    """A bar with the epoch's loss and accuracy so far."""

    def on_start(self, config: Config, steps: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = (
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(),
            TextColumn("loss {task.fields[loss]}  accuracy {task.fields[accuracy]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        self.epochs, self.steps = config.epochs, steps
        self.bars: Any = Progress(*columns, console=Console(stderr=True))
        self.bars.start()
        total = config.epochs * steps
        self.task = self.bars.add_task("", total=total, epoch=f"1/{config.epochs}", loss="–", accuracy="–")

    def on_step(self, epoch: int, step: int, loss: float, accuracy: float | None) -> None:
        self.bars.update(
            self.task,
            completed=epoch * self.steps + step,
            epoch=f"{epoch + 1}/{self.epochs}",
            loss=f"{loss:.3f}",
            accuracy="–" if accuracy is None else f"{100 * accuracy:.1f} %",
        )

    def on_epoch(self, record: dict[str, Any]) -> None:
        self.bars.update(self.task, completed=record["epoch"] * self.steps)

    def on_end(self) -> None:
        self.bars.stop()
