"""A manifest built where no GPU is: whole or not at all, run frozen from it, and what is missing named."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from jaxtyping import Float32

import cuplate
from cuplate import Array, FrozenCacheError, Inline, Manifest, ManifestError, SettingError, Wanted, cache, specialize
from cuplate.backend.cuda import nvrtc
from cuplate.build import build, lacking
from cuplate.cache import front
from cuplate.cache.layers import Layer
from cuplate.errors import ToolchainError
from cuplate.key import request_of
from tests.bindings import first

KERNEL = """extern "C" __global__ void {{ kernel }}({{ args }})
{
    const {{ index_t }} i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) out[i] = x[i] + %s;
}"""
SAXPY = first.saxpy.wanted()


@specialize(Inline(KERNEL % "{{ add }}"))
def plus(x: Float32[Array, " N"], *, add: Literal[1, 2, 3] = 1) -> Float32[Array, " N"]:
    """x + add."""
    return x + np.float32(add)


@specialize(Inline(KERNEL % "{% if broken %}\n        no_such_name{% else %}1{% endif %}"))
def breakable(x: Float32[Array, " N"], *, broken: bool = False) -> Float32[Array, " N"]:
    """Does not compile when asked not to."""
    raise NotImplementedError


@specialize(Inline("// __TIME__\n" + KERNEL % "__TIME__[0]"))
def unstorable(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
    """Reads the time of the compile."""
    raise NotImplementedError


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Unchecked builds of the CPU backend, and nothing of a test's mounts left behind."""
    monkeypatch.setenv("CUPLATE_CPU_CHECK", "off")
    monkeypatch.setattr(front._process, "mounts", {})
    monkeypatch.setattr(front._process, "mounted", [])
    yield
    for function in (plus, breakable, unstorable):
        function.cache_clear()


def test_a_manifest_becomes_one_file_for_all_architectures(tmp_path: Path) -> None:
    """A key for each, sealed; nothing is left beside it; what was built before is a hit."""
    target = tmp_path / "b.cuplate"
    built = build(Manifest([SAXPY]), ["sm_80", "sm_90a", "sm_90"], target)
    assert [row.origin for row in built.warmed] == ["compile"] * 3
    assert built.exported is not None and built.exported.kernels == 2
    layer = Layer(target)
    assert all(layer.get(bytes.fromhex(row.key))[0] for row in built.warmed)
    again = build([first.saxpy], ["sm_80"], target)
    assert [row.origin for row in again.warmed] == ["disk"] and Layer(target).sums()[0] < layer.sums()[0]
    assert os.listdir(tmp_path) == ["b.cuplate"]
    assert "1 kernels" in str(again)


def test_a_directory_is_replaced_whole(tmp_path: Path) -> None:
    """For packages that would rather carry files; it is a layer as well."""
    target = tmp_path / "kernels"
    build([first.saxpy], ["sm_80", "sm_90"], target)
    built = build([first.saxpy], ["sm_80"], target)
    assert Layer(target).sums()[0] == 3  # the kernel, the way to it, and its compiler
    assert Layer(target).get(bytes.fromhex(built.warmed.rows[0].key))[0]
    assert os.listdir(tmp_path) == ["kernels"]


def test_a_directory_that_cannot_be_put_in_place_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At an interrupt between the two renames too."""
    target = tmp_path / "kernels"
    build([first.saxpy], ["sm_80"], target)
    rename = os.rename

    def interrupted(old: str, new: str, **more: Any) -> None:
        if old.endswith(".new") and new == str(target):
            raise KeyboardInterrupt
        rename(old, new, **more)

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build([first.saxpy], ["sm_80"], target)
    assert Layer(target).sums()[0] == 3 and os.listdir(tmp_path) == ["kernels"]


def test_a_failure_writes_nothing_and_names_each_specialization(tmp_path: Path) -> None:
    """With the template's line; what was there stays."""
    target = tmp_path / "b.cuplate"
    build([first.saxpy], ["sm_80"], target)
    before = target.read_bytes()
    gone = Wanted(function="tests.bindings.first:gone")
    wanted = [breakable.wanted(broken=True), breakable.wanted(), unstorable, gone]
    built = build(wanted, ["sm_80"], target)
    failed = {Wanted.parse(row.wanted).function.partition(":")[2]: row.error for row in built.warmed.failed}
    assert set(failed) == {"breakable", "unstorable", "gone"}
    assert "no_such_name" in failed["breakable"] and "<inline>:5" in failed["breakable"]
    assert "cannot be stored" in failed["unstorable"] and "cannot be imported" in failed["gone"]
    assert built.exported is None and "3 of 4 failed" in str(built)
    assert target.read_bytes() == before and os.listdir(tmp_path) == ["b.cuplate"]


