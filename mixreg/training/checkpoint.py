"""A run's state as tensors under flat names, for one file.

Random states are not in it because there are none: see `mixreg._support.random`.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor


class CheckpointError(ValueError):
    """A run's folder that cannot be used; one sentence that names it."""


def flat_state(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The tensors of a network and its optimiser under flat names."""
    state = {f"network.{key}": value for key, value in net.state_dict().items()}
    for index, values in optimizer.state_dict()["state"].items():
        for key, value in values.items():
            if isinstance(value, Tensor):
                state[f"optimizer.{index}.{key}"] = value
    return state


def restore_state(
    path: Path, tensors: dict[str, Tensor], net: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Put the tensors of `flat_state` back."""
    weights = {key.removeprefix("network."): value for key, value in tensors.items() if key.startswith("network.")}
    try:
        net.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(f"{path} is of another network: {str(error).splitlines()[-1].strip()}") from error
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".", 2)
            state.setdefault(int(index), {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
