"""What the checker found, and the sentence for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["Other", "Report", "advice", "listing", "text"]

# Reports are shown up to this many; a kernel with more kinds of faults is read from the first anyway.
SHOWN = 20

Where = Callable[[str, int, int], str]
_UPDATE = re.compile(r"\+\+|--|(?:[-+*/%&|^]|<<|>>)=")


@dataclass(frozen=True, slots=True)
class Other:
    """The earlier access of a race.

    Attributes
    ----------
    access : str
        ``"read"``, ``"write"``, ``"atomic operation"``, ``"volatile read"`` or ``"volatile write"``.
    thread : tuple of int, (x, y, z)
    block : tuple of int, (x, y, z), or None
        None: too many blocks ago to tell.
    file : str
    line : int
    """

    access: str
    thread: tuple[int, int, int]
    block: tuple[int, int, int] | None
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Report:
    """One thing the checker found.

    Attributes
    ----------
    kind : str
        ``"out of bounds"``, ``"data race"``, ``"uninitialised read"``, ``"misaligned"``, ``"write to const"``,
        ``"never written"``, ``"index out of range"`` (of a declared array type), ``"division by zero"``,
        ``"shift out of range"``, or ``"more"``: ``count`` further findings were dropped.
    access : str
        As `Other.access`.
    size_bytes : int
        Of the access; for ``"misaligned"`` the alignment it needs.
    array : str
        Name of the array, "" where none is near.
    index : int or None
        Flat element index, of the declared type's dimension for ``"index out of range"``.
    shape : tuple of int
        Of the array; ``()`` where not known.
    elements : int
        Of the array.
    thread : tuple of int, (x, y, z), or None
    block : tuple of int, (x, y, z), or None
    file : str
    line : int
        In the rendered text; 0 when not known.
    column : int
        From 1; 0 when not known.
    memory : str
        ``"argument"``, ``"shared"``, ``"dynamic shared"``, ``"global"`` (a ``__device__`` variable) or ``""``.
    address : int
    detail : str
        The type concerned, for the kinds that have one: ``"float [17]"``.
    other : Other or None
        The earlier access of a race.
    same_warp : bool
        Both accesses of a race are by one warp.
    count : int
        How often, at this pair of lines.
    """

    kind: str
    access: str
    size_bytes: int
    array: str
    index: int | None
    shape: tuple[int, ...]
    elements: int
    thread: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    file: str
    line: int
    column: int = 0
    memory: str = "argument"
    address: int = 0
    detail: str = ""
    other: Other | None = None
    same_warp: bool = False
    count: int = 1


def text(report: Report, where: Where | None = None) -> str:
    """The sentence for a report.

    Parameters
    ----------
    report : Report
    where : callable, optional
        Takes file, line and column (0: not known) of the rendered text and returns how to name that place, with the
        line's source if wanted; default: ``"saxpy.cu line 14"``.

    Examples
    --------
    >>> where = {"thread": (14, 7, 0), "block": (0, 2, 0), "file": "matmul.cu", "line": 14, "address": 0x7F0012C0}
    >>> text(Report("out of bounds", "read", 4, "a", 1200, (40, 30), 1200, **where))
    'read of 4 bytes at a[1200] (1200 elements, shape (40, 30)) by thread (14,7,0) of block (0,2,0), matmul.cu line 14'
    """
    return _SENTENCES[report.kind](report, where or _plain)


def listing(reports: Sequence[Report], where: Where | None = None, *, limit: int = SHOWN) -> str:
    """The sentences of several reports, one a line; behind ``limit`` of them only how many more there are."""
    known = [report for report in reports if report.kind != "more"]
    dropped = sum(report.count for report in reports if report.kind == "more")
    lines = [text(report, where) for report in known[:limit]]
    more = len(known) - len(lines) + dropped
    return "\n".join([*lines, f"and {more} more"] if more else lines)


def advice(report: Report, written: str = "") -> str | None:
    """What to try; None where the sentence says all there is to say.

    Parameters
    ----------
    report : Report
    written : str
        The line of the source.
    """
    if report.kind == "never written":
        return (
            "a grid and a block that reach every element (tiles=, grid=, block=), a write on every path of the kernel; "
            f'zeroed="{report.array}" if the rest is to be 0'
        )
    other = report.other
    if report.kind != "data race" or other is None:
        return None
    if (other.file, other.line) == (report.file, report.line) and _UPDATE.search(written):
        atomic = f"atomicAdd(&{_element(report)}, ...)"
        return f"{atomic} or its kind, if several threads update one element; else a barrier before it"
    if report.block is not None and other.block != report.block:
        return "an atomic operation, or two kernels: no barrier orders two blocks"
    return None


def _plain(file: str, line: int, column: int = 0) -> str:
    del column
    if not line:
        return "at a line that is not known"
    return f"{file} line {line}" if file else f"line {line}"


def _triple(values: tuple[int, ...]) -> str:
    return "(" + ",".join(map(str, values)) + ")"


def _who(report: Report) -> str:
    if report.thread is None or report.block is None:
        return ""
    return f" by thread {_triple(report.thread)} of block {_triple(report.block)}"


def _element(report: Report) -> str:
    """The element as a C++ programmer writes it: ``a[1200]``, ``tile[3][5]``, or a variable's bare name."""
    if report.index is None:
        return report.array
    if report.memory in ("shared", "global"):
        if not report.shape and report.elements == 1 and report.index == 0:
            return report.array
        if len(report.shape) > 1 and 0 <= report.index < report.elements:
            rest, parts = report.index, []
            for extent in reversed(report.shape):
                parts.append(rest % extent)
                rest //= extent
            return report.array + "".join(f"[{part}]" for part in reversed(parts))
    return f"{report.array}[{report.index}]"


