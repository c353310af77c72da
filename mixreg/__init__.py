"""mixreg: Mixup done right. Train with it, predict with it the way the theory says, see what it regularises.

    mix = Mixup(alpha=1.0, num_classes=10)            # 1. before the loop
    x, y = mix(x, y)                                  # 2. in the loop
    model = Rescaled.from_loader(net, loader, alpha=1.0, num_classes=10)     # 3. after it

An implementation of *On Mixup Regularization* (Carratino, Cissé, Jenatton, Vert; JMLR 2022). What it exports is listed
in `__init__.pyi` and nowhere else.
"""

import ast
from importlib import import_module
from importlib.resources import files
from typing import Any

__version__ = "0.2.0"


def _exports() -> dict[str, str]:
    """Every exported name and the module it comes from, as the stub lists them for type checkers."""
    stub = ast.parse(files("mixreg").joinpath("__init__.pyi").read_text(encoding="utf-8"))
    return {
        alias.name: node.module or "" for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }


_HOMES = _exports()
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    # Loaded on first use: the command line must answer without waiting for PyTorch.
    if name not in _HOMES:
        raise AttributeError(f"module 'mixreg' has no attribute {name!r}")
    home = _HOMES[name]
    value = import_module(f"mixreg.{name}") if home == "mixreg" else getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
