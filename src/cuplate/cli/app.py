"""The commands of ``cuplate``: one line for each group."""

from __future__ import annotations

from typing import Annotated

import typer

import cuplate
from cuplate.cli import build, bundle, cache
from cuplate.cli.flags import Command, Group

__all__ = ["app"]

app = typer.Typer(cls=Group, no_args_is_help=True, pretty_exceptions_enable=False)
app.command(cls=Command)(build.build)
app.add_typer(bundle.app, name="bundle")
app.add_typer(build.manifest_commands, name="manifest")
app.add_typer(cache.app, name="cache")


def _version(wanted: bool) -> None:
    if wanted:
        print(cuplate.__version__)
        raise typer.Exit


@app.callback()
def _cuplate(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", callback=_version)] = False,
) -> None:
    """CUDA C++ kernel templates as Python functions: what can be done from a shell."""
