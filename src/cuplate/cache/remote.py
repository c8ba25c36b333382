"""What lies at the far end of a shared tier: two methods of the user's, or of `redis_server`, and what may go wrong."""

from __future__ import annotations

import importlib
import threading
from typing import Any, Protocol, runtime_checkable

from cuplate.cache.patience import NoThread, within

__all__ = ["LARGEST_BYTES", "WAIT_S", "BadEntry", "Foreign", "Refused", "Remote", "SharedStore", "Unusable"]

WAIT_S = 0.2
"""The longest that a look-up waits, connecting included, seconds."""

LARGEST_BYTES = 32 << 20
"""The largest sealed entry."""

_abandoned: list[object] = []
_LATE = 64  # look-ups at a time, those that were given up and never ended included


@runtime_checkable
class SharedStore(Protocol):
    """What a class has to have for ``shared="module:Class"``. It is called from several threads.

    Whatever it raises, returns or takes its time for is a miss. A value is believed only if its seal is right, so it
    may lose and mix up what it likes.
    """

    def get(self, key: bytes) -> bytes | None:
        """The value last stored under a key; None for none. No longer than 0.2 s, else it is given up."""
        ...

    def put(self, key: bytes, value: bytes) -> object:
        """Store a value. Called in a thread in the background, one call at a time."""
        ...


class BadEntry(Exception):
    """What lies under a key is nothing of ours; the server is well."""


class Refused(Exception):
    """The server takes no writes at the moment: it is full, a replica, or the user may not write."""


class Unusable(Exception):
    """There is nothing to ask in this process: a module is missing, or what it holds is no store."""


class Remote(Protocol):
    """One server, or a store of the user's."""

    def get(self, key: bytes) -> bytes | None:
        """The value; within `WAIT_S`."""
        ...

    def put(self, key: bytes, value: bytes, *, time_to_live_s: float, replace: bool) -> bool:
        """Store it; whether it is new there."""
        ...

    def forget(self) -> None:
        """In a forked child, which makes another one: let go, and disturb nothing of the parent's."""
        ...

    def close(self) -> None:
        """Let go; the next call begins anew."""
        ...


class Foreign:
    """A store of the user's, made once. How long that takes is the user's own affair; a look-up is given up in time.

    Parameters
    ----------
    named : str
        ``module:Class``; called with nothing.

    Raises
    ------
    Unusable
        There is no such module or class, or what it makes has not the two methods.
    Exception
        What the class raised.
    """

    def __init__(self, named: str) -> None:
        module, _, path = named.partition(":")
        try:
            found: Any = importlib.import_module(module)
            for name in path.split("."):
                found = getattr(found, name)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise Unusable(f"{named} cannot be imported: {type(error).__name__}: {error}") from None
        try:
            self._store = found()
        except (Exception, KeyboardInterrupt):
            raise
        except BaseException as error:  # SystemExit, asyncio.CancelledError, a panic of an extension in Rust
            raise RuntimeError(f"{type(error).__name__} in its constructor") from None
        if not isinstance(self._store, SharedStore):
            raise Unusable(f"{named} has not the two methods get(key) and put(key, value)")
        self._late = threading.Semaphore(_LATE)

    def get(self, key: bytes) -> bytes | None:
        """The value.

        Raises
        ------
        TimeoutError
            It is late, or so many earlier ones have never ended.
        TypeError
            It is neither bytes nor None.
        Exception
            What the store raised.
        """
        if not self._late.acquire(blocking=False):
            raise TimeoutError(f"{_LATE} earlier look-ups have not ended")

        def work() -> object:
            try:
                return self._store.get(key)
            finally:
                self._late.release()

        try:
            value = within(WAIT_S, work)
        except NoThread:
            self._late.release()
            raise
        if value is not None and type(value) is not bytes:
            raise TypeError(f"get() gives {type(value).__name__}, not bytes")
        if value is not None and len(value) > LARGEST_BYTES:
            raise BadEntry("it is too large")
        return value

    def put(self, key: bytes, value: bytes, *, time_to_live_s: float, replace: bool) -> bool:
        """Store a value; how long it lives, and whether it takes the place of another, is the store's own affair.

        Raises
        ------
        Refused
            Whatever the store raised.
        """
        try:
            self._store.put(key, value)
        except BaseException as error:  # in the background: no interrupt comes here
            raise Refused(f"{type(error).__name__}: {error}") from None
        return True

    def forget(self) -> None:
        """Keep it for good: what it did at its end here, it might do to the parent's connections."""
        _abandoned.append(self._store)

    def close(self) -> None:
        """Nothing."""
