"""Tables: CSV and parquet files with a column for each feature and one or more columns of targets.

A column of a CSV file is text as it stands, and numbers if all of it can be read as numbers. Features are numbers. A
target that is text is a class; so is one of whole numbers; one with fractions is a number to regress on; several
targets of zeros and ones are several labels at once. `task` says it where that is not what is meant (an age in years).
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mixreg._support.near_misses import meant
from mixreg._support.tasks import CLASSES, LABELS, NUMBERS
from mixreg.data.arrays import CUT, Dataset, Split, checked, cut
from mixreg.data.errors import DataError
from mixreg.data.formats import naming, rows_at_once
from mixreg.data.limits import require_bounded
from mixreg.data.precision import require_resolved

# Columns by name: n numbers (of any dtype) or n texts (object).
Columns = dict[str, np.ndarray]
ENDINGS = (".csv", ".tsv", ".parquet")
# What a target is called where nobody says.
USUAL_TARGETS = ("label", "labels", "class", "target", "y")
CHUNK = 10_000


def chunks_of(path: Path, rows: int = CHUNK, wanted: Sequence[str] = ()) -> Iterator[Columns]:
    """The columns of a file, some rows at a time; every chunk has all of them, or at least those that are wanted."""
    if path.suffix.lower() == ".parquet":
        yield from _parquet_chunks(path, rows, wanted)
    else:
        yield from _csv_chunks(path, rows)


def read_columns(path: Path) -> Columns:
    """All of a file."""
    parts = list(chunks_of(path))
    if not parts:
        raise DataError(f"{path} holds no rows")
    return {name: joined([part[name] for part in parts]) for name in parts[0]}


def joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """A column of its chunks."""
    if all(part.dtype != object for part in parts):
        return np.concatenate(parts)
    return np.concatenate([part if part.dtype == object else np.array(_names(part), dtype=object) for part in parts])


def numbers_of(column: np.ndarray) -> np.ndarray | None:
    """A column as float64; None if it is not all numbers."""
    # Python reads 1_1 as eleven; nobody who writes a table does.
    if column.dtype == object and any("_" in cell for cell in column):
        return None
    try:
        return column.astype(np.float64)
    except ValueError:
        return None


def _names(numbers: np.ndarray) -> list[str]:
    """Numbers as names of classes, with all their digits: whole ones without a fraction."""
    if numbers.dtype.kind in "iub":
        return [str(int(number)) for number in numbers]
    return [
        str(int(number)) if math.isfinite(number) and number == int(number) else repr(float(number))
        for number in numbers.tolist()
    ]


def _whole_names(texts: np.ndarray) -> list[str]:
    """Texts that are numbers, as names that do not depend on how they are written: 1, 01 and 1.0 are one class."""
    found = []
    for text in texts:
        try:
            found.append(str(int(text)))
        except ValueError:
            found.append(_names(np.array([float(text)]))[0])
    return found


def _csv_chunks(path: Path, rows: int) -> Iterator[Columns]:
    with naming(path), path.open(encoding="utf-8-sig", newline="") as file:
        first = file.readline()
        # What stands in quotes separates nothing.
        delimiter = max((",", ";", "\t"), key=re.sub(r'"[^"]*"', "", first).count)
        names = [name.strip() for name in next(csv.reader(io.StringIO(first), delimiter=delimiter), [])]
        if not names or "" in names or len(set(names)) != len(names):
            raise DataError(f"{path}: its first line must name every column, each once, got {first.strip()[:80]!r}")
        reader = csv.reader(file, delimiter=delimiter)
        lines: list[list[str]] = []
        for line in reader:
            if not line:
                continue
            if len(line) != len(names):
                where = f"{path}, line {reader.line_num + 1}"
                raise DataError(f"{where} has {len(line)} cells where its first line names {len(names)} columns")
            lines.append(line)
            if len(lines) == rows:
                yield _columns(names, lines)
                lines = []
        if lines:
            yield _columns(names, lines)


def _columns(names: list[str], lines: list[list[str]]) -> Columns:
    columns = zip(*lines, strict=True)
    return {
        name: np.array([cell.strip() for cell in cells], dtype=object)
        for name, cells in zip(names, columns, strict=True)
    }


def _parquet_chunks(path: Path, rows: int, wanted: Sequence[str]) -> Iterator[Columns]:
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise DataError("reading parquet files needs pyarrow: pip install 'mixreg[parquet]'") from error
    with naming(path), pq.ParquetFile(path) as file:
        groups = (file.metadata.row_group(group).total_byte_size for group in range(file.metadata.num_row_groups))
        require_bounded(path, sum(groups), path.stat().st_size)
        # Others may be of kinds that are no columns of numbers or text.
        some = list(wanted) if wanted and set(wanted) <= set(file.schema_arrow.names) else None
        for batch in file.iter_batches(rows_at_once(file, rows), columns=some):
            # What pandas keeps of a frame's index is no feature.
            kept = (batch.schema.pandas_metadata or {}).get("index_columns", [])
            names = [name for name in batch.schema.names if name not in kept]
            yield {name: _of_arrow(path, name, batch[name]) for name in names}


def _of_arrow(path: Path, name: str, column: Any) -> np.ndarray:
    import pyarrow as pa

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_nested(kind):
        raise DataError(f"{path}: column {name!r} holds {column.type}, expected numbers or text")
    if column.null_count:
        # As in a CSV file: whoever needs the column is told that it is empty somewhere.
        return np.array(["" if value is None else str(value) for value in column.to_pylist()], dtype=object)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    # Dates and their like are text, which a network may not need.
    return np.array([str(value) for value in column.to_pylist()], dtype=object)


def matrix(columns: Columns, features: Sequence[str], where: str) -> np.ndarray:
    """The features, n × d float32; `where` names the file in an error."""
    missing = [name for name in features if name not in columns]
    if missing:
        raise DataError(f"{where} has no column {missing[0]!r}; it has {', '.join(columns)}")
    found = []
    for name in features:
        numbers = numbers_of(columns[name])
        if numbers is None:
            text = next(cell for cell in columns[name] if not _is_number(cell))
            empty = "is empty somewhere" if not text else f"holds {text!r}"
            raise DataError(f"{where}: column {name!r} {empty}, and numbers are expected; encode it or leave it out")
        if not (np.abs(numbers) <= np.finfo(np.float32).max).all():
            raise DataError(f"{where}: column {name!r} holds values that are not finite")
        found.append(numbers)
    return np.stack(found, 1).astype(np.float32)


def _is_number(cell: str) -> bool:
    if "_" in cell:
        return False
    try:
        float(cell)
    except ValueError:
        return False
    return True


def chosen_targets(columns: Columns, target: str, where: str) -> list[str]:
    """The names of the target columns: those that were asked for (with commas), or one of the usual name."""
    held = ", ".join(columns)
    if target in columns:
        # A name may have a comma itself.
        return [target]
    if not target:
        usual = [name for name in columns if name.lower() in USUAL_TARGETS]
        if len(usual) != 1:
            raise DataError(f"{where}: say which column is the target (--target); it has {held}")
        return usual
    names = [name.strip() for name in target.split(",") if name.strip()]
    if not names or len(set(names)) != len(names):
        raise DataError(f"--target names columns with commas, each once, got {target!r}; {where} has {held}")
    for name in names:
        if name not in columns:
            near = meant(name, columns)
            raise DataError(f"{where} has no column {name!r} to be the target; it has {held}{near}")
    return names


def targets_of(
    columns: Columns, names: Sequence[str], task: str, classes: Sequence[str], where: str
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Targets as a dataset takes them, and the names of the classes (given, or found) or of the target columns."""
    values = [numbers_of(columns[name]) for name in names]
    numbers = [column for column in values if column is not None]
    is_text = len(numbers) < len(values)
    if not task:
        if len(names) > 1:
            task = LABELS if not is_text and all(np.isin(column, (0, 1)).all() for column in numbers) else NUMBERS
        else:
            task = CLASSES if is_text or (numbers[0] == np.round(numbers[0])).all() else NUMBERS
    if task == CLASSES:
        return _classes_of(columns, names, is_text, classes, where)
    found = matrix(columns, names, where)
    if task == LABELS:
        if not np.isin(found, (0, 1)).all():
            raise DataError(f"{where}: labels are columns of zeros and ones, got other values in {', '.join(names)}")
        return found.astype(np.int64), tuple(names)
    return found, tuple(names)


