"""The replay against the real tiers, look-up for look-up, and the folding of what was recorded."""

from __future__ import annotations

import math
import random
import tempfile
import time
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from cuplate.cache import MemoryTier, reset, stats
from cuplate.cache import memory as memory_module
from cuplate.cache.disk import DiskTier
from cuplate.cache.files import FilesTier
from cuplate.cache.replay import Asked, Entry, memory, play, read_stream
from cuplate.cache.trace import Process, Record

pytest.importorskip("diskcache")

KINDS = ("least-recently-used", "least-recently-stored", "least-frequently-used", "none")
KEYS = 24


def key(number: int) -> bytes:
    """A digest."""
    return number.to_bytes(32, "big")


def process(uses: list[int], records: list[Record] | None = None, kernels: int = 12) -> Process:
    """A process that used these kernels."""
    named = tuple((key(n), 0) for n in range(kernels))
    numbers = np.array(uses, np.int32)
    return Process(
        {"at": 0.0, "pid": 1, "policy": {}}, named, numbers, np.arange(len(uses)) * 1.0, tuple(records or ())
    )


# memory ---------------------------------------------------------------------------------------------------------------


class Told:
    """A watcher that keeps what it is told, as a recording would."""

    def __init__(self) -> None:
        self.uses: list[int] = []
        self.records: list[Record] = []

    def note(self, what: str, name: Any = None) -> None:
        told = {"thread": 1} | ({} if name is None else {"key": name[0].hex(), "device": name[1]})
        self.records.append(Record(len(self.uses), 0.0, what, told))

    def used(self, name: Any) -> None:
        self.uses.append(int.from_bytes(name[0], "big"))

    def missed(self, name: Any) -> None:
        self.note("missed", name)

    def kept(self, entry: Any) -> None:
        pass

    def dropped(self, name: Any) -> None:
        self.note("dropped", name)


def steps(draw: random.Random) -> list[tuple[str, int]]:
    """A program: calls, hot and not, and whatever else changes what is loaded."""
    words = ("call",) * 8 + ("hot",) * 8 + ("discard",) * 4 + ("exclusive", "leave", "leave", "fail")
    chosen = [draw.choice(words) for _ in range(200)]
    chosen[draw.randrange(200)] = "clear"
    return [(word, draw.randrange(20, 22) if word == "fail" else draw.randrange(12)) for word in chosen]


def run(program: list[tuple[str, int]], limit: int, told: Told) -> tuple[int, int, int]:
    """Hits, misses and evictions of a real tier that holds six kernels at first."""
    tier: MemoryTier[str] = MemoryTier(limit)
    plans = {number: tier.put((key(number), 0), "kernel") for number in range(6)}
    tier.on_evict(lambda entry: plans.pop(int.from_bytes(entry.key[0], "big"), None))  # type: ignore[index]
    for number in range(max(0, 6 - limit)):
        del plans[number]
    held: list[Any] = []
    hot = 0
    reset()
    memory_module.watch(told)
    try:
        for what, number in [*program, *[("leave", 0)] * len(program)]:
            name = (key(number), 0)
            if what == "hot" and number in plans:  # what generated code does
                plans[number].tick = memory_module.next_tick()
                hot += 1
            elif what in ("call", "hot"):
                plans[number] = tier.get(name) or tier.put(name, "kernel")
            elif what == "fail":
                tier.get(name)
            elif what == "discard":
                tier.discard(name)
            elif what == "clear":
                tier.clear()
            elif what == "exclusive":
                held.append(tier.gate.exclusive())
                told.note("shut")
                held[-1].__enter__()
            elif held:
                held.pop().__exit__(None, None, None)
                told.note("opened")
    finally:
        memory_module.watch()
    found = stats().memory
    return found.hits + hot, found.misses, found.evictions


@given(st.integers(0, 1 << 32))
@settings(max_examples=25)
def test_memory_is_replayed_hit_for_hit_at_every_size(seed: int) -> None:
    """Hits, misses and evictions of the real tier of any size are those predicted from a recording at another size."""
    program, told = steps(random.Random(seed)), Told()
    loaded = [Record(0, 0.0, "resident", {"key": key(number).hex(), "device": 0}) for number in range(6)]
    run(program, 7, told)
    replayed = memory(read_stream(process(told.uses, [*loaded, *told.records]), {}))
    for limit in range(1, 14):
        found = replayed.point(limit, np.zeros(12))
        assert (found.hits, found.misses, found.evictions) == run(program, limit, Told()), limit


# disk -----------------------------------------------------------------------------------------------------------------

WORDS = ("look",) * 12 + ("quiet look", "put", "fail", "deleted", "wait")


