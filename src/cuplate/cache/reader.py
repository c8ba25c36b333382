"""Reads: one private connection to diskcache's table that never writes, and is opened without diskcache.

diskcache rewrites its settings at every open, which takes the write lock and cannot work on a read-only directory. Its
schema has been the same for years; one SELECT is all that a hit needs.
"""

from __future__ import annotations

import os
import stat
import time
import weakref
from typing import TYPE_CHECKING, Any

from cuplate.cache.faults import Refused

if TYPE_CHECKING:
    import sqlite3

__all__ = ["DATABASE", "Identity", "Reader", "close_with", "connect", "identity"]

DATABASE = "cache.db"
Identity = tuple[int, int]

_RAW = 1  # diskcache.core.MODE_RAW: the value stands in the row
_LIVE = "raw = 1 AND mode = 1 AND store_time > ?"
_ONE = f"SELECT value FROM Cache WHERE key = ? AND {_LIVE} LIMIT 1"
_TAGGED = f"SELECT key, value FROM Cache WHERE tag = ? AND {_LIVE} ORDER BY store_time DESC LIMIT ?"
_ROWS = (
    f"SELECT key, tag, size, store_time, access_time, access_count FROM Cache WHERE {_LIVE} ORDER BY store_time, rowid"
)
# SQLite calls back every so many steps of its machine; a planted view that never ends is cut off there.
_STEPS = 20_000


def identity(directory: str) -> Identity:
    """Device and inode of the database: whether the file is still the one that was opened.

    Parameters
    ----------
    directory : str
        Of the store.

    Returns
    -------
    tuple of int
        (device, inode).

    Raises
    ------
    FileNotFoundError
        There is none.
    """
    status = os.lstat(os.path.join(directory, DATABASE))
    return status.st_dev, status.st_ino


