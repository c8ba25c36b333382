"""Which store a command is about, which of its entries, and what is read of one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import typer

from cuplate import cache
from cuplate.cache.directory import FORMAT
from cuplate.cache.listing import Listed, is_kernel, wrong_with
from cuplate.cli.exits import Exit, Stop, ending
from cuplate.config import parse_size, parse_time
from cuplate.cubin import About, Cubin, decode
from cuplate.errors import CacheError, SettingError
from cuplate.seal import unseal

__all__ = ["Choice", "Entry", "Opened", "chosen", "opened", "read_secret"]

Directory = Annotated[
    Path | None,
    typer.Option(
        "--directory", "-d", help="The cache directory, or an exported one. Default: as the library finds it."
    ),
]
SecretFile = Annotated[
    Path | None,
    typer.Option(
        exists=True, dir_okay=False, help="File with the key of the seal; a line break at its end is none of it."
    ),
]
SealFile = Annotated[
    Path | None,
    typer.Option(exists=True, dir_okay=False, help="The key of what is written or read. Default: that of the cache."),
]
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]
Layers = Annotated[bool, typer.Option("--layers", help="The read-only layers too.")]

_CHOICE = "Which entries"
Kernels = Annotated[
    list[str] | None,
    typer.Option("--kernel", metavar="GLOB", help="Of these functions or kernels.", rich_help_panel=_CHOICE),
]
Archs = Annotated[
    list[str] | None,
    typer.Option("--arch", metavar="GLOB", help="For these: sm_90, 'sm_9*', host.", rich_help_panel=_CHOICE),
]
OlderThan = Annotated[
    str | None, typer.Option(metavar="30d", help="Stored longer ago than this.", rich_help_panel=_CHOICE)
]
NewerThan = Annotated[str | None, typer.Option(metavar="2h", help="Stored since then.", rich_help_panel=_CHOICE)]
UnusedFor = Annotated[str | None, typer.Option(metavar="30d", help="Not used since then.", rich_help_panel=_CHOICE)]
LargerThan = Annotated[str | None, typer.Option(metavar="64K", help="Stored size.", rich_help_panel=_CHOICE)]
SmallerThan = Annotated[str | None, typer.Option(metavar="1M", help="Stored size.", rich_help_panel=_CHOICE)]


@dataclass(frozen=True, slots=True)
class Kernel:
    """What is kept of a kernel that was read: all but the code, of which a full store has a gigabyte.

    Attributes
    ----------
    entry, arch : str
    code_bytes : int
    about : About
    """

    entry: str
    arch: str
    code_bytes: int
    about: About


class Entry:
    """One entry of a store; its record is read when it is asked for.

    Attributes
    ----------
    listed : Listed
    key : str
        Hexadecimal.
    function : str
        The specialized function, or what kind of note it is; ``"?"`` where that cannot be read.
    is_kernel : bool
        Whether it is a kernel, or what the library notes beside them.
    """

    def __init__(self, listed: Listed, opened: Opened) -> None:
        self.listed, self._opened = listed, opened
        self.key = listed.key.hex()
        self.function, self.is_kernel = listed.tag or "?", is_kernel(listed.tag)

    @cached_property
    def kernel(self) -> Kernel | None:
        """What is known of the kernel; None where `read` gives none."""
        cubin = self.read()
        return None if cubin is None else Kernel(cubin.entry, cubin.arch, len(cubin.code), cubin.about)

    def read(self) -> Cubin | None:
        """The kernel; None for a note, for what is damaged, and for what has gone meanwhile."""
        record = self.record()
        try:
            return None if record is None else decode(record)
        except ValueError:
            return None

    def record(self) -> bytes | None:
        """The kernel's record, its seal checked; None as for `read`."""
        if not self.is_kernel:
            return None
        blob, _ = self._sealed()
        return unseal(self.listed.key, blob, self._opened.policy.secret)

    def wrong(self) -> str | None:
        """What is wrong with it, a few words; None for nothing, and for what has gone meanwhile."""
        blob, trouble = self._sealed()
        if blob is None:
            return trouble
        return wrong_with(self.listed.key, self.listed.tag, blob, self._opened.policy.secret)

    def _sealed(self) -> tuple[object, str | None]:
        """What lies there, or None and why this one entry cannot be read."""
        try:
            return self._opened.tier.sealed(self.listed.key), None
        except CacheError as error:
            if error.cause not in ("bad entry", "damaged"):
                raise
            return None, error.summary

    @property
    def layer(self) -> str | None:
        """The read-only layer that holds it; None for the cache itself."""
        own = self.listed.directory == self._opened.tier.directory
        return None if own else self.listed.directory


