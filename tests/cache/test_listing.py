"""Looking through a store: what it lists, that looking changes nothing, and what is wrong with an entry."""

from __future__ import annotations

import sqlite3
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from cuplate.cache import DiskTier, NoStore
from cuplate.cache.files import FilesTier
from cuplate.cache.layers import Layer, Layered
from cuplate.cache.listing import Listed, is_kernel, wrong_with
from cuplate.cache.packing import export
from cuplate.cubin import Cubin, encode
from cuplate.errors import CacheError
from cuplate.key import fold, sha256
from cuplate.seal import seal
from tests.cache.entries import SOURCE, image, kernel, put

pytest.importorskip("diskcache")


@pytest.fixture(params=[DiskTier, FilesTier], ids=["diskcache", "files"])
def tier(tmp_path: Path, request: pytest.FixtureRequest) -> DiskTier | FilesTier:
    """A tier of either kind in an empty directory."""
    made: DiskTier | FilesTier = request.param(str(tmp_path / "cache"), write_wait_s=20.0)
    return made


def test_a_listing_says_what_the_store_knows(tier: DiskTier | FilesTier) -> None:
    """Key, function, size, times and uses, of the first put to the last."""
    before = time.time() - 0.01
    first, second = (bytes.fromhex(key) for key in (put(tier, 1), put(tier, 2, function="g")))
    assert tier.get(first) is not None
    put(tier, 3)
    tier.close()  # writes down the use
    found = {listed.key: listed for listed in tier.listing()}
    assert len(found) == 3
    assert (found[first].tag, found[second].tag) == ("f", "g")
    assert (found[first].uses, found[second].uses) == (1, 0)
    assert found[first].used_s > found[first].stored_s > before
    assert found[second].used_s == found[second].stored_s
    assert {listed.directory for listed in found.values()} == {tier.directory}
    assert sum(listed.size_bytes for listed in found.values()) == tier.sums()[1]


def test_looking_is_no_use(tier: DiskTier | FilesTier) -> None:
    """An entry that was listed and read is as old for the eviction as before, and nothing is counted."""
    key = bytes.fromhex(put(tier, 1))
    before, counters = list(tier.listing()), dict(tier.counters())
    for _ in range(3):
        assert tier.sealed(key) == seal(key, encode(kernel(1)[1]))
    tier.close()
    put(tier, 2)
    assert [listed for listed in tier.listing() if listed.key == key] == before
    assert tier.counters() == counters


def test_where_nothing_is_stored_nothing_is_listed_or_made(tier: DiskTier | FilesTier, tmp_path: Path) -> None:
    """A store that is not there yet is empty, and looking does not make it."""
    assert (list(tier.listing()), tier.sealed(b"k" * 32), tier.orphans()) == ([], None, 0)
    assert not (tmp_path / "cache").exists()
    none = NoStore("no reason")
    assert (list(none.listing()), none.sealed(b"k" * 32), none.orphans()) == ([], None, 0)


def test_what_is_too_old_is_not_listed(tmp_path: Path, tier: DiskTier | FilesTier) -> None:
    """An entry past its time to live counts as absent here as everywhere."""
    put(tier, 1)
    time.sleep(0.01)
    assert list(type(tier)(tier.base, time_to_live_s=0.001).listing()) == []


def test_a_directory_of_others_is_told_not_shown_as_empty(tier: DiskTier | FilesTier) -> None:
    """A look-up takes it for a miss; who looks through it hears why, and with which cause."""
    put(tier, 1)
    Path(tier.base).chmod(0o777)
    other = type(tier)(tier.base)
    with pytest.raises(CacheError, match="can be written by others") as told:
        list(other.listing())
    assert told.value.cause == "refused"
    assert len(list(type(tier)(tier.base, secret=b"s").listing())) == 1


def test_a_damaged_database_is_told_and_stays(tmp_path: Path) -> None:
    """A look-up sets it aside; listing and reading it do not."""
    tier = DiskTier(str(tmp_path))
    key = bytes.fromhex(put(tier, 1))
    tier.close()
    database = tmp_path / "v1" / "cache.db"
    database.write_bytes(b"no database" * 500)
    looking = DiskTier(str(tmp_path))
    for look in (lambda: list(looking.listing()), lambda: looking.sealed(key)):
        with pytest.raises(CacheError) as told:
            look()
        assert told.value.cause == "damaged"
    assert database.read_bytes() == b"no database" * 500
    assert looking.counters()["quarantines"] == 0


