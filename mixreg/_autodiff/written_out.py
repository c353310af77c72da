"""Functions written out in elementary steps, where PyTorch's forward-mode rule is missing or wrong when derived again.

The rules for layer and instance normalisation hold the saved statistics constant when a tangent is differentiated once
more: the tangent is right, its gradient and a second tangent are not, without a word (2 to 130 % off). Fractional
max-pooling has a second tangent of 0; `hardsigmoid` and `glu` have no rule at all, and the gradient of a second tangent
of a norm fails. Inside `written_out` all of these are computed from functions whose rules are right to every order;
`tests/test_layers.py` compares every kind of layer in `torch.nn` with finite differences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


def _standardised(x: Tensor, over: Sequence[int], eps: float) -> Tensor:
    """(x − mean) / √(var + ε) over some dimensions, at least in float32."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    centred = wide - wide.mean(list(over), keepdim=True)
    variance = centred.square().mean(list(over), keepdim=True)
    return (centred * torch.rsqrt(variance + eps)).to(x.dtype)


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    """`torch.nn.functional.layer_norm`."""
    last = len(tuple(normalized_shape))
    if tuple(input.shape[input.ndim - last :]) != tuple(normalized_shape):
        raise ValueError(f"layer_norm over {tuple(normalized_shape)} does not fit inputs of {tuple(input.shape)}")
    result = _standardised(input, range(-last, 0), eps)
    result = result if weight is None else result * weight
    return result if bias is None else result + bias


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    """`torch.nn.functional.instance_norm`, but that running statistics are not learnt."""
    shape, over = (1, -1, *[1] * (input.ndim - 2)), range(2, input.ndim)
    if use_input_stats:
        if input.shape[2:].numel() == 1:
            raise ValueError(f"instance_norm needs more than 1 value per channel, got inputs of {tuple(input.shape)}")
        result = _standardised(input, over, eps)
    elif running_mean is not None and running_var is not None:
        result = (input - running_mean.reshape(shape)) * torch.rsqrt(running_var.reshape(shape) + eps)
    else:
        raise ValueError("instance_norm needs its inputs' statistics, or running ones")
    result = result if weight is None else result * weight.reshape(shape)
    return result if bias is None else result + bias.reshape(shape)


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """`torch.nn.functional.hardsigmoid`."""
    return F.relu6(input + 3) / 6


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """`torch.nn.functional.glu`."""
    linear, gate = input.chunk(2, dim)
    return linear * torch.sigmoid(gate)


def vector_norm(
    x: Tensor, ord: float = 2, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """`torch.linalg.vector_norm` of order 2; its gradient at 0 is 0, as there."""
    wide = x if dtype is None else x.to(dtype)
    over = list(range(x.ndim)) if dim is None else [dim] if isinstance(dim, int) else list(dim)
    squares = wide.square().sum(over, keepdim)
    is_zero = squares == 0
    return torch.where(is_zero, 0.0, torch.where(is_zero, 1.0, squares).sqrt())


def normalize(
    input: Tensor, p: float = 2.0, dim: int | tuple[int, ...] = 1, eps: float = 1e-12, out: Any = None
) -> Tensor:
    """`torch.nn.functional.normalize` of order 2."""
    return input / vector_norm(input, 2, dim, keepdim=True).clamp_min(eps)


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """`torch.nn.functional.cosine_similarity`."""
    first, second = (x / vector_norm(x, 2, dim, keepdim=True).clamp_min(eps) for x in (x1, x2))
    return (first * second).sum(dim)


def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    """`torch.nn.functional.pairwise_distance` of order 2."""
    return vector_norm(x1 - x2 + eps, 2, -1, keepdim)


def _fractional(function: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Fractional max-pooling by what it chose: of its indices the values are gathered."""

    def pooled(input: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        _, indices = function(input.detach(), *args, **kwargs)
        outer = indices.ndim - _SPATIAL[function]
        chosen = input.flatten(outer).gather(outer, indices.flatten(outer))
        return chosen.reshape(indices.shape), indices

    return pooled


_SPATIAL: dict[Any, int] = {torch._C._nn.fractional_max_pool2d: 2, torch._C._nn.fractional_max_pool3d: 3}


def _is_order_two(name: str, position: int) -> Callable[[tuple[Any, ...], dict[str, Any]], bool]:
    def holds(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        order = args[position] if len(args) > position else kwargs.get(name, 2)
        return order in (2, 2.0, "fro", None) and kwargs.get("out") is None

    return holds


def _always(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return True


# What to compute, and when.
_WRITTEN_OUT: dict[Any, tuple[Callable[..., Any], Callable[[tuple[Any, ...], dict[str, Any]], bool]]] = {
    F.layer_norm: (layer_norm, _always),
    torch.layer_norm: (layer_norm, _always),
    F.instance_norm: (instance_norm, _always),
    F.hardsigmoid: (hardsigmoid, _always),
    torch._C._nn.hardsigmoid: (hardsigmoid, _always),
    F.glu: (glu, _always),
    torch._C._nn.glu: (glu, _always),
    F.normalize: (normalize, _is_order_two("p", 1)),
    F.cosine_similarity: (cosine_similarity, _always),
    torch.cosine_similarity: (cosine_similarity, _always),
    F.pairwise_distance: (pairwise_distance, _is_order_two("p", 2)),
    torch.pairwise_distance: (pairwise_distance, _is_order_two("p", 2)),
    torch.linalg.vector_norm: (vector_norm, _is_order_two("ord", 1)),
}


class written_out(TorchFunctionMode):
    """Inside, the functions above are computed in elementary steps; running statistics are learnt when it ends well."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: list[tuple[Tensor, Tensor, Tensor, float]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _SPATIAL:
            return _fractional(func)(*args, **kwargs)
        if func is F.instance_norm:
            self._note(*args, **kwargs)
        replacement, applies = _WRITTEN_OUT.get(func, (func, _always))
        return replacement(*args, **kwargs) if applies(args, kwargs) else func(*args, **kwargs)

    def _note(
        self,
        x: Tensor,
        running_mean: Tensor | None = None,
        running_var: Tensor | None = None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        use_input_stats: bool = True,
        momentum: float = 0.1,
        *_: Any,
        **__: Any,
    ) -> None:
        if use_input_stats and running_mean is not None and running_var is not None:
            self._seen.append((running_mean, running_var, value_of(x), momentum))

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        super().__exit__(kind, value, traceback)  # type: ignore[no-untyped-call]
        seen, self._seen = self._seen, []
        with torch.no_grad():
            for running_mean, running_var, x, momentum in seen if kind is None else ():
                variance, mean = torch.var_mean(x.flatten(2), 2)
                running_mean.lerp_(mean.mean(0).to(running_mean.dtype), momentum)
                running_var.lerp_(variance.mean(0).to(running_var.dtype), momentum)


def value_of(x: Tensor) -> Tensor:
    """What a tensor holds, out of all transformations that are under way."""
    while torch._C._functorch.is_functorch_wrapped_tensor(x):
        x = torch._C._functorch.get_unwrapped(x)
    return x.detach()
