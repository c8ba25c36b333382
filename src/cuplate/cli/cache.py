"""``cuplate cache``: one line for each command."""

from __future__ import annotations

import typer

from cuplate.cli import change, explain, look, tune

__all__ = ["app"]

app = typer.Typer(
    help="Look into the disk cache, check it, and carry kernels from place to place. No command needs a GPU.",
    epilog="Exit codes: 0 fine; 1 something is wrong, or not there; 2 wrong usage; 3 no store, or it cannot be read or "
    "written; 130 interrupted.",
    no_args_is_help=True,
)
app.command()(look.info)
app.command()(look.path)
app.command("ls")(look.list_)
app.command()(look.show)
app.command()(explain.explain)
app.command()(look.verify)
app.command()(change.prune)
app.command()(change.clear)
app.command()(change.export)
app.command("import")(change.import_)
app.command()(tune.tune)
