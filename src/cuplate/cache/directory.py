"""The store's folder: who may use it, who opens it, and what was set aside beside it.

``<cache directory>/v1/cache.db`` is the store, ``v1.lock`` the lock of its openers, ``v1.bad-...`` a damaged store that
was moved out of the way.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from cuplate.cache.faults import Refused

__all__ = [
    "FOLDER",
    "FORMAT",
    "allocated_bytes",
    "check_trust",
    "make_private",
    "open_lock",
    "remove_set_aside",
    "set_aside",
    "stores",
]

FORMAT = "v1"
"""Name of the folder below the cache directory; another format gets another name, so two versions never meet."""

FOLDER = f"{FORMAT}.files"
"""Name of the folder of a store of plain files, beside or instead of that."""

_KEPT_S = 7 * 86400.0
_POLL_S = 0.002


def make_private(directory: str) -> None:
    """Make a directory and its missing parents, each for this user only.

    Parameters
    ----------
    directory : str
        Nothing is done if it exists.
    """
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        return
    except FileNotFoundError:
        parent = os.path.dirname(directory)
        if parent == directory:
            raise
        make_private(parent)
        with suppress(FileExistsError):
            os.mkdir(directory, 0o700)  # not this function again: below /proc a folder never comes into being


def check_trust(base: str, own: str, *, keyed: bool = False) -> None:
    """Refuse a directory in which somebody else can write: what lies there would run on the GPU.

    Parameters
    ----------
    base : str
        The cache directory; it exists.
    own : str
        The folder in it that only this library makes.
    keyed : bool
        Whether there is a secret. Then others may write both; but ``own`` is no link all the same, because what a link
        leads to would be taken for the store's own files, and be evicted, swept and pruned.

    Raises
    ------
    Refused
        One is a link, is another user's (root's is fine), or can be written by group or others.
    OSError
        One does not exist, or cannot be looked at.
    """
    for directory in () if keyed else (base, own):
        reason = _distrust(os.lstat(directory))
        if reason is not None:
            raise Refused(f"{directory} {reason}, and there is no secret (CUPLATE_CACHE_SECRET)")
    if keyed and not stat.S_ISDIR(os.lstat(own).st_mode):
        raise Refused(f"{own} is a link, or no directory")


def _distrust(status: os.stat_result) -> str | None:
    if stat.S_ISLNK(status.st_mode):
        return "is a symbolic link"
    if not stat.S_ISDIR(status.st_mode):
        return "is not a directory"
    if not hasattr(os, "getuid"):  # Windows
        return None
    if status.st_uid not in (0, os.getuid()):
        return f"belongs to user {status.st_uid}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"can be written by others (mode {stat.S_IMODE(status.st_mode):04o}; chmod 700 it)"
    return None


@contextmanager
def open_lock(store: str, until: float) -> Iterator[None]:
    """Be the one opener, or the one quarantine, of a store on this node; the system frees the lock with its holder.

    Parameters
    ----------
    store : str
        Folder of the store. The lock lies beside it, not in it: a quarantine must not move the lock away as well.
    until : float
        ``time.monotonic()`` at which to give up.

    Raises
    ------
    TimeoutError
        Another process held it all the time.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    descriptor = os.open(f"{store}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise TimeoutError(f"{store}.lock is held by another process") from None
                time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)


def stores(store: str) -> list[str]:
    """Folders of stores that were set aside.

    Parameters
    ----------
    store : str
        Folder of the live one.

    Returns
    -------
    list of str
        Paths beside it.
    """
    base, name = os.path.split(store)
    try:
        with os.scandir(base) as found:
            return [entry.path for entry in found if entry.name.startswith(f"{name}.bad-")]
    except OSError:
        return []


def set_aside(store: str) -> None:
    """Move a damaged store out of the way, in one rename.

    Parameters
    ----------
    store : str
        Its folder; the caller holds :func:`open_lock`.
    """
    os.rename(store, f"{store}.bad-{time.time_ns()}-{os.getpid()}")


def remove_set_aside(store: str, *, older_than_s: float = _KEPT_S) -> int:
    """Remove what was set aside.

    Parameters
    ----------
    store : str
        Folder of the live one; the caller holds :func:`open_lock`.
    older_than_s : float
        Seconds; default a week.

    Returns
    -------
    int
        Stores removed.
    """
    import shutil

    removed = 0
    for folder in stores(store):
        stamp = os.path.basename(folder).split("-")[1]
        if older_than_s <= 0 or (stamp.isdigit() and time.time() - int(stamp) / 1e9 > older_than_s):
            shutil.rmtree(folder, ignore_errors=True)
            removed += not os.path.lexists(folder)
    return removed


def allocated_bytes(store: str) -> int:
    """What the files of a store take on the disk, bytes: free pages, orphans and stores set aside included.

    Parameters
    ----------
    store : str
        Folder of the live one.

    Returns
    -------
    int
        0 when there is none.
    """
    total = 0
    for top in (store, *stores(store)):
        for folder, _, files in os.walk(top, followlinks=False):
            for name in files:
                with suppress(OSError):  # gone meanwhile
                    total += _allocated(os.lstat(os.path.join(folder, name)))
    return total


def _allocated(status: os.stat_result) -> int:
    return getattr(status, "st_blocks", -(-status.st_size // 512)) * 512
