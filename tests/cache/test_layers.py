"""Read-only layers: exported, carried elsewhere, read without a write, and enough to run where no compiler is."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import cuplate
from cuplate import cache
from cuplate.cache import CachePolicy, DiskTier, disk_tier, reset, set_policy, stats
from cuplate.cache.files import FOLDER, FilesTier
from cuplate.cache.folder import Folder
from cuplate.cache.layers import Layer, Layered
from cuplate.cache.listing import is_kernel
from cuplate.cache.packing import export, merge, toolchains
from cuplate.cubin import Cubin, encode
from cuplate.errors import CacheWarning, SettingError
from cuplate.key import request_of
from cuplate.seal import seal

pytest.importorskip("diskcache")

CODE = b"\x7fELF" + bytes(3000)


def record(number: int, *, function: str = "f", arch: str = "sm_90", toolchain: str = "nvrtc 13.5.37") -> bytes:
    """A stored kernel."""
    ingredients = (("source", str(number)), ("compiler", toolchain), ("arch", arch))
    return encode(Cubin(CODE, "k", arch, function, toolchain=toolchain, ingredients=ingredients))


def key(number: int) -> bytes:
    """Its key."""
    return bytes([number]) * 32


@pytest.fixture(params=[DiskTier, FilesTier], ids=["diskcache", "files"])
def filled(tmp_path: Path, request: pytest.FixtureRequest) -> DiskTier | FilesTier:
    """A tier with three kernels of two functions, and a memo that is none."""
    tier = request.param(str(tmp_path / "cache"))
    tier.put(key(1), record(1), tag="f")
    tier.put(key(2), record(2, function="g"), tag="g")
    tier.put(key(3), record(3, arch="sm_80", toolchain="nvrtc 12.9.86"), tag="f")
    tier.put(key(4), b"13.5.37", tag="toolchain")
    return tier


@pytest.fixture(autouse=True)
def policy_back() -> Iterator[None]:
    """No test leaves a policy behind."""
    yield
    set_policy(None)


def snapshot(directory: Path) -> list[tuple[str, int, int, bytes]]:
    """All that a write would change."""
    found = []
    for path in sorted(directory.rglob("*")):
        status = path.lstat()
        found.append((str(path), status.st_mode, status.st_mtime_ns, path.read_bytes() if path.is_file() else b""))
    return found


# ---- export and import -----------------------------------------------------------------------------------------------


def test_an_export_holds_the_kernels_and_their_toolchains(filled: DiskTier, tmp_path: Path) -> None:
    """Nothing of this machine's own, like the memo of its compiler."""
    done = export(filled, tmp_path / "layer")
    assert (done.kernels, done.toolchains) == (3, ("nvrtc 12.9.86", "nvrtc 13.5.37"))
    layer = Layer(tmp_path / "layer")
    assert sorted(k for k, tag, _ in layer.all() if is_kernel(tag)) == [key(1), key(2), key(3)]
    assert {tag for _, tag, _ in layer.all() if is_kernel(tag)} == {"f", "g"}
    assert layer.get(key(4)) == (None, 0)
    assert toolchains(layer) == done.toolchains
    assert "3 kernels" in str(done)


def test_an_export_can_be_a_part(filled: DiskTier, tmp_path: Path) -> None:
    """By function, architecture, key; and a second export adds to the first."""
    assert export(filled, tmp_path / "layer", functions={"g"}).kernels == 1
    assert export(filled, tmp_path / "layer", archs={"sm_80"}).kernels == 1
    layer = Layer(tmp_path / "layer")
    assert sorted(k for k, tag, _ in layer.all() if is_kernel(tag)) == [key(2), key(3)]
    assert len(toolchains(layer)) == 2
    assert export(filled, tmp_path / "other", keys={key(1)}).kernels == 1


