"""TensorBoard's log, written as it happens.

PyTorch's own writer hands records to a thread, which prints a traceback of its own when the disk is full. These few
scalars are written where they arise; when that fails the board is given up and training goes on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Board:
    """Scalars of every epoch, in `folder`; does nothing where TensorBoard is not installed."""

    def __init__(self, folder: Path) -> None:
        self.file: Any = None
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError:
            return
        self.event, self.summary = Event, Summary
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.file = (folder / f"events.out.tfevents.{time.time_ns()}").open("wb")
            self.writer = RecordWriter(self.file)
            self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))
        except OSError:
            self.close()

    def add(self, epoch: int, record: dict[str, Any]) -> None:
        """The numbers of a nested record, under names with slashes."""
        if self.file is None:
            return
        values = [self.summary.Value(tag=name, simple_value=value) for name, value in scalars(record)]
        try:
            self._write(self.event(wall_time=time.time(), step=epoch, summary=self.summary(value=values)))
        except OSError:
            self.close()

    def _write(self, event: Any) -> None:
        self.writer.write(event.SerializeToString())
        self.file.flush()

    def close(self) -> None:
        """No more records."""
        file, self.file = self.file, None
        if file is not None:
            try:
                file.close()
            except OSError:
                return


def scalars(record: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of a nested record, but for its epoch."""
    for name, value in record.items():
        if isinstance(value, dict):
            yield from scalars(value, f"{prefix}{name}/")
        elif value is not None and name != "epoch":
            yield prefix + name, value
