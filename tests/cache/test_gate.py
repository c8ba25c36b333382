"""exclusive(): what is loaded stays loaded, and other threads' clear() waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from cuplate import cache
from cuplate.cache import CachePolicy, Gate, MemoryTier

PATIENCE_S = 10.0  # how long a test waits for what must happen; never asserted as a speed
GRACE_S = 0.05  # how long a test watches that something does not happen


@pytest.fixture
def tier() -> Iterator[MemoryTier[str]]:
    """The process's memory tier, for two kernels."""
    cache.set_policy(CachePolicy(disk=False, memory_kernels=2))
    found = cache.memory_tier()
    found.clear()
    yield found
    cache.set_policy(None)
    found.clear()


def in_thread(work: Callable[[], object]) -> threading.Thread:
    """A started thread."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_another_thread_s_clear_waits_for_the_end_of_the_block(tier: MemoryTier[str]) -> None:
    """clear() comes through only after exclusive() ends, and then it does clear."""
    tier.put("a", "a")
    with cache.exclusive():
        clearing = in_thread(cache.clear)
        clearing.join(GRACE_S)
        assert clearing.is_alive()
        assert len(tier) == 1
    clearing.join(PATIENCE_S)
    assert not clearing.is_alive()
    assert len(tier) == 0


def test_the_holder_s_own_clear_does_not_wait(tier: MemoryTier[str]) -> None:
    """The thread inside may clear."""
    tier.put("a", "a")
    with cache.exclusive() as held:
        assert held.clear() == 1
    assert len(tier) == 0


def test_no_eviction_inside_and_the_surplus_is_trimmed_at_the_end(tier: MemoryTier[str]) -> None:
    """Puts of any thread go on, evictions wait, and at the end the least recently used go."""
    with cache.exclusive():
        for key in "abc":
            tier.put(key, key)
        in_thread(lambda: tier.put("d", "d")).join(PATIENCE_S)
        assert len(tier) == 4
        tier.limit = 1
        assert len(tier) == 4
        tier.limit = 2
    assert {e.key for e in tier} == {"c", "d"}


def test_it_is_re_entrant(tier: MemoryTier[str]) -> None:
    """The inner block's end opens nothing."""
    with cache.exclusive():
        with cache.exclusive():
            pass
        clearing = in_thread(cache.clear)
        clearing.join(GRACE_S)
        assert clearing.is_alive()
    clearing.join(PATIENCE_S)
    assert not clearing.is_alive()


def test_an_exception_releases_it(tier: MemoryTier[str]) -> None:
    """However the block ends, other threads come through and the surplus is trimmed."""
    with pytest.raises(KeyError), cache.exclusive():
        for key in "abc":
            tier.put(key, key)
        raise KeyError
    assert len(tier) == 2
    clearing = in_thread(cache.clear)
    clearing.join(PATIENCE_S)
    assert not clearing.is_alive()


def test_two_holders_take_turns() -> None:
    """Of many threads inside exclusive() one at a time is inside."""
    gate = Gate()
    inside: list[int] = []
    most: list[int] = []

    def work(number: int) -> None:
        for _ in range(20):
            with gate.exclusive():
                inside.append(number)
                most.append(len(inside))
                inside.remove(number)

    workers = [in_thread(lambda n=n: work(n)) for n in range(6)]  # type: ignore[misc]
    for worker in workers:
        worker.join(PATIENCE_S)
    assert len(most) == 120
    assert max(most) == 1


def test_look_ups_of_other_threads_go_on(tier: MemoryTier[str]) -> None:
    """exclusive() holds back what drops kernels, and nothing else."""
    tier.put("a", "a")
    found: list[object] = []
    with cache.exclusive():
        in_thread(lambda: found.append(tier.get("a"))).join(PATIENCE_S)
    assert found and found[0] is not None


def test_reset_work_read_is_not_polluted_by_others(tier: MemoryTier[str]) -> None:
    """Inside the block the thread's own counts are what this thread did, while others work."""
    with cache.exclusive() as held:
        held.reset()
        tier.get("mine")
        other = in_thread(lambda: [tier.get("theirs") for _ in range(50)])
        other.join(PATIENCE_S)
        assert held.stats().memory.misses == 1
