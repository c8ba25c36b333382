"""Lays out what a source includes: the user's headers rewritten, those that are not there refused."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cuplate import headers
from cuplate.backend.cpu.source import SUPPORTED_HEADERS, Rewritten, analyse

__all__ = ["Layout", "lay_out", "unavailable"]

_INCLUDE = re.compile(r'(?m)^([ \t]*#[ \t]*include[ \t]*["<])([^">\n]+)')


@dataclass(frozen=True, slots=True)
class Layout:
    """What a compiler is given in place of a source and the user's directories.

    Attributes
    ----------
    text : str
        The source; it includes by absolute path what it did so, where that now lies.
    directories : tuple of Path
        To be searched, in order.
    dynamic_outside : bool
        A header declares dynamic shared memory outside of functions.
    """

    text: str
    directories: tuple[Path, ...]
    dynamic_outside: bool = False


def lay_out(text: str, directories: Sequence[Path], shim: Path, work: Path, *, refuse: bool) -> Layout:
    """Source and directories that a compiler is to read.

    Parameters
    ----------
    text : str
        The source, rewritten.
    directories : sequence of Path
        The user's.
    shim : Path
        Ours.
    work : Path
        Where files may be written. If one of the user's headers has to be rewritten, a copy of each that the source can
        reach is written there, below a root of its own under the path it has: so each still finds the others as the
        CUDA compiler does, beside itself, by ``..``, or by the order of the directories.
    refuse : bool
        The compiler cannot be kept from its own headers: for each name that is found nowhere, write a header that
        refuses it in our words.
    """
    places = [directory.absolute() for directory in directories]
    paths, absent = headers.reachable(text, directories=places)
    contents = dict(_read(paths))
    rewritten = {path: analyse(content) for path, content in contents.items()}
    searched = list(places)
    if any(new.text != contents[path] for path, new in rewritten.items()):
        mirror = _Mirror(work / "include", rewritten)
        text = mirror.redirected(text)
        searched = mirror.write(places)
    if refuse:
        texts = (text, *contents.values())
        mentioned = {posixpath.normpath(name) for each in texts for _, name in _INCLUDE.findall(each)}
        refused = [n for n in absent if n in mentioned and _inside(n) and not os.path.isfile(shim / n)]
        for name in refused:
            with suppress(OSError, ValueError):  # a name that is too long for a file: the compiler says so itself
                _write(work / "absent" / name, f'#pragma GCC error "{unavailable(name)}"\n')
        searched = [*searched, shim, *([work / "absent"] if refused else [])]
    else:
        searched = [*searched, shim]
    return Layout(text, tuple(searched), any(new.dynamic_outside for new in rewritten.values()))


def unavailable(name: str) -> str:
    """The sentence for a header that does not exist here."""
    known = ", ".join(sorted(SUPPORTED_HEADERS))
    return f"<{name}> is not available on the CPU backend, which has {known}, and your own include directories"


class _Mirror:
    """Copies of headers, each below `root` under its whole path."""

    def __init__(self, root: Path, rewritten: dict[str, Rewritten]) -> None:
        self.root = str(root)
        self.rewritten = rewritten

    def write(self, directories: Iterable[Path]) -> list[Path]:
        """Writes the copies; where the directories lie now."""
        filled = [self._place(str(directory)) for directory in directories]
        for folder in filled:
            os.makedirs(folder, exist_ok=True)
        for path, new in self.rewritten.items():
            copy = Path(self._place(path))
            os.makedirs(os.path.dirname(self.root + path), exist_ok=True)  # with what a ".." in the path steps out of
            _write(copy, f'#line 1 "{os.path.normpath(path)}"\n{self.redirected(new.text)}')
            filled.append(str(copy.parent))
        self._link_the_rest(set(filled))
        return [Path(self._place(str(directory))) for directory in directories]

    def redirected(self, text: str) -> str:
        """A text that includes copies where it includes by absolute path."""

        def one(found: re.Match[str]) -> str:
            known = os.path.isabs(found[2]) and os.path.join(*os.path.split(found[2])) in self.rewritten
            return found[1] + (self._place(found[2]) if known else found[2])

        return _INCLUDE.sub(one, text)

    def _place(self, path: str) -> str:
        return self.root + os.path.normpath(path)

    def _link_the_rest(self, folders: set[str]) -> None:
        """Whatever else lies in those folders: a macro may make the name of an include, which nobody foresees."""
        for folder, _, _ in os.walk(self.root):
            if any(folder == one or folder.startswith(one + os.sep) for one in folders):
                with suppress(OSError), os.scandir(folder.removeprefix(self.root)) as entries:
                    for entry in entries:
                        with suppress(FileExistsError):
                            os.symlink(entry.path, os.path.join(folder, entry.name))


def _read(paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    for path in paths:
        with suppress(OSError):  # it has gone, or may not be read: the compiler says so itself
            yield path, Path(path).read_text(encoding="utf-8", errors="surrogateescape")


def _inside(name: str) -> bool:
    return not name.startswith(("/", "..")) and "\\" not in name


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8", errors="surrogateescape")
