"""Several targets at once: a tuple, list or dict of them, each a target of its own kind.

All are mixed alike. `num_classes` is then one number for all integer labels, or a tree of the same structure with None
for what is not a label. A label that is to be ignored becomes a row of zeros: it has no part in cross-entropy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from mixreg._support.structure import common_dtype, leaves, rebuild, validate_batch
from mixreg.losses.targets import is_class_index, is_label, require_equally_many, to_values, validate_num_classes

# Of one target, or of each of several in their structure.
Classes = int | None | tuple[Any, ...] | list[Any] | Mapping[Any, Any]


def validate_classes(classes: Classes) -> Classes:
    """Numbers of classes that may be such, or an error that says what they may be."""
    if isinstance(classes, Mapping):
        return {key: validate_classes(branch) for key, branch in classes.items()}
    if isinstance(classes, (tuple, list)):
        return type(classes)(validate_classes(branch) for branch in classes)
    return validate_num_classes(classes)


def _classes_in_order(y: Any, classes: Any, name: str = "y") -> Iterator[int | None]:
    """The number of classes of each target, in the order of `leaves`."""
    several = isinstance(classes, (Mapping, tuple, list))
    if isinstance(y, Tensor) or not isinstance(y, (dict, tuple, list)):
        if several:
            raise TypeError(f"{name} is one target, and num_classes={classes!r} are those of several")
        yield classes
        return
    keys = sorted(y, key=repr) if isinstance(y, dict) else list(range(len(y)))
    if several and set(classes if isinstance(classes, Mapping) else range(len(classes))) != set(keys):
        raise TypeError(f"num_classes={classes!r} does not have one entry for each of the targets {keys}")
    for key in keys:
        yield from _classes_in_order(y[key], classes[key] if several else classes, f"{name}[{key!r}]")


def value_tree(x: Any, y: Any, classes: Classes, ignore_index: int | None = None) -> Any:
    """Targets as values in their structure, checked: one for each sample of x.

    Args:
        x: a batch; soft labels take its precision.
        y: n × … targets, or a tree of them.
        classes: needed for integer labels.
        ignore_index: the label whose values are all 0.
    """
    n, kind = validate_batch(x), common_dtype(x)
    if isinstance(y, Tensor) and not isinstance(classes, (Mapping, tuple, list)):
        value = _values(y, classes, kind, ignore_index)
        require_equally_many(n, value)
        return value
    found, values = _named(y), []
    for (_, target), own in zip(found, _classes_in_order(y, classes), strict=True):
        # Of several, a number of classes for all is that of the labels among them.
        values.append(_values(target, own if is_class_index(target) else None, kind, ignore_index))
        require_equally_many(n, values[-1])
    in_order = iter(values)
    return rebuild(y, lambda _: next(in_order))


def _named(y: Any) -> list[tuple[str, Tensor]]:
    """The targets with the expressions that reach them, or an error that says what y is instead."""
    try:
        found = list(leaves(y, "y"))
    except TypeError as error:
        raise TypeError(f"targets must be a tensor, got {type(y).__name__}, or a tree of tensors: {error}") from None
    if not found:
        raise ValueError("y holds no target")
    return found


def _values(y: Tensor, classes: int | None, dtype: torch.dtype, ignore_index: int | None) -> Tensor:
    if ignore_index is None or not is_class_index(y):
        return to_values(y, classes, dtype)
    is_ignored = is_label(y, ignore_index)
    return to_values(y.masked_fill(is_ignored, 0), classes, dtype) * is_ignored.logical_not().unsqueeze(1)


def part_tree(x: Any, y: Any, label_smoothing: float = 0.0) -> Any:
    """Targets as they are, for a loss that takes them apart: class indices stay, booleans become numbers.

    Args:
        x: a batch; booleans take its precision.
        y: n × … targets, or a tree of them.
        label_smoothing: of the method; what stays as it is cannot be smoothed.
    """
    n, kind = validate_batch(x), common_dtype(x)
    found = _named(y)
    for name, target in found:
        if target.is_complex():
            raise TypeError(f"{name} must be real, got dtype {target.dtype}")
        if target.ndim == 0:
            raise ValueError(f"{name} must have a batch dimension, got a single number")
        require_equally_many(n, target)
        if label_smoothing:
            raise ValueError(
                "targets that stay as they are cannot be smoothed: give label_smoothing to the loss, as "
                f"CrossEntropyLoss(label_smoothing={label_smoothing:g})"
            )
    return rebuild(y, lambda target: target.to(kind) if target.dtype == torch.bool else target)
