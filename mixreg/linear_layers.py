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
        if func in _LINEAR_IN_INPUT and len(args) >= 2:
            x, weight, *rest = args
            bias = rest.pop(0) if rest else kwargs.pop("bias", None)
            primal, tangent = _parts(x)
            stand_still = all(p is None or _parts(p).tangent is None for p in (weight, bias))
            if tangent is not None and stand_still:
                value = func(primal, weight, bias, *rest, **kwargs)
                return make_dual(value, func(tangent, weight, None, *rest, **kwargs))
            return func(x, weight, bias, *rest, **kwargs)
        return func(*args, **kwargs)


def _parts(x: Tensor) -> UnpackedDualTensor:
    """x and its tangent, which is None if x does not move, and none of our business inside a `vmap`."""
    try:
        return unpack_dual(x)
    except RuntimeError:
        return UnpackedDualTensor(x, None)
