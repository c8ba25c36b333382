"""What was used, written down later: a hit writes nothing, the next put or the end of the process does, all at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from cuplate.cache.reader import connect

__all__ = ["MOST_TOUCHES", "note", "touch", "write_touches"]

MOST_TOUCHES = 4096
"""Uses that a process remembers; beyond that many keys the earliest is forgotten."""

_STEP_S = 1e-6
_LATEST_S = 4e9  # the year 2096: later stamps were planted, and above them doubles no longer tell microseconds
_POLL_S = 0.002
_TOUCH = "UPDATE Cache SET access_time = ?, access_count = access_count + ? WHERE key = ? AND raw = 1"


def note(touches: dict[bytes, int], key: bytes) -> None:
    """Count a use; the order of the dictionary is that of the last uses.

    Parameters
    ----------
    touches : dict of bytes to int
        What is remembered so far.
    key : bytes
        Just found.
    """
    touches[key] = touches.pop(key, 0) + 1
    if len(touches) > MOST_TOUCHES:
        del touches[next(iter(touches))]


def touch(sql: Callable[..., Any], touches: Mapping[bytes, int], now: float) -> float:
    """Write uses down, inside a transaction.

    Parameters
    ----------
    sql : callable
        Executes a statement.
    touches : mapping of bytes to int
        Keys in the order of their last use, and how often each was used.
    now : float
        Seconds since the epoch.

    Returns
    -------
    float
        A stamp later than every one in the table: now, unless the clock was set back.
    """
    latest = sql("SELECT MAX(access_time) FROM Cache").fetchall()[0][0]
    if latest is not None and not (type(latest) in (int, float) and latest < _LATEST_S):
        sql("UPDATE Cache SET access_time = ? WHERE access_time IS NULL OR access_time >= ?", (now, _LATEST_S))
        latest = now
    stamp = now if latest is None else max(now, latest + _STEP_S)
    for key, times in touches.items():
        sql(_TOUCH, (stamp, times, key))
        stamp += _STEP_S
    return stamp


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
        touch(connection.execute, touches, time.time())
        connection.execute("COMMIT")
    finally:
        with suppress(sqlite3.Error):
            connection.close()  # rolls back what was not committed
