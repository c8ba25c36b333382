"""The disk tier when all is well: what goes in comes out, within its limit, and in the order it should leave."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import sqlite3
import subprocess
import sys
import time
import weakref
from contextlib import closing
from pathlib import Path

import pytest

from cuplate import events
from cuplate.cache import DiskTier, Store, reset, stats
from cuplate.seal import SEAL_BYTES


def key(number: int) -> bytes:
    """A digest."""
    return number.to_bytes(32, "big")


@pytest.fixture
def tier(tmp_path: Path) -> DiskTier:
    """An empty tier of 1 MiB."""
    return DiskTier(str(tmp_path / "cache"), limit_bytes=1 << 20)


def test_what_goes_in_comes_out(tier: DiskTier) -> None:
    """For the process that stored it and for the next one; an overwritten entry gives the new payload."""
    assert tier.get(key(1)) is None
    assert tier.put(key(1), b"payload", tag="f")
    assert tier.get(key(1)) == b"payload"
    assert tier.put(key(1), b"other")
    assert DiskTier(tier.base).get(key(1)) == b"other"


def test_it_is_a_store(tier: DiskTier) -> None:
    """The tier has the shape that the walk asks for."""
    assert isinstance(tier, Store)


def test_making_a_tier_touches_no_disk(tier: DiskTier) -> None:
    """Neither does a look-up that misses (B14)."""
    assert tier.get(key(1)) is None
    assert list(tier.entries("f")) == []
    assert tier.sums() == (0, 0)
    assert tier.volume() == 0
    assert tier.clear() == 0
    assert not tier.delete(key(1))
    assert not os.path.exists(tier.base)


def test_the_directory_is_private(tier: DiskTier) -> None:
    """Made for this user only, whatever the umask."""
    old = os.umask(0)
    try:
        tier.put(key(1), b"p")
    finally:
        os.umask(old)
    assert [os.stat(d).st_mode & 0o777 for d in (tier.base, tier.directory)] == [0o700, 0o700]


def test_a_hit_needs_no_diskcache(tier: DiskTier) -> None:
    """A warm start imports neither diskcache nor anything else that is heavy."""
    tier.put(key(1), b"p")
    script = (
        "import sys, cuplate.cache as c\n"
        f"print(c.DiskTier({tier.base!r}).get({key(1)!r}))\n"
        "print([m for m in ('diskcache', 'numpy', 'jinja2', 'cuda', 'cupy', 'pickle') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "b'p'\n[]\n"


def test_delete_and_clear(tier: DiskTier) -> None:
    """delete says whether there was one; clear says how many, and gives the room back (B28)."""
    for number in range(100):
        tier.put(key(number), bytes(6000))
    assert tier.delete(key(1))
    assert not tier.delete(key(1))
    assert tier.get(key(1)) is None
    assert tier.volume() > 500_000
    assert tier.clear() == 99
    assert tier.sums() == (0, 0)
    assert tier.volume() < 100_000  # empty tables and indices
    assert tier.put(key(1), b"again")


def test_entries_of_a_tag_come_newest_first_and_bounded(tier: DiskTier) -> None:
    """What explain reads: the last entries of one function."""
    for number in range(5):
        tier.put(key(number), b"p%d" % number, tag="f" if number != 2 else "g")
    assert list(tier.entries("f", limit=3)) == [(key(4), b"p4"), (key(3), b"p3"), (key(1), b"p1")]
    assert list(tier.entries("h")) == []


def test_long_names_are_no_file_names(tmp_path: Path) -> None:
    """A name of 300 characters, a deep directory and one full of special characters all work (B20)."""
    for base in (tmp_path.joinpath(*["deep" * 10] * 8), tmp_path / "~ $HOME 50%20 # ? é 'x' \\"):
        tier = DiskTier(str(base))
        assert tier.put(key(1), b"p", tag="k" * 300 + "," + "p" * 4000)
        assert DiskTier(str(base)).get(key(1)) == b"p"
        assert sorted(os.listdir(base)) == ["v1", "v1.lock"]
        assert sorted(os.listdir(base.parent)) == [base.name]
        shutil.rmtree(tmp_path / os.path.relpath(base, tmp_path).split("/")[0])


def test_a_path_longer_than_sqlite_takes_is_memory_only(tmp_path: Path) -> None:
    """SQLite's paths end at 512 characters: a miss and a warning, no exception (B20)."""
    tier = DiskTier(str(tmp_path.joinpath(*["deep" * 10] * 14)))
    with pytest.warns(match="unable to open database file"):
        assert not tier.put(key(1), b"p")
    assert tier.get(key(1)) is None


