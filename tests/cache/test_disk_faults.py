"""The disk tier when something is wrong: a miss, a count, one warning; never an exception, never wrong bytes."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sqlite3
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cuplate.cache import DiskTier, disk, reset, stats
from cuplate.cache.directory import make_private
from cuplate.cache.faults import Fault, classify
from cuplate.cache.reader import Reader
from cuplate.errors import CacheWarning
from tests.cache.children import Children

engine = pytest.importorskip("cuplate.cache.engine")

KEY, OTHER = b"k" * 32, b"o" * 32
PAYLOAD = os.urandom(6000)


@pytest.fixture
def tier(tmp_path: Path) -> DiskTier:
    """An empty tier with short waits."""
    return DiskTier(str(tmp_path / "cache"), write_wait_s=0.2, read_wait_s=0.05)


@pytest.fixture
def said() -> Iterator[list[str]]:
    """The cache's warnings, as they come."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        texts: list[str] = []
        yield texts
        texts += [str(w.message) for w in caught if issubclass(w.category, CacheWarning)]


class Hangs(BaseException):
    """No Exception: the tier would take it for a fault of the store."""


@pytest.fixture
def bounded() -> Iterator[None]:
    """A test that waits for a minute, as diskcache alone would, fails."""

    def stop(*arguments: object) -> None:
        raise Hangs

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def rows(tier: DiskTier, statement: str, *arguments: object) -> list[tuple[object, ...]]:
    """Run a statement on the database behind the tier's back."""
    database = sqlite3.connect(os.path.join(tier.directory, "cache.db"), isolation_level=None)
    try:
        return database.execute(statement, arguments).fetchall()
    finally:
        database.close()


