"""The tier of plain files: the promises of the disk tier, with no database."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cuplate.cache import files, reset, stats, touch
from cuplate.cache.files import FOLDER, FilesTier
from cuplate.cache.folder import Folder
from cuplate.errors import CacheError, CacheWarning
from cuplate.seal import seal

KEY, OTHER = b"k" * 32, b"o" * 32
PAYLOAD = os.urandom(6000)


@pytest.fixture
def tier(tmp_path: Path) -> FilesTier:
    """An empty tier."""
    return FilesTier(str(tmp_path / "cache"))


@pytest.fixture
def quiet() -> Iterator[None]:
    """Warnings of the cache are not the matter."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheWarning)
        yield


def path_of(tier: FilesTier, key: bytes) -> Path:
    """The file of an entry."""
    return Path(tier.directory, key.hex()[:2], key.hex())


def numbered(number: int) -> bytes:
    """A key; its first byte, and so its folder, varies."""
    return number.to_bytes(32, "little")


# ---- what every tier can do ------------------------------------------------------------------------------------------


def test_what_was_put_is_found_by_another_process(tier: FilesTier) -> None:
    """And nothing else; counts are those of the disk tier."""
    reset()
    assert tier.get(KEY) is None
    assert tier.put(KEY, PAYLOAD, tag="f")
    script = f"from cuplate.cache.files import FilesTier; print(FilesTier({tier.base!r}).get({KEY!r}) == {PAYLOAD!r})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True\n", "")
    assert tier.get(KEY) == PAYLOAD
    assert (stats().disk.hits, stats().disk.misses, stats().disk.puts) == (1, 1, 1)
    assert (stats().disk.read_bytes, stats().disk.written_bytes) == (6000, 6000)


def test_entries_come_newest_first_by_tag(tier: FilesTier) -> None:
    """Bad ones are passed over."""
    for number in range(6):
        tier.put(numbered(number), b"%d" % number, tag="f" if number % 2 else "g")
    path_of(tier, numbered(3)).write_bytes(b"")
    assert [payload for _, payload in tier.entries("f")] == [b"5", b"1"]
    assert [payload for _, payload in tier.entries("g", limit=1)] == [b"4"]
    assert sorted(tier.all())[0][1:] == ("g", b"0")


def test_delete_clear_and_sums(tier: FilesTier) -> None:
    """Nothing is left behind by a clear but folders."""
    assert (tier.delete(KEY), tier.clear(), tier.sums(), tier.volume()) == (False, 0, (0, 0), 0)
    for number in range(5):
        tier.put(numbered(number), PAYLOAD)
    entries, size = tier.sums()
    assert entries == 5
    assert 5 * 6000 < size < 5 * 6200
    assert tier.volume() >= size
    assert tier.delete(numbered(0))
    assert not tier.delete(numbered(0))
    assert tier.clear() == 4
    assert tier.sums() == (0, 0)
    assert tier.volume() == 0


def test_everything_is_private(tier: FilesTier) -> None:
    """Folders 0700, files 0600, whatever the umask."""
    before = os.umask(0)
    try:
        tier.put(KEY, PAYLOAD)
    finally:
        os.umask(before)
    for folder, _, names in os.walk(tier.base):
        assert os.stat(folder).st_mode & 0o777 == 0o700
        assert all(os.stat(os.path.join(folder, name)).st_mode & 0o777 == 0o600 for name in names)


# ---- the limit -------------------------------------------------------------------------------------------------------


def test_after_every_put_the_files_are_within_the_limit(tmp_path: Path) -> None:
    """The oldest go, no more than needed, and the one just stored never."""
    tier = FilesTier(str(tmp_path), limit_bytes=100_000, eviction="least-recently-stored")
    reset()
    for number in range(40):
        tier.get(numbered(0))
        assert tier.put(numbered(number), PAYLOAD)
        assert tier.sums()[1] <= 100_000
        assert tier.get(numbered(number)) == PAYLOAD
    kept = [number for number in range(40) if tier.get(numbered(number)) is not None]
    assert kept == list(range(24, 40))
    assert stats().disk.evictions == tier.counters()["evictions"] == 24


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    """Hits are noted at the next put, and by the next process."""
    tier = FilesTier(str(tmp_path), limit_bytes=100_000)
    for number in range(16):
        tier.put(numbered(number), PAYLOAD)
    tier.get(numbered(0))
    tier.put(numbered(16), PAYLOAD)
    assert (tier.get(numbered(0)), tier.get(numbered(1))) == (PAYLOAD, None)
    tier.get(numbered(2))
    tier.close()
    later = FilesTier(str(tmp_path), limit_bytes=100_000)
    later.put(numbered(17), PAYLOAD)
    assert (later.get(numbered(2)), later.get(numbered(3))) == (PAYLOAD, None)


