"""Writes: diskcache, with both of its endless loops bounded and every path to pickle and to other files closed.

Imported at the first write only, next to a compile. What is kept of diskcache: its schema, settings, tags, triggers and
the steps of ``set`` and ``delete``. What is replaced: the connection (one, with no wait of its own), opening (bounded),
transactions (bounded, and the true error comes out), eviction (exact, by the sum of the entries), and the value files
(none: a value file is never synced, and a planted file name would read or delete any file).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import diskcache
from diskcache.core import DEFAULT_SETTINGS, ENOVAL, METADATA, MODE_RAW, UNKNOWN

from cuplate.cache.reader import connect

__all__ = ["BytesDisk", "Engine"]

_SETTINGS = {
    **DEFAULT_SETTINGS,
    "statistics": 0,
    "tag_index": 1,
    "eviction_policy": "least-recently-stored",  # -used would make a write of every hit
    "cull_limit": 10,
    "sqlite_auto_vacuum": 1,
    "sqlite_journal_mode": "wal",
    "sqlite_mmap_size": 0,
    "sqlite_synchronous": 1,
    "disk_min_file_size": 1 << 31,
}
_KNOWN = {*_SETTINGS, *METADATA}
_PAGE_BYTES = 16384
_POLL_S = 0.002
_STEPS = 200_000
_OLDEST = "SELECT rowid, size, key, tag FROM Cache WHERE key != ? ORDER BY store_time, rowid LIMIT 32"


class BytesDisk(diskcache.Disk):  # type: ignore[misc]
    """Bytes keys, bytes values, both in the row: no pickle in either direction, no file besides the database."""

    def __init__(self, directory: str, **ignored: object) -> None:
        # A planted "disk_..." row of Settings arrives here as a keyword; all of them are fixed.
        super().__init__(directory, min_file_size=1 << 31)

    # diskcache has no types; pyright's guess at them is narrower than what diskcache takes.
    def put(self, key: object) -> tuple[object, bool]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The key as SQLite stores it."""
        if type(key) is not bytes:
            raise TypeError(f"a key is bytes, not {type(key).__name__}")
        return sqlite3.Binary(key), True

    def get(self, key: object, raw: object) -> bytes:
        """The key of a row; a pickled one is refused."""
        if not raw or type(key) is not bytes:
            raise OSError("refused a key that is not raw bytes")
        return key

    def store(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, value: object, read: bool, key: object = UNKNOWN
    ) -> tuple[int, int, None, object]:
        """Size, mode, file name and value of the row. The size makes diskcache's triggers keep the sum of entries."""
        if type(value) is not bytes or read:
            raise TypeError(f"a value is bytes, not {type(value).__name__}")
        return len(value), MODE_RAW, None, sqlite3.Binary(value)

    def fetch(self, mode: object, filename: object, value: object, read: bool) -> bytes:
        """The value of a row; anything but bytes is refused, with an OSError, which diskcache takes for a miss."""
        if mode != MODE_RAW or type(value) is not bytes or read:
            raise OSError(f"refused a value of mode {mode!r}")
        return value

    def filename(self, key: object = UNKNOWN, value: object = UNKNOWN) -> tuple[str, str]:
        """Refused: there are no value files."""
        raise TypeError("no value files")

    def remove(self, file_path: object) -> None:
        """Nothing: no file outside the database is ours."""