def as_nobody(work: Callable[[], object]) -> str:
    """repr() of the work's result, done by a process that is not root: root ignores file modes."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                answer = repr((work(), [str(w.message) for w in caught]))
        except BaseException as error:
            answer = f"raised {error!r}"
        os.write(send, answer.encode())
        os._exit(0)
    os.close(send)
    with open(receive, "rb") as pipe:
        answer = pipe.read().decode()
    os.waitpid(child, 0)
    return answer


def let_others_in(directory: Path) -> None:
    """Let another user reach a test's directory, below pytest's private one."""
    directory.chmod(0o755)
    for parent in directory.parents:
        if parent.stat().st_uid == os.getuid() and str(parent).count("/") > 1:
            parent.chmod(parent.stat().st_mode | 0o011)


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="no /proc here")
def test_a_folder_that_never_comes_into_being_is_the_systems_own_error() -> None:
    """Below /proc a missing parent is reported at every try, which must not be tried for ever."""
    with pytest.raises(FileNotFoundError):
        make_private("/proc/cuplate/v1")


# ---- damage ----------------------------------------------------------------------------------------------------------


def cut_to_nothing(blob: bytes) -> bytes:
    """Nothing left."""
    return b""


def cut_in_half(blob: bytes) -> bytes:
    """The first half."""
    return blob[: len(blob) // 2]


def flip_one_byte(blob: bytes) -> bytes:
    """One bit of the payload wrong."""
    return blob[:-100] + bytes([blob[-100] ^ 1]) + blob[-99:]


def zeroed(blob: bytes) -> bytes:
    """As a lost block reads."""
    return bytes(len(blob))


@pytest.mark.parametrize("damage", [cut_to_nothing, cut_in_half, flip_one_byte, zeroed])
def test_a_damaged_entry_is_a_counted_miss_and_a_hit_after_the_next_put(
    tier: DiskTier, said: list[str], damage: Callable[[bytes], bytes]
) -> None:
    """Cut, flipped or zeroed: never handed out, and overwritten by the put that follows the compile (B21)."""
    tier.put(KEY, PAYLOAD)
    blob = rows(tier, "SELECT value FROM Cache")[0][0]
    assert isinstance(blob, bytes)
    rows(tier, "UPDATE Cache SET value = ?", damage(blob))
    reset()
    assert tier.get(KEY) is None
    assert (stats().disk.misses, stats().disk.errors, tier.counters()["bad"]) == (1, 1, 1)
    assert tier.put(KEY, PAYLOAD)
    assert tier.get(KEY) == PAYLOAD
    assert DiskTier(tier.base).get(KEY) == PAYLOAD


DATABASE_DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda file: file.write_bytes(b""),
    "half": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "one page": lambda file: file.write_bytes(file.read_bytes()[:4096]),
    "header of noise": lambda file: file.write_bytes(os.urandom(100) + file.read_bytes()[100:]),
    "all noise": lambda file: file.write_bytes(os.urandom(file.stat().st_size)),
    "text": lambda file: file.write_bytes(b"not a database\n" * 1000),
    "zeros": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "noise in the middle": lambda file: file.write_bytes(
        file.read_bytes()[:4096] + os.urandom(8192) + file.read_bytes()[12288:]
    ),
    "gone": lambda file: file.unlink(),
    "a directory": lambda file: (file.unlink(), file.mkdir()),
    "noise in the log": lambda file: Path(f"{file}-wal").write_bytes(os.urandom(9000)),
    "noise in the index of the log": lambda file: Path(f"{file}-shm").write_bytes(os.urandom(32768)),
    "stray journal": lambda file: Path(f"{file}-journal").write_bytes(os.urandom(5000)),
}


@pytest.mark.parametrize("kind", DATABASE_DAMAGE)
def test_a_damaged_database_never_raises_and_never_gives_wrong_bytes(
    tmp_path: Path, said: list[str], kind: str
) -> None:
    """Whatever became of the file: each get is the payload or a miss, and at most two puts later it is a hit again."""
    first = DiskTier(str(tmp_path))
    for number in range(20):
        first.put(bytes([number]) * 32, PAYLOAD)
    first.close()
    DATABASE_DAMAGE[kind](Path(first.directory, "cache.db"))
    tier = DiskTier(str(tmp_path), write_wait_s=0.5, cooldown_s=0.0)
    for number in range(20):
        assert tier.get(bytes([number]) * 32) in (None, PAYLOAD)
    tier.put(KEY, PAYLOAD)
    tier.put(KEY, PAYLOAD)
    if kind != "a directory":
        assert tier.get(KEY) == PAYLOAD
        assert DiskTier(str(tmp_path)).get(KEY) == PAYLOAD


def test_a_damaged_database_is_set_aside_once_and_said_once(tier: DiskTier, said: list[str]) -> None:
    """One rename of the whole directory; the next put makes a new store."""
    tier.put(KEY, PAYLOAD)
    tier.close()
    Path(tier.directory, "cache.db").write_bytes(b"not a database\n" * 1000)
    assert tier.get(KEY) is None
    assert tier.counters()["quarantines"] == 1
    assert tier.get(KEY) is None
    assert tier.put(KEY, PAYLOAD)
    assert tier.get(KEY) == PAYLOAD
    assert sum(name.startswith("v1.bad-") for name in os.listdir(tier.base)) == 1


def test_a_store_is_set_aside_under_the_lock_of_every_opener(tier: DiskTier, said: list[str]) -> None:
    """While another process opens the store, or sets it aside, nothing is moved; the look-up is a miss all the same."""
    fcntl = pytest.importorskip("fcntl")
    tier.put(KEY, PAYLOAD)
    tier.close()
    Path(tier.directory, "cache.db").write_bytes(b"not a database\n" * 1000)
    with open(f"{tier.directory}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert tier.get(KEY) is None
    assert tier.counters()["quarantines"] == 0
    assert sorted(os.listdir(tier.base)) == ["v1", "v1.lock"]
    assert DiskTier(tier.base).get(KEY) is None
    assert len(os.listdir(tier.base)) == 2  # the lock, and the store that was set aside


def test_a_store_that_is_damaged_again_and_again_turns_the_tier_off(tier: DiskTier, said: list[str]) -> None:
    """After the third time: whatever damages it is stronger than we."""
    for number in range(5):
        assert tier.put(KEY, PAYLOAD) == (number < 3)
        tier.close()
        if number < 3:
            Path(tier.directory, "cache.db").write_bytes(b"not a database\n" * 1000)
        assert tier.get(KEY) is None
    assert tier.counters()["quarantines"] == 3
    assert tier.state().startswith("off: damaged 3 times")


def test_a_database_that_is_being_made_is_not_taken_for_damage(tier: DiskTier) -> None:
    """No table yet: another process is at it, or it is empty. A miss; moving it away would lose that process's work."""
    os.makedirs(tier.directory, 0o700)
    os.chmod(tier.base, 0o700)
    sqlite3.connect(os.path.join(tier.directory, "cache.db")).close()
    rows(tier, "CREATE TABLE Settings (key TEXT NOT NULL UNIQUE, value)")
    assert tier.get(KEY) is None
    assert tier.counters()["quarantines"] == tier.counters()["errors"] == 0
    assert tier.put(KEY, PAYLOAD)
    assert tier.get(KEY) == PAYLOAD


