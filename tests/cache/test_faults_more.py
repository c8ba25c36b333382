"""The faults of a store, in numbers: kills, damage of every kind, full disks, forks, versions, a network stand-in.

Both tiers go through the same. What needs a real mount runs under ``nox -s faults``, which sets ``CUPLATE_FAULTS=full``
and runs more rounds of the others; here an injected stand-in takes its place.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cuplate.cache import CachePolicy, DiskTier, disk, disk_tier, reset, stats
from cuplate.cache.files import FilesTier
from cuplate.errors import CacheWarning
from tests.cache.bare import Tier, content, numbered
from tests.cache.children import Children

pytest.importorskip("cuplate.cache.engine")  # imported before the forks below: they start with it loaded
if not hasattr(os, "fork"):
    pytest.skip("needs fork", allow_module_level=True)

FULL = os.environ.get("CUPLATE_FAULTS") == "full"
KEY, OTHER = b"k" * 32, b"o" * 32
PAYLOAD = os.urandom(6000)


@pytest.fixture(params=[DiskTier, FilesTier], ids=["diskcache", "files"])
def make(request: pytest.FixtureRequest) -> type[Tier]:
    """Each of the two tiers."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Warnings of the cache are not the matter here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheWarning)
        yield


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    """Nobody is left behind."""
    with Children(tmp_path / "log") as running:
        yield running


# ---- killed, and forked ----------------------------------------------------------------------------------------------


