"""The command ``cuplate``. Needs the extra ``cli``; loads of the library what a command asks for, and no CUDA.

A group of commands is a module with a `typer.Typer` of its own, added in ``app.py``.
"""

from __future__ import annotations

import io
import os
import sys

from cuplate.cli.exits import Exit

__all__ = ["main"]


def main() -> None:
    """Run the command that ``sys.argv`` asks for, and exit with one of the codes of `Exit`."""
    try:
        from cuplate.cli.app import app
    except KeyboardInterrupt:
        raise SystemExit(Exit.INTERRUPTED) from None
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "cuplate":
            raise
        print(f"cuplate: the command line needs {error.name}: pip install 'cuplate[cli]'", file=sys.stderr)
        raise SystemExit(Exit.LACKING) from None
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the shell has closed it: >&-
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a locale that lacks a character must not end a command
            stream.reconfigure(errors="backslashreplace")
    app(prog_name="cuplate")
