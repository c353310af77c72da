"""From a table's columns to the network's inputs: numbers are standardised, categories become one-hot.

**Categories.** An embedding looks up row k of a matrix E for category k, which is the product Eᵀe_k with the one-hot
vector e_k. That is linear: to mix embedded categories is to mix one-hot vectors,

    Eᵀ(θ e_i + (1 − θ) e_j) = θ Eᵀe_i + (1 − θ) Eᵀe_j,

and to shrink an embedded category towards the mean embedding is to shrink e_k towards the mean one-hot vector, the
frequencies of the categories. So every method and its prediction rule work on one tensor of numbers, and mix where the
embedding is. A category that was never seen in training is put at the frequencies: the mean of all.

**Numbers** are standardised with the (weighted) mean and spread of the training set: a linear map, under which Mixup's
prediction rule does not change.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.preprocessing import OrdinalEncoder
from sklearn.utils import check_array
from torch import Tensor

from mixreg.adapters.tables.spreads import weighted_spread

# Inputs of so many numbers are made once; beyond, batch by batch.
_WHOLE = 50_000_000
_UNKNOWN, _MISSING = -1, -2


def categorical_columns(x: Any, asked: Any) -> list[int]:
    """Which columns hold categories.

    Args:
        x: n × features.
        asked: "from_dtype" (columns of a data frame whose dtype is a category), None, a mask, indices or names.
    """
    names = [str(name) for name in getattr(x, "columns", [])]
    if asked is None:
        return []
    if isinstance(asked, str):
        if asked != "from_dtype":
            raise ValueError(
                f"categorical_features must be 'from_dtype', None, a mask, indices or names, got {asked!r}"
            )
        kinds = [str(kind).lower() for kind in getattr(x, "dtypes", [])] if names else []
        return [index for index, kind in enumerate(kinds) if kind.startswith(("category", "categorical", "enum"))]
    wanted = np.atleast_1d(np.asarray(asked))
    count = len(names) or (x.shape[1] if hasattr(x, "shape") else len(x[0]))
    if wanted.size == 0:
        return []
    if wanted.dtype == bool:
        if wanted.shape != (count,):
            raise ValueError(f"a mask of categorical_features has one entry for each of {count} columns, got {wanted}")
        return [int(index) for index in np.flatnonzero(wanted)]
    if wanted.dtype.kind in "iu":
        if wanted.min() < 0 or wanted.max() >= count:
            raise ValueError(f"categorical_features must be columns in 0..{count - 1}, got {wanted.tolist()}")
        return sorted({int(index) for index in wanted})
    unknown = [str(name) for name in wanted if str(name) not in names]
    if unknown:
        raise ValueError(f"there are no columns {', '.join(unknown)} that categorical_features names")
    return sorted({names.index(str(name)) for name in wanted})


def _categories(x: Any, columns: list[int]) -> Any:
    """Columns of categories, in which whatever is missing (None, pandas' NA and NaT) is NaN."""
    part = _part(x, columns)
    if hasattr(part, "iloc"):
        part = part.copy(deep=False)
        for index, kind in enumerate(part.dtypes):
            # By place: names may be anything. In pandas' categories and in numbers what is missing is NaN already.
            if kind == np.dtype(object) or not (isinstance(kind, np.dtype) or str(kind) == "category"):
                column = part.iloc[:, index]
                part.isetitem(index, column.astype(object).where(column.notna(), np.nan))
        return part
    # pandas' NA cannot be asked whether it equals itself; where it occurs pandas is there.
    pandas = sys.modules.get("pandas")
    part[(part == None) | (part != part) if pandas is None else pandas.isna(part)] = np.nan  # noqa: E711
    return part


def _part(x: Any, columns: list[int]) -> Any:
    """Some columns of a data frame, an array or a list of rows."""
    return x.iloc[:, columns] if hasattr(x, "iloc") else np.asarray(x, dtype=object)[:, columns]


class Columns:
    """What the columns of a table are, learnt from training data.

    Args:
        count: how many columns there are.
        categorical: which of them hold categories.

    Attributes:
        sizes: how many categories each of those has.
        center: of the columns of numbers.
        spread: of the same.
    """

    def __init__(self, count: int, categorical: list[int]) -> None:
        self.categorical = categorical
        self.numeric = [column for column in range(count) if column not in set(categorical)]
        self.sizes: list[int] = []
        self.center = self.spread = np.zeros(0)
        self.frequencies: list[np.ndarray] = []

    @property
    def features(self) -> int:
        """D, the network's inputs: numbers first, then each category's one-hot columns."""
        return len(self.numeric) + sum(self.sizes)

    def learn_categories(self, x: Any) -> None:
        """See which categories there are; missing ones are a category of their own."""
        if not self.categorical:
            return
        self.encoder = OrdinalEncoder(
            handle_unknown="use_encoded_value", unknown_value=_UNKNOWN, encoded_missing_value=_MISSING
        )
        self.encoder.fit(_categories(x, self.categorical))
        self.sizes = [len(known) for known in self.encoder.categories_]

    def coded(self, x: Any) -> np.ndarray:
        """Numbers, and categories by their numbers: n × columns, float64."""
        codes = self.encoder.transform(_categories(x, self.categorical))
        for column, known in enumerate(self.encoder.categories_):
            # Missing values are the last category where training data had some.
            has_missing = len(known) > 0 and known[-1] != known[-1]
            codes[:, column] = np.where(
                codes[:, column] == _MISSING, len(known) - 1 if has_missing else _UNKNOWN, codes[:, column]
            )
        if not self.numeric:
            return codes
        return np.hstack([check_array(_part(x, self.numeric), dtype=np.float64), codes])

    def learn_scales(self, rows: Any, weights: np.ndarray) -> None:
        """Learn means, spreads and frequencies of rows (n × columns, an array or CSR) with weights (n)."""
        count, share = len(self.numeric), weights / weights.sum()
        numbers = rows if sparse.issparse(rows) else rows[:, :count]
        self.center = np.asarray(share @ numbers).ravel()
        spread = weighted_spread(numbers, self.center, share)
        self.spread = _spread(spread, self.center, len(weights), sparse.issparse(rows))
        self.frequencies = []
        for column, size in enumerate(self.sizes):
            codes = rows[:, count + column].astype(int)
            is_known = codes >= 0
            self.frequencies.append(
                np.bincount(codes[is_known], share[is_known], size) / max(share[is_known].sum(), 1e-300)
            )

    def inputs(self, rows: Any) -> np.ndarray:
        """The network's inputs, n × D, of rows as they are (n × columns, an array or CSR)."""
        count = len(self.numeric)
        dense = rows.toarray() if sparse.issparse(rows) else rows
        blocks = [(dense[:, :count] - self.center) / self.spread]
        for column, (size, frequencies) in enumerate(zip(self.sizes, self.frequencies, strict=True)):
            codes = dense[:, count + column].astype(int)
            blocks.append(np.where((codes >= 0)[:, None], np.eye(size)[codes], frequencies))
        return np.hstack(blocks) if len(blocks) > 1 else blocks[0]


def _spread(spread: np.ndarray, center: np.ndarray, n: int, is_difference: bool) -> np.ndarray:
    """Standard deviation per column; 1 where a column is constant, up to rounding."""
    eps = np.finfo(np.float64).eps
    # Of sparse columns the spread is a difference of squares, whose rounding is a square root larger.
    rounding = np.abs(center) * (np.sqrt(eps * n) if is_difference else 10 * eps * np.sqrt(n))
    return np.where(spread > rounding, spread, 1.0)


class Inputs:
    """Rows of the network's inputs by number: made at once where they fit, otherwise when they are asked for.

    Args:
        columns: make them.
        rows: n × columns, an array or CSR.
        dtype: of the inputs.
        device: where they are wanted.
    """

    def __init__(self, columns: Columns, rows: Any, dtype: torch.dtype, device: str) -> None:
        self.columns, self.rows, self.dtype, self.device = columns, rows, dtype, device
        self.whole: Tensor | None = None
        if rows.shape[0] * columns.features <= _WHOLE:
            self.whole = self._made(rows)

    def _made(self, rows: Any) -> Tensor:
        return torch.from_numpy(self.columns.inputs(rows)).to(self.device, self.dtype)

    def __len__(self) -> int:
        return int(self.rows.shape[0])

    def take(self, index: Tensor) -> Tensor:
        """Rows of these numbers, m × D."""
        if self.whole is not None:
            return self.whole.index_select(0, index.to(self.device))
        return self._made(self.rows[index.numpy()])
