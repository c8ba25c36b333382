"""One sealed file as a read-only layer: read by offset, whole or a miss, mounted by a line and opened by a miss."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import cuplate
from cuplate import CacheWarning, SettingError
from cuplate.cache import CachePolicy, NoStore, disk_tier, front
from cuplate.cache.bundle import Bundle, write_bundle
from cuplate.cache.faults import Refused
from cuplate.cache.files import FilesTier
from cuplate.cache.layers import Layer, Layered, Mounted
from cuplate.cache.packing import export, merge, toolchains
from cuplate.cubin import decode
from cuplate.seal import seal
from tests.cache.entries import put

KEYS = [bytes([n]) * 32 for n in range(1, 9)]
SECRET = b"of this bundle"


def write(path: Path, keys: list[bytes] | None = None, *, secret: bytes = b"") -> Path:
    """A bundle whose entries are their keys, said three times."""
    entries = ((key, f"f{key[0] % 2}", seal(key, key * 3, secret)) for key in (KEYS if keys is None else keys))
    write_bundle(str(path), entries, secret=secret)
    return path


def quiet(path: Path, **told: bytes) -> Layer:
    """The layer of a bundle of which nothing is said."""
    return Layer(path, on_error="ignore", **told)  # type: ignore[arg-type]


@pytest.fixture
def mounts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is mounted before and after."""
    monkeypatch.setattr(front._process, "mounts", {})
    monkeypatch.setattr(front._process, "mounted", [])
    return


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Every entry under its key, with its tag and size; another key is absent, and nothing is left beside the file."""
    bundle = Bundle(str(write(tmp_path / "b.cuplate")))
    assert [bundle.one(key) for key in KEYS] == [seal(key, key * 3) for key in KEYS]
    assert bundle.one(b"x" * 32) is None and len(bundle) == 8
    assert [(key, tag, size) for key, tag, size, _ in bundle.rows()] == [
        (key, f"f{key[0] % 2}", len(seal(key, key * 3))) for key in KEYS
    ]
    bundle.close()
    assert os.listdir(tmp_path) == ["b.cuplate"]


def test_an_empty_bundle_is_one(tmp_path: Path) -> None:
    """Nothing is found in it, and nothing is said."""
    assert quiet(write(tmp_path / "b.cuplate", [])).get(KEYS[0]) == (None, 0)


def test_a_bundle_is_a_layer_as_a_directory_is(tmp_path: Path) -> None:
    """Look-ups, sums, listing and all entries; what the tier has comes first."""
    layer = Layer(write(tmp_path / "b.cuplate"))
    assert layer.get(KEYS[3]) == (KEYS[3] * 3, 0)
    assert layer.get(b"x" * 32) == (None, 0)
    assert layer.sums() == (8, 8 * len(seal(KEYS[0], KEYS[0] * 3)))
    assert [(found.key, found.tag) for found in layer.listing()] == [(key, f"f{key[0] % 2}") for key in KEYS]
    assert [(key, payload) for key, _, payload in layer.all()] == [(key, key * 3) for key in KEYS]
    assert layer.sealed(KEYS[2]) == seal(KEYS[2], KEYS[2] * 3)
    below = Layered(NoStore("none"), (layer,))
    assert below.get(KEYS[1]) == KEYS[1] * 3
    assert [key for key, _ in below.entries("f0")] == KEYS[1::2]


def test_no_byte_can_be_changed_unnoticed(tmp_path: Path) -> None:
    """Whatever is written over: each entry is what was stored, or absent; no look-up raises."""
    whole = write(tmp_path / "b.cuplate").read_bytes()
    wrong = 0
    for place in range(0, len(whole), 7):
        file = tmp_path / f"{place}.cuplate"
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        layer = quiet(file)
        found = [layer.get(key)[0] for key in KEYS]
        assert all(payload in (None, key * 3) for key, payload in zip(KEYS, found, strict=True))
        wrong += None in found
        file.unlink()
    assert wrong == len(range(0, len(whole), 7))  # each byte is under a seal, or leads to one


def test_a_bundle_that_was_cut_is_a_miss(tmp_path: Path) -> None:
    """At any length, none included; and one that is longer."""
    whole = write(tmp_path / "b.cuplate").read_bytes()
    for data in (*(whole[:length] for length in range(0, len(whole), 31)), whole + b"\0"):
        (tmp_path / "c.cuplate").write_bytes(data)
        assert quiet(tmp_path / "c.cuplate").get(KEYS[0]) == (None, 1)


def test_a_file_that_is_cut_while_it_is_open_is_a_miss(tmp_path: Path) -> None:
    """No signal, no error, one warning: nothing is mapped into memory."""
    layer = Layer(write(tmp_path / "b.cuplate"))
    assert layer.get(KEYS[7])[0] is not None
    os.truncate(tmp_path / "b.cuplate", 400)
    with pytest.warns(CacheWarning, match="has been cut"):
        assert layer.get(KEYS[7]) == (None, 1)
    assert layer.get(KEYS[0]) == (KEYS[0] * 3, 0)


def test_a_bundle_that_is_replaced_stays_as_it_was_for_who_has_it_open(tmp_path: Path) -> None:
    """An upgrade of a package under a running process changes nothing for it."""
    layer = Layer(write(tmp_path / "b.cuplate"))
    assert layer.get(KEYS[0])[0] is not None
    write(tmp_path / "b.cuplate", KEYS[:1])
    assert layer.get(KEYS[5]) == (KEYS[5] * 3, 0)
    assert Layer(tmp_path / "b.cuplate").get(KEYS[5]) == (None, 0)


def test_entries_under_another_key_are_refused(tmp_path: Path) -> None:
    """A forged index that leads one key to another's entry gets nobody its bytes."""
    entries = [(KEYS[0], "f", seal(KEYS[1], b"another kernel")), (KEYS[2], "f", b"no seal")]
    write_bundle(str(tmp_path / "b.cuplate"), entries)
    assert [quiet(tmp_path / "b.cuplate").get(key) for key in KEYS[:3]] == [(None, 1), (None, 0), (None, 1)]


