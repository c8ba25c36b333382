"""How long look-ups, stores and compiles take: histograms, for as long as somebody asks.

Fed by what the tiers count, so it costs nothing while it is off, and the hot path, whose hits are not timed, nothing
at all.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

from cuplate.cache import counts, fork

__all__ = ["BOUNDS_S", "Histogram", "Latencies", "running"]

BOUNDS_S = tuple(round(step * 10.0**power, 9) for power in range(-6, 2) for step in (1, 2, 5))
"""Upper ends of the buckets, seconds: 1 us to 50 s, three a decade; the last bucket has none."""

_OPERATIONS = {"hits": "hit", "misses": "miss", "puts": "put", "compiles": "compile"}
_PERCENTS = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Histogram:
    """The times of one operation of one tier.

    Attributes
    ----------
    tier : str
        ``"memory"``, ``"disk"``, ``"shared"`` or ``"compile"``.
    operation : str
        ``"hit"``, ``"miss"``, ``"put"``, ``"compile"``, or ``"error"`` for what was tried in vain.
    buckets : tuple of int
        Operations that took at most each of :data:`BOUNDS_S`, not cumulated, and longer ones.
    sum_s, max_s : float
        Seconds.
    """

    tier: str
    operation: str
    buckets: tuple[int, ...]
    sum_s: float
    max_s: float

    @property
    def count(self) -> int:
        """Operations."""
        return sum(self.buckets)

    def percentile_s(self, percent: float) -> float:
        """Seconds within which so many of a hundred operations ended: the upper end of a bucket, or the longest time.

        Parameters
        ----------
        percent : float
            Above 0, at most 100.
        """
        wanted, seen = self.count * percent / 100, 0
        for bound, number in zip(BOUNDS_S, self.buckets, strict=False):
            seen += number
            if seen >= wanted:
                return min(bound, self.max_s)
        return self.max_s


class Latencies:
    """The histograms since this was made; close it, or use it in ``with``, to stop. ``str()`` is a table.

    All threads of the process; a forked child starts at zero. Hits of the hot path are not timed and not in it.

    Examples
    --------
    >>> with Latencies() as latencies:
    ...     pass
    >>> latencies.histograms()
    ()
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finalizer, or a handler of a signal, may look up while we hold it
        self._cells: dict[tuple[str, str], _Cell] = {}
        fork.register(self)
        counts.tell(self)

    def __enter__(self) -> Latencies:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop; what was seen stays."""
        counts.tell_no_more(self)

    def observe(self, tier: str, amounts: Mapping[str, float]) -> None:
        """Take in what a tier counts.

        Parameters
        ----------
        tier : str
        amounts : mapping of str to float
            As for :func:`cuplate.cache.counts.count`; without ``seconds`` there is nothing to take.
        """
        seconds = amounts.get("seconds")
        if seconds is None:
            return
        operation = next((name for field, name in _OPERATIONS.items() if amounts.get(field)), None)
        if operation is None:
            if not amounts.get("errors"):
                return  # a second look after a miss
            operation = "error"
        with self._lock:
            self._cells.setdefault((tier, operation), _Cell()).add(seconds)

    def histograms(self) -> tuple[Histogram, ...]:
        """One for each operation that was seen, ordered by tier and operation."""
        with self._lock:
            return tuple(
                Histogram(tier, operation, tuple(cell.buckets), cell.sum_s, cell.max_s)
                for (tier, operation), cell in sorted(self._cells.items())
            )

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [
            ("tier", "operation", "count", *(f"p{percent}" for percent in _PERCENTS), "max", "sum")
        ]
        for found in self.histograms():
            times = [*(found.percentile_s(percent) for percent in _PERCENTS), found.max_s, found.sum_s]
            rows.append((found.tier, found.operation, str(found.count), *map(_time, times)))
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        return "\n".join(
            "  ".join([row[0].ljust(widths[0]), row[1].ljust(widths[1]), *map(str.rjust, row[2:], widths[2:])]).rstrip()
            for row in rows
        )

    def before_fork(self) -> None:
        """Take the lock."""
        self._lock.acquire()

    def after_fork(self, *, child: bool) -> None:
        """In the child nothing has been seen.

        Parameters
        ----------
        child : bool
            Whether this is the new process.
        """
        if child:
            self._cells = {}
        self._lock.release()


class _Cell:
    __slots__ = ("buckets", "max_s", "sum_s")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = self.max_s = 0.0

    def add(self, seconds: float) -> None:
        self.buckets[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds
        self.max_s = max(self.max_s, seconds)


def running() -> tuple[Latencies, ...]:
    """Those that are not closed, the oldest first."""
    return tuple(observer for observer in counts.observers() if isinstance(observer, Latencies))


def _time(seconds: float) -> str:
    for scale, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