def test_a_locked_database_is_told_after_a_second(tmp_path: Path) -> None:
    """What is locked is not shown as empty; the wait is that of a put."""
    tier = DiskTier(str(tmp_path), write_wait_s=0.2, read_wait_s=0.05)
    put(tier, 1)
    tier.close()
    holder = sqlite3.connect(tmp_path / "v1" / "cache.db", isolation_level=None)
    holder.execute("PRAGMA locking_mode = EXCLUSIVE")
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(CacheError) as told:
        list(tier.listing())
    assert told.value.cause == "busy"
    holder.close()
    assert len(list(tier.listing())) == 1


@pytest.mark.parametrize("planted", ["'x'", "x'00'", "NULL", "9e999", "-1e300", "1e300"])
def test_a_planted_row_lists_as_numbers(tmp_path: Path, planted: str) -> None:
    """What is no time or size where one should be is zero, and no error."""
    tier = DiskTier(str(tmp_path))
    key = bytes.fromhex(put(tier, 1))
    tier.close()
    with sqlite3.connect(tmp_path / "v1" / "cache.db") as database:
        database.execute(f"UPDATE Cache SET access_time = {planted}, access_count = {planted}, size = {planted}")
    database.close()
    (listed,) = tier.listing()
    assert (listed.key, listed.size_bytes, listed.uses) == (key, 0, 0)
    assert listed.used_s == listed.stored_s


def test_a_file_that_is_no_entry_is_listed_and_told(tmp_path: Path) -> None:
    """So that a check of the store finds it; reading it names it a bad entry."""
    tier = FilesTier(str(tmp_path))
    key = bytes.fromhex(put(tier, 1))
    (path,) = (p for p in tmp_path.rglob(key.hex()))
    path.write_bytes(b"short")
    (listed,) = tier.listing()
    assert (listed.key, listed.tag) == (key, "")
    with pytest.raises(CacheError) as told:
        tier.sealed(key)
    assert told.value.cause == "bad entry"


def test_a_layer_lists_what_it_holds_below_what_is_above_it(tier: DiskTier | FilesTier, tmp_path: Path) -> None:
    """Each entry once, with the directory that it is taken from."""
    first, second = (bytes.fromhex(put(tier, number)) for number in (1, 2))
    export(tier, tmp_path / "layer")
    tier.delete(second)
    both = Layered(tier, [Layer(tmp_path / "layer")])
    where = {listed.key: listed.directory for listed in both.listing() if is_kernel(listed.tag)}
    assert where == {first: tier.directory, second: str(tmp_path / "layer")}
    assert both.sealed(second) is not None
    assert both.sealed(b"none" * 8) is None
    copied = Layer(tier.base)  # a cache directory as a layer
    tier.close()
    assert [listed.key for listed in copied.listing()] == [first]


def test_a_layer_that_is_not_there_is_told(tmp_path: Path) -> None:
    """By listing and by reading."""
    layer = Layer(tmp_path / "none")
    for look in (lambda: list(layer.listing()), lambda: layer.sealed(b"k" * 32)):
        with pytest.raises(CacheError, match="holds neither"):
            look()


def test_orphans_are_what_prune_removes(tier: DiskTier | FilesTier) -> None:
    """Counted without being removed, and as many as go."""
    put(tier, 1)
    folder = Path(tier.directory)
    if isinstance(tier, DiskTier):
        (folder / "stray.val").write_bytes(b"1")
        (folder / "below").mkdir()
        (folder / "below" / "stray").write_bytes(b"2")
        (folder / "link").symlink_to("/")
        (folder.parent / "v1.bad-1-1").mkdir()
    else:
        import os

        half = folder / "new" / "half"
        half.write_bytes(b"1")
        os.utime(half, (1, 1))
    assert tier.orphans() == tier.orphans() > 0
    expected = tier.orphans()
    assert tier.prune().removed_orphans == expected
    assert tier.orphans() == 0


def test_an_export_leaves_sources_behind_unless_asked(tier: DiskTier | FilesTier, tmp_path: Path) -> None:
    """A layer goes to other places than a cache; everything else of the entry is the same."""
    from cuplate.cubin import decode

    key = bytes.fromhex(put(tier, 1))
    export(tier, tmp_path / "bare")
    export(tier, tmp_path / "whole", sources=True)
    bare, whole = (Layer(tmp_path / name).get(key)[0] for name in ("bare", "whole"))
    assert bare is not None
    assert whole is not None
    assert (decode(bare).source, decode(whole).source) == ("", SOURCE)
    assert decode(bare) == decode(whole).without_source()
    assert wrong_with(key, "f", seal(key, bare)) is None


