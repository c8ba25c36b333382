"""Counts of what the tiers did, kept per thread so that nobody's measurement is polluted by another thread.

A thread counts in a cell of its own, without a lock. When it ends, its cell is folded into one sum, so that ten
thousand short threads cost no more memory than one. Hot-path hits are counted per function and thread
(:class:`HitCounter`). What is counted is read as the frozen values of `cuplate.cache.stats`, which a look-up does not
load.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Mapping
from typing import Protocol

from cuplate.cache import fork

__all__ = [
    "Counts",
    "HitCounter",
    "Observer",
    "count",
    "observers",
    "of_all_threads",
    "of_this_thread",
    "reset",
    "tell",
    "tell_no_more",
]

_TIERS = ("memory", "disk", "shared", "compile")
_NAMES = {
    "shared": ("hits", "misses", "puts", "drops", "errors", "read_bytes", "written_bytes", "seconds"),
    "compile": ("compiles", "errors", "written_bytes", "seconds"),
}
_TIER_NAMES = ("hits", "misses", "puts", "evictions", "errors", "read_bytes", "written_bytes", "seconds")
_FUNCTION_NAMES: tuple[str, ...] = ("hits", "misses", "compiles", "disk_hits", "shared_hits")

Counts = dict[str, dict[str, float]]


def _zero() -> Counts:
    return {tier: dict.fromkeys(_NAMES.get(tier, _TIER_NAMES), 0) for tier in _TIERS}


def _add(total: Counts, more: Counts, sign: int = 1) -> None:
    for tier, amounts in more.items():
        mine = total[tier]
        for name, amount in amounts.items():
            mine[name] += sign * amount


class _HitCell:
    """One function's counts in one thread; ``record`` sums the function over threads."""

    __slots__ = ("compiles", "counter", "disk_hits", "hits", "misses", "record", "shared_hits")

    def __init__(self, counter: HitCounter, record: _Record) -> None:
        self.hits = self.misses = self.compiles = self.disk_hits = self.shared_hits = 0
        self.counter = weakref.ref(counter)
        self.record = record


class _Record:
    """One function over all threads: cells of living threads, and the sum of the ended ones."""

    __slots__ = ("cells", "ended")

    def __init__(self) -> None:
        self.cells: set[_HitCell] = set()
        self.ended = dict.fromkeys(_FUNCTION_NAMES, 0)

    def fold(self, cell: _HitCell) -> None:
        for name in _FUNCTION_NAMES:
            self.ended[name] += getattr(cell, name)
        self.cells.discard(cell)


class _ThreadCell:
    """Everything one thread has counted."""

    __slots__ = ("baseline", "counts", "hot", "prune_at", "retired_hits")

    def __init__(self) -> None:
        self.counts = _zero()
        self.baseline = _zero()
        self.hot: list[_HitCell] = []
        self.retired_hits = 0
        self.prune_at = 64

    def total(self) -> Counts:
        total = _zero()
        _add(total, self.counts)
        total["memory"]["hits"] += self.retired_hits + sum(cell.hits for cell in tuple(self.hot))
        return total

    def prune(self) -> None:
        """Forget functions that no longer exist, but not their hits; called by the owning thread."""
        kept = []
        for cell in self.hot:
            if cell.counter() is None:
                self.retired_hits += cell.hits
            else:
                kept.append(cell)
        self.hot = kept
        self.prune_at = 64 + 2 * len(kept)


class _Token:
    """Dies with its thread, and tells which cell is to be folded; ``deque.append`` needs no lock."""

    __slots__ = ("cell", "ended")

    def __init__(self, cell: _ThreadCell) -> None:
        self.cell = cell
        self.ended = _ended_threads  # a module's globals may be gone before the main thread's token

    def __del__(self) -> None:
        self.ended.append(self.cell)