def test_an_export_is_portable_and_readable_by_everybody(filled: DiskTier, tmp_path: Path) -> None:
    """Moved and read by another process, with other rights than a cache directory's."""
    export(filled, tmp_path / "made")
    shutil.move(tmp_path / "made", tmp_path / "there")
    modes = {p.stat().st_mode & 0o777 for p in (tmp_path / "there").rglob("*")}
    assert modes == {0o755, 0o644}
    script = f"from cuplate.cache.layers import Layer; print(len(list(Layer({str(tmp_path / 'there')!r}).all())))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (int(done.stdout) >= 4, done.stderr) == (True, "")


def test_an_export_under_a_secret_is_read_with_it_only(filled: DiskTier, tmp_path: Path) -> None:
    """The seal is made anew for the place it goes to."""
    export(filled, tmp_path / "layer", secret=b"s")
    assert Layer(tmp_path / "layer", secret=b"s").get(key(1)) == (record(1), 0)
    with pytest.warns(CacheWarning, match="another secret"):
        assert Layer(tmp_path / "layer").get(key(1)) == (None, 1)


def test_an_export_into_a_directory_of_other_things_leaves_those_alone(filled: DiskTier, tmp_path: Path) -> None:
    """A repository, a home, a place with links: no mode changes but those of the layer."""
    place, outside = tmp_path / "place", tmp_path / "outside"
    (place / "sub").mkdir(parents=True)
    for file, mode in ((place / "run.sh", 0o700), (place / "sub" / "key", 0o600), (outside, 0o600)):
        file.write_text("mine")
        file.chmod(mode)
    (place / "link").symlink_to(outside)
    place.chmod(0o700)
    export(filled, place)
    (place / FOLDER / "01" / "link").symlink_to(outside)
    assert export(filled, place).kernels == 3
    modes = {p: p.stat().st_mode & 0o777 for p in (place, place / "run.sh", place / "sub" / "key", outside)}
    assert list(modes.values()) == [0o700, 0o700, 0o600, 0o600]
    assert Layer(place).get(key(1)) == (record(1), 0)


def test_an_export_of_no_keys_is_empty(filled: DiskTier, tmp_path: Path) -> None:
    """Nothing chosen is not everything; and folders on the way to a new place can be read by everybody too."""
    assert export(filled, tmp_path / "new" / "layer", keys=[]).kernels == 0
    assert (tmp_path / "new").stat().st_mode & 0o055 == 0o055


@pytest.mark.parametrize("way", ["export", "merge"])
@pytest.mark.parametrize("first", ["nvrtc 13.5.37", "nvrtc 12.9.86"])
def test_of_two_compilers_kernels_the_newer_one_answers_in_whatever_order_they_come(
    tmp_path: Path, way: str, first: str
) -> None:
    """A process without a compiler is led to it, and both compilers are recorded."""
    second = {"nvrtc 13.5.37": "nvrtc 12.9.86", "nvrtc 12.9.86": "nvrtc 13.5.37"}[first]
    store = FilesTier(str(tmp_path / "both"))
    for number, toolchain in enumerate((first, second)):
        tier = FilesTier(str(tmp_path / str(number)))
        tier.put(key(number), record(7, toolchain=toolchain), tag="f")
        if way == "export":
            export(tier, tmp_path / "both")
        else:
            export(tier, tmp_path / f"layer{number}")
            merge(tmp_path / f"layer{number}", store)
    asked = request_of((("source", "7"), ("compiler", first), ("arch", "sm_90")))
    assert asked is not None
    layer = Layer(tmp_path / "both")
    assert layer.get(asked)[0] == key((first, second).index("nvrtc 13.5.37"))
    assert toolchains(layer) == ("nvrtc 12.9.86", "nvrtc 13.5.37")


