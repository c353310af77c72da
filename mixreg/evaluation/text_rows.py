"""Many rows of text at once: every column is a matrix of bytes, n × its width, with a 0 where there is no character.

A row is what is left of the columns side by side when the zeros are taken out. For 10⁵ rows of three columns that takes
a tenth of the time of formatting one value after another.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Of a fraction; a float32 has between 6 and 9 digits.
DECIMALS = 8
_ZERO, _POINT, _COMMA, _NEW_LINE = b"0.,\n"


def _digits(numbers: np.ndarray, width: int) -> np.ndarray:
    """Decimal digits of whole numbers of at least 0: n × width bytes, with leading zeros."""
    found = np.empty((len(numbers), width), np.uint8)
    for column in reversed(range(width)):
        numbers, found[:, column] = np.divmod(numbers, 10)
    return found + np.uint8(_ZERO)


def whole_numbers(numbers: np.ndarray) -> np.ndarray:
    """Whole numbers of at least 0, n."""
    width = len(str(int(numbers.max(initial=0))))
    found = _digits(numbers, width)
    is_leading = np.cumsum(found != _ZERO, 1) == 0
    # Zero itself has its digit.
    is_leading[:, -1] = False
    found[is_leading] = 0
    return found


def fractions(p: np.ndarray) -> np.ndarray:
    """Numbers from 0 to 1, n, with eight decimals."""
    found = _digits(np.rint(p.astype(np.float64) * 10**DECIMALS).astype(np.int64), DECIMALS + 1)
    return np.insert(found, 1, _POINT, 1)


def texts(known: Sequence[str], chosen: np.ndarray) -> np.ndarray:
    """One of a few known texts for each row: n indices."""
    encoded = [text.encode(errors="surrogateescape") for text in known]
    table = np.zeros((len(encoded), max(map(len, encoded), default=0)), np.uint8)
    for row, text in zip(table, encoded, strict=True):
        row[: len(text)] = np.frombuffer(text, np.uint8)
    return table[chosen]


def joined(columns: Sequence[np.ndarray]) -> bytes:
    """The rows with commas between columns, each with an end of line."""
    n = len(columns[0])
    between = [np.full((n, 1), mark, np.uint8) for mark in [_COMMA] * (len(columns) - 1) + [_NEW_LINE]]
    rows = np.concatenate([part for pair in zip(columns, between, strict=True) for part in pair], 1)
    return rows[rows != 0].tobytes()
