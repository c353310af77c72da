"""A user's own network by name: `package.module:factory`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def load_factory(reference: str) -> Callable[..., Any]:
    """The callable that `module:factory` names; modules of the current folder are found too."""
    module, _, name = reference.partition(":")
    if not module or not name:
        raise ValueError(f"a network of your own is given as MODULE:FACTORY, got {reference!r}")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"cannot find {reference!r}: {error}") from error