@pytest.mark.parametrize("kind", [DiskTier, FilesTier])
def test_nothing_is_exported_into_its_own_store(tmp_path: Path, kind: type[DiskTier | FilesTier]) -> None:
    """Its entries would lose their sources, and everybody could read it; a link to it is refused as well."""
    tier = kind(str(tmp_path / "own"))
    tier.put(key(1), record(1), tag="f")
    (tmp_path / "link").symlink_to(tmp_path / "own")
    before = sorted(tmp_path.rglob("*"))
    for place in ("own", "link", "own/v1"):
        with pytest.raises(SettingError, match="another directory"):
            export(Layered(tier, ()), tmp_path / place)
    assert sorted(tmp_path.rglob("*")) == before
    export(tier, tmp_path / "layer")
    with pytest.raises(SettingError):
        export(Layer(tmp_path / "layer"), tmp_path / "layer")


@pytest.mark.parametrize("kind", [DiskTier, FilesTier])
def test_a_merge_adds_what_is_missing(filled: DiskTier, tmp_path: Path, kind: type[DiskTier | FilesTier]) -> None:
    """Equal keys stay; the second time nothing is written."""
    export(filled, tmp_path / "layer")
    into = kind(str(tmp_path / "into"))
    into.put(key(1), b"mine", tag="f")
    seen: list[int] = []
    done = merge(Layer(tmp_path / "layer"), into, progress=seen.append)
    assert (done.kernels, done.present, done.failed) == (2, 1, 0)
    assert seen == [1, 2, 3]
    assert (into.get(key(1)), into.get(key(2)), into.get(key(3))) == (b"mine", *(map(record_of, (2, 3))))
    again = merge(tmp_path / "layer", into)
    assert (again.kernels, again.present, again.failed, again.size_bytes) == (0, 3, 0, 0)


@pytest.mark.parametrize("kind", [DiskTier, FilesTier])
@pytest.mark.parametrize("below", [False, True])
def test_a_merge_is_no_use(filled: DiskTier, tmp_path: Path, kind: type[DiskTier | FilesTier], below: bool) -> None:
    """It asks what is there; that is nobody's look-up, in the counts and in the listing."""
    export(filled, tmp_path / "layer")
    tier = kind(str(tmp_path / "into"))
    into = Layered(tier, [Layer(tmp_path / "layer")]) if below else tier
    before = cache.stats().disk.hits
    for _ in range(3):
        merge(tmp_path / "layer", into)
    assert cache.stats().disk.hits == before
    tier.close()  # which writes uses down
    assert [listed.uses for listed in tier.listing()] == [0] * len(list(tier.listing()))
    if not below:
        assert tier.get(key(1)) is not None
        tier.close()
        assert sum(listed.uses for listed in tier.listing()) == 1


def record_of(number: int) -> bytes:
    """The record that `filled` holds under a key."""
    return {2: record(2, function="g"), 3: record(3, arch="sm_80", toolchain="nvrtc 12.9.86")}[number]


def test_export_and_import_of_the_front(filled: DiskTier, tmp_path: Path) -> None:
    """With the policy's tier, layers included, and its secret."""
    export(filled, tmp_path / "below")
    cuplate.configure(directory=tmp_path / "top", layers=[tmp_path / "below"], secret=b"")
    disk_tier().put(key(9), record(9), tag="h")
    assert cache.export(tmp_path / "all").kernels == 4
    cuplate.configure(directory=tmp_path / "fresh", layers=[])
    assert cache.import_(tmp_path / "all").kernels == 4
    assert disk_tier().get(key(9)) == record(9)


# ---- reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["an export", "a cache directory"])
def test_a_layer_is_read_without_a_write(filled: DiskTier, tmp_path: Path, source: str) -> None:
    """No journal, no time of a file, no lock."""
    place = tmp_path / "layer"
    if source == "an export":
        export(filled, place)
    else:
        filled.close()
        shutil.copytree(tmp_path / "cache", place)
    before = snapshot(place)
    layered = Layered(DiskTier(str(tmp_path / "top")), [Layer(place)])
    assert layered.get(key(1)) == record(1)
    assert layered.get(key(8)) is None
    assert {k for k, _ in layered.entries("f")} == {key(1), key(3)}
    assert len(list(layered.all())) >= 3
    assert layered.layers[0].sums()[0] >= 3
    layered.put(key(1), b"new")
    layered.delete(key(1)), layered.clear(), layered.prune(), layered.close()
    assert layered.get(key(1)) == record(1)
    assert snapshot(place) == before