def stream(draw: random.Random) -> list[tuple[str, int]]:
    """Some hundred operations on a few keys, some of them used more often."""
    operations = [(draw.choice(WORDS), int(draw.triangular(0, KEYS, 3))) for _ in range(220)]
    return [*operations, ("cleared", 0), *operations[:40]]


def do(tier: Any, what: str, number: int, size: int) -> None:
    """One operation, as the walk asks for it."""
    payload = bytes([number]) * size
    if what.endswith("look"):
        if tier.get(key(number), again=what == "quiet look") is None:
            tier.get(key(number), again=True)
            tier.put(key(number), payload, tag="f")
    elif what == "put":
        tier.put(key(number), payload, tag="f")
    elif what == "fail":
        tier.get(key(number))
    elif what == "deleted":
        tier.delete(key(number))
    elif what == "cleared":
        tier.clear()


class Clock:
    """A clock that only the test moves; a file's time a little at every look."""

    def __init__(self) -> None:
        self.now_s = 1_700_000_000.0
        self._looks = 0

    @contextmanager
    def set(self) -> Any:
        """For the tiers."""
        now = {name: (lambda: self.now_s) for name in ("time", "monotonic")}
        with patch.multiple(time, time_ns=self._ns, **now):
            yield

    def _ns(self) -> int:
        self._looks += 1
        return int(self.now_s * 1e3) * 1_000_000 + self._looks


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", [DiskTier, FilesTier])
def test_a_disk_tier_is_replayed_hit_for_hit(engine: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hits, misses, puts, evictions and refusals are the real tier's: every policy, any size, any time to live."""
    for module in ("touch", "replay"):
        monkeypatch.setattr(f"cuplate.cache.{module}.MOST_TOUCHES", 5)  # so that some uses are forgotten
    totals = []

    @given(st.integers(0, 1 << 32), st.integers(6000, 20_000), st.sampled_from([math.inf, 60.0]))
    @settings(max_examples=15)
    def compare(seed: int, limit: int, ttl: float) -> None:
        draw = random.Random(seed)
        for module in ("touch", "replay"):
            monkeypatch.setattr(f"cuplate.cache.{module}.DUE_KEYS", 3 + seed % 2 * 500)
        sizes = [draw.randrange(limit // 12, limit // 8 + 20) for _ in range(KEYS)]
        with tempfile.TemporaryDirectory() as base:
            clock = Clock()
            operations: list[Asked] = []
            tier = engine(base, limit_bytes=limit, eviction=kind, time_to_live_s=ttl, single_flight=False)
            place = tier.directory
            entries = {key(n): Entry(size, "f", {}, place, asked=True) for n, size in enumerate(sizes)}
            reset()
            with clock.set():
                for what, number in stream(draw):
                    clock.now_s += draw.choice([1.0, 20.0]) if what == "wait" else 0.01
                    if what == "wait":
                        continue
                    name = place.encode() if what == "cleared" else key(number)
                    operations.append(Asked(clock.now_s, 0, what, name))
                    do(tier, what, number, sizes[number])
                tier.close()
            real = stats().disk
            found = play(operations, entries, limit_bytes=limit, eviction=kind, time_to_live_s=ttl, place=place)
            assert (found.hits, found.misses, found.puts) == (real.hits, real.misses, real.puts)
            assert found.evictions == real.evictions
            refused = tier.counters()
            assert found.refused == refused["refused_large"] + refused["refused_full"]
            totals.append((found.hits, found.misses, found.evictions, found.refused))

    compare()
    hits, misses, evictions, refused = map(sum, zip(*totals, strict=True))
    assert hits > 50 and misses > 50 and refused > 5
    assert evictions > 100 or kind == "none"


@pytest.mark.parametrize("kind", KINDS)
def test_a_put_drops_no_more_than_some_of_what_has_aged(kind: str, tmp_path: Any) -> None:
    """A hundred old entries leave with the next puts, as in the tier; where nothing else may go, all at once."""
    tmp_path.chmod(0o700)
    clock, operations = Clock(), []
    tier = DiskTier(str(tmp_path), limit_bytes=20_000, eviction=kind, time_to_live_s=60.0, single_flight=False)
    entries = {key(n): Entry(100 + n, "f", {}, tier.directory, asked=True) for n in range(140)}
    evictions = []
    reset()
    with clock.set():
        for number in range(140):
            clock.now_s += 100.0 if number in (100, 130) else 0.01
            operations.append(Asked(clock.now_s, 0, "put", key(number)))
            do(tier, "put", number, 100 + number)
            evictions.append(stats().disk.evictions)
    tier.close()
    for asked_for in (101, 102, 131, 140):
        found = play(
            operations[:asked_for],
            entries,
            limit_bytes=20_000,
            eviction=kind,
            time_to_live_s=60.0,
            place=tier.directory,
        )
        assert found.evictions == evictions[asked_for - 1]
    assert evictions[-1] > 100
