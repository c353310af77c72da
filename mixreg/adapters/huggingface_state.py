"""What a checkpoint of Hugging Face's `Trainer` keeps of a method: its settings, and every process's generator."""

from __future__ import annotations

import base64
import warnings
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from mixreg._support.processes import gather_objects, rank, world_size
from mixreg.adapters.resume import require_same_settings, settings_of
from mixreg.methods.method import Method

# Under which trainer_state.json keeps it.
STATE = "mixreg"


def keep(state: Any, method: Method, generator: Tensor | None, together: bool = False) -> None:
    """Put it into the trainer's state.

    Args:
        state: of the trainer.
        method: that is trained with.
        generator: as it was after the batch that was used last; loaders fetch ahead.
        together: whether all processes call this; of several, no other call keeps their generators.
    """
    stored = state.stateful_callbacks.setdefault(STATE, {})
    stored["settings"] = settings_of(method)
    if generator is not None and (together or world_size() == 1):
        content = base64.b64encode(generator.numpy().tobytes()).decode()
        stored["generators"] = gather_objects(content)


def resume(state: Any, method: Method, loader: Any) -> bool:
    """Take up what a checkpoint knows of the method, if there is one; whether there is."""
    if not state.global_step:
        return False
    stored = (state.stateful_callbacks or {}).get(STATE, {})
    require_same_settings(method, stored.get("settings"))
    if method.generator is None:
        return True
    states = stored.get("generators") or [stored[key] for key in ("generator",) if key in stored]
    in_order = loader.num_workers == 0 and not isinstance(loader.dataset, IterableDataset)
    if len(states) == world_size() and in_order:
        content = bytearray(base64.b64decode(states[rank()]))
        method.generator.set_state(torch.frombuffer(content, dtype=torch.uint8))
    else:
        warnings.warn(
            "a run with a seeded method is resumed exactly only from a checkpoint that knows its generator, on as many "
            "processes, with dataloader_num_workers=0 and a dataset that is not iterable: this one draws other "
            "partners",
            stacklevel=2,
        )
    return True