def test_a_copy_of_a_directory_in_use_says_that_its_log_is_not_read(tmp_path: Path) -> None:
    """Once; what is in the database itself is found, what is in the log only is a miss."""
    tier = DiskTier(str(tmp_path / "cache"))
    tier.put(key(1), record(1))
    tier.close()
    tier.put(key(2), record(2))
    shutil.copytree(tmp_path / "cache", tmp_path / "layer")
    layer = Layer(tmp_path / "layer")
    with pytest.warns(
        CacheWarning, match=r"has a log \(cache.db-wal\), which is not read.*cuplate.cache.export"
    ) as caught:
        assert (layer.get(key(1)), layer.get(key(2))) == ((record(1), 0), (None, 0))
    assert len(caught) == 1


def test_the_writable_tier_comes_first_then_the_layers_in_order(tmp_path: Path) -> None:
    """And each look-up counts once."""
    for name, number in (("one", 1), ("two", 2)):
        tier = FilesTier(str(tmp_path / name))
        tier.put(key(5), record(number), tag="f")
        tier.put(key(5 + number), record(number), tag="f")
    top = DiskTier(str(tmp_path / "top"))
    layered = Layered(top, [Layer(tmp_path / "one"), Layer(tmp_path / "two")])
    reset()
    assert layered.get(key(5)) == record(1)
    assert layered.get(key(7)) == record(2)
    assert layered.get(key(8)) is None
    assert (stats().disk.hits, stats().disk.misses) == (2, 1)
    top.put(key(5), b"top", tag="f")
    assert layered.get(key(5)) == b"top"
    assert [k for k, _ in layered.entries("f", limit=2)] == [key(5), key(6)]
    assert [payload for k, _, payload in layered.all() if k == key(5)] == [b"top"]


def test_layers_of_the_policy_are_used_without_a_writable_directory_as_well(tmp_path: Path) -> None:
    """``disk=False`` is about what is written."""
    FilesTier(str(tmp_path / "layer")).put(key(1), record(1))
    for more in ({"disk": False}, {"directory": tmp_path / "top"}):
        tier = disk_tier(CachePolicy(layers=[tmp_path / "layer"], **more))
        assert tier.get(key(1)) == record(1)
        assert tier.put(key(2), record(2)) is ("directory" in more)


@pytest.mark.parametrize("kind", ["absent", "empty", "a file", "others can write", "a damaged database"])
def test_a_layer_that_cannot_be_used_is_said_once(tmp_path: Path, kind: str) -> None:
    """Each look-up goes on to the next layer."""
    place = tmp_path / "layer"
    good = FilesTier(str(tmp_path / "good"))
    good.put(key(1), record(1))
    if kind == "a file":
        place.write_text("x")
    elif kind == "a damaged database":
        (place / "v1").mkdir(parents=True)
        (place / "v1" / "cache.db").write_bytes(b"not a database" * 1000)
    elif kind == "others can write":
        FilesTier(str(place)).put(key(1), record(2))
        (place / FOLDER).chmod(0o777)
    elif kind == "empty":
        place.mkdir()
    layered = Layered(DiskTier(str(tmp_path / "top")), [Layer(place), Layer(tmp_path / "good")])
    with pytest.warns(CacheWarning, match="read-only layer") as caught:
        assert [layered.get(key(1)) for _ in range(3)] == [record(1)] * 3
    assert len(caught) == 1


