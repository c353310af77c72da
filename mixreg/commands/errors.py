"""Errors of the command line: one sentence, and where it was if somebody wants to know."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from mixreg.commands.terminal import printable


def one_line_errors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Whatever goes wrong becomes one sentence; with MIXREG_DEBUG=1 in the environment, a traceback."""

    @wraps(function)
    def command(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except SystemExit as error:
            if _is_broken_pipe(error.__context__):
                # Rich ends the program when nobody reads any more.
                raise click.exceptions.Exit(1) from error
            # Commands end by returning; only code of one's own gets here, and it would look like success.
            raise click.ClickException(f"code that was run ended the program with exit code {error.code!r}.") from error
        except Exception as error:
            if _is_broken_pipe(error):
                raise  # click ends quietly
            if os.environ.get("MIXREG_DEBUG", "0") not in ("", "0"):
                raise
            raise click.ClickException(sentence(error)) from error

    return command


def _is_broken_pipe(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno == errno.EPIPE


def sentence(error: Exception) -> str:
    """An error as one line that ends as a sentence does."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if isinstance(error, OSError) and error.filename and str(error.filename) not in text:
        text = f"{error.filename}: {text}"
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [type(error).__name__]
    known = isinstance(error, (ImportError, OSError, TypeError, ValueError))
    # An error nobody foresaw is named by its type, and usually says most at its end.
    shown = " ".join(lines) if known else f"{type(error).__name__}: {lines[-1]}"
    return printable(shown if shown.endswith("?") else f"{shown.rstrip('.')}.")
