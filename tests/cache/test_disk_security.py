"""Somebody else can write the directory: nothing of theirs runs, nothing outside is read or deleted, each is a miss."""

from __future__ import annotations

import os
import pickle
import sqlite3
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from cuplate.cache import DiskTier, directory, reset, stats
from cuplate.cache.files import FilesTier
from cuplate.cache.pruning import remove_orphans
from cuplate.seal import seal

diskcache = pytest.importorskip("diskcache")
BytesDisk = pytest.importorskip("cuplate.cache.engine").BytesDisk

KEY, OTHER = b"k" * 32, b"o" * 32
PAYLOAD = os.urandom(2000)


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = str(trace)

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self.trace,)


def plant(tier: DiskTier, statement: str, *arguments: object) -> list[tuple[object, ...]]:
    """Run a statement on the database behind the tier's back."""
    database = sqlite3.connect(os.path.join(tier.directory, "cache.db"), isolation_level=None)
    try:
        return database.execute(statement, arguments).fetchall()
    finally:
        database.close()


@pytest.fixture(params=[b"", b"secret"], ids=["no secret", "secret"])
def tier(tmp_path: Path, request: pytest.FixtureRequest) -> DiskTier:
    """A small tier with one entry."""
    tier = DiskTier(str(tmp_path / "cache"), secret=request.param, limit_bytes=100_000)
    tier.put(KEY, PAYLOAD, tag="f")
    tier.close()
    return tier


def use_everything(tier: DiskTier) -> None:
    """Every operation once, and enough puts that everything old is evicted."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tier.get(KEY)
        list(tier.entries("f"))
        for number in range(100):
            tier.put(number.to_bytes(32, "big"), PAYLOAD, tag="f")
        tier.delete(OTHER)
        tier.clear()


def test_the_trap_works_on_bare_diskcache(tmp_path: Path) -> None:
    """CVE-2025-69872: a planted pickle runs when the library alone reads it. So the tests below can fail."""
    with diskcache.Cache(str(tmp_path / "bare")) as bare:
        bare.set(KEY, b"v")
        bare._sql("UPDATE Cache SET mode = 4, value = ?", (pickle.dumps(Bomb(tmp_path / "ran")),))
        bare.get(KEY)
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("mode", [1, 4])
def test_a_pickled_value_is_a_miss_and_does_not_run(tier: DiskTier, tmp_path: Path, mode: int) -> None:
    """A row turned into a pickle, with diskcache's mode for it or without."""
    plant(tier, "UPDATE Cache SET mode = ?, value = ?", mode, pickle.dumps(Bomb(tmp_path / "ran")))
    reset()
    assert tier.get(KEY) is None
    assert stats().disk.misses == 1
    use_everything(tier)
    assert not (tmp_path / "ran").exists()


def test_a_pickled_key_does_not_run(tier: DiskTier, tmp_path: Path) -> None:
    """A row whose key is a pickle is passed over, and evicted unread."""
    plant(tier, "UPDATE Cache SET raw = 0, key = ?", pickle.dumps(Bomb(tmp_path / "ran")))
    assert tier.get(KEY) is None
    assert list(tier.entries("f")) == []
    use_everything(tier)
    assert not (tmp_path / "ran").exists()


def test_every_method_of_diskcaches_disk_that_could_unpickle_or_open_a_file_refuses(tmp_path: Path) -> None:
    """Also those that no operation of the tier reaches; a planted setting of a disk is not obeyed."""
    disk = BytesDisk(str(tmp_path), min_file_size=1, pickle_protocol=0, evil=1)
    bomb = pickle.dumps(Bomb(tmp_path / "ran"))
    file = tmp_path / "value"
    file.write_bytes(bomb)
    refusals = [
        (OSError, lambda: disk.get(bomb, False)),
        (OSError, lambda: disk.get("text", True)),
        (OSError, lambda: disk.fetch(4, None, bomb, False)),
        (OSError, lambda: disk.fetch(4, "value", None, False)),
        (OSError, lambda: disk.fetch(2, "value", None, False)),
        (OSError, lambda: disk.fetch(1, None, b"", True)),
        (OSError, lambda: disk.fetch(1, None, "text", False)),
        (TypeError, lambda: disk.put(Bomb(tmp_path / "ran"))),
        (TypeError, lambda: disk.store(Bomb(tmp_path / "ran"), False)),
        (TypeError, lambda: disk.store(b"", True)),
        (TypeError, disk.filename),
    ]
    for error, call in refusals:
        with pytest.raises(error):
            call()
    disk.remove("value")
    assert disk.min_file_size == 1 << 31
    assert disk.store(bytes(1 << 20), False)[2] is None
    assert os.listdir(tmp_path) == ["value"]


