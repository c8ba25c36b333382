"""How a command ends: its exit code, and the one place where an error becomes one."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

from cuplate.errors import (
    ArgumentError,
    CuplateError,
    CuplateWarning,
    DeclarationError,
    ManifestError,
    ParameterError,
    SettingError,
    TemplateError,
)

__all__ = ["Exit", "Stop", "ending", "say"]


class Exit(IntEnum):
    """The exit codes."""

    FINE = 0
    FOUND = 1  # something is wrong, or what was asked for is not there
    USAGE = 2  # typer's own for a wrong option as well
    STORE = 3  # there is no store, or it cannot be read or written
    LACKING = 4  # typer or rich is not installed, or matplotlib for a picture
    INTERRUPTED = 130
    PIPE = 141  # who read the output has gone; what a shell says of a program that SIGPIPE ended


_MISTAKES = (SettingError, ArgumentError, ParameterError, DeclarationError, TemplateError, ManifestError)


class Stop(Exception):
    """End the command here.

    Parameters
    ----------
    code : Exit
    message : str, optional
        For stderr; none where the result says it.
    """

    def __init__(self, code: Exit, message: str = "") -> None:
        super().__init__(message)
        self.code = code


def say(message: str) -> None:
    """A message for the person at the terminal; results go to stdout, all else goes here."""
    from cuplate.cli.screen import clean  # which needs rich, as this module must not

    lines = message if message.startswith("cuplate: ") else f"cuplate: {message}"
    print("\n".join(map(clean, lines.split("\n"))), file=sys.stderr)


@contextmanager
def ending() -> Iterator[None]:
    """Around all that a command does: warnings become messages, and each kind of error its exit code."""
    import typer

    code, message = Exit.FINE, ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what other packages have to say to their developers
            warnings.filterwarnings("always", category=CuplateWarning)
            warnings.showwarning = lambda message, *_: say(str(message))
            try:
                yield
            finally:
                sys.stdout.flush()  # a closed pipe is noticed here, not at the end of the interpreter
    except Stop as stop:
        code, message = stop.code, str(stop)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still buffered goes there
        code = Exit.PIPE
    except (KeyboardInterrupt, typer.Abort):
        code, message = Exit.INTERRUPTED, "interrupted."
        if sys.stderr.isatty():  # after the ^C that the terminal has shown
            print(file=sys.stderr)
    except (CuplateError, OSError) as error:
        code, message = Exit.USAGE if isinstance(error, _MISTAKES) else Exit.STORE, str(error)
    if message:
        say(message)
    if code:
        raise typer.Exit(code)
