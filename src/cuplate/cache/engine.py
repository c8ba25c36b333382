"""Writes: diskcache, with both of its endless loops bounded and every path to pickle and to other files closed.

Imported at the first write only, next to a compile. What is kept of diskcache: its schema, settings, tags, triggers and
the steps of ``set`` and ``delete``. What is replaced: the connection (one, with no wait of its own), opening (bounded),
transactions (bounded, and the true error comes out), eviction (exact, by the sum of the entries and one of four
orders), and the value files (none: a value file is never synced, and a planted file name would read or delete any
file).

Orders do not lean on the clock, which may be set back: where the order of puts counts, a row that is stored again is a
new row, so the row number says what was stored first, and a use gets a stamp above all others.
"""

from __future__ import annotations

import math
import sqlite3
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import diskcache
from diskcache.core import DEFAULT_SETTINGS, ENOVAL, METADATA, MODE_RAW, UNKNOWN

from cuplate.cache.reader import close_with, connect
from cuplate.cache.touch import BY_USE, STEP_S, first_stamp, touch

__all__ = ["BytesDisk", "Engine"]

_SETTINGS = {
    **DEFAULT_SETTINGS,
    "statistics": 0,
    "tag_index": 1,
    "eviction_policy": "least-recently-stored",  # whichever is wanted: -used would make a write of every hit
    "cull_limit": 10,
    "sqlite_auto_vacuum": 1,
    "sqlite_journal_mode": "wal",
    "sqlite_mmap_size": 0,
    "sqlite_synchronous": 1,
    "disk_min_file_size": 1 << 31,
}
_KNOWN = {*_SETTINGS, *METADATA}
# A put dirties a dozen pages, most of them of indices; larger ones make it twice as long, and a look-up no shorter.
_PAGE_BYTES = 4096
_LOG_PAGES = 4096  # the log is worked in, with two syncs, every 16 MB
_POLL_S = 0.002
_STEPS = 200_000
# All of them always, so that another kind of eviction never has to sort a full store first.
_INDICES = (
    "CREATE INDEX IF NOT EXISTS Cache_access_time ON Cache (access_time)",
    "CREATE INDEX IF NOT EXISTS Cache_frequency ON Cache (access_count, access_time)",
)
_ORDERS = {
    "least-recently-stored": "rowid",
    "least-recently-used": "access_time, rowid",
    "least-frequently-used": "access_count, access_time, rowid",
}
_INSERT = (
    "INSERT INTO Cache (key, raw, store_time, access_time, expire_time, tag, size, mode, filename, value)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_REPLACE = (
    "UPDATE Cache SET store_time = ?, access_time = ?, access_count = 0, expire_time = ?, tag = ?, size = ?, mode = ?,"
    " filename = ?, value = ? WHERE rowid = ?"
)
_NEXT = "SELECT rowid, size, key, tag FROM Cache WHERE rowid != ? ORDER BY {} LIMIT 32"
_EXPIRED = "SELECT rowid, size, key, tag FROM Cache WHERE store_time <= ? AND rowid != ? ORDER BY store_time LIMIT 32"
_FOREIGN = "raw != 1 OR mode != 1 OR filename IS NOT NULL OR typeof(value) != 'blob' OR typeof(key) != 'blob'"
_EXPIRED_A_PUT = 64  # more would make one put long; the rest goes with the next ones

_FREE_BYTES = 1 << 19
_CHECKPOINT_S = 1.0

Evicted = tuple[bytes, str, int]


