"""Code of one's own by name: `package.module:name`."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any


def load_reference(reference: str) -> Any:
    """What `module:name` names; modules of the current folder are found too."""
    module, _, name = reference.partition(":")
    if not module or not name:
        raise ValueError(f"code of your own is given as MODULE:NAME, got {reference!r}")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"cannot find {reference!r}: {error}") from error
