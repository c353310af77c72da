"""The log for TensorBoard, where that is installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Board:
    """Scalars of every epoch, by a `SummaryWriter`, or by nobody where TensorBoard is not installed."""

    def __init__(self, writer: Any) -> None:
        self.writer = writer

    def add(self, epoch: int, record: dict[str, Any]) -> None:
        """The numbers of a nested record, under names with slashes."""
        if self.writer is not None:
            for name, value in scalars(record):
                self.writer.add_scalar(name, value, epoch)
            self.writer.flush()

    def close(self) -> None:
        """No more records."""
        if self.writer is not None:
            self.writer.close()


def open_board(folder: Path) -> Board:
    """The board in `folder`."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return Board(None)
    try:
        return Board(SummaryWriter(str(folder)))
    except UnicodeError:
        # TensorBoard cannot name such a folder; the log is in log.jsonl too.
        return Board(None)


def scalars(record: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of a nested record, but for its epoch."""
    for name, value in record.items():
        if isinstance(value, dict):
            yield from scalars(value, f"{prefix}{name}/")
        elif value is not None and name != "epoch":
            yield prefix + name, value