def test_a_store_is_set_aside_only_if_it_is_still_bad_at_the_second_look(
    tier: DiskTier, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One look that found damage, and a fresh one that does not: a miss, and nothing is moved."""
    tier.put(KEY, PAYLOAD)
    one, looks = Reader.one, list[int]()

    def first_look_fails(self: Reader, key: bytes) -> object:
        looks.append(1)
        if len(looks) == 1:
            raise sqlite3.DatabaseError("database disk image is malformed")
        return one(self, key)

    monkeypatch.setattr(Reader, "one", first_look_fails)
    assert tier.get(KEY) is None
    assert len(looks) == 2
    assert tier.counters()["quarantines"] == 0
    assert tier.get(KEY) == PAYLOAD


@pytest.mark.parametrize("operation", ["tagged", "keys", "sums"])
def test_a_listing_that_found_damage_is_repeated_before_a_store_is_set_aside(
    tier: DiskTier, said: list[str], monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """The second look is the same query as the first, whichever that was."""
    tier.put(KEY, PAYLOAD, tag="f")
    query, looks = getattr(Reader, operation), list[int]()

    def first_look_fails(self: Reader, *arguments: object) -> object:
        looks.append(1)
        if len(looks) == 1:
            raise sqlite3.DatabaseError("database disk image is malformed")
        return query(self, *arguments)

    monkeypatch.setattr(Reader, operation, first_look_fails)
    {"tagged": lambda: list(tier.entries("f")), "keys": lambda: list(tier.all()), "sums": tier.sums}[operation]()
    assert len(looks) == 2
    assert tier.counters()["quarantines"] == 0
    assert tier.get(KEY) == PAYLOAD


def test_a_store_that_somebody_else_has_just_replaced_is_not_set_aside(
    tier: DiskTier, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes find the damage; the second must not move away what the first has made anew."""
    tier.put(KEY, PAYLOAD)

    def fail(self: Reader, key: bytes) -> object:
        if not os.path.exists(f"{tier.directory}.bad-1-1"):
            os.rename(tier.directory, f"{tier.directory}.bad-1-1")
            DiskTier(tier.base).put(KEY, b"anew")
        raise sqlite3.DatabaseError("database disk image is malformed")

    with monkeypatch.context() as patch:
        patch.setattr(Reader, "one", fail)
        assert tier.get(KEY) is None
    assert tier.counters()["quarantines"] == 0
    assert tier.get(KEY) == b"anew"


@pytest.mark.parametrize("replaced", [False, True])
def test_a_removed_or_replaced_directory_is_noticed(
    tier: DiskTier, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    """Puts see it at once, gets within a second: nothing is read from, or written to, a file without a name."""
    monkeypatch.setattr(disk, "_LOOK_AGAIN_S", 0.0)
    tier.put(KEY, PAYLOAD)
    assert tier.get(KEY) == PAYLOAD
    shutil.rmtree(tier.directory)
    if replaced:
        DiskTier(tier.base).put(OTHER, b"new")
    assert tier.get(KEY) is None
    assert tier.get(OTHER) == (b"new" if replaced else None)
    assert tier.put(KEY, PAYLOAD)
    assert tier.get(KEY) == PAYLOAD
    assert DiskTier(tier.base).get(KEY) == PAYLOAD


@pytest.mark.parametrize(
    "says", ["attempt to write a readonly database", "disk I/O error", "unable to open database file"]
)
@pytest.mark.parametrize("operation", ["write", "one"])
def test_a_directory_that_is_removed_under_an_operation_is_no_error_of_the_disk(
    tier: DiskTier, monkeypatch: pytest.MonkeyPatch, says: str, operation: str
) -> None:
    """SQLite has many words for it. A put makes it anew, a get is a miss; the tier neither rests nor stops writing."""
    tier.put(KEY, PAYLOAD)
    owner = engine.Engine if operation == "write" else Reader
    before, calls = getattr(owner, operation), list[int]()

    def vanish(self: object, *arguments: object, **more: object) -> object:
        calls.append(1)
        if len(calls) == 1:
            shutil.rmtree(tier.base)
            raise sqlite3.OperationalError(says)
        return before(self, *arguments, **more)

    monkeypatch.setattr(owner, operation, vanish)
    if operation == "one":
        assert tier.get(KEY) is None
    assert tier.put(OTHER, PAYLOAD)
    assert (tier.get(OTHER), tier.get(KEY)) == (PAYLOAD, None)
    assert (tier.state(), tier.counters()["errors"]) == ("on", 0)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM Settings",
        "DROP TABLE Settings",
        "UPDATE Settings SET value = 'much' WHERE key = 'size'",
        "UPDATE Settings SET value = x'ff'",
        "UPDATE Settings SET value = CAST(x'ff' AS TEXT)",
        "INSERT INTO Settings VALUES ('sqlite_journal_mode; DROP TABLE Cache', 1)",
        "INSERT INTO Settings VALUES ('sqlite_query_only', 1)",
        "INSERT INTO Settings VALUES ('disk_evil', 1)",
        "INSERT INTO Settings VALUES ('_connection', 1)",
        "UPDATE Settings SET value = 'no such policy' WHERE key = 'eviction_policy'",
    ],
)
def test_meddled_settings_heal_at_the_next_open(tier: DiskTier, said: list[str], statement: str) -> None:
    """diskcache raises TypeError or ValueError over such rows, or obeys them; here the next opener puts them right."""
    tier.put(KEY, PAYLOAD)
    tier.close()
    rows(tier, statement)
    fresh = DiskTier(tier.base, limit_bytes=tier.limit_bytes)
    assert fresh.get(KEY) == PAYLOAD
    assert fresh.put(OTHER, PAYLOAD)
    assert fresh.get(OTHER) == PAYLOAD
    assert fresh.sums()[0] >= 1
    assert fresh.counters()["errors"] == 0


