"""What every store of compiled kernels can do: bytes in, bytes out, and no trouble for the caller."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from cuplate.cache.flight import NodeFlights
    from cuplate.cache.listing import Listed
    from cuplate.cache.pruning import Pruned

__all__ = ["TUNING", "Distant", "NoStore", "Store", "Tier"]

TUNING = "(tuning) "
"""How tags of tunings' outcomes begin; the name of the function follows."""


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


class Distant(Protocol):
    """A store that is asked when the disk has missed, and written to in the background."""

    def get(self, key: bytes) -> bytes | None:
        """The payload under a key, or None."""
        ...

    def offer(self, key: bytes, payload: bytes, *, replace: bool = False) -> bool:
        """Have a payload stored soon, in place of what is there if need be; False when it was dropped."""
        ...


class Tier(Store, Protocol):
    """A store with a place on the disk."""

    @property
    def flights(self) -> NodeFlights | None:
        """The lock of every key, for all processes of this node; None for no locks."""
        ...

    @property
    def directory(self) -> str | None:
        """The store's own folder; None when it has none."""
        ...

    def all(self) -> Iterator[tuple[bytes, str, bytes]]:
        """Key, tag and payload of every good entry."""
        ...

    def listing(self) -> Iterator[Listed]:
        """Every entry, contents unread; for who looks through a store, so it tells what is wrong: CacheError."""
        ...

    def peek(self, key: bytes) -> bytes | None:
        """As `get`; but it is no use of the entry, and counted nowhere."""
        ...

    def sealed(self, key: bytes) -> object:
        """What lies under a key, unchecked, or None; no use of it, and it tells what is wrong: CacheError."""
        ...

    def orphans(self) -> int:
        """Files that no entry leads to, which `prune` removes."""
        ...

    def prune(self) -> Pruned:
        """Make the files fit."""
        ...

    def volume(self) -> int:
        """What the files take on the disk, bytes."""
        ...

    def sums(self) -> tuple[int, int]:
        """Number of entries, and the sum of their sizes in bytes."""
        ...

    def counters(self) -> Mapping[str, int]:
        """Troubles in this process, by kind."""
        ...

    def state(self) -> str:
        """``"on"``, ``"resting"``, ``"read only"``, or ``"off: "`` and the reason."""
        ...

    def close(self) -> None:
        """Let go of files; the next operation opens them again."""
        ...


class NoStore:
    """The store of a process that keeps everything in memory; it holds nothing and counts nothing.

    Parameters
    ----------
    reason : str
        Why there is none.
    """

    flights = None
    directory = None

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

    def all(self) -> Iterator[tuple[bytes, str, bytes]]:
        """Nothing."""
        return iter(())

    def listing(self) -> Iterator[Listed]:
        """Nothing."""
        return iter(())

    def peek(self, key: bytes) -> bytes | None:
        """None."""
        return None

    def sealed(self, key: bytes) -> object:
        """None."""
        return None

    def orphans(self) -> int:
        """0."""
        return 0

    def prune(self) -> Pruned:
        """Nothing went."""
        from cuplate.cache.pruning import Pruned

        return Pruned()

    def volume(self) -> int:
        """0."""
        return 0

    def sums(self) -> tuple[int, int]:
        """Zeros."""
        return 0, 0

    def counters(self) -> Mapping[str, int]:
        """None."""
        return {}

    def state(self) -> str:
        """``"off: "`` and the reason."""
        return f"off: {self.reason}"

    def close(self) -> None:
        """Nothing."""