def connect(directory: str, query: str, busy_s: float) -> sqlite3.Connection:
    """A connection to the database, every file of it looked at first.

    Parameters
    ----------
    directory : str
        Of the store.
    query : str
        ``mode=rw`` and so on.
    busy_s : float
        How long SQLite waits for a lock, seconds.

    Returns
    -------
    sqlite3.Connection
        In autocommit; any thread may use it, one at a time.

    Raises
    ------
    Refused
        A file is not a plain file; SQLite would follow a link out of the directory, and write there.
    """
    import sqlite3

    database = os.path.join(directory, DATABASE)
    for suffix in ("", "-wal", "-shm", "-journal"):
        try:
            mode = os.lstat(database + suffix).st_mode
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(mode):
            raise Refused(f"{database}{suffix} is not a plain file")
    uri = database.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    connection = sqlite3.connect(
        f"file:{uri}?{query}", uri=True, isolation_level=None, timeout=busy_s, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        # Said on every connection, since it is not stored: diskcache says it once, and its __init__ ends by closing
        # that one. A power cut may lose the last puts, and never tears one.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA mmap_size = 0")  # under mmap a cut file is a SIGBUS, not an exception
    except BaseException:  # a damaged or locked file says so here
        connection.close()
        raise
    return connection


def close_with(owner: object, connection: sqlite3.Connection) -> weakref.finalize[..., Any]:
    """Close a connection at the latest with its owner, which it must not refer to.

    ``__del__`` of the owner would do, were it not for cycles: there the collector may ask the connection first, which
    warns from Python 3.13 that nobody has closed it.

    Parameters
    ----------
    owner : object
        The only one to use it.
    connection : sqlite3.Connection
        From `connect`.

    Returns
    -------
    weakref.finalize
        Call it to close now; never raises, and does nothing the second time.
    """
    closing = weakref.finalize(owner, _close, connection)
    closing.atexit = False  # a child that leaves would drop the locks of its parent's connections
    return closing


def _close(connection: sqlite3.Connection) -> None:
    try:
        connection.close()
    except Exception:
        return


class Reader:
    """One connection for look-ups.

    Parameters
    ----------
    directory : str
        Of the store.
    busy_s : float
        Longest wait for a lock, and longest time for one query, seconds.
    largest_bytes : int
        Longer values are refused before they are read.
    time_to_live_s : float
        Older entries count as absent, seconds.
    query : str, optional
        How SQLite opens it; default: as the directory's permissions ask for.

    Raises
    ------
    Exception
        Whatever SQLite or the file system says; FileNotFoundError when there is no store.
    """

    def __init__(
        self,
        directory: str,
        *,
        busy_s: float,
        largest_bytes: int,
        time_to_live_s: float = float("inf"),
        query: str | None = None,
    ) -> None:
        self.identity = identity(directory)
        self._time_to_live_s = time_to_live_s
        self._until = time.monotonic() + busy_s
        self._busy_s = busy_s
        self._connection = connect(directory, query or _query(directory), busy_s)
        self._closing = close_with(self, self._connection)
        try:
            self._harden(largest_bytes)
        except BaseException:
            self.close()
            raise

    def _harden(self, largest_bytes: int) -> None:
        import sqlite3

        self._connection.text_factory = bytes  # no decoding, so none that fails; the seal decides what a value is
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max(1 << 20, min(largest_bytes, (1 << 31) - 1)))
        this = weakref.proxy(self)
        self._connection.set_progress_handler(lambda: time.monotonic() > this._until, _STEPS)
        self._connection.execute("PRAGMA query_only = ON")

    def rows(self, wait_s: float) -> list[tuple[bytes, str, object, object, object, object]]:
        """Key, tag, size, times of the put and of the last use, and number of uses of every row, oldest first.

        Values are not read, and rows that nobody can have put are passed over; what is said of one is unchecked.

        Parameters
        ----------
        wait_s : float
            Longest time for it, seconds.
        """
        return [
            (key, bytes(tag or b"").decode("utf-8", "replace"), *more)
            for key, tag, *more in self._all(_ROWS, (self._oldest(),), wait_s)
            if type(key) is bytes and _is_text(tag)
        ]

    def keys(self, wait_s: float) -> list[tuple[bytes, str]]:
        """Key and tag of every row, as `rows` gives them."""
        return [(key, tag) for key, tag, *_ in self.rows(wait_s)]

    def _all(self, statement: str, arguments: tuple[object, ...], wait_s: float | None = None) -> list[Any]:
        # fetchall, not fetchone: an unfinished statement keeps its snapshot, and the log could never be reset.
        self._until = time.monotonic() + (self._busy_s if wait_s is None else wait_s)
        return self._connection.execute(statement, arguments).fetchall()

    def one(self, key: bytes, wait_s: float | None = None) -> object:
        """The value in a key's row, unchecked; None when there is no such row.

        Parameters
        ----------
        key : bytes
            Under which it was stored.
        wait_s : float, optional
            Longest time for it, seconds; default that of the connection.

        Returns
        -------
        object
            Bytes, if nobody has meddled.
        """
        rows = self._all(_ONE, (key, self._oldest()), wait_s)
        return rows[0][0] if rows else None

    def tagged(self, tag: str, limit: int) -> list[tuple[object, object]]:
        """Keys and values stored with a tag, newest first, unchecked.

        Parameters
        ----------
        tag : str
            As given to ``put``.
        limit : int
            Rows at most.

        Returns
        -------
        list of (object, object)
            Key and value.
        """
        return self._all(_TAGGED, (tag, self._oldest(), limit))

    def _oldest(self) -> float:
        return time.time() - self._time_to_live_s

    def sums(self) -> tuple[int, int]:
        """Entries, and the sum of their sizes in bytes."""
        found = dict(self._all("SELECT key, value FROM Settings WHERE key IN ('count', 'size')", ()))
        return tuple(v if type(v := found.get(name)) is int else 0 for name in (b"count", b"size"))  # type: ignore[return-value]

    def close(self) -> None:
        """Close; never raises."""
        self._closing()


def _is_text(tag: object) -> bool:
    return tag is None or type(tag) is bytes  # text comes as bytes, see _harden


def _query(directory: str) -> str:
    if os.access(directory, os.W_OK):
        return "mode=rw"  # with mode=ro a left-over journal could not be rolled back
    try:
        log_bytes = os.stat(os.path.join(directory, DATABASE + "-wal")).st_size
    except OSError:
        log_bytes = 0
    return "mode=ro" if log_bytes else "mode=ro&immutable=1"
