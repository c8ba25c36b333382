"""Each kind of eviction against a model of twenty lines: after every step the same entries, to the byte."""

from __future__ import annotations

import math
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import hypothesis.strategies as st
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from cuplate.cache import UNLIMITED, DiskTier
from cuplate.cache.files import FilesTier
from cuplate.cache.folder import file_bytes
from cuplate.seal import SEAL_BYTES

LIMIT = 8000
KINDS = ("least-recently-used", "least-recently-stored", "least-frequently-used", "none")
NUMBERS = st.integers(0, 20)


def key(number: int) -> bytes:
    """A digest."""
    return number.to_bytes(32, "big")


@dataclass
class Row:
    """What the model knows of an entry; `stored` and `used` are places in one order of events."""

    size: int
    stored: int
    stored_at: float
    used: int
    uses: int = 0


@dataclass
class Model:
    """What a store with one kind of eviction holds."""

    kind: str
    ttl: float
    defers: bool = True  # a put that evicts nothing leaves uses for later
    rows: dict[int, Row] = field(default_factory=dict)
    events: int = 0
    pending: dict[int, dict[int, int]] = field(default_factory=lambda: {0: {}, 1: {}})  # uses by tier

    def event(self) -> int:
        """The next place in the order."""
        self.events += 1
        return self.events

    def live(self, number: int, now: float) -> bool:
        """Whether a look-up finds it."""
        return number in self.rows and self.rows[number].stored_at > now - self.ttl

    def get(self, tier: int, number: int, now: float) -> bool:
        """A look-up; a use is remembered by its tier."""
        if not self.live(number, now):
            return False
        self.pending[tier][number] = self.pending[tier].pop(number, 0) + 1
        return True

    def flush(self, tier: int) -> None:
        """Write the uses of a tier down."""
        for number, times in self.pending[tier].items():
            if number in self.rows:
                self.rows[number].used = self.event()
                self.rows[number].uses += times
        self.pending[tier] = {}

    def expire(self, now: float, spared: int | None = None) -> None:
        """Pull entries out of the future, drop old ones."""
        for row in self.rows.values():
            row.stored_at = min(row.stored_at, now)
        self.rows = {n: r for n, r in self.rows.items() if n == spared or r.stored_at > now - self.ttl}

    def put(self, tier: int, number: int, sealed: int, size: int, now: float) -> bool:
        """A put, and what leaves for it."""
        if sealed > LIMIT // 8:
            return False
        rest = {n: Row(**vars(r)) for n, r in self.rows.items()}
        self.rows.pop(number, None)
        waiting = self.pending[tier]
        places = [self.event() for _ in waiting]
        place = self.event()
        self.rows[number] = Row(size, place, now, place)
        self.expire(now, spared=number)
        if not self.defers or (sum(r.size for r in self.rows.values()) > LIMIT and self.kind != "none"):
            for (used, times), at in zip(waiting.items(), places, strict=True):
                if used in self.rows and used != number:
                    self.rows[used].used = at
                    self.rows[used].uses += times
            self.pending[tier] = {}
        else:  # no order is asked for: written down later, and this put in its place among them
            waiting.pop(number, None)
            waiting.update({number: 0} if waiting else {})
        while sum(r.size for r in self.rows.values()) > LIMIT:
            if self.kind == "none":
                self.rows = rest
                return False
            others = [n for n in self.rows if n != number]
            del self.rows[min(others, key=lambda n: self.rank(self.rows[n]))]
        return True

    def rank(self, row: Row) -> tuple[int, ...]:
        """The smallest goes first."""
        return {
            "least-recently-used": (row.used,),
            "least-recently-stored": (row.stored,),
            "least-frequently-used": (row.uses, row.used),
        }[self.kind]


