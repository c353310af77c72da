"""Scripts of `docs/`, which import each other by their names."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

DOCS = str(Path(__file__).parent.parent / "docs")


def script(name: str) -> ModuleType:
    """One of them."""
    sys.path.insert(0, DOCS)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(DOCS)