def test_an_export_of_no_keys_is_empty(tier: DiskTier | FilesTier, tmp_path: Path) -> None:
    """An empty choice chooses nothing, not everything."""
    put(tier, 1)
    assert export(tier, tmp_path / "layer", keys=()).kernels == 0


# ---- what is wrong with an entry -------------------------------------------------------------------------------------


def test_a_good_entry_has_nothing_wrong() -> None:
    """Kernels for a GPU and for the host, notes, and records without a source."""
    key, cubin = kernel()
    assert wrong_with(key, "f", seal(key, encode(cubin))) is None
    assert wrong_with(key, "f", seal(key, encode(cubin.without_source()))) is None
    assert wrong_with(key, "f", seal(key, encode(cubin), b"s"), b"s") is None
    assert wrong_with(b"k" * 32, "toolchain", seal(b"k" * 32, b"13.5.37")) is None
    old = image(abi=7, flags=90)
    assert wrong_with(key, "f", seal(key, encode(kernel(code=old)[1]))) is None
    host = (("source", sha256(SOURCE)), ("arch", "sm_80"))
    built = Cubin(image(machine=62), "k", "host", "f", ingredients=host)
    assert wrong_with(fold(host), "f", seal(fold(host), encode(built))) is None


def other_key() -> tuple[bytes, bytes]:
    """A good record, sealed for a key that is not its own."""
    return b"k" * 32, encode(kernel()[1])


def other_source() -> tuple[bytes, bytes]:
    """A record whose source was exchanged."""
    key, cubin = kernel()
    made = Cubin(cubin.code, "k", "sm_90", "f", ingredients=cubin.ingredients, source="other")
    return key, encode(made)


def other_arch() -> tuple[bytes, bytes]:
    """A record that says another architecture than its key."""
    key, cubin = kernel()
    return key, encode(Cubin(cubin.code, "k", "sm_80", "f", ingredients=cubin.ingredients))


def with_code(code: bytes) -> Callable[[], tuple[bytes, bytes]]:
    """A record with another image."""

    def made() -> tuple[bytes, bytes]:
        key, cubin = kernel(code=code)
        return key, encode(cubin)

    return made


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda: (b"k" * 32, b"noise"), "no record of a kernel"),
        (other_key, "another key"),
        (other_source, "source is not that of its key"),
        (other_arch, "compiled for sm_80, its key says sm_90"),
        (with_code(image()[:40]), "cut: 40 bytes"),
        (with_code(image(machine=62)), "machine 62"),
        (with_code(image(flags=80 << 8)), "code is for sm_80"),
        (with_code(image(abi=7, flags=80)), "code is for sm_80"),
        (with_code(image(entry="other")), "no kernel k"),
    ],
)
def test_a_wrong_entry_is_named(made: Callable[[], tuple[bytes, bytes]], told: str) -> None:
    """Under a good seal: what another program wrote, or a fault of ours."""
    key, payload = made()
    wrong = wrong_with(key, "f", seal(key, payload))
    assert wrong is not None
    assert told in wrong


def test_a_broken_seal_is_named() -> None:
    """Damage, another secret, nothing at all."""
    key, cubin = kernel()
    blob = seal(key, encode(cubin))
    for broken, secret in ((blob[:-1], b""), (blob, b"s"), (b"", b""), (None, b"")):
        assert "seal is wrong" in str(wrong_with(key, "f", broken, secret))


def test_real_kernels_have_nothing_wrong(tmp_path: Path) -> None:
    """What the library stores for several architectures passes the check, memos included."""
    pytest.importorskip("cuda.core")
    from cuplate import cache
    from cuplate.kernels import matmul_epilogue

    with cache.configure(directory=tmp_path), warnings.catch_warnings():
        warnings.simplefilter("error")
        for arch in ("sm_75", "sm_90a", "sm_120"):
            matmul_epilogue.compile("float32", arch=arch)
        store = cache.disk_tier()
        found: list[Listed] = list(store.listing())
        assert sum(is_kernel(listed.tag) for listed in found) == 3
        assert [wrong_with(x.key, x.tag, store.sealed(x.key)) for x in found] == [None] * len(found)