# ---- places that cannot be used --------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["a plain file", "below a plain file", "a dead link"])
def test_a_place_that_cannot_be_made_costs_one_warning(tmp_path: Path, said: list[str], place: str) -> None:
    """get misses, put says no, and the one warning names directory and setting (B14)."""
    file = tmp_path / "file"
    if place == "a dead link":
        file.symlink_to(tmp_path / "nowhere")
    else:
        file.write_text("mine")
    tier = DiskTier(str(file / "cache" if place == "below a plain file" else file))
    for _ in range(3):
        assert tier.get(KEY) is None
        assert not tier.put(KEY, PAYLOAD)
    assert tier.volume() == tier.clear() == 0
    assert tier.state() != "on"


def test_the_warning_names_directory_and_setting(tmp_path: Path) -> None:
    """Once per directory and cause in a process (B14)."""
    (tmp_path / "file").write_text("mine")
    tier = DiskTier(str(tmp_path / "file"))
    with pytest.warns(CacheWarning) as caught:
        for _ in range(3):
            tier.put(KEY, PAYLOAD)
            DiskTier(tier.base).put(KEY, PAYLOAD)
    assert len(caught) == 1
    message = str(caught[0].message)
    assert tier.directory in message
    assert "CUPLATE_CACHE_DIR or CachePolicy(directory=...)" in message


