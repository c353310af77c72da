"""What a checkpoint must know of a method so that no other one is resumed with it, or predicts in its name."""

from __future__ import annotations

import inspect
import math
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mixreg.methods.choice import Choice
from mixreg.methods.method import Method
from mixreg.methods.partners import BalancedPartners, SimilarTargets, UniformPartners
from mixreg.theory.moments import DataMoments

# Settings that say nothing of what is shown.
_OF_NO_EFFECT = ("inplace", "generator", "inputs", "targets")
_UNKNOWN = object()


def settings_of(method: Method) -> dict[str, Any]:
    """A method's kind and all settings of its constructor that are numbers or text, as JSON holds them.

    What was left out is None; of callables (partners) it is what they are called.
    """
    settings: dict[str, Any] = {"method": type(method).__name__}
    for name in ("alpha", "num_classes", *inspect.signature(type(method).__init__).parameters):
        value = _plain(getattr(method, name, _UNKNOWN))
        if name not in _OF_NO_EFFECT and (value is None or isinstance(value, (int, float, str, list))):
            settings[name] = value
    if isinstance(method, Choice):
        settings["methods"] = [settings_of(each) for each in method.methods]
    return settings


def _plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_plain(part) for part in value]
    if isinstance(value, (UniformPartners, BalancedPartners, SimilarTargets)):
        return repr(value)
    if callable(value) and not isinstance(value, type):
        # Not its `repr`, which may say where in memory it lies.
        return getattr(value, "__qualname__", type(value).__qualname__)
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
    if not _agrees(given, stored):
        before, now = (_said(each) for each in (stored, given))
        raise ValueError(f"the checkpoint was trained with {before}, and is to be used with {now}: give it the same")


def _agrees(given: Any, stored: Any) -> bool:
    """Whether settings are what a checkpoint holds; earlier ones knew less, and what they did not know is not asked."""
    if isinstance(stored, dict) and isinstance(given, dict):
        return all(name in given and _agrees(given[name], value) for name, value in stored.items())
    if isinstance(stored, list) and isinstance(given, list):
        return len(stored) == len(given) and all(map(_agrees, given, stored))
    return bool(given == stored)


def _said(settings: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in settings.items() if value is not None)


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


def moments_in(state: Mapping[str, Any], num_classes: int | None) -> DataMoments:
    """The means of what was seen, of a checkpoint's state."""
    if "moments" in state:
        tensors = {name: state[name] for name in ("mean", "class_sums", "class_counts") if name in state}
        return DataMoments.from_tensors(tensors, state["moments"])
    # As checkpoints were before.
    if not state["count"]:
        return DataMoments(num_classes)
    return DataMoments.from_means(state["x_mean"], state["y_mean"], num_classes, state["count"])
