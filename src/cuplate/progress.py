"""How far a long piece of work is, on stderr if that is a terminal: rich's bar if rich is installed, else a line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress"]


@contextmanager
def progress(doing: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """A bar while the block runs; call what it gives with the number done so far.

    Parameters
    ----------
    doing : str
        What is done.
    total : int, optional
        How many there are.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda done: None
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError:
        of = "" if total is None else f" of {total}"
        yield lambda done: print(f"\r{doing}: {done}{of}", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        return
    counted = () if total is None else (MofNCompleteColumn(),)
    columns = (TextColumn("{task.description}"), BarColumn(), *counted, TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(doing, total=total)
        yield lambda done: bar.update(task, completed=done)
