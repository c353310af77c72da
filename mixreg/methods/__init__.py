"""Ways to train, one file each, found by reading this folder: `described()` without PyTorch, `load_method(name)` with.

A class that has a `name` is a method. What the command line says of it (name, sentence, options with their types,
defaults and descriptions) is read from its source, where it stands once; nothing is imported before it is used. To add
a method is to add a file.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from mixreg._support.references import load_reference

if TYPE_CHECKING:
    from mixreg.methods.method import Method

_TYPES = {"float": float, "int": int, "str": str, "bool": bool}


@dataclass(frozen=True)
class Option:
    """An option of a method: its type (tuple for several words), default and description."""

    name: str
    type: type
    default: Any
    about: str


@dataclass(frozen=True)
class Description:
    """What a method says of itself, and where it is."""

    name: str
    about: str
    options: dict[str, Option]
    module: str
    class_name: str


@lru_cache(maxsize=1)
def described() -> dict[str, Description]:
    """The methods of this package by name."""
    found = {}
    for path in sorted(files(__name__).iterdir(), key=lambda path: path.name):
        if path.name.endswith(".py") and not path.name.startswith("_"):
            for description in _read(path.read_text(encoding="utf-8"), f"{__name__}.{path.name.removesuffix('.py')}"):
                found[description.name] = description
    return found


def _read(source: str, module: str) -> Iterator[Description]:
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef):
            continue
        values = {
            part.targets[0].id: ast.literal_eval(part.value)
            for part in node.body
            if isinstance(part, ast.Assign)
            and isinstance(part.targets[0], ast.Name)
            and part.targets[0].id in ("name", "about", "options")
        }
        if values.get("name"):
            options = {name: _option(node, name) for name in values.get("options", ())}
            yield Description(values["name"], values["about"], options, module, node.name)


def _option(node: ast.ClassDef, name: str) -> Option:
    """An argument of the constructor with its annotation, its default and its line of the class's docstring."""
    (init,) = (part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__")
    arguments, defaults = init.args.args, init.args.defaults
    by_name = dict(zip([a.arg for a in arguments][len(arguments) - len(defaults) :], defaults, strict=True))
    annotation = next(ast.unparse(a.annotation) for a in arguments if a.arg == name and a.annotation is not None)
    lines = [line.strip() for line in (ast.get_docstring(node) or "").splitlines()]
    about = next((line.partition(":")[2].strip() for line in lines if line.startswith(f"{name}:")), "")
    return Option(name, _TYPES.get(annotation, tuple), ast.literal_eval(by_name[name]), about)


def require_known(name: str) -> None:
    """A method's name, or package.module:Class; otherwise an error that lists the known ones."""
    if name not in described() and ":" not in name:
        raise ValueError(f"unknown method {name!r}; known are {', '.join(described())}, or package.module:Class")


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