class _Full(Exception):
    """The entry does not fit, and nothing may go."""


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
    eviction : str
        Which entries go, see `CachePolicy`.
    time_to_live_s : float
        Age at which entries go, seconds.
    until : float
        ``time.monotonic()`` at which opening gives up; set :attr:`until` again before each operation.

    Raises
    ------
    Exception
        Whatever SQLite or the file system says.
    """

    def __init__(
        self,
        directory: str,
        *,
        limit_bytes: int,
        until: float,
        eviction: str = "least-recently-stored",
        time_to_live_s: float = math.inf,
    ) -> None:
        self.until = until
        self.evicted: list[Evicted] = []
        self._real_directory = directory
        self._connection: sqlite3.Connection | None = None
        self._touches: Mapping[bytes, int] = {}
        self._touches_due = self.touched = False
        self._stamp = 0.0
        self._spared = 0
        self._sum_limit = limit_bytes
        self._eviction = eviction
        self._time_to_live_s = time_to_live_s
        try:
            # "/" and not the directory: diskcache would expand "~" and "$NAME" in it, and create what came out.
            super().__init__("/", timeout=0, disk=BytesDisk, size_limit=limit_bytes, **_without_limit())
            for statement in _INDICES:
                self._sql_retry(statement)
        except BaseException:
            self.close()
            raise

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
            # Bounded: whoever closes last holds the database while the log goes.
            connection: sqlite3.Connection = self._bounded(self._open)
            self._connection, self._closing = connection, close_with(self, connection)
        return self._connection

    def _open(self) -> sqlite3.Connection:
        connection = connect(self._real_directory, "mode=rwc", 0.0)
        try:
            connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")  # before anything is written; then for good
            connection.execute("PRAGMA secure_delete = OFF")
            connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
            connection.text_factory = _lenient  # a planted text that is no UTF-8 must not stop every open
            this = weakref.proxy(self)
            connection.set_progress_handler(lambda: time.monotonic() > this.until + 1.0, _STEPS)
        except BaseException:
            connection.close()
            raise
        return connection

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

    def write(
        self, key: bytes, blob: bytes, tag: str, touches: Mapping[bytes, int] | None = None, *, due: bool = False
    ) -> bool:
        """Store one sealed entry, and evict others until the sum is within the limit.

        Parameters
        ----------
        key, blob : bytes
            The entry; the blob counts with its seal.
        tag : str
            For :meth:`cuplate.cache.reader.Reader.tagged`.
        touches : mapping of bytes to int, optional
            What was used before this put, in order, and how often; written in the same transaction if entries have to
            go, whose order it decides, or if it is due. :attr:`touched` says whether it was.
        due : bool
            Write them in any case.

        Returns
        -------
        bool
            False when it does not fit and nothing may go; then nothing has changed.
        """
        self.evicted = []
        self._touches, self._touches_due, self.touched = touches or {}, due, False
        try:
            self.set(key, blob, tag=tag)
        except _Full:
            self.evicted = []
            return False
        finally:
            self._touches = {}
        return True

    def _row_update(self, rowid: int, now: float, columns: tuple[object, ...]) -> None:
        if self._eviction in BY_USE:  # in place, which takes half the time; nothing asks what was stored first
            self._sql(_REPLACE, (*self._stamps(), *columns, rowid))
            self._spared = rowid
            return
        key, raw = self._sql("SELECT key, raw FROM Cache WHERE rowid = ?", (rowid,)).fetchall()[0]
        self._sql("DELETE FROM Cache WHERE rowid = ?", (rowid,))
        self._row_insert(key, raw, now, columns)

    def _row_insert(self, key: object, raw: object, now: float, columns: tuple[object, ...]) -> None:
        self._spared = self._sql(_INSERT, (key, raw, *self._stamps(), *columns)).lastrowid or 0

    def _stamps(self) -> tuple[float, float]:
        """Times of a put and of its use; asked under the lock, as diskcache's `now` may be older than another's put."""
        now = time.time()
        self._stamp = first_stamp(self._sql, now)
        return now, self._stamp + len(self._touches) * STEP_S  # after all that was used before, written down or not

    def _cull(self, now: float, sql: Callable[..., Any], cleanup: object, limit: int | None = None) -> None:
        now = time.time()
        self._pull_back(now, sql)
        self._expire(now, sql, _EXPIRED_A_PUT)
        fits = self._sum(sql) <= self._sum_limit
        if self._touches_due or not fits:
            touch(sql, self._touches, self._stamp)
            self.touched = True
        if fits:
            return
        if self._eviction == "none":
            self._expire(now, sql, None)
            if self._sum(sql) > self._sum_limit:
                raise _Full
        else:
            self._evict(sql, self._sum(sql) - self._sum_limit, self._eviction)

    def _pull_back(self, now: float, sql: Callable[..., Any]) -> None:
        """After the clock was set back: an entry from the future would outlive its time."""
        latest = sql("SELECT MAX(store_time) FROM Cache").fetchall()[0][0]
        if latest is not None and not (type(latest) in (int, float) and latest <= now):
            sql("UPDATE Cache SET store_time = ? WHERE store_time > ?", (now, now))

    def _expire(self, now: float, sql: Callable[..., Any], most: int | None) -> None:
        oldest = now - self._time_to_live_s
        gone = 0
        while oldest > 0 and (most is None or gone < most):
            rows = sql(_EXPIRED, (oldest, self._spared)).fetchall()
            gone += len(rows)
            for row in rows:
                self._drop(sql, row)
            if not rows:
                return

    def _evict(self, sql: Callable[..., Any], excess: int, eviction: str) -> int:
        """Drop entries in the order of a kind until so many bytes are gone; how many are not."""
        statement = _NEXT.format(_ORDERS[eviction])
        while excess > 0 and (rows := sql(statement, (self._spared,)).fetchall()):
            for row in rows:
                excess -= self._drop(sql, row)
                if excess <= 0:
                    break
        return excess

    def _drop(self, sql: Callable[..., Any], row: tuple[int, object, object, object]) -> int:
        rowid, size, key, tag = row
        sql("DELETE FROM Cache WHERE rowid = ?", (rowid,))
        size = size if type(size) is int and size > 0 else 0
        self.evicted.append((key if type(key) is bytes else b"", str(tag), size))
        return size

    def _sum(self, sql: Callable[..., Any]) -> int:
        rows = sql("SELECT value FROM Settings WHERE key = 'size'").fetchall()
        total = rows[0][0] if rows else None
        if type(total) is int and total >= 0 and (total <= self._sum_limit or total <= self._pages(sql)):
            return total
        return self._count_anew(sql)

    def _pages(self, sql: Callable[..., Any]) -> int:
        """Size of the database, bytes; the entries cannot be more, whatever a damaged setting says."""
        return int(sql("PRAGMA page_count").fetchall()[0][0] * sql("PRAGMA page_size").fetchall()[0][0])

    def _count_anew(self, sql: Callable[..., Any]) -> int:
        sql("UPDATE Cache SET size = length(value) WHERE size IS NOT length(value)")
        count, total = sql("SELECT COUNT(*), COALESCE(SUM(size), 0) FROM Cache").fetchall()[0]
        sql("INSERT OR REPLACE INTO Settings VALUES ('size', ?)", (total,))
        sql("INSERT OR REPLACE INTO Settings VALUES ('count', ?)", (count,))
        return int(total)

    def prune(self, excess: int = 0) -> None:
        """Drop what is expired, foreign, above the limit, and so many bytes more; :attr:`evicted` says what went.

        Parameters
        ----------
        excess : int
            Bytes of entries to drop beyond the limit, in the order of the policy; where that is ``"none"``, what was
            stored first goes first.
        """
        now = time.time()
        self.evicted, self._spared = [], 0
        with self._transact() as (sql, _):
            sql(f"DELETE FROM Cache WHERE {_FOREIGN}")
            self._pull_back(now, sql)
            self._expire(now, sql, None)
            above = max(0, self._count_anew(sql) - self._sum_limit)
            kind = self._eviction if self._eviction != "none" else "least-recently-stored"
            self._evict(sql, above + excess, kind)

    def shrink(self, *, repack: bool) -> None:
        """Give free pages back to the file system.

        Parameters
        ----------
        repack : bool
            True writes the database anew, which also closes the gaps within pages.
        """
        free = int(self._sql_retry("PRAGMA freelist_count").fetchall()[0][0])
        if repack or free * _PAGE_BYTES > _FREE_BYTES:
            self._bounded(lambda: self._sql("VACUUM").fetchall())
        patience = time.monotonic() + _CHECKPOINT_S
        while self._sql_retry("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0][0]:
            if time.monotonic() > patience:
                return  # a reader of another process stands in the way; the log is cut when it has gone
            time.sleep(_POLL_S)

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
        if self._connection is not None:
            self._connection = None
            self._closing()


def _without_limit() -> dict[str, object]:
    return {name: value for name, value in _SETTINGS.items() if name != "size_limit"}


def _lenient(text: bytes) -> str:
    return text.decode("utf-8", "replace")