def test_a_secret_binds_index_and_entries(tmp_path: Path) -> None:
    """Without it, or with another, nothing is read, and a bundle that was forged without it neither."""
    path = write(tmp_path / "b.cuplate", secret=SECRET)
    assert Layer(path, secret=SECRET).get(KEYS[0]) == (KEYS[0] * 3, 0)
    assert quiet(path).get(KEYS[0]) == quiet(path, secret=b"x").get(KEYS[0]) == (None, 1)
    with pytest.warns(CacheWarning, match="damaged, or sealed with another secret"):
        Layer(write(tmp_path / "forged.cuplate"), secret=SECRET).get(KEYS[0])


@pytest.mark.parametrize(
    ("data", "told"),
    [(b"PK\3\4" + bytes(100), "no bundle"), (b"CUPBNDL\2" + bytes(100), r"another version \(2\)"), (b"", "no bundle")],
)
def test_another_file_is_told(data: bytes, told: str, tmp_path: Path) -> None:
    """Once, with what it is; then it is left alone."""
    (tmp_path / "b.cuplate").write_bytes(data)
    layer = Layer(tmp_path / "b.cuplate")
    with pytest.warns(CacheWarning, match=told):
        assert layer.get(KEYS[0]) == (None, 1)
    assert layer.get(KEYS[0]) == (None, 0)


@pytest.mark.parametrize("mode", [0o666, 0o664])
def test_a_file_that_others_can_write_needs_a_secret(mode: int, tmp_path: Path) -> None:
    """Or has to be a package's own; and so its directory."""
    path = write(tmp_path / "b.cuplate", secret=SECRET)
    path.chmod(mode)
    assert Layer(path, secret=SECRET).get(KEYS[0])[0] is not None
    plain = write(tmp_path / "plain.cuplate")
    plain.chmod(mode)
    with pytest.raises(Refused, match="can be written by others"):
        Bundle(str(plain))
    assert Layer(plain, trusted=True).get(KEYS[0])[0] is not None
    plain.chmod(0o644)
    tmp_path.chmod(0o777)
    with pytest.raises(Refused, match="can be written by others"):
        Bundle(str(plain))


def test_nothing_is_left_of_a_bundle_that_could_not_be_written(tmp_path: Path) -> None:
    """The one that was there stays."""
    path = write(tmp_path / "b.cuplate")
    before = path.read_bytes()

    def entries() -> Iterator[tuple[bytes, str, bytes]]:
        yield KEYS[0], "f", b"x"
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        write_bundle(str(path), entries())
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["b.cuplate"]


def test_many_threads_and_a_forked_child_read_at_once(tmp_path: Path) -> None:
    """No position is shared: each gets the bytes of its key, every time."""
    layer = Layer(write(tmp_path / "b.cuplate"))
    layer.get(KEYS[0])
    wrong: list[bytes] = []

    def read() -> None:
        for _ in range(200):
            wrong.extend(key for key in KEYS if layer.get(key) != (key * 3, 0))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    child = os.fork() if sys.version_info < (3, 12) else None
    if child == 0:
        read()
        os._exit(len(wrong) > 0)
    read()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert child is None or os.waitpid(child, 0)[1] == 0


