"""Shows what kernels printed.

As on a GPU, printf puts records into a buffer, and they are shown when the launch is over: to `sys.stdout`, block by
block, in each block in the order of printing. A buffer holds 1 MiB for each worker; what comes after is dropped, and
the count of it is shown.
"""

from __future__ import annotations

import ctypes as C
import re
import struct
import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["formatted", "show"]

_DIRECTIVE = re.compile(
    r"%(?P<flags>[-+ #0]*)(?P<width>\*|\d+)?(?:\.(?P<precision>\*|\d*))?"
    r"(?P<length>hh|h|ll|l|j|z|t|L)?(?P<kind>[a-zA-Z%])"
)
_BITS = {"hh": 8, "h": 16, None: 32}


def show(crew: Sequence[Any]) -> None:
    """Writes what the workers of a launch recorded to `sys.stdout`."""
    records: list[tuple[int, str]] = []
    dropped = 0
    for worker in crew:
        memory = worker.memory
        dropped += memory.print_dropped
        records += _records(C.string_at(memory.print_buffer, memory.print_used))
    records.sort(key=lambda record: record[0])  # stable: in a block the order of printing stays
    sys.stdout.write("".join(text for _, text in records))
    if dropped:
        sys.stdout.write(f"[cuplate: {dropped} more calls of printf did not fit into the buffer]\n")
    sys.stdout.flush()


def _records(data: bytes) -> list[tuple[int, str]]:
    found = []
    at = 0
    while at < len(data):
        length, block = struct.unpack_from("<IQ", data, at)
        format_, *arguments = _arguments(data[at + 12 : at + length])
        found.append((block, formatted(str(format_), arguments)))
        at += length
    return found


def _arguments(data: bytes) -> list[int | float | str]:
    values: list[int | float | str] = []
    at = 0
    while at < len(data):
        kind = data[at : at + 1]
        if kind == b"s":
            (size,) = struct.unpack_from("<I", data, at + 1)
            values.append(data[at + 5 : at + 5 + size].decode("utf-8", "replace"))
            at += 5 + size
        else:
            values.append(struct.unpack_from("<q" if kind == b"i" else "<d", data, at + 1)[0])
            at += 9
    return values


def formatted(template: str, arguments: Sequence[int | float | str]) -> str:
    """What C's printf makes of a format and its arguments.

    Examples
    --------
    >>> formatted("%3d|%-4s|%5.2f|%x", [7, "ab", 2.5, -1])
    '  7|ab  | 2.50|ffffffff'
    """
    rest = list(arguments)

    def one(found: re.Match[str]) -> str:
        if found["kind"] == "%":
            return "%"
        try:
            width = str(rest.pop(0)) if found["width"] == "*" else found["width"] or ""
            precision = str(rest.pop(0)) if found["precision"] == "*" else found["precision"]
            value = rest.pop(0)
        except IndexError:
            return found[0]  # fewer arguments than directives: undefined in C
        flags = found["flags"] + width + ("" if precision is None else f".{precision}")
        try:
            return _directive(flags, found["length"], found["kind"], value)
        except (TypeError, ValueError, OverflowError):
            return found[0]

    return _DIRECTIVE.sub(one, template)


def _directive(flags: str, length: str | None, kind: str, value: Any) -> str:
    if kind in "di":
        bits = _BITS.get(length, 64)
        return f"%{flags}d" % (((int(value) + (1 << (bits - 1))) % (1 << bits)) - (1 << (bits - 1)))
    if kind in "uxXo":
        # Python's # prefixes octal numbers with 0o
        text = f"%{flags}{'d' if kind == 'u' else kind}" % (int(value) % (1 << _BITS.get(length, 64)))
        return text.replace("0o", "0", 1) if kind == "o" else text
    if kind == "c":
        return f"%{flags}c" % chr(int(value) & 0xFF)
    if kind == "p":
        return f"%{flags}s" % hex(int(value) % (1 << 64))
    if kind in "aA":
        text = float(value).hex()
        return f"%{flags}s" % (text.upper() if kind == "A" else text)
    return str(f"%{flags}{kind}" % value)
