"""Lays out what a source includes: the user's headers rewritten, those that are not there refused."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cuplate.backend.cpu.source import SUPPORTED_HEADERS, rewrite

__all__ = ["lay_out", "unavailable"]

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Header:
    path: Path
    content: str
    changed: str


def lay_out(text: str, directories: Sequence[Path], shim: Path, work: Path, *, refuse: bool) -> list[Path]:
    """Directories that a compiler is to search, in order.

    Parameters
    ----------
    text : str
        The source.
    directories : sequence of Path
        The user's.
    shim : Path
        Ours.
    work : Path
        Where files may be written. If one of the user's headers has to be rewritten, all that the source includes are
        written there: a header looks for another beside itself first.
    refuse : bool
        The compiler cannot be kept from its own headers: for each name that is found nowhere, write a header that
        refuses it in our words.
    """
    found, absent = _closure(text, directories, shim)
    searched = [*(directory.absolute() for directory in directories), shim]
    if any(header.changed != header.content for header in found.values()):
        for name, header in found.items():
            _write(work / "include" / name, f'#line 1 "{header.path}"\n{header.changed}')
        searched.insert(0, work / "include")
    if refuse and absent:
        for name in absent:
            _write(work / "absent" / name, f'#pragma GCC error "{unavailable(name)}"\n')
        searched.append(work / "absent")
    return searched


def unavailable(name: str) -> str:
    """The sentence for a header that does not exist here."""
    known = ", ".join(sorted(SUPPORTED_HEADERS))
    return f"<{name}> is not available on the CPU backend, which has {known}, and your own include directories"


def _closure(text: str, directories: Sequence[Path], shim: Path) -> tuple[dict[str, _Header], list[str]]:
    """The user's headers that the source can reach, by name below their directory; and names found nowhere."""
    found: dict[str, _Header] = {}
    absent: list[str] = []
    waiting = [(name, "") for name in _includes(text)]
    while waiting:
        name, beside = waiting.pop()
        place = next(((n, d / n) for n, d in _places(name, beside, directories) if (d / n).is_file()), None)
        if place is None:
            if not (shim / name).is_file() and _inside(posixpath.normpath(name)) and name not in absent:
                absent.append(name)
        elif place[0] not in found:
            content = place[1].read_text(encoding="utf-8", errors="surrogateescape")
            found[place[0]] = _Header(place[1].absolute(), content, rewrite(content))
            waiting += [(include, posixpath.dirname(place[0])) for include in _includes(content)]
    return found, absent


def _includes(text: str) -> list[str]:
    return [quoted or angled for quoted, angled in _INCLUDE.findall(text)]


def _places(name: str, beside: str, directories: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Where an include may be, as (name below a directory, directory); none outside of the directories."""
    for candidate in dict.fromkeys((posixpath.normpath(posixpath.join(beside, name)), posixpath.normpath(name))):
        if _inside(candidate):
            for directory in directories:
                yield candidate, directory


def _inside(name: str) -> bool:
    return not name.startswith(("/", "..")) and "\\" not in name


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8", errors="surrogateescape")
