"""Layers whose jets have a closed form: computed by it inside of forward mode, under whatever name they are called.

A dense layer or a convolution f(x) = x ∗ w + b moves by ẋ ∗ w when x moves and w and b stand still. PyTorch's forward
mode adds x ∗ ẇ and ḃ with zeros for ẇ and ḃ, and computes them: every tangent at twice its price, again in the backward
pass, and four times for a second derivative. Here the layer is applied to x, ẋ and ẍ. Activations, pools and
normalisations have theirs in `fused_layers` and `fused_normalisation`. What a step of `ApproximateMixup` costs with and
without them is measured by benchmarks/risk.py.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mixreg._autodiff import fused_normalisation, normalisation
from mixreg._autodiff.fused_layers import ACTIVATIONS, activation, dense, max_pool2d, relu
from mixreg._autodiff.jets import Jet, Order, linear, outside_of_forward_mode

# Each takes input, weight, bias, and what else there is.
_LINEAR_IN_INPUT = (
    F.linear,
    torch.conv1d,
    torch.conv2d,
    torch.conv3d,
    torch.conv_transpose1d,
    torch.conv_transpose2d,
    torch.conv_transpose3d,
)


_IN_PLACE = (F.relu_, torch.relu_, Tensor.relu_)


def _stands_still(parameter: Any) -> bool:
    """Whether a weight or bias is an ordinary tensor that no transformation has wrapped."""
    return parameter is None or (
        type(parameter) in (Tensor, nn.Parameter) and not torch._C._functorch.is_functorch_wrapped_tensor(parameter)
    )


def _is_referred_to(x: Tensor) -> bool:
    """Whether somebody has hung something on a tensor, or has a weak reference to it."""
    return bool(x.__dict__) or weakref.getweakrefcount(x) > 0


def _linear(func: Any, jet: Jet, order: int, weight: Any, bias: Any = None, *rest: Any, **named: Any) -> Jet | None:
    if not _stands_still(weight) or not _stands_still(bias):
        return None
    is_plain = weight.ndim == 2 and jet.value.ndim > 1 and (bias is None or bias.ndim == 1)
    if func is F.linear and is_plain and not torch.is_autocast_enabled(weight.device.type):
        return dense(jet, weight, bias)
    value = func(jet.value, weight, bias, *rest, **named)
    return linear(value, jet, lambda moved: func(moved, weight, None, *rest, **named))


def _activation(func: Any, jet: Jet, order: int, approximate: str = "none", inplace: bool = False) -> Jet | None:
    return None if inplace or approximate != "none" else activation(func, jet, order)


def _relu(func: Any, jet: Jet, order: int, inplace: bool = False) -> Jet:
    return relu(jet)


def _max_pool2d(func: Any, jet: Jet, order: int, *args: Any, **kwargs: Any) -> Jet | None:
    return max_pool2d(jet, *args, **kwargs)


def _layer_norm(
    func: Any,
    jet: Jet,
    order: int,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Jet | None:
    shape = tuple(normalized_shape)
    dtypes = {t.dtype for t in (jet.value, weight, bias) if t is not None}
    fits = len(shape) > 0 and tuple(jet.value.shape[jet.value.ndim - len(shape) :]) == shape and len(dtypes) == 1
    if not fits or jet.value.numel() == 0 or not _stands_still(weight) or not _stands_still(bias):
        return None
    elementary = partial(_elementary_layer_norm, shape, eps)
    return fused_normalisation.layer_norm(elementary, jet, order, len(shape), weight, bias, eps)


def _elementary_layer_norm(
    shape: tuple[int, ...], eps: float, x: Tensor, weight: Tensor | None, bias: Tensor | None
) -> Tensor:
    return normalisation.layer_norm(x, shape, weight, bias, eps)


_CLOSED_FORMS: dict[Any, Any] = {
    **dict.fromkeys(_LINEAR_IN_INPUT, _linear),
    **dict.fromkeys(ACTIVATIONS, _activation),
    **dict.fromkeys((F.relu, torch.relu, Tensor.relu, *_IN_PLACE), _relu),
    **dict.fromkeys((F.max_pool2d, torch.max_pool2d), _max_pool2d),
    **dict.fromkeys((F.layer_norm, torch.layer_norm), _layer_norm),
}


class closed_forms(TorchFunctionMode):
    """Inside, layers with a closed form have jets of that kind, wherever nothing but their input moves.

    Args:
        order: of the derivatives that are taken inside.
    """

    def __init__(self, order: Order) -> None:
        super().__init__()
        self._order = order

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        rule = _CLOSED_FORMS.get(func)
        is_in_place = func in _IN_PLACE or kwargs.get("inplace", False)
        is_unseen = self._order.was_just_made(args[0] if args else None) and not _is_referred_to(args[0])
        jet = None if rule is None or not args or (is_in_place and not is_unseen) else self._order.jet(args[0])
        if rule is None or jet is None:
            return func(*args, **kwargs)
        with outside_of_forward_mode():
            found = rule(func, jet, self._order.derivatives, *args[1:], **kwargs)
        if found is None:
            return func(*args, **kwargs)
        result = self._order.tensor(found)
        if not is_in_place:
            return result
        # Nobody has taken a view of what the layer before has made, so that another tensor may take its place.
        torch.utils.swap_tensors(args[0], result)
        return args[0]
