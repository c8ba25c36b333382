"""What leaves a full store, when a use is written down, and what `prune` makes of the files."""

from __future__ import annotations

import multiprocessing
import os
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from cuplate import events
from cuplate.cache import DiskTier, configure, prune
from cuplate.cache.engine import Engine
from cuplate.cache.pruning import target_bytes
from cuplate.cache.touch import MOST_TOUCHES, Uses
from cuplate.errors import CacheError
from cuplate.seal import SEAL_BYTES

SIZE = 1000 + SEAL_BYTES
KINDS = ("least-recently-used", "least-recently-stored", "least-frequently-used", "none")


def key(number: int) -> bytes:
    """A digest."""
    return number.to_bytes(32, "big")


def full(base: Path, kind: str, *, entries: int = 10, **more: Any) -> DiskTier:
    """A tier that ten entries, 0 to 9, have filled; or one with fewer."""
    tier = DiskTier(str(base), limit_bytes=10 * SIZE, eviction=kind, **more)
    for number in range(entries):
        assert tier.put(key(number), bytes(1000), tag="f")
    return tier


def held(tier: DiskTier) -> list[int]:
    """The numbers in a store, without using them."""
    with closing(sqlite3.connect(os.path.join(tier.directory, "cache.db"))) as database:
        return sorted(int.from_bytes(k, "big") for (k,) in database.execute("SELECT key FROM Cache"))


def database(tier: DiskTier, *statements: str) -> None:
    """Meddle with a store."""
    tier.close()
    with closing(sqlite3.connect(os.path.join(tier.directory, "cache.db"), isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


# ---- what goes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "gone"),
    [("least-recently-used", 1), ("least-recently-stored", 0), ("least-frequently-used", 2), ("none", 10)],
)
def test_each_kind_evicts_its_own(tmp_path: Path, kind: str, gone: int) -> None:
    """0 is stored first, 1 used first, 2 used once where the others are used twice; none stores no more (B25)."""
    tier = full(tmp_path, kind)
    for number in [1, 1, 2, *(n for n in range(3, 10) for _ in range(2)), 0, 0]:
        assert tier.get(key(number))
    assert tier.put(key(10), bytes(1000)) == (kind != "none")
    assert held(tier) == [number for number in range(11) if number != gone]


def test_none_stores_what_fits_says_once_that_it_is_full_and_replaces(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A refused put changes nothing, an entry of the same size still replaces its own, and each refusal is counted."""
    caplog.set_level("INFO", "cuplate")
    tier = full(tmp_path, "none")
    assert not tier.put(key(10), b"x")
    assert not tier.put(key(3), bytes(1001))
    assert tier.put(key(3), b"y" * 1000)
    assert tier.get(key(3)) == b"y" * 1000
    assert (held(tier), tier.sums()) == (list(range(10)), (10, 10 * SIZE))
    assert tier.counters()["refused_full"] == 2
    assert [m for m in caplog.messages if "its eviction is none" in m and "CUPLATE_EVICTION" in m] == caplog.messages
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_above_the_limit_is_not_stored_and_evicts_nobody(tmp_path: Path, kind: str) -> None:
    """Nor does one that is as large as the limit (B25)."""
    tier = full(tmp_path, kind)
    with pytest.warns(match="not stored"):
        assert not tier.put(key(10), bytes(10 * SIZE + 1))
    assert not tier.put(key(3), bytes(10 * SIZE))
    assert held(tier) == list(range(10))
    assert tier.get(key(3)) == bytes(1000)


def test_an_old_entry_counts_as_absent_and_goes_at_the_next_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the time to live of who looks: another policy may still see it. It is told of like any other eviction."""
    tier = full(tmp_path, "least-recently-used", time_to_live_s=100.0)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 101)
    patient = DiskTier(str(tmp_path), time_to_live_s=1000.0)
    assert tier.get(key(1)) is None
    assert list(tier.entries("f")) == []
    assert patient.get(key(1)) == bytes(1000)
    seen: list[str | None] = []
    with events.subscribe(lambda e: seen.append(e.key), "evict"):
        assert tier.put(key(10), b"new")
    assert held(tier) == [10]
    assert len(seen) == 10


def test_expired_entries_make_room_where_nothing_is_evicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With eviction none and a time to live a full store goes on."""
    tier = full(tmp_path, "none", time_to_live_s=100.0)
    assert not tier.put(key(10), bytes(1000))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 101)
    assert tier.put(key(10), bytes(1000))
    assert held(tier) == [10]


def test_a_clock_set_back_gives_no_entry_a_longer_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was stored in the future is as old as the put that finds it."""
    tier = full(tmp_path, "least-recently-used", time_to_live_s=100.0)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 3e7)
    tier.put(key(0), b"new")
    monkeypatch.setattr(time, "time", lambda: now - 3e7 + 101)
    assert [n for n in range(10) if tier.get(key(n))] == []


