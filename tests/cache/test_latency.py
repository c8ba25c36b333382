"""Histograms of what the tiers count, for as long as somebody asks."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuplate import cache
from cuplate.cache import DiskTier, counts, latencies
from cuplate.cache.latency import BOUNDS_S, Histogram, Latencies, running


@pytest.fixture
def measured() -> Iterator[Latencies]:
    """Histograms that are on."""
    with latencies() as found:
        yield found


def numbers(found: Latencies) -> dict[tuple[str, str], int]:
    """How many of each operation."""
    return {(h.tier, h.operation): h.count for h in found.histograms()}


def test_nothing_is_told_unless_asked_for() -> None:
    """No observer, no histogram, before and after."""
    assert counts.observers() == running() == ()
    with latencies() as found:
        assert counts.observers() == running() == (found,)
    found.close()
    assert counts.observers() == running() == ()


def test_each_operation_has_its_histogram(tmp_path: Path, measured: Latencies) -> None:
    """Hits, misses, puts and what failed; a second look before a compile is no miss, and is in none."""
    tier = DiskTier(str(tmp_path))
    tier.get(b"k" * 32)
    tier.get(b"k" * 32, again=True)
    tier.put(b"k" * 32, b"payload")
    for _ in range(3):
        tier.get(b"k" * 32)
    counts.count("compile", compiles=1, seconds=0.3)
    counts.count("compile", errors=1, seconds=0.2)
    counts.count("memory", evictions=4)  # not timed
    assert numbers(measured) == {
        ("compile", "compile"): 1,
        ("compile", "error"): 1,
        ("disk", "hit"): 3,
        ("disk", "miss"): 1,
        ("disk", "put"): 1,
    }
    measured.close()
    tier.get(b"k" * 32)
    assert numbers(measured)["disk", "hit"] == 3


def test_a_count_may_come_while_another_is_taken_in(measured: Latencies) -> None:
    """A finalizer, or a handler of a signal, that looks up does not wait for its own thread."""

    class Late(float):
        def __gt__(self, other: float) -> bool:
            if ("memory", "miss") not in numbers(measured):
                counts.count("memory", misses=1, seconds=0.1)
            return super().__gt__(other)

    counts.count("disk", hits=1, seconds=Late(0.2))
    assert numbers(measured) == {("disk", "hit"): 1, ("memory", "miss"): 1}


def test_times_are_those_that_are_counted(tmp_path: Path, measured: Latencies) -> None:
    """The sums of the histograms are the seconds of the statistics."""
    cache.reset()
    tier = DiskTier(str(tmp_path))
    tier.get(b"k" * 32)
    tier.put(b"k" * 32, b"payload")
    tier.get(b"k" * 32)
    assert sum(h.sum_s for h in measured.histograms()) == pytest.approx(cache.stats().disk.seconds, rel=1e-12)


@given(st.lists(st.one_of(st.floats(0, 100), st.sampled_from(BOUNDS_S)), min_size=1))
def test_a_bucket_holds_what_is_at_most_its_bound(times: list[float]) -> None:
    """Cumulated, each bound counts exactly the times up to it; a percentile is never below the true one."""
    with latencies() as found:
        for seconds in times:
            counts.count("compile", compiles=1, seconds=seconds)
    (histogram,) = found.histograms()
    for place, bound in enumerate(BOUNDS_S):
        assert sum(histogram.buckets[: place + 1]) == sum(seconds <= bound for seconds in times)
    assert (histogram.count, histogram.max_s) == (len(times), max(times))
    for percent in (1, 50, 99, 100):
        true = sorted(times)[max(0, -(-len(times) * percent // 100) - 1)]
        told = histogram.percentile_s(percent)
        assert true <= told <= histogram.max_s
        assert told in (histogram.max_s, *BOUNDS_S)


def test_all_threads_are_seen(measured: Latencies) -> None:
    """Ended ones too."""
    threads = [
        threading.Thread(target=lambda: [counts.count("compile", compiles=1, seconds=1e-3) for _ in range(500)])
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert numbers(measured) == {("compile", "compile"): 4000}


def test_the_table_reads(measured: Latencies) -> None:
    """A row for each operation, with units."""
    for seconds in (15e-6, 15e-6, 0.004):
        counts.count("disk", hits=1, seconds=seconds)
    counts.count("compile", compiles=1, seconds=1.5)
    head, compiled, hit = (line.split() for line in str(measured).splitlines())
    assert head == ["tier", "operation", "count", "p50", "p90", "p99", "max", "sum"]
    assert compiled == ["compile", "compile", "1", *["1.5", "s"] * 5]
    assert hit == ["disk", "hit", "3", "20", "us", *["4", "ms"] * 3, "4.03", "ms"]
    assert len({len(line) for line in str(measured).splitlines()}) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_starts_at_zero(measured: Latencies) -> None:
    """Its parent's times are its parent's; and the lock is free in it."""
    counts.count("disk", hits=1, seconds=1e-6)
    child = os.fork()
    if child == 0:
        try:
            none = numbers(measured) == {}
            counts.count("disk", hits=1, seconds=1e-6)
            os._exit(0 if none and numbers(measured) == {("disk", "hit"): 1} else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert numbers(measured) == {("disk", "hit"): 1}


def test_a_percentile_of_long_times_is_the_longest() -> None:
    """Beyond the last bound there is no other figure."""
    buckets = (*[0] * len(BOUNDS_S), 2)
    assert Histogram("disk", "hit", buckets, 150.0, 90.0).percentile_s(50) == 90.0