class Engine(diskcache.Cache):  # type: ignore[misc]
    """One writing connection.

    Parameters
    ----------
    directory : str
        Of the store; it exists.
    limit_bytes : int
        Sum of the sealed entries after every put.
    until : float
        ``time.monotonic()`` at which opening gives up; set :attr:`until` again before each operation.

    Raises
    ------
    Exception
        Whatever SQLite or the file system says.
    """

    def __init__(self, directory: str, *, limit_bytes: int, until: float) -> None:
        self.until = until
        self.evicted: list[tuple[bytes, str, int]] = []
        self._real_directory = directory
        self._connection: sqlite3.Connection | None = None
        self._spared = b""
        self._sum_limit = limit_bytes
        try:
            # "/" and not the directory: diskcache would expand "~" and "$NAME" in it, and create what came out.
            super().__init__("/", timeout=0, disk=BytesDisk, size_limit=limit_bytes, **_without_limit())
        except BaseException:
            self.close()
            raise

    def __del__(self) -> None:
        self.close()

    @property
    def _directory(self) -> str:
        return self._real_directory

    @_directory.setter
    def _directory(self, ignored: str) -> None:
        pass

    @property
    def _con(self) -> sqlite3.Connection:
        # One for all threads (the tier's lock guards it): diskcache's own, one a thread, outlive their threads.
        if self._connection is None:
            connection = connect(self._real_directory, "mode=rwc", 0.0)
            # Before anything is written, and then for good: most kernels fit one page, and a look-up reads one or two.
            connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
            connection.text_factory = _lenient  # a planted text that is no UTF-8 must not stop every open
            connection.set_progress_handler(lambda: time.monotonic() > self.until + 1.0, _STEPS)
            self._connection = connection
        return self._connection

    def _bounded(self, call: Callable[..., Any], *arguments: object) -> Any:
        """Call again while the database is locked, until the deadline."""
        while True:
            try:
                return call(*arguments)
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > self.until:
                    raise
            time.sleep(_POLL_S)

    @property
    def _sql_retry(self) -> Callable[..., Any]:
        sql = self._sql
        return lambda statement, *arguments: self._bounded(sql, statement, *arguments)

    def reset(self, key: str, value: object = ENOVAL, update: bool = True) -> object:
        """diskcache's, but bounded, and deaf to settings that diskcache does not have (a planted row)."""
        if key not in _KNOWN:
            return None
        if value is ENOVAL:
            rows = self._sql_retry("SELECT value FROM Settings WHERE key = ?", (key,)).fetchall()
            value = rows[0][0] if rows else 0
        elif update:
            self._sql_retry("UPDATE Settings SET value = ? WHERE key = ?", (value, key))
        if key.startswith("sqlite_"):
            self._pragma(key[7:], value)
        setattr(self, key, value)
        return value

    def _pragma(self, name: str, value: object) -> None:
        old = self._sql_retry(f"PRAGMA {name}").fetchall()
        if not old or old[0][0] != value:
            self._bounded(lambda: self._sql(f"PRAGMA {name} = {value}").fetchall())

    @contextmanager
    def _transact(self, retry: bool = False, filename: object = None) -> Iterator[tuple[Any, Callable[..., None]]]:
        sql = self._sql
        self._bounded(sql, "BEGIN IMMEDIATE")
        try:
            yield sql, lambda name: None
            sql("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # SQLite may have rolled back by itself, on a full disk for one
                sql("ROLLBACK")
            raise

    def write(self, key: bytes, blob: bytes, tag: str) -> None:
        """Store one sealed entry, and evict others until the sum is within the limit.

        Parameters
        ----------
        key, blob : bytes
            The entry; the blob counts with its seal.
        tag : str
            For :meth:`cuplate.cache.reader.Reader.tagged`.
        """
        self.evicted = []
        self._spared = key
        self.set(key, blob, tag=tag)

    def _cull(self, now: float, sql: Callable[..., Any], cleanup: object, limit: int | None = None) -> None:
        total = self._sum(sql)
        if total <= self._sum_limit:
            return
        # After the clock was set back, old entries look newer than all to come; the row number keeps their order.
        sql("UPDATE Cache SET store_time = ? WHERE store_time > ?", (now, now))
        while total > self._sum_limit and (rows := sql(_OLDEST, (self._spared,)).fetchall()):
            for row, size, key, tag in rows:
                sql("DELETE FROM Cache WHERE rowid = ?", (row,))
                size = size if type(size) is int and size > 0 else 0
                self.evicted.append((bytes(key or b""), str(tag), size))
                total -= size
                if total <= self._sum_limit:
                    break

    def _sum(self, sql: Callable[..., Any]) -> int:
        rows = sql("SELECT value FROM Settings WHERE key = 'size'").fetchall()
        if rows and type(rows[0][0]) is int and rows[0][0] >= 0:
            return int(rows[0][0])
        total = int(sql("SELECT COALESCE(SUM(length(value)), 0) FROM Cache").fetchall()[0][0])
        sql("INSERT OR REPLACE INTO Settings VALUES ('size', ?)", (total,))
        return total

    def empty(self) -> int:
        """Delete every entry and give the room back to the file system.

        Returns
        -------
        int
            Entries deleted.
        """
        with self._transact() as (sql, _):
            count = int(sql("SELECT COUNT(*) FROM Cache").fetchall()[0][0])
            sql("DELETE FROM Cache")
            sql("UPDATE Settings SET value = 0 WHERE key IN ('count', 'size')")
        self._bounded(lambda: self._sql("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())
        return count

    def close(self) -> None:
        """Close the connection; the next use opens another. Never raises."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except Exception:
                return


def _without_limit() -> dict[str, object]:
    return {name: value for name, value in _SETTINGS.items() if name != "size_limit"}


def _lenient(text: bytes) -> str:
    return text.decode("utf-8", "replace")