def test_a_warning_filter_of_error_does_not_reach_the_caller(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Test suites turn warnings into errors; a call must not fail over its cache. The line is in the log."""
    (tmp_path / "file").write_text("mine")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not DiskTier(str(tmp_path / "file")).put(KEY, PAYLOAD)
    assert "Kernels are compiled and kept in memory" in caplog.text


def test_an_unwritable_place_is_a_miss_and_one_warning(tmp_path: Path) -> None:
    """No permission to make the directory (B14); run by a user who is not root."""
    let_others_in(tmp_path)
    locked = tmp_path / "locked"
    locked.mkdir(0o555)
    tier = DiskTier(str(locked / "cache"))
    answer = as_nobody(lambda: [tier.get(KEY), tier.put(KEY, PAYLOAD), tier.put(KEY, PAYLOAD), tier.state()])
    assert answer.startswith("([None, False, False, 'read only'], [")
    assert "cannot be written" in answer
    assert answer.count("cuplate: the disk cache") == 1


@pytest.mark.parametrize("log", ["checkpointed", "with a log"])
def test_a_read_only_store_is_read(tmp_path: Path, log: str) -> None:
    """Root's directory, read by another user: hits, no put, no write; the log, if any, is read too or is a miss."""
    if os.getuid() != 0:
        pytest.skip("only root can make a directory that is another user's and trusted")
    let_others_in(tmp_path)
    writer = DiskTier(str(tmp_path))
    writer.put(KEY, PAYLOAD)
    os.chmod(writer.directory, 0o755)
    if log == "checkpointed":
        writer.close()
    else:
        for file in Path(writer.directory).iterdir():
            file.chmod(0o644)
    reader = DiskTier(str(tmp_path))
    answer = as_nobody(
        lambda: [reader.get(KEY) in (None, PAYLOAD), reader.get(KEY) == PAYLOAD, reader.put(OTHER, b"p")]
    )
    assert answer.startswith("([True, True, False]" if log == "checkpointed" else "([True, ")
    assert sorted(os.listdir(tmp_path)) == ["v1", "v1.lock"]


# ---- errors injected at each place -----------------------------------------------------------------------------------

NO_SPACE = [OSError(errno.ENOSPC, "No space left on device"), OSError(errno.EDQUOT, "Disk quota exceeded")]
SQLITE = [
    sqlite3.OperationalError("database or disk is full"),
    sqlite3.OperationalError("disk I/O error"),
    sqlite3.OperationalError("database is locked"),
    sqlite3.OperationalError("attempt to write a readonly database"),
    sqlite3.OperationalError("unable to open database file"),
    sqlite3.DatabaseError("database disk image is malformed"),
    sqlite3.DatabaseError("file is not a database"),
    sqlite3.IntegrityError("UNIQUE constraint failed"),
    sqlite3.InternalError("internal"),
    sqlite3.ProgrammingError("Cannot operate on a closed database."),
    sqlite3.NotSupportedError("no"),
    sqlite3.InterfaceError("no"),
    sqlite3.DataError("string or blob too big"),
    sqlite3.Warning("w"),
]
OTHERS = [MemoryError(), ValueError("v"), TypeError("t"), KeyError("k"), AssertionError(), RecursionError()]


def failing(error: Exception) -> Callable[..., object]:
    """A function that raises, however it is called."""

    def fail(*arguments: object, **keywords: object) -> object:
        raise error

    return fail


@pytest.mark.parametrize("error", [*NO_SPACE, *SQLITE, *OTHERS], ids=repr)
@pytest.mark.parametrize("place", ["get", "open for get", "put", "half-way through put", "commit", "open for put"])
def test_any_error_at_any_place_is_a_miss(
    tier: DiskTier, said: list[str], monkeypatch: pytest.MonkeyPatch, error: Exception, place: str
) -> None:
    """Each class, in the middle of a run: no exception; and what was stored before is right afterwards (B17, B18)."""
    tier = DiskTier(tier.base, write_wait_s=0.02, read_wait_s=0.02, cooldown_s=0.0)
    tier.put(KEY, PAYLOAD)
    with monkeypatch.context() as patch:
        if place == "get":
            patch.setattr(Reader, "one", failing(error))
        elif place == "open for get":
            tier.close()
            patch.setattr("cuplate.cache.reader.connect", failing(error))
        elif place == "put":
            patch.setattr(engine.Engine, "write", failing(error))
        elif place == "half-way through put":
            patch.setattr(engine.Engine, "_cull", failing(error))
        elif place == "commit":
            patch.setattr(engine.BytesDisk, "store", failing(error))
        else:
            tier.close()
            patch.setattr(engine.Engine, "__init__", failing(error))
        assert tier.get(KEY) in (None, PAYLOAD)
        assert tier.put(OTHER, PAYLOAD) in (False, True)
        assert tier.get(OTHER) in (None, PAYLOAD)
    fresh = DiskTier(tier.base)
    assert fresh.get(KEY) in ((None, PAYLOAD) if classify(error) is Fault.DAMAGED else (PAYLOAD,))
    if "get" not in place:
        assert fresh.get(OTHER) is None


def test_a_full_disk_is_not_tried_again_on_every_call(
    tier: DiskTier, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One attempt, one warning, no half entry, then no writes for a while; reads go on; then it works again (B17)."""
    tier.put(OTHER, PAYLOAD)
    tried: list[int] = []

    def full(*arguments: object, **keywords: object) -> None:
        tried.append(1)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(engine.Engine, "write", full)
        assert not any(tier.put(KEY, PAYLOAD) for _ in range(20))
    assert len(tried) == 1
    assert tier.state() == "resting"
    assert (tier.get(KEY), tier.get(OTHER)) == (None, PAYLOAD)
    assert DiskTier(tier.base).get(KEY) is None
    tier._health._write_rest_until = 0.0
    assert tier.put(KEY, PAYLOAD)
    assert tier.get(KEY) == PAYLOAD


def test_a_really_full_database_loses_the_entry_and_nothing_else(tier: DiskTier, said: list[str]) -> None:
    """SQLite's own "database or disk is full", by its page limit, in the middle of a put (B17)."""
    tier.put(KEY, PAYLOAD)
    assert tier._engine is not None
    pages = tier._engine._sql("PRAGMA page_count").fetchone()[0]
    tier._engine._sql(f"PRAGMA max_page_count = {pages + 2}").fetchall()
    assert not tier.put(OTHER, os.urandom(100_000))
    assert tier.state() == "resting"
    assert tier.get(KEY) == PAYLOAD
    fresh = DiskTier(tier.base)
    assert fresh.get(KEY) == PAYLOAD
    assert fresh.get(OTHER) is None
    assert rows(tier, "PRAGMA integrity_check") == [("ok",)]


def test_after_repeated_errors_the_tier_is_off_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five errors in a row: off for this process, and no further attempt (B18)."""
    tier = DiskTier(str(tmp_path), cooldown_s=0.0)
    tier.put(KEY, PAYLOAD)
    tried: list[int] = []

    def fail(*arguments: object) -> None:
        tried.append(1)
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(Reader, "one", fail)
    reset()
    with pytest.warns(CacheWarning) as caught:
        assert [tier.get(KEY) for _ in range(20)] == [None] * 20
    assert len(tried) == 5
    assert sum("is off for this process: 5 errors in a row" in str(w.message) for w in caught) == 1
    assert tier.state().startswith("off: ")
    assert stats().disk.misses == 20


def test_a_success_between_errors_starts_the_count_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors now and then do not turn the tier off."""
    tier = DiskTier(str(tmp_path), cooldown_s=0.0)
    tier.put(KEY, PAYLOAD)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(12):
            with monkeypatch.context() as patch:
                patch.setattr(Reader, "one", failing(sqlite3.OperationalError("disk I/O error")))
                assert tier.get(KEY) is None
            assert tier.get(KEY) == PAYLOAD


# ---- locks -----------------------------------------------------------------------------------------------------------


def test_a_writer_that_holds_the_lock_costs_a_put_its_wait_and_a_get_nothing(
    tier: DiskTier, said: list[str], bounded: None
) -> None:
    """Locked: reads go on, the put gives up and counts; after three in a row puts rest (B09)."""
    tier.put(KEY, PAYLOAD)
    holder = sqlite3.connect(os.path.join(tier.directory, "cache.db"), isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    try:
        reset()
        assert not tier.put(OTHER, PAYLOAD)
        assert tier.get(KEY) == PAYLOAD
        assert (tier.counters()["busy"], stats().disk.errors, stats().disk.hits) == (1, 1, 1)
        cold = DiskTier(tier.base, write_wait_s=0.1)
        assert not cold.put(OTHER, PAYLOAD)  # opening is bounded as well: diskcache alone waits a minute here
        assert not tier.put(OTHER, PAYLOAD)
        assert not tier.put(OTHER, PAYLOAD)
        waits = tier.counters()["busy"]
        assert not tier.put(OTHER, PAYLOAD)
        assert tier.counters()["busy"] == waits == 3
        assert tier.state() == "resting"
    finally:
        holder.execute("ROLLBACK")
        holder.close()
    assert cold.put(OTHER, PAYLOAD)
    assert tier.get(OTHER) == PAYLOAD


@pytest.mark.parametrize("moment", ["before the transaction's own code", "in the middle of it"])
def test_an_interrupt_in_a_put_keeps_no_lock(tier: DiskTier, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """Ctrl-C in a notebook goes to its user, and no other process waits for a transaction that nobody ends."""
    tier.put(KEY, PAYLOAD)

    def interrupt(self: engine.Engine, *arguments: object, **more: object) -> None:
        if moment == "in the middle of it":
            with self._transact():
                raise KeyboardInterrupt
        self._sql("BEGIN IMMEDIATE")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(engine.Engine, "write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            tier.put(OTHER, PAYLOAD)
    assert DiskTier(tier.base, write_wait_s=0.0).put(OTHER, PAYLOAD)
    assert tier.put(KEY, b"p")
    assert tier.counters()["errors"] == 0


def test_a_frozen_opener_costs_a_put_its_wait(tier: DiskTier, said: list[str], bounded: None) -> None:
    """The lock of the openers is waited for within the same deadline."""
    fcntl = pytest.importorskip("fcntl")
    os.makedirs(tier.base, 0o700)
    with open(f"{tier.directory}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not tier.put(KEY, PAYLOAD)
        assert tier.get(KEY) is None
        assert tier.counters()["busy"] == 1
    assert tier.put(KEY, PAYLOAD)


def test_a_planted_view_that_never_ends_is_cut_off(tier: DiskTier, said: list[str], bounded: None) -> None:
    """A query is bounded in time, whatever the schema says."""
    tier.put(KEY, PAYLOAD)
    tier.close()
    rows(tier, "ALTER TABLE Cache RENAME TO Old")
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    rows(
        tier,
        f"CREATE VIEW Cache AS SELECT key, raw, mode, expire_time, store_time, tag, ({endless}) AS value FROM Old",
    )
    assert tier.get(KEY) is None
    assert tier.counters()["errors"] == 1


def test_a_planted_trigger_that_never_ends_is_cut_off(tier: DiskTier, tmp_path: Path) -> None:
    """A put is bounded in time as well. In a process of its own: nothing but the tier can stop SQLite's loop."""
    tier.put(KEY, PAYLOAD)
    tier.close()
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    rows(tier, f"CREATE TRIGGER t AFTER INSERT ON Cache BEGIN UPDATE Settings SET value = ({endless}); END")
    with Children(tmp_path / "log") as children:
        children.start(lambda: (tier.put(OTHER, PAYLOAD), tier.get(KEY) == PAYLOAD, tier.state()))
        assert children.finish() == ["done (False, False, 'resting')"]
    assert DiskTier(tier.base).get(KEY) == PAYLOAD


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_no_connection_crosses_a_fork(tier: DiskTier) -> None:
    """SQLite's must not: closed before it, in parent and child; and both open it again."""
    tier.put(KEY, PAYLOAD)
    assert tier.get(KEY) == PAYLOAD
    assert tier._reader is not None and tier._engine is not None
    pid = os.fork()
    closed = tier._reader is None and tier._engine is None
    if pid == 0:
        os._exit(0 if closed and tier.get(KEY) == PAYLOAD and tier.put(OTHER, PAYLOAD) else 1)
    assert closed
    assert os.waitpid(pid, 0)[1] == 0
    assert tier.get(OTHER) == PAYLOAD


def test_a_get_does_not_wait_for_a_put_of_another_thread(tier: DiskTier, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading and writing have a lock each."""
    tier.put(KEY, PAYLOAD)
    inside, done = threading.Event(), threading.Event()
    write = engine.Engine.write

    def slow(self: object, *arguments: object, **more: object) -> None:
        inside.set()
        done.wait(10)
        write(self, *arguments, **more)

    monkeypatch.setattr(engine.Engine, "write", slow)
    thread = threading.Thread(target=tier.put, args=(OTHER, PAYLOAD))
    thread.start()
    assert inside.wait(10)
    assert tier.get(KEY) == PAYLOAD
    done.set()
    thread.join()
    assert tier.get(OTHER) == PAYLOAD


def test_threads_share_one_connection_each_way(tier: DiskTier) -> None:
    """Descriptors do not pile up with threads; diskcache alone keeps one connection per thread."""
    tier.put(KEY, PAYLOAD)
    tier.get(KEY)
    wrong: list[object] = []

    def work(number: int) -> None:
        for step in range(10):
            name = bytes([number, step]) * 16
            if not (tier.put(name, PAYLOAD) and tier.get(name) == PAYLOAD):
                wrong.append(name)

    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    threads = [threading.Thread(target=work, args=(n,)) for n in range(12)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = len(os.listdir("/proc/self/fd")) if before else 0
    # Twelve threads behind one lock: a put may run out of its 0.2 s on a slow machine, a get of 0.05 s too.
    assert len(wrong) <= sum(tier.counters()[n] for n in ("busy", "errors")), time.monotonic() - start
    assert after <= before + 2
