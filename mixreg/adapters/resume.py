"""What a checkpoint must know of a method so that no other one is resumed with it, or predicts in its name."""

from __future__ import annotations

import inspect
import math
import pickle
import warnings
from pathlib import Path
from typing import Any

import torch

from mixreg.methods.choice import Choice
from mixreg.methods.method import Method


def settings_of(method: Method) -> dict[str, Any]:
    """A method's kind and all settings of its constructor that are numbers or text, as JSON holds them."""
    settings: dict[str, Any] = {"method": type(method).__name__}
    for name in ("alpha", "num_classes", *inspect.signature(type(method).__init__).parameters):
        value = _plain(getattr(method, name, None))
        if name not in ("inplace", "generator") and isinstance(value, (int, float, str, list)):
            settings[name] = value
    if isinstance(method, Choice):
        settings["methods"] = [settings_of(each) for each in method.methods]
    return settings


def _plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_plain(part) for part in value]
    # JSON has no infinity, which α may be.
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def require_same_settings(method: Method, stored: dict[str, Any] | None) -> None:
    """Refuse another method, α or option than a checkpoint's.

    Args:
        method: to be resumed with.
        stored: what `settings_of` gave for the checkpoint; None if it was written before checkpoints knew.
    """
    if stored is None:
        warnings.warn(
            "this checkpoint does not say which method and α it was trained with; make sure that they are the same",
            stacklevel=2,
        )
        return
    given = settings_of(method)
    # Earlier checkpoints knew less; what they did not know is not compared.
    if any(given.get(name) != value for name, value in stored.items()):
        before, now = (", ".join(f"{key}={value}" for key, value in each.items()) for each in (stored, given))
        raise ValueError(f"the checkpoint was trained with {before}, and is to be used with {now}: give it the same")


def state_in_checkpoint(path: Path, key: str) -> dict[str, Any]:
    """What a callback of Lightning left in a checkpoint; opened as numbers and text only, whatever else it holds."""
    try:
        callbacks = torch.load(path, map_location="cpu", weights_only=True).get("callbacks", {})
    except (OSError, pickle.UnpicklingError, RuntimeError, AttributeError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"{path} cannot be opened as a checkpoint of numbers and text ({reason}); restore it with a Trainer and "
            "ckpt_path"
        ) from error
    if key not in callbacks:
        held = ", ".join(callbacks) or "none"
        raise ValueError(f"{path} holds no state of {key}; of callbacks it holds {held}")
    found: dict[str, Any] = callbacks[key]
    return found
