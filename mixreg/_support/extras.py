"""Packages that three lines in one's own loop do not need: who needs one and lacks it is told what to install."""

from __future__ import annotations

from importlib.util import find_spec

# By the name it is imported as: what it is called, and the extra of mixreg that brings it.
_EXTRAS = {"matplotlib": ("matplotlib", "train"), "sklearn": ("scikit-learn", "train")}


def require_package(module: str, purpose: str) -> None:
    """An error that says what to install, unless a package is here.

    Args:
        module: the name that it is imported as.
        purpose: what it is needed for, as the beginning of a sentence.

    >>> require_package("sklearn", "two moons")
    """
    if find_spec(module) is None:
        package, extra = _EXTRAS[module]
        raise ImportError(f"{purpose} needs {package}: pip install 'mixreg[{extra}]'")
