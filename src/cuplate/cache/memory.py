"""The loaded kernels: an exact LRU in which a hit moves nothing.

Whoever runs an entry stores a tick in it (``entry.tick = next_tick()``) and does not call the tier. Eviction looks for
the smallest tick. Dropping an entry only drops the tier's reference: a kernel that another thread is launching lives
until that thread lets go.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from cuplate.cache.counts import count
from cuplate.cache.gate import Gate

__all__ = ["Entry", "MemoryTier", "Watcher", "next_tick", "watch"]

V = TypeVar("V")

next_tick: Callable[[], int] = itertools.count(1).__next__
"""The clock of the LRU: strictly rising, safe from every thread."""


class Entry(Generic[V]):
    """One loaded kernel in memory.

    Attributes
    ----------
    value : object
        The loaded kernel.
    key : hashable
        What it is kept under: content key and device.
    tick : int
        When it was last used; the caller of a kernel stores ``next_tick()`` here.
    """

    __slots__ = ("__weakref__", "key", "tick", "value")

    def __init__(self, value: V, key: Hashable) -> None:
        self.value = value
        self.key = key
        self.tick = next_tick()

    def __repr__(self) -> str:
        return f"Entry(key={self.key!r}, tick={self.tick})"


class Watcher(Protocol):
    """Somebody who is told what happens in the tiers of loaded kernels, see :func:`watch`. Nothing of it may raise."""

    def used(self, key: Any) -> None:
        """An entry was put or found, or a plan that leads to it was run."""

    def missed(self, key: Any) -> None:
        """A look-up found nothing."""

    def kept(self, entry: Entry[Any]) -> None:
        """An entry was put that was not there."""

    def dropped(self, key: Any) -> None:
        """An entry is to be out, though there may be room, whether or not it was in; None for all of them."""


_TICK: Any = Entry.__dict__["tick"]  # the slot itself
_watchers: tuple[Watcher, ...] = ()


def watch(*watchers: Watcher) -> None:
    """Tell these, and nobody else, what happens from now on; with none, what there was before is there again.

    The hot path is told of as well, and not by its code, which stores a tick in the entry that it runs and is the same
    in either case: as long as somebody watches, that attribute is a property which tells. Else it is a plain slot, and
    costs what a plain slot costs.

    Parameters
    ----------
    *watchers : Watcher
    """
    global _watchers
    _watchers = watchers
    told = tuple(watcher.used for watcher in watchers)

    def store(entry: Entry[Any], tick: int, put: Callable[[Entry[Any], int], None] = _TICK.__set__) -> None:
        put(entry, tick)
        for tell in told:
            tell(entry.key)

    Entry.tick = property(_TICK.__get__, store) if watchers else _TICK  # type: ignore[assignment, misc]


class MemoryTier(Generic[V]):
    """A bounded mapping of loaded kernels, least recently used out first.

    Parameters
    ----------
    limit : int
        Kernels kept, at least 1.
    gate : Gate, optional
        Shut, it defers evictions and makes other threads' :meth:`clear` wait.
    """

    def __init__(self, limit: int, *, gate: Gate | None = None) -> None:
        self.gate = Gate() if gate is None else gate
        self._limit = limit
        self._entries: dict[Hashable, Entry[V]] = {}
        self._on_evict: list[Callable[[Entry[V]], object]] = []
        self.gate.on_open(self.trim)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry[V]]:
        with self.gate.mutex:
            return iter(tuple(self._entries.values()))

    @property
    def limit(self) -> int:
        """Kernels kept; lowering it trims at once."""
        return self._limit

    @limit.setter
    def limit(self, kernels: int) -> None:
        self._limit = kernels
        self.trim()

    def on_evict(self, callback: Callable[[Entry[V]], object]) -> None:
        """Call ``callback(entry)`` after an entry was evicted or cleared, with no lock held.

        Parameters
        ----------
        callback : callable
            Drops what still leads to the entry (its plans).
        """
        self._on_evict.append(callback)

    def get(self, key: Hashable, *, again: bool = False) -> Entry[V] | None:
        """The entry under a key, now the most recently used; counted as a hit or a miss.

        Parameters
        ----------
        key : hashable
            Content key and device.
        again : bool
            A second look after a miss, before the load: if it misses too, that is not counted as another miss.

        Returns
        -------
        Entry or None
            None when it is not loaded.
        """
        start = time.perf_counter()
        with self.gate.mutex:
            entry = self._entries.get(key)
            if entry is not None:
                entry.tick = next_tick()
        seconds = time.perf_counter() - start
        if entry is None:
            count("memory", misses=not again, seconds=seconds)
            for watcher in () if again else _watchers:
                watcher.missed(key)
        else:
            count("memory", hits=1, seconds=seconds)
        return entry

    def put(self, key: Hashable, value: V) -> Entry[V]:
        """Keep a loaded kernel, and evict down to the limit, never the one just put.

        Parameters
        ----------
        key : hashable
            Content key and device. An entry already there is returned as it is: two threads may load the same kernel.
        value : object
            The loaded kernel.

        Returns
        -------
        Entry
            The entry now kept.
        """
        with self.gate.mutex:
            known = self._entries.get(key)
            if known is None:
                entry = self._entries[key] = Entry(value, key)  # its first tick is in it
            else:
                entry = known
                entry.tick = next_tick()
        if known is None:
            for watcher in _watchers:
                watcher.kept(entry)
        # Counted with no lock held: a fork takes this lock and that of the counts in no particular order.
        count("memory", puts=known is None)
        self.trim(spare=entry)
        return entry

    def discard(self, key: Hashable) -> bool:
        """Drop one entry (the driver refused it, say), whatever the gate says; not counted as an eviction.

        Parameters
        ----------
        key : hashable
            Content key and device.

        Returns
        -------
        bool
            Whether it was there.
        """
        with self.gate.mutex:
            entry = self._entries.pop(key, None)
        for watcher in _watchers:  # of one that is not here too: a larger tier might have it
            watcher.dropped(key)
        if entry is not None:
            self._tell([entry])
        return entry is not None

    def trim(self, *, spare: Entry[V] | None = None) -> int:
        """Evict down to the limit, unless the gate is shut.

        Parameters
        ----------
        spare : Entry, optional
            Not this one.

        Returns
        -------
        int
            How many went.
        """
        gone: list[Entry[V]] = []
        with self.gate.mutex:
            while len(self._entries) > self._limit and not self.gate.shut:
                victim = self._oldest(spare)
                if victim is None:
                    break
                del self._entries[victim.key]
                gone.append(victim)
        if gone:
            count("memory", evictions=len(gone))
            self._tell(gone)
        return len(gone)

    def clear(self) -> int:
        """Drop every entry; waits while another thread holds the gate.

        Returns
        -------
        int
            How many went; they are not counted as evictions.
        """
        with self.gate.passing():
            gone = list(self._entries.values())
            self._entries.clear()
        for watcher in _watchers:
            watcher.dropped(None)
        self._tell(gone)
        return len(gone)

    def _oldest(self, spare: Entry[V] | None) -> Entry[V] | None:
        # A scan, not an order that every hit would have to keep: a miss that ends here costs a load, or a compile.
        free = (entry for entry in self._entries.values() if entry is not spare)
        return min(free, key=_tick, default=None)

    def _tell(self, gone: list[Entry[V]]) -> None:
        for entry in gone:
            for callback in self._on_evict:
                callback(entry)


def _tick(entry: Entry[Any]) -> int:
    return entry.tick