class Comparison(RuleBasedStateMachine):
    """Two tiers on one directory, as two processes would have it, and the model of both."""

    kind = "none"
    modelled = ""
    make: type[DiskTier | FilesTier] = DiskTier
    lives = (math.inf, 50.0)

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        """An empty directory, and a clock that only the rules move."""
        ttl = data.draw(st.sampled_from(self.lives))
        self.base = tempfile.mkdtemp()
        os.chmod(self.base, 0o700)
        self.now = time.time()
        self.model = Model(self.modelled or self.kind, ttl, defers=self.make is DiskTier)
        self.tiers = [
            self.make(self.base, limit_bytes=LIMIT, eviction=self.kind, time_to_live_s=ttl, single_flight=False)
            for _ in range(2)
        ]

    @contextmanager
    def clock(self) -> Iterator[None]:
        """The clock of the store."""
        with patch.object(time, "time", lambda: self.now), patch.object(time, "time_ns", lambda: int(self.now * 1e9)):
            yield

    @rule(tier=st.integers(0, 1), entries=st.lists(st.tuples(NUMBERS, st.integers(500, 1000)), min_size=1, max_size=12))
    def put(self, tier: int, entries: list[tuple[int, int]]) -> None:
        """Stored, or refused, exactly when the model says so; and never above the limit."""
        for number, size in entries:
            self.put_one(tier, number, size)

    def size_of(self, payload_bytes: int) -> int:
        """What counts: the sealed payload, or the whole file."""
        sealed = payload_bytes + SEAL_BYTES
        return sealed if self.make is DiskTier else file_bytes(key(0), "f", sealed)

    def put_one(self, tier: int, number: int, size: int) -> None:
        """One entry."""
        with self.clock():
            stored = self.tiers[tier].put(key(number), bytes([number]) * size, tag="f")
            assert stored == self.model.put(tier, number, size + SEAL_BYTES, self.size_of(size), self.now)
            assert self.tiers[tier].sums()[1] <= LIMIT

    @rule(tier=st.integers(0, 1), numbers=st.lists(NUMBERS, max_size=12))
    def get(self, tier: int, numbers: list[int]) -> None:
        """Found exactly when the model has it."""
        with self.clock():
            for number in numbers:
                found = self.tiers[tier].get(key(number))
                assert (found is not None) == self.model.get(tier, number, self.now)
                assert found is None or found[:1] == bytes([number])

    @rule(number=NUMBERS)
    def delete(self, number: int) -> None:
        """An entry that is there goes."""
        assert self.tiers[0].delete(key(number)) == (number in self.model.rows)
        self.model.rows.pop(number, None)

    @rule(tier=st.integers(0, 1))
    def close(self, tier: int) -> None:
        """The end of a process writes its uses down."""
        own = self.tiers[tier]
        with self.clock():
            if isinstance(own, FilesTier):  # at its end a process does not read the folder, but trusts its clock
                own._list.refresh()
            own.close()
        self.model.flush(tier)

    @rule(seconds=st.sampled_from([0.0, 1e-7, 10.0, 60.0, -1.0, -40.0, -3e7]))
    def move_clock(self, seconds: float) -> None:
        """Forwards, hardly, or back by a year."""
        self.now += seconds

    @rule()
    def prune(self) -> None:
        """What is expired goes; the rest fits already. The tier's uses are written down before."""
        with self.clock():
            assert self.tiers[1].prune().within
        self.model.flush(1)
        self.model.expire(self.now)

    @invariant()
    def the_same_entries(self) -> None:
        """The rows of the database are those of the model, and so is their sum."""
        if not hasattr(self, "tiers"):
            return
        if self.make is FilesTier:
            assert {row.name: row.size for row in self.tiers[0].rows()} == {
                key(n).hex(): row.size for n, row in self.model.rows.items()
            }
            return
        if not os.path.exists(os.path.join(self.base, "v1", "cache.db")):
            return
        with closing(sqlite3.connect(os.path.join(self.base, "v1", "cache.db"))) as database, database:
            rows = dict(database.execute("SELECT key, length(value) FROM Cache"))
        database.close()
        assert rows == {key(n): row.size for n, row in self.model.rows.items()}
        assert self.tiers[0].sums() == (len(rows), sum(rows.values()))

    def teardown(self) -> None:
        """Nothing is left."""
        for tier in getattr(self, "tiers", ()):
            tier.close()
        shutil.rmtree(getattr(self, "base", ""), ignore_errors=True)


@pytest.mark.parametrize("kind", KINDS)
def test_the_tier_holds_what_the_model_holds(kind: str) -> None:
    """Whatever is put, looked up, deleted, pruned, from two tiers, with a clock that jumps (B25)."""
    machine: Any = type(kind, (Comparison,), {"kind": kind})
    run_state_machine_as_test(machine, settings=settings(max_examples=25, stateful_step_count=40, deadline=None))


@pytest.mark.parametrize("kind", KINDS)
def test_the_tier_of_files_holds_what_the_model_holds(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entry by entry as the disk tier; expired ones go once a minute there, so the model has no time to live (B25)."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    machine: Any = type(kind, (Comparison,), {"kind": kind, "make": FilesTier, "lives": (UNLIMITED,)})
    run_state_machine_as_test(machine, settings=settings(max_examples=15, stateful_step_count=40, deadline=None))


@pytest.mark.parametrize(("kind", "wrong"), [*zip(KINDS, KINDS[1:] + KINDS[:1], strict=True)])
def test_a_wrong_order_is_found(kind: str, wrong: str) -> None:
    """The comparison can fail: a tier of one kind is not a model of another."""
    machine: Any = type(kind, (Comparison,), {"kind": kind, "modelled": wrong})
    found = settings(max_examples=300, stateful_step_count=40, deadline=None, database=None, phases=[Phase.generate])
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=found)
