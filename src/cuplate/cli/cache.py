"""``cuplate cache``: one line for each command."""

from __future__ import annotations

import typer

from cuplate.cli import change, explain, look, tune
from cuplate.cli.flags import Command, Group

__all__ = ["app"]

app = typer.Typer(
    cls=Group,
    help="Look into the disk cache, check it, and carry kernels from place to place. No command needs a GPU.",
    epilog="Exit codes: 0 fine; 1 something is wrong, or not there; 2 wrong usage; 3 no store, or it cannot be read or "
    "written; 4 a package is not installed that it needs; 130 interrupted; 141 who read the output has gone.",
    no_args_is_help=True,
)
app.command(cls=Command)(look.info)
app.command(cls=Command)(look.path)
app.command("ls", cls=Command)(look.list_)
app.command(cls=Command)(look.show)
app.command(cls=Command)(explain.explain)
app.command(cls=Command)(look.verify)
app.command(cls=Command)(change.prune)
app.command(cls=Command)(change.clear)
app.command(cls=Command)(change.export)
app.command("import", cls=Command)(change.import_)
app.command(cls=Command)(tune.tune)
