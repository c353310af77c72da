"""Ways to train, one file each, found by reading this folder: `described()` without PyTorch, `load_method(name)` with.

A class that has a `name` is a method. What the command line says of it (name, sentence, options with their types,
defaults and descriptions) is read from its source, where it stands once; nothing is imported before it is used. To add
a method is to add a file.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from importlib.resources import files
from typing import TYPE_CHECKING

from mixreg._support.near_misses import unknown
from mixreg._support.references import load_reference
from mixreg.methods.description import Description, Option, describe, read_methods

if TYPE_CHECKING:
    from mixreg.methods.method import Method


@lru_cache(maxsize=1)
def described() -> dict[str, Description]:
    """The methods of this package by name."""
    found: dict[str, Description] = {}
    for path in sorted(files(__name__).iterdir(), key=lambda path: path.name):
        if path.name.endswith(".py") and not path.name.startswith("_"):
            module = f"{__name__}.{path.name.removesuffix('.py')}"
            found |= {known.name: known for known in read_methods(path.read_text(encoding="utf-8"), module)}
    return found


def options_of(method: str) -> dict[str, Option]:
    """The options of a method by name, or of a class of one's own, which is loaded for it."""
    return described()[method].options if method in described() else describe(load_method(method)).options


def require_known(name: str) -> None:
    """A method's name, or package.module:Class; otherwise an error that lists the known ones."""
    if name not in described() and ":" not in name:
        raise ValueError(unknown("method", name, described(), "or package.module:Class"))


def load_method(name: str) -> type[Method]:
    """The class of a method of this package, or of one's own (package.module:Class)."""
    from mixreg.methods.method import Method

    require_known(name)
    if name in described():
        known = described()[name]
        found: type[Method] = getattr(import_module(known.module), known.class_name)
        return found
    own = load_reference(name)
    if not isinstance(own, type) or not issubclass(own, Method):
        raise TypeError(f"{name} must be a subclass of mixreg.methods.method.Method, got {own!r}")
    return own
