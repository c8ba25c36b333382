"""Which specializations a program uses: a file for people and for ``cuplate build``, one line for each."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from cuplate.errors import ManifestError
from cuplate.wanted import Wanted

__all__ = ["Manifest", "add_to_file"]

_VERSION = 1
_HEAD = "cuplate_manifest"
_LOCK_S = 5.0
_POLL_S = 0.005


class Manifest:
    """Specializations, each once and in a fixed order; immutable.

    Parameters
    ----------
    wanted : iterable of Wanted

    Examples
    --------
    >>> from cuplate.kernels import transpose
    >>> a, b = Manifest([transpose.wanted(a="float32")]), Manifest([transpose.wanted(a="float64")])
    >>> len(a | b | a)
    2
    """

    __slots__ = ("_wanted",)

    def __init__(self, wanted: Iterable[Wanted] = ()) -> None:
        merged: dict[Wanted, Wanted] = {}
        for entry in wanted:
            known = merged.get(entry)
            merged[entry] = entry if known is None else known.with_variants(entry)
        self._wanted = tuple(sorted(merged.values(), key=lambda entry: (entry.function, entry.line())))

    def __iter__(self) -> Iterator[Wanted]:
        return iter(self._wanted)

    def __len__(self) -> int:
        return len(self._wanted)

    def __contains__(self, wanted: object) -> bool:
        return wanted in self._wanted

    def __or__(self, other: Manifest) -> Manifest:
        return Manifest((*self, *other)) if isinstance(other, Manifest) else NotImplemented

    def __eq__(self, other: object) -> bool:
        return self.text() == other.text() if isinstance(other, Manifest) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._wanted)

    def __repr__(self) -> str:
        return f"Manifest({len(self)} specializations)"

    def __str__(self) -> str:
        return self.text()

    def __reduce__(self) -> tuple[Any, ...]:
        return Manifest.parse, (self.text(),)

    def text(self) -> str:
        """As it is written to a file: JSON, a specialization a line, so that a change of one is a change of a line."""
        lines = ",\n".join(f"  {entry.line()}" for entry in self)
        body = f"[\n{lines}\n ]" if lines else "[]"
        return f'{{\n "{_HEAD}": {_VERSION},\n "specializations": {body}\n}}\n'

    @classmethod
    def parse(cls, text: str, *, file: str | None = None, imports: bool = True) -> Manifest:
        """What :meth:`text` wrote.

        Parameters
        ----------
        text : str
        file : str, optional
            For errors.
        imports : bool
            As of `Wanted.parse`.

        Raises
        ------
        ManifestError
            It is no manifest, or one of a later version.
        """
        try:
            told = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ManifestError("a manifest is not JSON.", file=file, reason=str(error)) from None
        if not isinstance(told, dict) or told.get(_HEAD) != _VERSION or type(told[_HEAD]) is not int:
            given = told.get(_HEAD) if isinstance(told, dict) else None
            raise ManifestError(
                "a file is no manifest of this version.",
                file=file,
                given="another file" if given is None else f"version {given!r}",
                allowed=f"{_HEAD}: {_VERSION}",
            )
        entries = told.get("specializations")
        if not isinstance(entries, list) or not told.keys() <= {_HEAD, "specializations"}:
            raise ManifestError("a manifest lists specializations, and nothing else.", file=file)
        try:
            return cls(Wanted.parse(entry, imports=imports) for entry in entries)
        except ManifestError as error:  # of several files, which
            raise ManifestError(error.summary, **{**error.facts, "file": file}) from error.__cause__

    @classmethod
    def read(cls, *paths: str | os.PathLike[str], imports: bool = True) -> Manifest:
        """The manifests of files, merged.

        Parameters
        ----------
        *paths : path
        imports : bool
            As of `Wanted.parse`.

        Raises
        ------
        ManifestError
            One cannot be read, or is no manifest.
        """
        merged: list[Wanted] = []
        for path in paths:
            try:
                with open(path, encoding="utf-8") as file:
                    text = file.read()
            except (OSError, UnicodeDecodeError) as error:
                raise ManifestError("a manifest cannot be read.", file=os.fspath(path), reason=str(error)) from None
            merged += cls.parse(text, file=os.fspath(path), imports=imports)
        return cls(merged)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write to a file, whole or not at all.

        Raises
        ------
        ManifestError
            What is there is no plain file.
        OSError
        """
        place = os.path.realpath(path)
        if os.path.exists(place) and not os.path.isfile(place):
            raise ManifestError("a manifest is no plain file.", file=os.fspath(path))
        _replace(place, self.text())


def add_to_file(path: str, wanted: Iterable[Wanted]) -> None:
    """Merge specializations into a manifest, which is made if need be; other processes may be at it too.

    Parameters
    ----------
    path : str
        Absolute.
    wanted : iterable of Wanted

    Raises
    ------
    ManifestError
        The file is something else.
    OSError
        It cannot be read or written.
    """
    with _locked(path) as there:
        text = there.read()
        known = Manifest.parse(text, file=path, imports=False) if text.strip() else Manifest()
        merged = known | Manifest(wanted)
        if merged.text() != text:
            _replace(path, merged.text())


@contextmanager
def _locked(path: str) -> Iterator[Any]:
    """The file, open, and locked against other writers: so that none of them loses what another has added.

    It is replaced and not written to, so a reader sees it whole, and whoever has waited for the lock of a file that has
    been replaced takes the new one. Where a lock cannot be had within five seconds, it is done without.
    """
    until = time.monotonic() + _LOCK_S
    while True:
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0), 0o666)
        with open(descriptor, encoding="utf-8") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # /dev/null would be replaced, for everybody
                raise ManifestError("a manifest is no plain file.", file=path)
            _lock(descriptor, until)
            if _is_at(descriptor, path) or time.monotonic() > until:
                yield file
                return


def _lock(descriptor: int, until: float) -> None:
    try:
        import fcntl
    except ImportError:  # Windows
        return
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < until:
                time.sleep(_POLL_S)
                continue
        except OSError:  # a file system without locks
            pass
        return


def _is_at(descriptor: int, path: str) -> bool:
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), there)


def _replace(path: str, text: str) -> None:
    temporary = f"{path}.{os.getpid()}.{time.time_ns()}.new"
    try:
        with open(temporary, "x", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
