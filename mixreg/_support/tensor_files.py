"""Tensors and a JSON record in one safetensors file, with a checksum over both; replaced in one step: always whole."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from mixreg._support.files import write_bytes

FORMAT = "mixreg 1"
Made = TypeVar("Made")


class TensorFileError(ValueError):
    """A file that is broken or of another kind; one sentence that names it."""


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
        # The library's own error for a file that may not be read says that it is not there.
        with path.open("rb"):
            pass
        with safe_open(path, framework="pt") as file:
            header = (file.metadata() or {}).get("mixreg", "[]")
            content = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise TensorFileError(f"{path} cannot be read, it is broken or of another kind: {error}") from error
    try:
        kind, expected, text = json.loads(header)
    except (TypeError, ValueError):
        kind, expected, text = "", "", ""
    if kind != FORMAT:
        raise TensorFileError(f"{path} was not written by mixreg")
    if expected != _checksum(content, text):
        raise TensorFileError(f"{path} is broken: its content does not match its checksum")
    record: dict[str, Any] = json.loads(text)
    if not isinstance(record, dict):
        raise TensorFileError(f"{path} is broken: its record is {type(record).__name__}, expected an object")
    return content, record


def read_from(path: Path, what: str, make: Callable[[dict[str, Tensor], dict[str, Any]], Made]) -> Made:
    """What `make` makes of a file's tensors and record; where it cannot, a ValueError that names the file."""
    tensors, record = load_tensors(path)
    try:
        return make(tensors, record)
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{path} does not hold {what}: {error}") from error


def _checksum(content: dict[str, Tensor], text: str) -> str:
    total = hashlib.blake2b(text.encode())
    for key in sorted(content):
        value = content[key]
        total.update(f"{key} {value.dtype} {tuple(value.shape)}".encode())
        total.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()