def _classes_of(
    columns: Columns, names: Sequence[str], is_text: bool, classes: Sequence[str], where: str
) -> tuple[np.ndarray, tuple[str, ...]]:
    if len(names) > 1:
        raise DataError(f"{where}: classes are in one column, got {', '.join(names)}")
    column = columns[names[0]]
    texts = list(column) if column.dtype == object else _names(column)
    if not all(texts):
        raise DataError(f"{where}: column {names[0]!r} is empty somewhere")
    numbers = None if is_text else numbers_of(column)
    if numbers is not None and not np.isfinite(numbers).all():
        raise DataError(f"{where}: column {names[0]!r} holds numbers that are not finite, and classes are named by it")
    if not is_text and not set(texts) <= set(classes):
        texts = _whole_names(np.array(texts, dtype=object))
    # Equal as floating point, whole numbers of many digits differ as text.
    known = list(classes) or sorted(set(texts), key=None if is_text else lambda text: (float(text), text))
    index = {name: place for place, name in enumerate(known)}
    unknown = sorted({text for text in texts if text not in index})
    if unknown:
        raise DataError(f"{where}: {unknown[0]!r} in column {names[0]!r} is not one of the {len(known)} classes")
    return np.array([index[text] for text in texts], dtype=np.int64), tuple(known)


def _require_resolved(columns: Columns, names: Sequence[str], where: str) -> None:
    for name in names:
        numbers = numbers_of(columns[name])
        if numbers is not None and np.isfinite(numbers).all():
            require_resolved(numbers[:, None], where, [name])


def load_table(
    name: str, train: Columns, test: Columns | None, target: str = "", task: str = "", classes: Sequence[str] = ()
) -> Dataset:
    """A dataset of a table; a test part is cut off where there is none.

    Args:
        name: of the file, for errors.
        train, test: columns of the two parts.
        target: names of the target columns, with commas; by default one of the usual names.
        task: what targets are, if not what they look like.
        classes: their names, if they are known.
    """
    names = chosen_targets(train, target, name)
    features = [column for column in train if column not in names]
    if not features:
        raise DataError(f"{name} has no column beside its target {', '.join(names)}")
    if test is None and len(train[names[0]]) < CUT:
        raise DataError(f"{name} has no test part, and {len(train[names[0]])} rows are too few to cut one off")
    both = train if test is None else {key: joined([train[key], test[key]]) for key in names if key in test}
    if any(key not in both for key in names):
        raise DataError(f"the test part of {name} lacks a target column of {', '.join(names)}")
    y, known = targets_of({key: both[key] for key in names}, names, task, classes, name)
    if y.dtype == np.float32:
        _require_resolved(train, names, name)
    _require_resolved(train, features, name)
    x, count = matrix(train, features, name), len(train[names[0]])
    part = Split(x, y[:count])
    if test is None:
        return cut(checked(name, part, part, known, tuple(features)))
    return checked(name, part, Split(matrix(test, features, name), y[count:]), known, tuple(features))