# ---- made from a store, and merged into one --------------------------------------------------------------------------


def test_export_writes_a_bundle_and_import_reads_one(tmp_path: Path) -> None:
    """By the name's suffix; without sources, with the compilers and a way to each kernel where none is."""
    store = FilesTier(str(tmp_path / "store"))
    keys = [bytes.fromhex(put(store, number)) for number in (1, 2)]
    done = export(store, tmp_path / "b.cuplate", secret=SECRET)
    assert done.kernels == 2
    layer = Layer(tmp_path / "b.cuplate", secret=SECRET)
    payload, _ = layer.get(keys[0])
    assert payload is not None and decode(payload).source == ""
    assert toolchains(layer) == done.toolchains
    into = FilesTier(str(tmp_path / "other"))
    assert merge(layer, into).kernels == 2
    assert into.get(keys[1]) == layer.get(keys[1])[0]


# ---- mounted ---------------------------------------------------------------------------------------------------------


def test_a_mount_opens_nothing_before_a_miss(tmp_path: Path, mounts: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mounting, a second time too, and what the disk tier has touch no file of it; the first miss opens it."""
    path = write(tmp_path / "b.cuplate")
    opened: list[str] = []
    opener = os.open
    monkeypatch.setattr(os, "open", lambda *args, **more: (opened.append(str(args[0])), opener(*args, **more))[1])
    tier = disk_tier()
    tier.put(KEYS[0], b"of the disk", tag="f")
    for _ in range(3):
        cuplate.mount(path)
    assert disk_tier().get(KEYS[0]) == b"of the disk"
    assert str(path) not in opened
    assert disk_tier().get(KEYS[1]) == KEYS[1] * 3
    assert disk_tier().get(KEYS[2]) == KEYS[2] * 3
    assert opened.count(str(path)) == 1 and len(front._process.mounted) == 1
    assert f"mounted        {path}" in str(cuplate.cache.info())


@pytest.mark.parametrize("name", ["shipped", "ships_with.cuplate"])
def test_a_package_mounts_its_own_file(
    name: str, tmp_path: Path, mounts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its name, wherever it is installed, and if it is called as a bundle is; others may write it as its code."""
    package = tmp_path / name.replace(".", "/")
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import cuplate\ncuplate.mount(__package__)\ncuplate.mount(__package__)\n")
    write(package / "kernels.cuplate").chmod(0o664)
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__(name)
    assert disk_tier().get(KEYS[0]) == KEYS[0] * 3
    assert str(package) in str(disk_tier().layers)  # type: ignore[union-attr]


def test_a_package_in_an_archive_mounts_its_file(tmp_path: Path, mounts: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is unpacked for as long as the process runs."""
    write(tmp_path / "kernels.cuplate")
    with zipfile.ZipFile(tmp_path / "packages.zip", "w") as archive:
        archive.writestr("zipped/__init__.py", "")
        archive.write(tmp_path / "kernels.cuplate", "zipped/kernels.cuplate")
    monkeypatch.syspath_prepend(str(tmp_path / "packages.zip"))
    layer = Mounted("zipped", "kernels.cuplate")
    assert layer.get(KEYS[0]) == (KEYS[0] * 3, 0)
    layer._files.close()


def test_a_package_without_its_bundle_is_told(mounts: None) -> None:
    """Once; calls go on without it."""
    cuplate.mount("tests.cache")
    with pytest.warns(CacheWarning, match=r"tests.cache has no kernels.cuplate \(mounted by cuplate.mount"):
        assert disk_tier().get(KEYS[0]) is None
    assert disk_tier().get(KEYS[0]) is None


@pytest.mark.parametrize("place", [None, "", "__main__"])
def test_a_script_has_no_package_to_mount(place: str | None, mounts: None) -> None:
    """`__package__` is empty there: an error at the line, not silence."""
    with pytest.raises(SettingError, match="is a package, or a path"):
        cuplate.mount(place)


def test_a_bundle_is_a_layer_of_a_policy_too(tmp_path: Path) -> None:
    """Of one function, in code, or in the environment, as a directory is."""
    tier = disk_tier(CachePolicy(layers=[write(tmp_path / "b.cuplate")]))
    assert tier.get(KEYS[0]) == KEYS[0] * 3
    code = "from cuplate.cache import disk_tier; print(disk_tier().get(bytes([1]) * 32))"
    environment = {**os.environ, "CUPLATE_LAYERS": str(tmp_path / "b.cuplate")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == repr(KEYS[0] * 3)
