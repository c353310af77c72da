"""A run's state in one safetensors file: tensors, a JSON record, and a checksum over both.

The file is replaced in one step, so there is always exactly one whole checkpoint. Random states are not in it because
there are none: see `mixreg.streams`.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mixreg.files import write_bytes

FORMAT = "mixreg 1"


class CheckpointError(ValueError):
    """A checkpoint or model file that is broken or foreign; one sentence that names it."""


def save_tensors(path: Path, tensors: dict[str, Tensor], record: dict[str, Any]) -> None:
    """Write tensors and a JSON record, atomically."""
    from safetensors.torch import save

    # Copies: tied weights share memory, which the format does not know.
    content = {key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}
    text = json.dumps(record, sort_keys=True, allow_nan=False)
    # One entry: the format keeps several in no particular order, and equal runs are to give equal files.
    header = json.dumps([FORMAT, _checksum(content, text), text])
    write_bytes(path, save(content, {"mixreg": header}))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save_tensors` wrote, or an error that names the file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            header = (file.metadata() or {}).get("mixreg", "[]")
            content = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{path} cannot be read, it is broken or of another kind: {error}") from error
    try:
        kind, expected, text = json.loads(header)
    except ValueError:
        kind, expected, text = "", "", ""
    if kind != FORMAT:
        raise CheckpointError(f"{path} was not written by mixreg")
    if expected != _checksum(content, text):
        raise CheckpointError(f"{path} is broken: its content does not match its checksum")
    record: dict[str, Any] = json.loads(text)
    return content, record


def _checksum(content: dict[str, Tensor], text: str) -> str:
    total = hashlib.blake2b(text.encode())
    for key in sorted(content):
        value = content[key]
        total.update(f"{key} {value.dtype} {tuple(value.shape)}".encode())
        total.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


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
