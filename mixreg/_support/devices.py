"""Checks of values on devices that compute behind the program's back.

To look at a number on a GPU is to wait until all that was asked of it is done. In a training step that costs more than
the mixing: there values are checked by the device itself, which ends the program later with the sentence it is given,
as PyTorch does for labels out of range.
"""

from __future__ import annotations

import torch
from torch import Tensor


def is_asynchronous(tensor: Tensor) -> bool:
    """Whether to look at a number of this tensor is to wait."""
    return tensor.device.type == "cuda"


def assert_later(conditions: Tensor, message: str) -> None:
    """Let the device of these booleans check that all are true, without waiting for it."""
    torch._assert_async(conditions.all(), message)