def test_the_sum_of_the_entries_stays_within_the_limit_and_the_oldest_go(tmp_path: Path) -> None:
    """After every put: the newest entries that fit, all of them, and nothing else (B25)."""
    size = 1000 + SEAL_BYTES
    tier = DiskTier(str(tmp_path), limit_bytes=10 * size)
    for number in range(25):
        tier.put(key(number), bytes(1000))
        kept = [n for n in range(25) if tier.get(key(n)) is not None]
        assert kept == list(range(max(0, number - 9), number + 1))
        assert tier.sums() == (len(kept), len(kept) * size)


def test_a_larger_entry_evicts_as_many_as_it_needs(tmp_path: Path) -> None:
    """Not ten, and not one."""
    size = 1000 + SEAL_BYTES
    tier = DiskTier(str(tmp_path), limit_bytes=24 * size)
    for number in range(24):
        tier.put(key(number), bytes(1000))
    tier.put(key(100), bytes(2 * size - SEAL_BYTES))
    assert [n for n in range(24) if tier.get(key(n)) is None] == [0, 1]


def test_a_put_again_makes_an_entry_new(tmp_path: Path) -> None:
    """Least recently *stored* goes first."""
    size = 1000 + SEAL_BYTES
    tier = DiskTier(str(tmp_path), limit_bytes=10 * size)
    for number in [*range(10), 0, 10]:
        tier.put(key(number), bytes(1000))
    assert tier.get(key(0)) is not None
    assert tier.get(key(1)) is None


def test_an_entry_above_an_eighth_of_the_limit_is_not_stored_and_evicts_nobody(tmp_path: Path) -> None:
    """One warning names the size, the limit and the setting."""
    tier = DiskTier(str(tmp_path), limit_bytes=80_000)
    tier.put(key(1), bytes(9000))
    with pytest.warns(match=r"an entry of 20040 bytes \(f\).*80000 bytes.*CUPLATE_DISK_BYTES"):
        assert not tier.put(key(2), bytes(20_000), tag="f")
    assert not tier.put(key(3), bytes(20_000), tag="f")
    assert tier.get(key(1)) is not None
    assert tier.counters()["refused_large"] == 2


def test_evictions_are_counted_told_and_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A full cache does not drop entries without a sign (B25)."""
    tier = DiskTier(str(tmp_path), limit_bytes=10_000)
    seen: list[tuple[str, str | None, str | None]] = []
    reset()
    caplog.set_level(logging.INFO, "cuplate")
    with events.subscribe(lambda e: seen.append((e.function, e.key, e.tier)), "evict"):
        for number in range(12):
            tier.put(key(number), bytes(1000), tag="f")
    assert seen == [("f", key(n).hex(), "disk") for n in range(3)]
    assert stats().disk.evictions == tier.counters()["evictions"] == 3
    assert [m for m in caplog.messages if "is full (10000 bytes)" in m and "CUPLATE_DISK_BYTES" in m] == caplog.messages
    assert len(caplog.messages) == 1


def test_after_the_clock_was_set_back_new_entries_still_survive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries from the future are not newer than what is stored now."""
    tier = DiskTier(str(tmp_path), limit_bytes=10 * (1000 + SEAL_BYTES))
    for number in range(10):
        tier.put(key(number), bytes(1000))
    year_ago = time.time() - 365 * 86400
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: year_ago)
        for number in range(10, 15):
            tier.put(key(number), bytes(1000))
    assert [n for n in range(15) if tier.get(key(n)) is not None] == list(range(5, 15))


def test_hits_misses_and_bytes_are_counted(tier: DiskTier) -> None:
    """Every look-up is a hit or a miss; a second look at the same miss is not another."""
    reset()
    tier.get(key(1))
    tier.get(key(1), again=True)
    tier.put(key(1), b"12345")
    tier.get(key(1))
    disk = stats().disk
    assert (disk.hits, disk.misses, disk.puts, disk.read_bytes, disk.written_bytes) == (1, 1, 1, 5, 5)
    assert disk.errors == 0
    assert disk.seconds > 0