def _size(report: Report) -> str:
    plural = "element" if report.elements == 1 else "elements"
    if len(report.shape) > 1:
        return f"{report.elements} {plural}, shape {report.shape}"
    return f"{report.elements} {plural}"


def _times(report: Report) -> str:
    return f" ({report.count} times)" if report.count > 1 else ""


def _bounds(report: Report, where: Where) -> str:
    place = f"{_who(report)}, {where(report.file, report.line, report.column)}"
    access = f"{report.access} of {report.size_bytes} {'byte' if report.size_bytes == 1 else 'bytes'}"
    if report.address < 4096:
        return f"{access} through a null pointer (address {report.address:#x}){place}"
    if not report.array or report.index is None:
        return f"{access} at address {report.address:#x}, in no array of this call{place}"
    kind = {"shared": " of shared memory", "dynamic shared": " of shared memory"}.get(report.memory, "")
    return f"{access} at {_element(report)} ({_size(report)}{kind}){place}"


def _race(report: Report, where: Where) -> str:
    other = report.other
    if other is None:
        place = where(report.file, report.line, report.column)
        return f"{_element(report)}: {report.access}{_who(report)} at {place}{_times(report)}"
    mine = f"{report.access} by thread {_triple(report.thread or ())}"
    theirs = f"{other.access} by thread {_triple(other.thread)}"
    here, there = f"at {where(report.file, report.line, report.column)}", f"at {where(other.file, other.line, 0)}"
    if other.block == report.block and report.block is not None:
        missing = "no __syncwarp or barrier between" if report.same_warp else "no barrier between"
        both = f"{theirs} {there} and {mine} {here} of block {_triple(report.block)}"
        return f"{_element(report)}: {both}, {missing}{_times(report)}"
    block = "an earlier block" if other.block is None else f"block {_triple(other.block)}"
    mine = f"{mine} of block {_triple(report.block or ())} {here}"
    return f"{_element(report)}: {theirs} of {block} {there} and {mine}, nothing orders the blocks{_times(report)}"


def _uninitialised(report: Report, where: Where) -> str:
    kind = "shared memory" if "shared" in report.memory else "the output"
    return (
        f"{report.access} of {_element(report)}, {kind} that nothing has written yet"
        f"{_who(report)}, {where(report.file, report.line, report.column)}{_times(report)}"
    )


def _misaligned(report: Report, where: Where) -> str:
    what = report.detail or f"{report.access} of {report.size_bytes} bytes"
    target = f" at {_element(report)}" if report.array else ""
    off = report.address % report.size_bytes
    return (
        f"misaligned {what}{target}, {off} {'byte' if off == 1 else 'bytes'} past a multiple of {report.size_bytes}"
        f"{_who(report)}, {where(report.file, report.line, report.column)}"
    )


def _const(report: Report, where: Where) -> str:
    return (
        f"write of {report.size_bytes} bytes to {_element(report)}, which the kernel takes as const"
        f"{_who(report)}, {where(report.file, report.line, report.column)}"
    )


def _unwritten(report: Report, where: Where) -> str:
    del where
    missing = f"{report.count} of {_size(report)} of the output {report.array} never written"
    return f"{missing}, the first is {_element(report)}"


def _index(report: Report, where: Where) -> str:
    place = f"{_who(report)}, {where(report.file, report.line, report.column)}"
    if not report.array:
        return f"index {report.index} is outside an array of type {report.detail}{place}"
    extent = report.detail.partition("[")[2].partition("]")[0]
    declared = report.array + "".join(f"[{size}]" for size in report.shape)
    return f"index {report.index} is outside the extent {extent} of {declared}{place}"


def _division(report: Report, where: Where) -> str:
    return f"division by zero of type {report.detail}{_who(report)}, {where(report.file, report.line, report.column)}"


def _shift(report: Report, where: Where) -> str:
    place = where(report.file, report.line, report.column)
    return f"shift of type {report.detail} by {report.index} bits{_who(report)}, {place}"


def _more(report: Report, where: Where) -> str:
    del where
    return f"and {report.count} more"


_SENTENCES: dict[str, Callable[[Report, Where], str]] = {
    "out of bounds": _bounds,
    "data race": _race,
    "uninitialised read": _uninitialised,
    "misaligned": _misaligned,
    "write to const": _const,
    "never written": _unwritten,
    "index out of range": _index,
    "division by zero": _division,
    "shift out of range": _shift,
    "more": _more,
}