@pytest.mark.parametrize("planted", ["-5000000", "NULL", "4611686018427387904"])
def test_a_planted_sum_evicts_nobody(tmp_path: Path, planted: str) -> None:
    """diskcache's counter is believed only where it can be true."""
    tier = full(tmp_path, "least-recently-stored")
    database(tier, f"UPDATE Settings SET value = {planted} WHERE key = 'size'")
    assert tier.put(key(10), bytes(1000))
    assert held(tier) == list(range(1, 11))
    assert tier.sums()[1] == 10 * SIZE


@pytest.mark.parametrize("planted", ["1e300", "'text'", "NULL", "x'00'"])
def test_a_planted_stamp_stops_no_order(tmp_path: Path, planted: str) -> None:
    """The next use is later than all others all the same."""
    tier = full(tmp_path, "least-recently-used")
    database(tier, f"UPDATE Cache SET access_time = {planted}")
    for number in range(1, 10):
        assert tier.get(key(number))
    tier.put(key(10), bytes(1000))
    assert held(tier) == list(range(1, 11))


# ---- uses, written down later ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_hit_writes_nothing(tmp_path: Path, kind: str) -> None:
    """Whatever the kind: neither the database nor its log changes on a hundred hits."""
    tier = full(tmp_path, kind)
    tier.close()
    tier.get(key(1))
    before = {f.name: (f.stat().st_size, f.stat().st_mtime_ns) for f in Path(tier.directory).iterdir()}
    for _ in range(100):
        assert tier.get(key(1))
    after = {f.name: (f.stat().st_size, f.stat().st_mtime_ns) for f in Path(tier.directory).iterdir()}
    assert after == before