def bare(fault: str, make: type[Tier], folder: Path) -> dict[str, Any]:
    """The answer of `tests.cache.bare`, whose processes import the store alone."""
    kind = "diskcache" if make is DiskTier else "files"
    command = [sys.executable, "-m", "tests.cache.bare", fault, kind, str(folder)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer["imported"] == []
    return answer


def test_three_hundred_writers_killed_in_a_put(tmp_path: Path, make: type[Tier]) -> None:
    """Nothing acknowledged is lost or torn, no lock stays, and the files are near the sum of the entries (B28)."""
    answer = bare("kills", make, tmp_path)
    assert answer["acknowledged"] > 75
    assert (answer["put"], answer["lost"], answer["wrong"], answer["troubles"]) == (True, [], 0, {})
    assert answer["entries"] > answer["acknowledged"]
    assert answer["volume"] < answer["entry_bytes"] * 1.5 + 5_000_000  # the log is at most some megabytes
    half_written = 300 * 8192 if make is FilesTier else 0  # removed after an hour: they might be under way
    assert answer["pruned_volume"] < answer["entry_bytes"] * 1.5 + 1_000_000 + half_written
    assert answer["removed_entries"] == 0
    assert answer["beside"] == (["v1", "v1.lock"] if make is DiskTier else ["v1.files"])


def test_a_hundred_and_fifty_forks_under_writes(tmp_path: Path, make: type[Tier]) -> None:
    """Bare diskcache hangs most of such children; here each reads and writes, and so does the parent."""
    answer = bare("forks", make, tmp_path)
    assert (answer["fine"], answer["said"]) == (150, 150)
    assert answer["troubles"].keys() <= {"busy"}  # of the parent's threads, while it forks


# ---- damaged ---------------------------------------------------------------------------------------------------------


def patch(offset: float, data: bytes) -> Callable[[Path], object]:
    """Overwrite some bytes; the offset as a share of the file where it is below 1."""

    def damage(file: Path) -> None:
        before = bytearray(file.read_bytes())
        at = int(offset * len(before)) if offset < 1 else int(offset)
        before[at : at + len(data)] = data
        file.write_bytes(before)

    return damage


KINDS: dict[str, Callable[[Path], object]] = {
    "empty": lambda file: file.write_bytes(b""),
    "one byte": lambda file: file.write_bytes(file.read_bytes()[:1]),
    "header only": lambda file: file.write_bytes(file.read_bytes()[:100]),
    "half": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "last byte gone": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "noise after the end": lambda file: file.write_bytes(file.read_bytes() + os.urandom(5000)),
    "zeros": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "noise": lambda file: file.write_bytes(os.urandom(file.stat().st_size)),
    "text": lambda file: file.write_bytes(b"not what it was\n" * 1000),
    "noise in the header": patch(0.0, os.urandom(100)),
    "size of a page": patch(16, b"\x02\x00"),
    "version of the format": patch(18, b"\x09\x09"),
    "number of pages": patch(28, b"\xff\xff\xff\x00"),
    "list of free pages": patch(32, b"\x00\x00\x00\x05\x00\x00\x00\x63"),
    "format of the schema": patch(44, b"\x00\x00\x00\x09"),
    "encoding of text": patch(56, b"\x00\x00\x00\x03"),
    "root of the schema": patch(100, os.urandom(200)),
    "zeros at a quarter": patch(0.25, bytes(8192)),
    "noise at a third": patch(0.33, os.urandom(9000)),
    "noise at a half": patch(0.5, os.urandom(20000)),
    "noise near the end": patch(0.95, os.urandom(500)),
    "a flip at a tenth": patch(0.1, b"\xff"),
    "gone": lambda file: file.unlink(),
}
FILES = ("cache.db", "cache.db-wal", "cache.db-shm")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", KINDS)
def test_sixty_nine_kinds_of_damage_to_a_killed_writers_files(tmp_path: Path, name: str, kind: str) -> None:
    """Database, log and index as a crash leaves them, then damaged: the payload or a counted miss, then a store again.

    Never an exception, never wrong bytes.
    """
    writer = DiskTier(str(tmp_path / "live"))
    for number in range(12):
        writer.put(numbered(number), content(numbered(number)))
    shutil.copytree(tmp_path / "live", tmp_path / "cache")  # with its log: as if killed
    writer.close()
    KINDS[kind](tmp_path / "cache" / "v1" / name)
    tier = DiskTier(str(tmp_path / "cache"), write_wait_s=0.5, cooldown_s=0.0)
    reset()
    lost = 0
    for number in range(12):
        found = tier.get(numbered(number))
        assert found in (None, content(numbered(number)))
        lost += found is None
    assert (stats().disk.hits, stats().disk.misses) == (12 - lost, lost)
    list(tier.entries("")), tier.sums(), tier.volume()
    tier.put(KEY, PAYLOAD)
    assert tier.put(KEY, PAYLOAD)
    assert tier.get(KEY) == PAYLOAD
    assert DiskTier(str(tmp_path / "cache")).get(KEY) == PAYLOAD


def test_that_is_at_least_sixty() -> None:
    """As many as the list promises; the tier of files has 28 more, in test_files.py."""
    assert len(KINDS) * len(FILES) >= 60


# ---- no room, no rights ----------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MB, where this user may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=3m,mode=700", "tmpfs", str(place)]
    if not FULL or os.getuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounts a file system: nox -s faults, as root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_disk_that_is_really_full(small_disk: Path, make: type[Tier]) -> None:
    """What fits is right, what does not is a miss, nothing raises, reads go on, and it works again with room (B17)."""
    tier = make(str(small_disk / "cache"), cooldown_s=0.0)
    stored = [n for n in range(600) if tier.put(numbered(n), content(numbered(n)))]
    assert 10 < len(stored) < 600
    assert all(tier.get(numbered(n)) in (None, content(numbered(n))) for n in range(600))
    fresh = make(str(small_disk / "cache"), cooldown_s=0.0)
    assert sum(fresh.get(numbered(n)) == content(numbered(n)) for n in stored) >= len(stored) - 1
    fresh.clear(), fresh.prune(), fresh.close(), tier.close()  # an open file keeps its room
    shutil.rmtree(small_disk / "cache")
    again = make(str(small_disk / "cache"))
    assert again.put(KEY, PAYLOAD)
    assert again.get(KEY) == PAYLOAD


def test_a_disk_that_is_full_before_the_first_put(small_disk: Path, make: type[Tier]) -> None:
    """Not even a directory can be made."""
    with open(small_disk / "filler", "wb") as filler:
        try:
            while True:
                filler.write(bytes(65536))
                filler.flush()
        except OSError:
            pass
    tier = make(str(small_disk / "cache"))
    assert not tier.put(KEY, PAYLOAD)
    assert tier.get(KEY) is None
    assert tier.flights is not None
    assert tier.flights.run(KEY, lambda: tier.get(KEY, again=True), lambda: b"compiled") == b"compiled"


def test_a_disk_that_turns_read_only(small_disk: Path, make: type[Tier]) -> None:
    """As after an I/O error: reads go on, and nothing raises."""
    first = make(str(small_disk / "cache"))
    first.put(KEY, PAYLOAD)
    first.close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    tier = make(str(small_disk / "cache"))
    assert tier.get(KEY) == PAYLOAD
    assert not tier.put(OTHER, PAYLOAD)
    assert tier.get(KEY) == PAYLOAD
    assert tier.state() == "read only"
    assert tier.flights is not None
    assert tier.flights.run(OTHER, lambda: tier.get(OTHER, again=True), lambda: b"compiled") == b"compiled"


def test_a_read_only_directory_of_files_is_read(tmp_path: Path) -> None:
    """By a user who is not root: hits, one refused put, no lock around compiles, no exception."""
    base = tmp_path / "cache"
    FilesTier(str(base)).put(KEY, PAYLOAD)
    for folder, _, names in os.walk(base):
        os.chmod(folder, 0o555)
        for name in names:
            os.chmod(os.path.join(folder, name), 0o444)
    for parent in tmp_path.parents:
        if parent.stat().st_uid == os.getuid() and str(parent).count("/") > 1:
            parent.chmod(parent.stat().st_mode | 0o011)
    tmp_path.chmod(0o755)
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        if os.getuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        tier = FilesTier(str(base))
        assert tier.flights is not None
        answer = (
            tier.get(KEY) == PAYLOAD,
            tier.put(OTHER, PAYLOAD),
            tier.state(),
            tier.flights.run(OTHER, lambda: tier.get(OTHER, again=True), lambda: 5),
        )
        os.write(send, repr(answer).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(receive, 1000).decode() == "(True, False, 'read only', 5)"


# ---- frozen processes ------------------------------------------------------------------------------------------------


def test_a_frozen_writer_costs_a_put_its_wait_and_a_get_nothing(
    tmp_path: Path, children: Children, make: type[Tier]
) -> None:
    """Stopped in the middle of a put, five times: others read on, and store what they can."""
    base = str(tmp_path / "cache")
    make(base).put(KEY, PAYLOAD)

    begun = tmp_path / "begun"

    def write() -> None:
        tier = make(base, write_wait_s=20.0)
        for number in range(1 << 20):
            tier.put(numbered(number), content(numbered(number)))
            begun.touch()

    for _ in range(5):
        begun.unlink(missing_ok=True)
        pid = children.start(write)
        while not begun.exists():  # frozen while it opens the store it could hold off readers, too
            time.sleep(0.005)
        time.sleep(0.05)
        os.kill(pid, signal.SIGSTOP)
        tier = make(base, write_wait_s=0.3)
        assert tier.get(KEY) == PAYLOAD
        tier.put(OTHER, PAYLOAD)
        assert tier.get(OTHER) in (None, PAYLOAD)
        children.kill(pid)
        assert make(base, write_wait_s=5.0).put(OTHER, PAYLOAD)


# ---- two versions ----------------------------------------------------------------------------------------------------


def test_two_versions_share_a_directory_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: type[Tier]
) -> None:
    """Neither reads, evicts, prunes, clears or sets aside what is the other's."""
    module = disk if make is DiskTier else __import__("cuplate.cache.files", fromlist=["files"])
    name = "FORMAT" if make is DiskTier else "FOLDER"
    old = make(str(tmp_path))
    old.put(KEY, PAYLOAD)
    old.close()
    files = {p: p.read_bytes() for p in Path(old.directory).rglob("*") if p.is_file()}
    with monkeypatch.context() as context:
        context.setattr(module, name, getattr(module, name).replace("v1", "v2"))
        new = make(str(tmp_path), limit_bytes=100_000)
    assert new.directory != old.directory
    assert new.get(KEY) is None
    for number in range(40):
        new.put(numbered(number), PAYLOAD)
    new.prune(), new.clear()
    if make is DiskTier:
        new.close()
        Path(new.directory, "cache.db").write_bytes(b"not a database" * 1000)
        assert new.get(KEY) is None
        assert new.counters()["quarantines"] == 1
    assert {p: p.read_bytes() for p in Path(old.directory).rglob("*") if p.is_file()} == files
    assert old.get(KEY) == PAYLOAD


# ---- a network file system -------------------------------------------------------------------------------------------


class Server:
    """What a client of a file server may see: sizes and contents of before, errors at any call, late renames."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
        self.random = random.Random(seed)
        self.faults = 0
        for name in ("open", "read", "fsync", "rename", "unlink", "mkdir", "write"):
            monkeypatch.setattr(os, name, self._shaken(name, getattr(os, name)))
        monkeypatch.setattr(os, "fstat", self._stale(os.fstat))

    def _shaken(self, name: str, call: Callable[..., object]) -> Callable[..., object]:
        def shaken(*arguments: object, **keywords: object) -> object:
            if self.random.random() < 0.02:
                self.faults += 1
                number = self.random.choice([errno.ESTALE, errno.EBUSY, errno.EIO, errno.ENOENT, errno.ETIMEDOUT])
                raise OSError(number, os.strerror(number))
            answer = call(*arguments, **keywords)
            if name == "read" and isinstance(answer, bytes) and answer and self.random.random() < 0.05:
                self.faults += 1
                return self.random.choice([answer[: len(answer) // 2], bytes(len(answer)), answer[:-1] + b"\0"])
            return answer

        return shaken

    def _stale(self, call: Callable[[int], os.stat_result]) -> Callable[[int], os.stat_result]:
        def stale(descriptor: int) -> os.stat_result:
            status = call(descriptor)
            if self.random.random() < 0.05:
                self.faults += 1
                return os.stat_result([*status[:6], max(0, status.st_size - 7), *status[7:]])
            return status

        return stale


@pytest.mark.parametrize("seed", range(20 if FULL else 6))
def test_a_shaky_file_server_costs_misses_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Errors, short reads, sizes and bytes of before, at any call: never wrong bytes, never an exception (B18)."""
    wanted = {numbered(n): os.urandom(3000) for n in range(20)}
    tier = FilesTier(str(tmp_path / "cache"), cooldown_s=0.0, limit_bytes=50_000)
    reset()
    with monkeypatch.context() as context:
        server = Server(context, seed)
        for step in range(400):
            key = server.random.choice(list(wanted))
            if step % 3:
                assert tier.get(key) in (None, wanted[key])
            else:
                tier.put(key, wanted[key])
            if step % 50 == 0:
                tier = FilesTier(str(tmp_path / "cache"), cooldown_s=0.0, limit_bytes=50_000)
                tier.prune(), list(tier.entries("")), tier.sums()
        assert server.faults > 50
    assert stats().disk.hits + stats().disk.misses == sum(bool(step % 3) for step in range(400))
    assert stats().disk.hits > 0
    fresh = FilesTier(str(tmp_path / "cache"), limit_bytes=50_000)
    for key, payload in wanted.items():
        assert fresh.get(key) in (None, payload)
        assert fresh.put(key, payload)
        assert fresh.sums()[1] <= 50_000


def test_two_mounts_of_one_directory(tmp_path: Path, children: Children) -> None:
    """Two file systems in user space over the same files, with caches of their own: only misses, never wrong bytes."""
    if not FULL or os.getuid() != 0 or shutil.which("bindfs") is None or not os.path.exists("/dev/fuse"):
        pytest.skip("mounts two file systems: nox -s faults, as root, with bindfs")
    real, mounts = tmp_path / "real", [tmp_path / "one", tmp_path / "two"]
    real.mkdir(0o700)
    for mount in mounts:
        mount.mkdir()
        subprocess.run(["bindfs", "-o", "attr_timeout=3,entry_timeout=3", str(real), str(mount)], check=True)
    try:
        assert isinstance(disk_tier(CachePolicy(directory=mounts[0], engine="diskcache")), FilesTier)
        for seed in range(8):
            children.start(lambda seed=seed: share(str(mounts[seed % 2] / "cache"), seed))
        said = children.finish()
    finally:
        for mount in mounts:
            subprocess.run(["umount", "-l", str(mount)], check=True)
    assert [line for line in said if line != "done 0"] == []


def share(base: str, seed: int) -> int:
    """Read and write at random for five seconds; the number of wrong values."""
    rng, wrong = random.Random(seed), 0
    tier = FilesTier(base, cooldown_s=0.0, limit_bytes=1_000_000)
    end = time.monotonic() + 5.0
    while time.monotonic() < end:
        key = numbered(rng.randrange(50))
        if rng.random() < 0.3:
            tier.put(key, content(key))
        else:
            wrong += tier.get(key) not in (None, content(key))
    return wrong


def test_sqlite_is_what_must_not_run_there(tmp_path: Path) -> None:
    """So that the choice above has a reason: the disk tier does keep a database with shared memory."""
    tier = DiskTier(str(tmp_path))
    tier.put(KEY, PAYLOAD)
    assert os.path.exists(os.path.join(tier.directory, "cache.db-shm"))
    with closing(sqlite3.connect(os.path.join(tier.directory, "cache.db"))) as database:
        mode = database.execute("PRAGMA journal_mode").fetchone()
    assert mode == ("wal",)