class _Registry:
    """The cells of the living threads and the sum of the ended ones."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.living: set[_ThreadCell] = set()
        self.ended = _zero()
        fork.register(self)

    def add(self, cell: _ThreadCell) -> None:
        with self.lock:
            self.fold()
            self.living.add(cell)

    def fold(self) -> None:
        """Fold the cells of ended threads; called with the lock held."""
        while _ended_threads:
            cell = _ended_threads.popleft()
            _add(self.ended, cell.total())
            for hot in cell.hot:
                hot.record.fold(hot)
            self.living.discard(cell)

    def before_fork(self) -> None:
        self.lock.acquire()

    def after_fork(self, *, child: bool) -> None:
        self.lock.release()


class _Mine(threading.local):
    def __init__(self) -> None:
        self.cell = _ThreadCell()
        self.token = _Token(self.cell)
        _registry.add(self.cell)


class HitCounter(threading.local):
    """One function's counts in the calling thread.

    Generated code counts a hit with ``counter.cell.hits += 1``: one thread-local look-up and one slot. (A plain
    attribute of a ``threading.local`` costs two such look-ups, 1.5 times as much.) ``misses``, ``compiles``,
    ``disk_hits`` and ``shared_hits`` of the cell are counted alike.
    """

    cell: _HitCell

    def __init__(self, record: _Record) -> None:
        # threading.local runs this once in each thread, with the arguments of the first: so all share one record.
        self.record = record
        self.cell = _HitCell(self, record)
        mine = _mine.cell
        with _registry.lock:
            record.cells.add(self.cell)
            if len(mine.hot) >= mine.prune_at:
                mine.prune()
            mine.hot.append(self.cell)

    @classmethod
    def of_function(cls) -> HitCounter:
        """A fresh counter for one function."""
        return cls(_Record())

    def total(self, *, all_threads: bool = True) -> dict[str, int]:
        """The function's counts since it was decorated, by the names of :class:`cuplate.cache.stats.CacheInfo`.

        Parameters
        ----------
        all_threads : bool
            Sum over all threads, ended ones included; False for the calling thread's own.
        """
        if not all_threads:
            return {name: getattr(self.cell, name) for name in _FUNCTION_NAMES}
        with _registry.lock:
            _registry.fold()
            total = dict(self.record.ended)
            for cell in self.record.cells:
                for name in _FUNCTION_NAMES:
                    total[name] += getattr(cell, name)
        return total


_ended_threads: deque[_ThreadCell] = deque()
_registry = _Registry()
_mine = _Mine()


class Observer(Protocol):
    """Somebody who is told of every :func:`count`; never of hits of the hot path."""

    def observe(self, tier: str, amounts: Mapping[str, float]) -> None:
        """In the thread that counts."""


_observers: tuple[Observer, ...] = ()  # replaced as a whole, so that it is read without a lock


def tell(observer: Observer) -> None:
    """Tell an observer from now on.

    Parameters
    ----------
    observer : Observer
    """
    global _observers
    with _registry.lock:
        _observers = (*_observers, observer)


def tell_no_more(observer: Observer) -> None:
    """Undo :func:`tell`; an observer that is not told stays so.

    Parameters
    ----------
    observer : Observer
    """
    global _observers
    with _registry.lock:
        _observers = tuple(other for other in _observers if other is not observer)


def observers() -> tuple[Observer, ...]:
    """Who is told now, the first first."""
    return _observers


def count(tier: str, **amounts: float) -> None:
    """Add to the calling thread's counts.

    Parameters
    ----------
    tier : str
        ``"memory"``, ``"disk"``, ``"shared"`` or ``"compile"``.
    **amounts : float
        As in `TierStats`, `SharedStats` and `CompileStats` of :mod:`cuplate.cache.stats`.
    """
    mine = _mine.cell.counts[tier]
    for name, amount in amounts.items():
        mine[name] += amount
    for observer in _observers:
        observer.observe(tier, amounts)


def of_this_thread() -> Counts:
    """The calling thread's own since its last :func:`reset`."""
    cell = _mine.cell
    own = cell.total()
    _add(own, cell.baseline, -1)
    return own


def of_all_threads() -> Counts:
    """The sum over all threads since the process began, ended threads included, whatever was reset."""
    with _registry.lock:
        _registry.fold()
        total = _zero()
        _add(total, _registry.ended)
        for cell in tuple(_registry.living):
            _add(total, cell.total())
    return total


def reset() -> None:
    """Start the calling thread's own counts at zero; other threads and the sum over all threads keep theirs."""
    cell = _mine.cell
    cell.baseline = cell.total()