def test_the_end_of_a_process_writes_its_uses_down_without_diskcache(tmp_path: Path) -> None:
    """A process that only reads keeps what it reads from being the first to go."""
    tier = full(tmp_path, "least-recently-used")
    script = (
        "import sys, atexit\n"
        "atexit.register(lambda: print('diskcache' in sys.modules))\n"  # runs after the tier's, registered later
        "from cuplate.cache import DiskTier\n"
        f"tier = DiskTier({str(tmp_path)!r}, limit_bytes={10 * SIZE}, eviction='least-recently-used')\n"
        f"assert tier.get({key(0)!r})"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("False\n", "")
    tier.put(key(10), bytes(1000))
    assert held(tier) == [0, *range(2, 11)]


def uses_of(tier: DiskTier) -> list[int]:
    """How often each entry was used, as it is written down, in the order in which they would go."""
    with closing(sqlite3.connect(os.path.join(tier.directory, "cache.db"))) as connection:
        return [n for (n,) in connection.execute("SELECT access_count FROM Cache ORDER BY access_time, rowid")]


def test_a_put_that_evicts_nothing_writes_no_uses(tmp_path: Path) -> None:
    """But it takes its place among them: what was used before it goes before it, when something has to go."""
    tier = full(tmp_path, "least-recently-used", entries=8)
    for number in range(8):
        tier.get(key(number))
    tier.put(key(8), bytes(1000))
    tier.get(key(0))
    tier.put(key(9), bytes(1000))
    assert uses_of(tier) == [0] * 10
    tier.put(key(10), bytes(1000))  # 1 was used first of those that were not used or stored again
    assert held(tier) == [0, *range(2, 11)]
    assert uses_of(tier) == [1, 1, 1, 1, 1, 1, 0, 2, 0, 0]  # 2 to 7, 8, 0, 9, 10
    assert len(tier._uses) == 0


def test_uses_that_are_due_are_written_by_any_put(tmp_path: Path) -> None:
    """After 30 s, or 512 keys, other processes are to know."""
    tier = full(tmp_path, "least-recently-used", entries=8)
    tier.get(key(3))
    with patch.object(time, "monotonic", lambda now=time.monotonic: now() + 31.0):
        tier.put(key(8), bytes(1000))
    assert uses_of(tier) == [0] * 7 + [1, 0]
    for number in range(600):
        tier._uses.note(key(10_000 + number))
    tier.get(key(4))
    tier.put(key(9), bytes(1000))
    assert sum(uses_of(tier)) == 2


def test_uses_are_kept_for_the_next_put_when_a_put_fails(tmp_path: Path) -> None:
    """A locked store loses the entry, not the order."""
    tier = full(tmp_path, "least-recently-used")
    tier._write_wait_s = 0.05
    assert tier.get(key(0))
    with closing(sqlite3.connect(os.path.join(tier.directory, "cache.db"), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert not tier.put(key(10), bytes(1000))
        other.execute("ROLLBACK")
    tier.get(key(0))
    tier.put(key(10), bytes(1000))
    assert held(tier) == [0, *range(2, 11)]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("no")])
def test_uses_are_kept_when_a_put_ends_in_an_exception(tmp_path: Path, error: BaseException) -> None:
    """An interrupt, or an error that was asked for with ``on_error="raise"``, takes none along."""
    tier = full(tmp_path, "least-recently-used", on_error="raise", cooldown_s=0.0)
    assert tier.get(key(0))
    with patch.object(Engine, "write", side_effect=error), pytest.raises((KeyboardInterrupt, CacheError)):
        tier.put(key(10), bytes(1000))
    tier.put(key(10), bytes(1000))
    assert held(tier) == [0, *range(2, 11)]


class Overtaken:
    """A lock that somebody else gets first, once."""

    def __init__(self, lock: Any, somebody: Callable[[], object]) -> None:
        self.lock, self.turns = lock, [somebody]

    def acquire(self, timeout: float) -> bool:
        """After the other's turn."""
        if self.turns:
            self.turns.pop()()
        return bool(self.lock.acquire(timeout=timeout))

    def release(self) -> None:
        """As of any lock."""
        self.lock.release()


def test_a_put_that_waits_keeps_no_uses_from_one_that_evicts(tmp_path: Path) -> None:
    """Of two threads that put, whoever evicts knows of every use."""
    tier = full(tmp_path, "least-recently-used")
    assert tier.get(key(0))
    tier._writing = Overtaken(tier._writing, lambda: tier.put(key(10), bytes(1000)))  # type: ignore[assignment]
    tier.put(key(11), bytes(1000))
    assert held(tier) == [0, *range(3, 12)]


def test_a_use_may_come_while_another_is_noted() -> None:
    """A finalizer, or a handler of a signal, that looks up does not wait for its own thread."""
    uses = Uses()

    class Late(bytes):
        def __hash__(self) -> int:
            if not len(uses):
                uses.note(key(1))
            return super().__hash__()

    uses.note(Late(key(0)))
    assert uses.take()[0] == {key(0): 1, key(1): 1}


def test_writing_uses_down_never_raises_and_never_waits_long(tmp_path: Path) -> None:
    """A lock that is held, a store that is gone: they are forgotten."""
    tier = full(tmp_path, "least-recently-used")
    tier.get(key(0))
    with closing(sqlite3.connect(os.path.join(tier.directory, "cache.db"), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert not tier.flush(wait_s=0.05)
    assert tier.flush()
    tier.get(key(0))
    Path(tier.directory, "cache.db").unlink()
    assert not tier.flush()
    assert tier.counters()["errors"] == 0


def test_the_uses_remembered_are_bounded() -> None:
    """The earliest is forgotten."""
    uses = Uses()
    for number in range(MOST_TOUCHES + 5):
        uses.note(key(number))
    uses.note(key(7))
    assert len(uses) == MOST_TOUCHES
    touches, _ = uses.take()
    assert next(iter(touches)) == key(5)
    assert list(touches.items())[-1] == (key(7), 2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_leaves_the_uses_to_its_parent(tmp_path: Path) -> None:
    """They would be counted twice."""
    tier = full(tmp_path, "least-frequently-used")
    tier.get(key(0))
    child = os.fork()
    if child == 0:
        tier.flush()
        os._exit(0 if not len(tier._uses) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert tier.flush()
    with closing(sqlite3.connect(os.path.join(tier.directory, "cache.db"))) as connection:
        assert connection.execute("SELECT SUM(access_count) FROM Cache").fetchone() == (1,)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_worker_of_multiprocessing_writes_its_uses_down(tmp_path: Path, method: str) -> None:
    """Though such a process ends without atexit: what workers read is not the first to go."""
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    tier = full(tmp_path, "least-recently-used")
    tier.get(key(2))
    worker = multiprocessing.get_context(method).Process(target=_use, args=(str(tmp_path),))
    worker.start()
    worker.join()
    assert uses_of(tier)[-1] == 1
    tier.put(key(10), bytes(1000))
    assert held(tier) == [0, *range(2, 11)]


def _use(base: str) -> None:
    _kept.append(DiskTier(base, limit_bytes=10 * SIZE))
    assert _kept[-1].get(key(0))


_kept: list[DiskTier] = []


# ---- prune -----------------------------------------------------------------------------------------------------------


def crowded(base: Path, kind: str, limit: int, *, seed: int = 1) -> DiskTier:
    """A full store of entries whose sizes leave gaps in the pages."""
    tier = DiskTier(str(base), limit_bytes=limit, eviction=kind, single_flight=False)
    sizes = random.Random(seed)
    number = 0
    while tier.sums()[1] < limit * 0.98:
        tier.put(key(number), bytes(sizes.choice([2100, 2200, 2500, 3700])), tag="f")
        number += 1
    return tier


@pytest.mark.parametrize("kind", KINDS)
def test_after_prune_the_files_fit_the_limit(tmp_path: Path, kind: str) -> None:
    """Limit + 10 % + 1 MB, gaps in the pages included; what goes is what the policy says (B28)."""
    limit = 8_000_000
    tier = crowded(tmp_path, kind, limit)
    before = held(tier)
    assert tier.volume() > target_bytes(limit)
    done = tier.prune()
    assert done.within
    assert tier.volume() == done.file_bytes <= limit * 1.1 + 1e6 < done.file_bytes_before
    assert tier.sums() == (done.entries, done.entry_bytes)
    left = held(tier)
    assert left == before[done.removed_entries :]  # none was used: stored first is used first
    assert 0 < done.removed_entries < len(before) / 2
    assert done.file_bytes > limit * 0.9
    assert tier.put(key(10**6), b"x") == (kind != "none" or tier.sums()[1] < limit)


def test_prune_removes_orphans_and_counts_them(tmp_path: Path) -> None:
    """Value files of a bare diskcache, temporary files, links, folders and stores that were set aside (B28)."""
    tier = full(tmp_path / "cache", "least-recently-used")
    outside = tmp_path / "outside"
    outside.write_bytes(b"keep")
    store = Path(tier.directory)
    (store / "ab" / "cd").mkdir(parents=True)
    (store / "ab" / "cd" / "ef.val").write_bytes(bytes(3_000_000))
    (store / "left.tmp").write_bytes(bytes(3_000_000))
    (store / "link").symlink_to(outside)
    (store / "folder").symlink_to(tmp_path, target_is_directory=True)
    aside = Path(f"{tier.directory}.bad-{time.time_ns()}-1")
    aside.mkdir()
    (aside / "cache.db").write_bytes(bytes(3_000_000))
    assert tier.volume() > 9_000_000
    done = tier.prune()
    assert done.removed_orphans == 5
    assert (done.removed_entries, done.entries, done.entry_bytes) == (0, 10, 10 * SIZE)
    assert done.file_bytes_before > 9_000_000 > done.file_bytes
    assert done.within
    assert outside.read_bytes() == b"keep"
    assert {f.name for f in store.iterdir()} <= {"cache.db", "cache.db-wal", "cache.db-shm"}
    assert not aside.exists()
    assert [n for n in range(10) if tier.get(key(n)) is None] == []
    assert "10 entries" in str(done) and "5 orphans" in str(done)


def test_prune_frees_pages_that_nobody_gave_back(tmp_path: Path) -> None:
    """A database without auto_vacuum keeps the pages of deleted rows."""
    tier = crowded(tmp_path, "least-recently-used", 4_000_000)
    database(tier, "PRAGMA auto_vacuum = 0", "VACUUM", "DELETE FROM Cache WHERE rowid > 20")
    assert tier.volume() > 4_000_000
    done = tier.prune()
    assert done.entries == 20
    assert done.file_bytes < 1_000_000


def test_prune_drops_expired_and_foreign_rows_and_corrects_the_sum(tmp_path: Path) -> None:
    """What no look-up would ever give is dead weight."""
    tier = full(tmp_path, "least-recently-used", time_to_live_s=100.0)
    database(
        tier,
        "UPDATE Cache SET mode = 4 WHERE rowid = 1",
        "UPDATE Cache SET filename = '../../x' WHERE rowid = 2",
        "UPDATE Cache SET size = 7 WHERE rowid = 3",
        "UPDATE Cache SET store_time = 5 WHERE rowid = 4",
        "UPDATE Settings SET value = 3 WHERE key IN ('size', 'count')",
    )
    done = tier.prune()
    assert held(tier) == [2, *range(4, 10)]
    assert tier.sums() == (7, 7 * SIZE)
    assert (done.removed_entries, done.removed_entry_bytes) == (1, SIZE)


def test_prune_is_safe_beside_readers_and_writers(tmp_path: Path) -> None:
    """Another process reads and writes all the while; nothing fails, and nothing wrong comes out."""
    limit = 4_000_000
    tier = crowded(tmp_path, "least-recently-used", limit)
    script = (
        "import sys, time\n"
        "from cuplate.cache import DiskTier\n"
        f"tier = DiskTier({str(tmp_path)!r}, limit_bytes={limit})\n"
        "wrong, number, end = 0, 0, time.monotonic() + 1.5\n"
        "print('ready', flush=True)\n"
        "while time.monotonic() < end:\n"
        "    number += 1\n"
        "    tier.put((10**7 + number).to_bytes(32, 'big'), number.to_bytes(4, 'big') * 1500)\n"
        "    found = tier.get((10**7 + number).to_bytes(32, 'big'))\n"
        "    wrong += found is not None and found != number.to_bytes(4, 'big') * 1500\n"
        "print(wrong, tier.counters()['errors'], tier.counters()['quarantines'])"
    )
    other = subprocess.Popen([sys.executable, "-W", "error", "-c", script], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "ready\n"
    while other.poll() is None:
        tier.prune()
        time.sleep(0.05)
    assert other.communicate()[0] == "0 0 0\n"
    assert tier.counters()["errors"] == tier.counters()["quarantines"] == 0
    assert tier.prune().within


def test_prune_of_nothing_is_nothing(tmp_path: Path) -> None:
    """No store is made, and where nothing is stored nothing is pruned."""
    assert DiskTier(str(tmp_path / "none")).prune().file_bytes == 0
    assert not (tmp_path / "none").exists()
    with configure(disk=False):
        assert prune().entries == 0


# ---- when it fails ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_error", ["warn", "ignore", "raise"])
def test_what_is_done_about_an_error(tmp_path: Path, on_error: str, recwarn: pytest.WarningsRecorder) -> None:
    """One warning, nothing, or a CacheError with the cause: the default never raises out of a call."""
    place = tmp_path / on_error
    place.write_text("a file where the directory should be")
    tier = DiskTier(str(place), on_error=on_error)
    if on_error == "raise":
        with pytest.raises(CacheError, match="disk cache") as caught:
            tier.put(key(1), b"p")
        assert isinstance(caught.value.__cause__, OSError)
        return
    assert not tier.put(key(1), b"p")
    assert tier.get(key(1)) is None
    assert tier.counters()["errors"] >= 1
    assert len(recwarn) == (on_error == "warn")


def test_a_damaged_entry_is_an_error_too(tmp_path: Path) -> None:
    """With on_error="raise" a bad seal is told where it is found."""
    tier = full(tmp_path, "least-recently-used")
    database(tier, "UPDATE Cache SET value = x'00' WHERE rowid = 1")
    assert DiskTier(str(tmp_path), on_error="ignore").get(key(0)) is None
    with pytest.raises(CacheError, match="damaged"):
        DiskTier(str(tmp_path), on_error="raise").get(key(0))
