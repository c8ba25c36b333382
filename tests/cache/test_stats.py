"""Counts belong to the thread that did the work; the sum over all threads loses nothing."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from collections.abc import Callable

from cuplate.cache import HitCounter, count, reset, stats
from cuplate.cache.stats import CacheStats, CompileStats, SharedStats, TierStats


def run(work: Callable[[], object]) -> None:
    """In a thread of its own, to its end."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_a_thread_reads_its_own_counts() -> None:
    """Work of another thread does not show, except in the sum."""
    reset()
    before = stats(all_threads=True).disk.hits
    count("disk", hits=2, read_bytes=10)
    run(lambda: count("disk", hits=5))
    assert stats().disk.hits == 2
    assert stats().disk.read_bytes == 10
    assert stats(all_threads=True).disk.hits - before == 7


def test_reset_is_the_thread_s_own() -> None:
    """reset() changes neither another thread's counts nor the sum."""
    count("compile", compiles=1, seconds=0.5)
    total = stats(all_threads=True)
    seen: list[CacheStats] = []

    def other() -> None:
        count("compile", compiles=3)
        reset()
        count("compile", compiles=1)
        seen.append(stats())

    own = stats().compile.compiles
    run(other)
    assert seen[0].compile.compiles == 1
    assert stats().compile.compiles == own
    assert stats(all_threads=True).compile.compiles == total.compile.compiles + 4
    reset()
    assert stats() == CacheStats()
    assert stats(all_threads=True).compile.compiles == total.compile.compiles + 4


def test_hits_of_the_hot_path_are_memory_hits() -> None:
    """Generated code adds to a cell; stats() folds every function's cells into the memory tier."""
    reset()
    total = stats(all_threads=True).memory.hits
    one, two = HitCounter.of_function(), HitCounter.of_function()
    one.cell.hits += 3
    two.cell.hits += 1

    def other() -> None:
        one.cell.hits += 10

    run(other)
    assert stats().memory.hits == 4
    assert stats(all_threads=True).memory.hits - total == 14
    reset()
    assert stats().memory.hits == 0
    one.cell.hits += 1
    assert stats().memory.hits == 1


def test_a_function_s_own_counts() -> None:
    """total() sums over all threads, ended ones included, or gives the calling thread's own."""
    counter = HitCounter.of_function()
    counter.cell.hits += 2
    counter.cell.compiles += 1

    def other() -> None:
        counter.cell.hits += 5
        counter.cell.misses += 1
        counter.cell.disk_hits += 1

    run(other)
    run(other)
    assert counter.total() == {"hits": 12, "misses": 2, "compiles": 1, "disk_hits": 2, "shared_hits": 0}
    mine = {"hits": 2, "misses": 0, "compiles": 1, "disk_hits": 0, "shared_hits": 0}
    assert counter.total(all_threads=False) == mine


def test_a_function_that_is_gone_leaves_its_hits() -> None:
    """Hits of functions that no longer exist stay in the sums, though their cells are forgotten."""
    reset()
    for _ in range(500):
        counter = HitCounter.of_function()
        counter.cell.hits += 1
        del counter
    gc.collect()
    HitCounter.of_function()
    assert stats().memory.hits == 500


def test_ten_thousand_threads_cost_no_memory() -> None:
    """The cells of ended threads are folded into one sum: memory stays flat, and no count is lost."""
    counter = HitCounter.of_function()

    def work() -> None:
        counter.cell.hits += 1
        count("disk", misses=1)

    before = stats(all_threads=True)
    for _ in range(8_000):
        run(work)
    gc.collect()
    tracemalloc.start()
    try:
        start = tracemalloc.get_traced_memory()[0]
        for _ in range(2_000):
            run(work)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - start
    finally:
        tracemalloc.stop()
    now = stats(all_threads=True)
    assert counter.total()["hits"] == 10_000
    assert now.memory.hits - before.memory.hits == 10_000
    assert now.disk.misses - before.disk.misses == 10_000
    assert grown < 50_000  # bytes; a cell of each thread would be two thousand times 2 kB


def test_living_threads_are_in_the_sum() -> None:
    """A thread need not end to be counted."""
    before = stats(all_threads=True).disk.puts
    counted, ending = threading.Event(), threading.Event()

    def work() -> None:
        count("disk", puts=1)
        counted.set()
        ending.wait()

    thread = threading.Thread(target=work)
    thread.start()
    counted.wait()
    assert stats(all_threads=True).disk.puts - before == 1
    ending.set()
    thread.join()
    assert stats(all_threads=True).disk.puts - before == 1


def test_the_table() -> None:
    """str() is one aligned line a tier."""
    table = str(
        CacheStats(TierStats(hits=12), TierStats(misses=3, read_bytes=6000), CompileStats(compiles=3, seconds=1))
    )
    assert table.splitlines() == [
        "tier     hits  misses  puts  evictions  errors  read  written  seconds",
        "memory     12       0     0          0       0     0        0    0.000",
        "disk        0       3     0          0       0  6000        0    0.000",
        "compile     -       -     3          -       0     -        0    1.000",
    ]


def test_the_table_with_a_shared_tier() -> None:
    """It comes with its own line, and a column of what was not sent, as soon as it has done something."""
    assert str(CacheStats(shared=SharedStats(hits=1, drops=2))).splitlines() == [
        "tier     hits  misses  puts  evictions  errors  read  written  seconds  drops",
        "memory      0       0     0          0       0     0        0    0.000      -",
        "disk        0       0     0          0       0     0        0    0.000      -",
        "shared      1       0     0          -       0     0        0    0.000      2",
        "compile     -       -     0          -       0     -        0    0.000      -",
    ]
