"""Make the files of a store fit its limit: what a put leaves to do, since it bounds the entries and not the files."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cuplate.cache.directory import allocated_bytes, remove_set_aside, stores
from cuplate.cache.reader import DATABASE
from cuplate.config import UNLIMITED

if TYPE_CHECKING:
    from cuplate.cache.engine import Engine, Evicted

__all__ = ["Pruned", "count_orphans", "prune", "remove_orphans", "target_bytes"]

_OURS = re.compile(rf"{re.escape(DATABASE)}(-wal|-shm|-journal)?|.*\.lock|\..*")
_ROUNDS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What `prune` did; ``str()`` says it in a few lines.

    Attributes
    ----------
    removed_entries, removed_entry_bytes : int
        Entries that went, expired ones included, and their sealed sizes.
    removed_orphans : int
        Files that no entry leads to, and stores that were set aside.
    entries, entry_bytes : int
        What is left: what the limit bounds.
    file_bytes_before, file_bytes : int
        What the files take on the disk, free pages, gaps, orphans and set-aside stores included.
    limit_bytes : int
        The limit.
    """

    removed_entries: int = 0
    removed_entry_bytes: int = 0
    removed_orphans: int = 0
    entries: int = 0
    entry_bytes: int = 0
    file_bytes_before: int = 0
    file_bytes: int = 0
    limit_bytes: int = 0

    @property
    def within(self) -> bool:
        """Whether the files are within the limit, a tenth of it and 1 MB."""
        return self.file_bytes <= target_bytes(self.limit_bytes)

    def __str__(self) -> str:
        limit = "unlimited" if self.limit_bytes >= UNLIMITED else f"{self.limit_bytes} bytes"
        return "\n".join(
            [
                f"removed  {self.removed_entries} entries ({self.removed_entry_bytes} bytes), "
                f"{self.removed_orphans} orphans",
                f"entries  {self.entry_bytes} bytes in {self.entries} entries, limit {limit}",
                f"files    {self.file_bytes_before} -> {self.file_bytes} bytes on disk",
            ]
        )


def target_bytes(limit_bytes: int) -> int:
    """What the files may take after `prune`: the limit, a tenth of it, and 1 MB."""
    return limit_bytes + limit_bytes // 10 + 1_000_000


def count_orphans(store: str) -> int:
    """How many files and set-aside stores `remove_orphans` would remove."""
    found = len(stores(store))
    for folder, folders, files in os.walk(store, followlinks=False):
        found += sum(folder != store or not _OURS.fullmatch(name) for name in files)
        found += sum(os.path.islink(os.path.join(folder, name)) for name in folders)
    return found


def remove_orphans(store: str) -> int:
    """Remove what no entry leads to: value files, temporary files, links and set-aside stores.

    Parameters
    ----------
    store : str
        Its folder, which is the store's own; the caller holds its lock.

    Returns
    -------
    int
        Files and stores removed. A link is removed, never what it leads to.
    """
    removed = remove_set_aside(store, older_than_s=0.0)
    if not hasattr(os, "fwalk"):  # Windows
        return removed
    # Not os.walk: it goes by path, and where others can write, a folder may become a link between look and removal.
    for folder, folders, files, descriptor in os.fwalk(store, topdown=False, follow_symlinks=False):
        for name in files:
            if folder != store or not _OURS.fullmatch(name):
                removed += _gone(os.unlink, name, descriptor)
        for name in folders:
            if _gone(os.unlink, name, descriptor):  # a link to a folder is listed as one
                removed += 1
            else:
                _gone(os.rmdir, name, descriptor)
    return removed


def _gone(remove: Callable[..., None], name: str, descriptor: int) -> bool:
    try:
        remove(name, dir_fd=descriptor)
    except OSError:
        return False
    return True


def prune(engine: Engine, directory: str, limit_bytes: int, *, more: Callable[[], bool]) -> list[Evicted]:
    """Drop entries until the files fit.

    Parameters
    ----------
    engine : Engine
    directory : str
        Of the store.
    limit_bytes : int
    more : callable
        Whether there is time for another round.

    Returns
    -------
    list of (bytes, str, int)
        Key, tag and size of what went.
    """
    gone: list[Evicted] = []
    engine.prune()
    gone += engine.evicted
    engine.shrink(repack=False)
    for attempt in range(_ROUNDS):
        excess = allocated_bytes(directory) - target_bytes(limit_bytes)
        if excess <= 0 or not more():
            break
        if attempt:  # the first time the gaps may be enough
            engine.prune(excess)
            gone += engine.evicted
        try:
            engine.shrink(repack=True)
        except sqlite3.Error:  # a full disk has no room for the copy: free whole pages at least
            engine.shrink(repack=False)
    return gone