@pytest.mark.parametrize(
    ("archs", "told"), [(["sm_12"], "no such architecture"), (["90"], "no such"), ([], "for some architecture")]
)
def test_an_architecture_that_nobody_knows_is_refused_before_the_work(
    archs: list[str], told: str, tmp_path: Path
) -> None:
    """As is none."""
    with pytest.raises(SettingError, match=told):
        build([first.saxpy], archs, tmp_path / "b.cuplate")


def test_a_directory_or_a_file_of_something_else_is_not_replaced(tmp_path: Path) -> None:
    """Nor one that is named like a file; nor is a missing parent made."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "code.py").touch()
    (tmp_path / "b.cuplate").mkdir()
    (tmp_path / "run.json").touch()
    os.mkfifo(tmp_path / "pipe.cuplate")
    for target in ("src", "b.cuplate", "none/b.cuplate", "run.json", "pipe.cuplate"):
        with pytest.raises(SettingError):
            build([first.saxpy], ["sm_80"], tmp_path / target)
    assert (tmp_path / "src" / "code.py").exists() and (tmp_path / "run.json").is_file()


def test_equal_manifests_give_equal_bundles_but_for_the_time(tmp_path: Path) -> None:
    """Kernel by kernel: the record holds how long its compile took, so a second build takes it from the store."""
    one, two = tmp_path / "one.cuplate", tmp_path / "two.cuplate"
    for target in (one, two):
        build([first.saxpy, plus], ["sm_80"], target)
    assert sorted(Layer(one).all()) == sorted(Layer(two).all())


# ---- mounted and frozen ----------------------------------------------------------------------------------------------


def forget(function: Any) -> None:
    """As a new process: nothing loaded, rendered, or on the disk."""
    function.cache_clear()
    cache.clear()


def test_a_frozen_process_runs_from_a_mounted_bundle_and_names_what_is_missing(tmp_path: Path) -> None:
    """A call that was built runs; of another the error has the manifest's line and the command."""
    x = np.arange(5, dtype=np.float32)
    build([plus.wanted(add=2)], ["sm_90"], tmp_path / "b.cuplate", host=True)
    forget(plus)
    cuplate.mount(tmp_path / "b.cuplate")
    with cuplate.configure(frozen=True, disk=False):
        before = cache.stats(all_threads=True).compile.compiles
        assert plus(x, add=2).tolist() == (x + 2).tolist()
        assert plus.inspect("float32", add=2, arch="sm_90").origin == "disk"
        with pytest.raises(FrozenCacheError) as missing:
            plus(x, add=3)
        with pytest.raises(FrozenCacheError) as elsewhere:
            plus.compile("float32", add=2, arch="sm_80")
        assert cache.stats(all_threads=True).compile.compiles == before
    assert Wanted.parse(missing.value.entry) == plus.wanted(add=3)
    assert "cuplate build MANIFEST --host -o" in missing.value.try_
    assert "cuplate build MANIFEST --arch sm_80 -o" in elsewhere.value.try_
    assert str(tmp_path / "b.cuplate") in missing.value.searched
    assert "add=2 -> add=3" in missing.value.nearest


def test_the_entry_of_the_error_is_what_the_manifest_lacks(tmp_path: Path) -> None:
    """Pasted into it, the next build has the kernel."""
    with cuplate.configure(frozen=True, disk=False), pytest.raises(FrozenCacheError) as missing:
        plus.compile("float32", add=3, arch="sm_90")
    text = Manifest([plus.wanted(add=1)]).text().replace("[\n", f"[\n{missing.value.entry},\n")
    (tmp_path / "run.json").write_text(text)
    build(tmp_path / "run.json", ["sm_90"], tmp_path / "b.cuplate")
    forget(plus)
    with cuplate.configure(frozen=True, disk=False, layers=[tmp_path / "b.cuplate"]):
        assert plus.inspect("float32", add=3, arch="sm_90").origin == "disk"