@dataclass(frozen=True, slots=True)
class Choice:
    """Which entries a command is about; what is None chooses all.

    Attributes
    ----------
    kernels, archs : tuple of str
        Globs.
    oldest_s, newest_s : float or None
        Bounds of the time of the put, seconds since 1970.
    used_before_s : float or None
        Upper bound of the time of the last use.
    smallest_bytes, largest_bytes : int or None
    """

    kernels: tuple[str, ...] = ()
    archs: tuple[str, ...] = ()
    oldest_s: float | None = None
    newest_s: float | None = None
    used_before_s: float | None = None
    smallest_bytes: int | None = None
    largest_bytes: int | None = None

    @staticmethod
    def of(
        kernels: list[str] | None,
        archs: list[str] | None,
        older_than: str | None,
        newer_than: str | None,
        unused_for: str | None,
        larger_than: str | None,
        smaller_than: str | None,
    ) -> Choice:
        """As the options of a command say it.

        Raises
        ------
        SettingError
            One is neither a time nor a size.
        """
        now = time.time()

        def ago(option: str, text: str | None) -> float | None:
            return None if text is None else now - parse_time(option, text)

        def bound(option: str, text: str | None) -> int | None:
            return None if text is None else parse_size(option, text)

        return Choice(
            tuple(kernels or ()),
            tuple(archs or ()),
            oldest_s=ago("--newer-than", newer_than),
            newest_s=ago("--older-than", older_than),
            used_before_s=ago("--unused-for", unused_for),
            smallest_bytes=bound("--larger-than", larger_than),
            largest_bytes=bound("--smaller-than", smaller_than),
        )

    def holds(self, entry: Entry) -> bool:
        """Whether an entry is meant; reads it only if what is listed does not decide."""
        listed = entry.listed
        return (
            (self.oldest_s is None or listed.stored_s > self.oldest_s)
            and (self.newest_s is None or listed.stored_s < self.newest_s)
            and (self.used_before_s is None or listed.used_s < self.used_before_s)
            and (self.smallest_bytes is None or listed.size_bytes > self.smallest_bytes)
            and (self.largest_bytes is None or listed.size_bytes < self.largest_bytes)
            and (not self.kernels or self._names(entry))
            and (not self.archs or (entry.kernel is not None and _matches(entry.kernel.arch, self.archs)))
        )

    def _names(self, entry: Entry) -> bool:
        if _matches(entry.listed.tag, self.kernels):
            return True
        kernel = entry.kernel
        names = () if kernel is None else (kernel.entry, dict(kernel.about.ingredients).get("kernel", ""))
        return any(_matches(name, self.kernels) for name in names)


def _matches(name: str, globs: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


@dataclass(frozen=True, slots=True)
class Opened:
    """The store of one command.

    Attributes
    ----------
    tier : Tier or NoStore
    policy : EffectivePolicy
    """

    tier: cache.Tier | cache.NoStore
    policy: cache.EffectivePolicy

    @property
    def own(self) -> cache.Tier | cache.NoStore:
        """The tier without the layers below it."""
        top: cache.Tier | cache.NoStore = getattr(self.tier, "top", self.tier)
        return top

    def entries(self, *, layers: bool = False, notes: bool = False) -> list[Entry]:
        """What is stored.

        Parameters
        ----------
        layers : bool
            What lies in the layers too; always where there is nothing else.
        notes : bool
            What the library keeps beside the kernels too.

        Raises
        ------
        CacheError
            The store is there and cannot be read.
        """
        tier = self.tier if layers or self.own.directory is None else self.own
        return [Entry(listed, self) for listed in tier.listing() if notes or is_kernel(listed.tag)]

    def find(self, prefix: str) -> Entry:
        """The entry whose key begins so: of the cache, else of its layers.

        Raises
        ------
        Stop
            There is none, or several; or it is no beginning of a key.
        """
        wanted = prefix.lower()
        if not wanted or not set(wanted) <= set("0123456789abcdef"):
            raise Stop(Exit.USAGE, f"{prefix!r} is no beginning of a key: hexadecimal digits, as ls shows them.")
        for layers in (False, True):
            found = [e for e in self.entries(layers=layers, notes=True) if e.key.startswith(wanted)]
            if len(found) == 1:
                return found[0]
            if found:
                some = "\n".join(f"  {e.key}  {e.function}" for e in found[:8])
                raise Stop(Exit.USAGE, f"{len(found)} keys begin with {prefix}; give more digits:\n{some}")
        raise Stop(Exit.FOUND, f"no key begins with {prefix} in {self.tier.directory or 'any layer'}.")


@contextmanager
def opened(directory: Path | None, secret_file: Path | None, *, made: bool = True, **values: Any) -> Iterator[Opened]:
    """The store that the options and the policy lead to; errors inside become exit codes, see `ending`.

    Parameters
    ----------
    directory, secret_file : Path or None
        As given on the command line.
    made : bool
        False for a command that has something to say where there is no store.
    **values : object
        Of the policy.
    """
    with ending():
        if directory is not None:
            if directory.is_file():
                raise Stop(
                    Exit.STORE,
                    f"{directory} is a file; if it is a bundle, cuplate bundle ls and verify look into it, "
                    "and cuplate cache import takes it over.",
                )
            if made and not directory.is_dir():
                raise Stop(Exit.STORE, f"{directory} is not a directory.")
            values["directory"] = directory
            if _of_files(directory):
                values["engine"] = "files"
        if secret_file is not None:
            values["secret"] = read_secret(secret_file)
        with cache.configure(**values):
            tier = cache.disk_tier()
            if made and tier.directory is None and not getattr(tier, "layers", ()):
                raise Stop(Exit.STORE, f"there is no disk cache ({tier.state()}).")
            yield Opened(tier, cache.current_policy())


def read_secret(file: Path) -> bytes:
    """The key of a seal, as a file holds it.

    Raises
    ------
    SettingError
        It is empty: what is sealed with that anybody could have sealed.
    """
    secret = file.read_bytes().removesuffix(b"\n")
    if not secret:
        raise SettingError("a secret is empty.", given=os.fspath(file), try_="openssl rand -hex 32")
    return secret


def _of_files(directory: Path) -> bool:
    """Whether a directory holds a store of files and nothing else, as `export` makes one."""
    return os.path.isdir(directory / f"{FORMAT}.files") and not os.path.isdir(directory / FORMAT)


def chosen(entries: list[Entry], choice: Choice, advance: Callable[[int], None]) -> list[Entry]:
    """The entries that are meant, telling how many have been looked at."""
    found = []
    for number, entry in enumerate(entries, 1):
        if choice.holds(entry):
            found.append(entry)
        advance(number)
    return found
