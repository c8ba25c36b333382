"""What was used, written down later: a hit writes nothing, and a put only where entries have to go, or now and then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from cuplate.cache.reader import connect

__all__ = ["BY_USE", "DUE_KEYS", "DUE_S", "MOST_TOUCHES", "STEP_S", "Uses", "first_stamp", "touch", "write_touches"]

BY_USE = ("least-recently-used", "least-frequently-used")
"""The kinds of eviction that ask what was used."""

MOST_TOUCHES = 4096
"""Keys that a process remembers; beyond that the earliest is forgotten."""

STEP_S = 1e-6
"""Between the stamps of two uses, seconds."""

DUE_KEYS, DUE_S = 512, 30.0
"""Uses of so many keys, or the first of them so many seconds old, are written down by any put: a use dirties a page, so
puts that need no order leave it alone, but other processes are to know."""

_LATEST_S = 4e9  # the year 2096: later stamps were planted, and above them doubles no longer tell microseconds
_POLL_S = 0.002
_TOUCH = "UPDATE Cache SET access_time = ?, access_count = access_count + ? WHERE key = ? AND raw = 1"


class Uses:
    """The uses of one process that are not written down yet: keys in the order of their last use, and how often."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finalizer, or a handler of a signal, may look up while we hold it
        self._times: dict[bytes, int] = {}
        self._since = 0.0

    def __len__(self) -> int:
        return len(self._times)

    def note(self, key: bytes) -> None:
        """Count a use.

        Parameters
        ----------
        key : bytes
            Just found.
        """
        with self._lock:
            times = self._times
            if not times:
                self._since = time.monotonic()
            times[key] = times.pop(key, 0) + 1
            if len(times) > MOST_TOUCHES:
                del times[next(iter(times))]

    def take(self) -> tuple[dict[bytes, int], bool]:
        """What is remembered, to be written down, and whether that is due; nothing is remembered then."""
        with self._lock:
            taken, self._times = self._times, {}
            due = len(taken) >= DUE_KEYS or (bool(taken) and time.monotonic() - self._since >= DUE_S)
            return taken, due

    def put_back(self, taken: Mapping[bytes, int]) -> None:
        """Remember again what was not written down; what was used meanwhile came later.

        Parameters
        ----------
        taken : mapping of bytes to int
            From :meth:`take`.
        """
        with self._lock:
            later = self._times
            self._times = {k: n for k, n in taken.items() if k not in later}
            self._times.update((k, n + taken.get(k, 0)) for k, n in later.items())
            while len(self._times) > MOST_TOUCHES:
                del self._times[next(iter(self._times))]

    def forget(self) -> None:
        """In a forked child: they are the parent's to write down, and a thread that is gone may hold the lock."""
        self._lock = threading.RLock()
        self._times = {}


def first_stamp(sql: Callable[..., Any], now: float) -> float:
    """A stamp later than every one in the table: now, unless the clock was set back. Inside a transaction.

    Parameters
    ----------
    sql : callable
        Executes a statement.
    now : float
        Seconds since the epoch.
    """
    latest = sql("SELECT MAX(access_time) FROM Cache").fetchall()[0][0]
    if latest is not None and not (type(latest) in (int, float) and latest < _LATEST_S):
        sql("UPDATE Cache SET access_time = ? WHERE access_time IS NULL OR access_time >= ?", (now, _LATEST_S))
        latest = now
    return now if latest is None else max(now, latest + STEP_S)


def touch(sql: Callable[..., Any], touches: Mapping[bytes, int], stamp: float) -> None:
    """Write uses down, inside a transaction.

    Parameters
    ----------
    sql : callable
        Executes a statement.
    touches : mapping of bytes to int
        Keys in the order of their last use, and how often each was used.
    stamp : float
        Of the first of them.
    """
    for place, (key, times) in enumerate(touches.items()):
        sql(_TOUCH, (stamp + place * STEP_S, times, key))


def write_touches(directory: str, touches: Mapping[bytes, int], wait_s: float) -> None:
    """Write uses down without diskcache, which is not worth its import at the end of a process.

    Parameters
    ----------
    directory : str
        Of the store.
    touches : mapping of bytes to int
        As for :func:`touch`.
    wait_s : float
        Longest wait for the lock, seconds.

    Raises
    ------
    Exception
        Whatever SQLite or the file system says; nothing is written then.
    """
    import sqlite3

    until = time.monotonic() + wait_s
    connection = connect(directory, "mode=rw", 0.0)
    try:
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
                break
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > until:
                    raise
            time.sleep(_POLL_S)
        touch(connection.execute, touches, first_stamp(connection.execute, time.time()))
        connection.execute("COMMIT")
    finally:
        with suppress(sqlite3.Error):
            connection.close()  # rolls back what was not committed