def test_where_no_host_compiler_is_a_bundles_kernels_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what can be told of the key; a kernel for another check mode, or none, is the compiler's error as before."""
    x = np.arange(5, dtype=np.float32)
    build([plus.wanted(add=2)], [], tmp_path / "b.cuplate", host=True)
    forget(plus)
    monkeypatch.setenv("CUPLATE_CPU_COMPILER", "no-such-compiler")
    with cuplate.configure(disk=False), pytest.raises(ToolchainError, match="'no-such-compiler' was not found"):
        plus(x, add=2)
    with cuplate.configure(disk=False, layers=[tmp_path / "b.cuplate"]):
        for _ in range(2):
            assert plus(x, add=2).tolist() == (x + 2).tolist()
        with pytest.raises(ToolchainError, match="'no-such-compiler' was not found"):
            plus(x, add=1)
        with cuplate.configure(frozen=True), pytest.raises(FrozenCacheError, match="not hold this kernel"):
            plus(x, add=1)
        monkeypatch.setenv("CUPLATE_CPU_CHECK", "full")
        with pytest.raises(ToolchainError, match="'no-such-compiler' was not found"):
            plus(x, add=2)


def test_frozen_another_compilers_kernel_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer NVRTC, or an older one that some package brought along, decides nothing where nothing is compiled."""
    build([plus.wanted(add=2)], ["sm_90"], tmp_path / "b.cuplate")
    forget(plus)
    monkeypatch.setattr(nvrtc, "_toolchain", replace(nvrtc.toolchain(), build="another"))
    with cuplate.configure(frozen=True, disk=False, layers=[tmp_path / "b.cuplate"]):
        before = cache.stats(all_threads=True).compile.compiles
        assert plus.inspect("float32", add=2, arch="sm_90").origin == "disk"
        with pytest.raises(FrozenCacheError, match="not hold this kernel"):
            plus.compile("float32", add=1, arch="sm_90")
        assert cache.stats(all_threads=True).compile.compiles == before
    with cuplate.configure(disk=False, layers=[tmp_path / "b.cuplate"]):
        assert plus.inspect("float32", add=2, arch="sm_90").origin == "compile"


# ---- what one lacks --------------------------------------------------------------------------------------------------


def test_what_a_bundle_lacks_is_told_whatever_compiler_made_it(tmp_path: Path) -> None:
    """By what was asked for, not by the key, which has the compiler in it."""
    build([plus, plus.wanted(add=2)], ["sm_80"], tmp_path / "b.cuplate")
    layer = Layer(tmp_path / "b.cuplate")
    found = lacking(Manifest([plus.wanted(add=2), plus.wanted(add=3)]), ["sm_80", "sm_90a"], lambda k: layer.get(k)[0])
    assert {(row.arch, dict(Wanted.parse(row.wanted).parameters)["add"]) for row in found} == {
        ("sm_80", 3), ("sm_90a", 3), ("sm_90a", 2)
    }  # fmt: skip
    other = {}  # as if another compiler had made it: other keys, the same requests
    for key, tag, payload in layer.all():
        other[key if tag.startswith("(") else key[::-1]] = payload[::-1] if tag == "(request)" else payload
    again = lacking(Manifest([plus.wanted(add=2)]), ["sm_80"], other.get)
    assert again == []
    notes = [key for key, tag, _ in layer.all() if tag == "(request)"]
    swapped = {**other, notes[0]: other[notes[1]], notes[1]: other[notes[0]]}
    (led,) = lacking(Manifest([plus.wanted(add=2)]), ["sm_80"], swapped.get)
    assert "leads to another kernel" in led.reason
    (gone,) = lacking(Manifest([Wanted(function="tests.bindings.first:gone")]), ["sm_80"], other.get)
    assert "cannot be imported" in gone.reason


def test_requests_of_hosts_and_gpus_never_meet() -> None:
    """Nor do those of checked and unchecked builds, whose difference no compiler is needed to tell."""
    pairs = (("schema", "1"), ("source", "s"), ("arch", "sm_80"))
    gpu = request_of((*pairs, ("compiler", "nvrtc 13.5.37")))
    host = [
        request_of((*pairs, ("compiler", family), ("host flags", flags), ("host cpu", cpu), ("cpu backend", "b")))
        for family, flags, cpu in (
            ("gcc 12", "-O2", "c"),
            ("clang 15", "-O2 -fx", "c"),
            ("gcc 12", "-O1 -DCUPLATE_CHECK", "c"),
            ("gcc 12", "-O2", "d"),
        )
    ]
    assert host[0] == host[1] and len({gpu, *host}) == 4 and None not in (gpu, *host)
    assert request_of(pairs) is None


def test_no_manifest_is_an_error(tmp_path: Path) -> None:
    """Before anything is compiled."""
    with pytest.raises(ManifestError):
        build(tmp_path / "none.json", ["sm_80"], tmp_path / "b.cuplate")