def test_the_least_frequently_used_goes_first(tmp_path: Path) -> None:
    """Numbers of hits are kept in the files."""
    tier = FilesTier(str(tmp_path), limit_bytes=100_000, eviction="least-frequently-used")
    for number in range(16):
        tier.put(numbered(number), PAYLOAD)
        for _ in range(1 + (number != 7)):
            tier.get(numbered(number))
    tier.close()
    later = FilesTier(str(tmp_path), limit_bytes=100_000, eviction="least-frequently-used")
    later.put(numbered(16), PAYLOAD)
    assert [number for number in range(17) if later.get(numbered(number)) is None] == [7]


def test_with_eviction_none_a_full_store_takes_no_more(tmp_path: Path) -> None:
    """Nothing goes; what is there can be stored again."""
    tier = FilesTier(str(tmp_path), limit_bytes=100_000, eviction="none")
    stored = [number for number in range(30) if tier.put(numbered(number), PAYLOAD)]
    assert stored == list(range(len(stored)))
    assert all(tier.get(numbered(number)) == PAYLOAD for number in stored)
    assert tier.put(numbered(0), PAYLOAD)
    assert tier.counters()["refused_full"] == 30 - len(stored)


def test_two_processes_hold_one_limit(tmp_path: Path) -> None:
    """Each sees what the other has stored, by the time of the folders' last change."""
    one, two = (FilesTier(str(tmp_path), limit_bytes=100_000) for _ in range(2))
    for number in range(40):
        assert (one if number % 2 else two).put(numbered(number), PAYLOAD)
        assert one.sums()[1] <= 100_000
    assert one.counters()["evictions"] + two.counters()["evictions"] == 24


def test_what_another_process_has_used_meanwhile_stays(tmp_path: Path) -> None:
    """A use changes the file and not its folder: before a file goes, it is asked itself."""
    one, two = (FilesTier(str(tmp_path), limit_bytes=100_000) for _ in range(2))
    for number in range(16):
        one.put(numbered(number), PAYLOAD)
    two.get(numbered(0))
    two.close()
    one.put(numbered(16), PAYLOAD)
    assert (one.get(numbered(0)), one.get(numbered(1))) == (PAYLOAD, None)


def test_what_another_process_has_removed_counts_no_more(tmp_path: Path) -> None:
    """Nor does an entry of one's own that was gone before its folder was read again: it would evict others."""
    one, two = (FilesTier(str(tmp_path), limit_bytes=100_000) for _ in range(2))
    one.put(KEY, PAYLOAD)
    two.delete(KEY)
    for number in range(16):
        one.put(numbered(number), PAYLOAD)
    assert one.counters()["evictions"] == 0
    assert one._list.total == one.sums()[1]