@pytest.mark.parametrize("name", ["../../outside", "/etc/hostname", "00/00/link.val"])
def test_a_planted_file_name_reads_and_deletes_nothing(tier: DiskTier, tmp_path: Path, name: str) -> None:
    """With ``..``, absolute, or a link: bare diskcache reads or deletes what the row names."""
    outside = tmp_path / "outside"
    outside.write_bytes(seal(KEY, PAYLOAD))
    link = Path(tier.directory, "00/00")
    link.mkdir(parents=True)
    (link / "link.val").symlink_to(outside)
    plant(tier, "UPDATE Cache SET mode = 2, value = NULL, filename = ?, store_time = 0", name)
    assert tier.get(KEY) is None
    use_everything(tier)
    assert outside.read_bytes() == seal(KEY, PAYLOAD)


def test_swapped_entries_are_misses(tier: DiskTier) -> None:
    """Two good entries under each other's key: neither is handed out."""
    tier.put(OTHER, b"other")
    tier.close()
    values = {key: plant(tier, "SELECT value FROM Cache WHERE key = ?", key)[0][0] for key in (KEY, OTHER)}
    plant(tier, "UPDATE Cache SET value = ? WHERE key = ?", values[OTHER], KEY)
    plant(tier, "UPDATE Cache SET value = ? WHERE key = ?", values[KEY], OTHER)
    assert tier.get(KEY) is None
    assert tier.get(OTHER) is None
    assert tier.counters()["bad"] == 2


def test_a_forged_entry_is_a_miss_under_a_secret(tmp_path: Path) -> None:
    """Whoever lacks the secret cannot make an entry, nor reuse one sealed without it or with another."""
    tier = DiskTier(str(tmp_path), secret=b"right")
    for forger in (DiskTier(str(tmp_path)), DiskTier(str(tmp_path), secret=b"wrong")):
        forger.put(KEY, PAYLOAD)
        assert forger.get(KEY) == PAYLOAD
        with pytest.warns(match="sealed with another secret") if forger._secret == b"" else warnings.catch_warnings():
            assert tier.get(KEY) is None
    assert tier.counters()["bad"] == 2
    assert tier.put(KEY, PAYLOAD)
    assert tier.get(KEY) == PAYLOAD