@pytest.mark.parametrize("failures", [4, 5])
def test_a_hiccup_of_a_layer_is_a_miss_and_five_in_a_row_turn_it_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """A frozen run must not end over one stale handle of a file server."""
    FilesTier(str(tmp_path / "layer")).put(key(1), record(1))
    layer = Layer(tmp_path / "layer", on_error="ignore")

    def fail(*arguments: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "read", fail)
        assert [layer.get(key(1)) for _ in range(failures)] == [(None, 1)] * failures
    assert (layer.get(key(1))[0] == record(1), layer.off is None) == (failures < 5, failures < 5)
    assert layer._failures == (0 if failures < 5 else 5)


def test_a_damaged_entry_of_a_layer_is_a_counted_miss(tmp_path: Path) -> None:
    """It is not repaired: a layer is not written to."""
    FilesTier(str(tmp_path / "layer")).put(key(1), record(1))
    file = tmp_path / "layer" / FOLDER / "01" / key(1).hex()
    file.write_bytes(file.read_bytes()[:-5])
    layered = Layered(DiskTier(str(tmp_path / "top")), [Layer(tmp_path / "layer")])
    reset()
    with pytest.warns(CacheWarning, match="damaged"):
        assert layered.get(key(1)) is None
    assert (stats().disk.misses, stats().disk.errors) == (1, 1)
    layered.put(key(1), record(1))
    assert layered.get(key(1)) == record(1)


def test_a_forged_entry_of_a_layer_is_refused_under_a_secret(tmp_path: Path) -> None:
    """A layer that others can write is used with a secret only, and nothing of theirs gets through."""
    tier = FilesTier(str(tmp_path / "layer"), secret=b"s")
    tier.put(key(1), record(1))
    tier._folder.write(key(2), "f", seal(key(2), record(2)))
    (tmp_path / "layer" / FOLDER).chmod(0o777)
    layer = Layer(tmp_path / "layer", secret=b"s")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert (layer.get(key(1)), layer.get(key(2))) == ((record(1), 0), (None, 1))


def test_a_child_reads_a_layer_that_its_parent_has_open(filled: DiskTier, tmp_path: Path) -> None:
    """Connections do not cross a fork."""
    filled.close()
    layer = Layer(tmp_path / "cache")
    assert layer.get(key(1)) == (record(1), 0)
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(send, b"fine" if layer.get(key(1)) == (record(1), 0) else b"wrong")
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(receive, 10) == b"fine"
    os.close(send), os.close(receive)
    assert layer.get(key(1)) == (record(1), 0)


# ---- without a compiler ----------------------------------------------------------------------------------------------

NO_COMPILER = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("cuda.bindings.") and name.endswith("nvrtc"):
            raise ImportError(f"No module named {name!r}")
sys.meta_path.insert(0, Absent())
import cuplate
from cuplate.backend.cuda import nvrtc
try:
    nvrtc.toolchain()
except cuplate.ToolchainError:
    print("no compiler")