def test_a_hit_writes_nothing(tier: DiskTier) -> None:
    """Neither the database nor its log changes on reads."""
    tier.put(key(1), b"p")
    tier.close()
    tier.get(key(1))
    before = {f.name: (f.stat().st_size, f.stat().st_mtime_ns) for f in Path(tier.directory).iterdir()}
    for _ in range(100):
        tier.get(key(1))
    after = {f.name: (f.stat().st_size, f.stat().st_mtime_ns) for f in Path(tier.directory).iterdir()}
    assert after == before


def test_no_value_ever_lies_in_a_file_of_its_own(tier: DiskTier) -> None:
    """Value files are never synced, and a planted name would lead anywhere."""
    tier.put(key(1), os.urandom(120_000))
    assert tier.get(key(1)) is not None
    assert {f.name for f in Path(tier.directory).iterdir()} <= {"cache.db", "cache.db-wal", "cache.db-shm"}


def test_the_settings_are_those_of_the_design(tier: DiskTier) -> None:
    """What diskcache persists: no write on a hit, no memory map, everything in the row."""
    tier.put(key(1), b"p")
    with closing(sqlite3.connect(os.path.join(tier.directory, "cache.db"))) as database, database:
        settings = dict(database.execute("SELECT key, value FROM Settings"))
        journal = database.execute("PRAGMA journal_mode").fetchone()[0]
    database.close()
    wanted = {
        "eviction_policy": "least-recently-stored",
        "statistics": 0,
        "sqlite_mmap_size": 0,
        "sqlite_synchronous": 1,
        "cull_limit": 10,
        "disk_min_file_size": 1 << 31,
    }
    assert {name: settings[name] for name in wanted} == wanted
    assert journal == "wal"


def test_every_connection_is_guarded(tier: DiskTier) -> None:
    """No function runs from a planted schema, nothing is mapped, a power cut tears nothing; the reader cannot write."""
    tier.put(key(1), b"p")
    tier.get(key(1))
    assert tier._reader is not None and tier._engine is not None
    guards = ("trusted_schema", "mmap_size", "synchronous", "query_only")
    for connection, wanted in ((tier._reader._connection, [0, 0, 1, 1]), (tier._engine._con, [0, 0, 1, 0])):
        assert [connection.execute(f"PRAGMA {guard}").fetchone()[0] for guard in guards] == wanted


def test_two_tiers_of_one_directory_see_each_other(tier: DiskTier) -> None:
    """Within a process, too."""
    other = DiskTier(tier.base)
    assert other.get(key(1)) is None
    tier.put(key(1), b"a")
    assert other.get(key(1)) == b"a"
    other.put(key(2), b"b")
    assert tier.get(key(2)) == b"b"


def test_old_stores_that_were_set_aside_are_removed_and_young_ones_kept(tier: DiskTier) -> None:
    """By whoever opens the store for writing, after a week; nothing else in the directory is touched."""
    names = [f"v1.bad-{time.time_ns() - 8 * 86400 * 10**9}-1", f"v1.bad-{time.time_ns()}-1", "v1.bad-x-1", "mine"]
    for name in names:
        os.makedirs(os.path.join(tier.base, name))
    os.chmod(tier.base, 0o700)
    tier.put(key(1), b"p")
    assert sorted(os.listdir(tier.base)) == sorted([*names[1:], "v1", "v1.lock"])


def test_a_look_up_where_no_store_is_holds_nothing_of_its_callers(tmp_path: Path) -> None:
    """The error of a missing store goes with the look-up, and with it the frames that led there."""

    class Array:
        pass

    def call() -> weakref.ref[Array]:
        array = Array()
        assert DiskTier(str(tmp_path / "none")).get(bytes(32)) is None
        return weakref.ref(array)

    gc.collect()
    gc.disable()
    try:
        assert call()() is None
    finally:
        gc.enable()


def test_a_tier_that_is_dropped_closes_its_connections(tmp_path: Path) -> None:
    """At once when nothing else leads to it, and before the collector asks the connections, which would warn."""
    gc.collect()
    gc.disable()
    try:
        for number, in_a_cycle in enumerate((False, True)):
            tier = DiskTier(str(tmp_path / str(number)))
            assert tier.put(bytes(32), b"payload")
            assert tier.get(bytes(32)) == b"payload"
            assert tier._reader is not None and tier._engine is not None
            held = tier._reader._connection, tier._engine._con
            if in_a_cycle:
                tier.__dict__["itself"] = tier
            del tier
            if in_a_cycle:
                gc.collect()
            for connection in held:
                with pytest.raises(sqlite3.ProgrammingError, match="closed"):
                    connection.execute("SELECT 1")
    finally:
        gc.enable()
