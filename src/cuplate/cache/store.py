"""What every store of compiled kernels can do: bytes in, bytes out, and no trouble for the caller."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

__all__ = ["NoStore", "Store"]


@runtime_checkable
class Store(Protocol):
    """A store of sealed records; no method raises, and none waits without bound.

    There is deliberately no ``__contains__``: between a look and a read another process may evict.
    """

    def get(self, key: bytes, *, again: bool = False) -> bytes | None:
        """The payload under a key, or None; ``again`` for a second look at the same miss, which is not counted."""
        ...

    def put(self, key: bytes, payload: bytes, *, tag: str = "") -> bool:
        """Store a payload; whether it is stored."""
        ...

    def delete(self, key: bytes) -> bool:
        """Remove one entry; whether one was there."""
        ...

    def entries(self, tag: str, *, limit: int = 16) -> Iterator[tuple[bytes, bytes]]:
        """The newest entries stored with a tag: key and payload."""
        ...

    def clear(self) -> int:
        """Remove every entry; how many went."""
        ...


class NoStore:
    """The store of a process that keeps everything in memory; it holds nothing and counts nothing.

    Parameters
    ----------
    reason : str
        Why there is none.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def get(self, key: bytes, *, again: bool = False) -> bytes | None:
        """None."""
        return None

    def put(self, key: bytes, payload: bytes, *, tag: str = "") -> bool:
        """False."""
        return False

    def delete(self, key: bytes) -> bool:
        """False."""
        return False

    def entries(self, tag: str, *, limit: int = 16) -> Iterator[tuple[bytes, bytes]]:
        """Nothing."""
        return iter(())

    def clear(self) -> int:
        """0."""
        return 0
