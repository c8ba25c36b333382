"""``cuplate cache tune``: what a trace says of the cache, as tables, as plots, and as lines to paste."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from cuplate.cache import tune as replay
from cuplate.cache.tuning import Tier, Tuning
from cuplate.cli import screen
from cuplate.cli.exits import Exit, Stop, ending, say
from cuplate.cli.store import Json
from cuplate.config import parse_size, parse_time

__all__ = ["chart", "draw", "show", "tune"]

_HEIGHT = 8  # lines of a plot
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_COLOURS = ("cyan", "magenta", "yellow", "green")


def tune(
    traces: Annotated[
        list[Path], typer.Argument(metavar="TRACE", help="Files that CUPLATE_TRACE or cache.record() has written.")
    ],
    memory_kernels: Annotated[
        int | None, typer.Option(min=1, help="Memory above the disk tier. Default: what is recommended.")
    ] = None,
    disk_bytes: Annotated[
        list[str] | None, typer.Option(metavar="64M", help="A size of the disk tier; several times for several.")
    ] = None,
    eviction: Annotated[
        list[str] | None, typer.Option(help="A policy; several times for several. Default: all.")
    ] = None,
    time_to_live: Annotated[str | None, typer.Option(metavar="30d", help="Default: as it was in force.")] = None,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the curves to a file.")] = None,
    json: Json = False,
) -> None:
    """Replay a trace against every policy and size, and recommend the smallest that do."""
    with ending():
        sizes = [parse_size("--disk-bytes", size) for size in disk_bytes] if disk_bytes else None
        ttl = None if time_to_live is None else parse_time("--time-to-live", time_to_live)
        with screen.progress("replaying"):
            tuning = replay(
                *traces, memory_kernels=memory_kernels, disk_sizes=sizes, evictions=eviction, time_to_live_s=ttl
            )
        if png is not None:
            draw(tuning, png)
        if json:
            screen.emit(**tuning.figures())
        else:
            show(tuning, screen.console())
        for note in tuning.notes:
            say(note)


def show(tuning: Tuning, console: Console) -> None:
    """The report, with a plot of each tier where there is a terminal."""
    console.print(tuning.summary())
    for table in tuning.tables():
        console.print(f"\n{screen.clean(table.title)}", style="bold", soft_wrap=True)
        screen.table(table.head, table.rows, numbers=table.numbers)
    for tier in (tuning.memory, tuning.disk) if console.is_terminal else ():
        if tier is not None:
            console.print(chart(tier))
    if tuning.settings():
        console.print("\nrecommended", style="bold")
        for line in (*tuning.environment(), "", *tuning.project()):
            console.print(line, soft_wrap=True)


def chart(tier: Tier) -> Text:
    """Miss ratios as bars: a group for each size, in it one for each policy."""
    points = [curve.points for curve in tier.curves]
    highest = max((p.miss_ratio for curve in points for p in curve), default=0.0) or 1.0
    labels = [_short(p.size) for p in points[0]]
    width = max(len(points), *map(len, labels)) + 1
    drawn = Text(f"\nmiss ratio of the {tier.name} tier by {tier.unit}\n", style="bold")
    for line in range(_HEIGHT, 0, -1):
        drawn.append(f"{highest * line / _HEIGHT:7.1%} ", style="dim")
        for group in zip(*points, strict=True):
            for colour, p in zip(_COLOURS, group, strict=False):
                filled = p.miss_ratio / highest * _HEIGHT - (line - 1)
                drawn.append(_EIGHTHS[round(8 * min(1.0, max(0.0, filled)))], style=colour)
            drawn.append(" " * (width - len(group)))
        drawn.append("\n")
    drawn.append(" " * 8 + "".join(label.ljust(width) for label in labels) + "\n", style="dim")
    for number, (colour, curve) in enumerate(zip(_COLOURS, tier.curves, strict=False), 1):
        drawn.append(f"{' ' * 8}{number} ", style="dim")
        drawn.append("█ ", style=colour)
        drawn.append(f"{curve.policy}\n")
    return drawn


def _short(size: int) -> str:
    """A size in four characters or so."""
    for power, unit in enumerate(("", "K", "M", "G", "T")):
        if size < 1000 * 1024**power or unit == "T":
            return f"{size / 1024**power:.3g}{unit}"
    raise AssertionError


def draw(tuning: Tuning, path: Path) -> None:
    """The curves as a picture.

    Raises
    ------
    Stop
        matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise Stop(Exit.LACKING, "--png needs matplotlib: pip install 'cuplate[plot]'") from None
    matplotlib.use("agg")
    from matplotlib import pyplot

    tiers = [tier for tier in (tuning.memory, tuning.disk) if tier is not None]
    figure, axes = pyplot.subplots(1, max(1, len(tiers)), figsize=(6 * max(1, len(tiers)), 4), squeeze=False)
    for ax, tier in zip(axes[0], tiers, strict=False):
        for curve in tier.curves:
            ratios = [100 * p.miss_ratio for p in curve.points]
            ax.plot([p.size for p in curve.points], ratios, marker=".", label=curve.policy)
        ax.axvline(tier.enough.size, color="grey", linestyle=":", label=f"enough: {_short(tier.enough.size)}")
        ax.set(title=tier.name, xlabel=tier.unit, ylabel="miss ratio, %", xscale="log")
        ax.set_ylim(bottom=0)
        ax.legend()
    figure.tight_layout()
    figure.savefig(path, format="png")
    pyplot.close(figure)
