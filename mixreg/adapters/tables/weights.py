"""Weights of samples: how often each is shown.

A weight w_i says that sample i is shown w_i times in an epoch. Pairs (i, j) are then mixed as often as w_i w_j says,
and x̄ and ȳ of the prediction rule are weighted means: all is as if the samples had been written down w_i times. A
weight in front of the loss would not do: a sample would still be everybody's partner as often as any other.

**Equal rows.** Rows that are equal in x and y are one row with the sum of their weights, in an order of their own. So
training does not depend on the order of samples, and weights are repetitions to the last bit.

**Weights that are no integers** are rounded at random in every epoch, by systematic sampling: with one u uniform in
[0, 1), sample i is shown as often as there are integers k with k + u between its two cumulative sums, which is w_i on
average, and ⌊w_i⌋ or ⌈w_i⌉ each time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.utils import compute_class_weight
from torch import Tensor

from mixreg._support.random import permutation, uniform

# Weights with a mean outside are taken to be relative, as those that sum to 1 are: an epoch has the length of the data.
_SMALLEST_MEAN, _LARGEST_MEAN = 0.1, 10.0


def scaled_weights(weights: np.ndarray, is_relative: bool = True) -> np.ndarray:
    """Weights as numbers of times, n; refused if nothing is left of the data.

    Args:
        weights: n, at least 0.
        is_relative: whether very small or large ones say how samples weigh beside each other, and not how often.
    """
    positive = weights[weights > 0]
    if not len(positive):
        raise ValueError("no sample is left to train on: sample_weight (times class_weight) is 0 for all of them")
    mean = positive.mean()
    return weights if not is_relative or _SMALLEST_MEAN <= mean <= _LARGEST_MEAN else weights / mean


def class_weights(asked: Any, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """What `class_weight` makes of weights, n; of several targets, the product over them.

    Args:
        asked: None, "balanced", a dict from class to weight, or of several targets a list of such dicts.
        y: n, or n × targets.
        weights: of samples; classes are balanced as they weigh.
    """
    if asked is None:
        return weights
    columns = y.reshape(len(y), -1).T
    each = asked if isinstance(asked, (list, tuple)) else [asked] * len(columns)
    is_known = asked == "balanced" if isinstance(asked, str) else isinstance(asked, (dict, list, tuple))
    if not is_known or len(each) != len(columns) or (isinstance(asked, dict) and len(columns) > 1):
        wanted = "'balanced', or a dict" if len(columns) == 1 else f"'balanced', or a list of {len(columns)} dicts"
        raise ValueError(f"class_weight must be None, {wanted}, got {asked!r}")
    given = weights
    for column, one in zip(columns, each, strict=True):
        classes, index = np.unique(column, return_inverse=True)
        if isinstance(one, str):
            sums = np.bincount(index, weights=given, minlength=len(classes))
            found = np.divide(given.sum(), np.count_nonzero(sums) * sums, where=sums > 0, out=np.zeros(len(sums)))
        else:
            found = compute_class_weight(one, classes=classes, y=column)
            if not (found >= 0).all():
                raise ValueError(f"class_weight must hold numbers of at least 0, got {one!r}")
        weights = weights * found[index]
    return weights


def distinct_rows(x: Any, y: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which rows stand for all, and the sum of the weights of their equals; rows of weight 0 are left out.

    Args:
        x: n × features, an array or a CSR matrix.
        y: n, or n × targets, of any kind.
        weights: n, at least 0.
    """
    kept = np.flatnonzero(weights > 0)
    columns = [np.unique(column, return_inverse=True)[1] for column in y[kept].reshape(len(kept), -1).T]
    keys = _keys(x[kept], np.stack(columns, 1).astype(np.float64))
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    return kept[first], np.bincount(inverse.ravel(), weights=weights[kept])


def _keys(x: Any, y: np.ndarray) -> np.ndarray:
    """A word for each row, its bytes; y: n × targets, numbered."""
    if sparse.issparse(x):
        x = x.sorted_indices()
        ends = zip(x.indptr[:-1], x.indptr[1:], strict=True)
        rows = [x.indices[a:b].tobytes() + x.data[a:b].tobytes() for a, b in ends]
        words = np.empty(len(rows), dtype=object)
        words[:] = [row + target.tobytes() for row, target in zip(rows, y, strict=True)]
        return words
    # −0 is 0.
    whole = _in_order(np.ascontiguousarray(np.hstack([x + 0.0, y])))
    return whole.view(np.dtype((np.void, whole.itemsize * whole.shape[1]))).ravel()


def _in_order(values: np.ndarray) -> np.ndarray:
    """Float64 as integers whose bytes are in the order of the numbers, so that units of a column change no order."""
    bits = values.view(np.uint64)
    sign = np.uint64(1 << 63)
    return np.where(bits & sign, ~bits, bits | sign).astype(">u8")


def epoch_order(weights: np.ndarray, generator: torch.Generator) -> Tensor:
    """The rows of an epoch in a random order, each as often as its weight says; weights: n."""
    if (weights == 1).all():
        return permutation(len(weights), generator)
    rows = shown_rows(weights, generator)
    return rows[permutation(len(rows), generator)]


def shown_rows(weights: np.ndarray, generator: torch.Generator) -> Tensor:
    """The same rows in their own order; weights: n."""
    sums = np.cumsum(weights)
    is_whole = bool((weights == np.round(weights)).all())
    start = 0.5 if is_whole else float(uniform((), generator, torch.float64))
    places = np.arange(int(np.ceil(sums[-1]))) + start
    places = places[places < sums[-1]]
    if not len(places):  # an epoch shows one sample at least
        places = start * sums[-1:]
    return torch.from_numpy(np.searchsorted(sums, places, side="right"))
