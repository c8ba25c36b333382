"""How results look: tables and colour for a person at a terminal, plain whole lines for a pipe, JSON for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from cuplate.progress import progress

__all__ = ["age", "clean", "console", "emit", "progress", "size", "table"]

SCHEMA = 1
"""Of every ``--json``: raised when a field's name or meaning changes, not when one is added."""

_WIDE = 1 << 16
_NARROW = 60  # below it, as with COLUMNS=0, a table has no room for what it is about: the terminal folds the lines
_MANY = 500  # rows of a table that is drawn for a person: the layout of more takes seconds
_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def console() -> Console:
    """Stdout: as wide as the terminal, or as wide as the text where there is none."""
    plain: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False}
    shown = Console(**plain)
    if not shown.is_terminal:
        return Console(**plain, width=_WIDE, color_system=None)
    return shown if shown.width >= _NARROW else Console(**plain, width=_NARROW)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: Sequence[str] = ()) -> None:
    """Print rows under headings; a heading of none has no heading line.

    Parameters
    ----------
    columns : sequence of str
        All but the first and the numbers give way where the terminal is narrow, the widest first.
    rows : iterable of sequences
    numbers : sequence of str
        Columns to be set flush right.
    """
    shown = console()
    cells = [[clean(str(cell)) for cell in row] for row in rows]
    if not shown.is_terminal or len(cells) > _MANY:
        _print_plain([list(columns), *cells] if any(columns) else cells, {*map(columns.index, numbers)})
        return
    made = Table(
        box=box.SIMPLE_HEAD if any(columns) else None,
        show_header=any(columns),
        show_edge=False,
        pad_edge=False,
        header_style="bold",
        padding=(0, 1 if any(columns) else 2, 0, 0),
    )
    for place, name in enumerate(columns):
        number = name in numbers
        made.add_column(name, justify="right" if number else "left", no_wrap=number or not place, overflow="fold")
    for row in cells:
        made.add_row(*row)
    shown.print(made)


def _print_plain(rows: list[list[str]], right: set[int]) -> None:
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        gaps = [" " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
        padded = (gaps[place] + cell if place in right else cell + gaps[place] for place, cell in enumerate(row))
        print("  ".join(padded).rstrip())


def emit(**fields: object) -> None:
    """Print a result as JSON."""
    print(json.dumps({"schema": SCHEMA, **fields}, indent=2))


def clean(text: str) -> str:
    """Text of a store without control characters: a planted name must not steer a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def size(count_bytes: float) -> str:
    """``"5.3 KiB"``."""
    if count_bytes < 1024:
        return f"{count_bytes:.0f} B"
    power = min(4, int(math.log(count_bytes, 1024)))
    return f"{count_bytes / 1024**power:.1f} {' KMGT'[power]}iB"


def age(seconds: float) -> str:
    """``"3d"``: in the largest unit that fits."""
    for unit_s, name in _UNITS:
        if seconds >= unit_s:
            return f"{seconds // unit_s:.0f}{name}"
    return "now"
