"""Inputs made of several tensors: nested tuples, lists and dicts walked as one.

A sample may be an image, or an image with a table row, or a dict of named features. Mixing, moments and prediction
treat all tensors of a sample alike; this is how they reach them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor


def leaves(tree: Any, name: str = "x") -> Iterator[tuple[str, Tensor]]:
    """The tensors of `tree`, each with the Python expression that reaches it (`x['image']`, `x[0]`, `x.ids`).

    The order depends on the keys alone, not on the order in which a dict was filled.
    """
    if isinstance(tree, Tensor):
        yield name, tree
    elif isinstance(tree, dict):
        for key in sorted(tree, key=repr):
            yield from leaves(tree[key], f"{name}[{key!r}]")
    elif isinstance(tree, (tuple, list)):
        # Fields of a named tuple by their names.
        for place, branch in zip(_places(tree), tree, strict=True):
            yield from leaves(branch, f"{name}{place}")
    else:
        raise TypeError(f"{name} must be a tensor or a tuple, list or dict of tensors, got {type(tree).__name__}")


def _places(tree: tuple[Any, ...] | list[Any]) -> list[str]:
    fields = getattr(tree, "_fields", None)
    return [f"[{index}]" for index in range(len(tree))] if fields is None else [f".{field}" for field in fields]


def rebuild(tree: Any, replace: Callable[[Tensor], Any]) -> Any:
    """`tree` with every tensor replaced, in the order of `leaves`."""
    if isinstance(tree, Tensor):
        return replace(tree)
    if isinstance(tree, dict):
        replaced = {key: rebuild(tree[key], replace) for key in sorted(tree, key=repr)}
        return {key: replaced[key] for key in tree}
    branches = [rebuild(branch, replace) for branch in tree]
    # A named tuple takes its fields one by one.
    return type(tree)(*branches) if hasattr(tree, "_fields") else type(tree)(branches)


def validate_batch(x: Any, name: str = "x") -> int:
    """The common batch size of all tensors of `x`, which must be floating point.

    In a tuple, list or dict there may be integers and booleans beside them: ids, lengths, masks.
    """
    named = [(name, x)] if isinstance(x, Tensor) else list(leaves(x, name))
    if not named:
        raise ValueError(f"{name} holds no tensor")
    if not any(tensor.is_floating_point() for _, tensor in named):
        where, tensor = named[0]
        require_plain(tensor, where)
        raise TypeError(f"{where} has dtype {tensor.dtype}; convert it to floating point first (and normalise images)")
    for where, tensor in named:
        require_plain(tensor, where)
        if tensor.ndim == 0:
            raise ValueError(f"{where} must have a batch dimension, got a single number")
        if tensor.shape[0] != named[0][1].shape[0]:
            raise ValueError(f"{where} has {tensor.shape[0]} samples where {named[0][0]} has {named[0][1].shape[0]}")
    return named[0][1].shape[0]


def require_plain(tensor: Tensor, name: str) -> None:
    """A tensor of numbers in memory, or an error that says what it is instead."""
    kind = ""
    if tensor.is_nested:
        kind = "a nested tensor: pad it, or give a list of tensors of one shape"
    elif tensor.layout is not torch.strided:
        kind = f"a sparse tensor ({tensor.layout}): make it dense with .to_dense()"
    elif tensor.is_quantized:
        kind = "a quantised tensor: give numbers with .dequantize()"
    elif tensor.is_meta:
        kind = "on the meta device, which holds no numbers"
    elif tensor.is_floating_point() and tensor.dtype.itemsize == 1:
        kind = f"{tensor.dtype}, in which nothing can be computed: convert it to float16 or wider"
    elif tensor.is_complex():
        kind = f"{tensor.dtype}, and must be real"
    if kind:
        raise TypeError(f"{name} is {kind}")


def of_kind(like: Tensor, result: Tensor) -> Tensor:
    """`result` as a tensor of the class of `like` (torchvision's images, say), with what that one knows of itself."""
    kind = type(like)
    if kind is Tensor or type(result) is kind or isinstance(like, torch.nn.Parameter):
        return result
    if kind.__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return result  # computes for itself what its results are
    result = result.as_subclass(kind)
    result.__dict__.update(like.__dict__)
    return result


def common_dtype(x: Any) -> torch.dtype:
    """The dtype that holds every tensor of `x`, at least float32: the precision for weights and soft labels."""
    if isinstance(x, Tensor) and x.dtype == torch.float32:
        return x.dtype
    dtype = torch.float32
    for _, tensor in leaves(x):
        if tensor.is_floating_point():
            dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def described(tree: Any) -> Any:
    """The structure of `tree` with shapes in place of tensors: comparable and printable."""
    return rebuild(tree, lambda tensor: tuple(tensor.shape))


def shapes_of(tree: Any) -> Any:
    """The structure of `tree` as JSON: lists of sizes in place of tensors, each part under the name of its kind."""
    if isinstance(tree, Tensor):
        return {"tensor": list(tree.shape)}
    if isinstance(tree, dict):
        for key in tree:
            if not isinstance(key, (str, int)):
                raise TypeError(
                    f"only trees whose keys are text or integers can be kept in a file, got the key {key!r}"
                )
        return {"dict": [[key, shapes_of(branch)] for key, branch in tree.items()]}
    return {"list" if isinstance(tree, list) else "tuple": [shapes_of(branch) for branch in tree]}


def tree_of_shapes(shapes: Any) -> Any:
    """Meta tensors in the structure that `shapes_of` told; named tuples come back as tuples."""
    ((kind, content),) = shapes.items()
    if kind == "tensor":
        return torch.empty(content, device="meta")
    if kind == "dict":
        return {key: tree_of_shapes(branch) for key, branch in content}
    branches = [tree_of_shapes(branch) for branch in content]
    return branches if kind == "list" else tuple(branches)


def rows_of(x: Tensor, chosen: Tensor) -> Tensor:
    """These samples of a batch, in its memory format."""
    if x.ndim != 4 or not x.is_contiguous(memory_format=torch.channels_last):
        return x.index_select(0, chosen)
    return x.permute(0, 2, 3, 1).index_select(0, chosen).permute(0, 3, 1, 2)
