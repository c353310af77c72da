"""Names that an option takes, for its help and for the shell to complete; all of it without PyTorch.

A shell asks at every press of a key, and must not wait. So the names of methods, models and experiments are read from
the sources where they stand once; nothing is imported for it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from mixreg._support.tasks import LOSS_OF
from mixreg.methods import described

LAYOUTS = ("cifar-c", "imagenet-c", "imagenet-a", "imagenet-v2", "objectnet", "vid-robust", "ytbb-robust")
LOSSES = tuple(LOSS_OF.values())
RULES = ("plain", "rescaled", "fitted")

# Older versions of click have the class without its parameter.
if TYPE_CHECKING:
    _Text = click.ParamType[str]
else:
    _Text = click.ParamType


class Named(_Text):
    """A name out of several, or something else: completed by the shell, and checked where it is used."""

    name = "text"

    def __init__(self, known: Callable[[], Iterable[str]] | Iterable[str], or_path: bool = False) -> None:
        self._known, self.or_path = known, or_path

    @property
    def known(self) -> tuple[str, ...]:
        """The names."""
        return tuple(self._known() if callable(self._known) else self._known)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The names that begin like this; then files, if it may be one."""
        found = [CompletionItem(name) for name in self.known if name.startswith(incomplete)]
        return found or ([CompletionItem(incomplete, type="file")] if self.or_path else [])


def own_code_options(function: Any) -> Any:
    """The options of commands that open a run whose network or method is code of one's own."""
    for flag, metavar, about in (
        ("--method", "MODULE:CLASS", "The method's code, if the run's is your own."),
        ("--model", "MODULE:FACTORY", "The network's code, if the run's is your own."),
    ):
        function = click.option(flag, metavar=metavar, show_default="none", help=about)(function)
    return function


def rule_options(function: Any) -> Any:
    """The options of commands that predict."""
    held_out: dict[str, Any] = {"type": DATA, "metavar": "NAME|PATH", "show_default": "what the run held out"}
    function = click.option("--held-out", help="Labelled data to fit the rule on.", **held_out)(function)
    by_itself = "fitted where data was held out, else rescaled"
    return click.option("--rule", type=click.Choice(RULES), show_default=by_itself, help="How to predict.")(function)


def methods() -> tuple[str, ...]:
    """Ways to train."""
    return tuple(described())


@lru_cache(maxsize=1)
def models() -> tuple[str, ...]:
    """Networks: the keys of `mixreg.models.MODELS`."""
    return tuple(_keys(_source("models", "__init__.py"), "MODELS"))


@lru_cache(maxsize=1)
def datasets() -> tuple[str, ...]:
    """Data: the keys of `EMBEDDED`, and the recipes in `RECIPES`, each a call whose first argument is its name."""
    registry = _source("data", "registry.py")
    recipes = (element for element in _comprehended(registry, "RECIPES") if isinstance(element, ast.Call))
    return (*_keys(registry, "EMBEDDED"), *(str(ast.literal_eval(recipe.args[0])) for recipe in recipes))


@lru_cache(maxsize=1)
def experiments() -> tuple[str, ...]:
    """The paper's: what the modules in `EXPERIMENTS` call themselves."""
    modules = _comprehended(_source("experiments", "registry.py"), "EXPERIMENTS")
    return tuple(name for module in modules for name in _experiments_in(f"{ast.unparse(module)}.py"))


def _experiments_in(file: str) -> Iterator[str]:
    for node in ast.walk(_source("experiments", file)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Experiment":
            yield from (str(ast.literal_eval(word.value)) for word in node.keywords if word.arg == "name")


def _source(*path: str) -> ast.Module:
    return ast.parse(files("mixreg").joinpath(*path).read_text(encoding="utf-8"))


def _assigned(source: ast.Module, name: str) -> ast.expr:
    """What a module assigns to a name."""
    for node in source.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id == name and isinstance(node, (ast.Assign, ast.AnnAssign)):
            assert node.value is not None
            return node.value
    raise LookupError(f"no {name} is assigned")


def _keys(source: ast.Module, name: str) -> Iterator[str]:
    """The keys of a dictionary that is written out."""
    found = _assigned(source, name)
    assert isinstance(found, ast.Dict)
    yield from (str(ast.literal_eval(key)) for key in found.keys if key is not None)


def _comprehended(source: ast.Module, name: str) -> list[ast.expr]:
    """What a dictionary comprehension runs over, if that is written out."""
    found = _assigned(source, name)
    assert isinstance(found, ast.DictComp)
    assert isinstance(found.generators[0].iter, ast.Tuple)
    return found.generators[0].iter.elts


DATA = Named(datasets, or_path=True)
DEVICE = Named(("cpu", "cuda", "mps"))
