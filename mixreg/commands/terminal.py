"""What others wrote, on a terminal: names in files and paths may hold anything; they are shown and never obeyed."""

from __future__ import annotations

import os
import unicodedata
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from mixreg._support.near_misses import meant

if TYPE_CHECKING:
    from rich.text import Text


_MOST_NAMES = 1000


def printable(text: object) -> str:
    r"""Text without effect on a terminal: control characters, marks of direction and broken letters as escapes.

    >>> print(printable("a\x1b[31m b"))
    a\x1b[31m b
    """
    return "".join(c if _is_harmless(c) else c.encode("unicode_escape").decode() for c in str(text))


def _is_harmless(character: str) -> bool:
    return character.isprintable() or character == "\n" or unicodedata.category(character) == "Zs"


def shown(text: object, style: str = "") -> Text:
    """The same for Rich, which would take [square brackets] for orders."""
    from rich.text import Text

    return Text(printable(text), style)


def _summary(command: click.Command) -> str:
    return command.short_help or " ".join((command.help or "").split("\n\n")[0].split())


class PathType(click.Path):
    """A path, which is not empty and holds no NUL: the first would mean this folder, the second nothing at all."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path of what was given."""
        text = os.fsdecode(value)
        if not text or "\0" in text:
            self.fail(f"expected a path, got {text!r}.", param, ctx)
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            near = "" if os.path.lexists(text) else meant(os.path.basename(text), _beside(text))
            if near:
                self.fail(f"{error.message.rstrip('.')}{near}", param, ctx)
            raise


def _beside(path: str) -> list[str]:
    """Names in the folder that something should be in, as far as it is small enough to look through."""
    try:
        with os.scandir(os.path.dirname(path) or ".") as entries:
            return sorted(entry.name for entry in islice(entries, _MOST_NAMES))
    except (OSError, ValueError):
        return []


class RunType(PathType):
    """A run: its folder, a file that was exported from one, or a network's name in the zoo."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path of what was given."""
        if not (isinstance(value, str) and value.startswith("zoo:")):
            return super().convert(value, param, ctx)
        # PyTorch comes with it: not before it is known to be needed.
        from mixreg.training.zoo import ZooError, find

        try:
            return find(value)
        except ZooError as error:
            self.fail(f"{error}.", param, ctx)


class SafeGroup(click.Group):
    """Commands in the order of their use, with whole summaries; errors have no effect on a terminal but to be read."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands' names, as they were added."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands with the first sentence of their help, on as many lines as it takes."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, _summary(command)) for name, command in self.commands.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            message = error.format_message()
            if printable(message) == message:
                raise
            if isinstance(error, click.UsageError):
                raise click.UsageError(printable(message), error.ctx) from error
            raise click.ClickException(printable(message)) from error