from typing import Literal
from jaxtyping import Float32
from cuplate import Array, Inline, specialize
"""
KERNELS = '''
@specialize(Inline("""
#include "mine.h"
#include <cuda_fp16.h>
extern "C" __global__ void {{ kernel }}({{ args }}) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) out[i] = x[i] * __half2float(__float2half(SCALE)) + {{ add }};
}
"""), options=cuplate.Options(include=["{include}"]))
def scale(x: Float32[Array, " N"], *, add: int = 0) -> Float32[Array, " N"]:
    raise NotImplementedError

@specialize(Inline("""
extern "C" __global__ void {{ kernel }}({{ args }}) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) out[i] = x[i] + {{ add }};
}
"""))
def plain(x: Float32[Array, " N"], *, add: int = 0) -> Float32[Array, " N"]:
    raise NotImplementedError
'''


def test_a_frozen_process_over_a_layer_needs_no_compiler(tmp_path: Path) -> None:
    """The layer says which toolchain its kernels are from; headers of the toolkit need not be there either (B56)."""
    pytest.importorskip("cuda.bindings.nvrtc")
    include = tmp_path / "include"
    include.mkdir()
    (include / "mine.h").write_text("#define SCALE 2.0f\n")
    kernels = KERNELS.replace("{include}", str(include))
    fill = (
        "import cuplate\nfrom jaxtyping import Float32\nfrom cuplate import Array, Inline, specialize\n"
        f"{kernels}\n"
        f"cuplate.configure(directory={str(tmp_path / 'cache')!r})\n"
        "print(scale.compile(arch='sm_90').code.hex()[:8], plain.compile(arch='sm_90').code.hex()[:8])\n"
        f"print(cuplate.cache.export({str(tmp_path / 'layer')!r}).kernels)\n"
    )
    run(fill, tmp_path, "7f454c46 7f454c46\n2\n")
    shutil.rmtree(tmp_path / "cache")
    frozen = (
        f"{NO_COMPILER}\n{kernels}\n"
        f"cuplate.configure(disk=False, frozen=True, layers=[{str(tmp_path / 'layer')!r}])\n"
        "for f in (scale, plain):\n"
        "    r = f.inspect(arch='sm_90'); print(r.origin, r.cubin.function)\n"
        "try: plain.compile(add=5, arch='sm_90')\n"
        "except cuplate.FrozenCacheError as e: print(e.kernel, e.parameters, len(e.key), 'source' in e.nearest)\n"
    )
    said = "no compiler\ndisk scale\ndisk plain\nplain add=5 64 True\n"
    run(frozen, tmp_path, said)
    assert_no_cuda = "import importlib.util; assert importlib.util.find_spec('cuda') is None\n"
    run(assert_no_cuda + frozen, tmp_path, said, packages=packages_without_cuda(tmp_path / "packages"))
    (include / "mine.h").write_text("#define SCALE 3.0f\n")  # another header is another kernel
    stale = frozen.replace("for f in (scale, plain):", "for f in (plain,):") + (
        "try: scale.compile(arch='sm_90')\nexcept cuplate.FrozenCacheError as e: print('header mine.h' in e.nearest)\n"
    )
    run(stale, tmp_path, "no compiler\ndisk plain\nplain add=5 64 True\nTrue\n")
    (include / "mine.h").write_text("#define SCALE 2.0f\n")
    thawed = frozen.replace("frozen=True, ", "").replace("FrozenCacheError as e: print(", "ToolchainError as e: print(")
    done = subprocess.run(
        [sys.executable, "-c", thawed.replace("e.kernel, e.parameters, len(e.key), 'source' in e.nearest", "'none'")],
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("no compiler\ndisk scale\ndisk plain\nnone\n", "")


def run(script: str, folder: Path, said: str, *, packages: Path | None = None) -> None:
    """Run a script, with these installed packages only if they are given, and compare what it says."""
    file = folder / "script.py"
    file.write_text(script)
    sources = str(Path(cuplate.__file__).parents[1])
    alone = {} if packages is None else {"env": {**os.environ, "PYTHONPATH": f"{sources}{os.pathsep}{packages}"}}
    flags = [] if packages is None else ["-S"]
    done = subprocess.run([sys.executable, *flags, str(file)], capture_output=True, text=True, **alone)
    assert (done.stdout, done.stderr) == (said, "")


def packages_without_cuda(folder: Path) -> Path:
    """What an installation without any extra has: no NVRTC, no bindings; nor the pure `cuda.core` here."""
    folder.mkdir()
    needed = ("jinja2", "markupsafe", "numpy", "jaxtyping", "wadler_lindig", "diskcache")
    for site in {Path(str(__import__(name).__file__)).parents[1] for name in needed}:
        for package in site.iterdir():
            if not package.name.startswith(("cuda", "cupy", "nvidia", "_")) and package.suffix != ".pth":
                (folder / package.name).symlink_to(package)
    return folder
