"""Somebody else's program cache as a store of ours: anything with the five methods of ``ProgramCacheResource``.

The other way round, our disk tier as a cache of ``Program.compile(cache=...)``, is
`cuplate.backend.cuda.program_cache`, which may import ``cuda.core``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Protocol

from cuplate.cache.counts import count
from cuplate.cache.faults import warn_once
from cuplate.seal import seal, unseal

__all__ = ["ForeignStore", "ProgramCache"]

_FAILURES_UNTIL_OFF = 5


class ProgramCache(Protocol):
    """What is used of a ``cuda.core.utils.ProgramCacheResource``."""

    def get(self, key: bytes, default: None = None) -> bytes | None:
        """Bytes, or the default."""

    def __setitem__(self, key: bytes, value: bytes) -> None: ...

    def __delitem__(self, key: bytes) -> None: ...

    def clear(self) -> None:
        """Remove every entry."""


class ForeignStore:
    """Sealed entries in a program cache of another make: what it gives back is checked like a file of ours.

    It never raises; after five errors in a row it is left alone. Entries cannot be listed by function.

    Parameters
    ----------
    resource : ProgramCacheResource
        For example ``cuda.core.utils.FileStreamProgramCache()``.
    secret : bytes
        Key of the seal.
    """

    flights = None

    def __init__(self, resource: ProgramCache, *, secret: bytes = b"") -> None:
        self.resource = resource
        self._secret = secret
        self._failures = 0

    def __repr__(self) -> str:
        return f"ForeignStore({self.resource!r})"

    def get(self, key: bytes, *, again: bool = False) -> bytes | None:
        """The payload under a key, or None."""
        start = time.perf_counter()
        payload, errors = self.look(key)
        hit = payload is not None
        read = len(payload) if payload is not None else 0
        seconds = time.perf_counter() - start
        count("disk", hits=hit, misses=not hit and not again, errors=errors, read_bytes=read, seconds=seconds)
        return payload

    def look(self, key: bytes) -> tuple[bytes | None, int]:
        """Payload or None, and the number of errors to count."""
        if self._failures >= _FAILURES_UNTIL_OFF:
            return None, 0
        try:
            blob = self.resource.get(key)
            self._failures = 0
        except Exception as error:
            return None, self._failed(error)
        if blob is None:
            return None, 0
        payload = unseal(key, bytes(blob), self._secret) if isinstance(blob, bytes | bytearray | memoryview) else None
        return payload, payload is None

    def put(self, key: bytes, payload: bytes, *, tag: str = "") -> bool:
        """Store a payload; whether the other cache took it."""
        start, stored, errors = time.perf_counter(), False, 0
        if self._failures < _FAILURES_UNTIL_OFF:
            try:
                self.resource[key] = seal(key, payload, self._secret)
                stored, self._failures = True, 0
            except Exception as error:
                errors = self._failed(error)
        written = len(payload) if stored else 0
        count("disk", puts=stored, errors=errors, written_bytes=written, seconds=time.perf_counter() - start)
        return stored

    def delete(self, key: bytes) -> bool:
        """Remove one entry; whether one was there."""
        try:
            del self.resource[key]
        except Exception:
            return False
        return True

    def entries(self, tag: str, *, limit: int = 16) -> Iterator[tuple[bytes, bytes]]:
        """Nothing: such a cache cannot be listed."""
        return iter(())

    def clear(self) -> int:
        """Nothing: the cache holds other people's entries too."""
        return 0

    def _failed(self, error: Exception) -> int:
        self._failures += 1
        name = type(self.resource).__name__
        warn_once(name, "foreign", f"cuplate: the program cache {name} failed ({type(error).__name__}: {error}).")
        return 1


class Attached:
    """What `cuplate.cache.attach` returns; `close`, or the end of a ``with`` block, takes the cache away again.

    Parameters
    ----------
    stores : list of ForeignStore
        Those in use, this one among them.
    store : ForeignStore
    """

    def __init__(self, stores: list[ForeignStore], store: ForeignStore) -> None:
        self._stores, self.store = stores, store

    def close(self) -> None:
        """Use it no more; a second time does nothing."""
        if self.store in self._stores:
            self._stores.remove(self.store)

    def __enter__(self) -> Attached:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()
