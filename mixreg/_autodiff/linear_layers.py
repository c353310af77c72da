"""Tangents of layers that are linear in their input.

A dense layer or a convolution f(x) = x ∗ w + b moves by ẋ ∗ w when x moves and w and b stand still. PyTorch's forward
mode adds x ∗ ẇ and ḃ with zeros for ẇ and ḃ, and computes them: every tangent at twice its price, again in the backward
pass, and four times for a second derivative. `linear_tangents` applies the layer to x and to ẋ instead, which makes a
step of `ApproximateMixup` on LeNet a fifth cheaper (benchmarks/risk.py).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.forward_ad import UnpackedDualTensor, make_dual, unpack_dual
from torch.overrides import TorchFunctionMode

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


class linear_tangents(TorchFunctionMode):
    """Inside, layers linear in their input have tangents of that kind, wherever their parameters stand still."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # A dual tensor is a view, and views made without gradients may not be changed in place with them.
        if func not in _LINEAR_IN_INPUT or len(args) < 2 or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        x, weight, *rest = args
        bias = rest.pop(0) if rest else kwargs.pop("bias", None)
        moving, *parameters = (_parts(t) for t in (x, weight, bias) if t is not None)
        stand_still = all(p is not None and p.tangent is None for p in parameters)
        if moving is None or moving.tangent is None or not stand_still:
            return func(x, weight, bias, *rest, **kwargs)
        value = func(moving.primal, weight, bias, *rest, **kwargs)
        return make_dual(value, func(moving.tangent, weight, None, *rest, **kwargs))


def _parts(x: Tensor) -> UnpackedDualTensor | None:
    """x and its tangent, which is None if x stands still; None for what does not tell.

    Tensors inside a `vmap` do not, nor do tensors of other kinds that know few operations.
    """
    try:
        return unpack_dual(x)
    except (RuntimeError, TypeError):
        return None


def moves(x: Tensor) -> bool:
    """Whether x has a tangent, or does not tell."""
    parts = _parts(x)
    return parts is None or parts.tangent is not None
