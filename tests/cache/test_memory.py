"""The memory tier is an exact LRU, and drops nothing that somebody still needs."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuplate.cache import Entry, MemoryTier, next_tick, stats


class Kernel:
    """Stands for a loaded kernel: unloads itself when its last reference goes."""


OPERATIONS = st.lists(st.tuples(st.sampled_from(["put", "get", "hit", "limit"]), st.integers(0, 7)), max_size=60)


@given(OPERATIONS)
def test_what_is_kept_is_what_a_list_in_order_of_use_would_keep(operations: list[tuple[str, int]]) -> None:
    """Exact LRU: after any operations the tier holds the same keys as the obvious model (B29)."""
    tier: MemoryTier[int] = MemoryTier(3)
    limit, order = 3, list[int]()

    def trim(spare: int | None = None) -> None:
        while len(order) > limit:
            free = [k for k in order if k != spare]
            if not free:
                return
            order.remove(free[0])

    for name, key in operations:
        entry = {e.key: e for e in tier}.get(key)
        if name == "put":
            tier.put(key, key)
            order = [k for k in order if k != key] + [key]
            trim(spare=key)
        elif name == "limit":
            tier.limit = limit = key + 1
            trim()
        elif entry is None:
            assert tier.get(key) is None
            trim()
        else:
            order = [k for k in order if k != key] + [key]
            if name == "get":
                assert tier.get(key) is entry
            else:
                entry.tick = next_tick()
        assert sorted(e.key for e in tier) == sorted(order)  # type: ignore[type-var]


def test_a_hit_is_one_store_and_no_call() -> None:
    """A tick stored by the caller saves an entry from eviction; the tier is not asked."""
    tier: MemoryTier[str] = MemoryTier(2)
    old = tier.put("old", "a")
    tier.put("new", "b")
    old.tick = next_tick()
    tier.put("third", "c")
    assert {e.key for e in tier} == {"old", "third"}


def test_the_one_just_put_is_never_evicted() -> None:
    """Even when every other kernel has been used since."""
    tier: MemoryTier[str] = MemoryTier(1)
    old = tier.put("a", "a")
    new = tier.put("b", "b")
    assert {e.key for e in tier} == {"b"}
    old.tick = new.tick + 1000
    tier.put("c", "c")
    assert {e.key for e in tier} == {"c"}


def test_the_second_put_of_a_key_keeps_the_first_kernel() -> None:
    """Two threads that load the same kernel end up with one."""
    tier: MemoryTier[str] = MemoryTier(2)
    first = tier.put("a", "first")
    assert tier.put("a", "second") is first
    assert first.value == "first"


def test_evicted_kernels_die_with_their_last_reference() -> None:
    """Eviction only lets go: a kernel that another thread runs lives on, all others are gone at once (B29)."""
    tier: MemoryTier[Kernel] = MemoryTier(32)
    alive: weakref.WeakSet[Kernel] = weakref.WeakSet()
    running = tier.put("running", Kernel()).value
    for number in range(2000):
        kernel = Kernel()
        alive.add(kernel)
        tier.put(number, kernel)
        del kernel
    gc.collect()
    assert len(tier) == 32
    assert len(alive) == 32
    assert tier.get("running") is None
    assert isinstance(running, Kernel)


def test_evictions_are_told_with_no_lock_held() -> None:
    """on_evict may use the tier, from this thread and from others: the walk drops the kernel's plans there."""
    tier: MemoryTier[str] = MemoryTier(1)
    seen: list[object] = []

    def look(entry: Entry[str]) -> None:
        other = threading.Thread(target=tier.get, args=("b",))
        other.start()
        other.join()
        seen.append((entry.key, len(tier)))

    tier.on_evict(look)
    tier.put("a", "a")
    tier.put("b", "b")
    assert seen == [("a", 1)]
    tier.clear()
    assert seen == [("a", 1), ("b", 0)]


def test_discard_drops_one_entry_and_tells() -> None:
    """For an entry that the driver refused."""
    tier: MemoryTier[str] = MemoryTier(4)
    gone: list[object] = []
    tier.on_evict(lambda entry: gone.append(entry.key))
    tier.put("a", "a")
    assert tier.discard("a")
    assert not tier.discard("a")
    assert gone == ["a"]


def test_look_ups_are_counted() -> None:
    """get counts hits and misses, put counts what is new, eviction counts what went."""
    before = stats().memory
    tier: MemoryTier[str] = MemoryTier(1)
    tier.get("a")
    tier.put("a", "a")
    tier.put("a", "a")
    tier.get("a")
    tier.put("b", "b")
    now = stats().memory
    counted = [getattr(now, n) - getattr(before, n) for n in ("hits", "misses", "puts", "evictions")]
    assert counted == [1, 1, 2, 1]


@pytest.mark.parametrize("threads", [8])
def test_many_threads_keep_the_bound(threads: int) -> None:
    """Under threads the tier ends within its limit and every get returns the value of its key."""
    tier: MemoryTier[int] = MemoryTier(5)
    wrong: list[object] = []

    def work(seed: int) -> None:
        for step in range(300):
            key = (seed * 7 + step * 3) % 11
            entry = tier.get(key) or tier.put(key, key)
            if entry.value != key:
                wrong.append(key)

    workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []
    assert len(tier) == 5
