"""Where a batch holds what is mixed: inputs and targets, by position or by key, one or several of each.

Several targets are mixed alike: as columns of one matrix, of which each gets its own back. Integer labels become soft
labels on the way, which takes the number of classes of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mixreg._support.fields import Key as Key
from mixreg._support.fields import Keys as Keys
from mixreg._support.fields import replaced as replaced
from mixreg._support.fields import several as several
from mixreg._support.fields import taken as taken
from mixreg._support.structure import common_dtype, leaves, rebuild
from mixreg.losses.targets import is_class_index, to_values
from mixreg.methods.choice import Choice
from mixreg.methods.method import Method
from mixreg.theory.modified import stretch

# Of one target, or of each of several in their structure; None for those that are not labels.
Classes = int | None | Sequence[Any] | Mapping[Any, Any]


def is_several(num_classes: Classes, target_key: Keys) -> bool:
    """Whether targets are several, by what was said of them."""
    return bool(several(target_key)) or not (isinstance(num_classes, int) or num_classes is None)


def require_joinable(method: Method) -> None:
    """Refuse what looks at single labels, which columns of one matrix do not show."""
    if method.needs_class_means:
        raise TypeError("balanced partners are drawn by one label of each sample, and these targets are several")
    each = method.methods if isinstance(method, Choice) else [method]
    if any(getattr(one, "label_smoothing", 0.0) for one in each):
        raise TypeError(
            "label_smoothing of a method is for one label of each sample, and these targets are several: give it to "
            "the losses of those that are labels"
        )


def joined_targets(x: Any, y: Any, classes: Classes) -> tuple[Tensor, Any]:
    """Several targets as one matrix, n × their coordinates, with what one of each looks like, as meta tensors.

    Args:
        x: the inputs, whose precision soft labels take.
        y: a tuple, list or dict of targets: integer labels n, or numbers n or n × ….
        classes: of all integer labels, or of each in the structure of y.
    """
    values = _values(y, classes, common_dtype(x), "y")
    columns = [part.reshape(part.shape[0], -1) for _, part in leaves(values)]
    if len({len(column) for column in columns}) > 1:
        raise ValueError(f"targets must be equally many, got {', '.join(str(len(column)) for column in columns)}")
    return torch.cat(columns, dim=1), rebuild(values, lambda t: torch.empty(t.shape[1:], dtype=t.dtype, device="meta"))


def _values(y: Any, classes: Any, dtype: torch.dtype, name: str) -> Any:
    if isinstance(y, Tensor):
        if isinstance(classes, (Mapping, Sequence)):
            raise TypeError(f"{name} is one target, and num_classes={classes!r} are those of several")
        value = to_values(y, classes if is_class_index(y) else None, dtype)
        if value.ndim > 2:
            # CutMix would have to cut them, which columns of a matrix do not show.
            raise ValueError(f"of several targets each must be n labels or n × … numbers, got {tuple(y.shape)}")
        return value
    if not isinstance(y, (Mapping, tuple, list)):
        raise TypeError(f"{name} must be a tensor or a tuple, list or dict of tensors, got {type(y).__name__}")
    keys = list(y) if isinstance(y, Mapping) else list(range(len(y)))
    if isinstance(classes, (Mapping, Sequence)):
        theirs = list(classes) if isinstance(classes, Mapping) else list(range(len(classes)))
        if set(theirs) != set(keys):
            raise TypeError(f"num_classes={classes!r} does not have one entry for each of the targets {keys}")
        each = {key: classes[key] for key in keys}
    else:
        each = dict.fromkeys(keys, classes)
    found = {key: _values(y[key], each[key], dtype, f"{name}[{key!r}]") for key in keys}
    return found if isinstance(y, Mapping) else (list if isinstance(y, list) else tuple)(found.values())


def split_targets(joined: Tensor, like: Any) -> Any:
    """Each target again, in its dtype, of their coordinates as the last dimension of one tensor."""
    parts = iter(joined.split([part.numel() for _, part in leaves(like)], dim=-1))
    return rebuild(like, lambda part: next(parts).reshape((*joined.shape[:-1], *part.shape)).to(part.dtype))


def stretched(u: Any, means: Any, share: float | Tensor) -> Any:
    """Each output of a network stretched from the mean of its target; outputs of other names stay as they are.

    Args:
        u: outputs, in the structure of the means, or as a tuple or list in their order.
        means: ȳ of each target.
        share: t̄.
    """
    if isinstance(means, Tensor) and isinstance(u, Tensor):
        return stretch(u, means, share)
    if not isinstance(means, Tensor):
        keys = list(means) if isinstance(means, Mapping) else list(range(len(means)))
        if isinstance(u, Mapping) and isinstance(means, Mapping) and all(key in u for key in keys):
            return replaced(u, {key: stretched(u[key], means[key], share) for key in keys})
        if isinstance(u, (tuple, list)) and len(u) == len(keys):
            return replaced(u, {at: stretched(u[at], means[key], share) for at, key in enumerate(keys)})
        names = ", ".join(map(repr, keys))
        raise TypeError(
            f"with several targets the network must return a dict with {names}, or as many outputs in this order, got "
            f"{type(u).__name__}"
        )
    raise TypeError(
        f"the network must return one tensor to be stretched, got {type(u).__name__}; name the submodule that returns "
        "the logits"
    )
