"""Predictions of a finished run as rows of text: for a CSV file, or one JSON object a line.

classes    class, probability                     and one column of probability per class, if asked
labels     a column of 0 or 1 per label           and one of probability per label, if asked
numbers    a column per target
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from mixreg._support.ahead import ahead, in_order
from mixreg._support.tasks import CLASSES
from mixreg.data.errors import DataError
from mixreg.data.unlabelled import Part
from mixreg.evaluation.text_rows import fractions, joined, texts, whole_numbers
from mixreg.training.finished import FinishedRun

# Digits of a float32.
_DIGITS = "%.7g "
FORMATS = ("csv", "json")
# What the column of inputs is called: the first that no label is.
_ROWS = ("input", "row", "input row", "input row of the file")


def format_of(out: Path) -> str:
    """By the ending of a file's name."""
    found = {".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}.get(out.suffix.lower())
    if found is None:
        raise ValueError(f"{out} must end with .csv, .json or .jsonl")
    return found


class Writer:
    """Turns outputs into text.

    Args:
        run: what predicts.
        format: "csv" or "json".
        probabilities: whether to give those of all classes or labels.
    """

    def __init__(self, run: FinishedRun, format: str, probabilities: bool = False) -> None:
        self.run, self.format, self.probabilities = run, format, probabilities
        task, names = run.trained.targets.task, run.classes
        given = ["class", "probability"] if task == CLASSES else names
        if probabilities:
            given = [*given, *(f"p({name})" for name in names)]
        self.columns = [next((name for name in _ROWS if name not in given), _ROWS[0]), *given]
        twice = [name for name, count in Counter(self.columns).items() if count > 1]
        if twice:
            raise ValueError(f"two columns would be called {twice[0]!r}: {', '.join(self.columns)}")

    def header(self) -> bytes:
        """Before the first row."""
        return _csv([self.columns]) if self.format == "csv" else b""

    def text(self, part: Part, outputs: Tensor) -> Callable[[], bytes]:
        """What makes the rows of a part, wherever it is called: the network can go on in the meantime."""
        is_plain = self.run.trained.targets.task == CLASSES and not self.probabilities
        if self.format == "csv" and is_plain and isinstance(part.names, range):
            return partial(self._numbered, part.names, outputs)
        cells = [map(str, part.names), *self._cells(outputs)]
        return partial(self._rows, cells)

    def _numbered(self, names: range, outputs: Tensor) -> bytes:
        """What most files hold: number, class and probability."""
        decided, p = self.run.decided_classes(outputs)
        return joined([whole_numbers(np.arange(names.start, names.stop)), texts(self._quoted, decided), fractions(p)])

    def _rows(self, cells: list[Any]) -> bytes:
        rows = zip(*cells, strict=True)
        if self.format == "csv":
            return _csv(rows)
        return "".join(json.dumps(dict(self._values(row))) + "\n" for row in rows).encode()

    @cached_property
    def _quoted(self) -> list[str]:
        """The names of classes as cells of a CSV file."""
        # Beside an empty cell: alone, an empty one would be quoted.
        return [_csv([[name, ""]]).decode(errors="surrogateescape")[:-2] for name in self.run.classes]

    def _values(self, row: Iterable[str]) -> Iterator[tuple[str, Any]]:
        """The cells of a row by column, those that are numbers as numbers."""
        for column, (name, cell) in enumerate(zip(self.columns, row, strict=True)):
            is_text = column == 0 or (column == 1 and self.run.trained.targets.task == CLASSES)
            yield name, cell if is_text else json.loads(cell)

    def _cells(self, outputs: Tensor) -> Iterator[list[str]]:
        """Columns after the first."""
        run, task = self.run, self.run.trained.targets.task
        if task == CLASSES:
            names, (decided, p) = run.classes, run.decided_classes(outputs)
            yield [names[k] for k in decided.tolist()]
            yield joined([fractions(p)]).decode().split()
        else:
            yield from (_texts(column) for column in run.decisions(outputs).unbind(1))
        if self.probabilities:
            yield from (_texts(column) for column in run.probabilities(outputs).unbind(1))


def _csv(rows: Iterable[Iterable[Any]]) -> bytes:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue().encode(errors="surrogateescape")


def _texts(column: Tensor) -> list[str]:
    values = column.tolist()
    # Formatted together: a sixth of the time of one by one.
    pattern = _DIGITS if column.is_floating_point() else "%d "
    return (pattern * len(values) % tuple(values)).split()


def predicted(
    run: FinishedRun, parts: Iterable[Part], writer: Writer, progress: Callable[[int], None] = lambda rows: None
) -> Iterator[bytes]:
    """The text of all parts, one after another; `progress` is told how many rows each had.

    While the network is at one part, the next is read and the text of the one before is written.
    """
    yield writer.header()

    def calls() -> Iterator[Callable[[], bytes]]:
        for part in ahead(parts):
            try:
                outputs = run.outputs(part.x)
            except DataError as error:
                raise DataError(f"{part.source}: {error}") from error
            yield writer.text(part, outputs)
            progress(len(part.names))

    yield from in_order(calls())