def test_a_folder_that_changes_twice_in_one_tick_of_its_clock_is_read_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the clock of its file server: here it stands still."""
    parts = Folder.parts
    monkeypatch.setattr(files, "_SETTLED_S", 1000.0)
    monkeypatch.setattr(Folder, "parts", lambda self: dict.fromkeys(parts(self), 5))
    one, two = (FilesTier(str(tmp_path), limit_bytes=100_000) for _ in range(2))
    for number in range(40):
        assert (one if number % 2 else two).put(number.to_bytes(32, "big"), PAYLOAD)  # one folder for all
        assert one.sums()[1] <= 100_000


def test_a_folder_removed_under_a_put_is_made_again(tier: FilesTier, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once; the entry is stored."""
    write, calls = Folder.write, list[int]()

    def vanish(self: Folder, *arguments: object, **keywords: object) -> object:
        calls.append(1)
        if len(calls) == 1:
            shutil.rmtree(self.path)
        return write(self, *arguments, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(Folder, "write", vanish)
    assert tier.put(KEY, PAYLOAD)
    assert len(calls) == 2
    assert (tier.get(KEY), tier.counters()["errors"]) == (PAYLOAD, 0)


def test_an_entry_above_an_eighth_of_the_limit_is_not_stored_and_evicts_nobody(tmp_path: Path) -> None:
    """Said once."""
    tier = FilesTier(str(tmp_path), limit_bytes=100_000)
    tier.put(KEY, PAYLOAD)
    with pytest.warns(CacheWarning, match="above an eighth"):
        assert not tier.put(OTHER, bytes(13_000))
    assert not tier.put(OTHER, bytes(13_000))
    assert tier.get(KEY) == PAYLOAD
    assert tier.counters()["refused_large"] == 2


def test_after_the_clock_was_set_back_new_entries_are_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old files look a year newer; among themselves they keep their order."""
    tier = FilesTier(str(tmp_path), limit_bytes=100_000)
    for number in range(16):
        tier.put(numbered(number), PAYLOAD)
    now, now_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: now() - 3e7)
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() - 30_000_000_000_000_000)
    later = FilesTier(str(tmp_path), limit_bytes=100_000)
    for number in range(16, 26):
        assert later.put(numbered(number), PAYLOAD)
    assert [number for number in range(26) if later.get(numbered(number)) is None] == list(range(10))


@pytest.mark.parametrize("back_s", [1.0, 30.0, 3e7])
def test_a_clock_that_is_set_back_under_a_running_process_changes_no_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, back_s: float
) -> None:
    """By less or more than two nodes differ: what was stored or used last is the last to go, to the entry."""
    tier = FilesTier(str(tmp_path), limit_bytes=100_000)
    for number in range(16):
        tier.put(numbered(number), PAYLOAD)
    now, now_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: now() - back_s)
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() - int(back_s * 1e9))
    tier.get(numbered(0))
    for number in range(16, 26):
        assert tier.put(numbered(number), PAYLOAD)
    assert [number for number in range(26) if tier.get(numbered(number)) is None] == list(range(1, 11))


def test_a_clock_set_back_gives_no_entry_a_longer_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was stored in the future is as old as the put that finds it."""
    tier = FilesTier(str(tmp_path), time_to_live_s=100.0)
    tier.put(KEY, PAYLOAD)
    now, back_s = time.time_ns, 3e7
    monkeypatch.setattr(time, "time_ns", lambda: now() - int(back_s * 1e9))
    tier.put(OTHER, PAYLOAD)
    assert tier.get(KEY) == PAYLOAD
    back_s -= 101
    assert (tier.get(KEY), tier.get(OTHER)) == (None, None)


def test_expired_entries_make_room_where_nothing_is_evicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And before anything else goes: they are told of like any other eviction."""
    tier = FilesTier(str(tmp_path), limit_bytes=100_000, eviction="none", time_to_live_s=100.0)
    stored = [number for number in range(20) if tier.put(numbered(number), PAYLOAD)]
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + 101 * 10**9)
    tier._expire_at = 0.0  # it has looked less than a minute ago
    assert tier.put(KEY, PAYLOAD)
    assert [name for name, _, _ in tier.all()] == [KEY]
    assert tier.counters()["evictions"] == len(stored)


def test_a_full_store_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As the disk tier does: entries are not dropped without a sign (B25)."""
    caplog.set_level("INFO", "cuplate")
    tier = FilesTier(str(tmp_path), limit_bytes=100_000)
    for number in range(20):
        tier.put(numbered(number), PAYLOAD)
    assert len([m for m in caplog.messages if "is full (100000 bytes)" in m and "CUPLATE_DISK_BYTES" in m]) == 1
    assert len(caplog.messages) == 1


def test_of_very_many_uses_the_earliest_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the latest: those decide what stays."""
    monkeypatch.setattr(touch, "MOST_TOUCHES", 4)
    tier = FilesTier(str(tmp_path), limit_bytes=100_000)
    for number in range(16):
        tier.put(numbered(number), PAYLOAD)
    for number in range(8):
        tier.get(numbered(number))
    tier.put(numbered(16), PAYLOAD)
    for number in range(17, 24):
        tier.put(numbered(number), PAYLOAD)
    assert [number for number in range(16) if tier.get(numbered(number)) is not None] == [4, 5, 6, 7, 12, 13, 14, 15]


def test_an_old_entry_counts_as_absent(tmp_path: Path) -> None:
    """And is removed by prune."""
    FilesTier(str(tmp_path)).put(KEY, PAYLOAD)
    assert FilesTier(str(tmp_path), time_to_live_s=1000.0).get(KEY) == PAYLOAD
    time.sleep(0.02)
    tier = FilesTier(str(tmp_path), time_to_live_s=0.01)
    assert tier.get(KEY) is None
    assert list(tier.all()) == []
    assert tier.prune().removed_entries == 1
    assert FilesTier(str(tmp_path)).get(KEY) is None


def test_prune_bounds_what_the_files_take(tmp_path: Path) -> None:
    """Blocks, not bytes: small entries take more of the disk than their sizes say; orphans go too."""
    big = FilesTier(str(tmp_path), limit_bytes=1 << 30)
    big.put(KEY, bytes(100))
    for number in range(400):
        big._folder.write(numbered(number), "", seal(numbered(number), bytes(100)), sync=False)
    orphan = Path(big.directory, "new", "left")
    orphan.write_bytes(bytes(500_000))
    os.utime(orphan, (0, 0))
    small = FilesTier(str(tmp_path), limit_bytes=400_000)
    pruned = small.prune()
    assert pruned.within
    assert pruned.file_bytes <= 400_000 * 1.1 + 1_000_000
    assert pruned.removed_orphans == 1
    assert not orphan.exists()


# ---- damage ----------------------------------------------------------------------------------------------------------

DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda file: file.write_bytes(b""),
    "one byte": lambda file: file.write_bytes(b"C"),
    "cut in the head": lambda file: file.write_bytes(file.read_bytes()[:10]),
    "cut in the key": lambda file: file.write_bytes(file.read_bytes()[:30]),
    "cut in the seal": lambda file: file.write_bytes(file.read_bytes()[:80]),
    "cut in half": lambda file: file.write_bytes(file.read_bytes()[:3000]),
    "last byte gone": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "a byte more": lambda file: file.write_bytes(file.read_bytes() + b"x"),
    "zeros": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "zeros at the end": lambda file: file.write_bytes(file.read_bytes()[:4096] + bytes(file.stat().st_size - 4096)),
    "noise": lambda file: file.write_bytes(os.urandom(file.stat().st_size)),
    "another magic": lambda file: file.write_bytes(b"CUPFILE\x02" + file.read_bytes()[8:]),
    "length of the key": lambda file: file.write_bytes(file.read_bytes()[:12] + b"\xff\xff" + file.read_bytes()[14:]),
    "length of the tag": lambda file: file.write_bytes(file.read_bytes()[:14] + b"\x05\x00" + file.read_bytes()[16:]),
    "flip in the key": lambda file: flip(file, 26),
    "flip in the seal": lambda file: flip(file, 70),
    "flip in the payload": lambda file: flip(file, 3000),
    "flip of the last byte": lambda file: flip(file, -1),
    "huge": lambda file: os.truncate(file, 1 << 40),
    "gone": lambda file: file.unlink(),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
    "a link to nowhere": lambda file: (file.unlink(), file.symlink_to("/nowhere")),
    "a link to itself": lambda file: (file.unlink(), file.symlink_to(file)),
    "a pipe": lambda file: (file.unlink(), os.mkfifo(file)),
    "its folder gone": lambda file: shutil.rmtree(file.parent),
    "its folder a file": lambda file: (shutil.rmtree(file.parent), file.parent.write_text("x")),
    "its folder a link": lambda file: file.parent.symlink_to(file.parent.rename(f"{file.parent}-")),
    "the store gone": lambda file: shutil.rmtree(file.parent.parent),
}
LASTING = ("a folder", "its folder a file", "its folder a link")


def flip(file: Path, at: int) -> None:
    """One bit."""
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_a_counted_miss_and_the_next_put_heals_it(tier: FilesTier, quiet: None, kind: str) -> None:
    """Never wrong bytes, never an exception, for this and for every other operation (B21)."""
    tier.put(KEY, PAYLOAD, tag="f")
    tier.put(OTHER, PAYLOAD, tag="f")
    DAMAGE[kind](path_of(tier, KEY))
    fresh = FilesTier(tier.base)
    reset()
    assert fresh.get(KEY) is None
    assert stats().disk.misses == 1
    assert fresh.get(OTHER) == (PAYLOAD if kind != "the store gone" else None)
    assert KEY not in dict(fresh.entries("f"))
    fresh.sums(), fresh.volume(), fresh.prune()
    healed = fresh.put(KEY, PAYLOAD)
    assert healed == (kind not in LASTING)
    assert FilesTier(tier.base).get(KEY) == (PAYLOAD if healed else None)
    fresh.delete(KEY), fresh.clear()


def test_swapped_and_forged_entries_are_misses(tmp_path: Path, quiet: None) -> None:
    """The seal binds bytes to key, and to the secret."""
    tier = FilesTier(str(tmp_path), secret=b"s")
    tier.put(KEY, PAYLOAD)
    tier.put(OTHER, b"other")
    one, two = path_of(tier, KEY), path_of(tier, OTHER)
    data = one.read_bytes(), two.read_bytes()
    one.write_bytes(data[1])
    two.write_bytes(data[0])
    assert (tier.get(KEY), tier.get(OTHER)) == (None, None)
    tier._folder.write(KEY, "", seal(KEY, b"forged", b"guess"))
    assert tier.get(KEY) is None
    assert tier.counters()["bad"] == 3


@pytest.mark.parametrize("what", ["the entry", "its folder", "the folder of new files"])
def test_a_planted_link_leads_nobody_outside(tier: FilesTier, tmp_path: Path, quiet: None, what: str) -> None:
    """Nothing outside is read, written or removed, evictions included."""
    tier = FilesTier(str(tmp_path / "cache"), secret=b"s", limit_bytes=100_000)
    tier.put(KEY, PAYLOAD)
    outside = tmp_path / "outside"
    outside.mkdir()
    mine = outside / KEY.hex()
    shutil.copy(path_of(tier, KEY), mine)
    before = mine.read_bytes()
    place = {
        "the entry": path_of(tier, KEY),
        "its folder": path_of(tier, KEY).parent,
        "the folder of new files": Path(tier.directory, "new"),
    }[what]
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    place.symlink_to(mine if what == "the entry" else outside)
    for _ in range(2):
        assert tier.get(KEY) is None or what == "the folder of new files"
        for number in range(40):
            tier.put(numbered(number), PAYLOAD)
        tier.put(KEY, PAYLOAD)
        tier.close(), tier.prune(), tier.delete(KEY), tier.clear()
        assert os.listdir(outside) == [KEY.hex()]
        assert mine.read_bytes() == before


@pytest.mark.parametrize("kind", ["group", "others", "link"])
@pytest.mark.parametrize("level", ["base", "store"])
def test_a_directory_that_others_can_write_is_refused_without_a_secret(tmp_path: Path, kind: str, level: str) -> None:
    """As for the disk tier."""
    base = tmp_path / "cache"
    FilesTier(str(base), secret=b"s").put(KEY, PAYLOAD)
    target = base if level == "base" else base / FOLDER
    if kind == "link":
        target.rename(tmp_path / "elsewhere")
        target.symlink_to(tmp_path / "elsewhere")
    else:
        target.chmod(0o770 if kind == "group" else 0o707)
    tier = FilesTier(str(base))
    with pytest.warns(CacheWarning, match="no secret") as caught:
        assert tier.get(KEY) is None
        assert not tier.put(KEY, PAYLOAD)
    assert len(caught) == 1
    assert tier.state().startswith("off: ")
    keyed = FilesTier(str(base), secret=b"s")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert keyed.get(KEY) == (None if (kind, level) == ("link", "store") else PAYLOAD)


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["a plain file", "below a plain file", "a dead link", "a file in the store's place"])
def test_a_place_that_cannot_be_used_costs_one_warning(tmp_path: Path, place: str) -> None:
    """No operation raises, none of the ten (B14)."""
    file = tmp_path / "file"
    if place == "a dead link":
        file.symlink_to(tmp_path / "nowhere")
    elif place == "a file in the store's place":
        file.mkdir(0o700)
        (file / FOLDER).write_text("mine")
    else:
        file.write_text("mine")
    tier = FilesTier(str(file / "cache" if place == "below a plain file" else file))
    with pytest.warns(CacheWarning, match="disk cache") as caught:
        for _ in range(2):
            assert (tier.get(KEY), tier.put(KEY, PAYLOAD), tier.delete(KEY)) == (None, False, False)
            assert (list(tier.entries("f")), list(tier.all()), tier.sums()) == ([], [], (0, 0))
            assert (tier.volume(), tier.prune().file_bytes, tier.clear()) == (0, 0, 0)
            tier.close()
    assert len(caught) == 1
    assert tier.state() != "on"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EBUSY, errno.ETIMEDOUT])
@pytest.mark.parametrize("call", ["open", "write", "fsync", "rename", "mkdir", "utime"])
def test_an_error_of_the_file_system_is_a_miss_and_leaves_nothing(
    tier: FilesTier, quiet: None, monkeypatch: pytest.MonkeyPatch, number: int, call: str
) -> None:
    """Full, over quota, stale, gone: no exception, one rest, no half entry, and the old one is right (B17)."""
    tier.put(KEY, PAYLOAD)

    def fail(*arguments: object, **keywords: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        assert not tier.put(OTHER, PAYLOAD)
    assert tier.state() == "resting"
    assert not tier.put(OTHER, PAYLOAD)
    assert (tier.get(KEY) == PAYLOAD) == (number in (errno.ENOSPC, errno.EDQUOT))  # a full disk can be read
    fresh = FilesTier(tier.base)
    assert (fresh.get(KEY), fresh.get(OTHER)) == (PAYLOAD, None)
    assert os.listdir(os.path.join(tier.directory, "new")) == []
    assert fresh.put(OTHER, PAYLOAD)


def test_a_write_that_stops_half_way_leaves_nothing(
    tier: FilesTier, quiet: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first bytes fit, the others do not (B17)."""
    tier.put(KEY, PAYLOAD)
    write, calls = os.write, list[int]()

    def half(descriptor: int, data: memoryview) -> int:
        calls.append(1)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:1000])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        assert not tier.put(KEY, bytes(5000))
    assert FilesTier(tier.base).get(KEY) == PAYLOAD
    assert os.listdir(os.path.join(tier.directory, "new")) == []