@pytest.mark.parametrize("value", ["text", 5, 1.5, None, b"", b"CUPSEAL\x01", "\udcff"])
def test_a_value_of_another_type_is_a_miss(tier: DiskTier, value: object) -> None:
    """Whatever SQLite can hold."""
    plant(tier, "UPDATE Cache SET value = ?", os.fsencode(value) if value == "\udcff" else value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert tier.get(KEY) is None
        assert list(tier.entries("f")) == []


def test_a_huge_value_is_refused_before_it_is_read(tier: DiskTier) -> None:
    """A planted row cannot fill the memory."""
    plant(tier, "UPDATE Cache SET value = zeroblob(50000000)")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert tier.get(KEY) is None


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal"])
def test_a_link_in_place_of_a_file_is_refused(tier: DiskTier, tmp_path: Path, suffix: str) -> None:
    """SQLite would follow it, and write there."""
    outside = tmp_path / "outside"
    outside.write_bytes(b"mine" * 5000)
    file = Path(tier.directory, f"cache.db{suffix}")
    file.unlink(missing_ok=True)
    file.symlink_to(outside)
    with pytest.warns(match="is not a plain file"):
        tier.get(KEY)
        assert not tier.put(OTHER, PAYLOAD)
    assert tier.state().startswith("off: ")
    assert outside.read_bytes() == b"mine" * 5000


@pytest.mark.parametrize("kind", ["group", "others", "link", "another user"])
@pytest.mark.parametrize("level", ["base", "store"])
def test_a_directory_that_others_can_write_is_refused_without_a_secret(tmp_path: Path, kind: str, level: str) -> None:
    """Memory only and one warning with the reason; with a secret it is used, if the store's own folder is no link."""
    base = tmp_path / "cache"
    DiskTier(str(base)).put(KEY, PAYLOAD)
    keyed = DiskTier(str(base), secret=b"s")
    keyed.put(OTHER, PAYLOAD)
    keyed.close()
    target = base if level == "base" else base / "v1"
    if kind == "link":
        target.rename(tmp_path / "elsewhere")
        target.symlink_to(tmp_path / "elsewhere")
    elif kind == "another user":
        if os.getuid() != 0:
            pytest.skip("only root can give a directory away")
        os.chown(target, 12345, -1)
    else:
        target.chmod(0o770 if kind == "group" else 0o707)
    reason = {"link": "is a symbolic link", "another user": "belongs to user 12345"}.get(
        kind, "can be written by others"
    )
    tier = DiskTier(str(base))
    with pytest.warns(match=f"{reason}.*no secret") as caught:
        assert tier.get(KEY) is None
        assert not tier.put(KEY, PAYLOAD)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = DiskTier(str(base), secret=b"s").get(OTHER)
    assert found == (None if (kind, level) == ("link", "store") else PAYLOAD)


@pytest.mark.parametrize("planted", ["v1", "v1.files", "v1.flights"])
def test_a_link_in_place_of_a_folder_of_ours_leads_nowhere_under_a_secret_too(tmp_path: Path, planted: str) -> None:
    """Whoever may write a shared directory must not make us sweep, evict or prune the files of another one."""
    base, home = tmp_path / "shared", tmp_path / "home"
    base.mkdir()
    base.chmod(0o777)
    precious = ["thesis.tex", "ab/file", "ab/" + "ab" * 32, "new/draft", f"{KEY.hex()}.0"]
    for name in precious:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("precious")
        os.utime(home / name, (0, 0))
    (base / planted).symlink_to(home)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for make in (DiskTier, FilesTier):
            tier = make(str(base), secret=b"s", limit_bytes=20_000)
            for number in range(20):
                tier.put(bytes([number]) * 32, PAYLOAD)
            assert tier.flights is not None
            assert tier.flights.run(OTHER, lambda: None, lambda: 7) == 7
            tier.prune(), tier.delete(bytes.fromhex("ab" * 32)), tier.clear(), tier.close()
    assert sorted(str(p.relative_to(home)) for p in home.rglob("*") if p.is_file()) == sorted(precious)
    assert {(home / name).read_text() for name in precious} == {"precious"}


def test_prune_follows_no_folder_that_becomes_a_link_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look and the removal somebody puts a link in a folder's place: what it leads to stays."""
    store, home = tmp_path / "v1", tmp_path / "home"
    for folder in (store / "sub", home):
        folder.mkdir(parents=True)
        (folder / "file").write_text("x")
    scandir = os.scandir

    class Swapping(list[os.DirEntry[str]]):
        """The folder as it is; then it changes."""

        def __init__(self, path: str | int) -> None:
            super().__init__(scandir(path))
            if not (store / "sub").is_symlink():
                (store / "sub").rename(tmp_path / "moved")
                (store / "sub").symlink_to(home)

        def __next__(self) -> os.DirEntry[str]:
            if not self:
                raise StopIteration
            return self.pop()

        def __enter__(self) -> Swapping:
            return self

        def __exit__(self, *error: object) -> None:
            pass

    with monkeypatch.context() as patch:
        patch.setattr(directory, "stores", lambda store: [])
        patch.setattr(os, "scandir", Swapping)
        remove_orphans(str(store))
    assert os.listdir(home) == ["file"]


def test_no_pickle_is_reached_in_a_process_that_uses_the_tier(tier: DiskTier) -> None:
    """With pickle's loads and dumps taken away, every operation still works: the sentence that SECURITY.md leans on."""
    script = (
        "import pickle, _pickle\n"
        "def no(*a, **k): raise SystemExit('pickle was reached')\n"
        "for m in (pickle, _pickle):\n"
        "    m.loads = m.load = m.dumps = m.dump = m.Pickler = m.Unpickler = no\n"
        "from cuplate.cache import DiskTier\n"
        f"t = DiskTier({tier.base!r}, secret={tier._secret!r}, limit_bytes=100_000)\n"
        f"assert t.get({KEY!r}) == {PAYLOAD!r}\n"
        "for n in range(100): assert t.put(n.to_bytes(32, 'big'), bytes(2000), tag='f')\n"
        "assert list(t.entries('f')) and t.delete((99).to_bytes(32, 'big')) and t.clear()\n"
        "print('ok')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("ok\n", "")
