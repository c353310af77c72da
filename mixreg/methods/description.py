"""What a method says of itself, read from the source of its class, where it stands once: no method is imported for it.

The command line must answer before PyTorch is loaded. A class's `name`, `about` and `options` are literals; an option
is an argument of its constructor, with that argument's annotation and default, and its line in the docstring.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mixreg._support.near_misses import meant

if TYPE_CHECKING:
    from mixreg.methods.method import Method


@dataclass(frozen=True)
class Option:
    """An option of a method: the type of its annotation, its default and its description."""

    name: str
    annotation: str
    default: Any
    about: str

    def parse(self, text: str) -> Any:
        """What was written on a command line, as the option's type: names with commas for sequences."""
        kind = self.kind
        try:
            if kind == "bool":
                return {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}[text.lower()]
            if kind in ("int", "float"):
                return int(text) if kind == "int" else float(text)
        except (KeyError, ValueError):
            raise ValueError(f"option {self.name} takes {kind}, got {text!r}") from None
        return tuple(word.strip() for word in text.split(",")) if self.is_sequence else text

    def checked(self, value: Any) -> Any:
        """A value of the option's type, or an error that says what was given."""
        if value is None:
            return value
        if self.is_sequence:
            return (value,) if isinstance(value, str) else tuple(value)
        kind = self.kind
        wanted: dict[str, tuple[type, ...]] = {"bool": (bool,), "int": (int,), "float": (int, float), "str": (str,)}
        is_wrong = kind in wanted and not isinstance(value, wanted[kind])
        if is_wrong or (isinstance(value, bool) and kind in ("int", "float")):
            raise ValueError(f"option {self.name} takes {kind}, got {value!r}")
        return value

    @property
    def kind(self) -> str:
        """The name of its type: as annotated, else that of its default."""
        return self.annotation.removesuffix(" | None") or type(self.default).__name__

    @property
    def is_sequence(self) -> bool:
        """Whether it is several words."""
        return self.kind.startswith(("Sequence[", "tuple", "list"))


@dataclass(frozen=True)
class Description:
    """What a method says of itself, and where it is."""

    name: str
    about: str
    options: dict[str, Option]
    module: str
    class_name: str


def require_options(method: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Options that a method has, by name; otherwise an error that lists those."""
    names = list(known)
    for name in given:
        if name not in names:
            listed = ", ".join(names) or "none"
            raise ValueError(f"method {method} has no option {name!r}; it has {listed}{meant(name, names)}")


def read_methods(source: str, module: str) -> Iterator[Description]:
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef):
            continue
        values = dict(_literals(node))
        if values.get("name"):
            options = {name: _option(node, name) for name in values.get("options", ())}
            yield Description(values["name"], values.get("about", ""), options, module, node.name)


def _literals(node: ast.ClassDef) -> Iterator[tuple[str, Any]]:
    """name, about and options, as the class's body gives them."""
    for part in node.body:
        if isinstance(part, ast.Assign):
            targets: list[ast.expr] = part.targets
        elif isinstance(part, ast.AnnAssign) and part.value is not None:
            targets = [part.target]
        else:
            continue
        for target in targets:
            if isinstance(target, ast.Name) and target.id in ("name", "about", "options") and part.value is not None:
                yield target.id, ast.literal_eval(part.value)


def _option(node: ast.ClassDef, name: str) -> Option:
    """An argument of the constructor with its annotation, its default and its line of the class's docstring."""
    init = next((part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"), None)
    annotation, default = "", None
    for argument, value in _arguments(init.args) if init is not None else ():
        if argument.arg == name:
            annotation = "" if argument.annotation is None else ast.unparse(argument.annotation)
            default = None if value is None else ast.literal_eval(value)
    lines = [line.strip() for line in (ast.get_docstring(node) or "").splitlines()]
    about = next((line.partition(":")[2].strip() for line in lines if line.startswith(f"{name}:")), "")
    return Option(name, annotation, default, about)


def _arguments(arguments: ast.arguments) -> Iterator[tuple[ast.arg, ast.expr | None]]:
    """Every argument with its default, or None."""
    positional = [*arguments.posonlyargs, *arguments.args]
    missing: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    yield from zip(positional, [*missing, *arguments.defaults], strict=True)
    yield from zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)


def describe(kind: type[Method]) -> Description:
    """What a method's class says of itself, one of one's own too."""
    source = inspect.cleandoc("\n" + inspect.getsource(kind))
    (node,) = (part for part in ast.parse(source).body if isinstance(part, ast.ClassDef))
    options = {name: _option(node, name) for name in kind.options}
    return Description(kind.name, kind.about, options, kind.__module__, kind.__name__)