def test_on_error_raise_is_for_debugging(tier: FilesTier, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cause is chained."""
    tier.put(KEY, PAYLOAD)
    tier = FilesTier(tier.base, on_error="raise")
    monkeypatch.setattr(Folder, "read", lambda *a: (_ for _ in ()).throw(OSError(errno.EIO, "I/O error")))
    with pytest.raises(CacheError):
        tier.get(KEY)


def test_threads_put_and_get_side_by_side(tier: FilesTier) -> None:
    """Every entry is there in the end."""
    wrong: list[object] = []

    def work(number: int) -> None:
        for step in range(20):
            key = bytes([number, step]) * 16
            if not tier.put(key, key * 10) or tier.get(key) != key * 10:
                wrong.append(key)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrong) <= tier.counters()["busy"]
    assert tier.sums()[0] >= 120 - len(wrong)


def test_importing_it_needs_neither_diskcache_nor_sqlite(tier: FilesTier) -> None:
    """It is there for places that have neither."""
    script = (
        "import sys\n"
        "sys.modules['diskcache'] = sys.modules['sqlite3'] = None\n"
        "from cuplate.cache.files import FilesTier\n"
        f"t = FilesTier({tier.base!r}); print(t.put(b'k' * 32, b'p'), t.get(b'k' * 32), t.sums()[0])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True b'p' 1\n", "")
