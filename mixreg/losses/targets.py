"""What a target may be: class indices, soft labels, several labels at once, or numbers to regress on.

Mixing, moments, smoothing and training all take targets in the same forms, and this is where the forms are told apart:

* floating point: used as it is (soft labels, multi-label, regression);
* bool, or a 0/1 integer matrix of width `num_classes`: several labels at once, as floats;
* integers in one dimension: class indices, made one-hot;
* integers in three or more dimensions (n × H × W masks): class indices, one-hot along dimension 1, as
  `torch.nn.functional.cross_entropy` expects class probabilities.
"""

from __future__ import annotations

import operator
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from mixreg._support.devices import assert_later, is_asynchronous
from mixreg._support.structure import common_dtype, require_plain, validate_batch


def is_class_index(y: Tensor) -> bool:
    """Whether `y` holds class indices (to be made one-hot) rather than values."""
    return not (y.is_floating_point() or y.dtype == torch.bool or y.ndim == 2)


def validate_targets(y: Tensor, num_classes: int | None) -> None:
    """Raise a TypeError or ValueError that says what was given and what is expected; y: n × ….

    All but the range of class indices, see `require_labels_in_range`.
    """
    if not isinstance(y, Tensor):
        raise TypeError(f"targets must be a tensor, got {type(y).__name__}")
    if y.is_complex():
        raise TypeError(f"targets must be real, got dtype {y.dtype}")
    require_plain(y, "the targets' tensor")
    if y.ndim == 0:
        raise ValueError("targets must have a batch dimension, got a single number")
    if is_class_index(y):
        if num_classes is None:
            raise ValueError(
                f"integer labels ({y.dtype}) need num_classes to become one-hot; for regression pass y.float()"
            )
    elif num_classes is not None and (y.ndim < 2 or y.shape[1] != num_classes):
        raise ValueError(
            f"with num_classes={num_classes} targets are integer labels of shape (n,) or rows of {num_classes} "
            f"values, got dtype {y.dtype} and shape {tuple(y.shape)}"
            + ("; labels of tokens are mixed with parts=True" if not y.is_floating_point() else "")
        )
    elif not y.is_floating_point() and y.dtype != torch.bool and y.numel() and not bool(((y == 0) | (y == 1)).all()):
        raise ValueError(
            f"an integer matrix of targets must hold zeros and ones (several labels at once), got values from "
            f"{int(y.min())} to {int(y.max())} in shape {tuple(y.shape)}; pass class indices as shape (n,), "
            "numbers as floats; labels of tokens are mixed with parts=True"
        )


def validate_pairs(x: Any, y: Tensor) -> int:
    """How many samples x (floating point, or a tree of such) and y both hold, or an error that says they differ."""
    return require_equally_many(validate_batch(x), y)


def require_equally_many(n: int, y: Tensor) -> int:
    """n itself, if there are as many targets."""
    if y.shape[0] != n:
        raise ValueError(f"x has {n} samples and y has {y.shape[0]}; they must be equally many")
    return n


def checked_values(x: Any, y: Tensor, num_classes: int | None) -> Tensor:
    """The one check of a batch: targets as values, one for each sample of x: n × ….

    Args:
        x: n × … floating point, or a tuple, list or dict of such.
        y: n integer labels, or n × … targets.
        num_classes: needed for integer labels.
    """
    n = validate_batch(x)
    values = to_values(y, num_classes, common_dtype(x))
    require_equally_many(n, values)
    return values


def require_labels_in_range(y: Tensor, num_classes: int) -> None:
    """Class indices must lie in 0..num_classes − 1."""
    if is_asynchronous(y):
        assert_later((y >= 0) & (y < num_classes), f"labels must lie in 0..{num_classes - 1}")
        return
    low, high = (int(end) for end in y.long().aminmax()) if y.numel() else (0, 0)
    if low < 0 or high >= num_classes:
        raise ValueError(
            f"labels must lie in 0..{num_classes - 1} (num_classes={num_classes}), got values from {low} to {high}"
        )


def is_label(y: Tensor, label: int) -> Tensor:
    """Where integers are this label; one that their type cannot hold (−100 in bytes) would be wrapped around by ==."""
    kind = torch.iinfo(torch.uint8 if y.dtype == torch.bool else y.dtype)
    return y == label if kind.min <= label <= kind.max else torch.zeros_like(y, dtype=torch.bool)


def require_probabilities(
    values: Tensor, message: str = "cross_entropy needs targets that sum to 1 over the classes"
) -> None:
    """Soft labels, n × c × …, sum to 1 over the classes; on a device that is found out later."""
    if is_asynchronous(values):
        assert_later((values.sum(1) - 1).abs() < 1e-4, message)
    elif not are_probabilities(values):
        raise ValueError(message)


def are_probabilities(values: Tensor) -> bool:
    """Whether values, n × c × …, sum to 1 over the classes; waits for them."""
    total = values.sum(1)
    return torch.allclose(total, torch.ones_like(total), atol=1e-4)


def binary_values(y: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Integer labels 0 and 1, one per sample, as n × `shape` values, where `shape` holds one number."""
    require_labels_in_range(y, 2)
    return y.to(dtype).reshape(-1, *shape)


def validate_num_classes(num_classes: int | None) -> int | None:
    """`num_classes` itself, or an error that says what it may be."""
    if num_classes is None:
        return None
    try:
        value = operator.index(num_classes)
    except TypeError:
        raise TypeError(f"num_classes must be a positive integer or None, got {num_classes!r}") from None
    if isinstance(num_classes, bool) or value < 1:
        raise ValueError(f"num_classes must be a positive integer or None, got {num_classes}")
    return value


def to_values(y: Tensor, num_classes: int | None, dtype: torch.dtype | None = None) -> Tensor:
    """Targets as floating-point values, class indices one-hot along dimension 1.

    Args:
        y: n × …, in any of the forms above.
        num_classes: c, needed for class indices.
        dtype: of values made from integers, by default the default dtype; floating targets keep theirs.
    """
    validate_targets(y, num_classes)
    dtype = dtype or torch.get_default_dtype()
    if not is_class_index(y):
        return y if y.is_floating_point() else y.to(dtype)
    assert num_classes is not None
    if not y.is_cpu:
        require_labels_in_range(y, num_classes)
    try:
        # On a CPU the look-up checks every index itself and a second look would cost as much.
        if y.ndim == 1 and num_classes <= LARGEST_TABLE and not torch.compiler.is_compiling():
            return _identity(num_classes, dtype, y.device).index_select(0, y.long())
        if torch.compiler.is_compiling():
            # Compiled code scatters without looking.
            is_known = ((y >= 0) & (y < num_classes)).all()
            torch._assert_async(is_known, f"labels must lie in 0..{num_classes - 1} (num_classes={num_classes})")
        one_hot = torch.zeros((y.shape[0], num_classes, *y.shape[1:]), dtype=dtype, device=y.device)
        return one_hot.scatter_(1, y.long().unsqueeze(1), 1.0)
    except (IndexError, RuntimeError):
        require_labels_in_range(y, num_classes)
        raise


# Up to here (1 MB in float32) looking up rows of the identity takes a third of the time of filling in zeros.
LARGEST_TABLE = 512


@lru_cache(maxsize=16)
def _identity(num_classes: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.eye(num_classes, dtype=dtype, device=device)
