"""Counts of what the tiers did, kept per thread so that nobody's measurement is polluted by another thread.

A thread counts in a cell of its own, without a lock. When it ends, its cell is folded into one sum, so that ten
thousand short threads cost no more memory than one. Hot-path hits are counted per function and thread
(:class:`HitCounter`).
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, fields

from cuplate.cache import fork

__all__ = ["CacheInfo", "CacheStats", "CompileStats", "HitCounter", "TierStats", "count", "reset", "stats"]


@dataclass(frozen=True, slots=True)
class TierStats:
    """One tier.

    Attributes
    ----------
    hits, misses : int
        Look-ups answered and not answered, whatever the reason.
    puts : int
        Entries stored.
    evictions : int
        Entries dropped for want of room.
    errors : int
        Operations that failed: damaged entry, no lock in time, full disk and so on. Each failed look-up is a miss too.
    read_bytes, written_bytes : int
        Payloads, bytes.
    seconds : float
        Time spent inside the tier; hot-path hits are not timed.
    """

    hits: int = 0
    misses: int = 0
    puts: int = 0
    evictions: int = 0
    errors: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class CompileStats:
    """The compiler.

    Attributes
    ----------
    compiles : int
        Compiles that succeeded.
    errors : int
        Compiles that failed.
    written_bytes : int
        Code produced, bytes.
    seconds : float
        Time spent in the compiler.
    """

    compiles: int = 0
    errors: int = 0
    written_bytes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class CacheStats:
    """All tiers at one moment; ``str()`` is a table.

    Attributes
    ----------
    memory : TierStats
        Loaded kernels; hits include those of the hot path.
    disk : TierStats
        Stored kernels.
    compile : CompileStats
        The compiler.
    """

    memory: TierStats = TierStats()
    disk: TierStats = TierStats()
    compile: CompileStats = CompileStats()

    def __str__(self) -> str:
        head = ("tier", "hits", "misses", "puts", "evictions", "errors", "read", "written", "seconds")
        rows: list[tuple[str, ...]] = [head]
        for name, tier in (("memory", self.memory), ("disk", self.disk)):
            rows.append((name, *(str(getattr(tier, f.name)) for f in fields(tier)[:-1]), f"{tier.seconds:.3f}"))
        made = self.compile
        counts = ("-", "-", str(made.compiles), "-", str(made.errors), "-", str(made.written_bytes))
        rows.append(("compile", *counts, f"{made.seconds:.3f}"))
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        return "\n".join(
            "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
            for row in rows
        )


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """One function's look-ups.

    Attributes
    ----------
    hits : int
        Calls answered by the hot path.
    misses : int
        Calls that had to walk further.
    compiles : int
        Misses that ended in the compiler.
    disk_hits : int
        Misses that the disk answered.
    variants : int
        Variants known to the function now.
    """

    hits: int = 0
    misses: int = 0
    compiles: int = 0
    disk_hits: int = 0
    variants: int = 0


_TIERS = ("memory", "disk", "compile")
_NAMES = {"compile": tuple(f.name for f in fields(CompileStats))}
_TIER_NAMES = tuple(f.name for f in fields(TierStats))
_FUNCTION_NAMES = ("hits", "misses", "compiles", "disk_hits")

Counts = dict[str, dict[str, float]]


def _zero() -> Counts:
    return {tier: dict.fromkeys(_NAMES.get(tier, _TIER_NAMES), 0) for tier in _TIERS}


def _add(total: Counts, more: Counts, sign: int = 1) -> None:
    for tier, amounts in more.items():
        mine = total[tier]
        for name, amount in amounts.items():
            mine[name] += sign * amount


def _frozen(counts: Counts) -> CacheStats:
    def typed(tier: str) -> dict[str, float]:
        return {name: amount if name == "seconds" else int(amount) for name, amount in counts[tier].items()}

    return CacheStats(
        TierStats(**typed("memory")),  # type: ignore[arg-type]
        TierStats(**typed("disk")),  # type: ignore[arg-type]
        CompileStats(**typed("compile")),  # type: ignore[arg-type]
    )


class _HitCell:
    """One function's counts in one thread; ``record`` sums the function over threads."""

    __slots__ = ("compiles", "counter", "disk_hits", "hits", "misses", "record")

    def __init__(self, counter: HitCounter, record: _Record) -> None:
        self.hits = self.misses = self.compiles = self.disk_hits = 0
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
    attribute of a ``threading.local`` costs two such look-ups, 1.5 times as much.) ``misses``, ``compiles`` and
    ``disk_hits`` of the cell are counted alike.
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

    def info(self, *, all_threads: bool = True, variants: int = 0) -> CacheInfo:
        """The function's counts since it was decorated.

        Parameters
        ----------
        all_threads : bool
            Sum over all threads, ended ones included; False for the calling thread's own.
        variants : int
            Passed through: only the function knows how many variants it holds.

        Returns
        -------
        CacheInfo
            Frozen counts.
        """
        if not all_threads:
            return CacheInfo(**{name: getattr(self.cell, name) for name in _FUNCTION_NAMES}, variants=variants)
        with _registry.lock:
            _registry.fold()
            total = dict(self.record.ended)
            for cell in self.record.cells:
                for name in _FUNCTION_NAMES:
                    total[name] += getattr(cell, name)
        return CacheInfo(**total, variants=variants)


_ended_threads: deque[_ThreadCell] = deque()
_registry = _Registry()
_mine = _Mine()


def count(tier: str, **amounts: float) -> None:
    """Add to the calling thread's counts.

    Parameters
    ----------
    tier : str
        ``"memory"``, ``"disk"`` or ``"compile"``.
    **amounts : float
        Fields of :class:`TierStats` or :class:`CompileStats`.
    """
    mine = _mine.cell.counts[tier]
    for name, amount in amounts.items():
        mine[name] += amount


def stats(*, all_threads: bool = False) -> CacheStats:
    """What the tiers did.

    Parameters
    ----------
    all_threads : bool
        False: the calling thread's own work since its last :func:`reset`. True: the sum over all threads since the
        process began, ended threads included, whatever was reset.

    Returns
    -------
    CacheStats
        Frozen counts.
    """
    if not all_threads:
        cell = _mine.cell
        own = cell.total()
        _add(own, cell.baseline, -1)
        return _frozen(own)
    with _registry.lock:
        _registry.fold()
        total = _zero()
        _add(total, _registry.ended)
        for cell in _cells():
            _add(total, cell.total())
    return _frozen(total)


def _cells() -> Iterator[_ThreadCell]:
    return iter(tuple(_registry.living))


def reset() -> None:
    """Start the calling thread's own counts at zero; other threads and the sum over all threads keep theirs."""
    cell = _mine.cell
    cell.baseline = cell.total()
