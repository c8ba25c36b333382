"""What a program used: reduced to the least that renders the same, noted off the hot path, for any architecture."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from jaxtyping import Float32

import cuplate
from cuplate import Array, ArraySpec, CacheWarning, Inline, Manifest, ManifestError, Options, Wanted, specialize
from cuplate.grid import limits_for
from cuplate.walk import find_walk, recorders
from tests.bindings import first, more
from tests.doubles import Gpu, install

KERNEL = 'extern "C" __global__ void {{ kernel }}({{ args }}) { /* %s */ }'


@specialize(Inline(KERNEL % ""))
def plain(x: Float32[Array, "M N"]) -> Float32[Array, "M N"]:
    """Of no size, order or alignment."""
    raise NotImplementedError


@specialize(Inline(KERNEL % "{{ N }} {{ scale }} {{ x.aligned(16) }} {{ x.order }} {% if y %}y{% endif %}"), static="N")
def reads_facts(
    x: Float32[Array, "M N"], y: Float32[Array, " N"] | None = None, *, scale: float = 1.0
) -> Float32[Array, "M N"]:
    """Of all of them."""
    raise NotImplementedError


@specialize(Inline(KERNEL % "fast"), when=("M >= 128", "arch >= 90"), options=Options(arch_specific=True))
def fast(x: Float32[Array, "M N"]) -> Float32[Array, "M N"]:
    """For many rows on a newer architecture; has no parameter."""
    raise NotImplementedError


@specialize(Inline(KERNEL % "{{ tile }}"), variants=[fast], grid="min(sm_count, 4)")
def chosen(x: Float32[Array, "M N"], *, tile: Literal[8, 16] = 8) -> Float32[Array, "M N"]:
    """What is left."""
    raise NotImplementedError


@specialize(Inline(KERNEL % "{{ x.aligned(16) }}"), block="32 * min(sm_count, 8)")
def by_device(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
    """Its block follows from the product."""
    raise NotImplementedError


FUNCTIONS = (plain, reads_facts, fast, chosen, by_device)


@pytest.fixture(autouse=True)
def nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other tests have called is none of these: a recording begins with all plans of the process."""
    walks = [function.reload.__self__ for function in (*FUNCTIONS, first.saxpy)]
    monkeypatch.setattr(import_module("cuplate.record"), "live_walks", lambda: walks)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """A recording GPU of 132 multiprocessors; the functions of this module forget it again."""
    gpu = install(monkeypatch)
    limits = replace(limits_for("sm_90"), sm_count=132)
    monkeypatch.setattr(gpu, "device_facts", lambda number: SimpleNamespace(arch="sm_90", limits=limits, name="double"))
    yield gpu
    for function in FUNCTIONS:
        function.reload()


def entries(recording: Any, function: Any) -> list[Wanted]:
    """What was recorded of one function, without what names it."""
    return [entry for entry in recording.manifest if entry.function.endswith(f":{function.__name__}")]


def arrays(recording: Any, function: Any) -> list[dict[str, Any]]:
    """The arrays of each entry, as the file has them."""
    return [entry.fields()["arrays"] for entry in entries(recording, function)]


def test_a_size_that_decides_nothing_is_not_recorded(gpu: Gpu) -> None:
    """Calls of three shapes and two alignments are one specialization, and one line."""
    with cuplate.record() as recording:
        for shape in ((3, 5), (300, 7), (64, 64)):
            plain(gpu.array(shape))
        plain(gpu.array((4, 5))[1:])
    assert arrays(recording, plain) == [{"x": "float32"}]


def test_facts_that_the_template_reads_are_recorded(gpu: Gpu) -> None:
    """Constants of axes, alignment, order, the presence of an optional array, and parameters by value."""
    with cuplate.record() as recording:
        x = gpu.array((200, 33))
        reads_facts(x)
        reads_facts(x, gpu.array(33), scale=-0.0)
        reads_facts(x[1:])
        reads_facts(gpu.array((33, 200)).T)
    told = [entry.fields() for entry in entries(recording, reads_facts)]
    assert {repr(entry["arrays"]) for entry in told} == {
        repr({"x": "float32[64, 33]", "y": None}),
        repr({"x": "float32[64, 33]", "y": "float32[33]"}),
        repr({"x": {"array": "float32[64, 33]", "alignment": 4}, "y": None}),
        repr({"x": {"array": "float32[64, 33]", "strides": [1, 64]}, "y": None}),
    }
    assert sorted(repr(entry["parameters"]) for entry in told) == ["{'scale': -0.0}"] + ["{'scale': 1.0}"] * 3


def test_what_a_variant_asks_is_recorded_for_other_architectures_too(gpu: Gpu) -> None:
    """A size that decides on sm_90a alone is kept on whatever device it was called; small sizes fall together."""
    with cuplate.record() as recording:
        for rows in (3, 100, 4096, 5000):
            chosen(gpu.array((rows, 8)))
        chosen(gpu.array((4096, 8)), tile=8)
    found = entries(recording, chosen)
    assert [entry.fields().get("parameters") for entry in found].count({"tile": 8}) == 1  # rules the variant out
    walk = find_walk(found[0].function)
    ran = {(walk.inspection.prepared(entry, arch)[0].name, arch) for entry in found for arch in ("sm_80", "sm_90")}
    assert ran == {("chosen", "sm_80"), ("chosen", "sm_90"), ("fast", "sm_90")}
    assert len(found) <= 4
    assert all(name in ("fast", "chosen") for entry in found for _, name in entry.variants)


def test_the_number_of_multiprocessors_is_recorded_where_it_decides(gpu: Gpu) -> None:
    """And nowhere else: not for a grid, which is no part of the text."""
    with cuplate.record() as recording:
        by_device(gpu.array(100))
        chosen(gpu.array((4, 4)))
    (entry,) = entries(recording, by_device)
    assert entry.sm_count == 132
    assert all(other.sm_count is None for other in entries(recording, chosen))


def test_a_recording_that_starts_late_is_whole(gpu: Gpu) -> None:
    """Plans in memory are told of at the start, those of the hot path too."""
    x = gpu.array((3, 5))
    for _ in range(3):
        plain(x)
    with cuplate.record() as recording:
        plain(x)
        assert len(entries(recording, plain)) == 1


def test_plans_that_were_dropped_are_told_of_when_they_are_made_again(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function of more plans than are kept loses none that is still in use."""
    monkeypatch.setattr("cuplate.walk.PLANS", 2)
    x = gpu.array((3, 5))
    y = gpu.array((3, 6))
    for scale in (1.0, 2.0, 3.0):
        reads_facts(x, scale=scale)
    with cuplate.record() as recording:
        reads_facts(x, scale=1.0)  # on the hot path, and of no plan that `_ready` has
        reads_facts(y)
    scales = [dict(entry.parameters)["scale"] for entry in entries(recording, reads_facts)]
    assert scales.count(1.0) == 2


def test_a_hit_tells_nobody(gpu: Gpu) -> None:
    """The hot path knows of no recording, and when it has ended nobody is told at all."""
    x = gpu.array((3, 5))
    before = len(recorders)
    with cuplate.record() as recording:
        plain(x)
        noted: list[Any] = []
        recorders.append(lambda walk, use, specialization: noted.append(use))
        plain(x)
        plain(x)
        recorders.pop()
        assert noted == []
    assert len(recorders) == before
    reads_facts(x)
    assert len(entries(recording, reads_facts)) == 0


CALLS: list[tuple[Any, dict[str, Any]]] = [
    (first.saxpy, {"x": ArraySpec((1000,), "float32"), "y": ArraySpec((1000,), "float32")}),
    (first.softmax, {"x": ArraySpec((77, 100), "float32"), "threads": 32}),
    (first.transpose, {"a": ArraySpec((70, 90), "float32")}),
    (first.transpose, {"a": ArraySpec((70, 90), "float32", (1, 70)), "tile": 16}),
    (first.histogram, {"x": ArraySpec((500,), "int32"), "bins": 32}),
    (first.batched_matmul, {"a": ArraySpec((2, 3, 8, 9), "float32"), "b": ArraySpec((2, 3, 9, 7), "float32")}),
    (first.stencil, {"x": ArraySpec((2, 3), "float32")}),
    (first.row_max, {"x": ArraySpec((2, 3), "float32")}),
    (first.saxpy, {"x": ArraySpec((2**31,), "float32"), "y": ArraySpec((2**31,), "float32")}),
    (more.activate, {"x": ArraySpec((100,), "float32"), "kind": more.Activation.RELU}),
    (more.add, {"x": ArraySpec((100,), "float16"), "y": ArraySpec((100,), "float16")}),
    (more.cross, {"a": ArraySpec((9, 3), "float32"), "b": ArraySpec((9, 3), "float32")}),
    (more.scale_rows, {"x": ArraySpec((70000 * 64, 3), "float32"), "s": ArraySpec((70000 * 64,), "float32")}),
    (more.scale_vectors, {"x": ArraySpec((100,), "float32")}),
    (more.scale_vectors, {"x": ArraySpec((100,), "float32", alignment=4)}),
    (chosen, {"x": ArraySpec((4096, 33), "float32")}),
    (chosen, {"x": ArraySpec((4096, 33), "float32"), "tile": 8}),
    (reads_facts, {"x": ArraySpec((100, 31), "float32", alignment=8)}),
]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
@pytest.mark.parametrize(("function", "given"), CALLS, ids=lambda value: getattr(value, "__name__", ""))
def test_an_entry_renders_what_the_call_renders(function: Any, given: dict[str, Any], arch: str) -> None:
    """Through the text of the file, on architectures that the call was never on: the same content key."""
    inspection = function.reload.__self__.inspection
    (entry,) = Manifest.parse(Manifest([function.wanted(**given)]).text())
    variants, content = inspection.prepared(entry, arch)
    meant = inspection._described((), given, arch)
    assert content.key == meant.content.key
    assert variants is meant.chosen.variants


def test_an_architectures_suffix_is_the_options_business() -> None:
    """`sm_90a` names the same device as `sm_90`: the kernel is built as a call on it asks for it."""
    entry = chosen.wanted(x=ArraySpec((4096, 33), "float32"))
    inspection = find_walk(entry.function).inspection
    keys = {inspection.prepared(entry, arch)[1].key for arch in ("sm_90", "sm_90a")}
    assert {dict(key.ingredients)["arch"] for key in keys} == {"sm_90a"}
    plainly = plain.wanted(x=ArraySpec((4, 3), "float32"))
    assert find_walk(plainly.function).inspection.prepared(plainly, "sm_90a")[1].arch == "sm_90"


def test_a_function_that_nobody_could_import_is_told_once(gpu: Gpu) -> None:
    """It is left out of the manifest, not written down wrongly."""

    @specialize(Inline(KERNEL % ""))
    def local(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        raise NotImplementedError

    with cuplate.record() as recording, pytest.warns(CacheWarning, match="no other process finds it"):
        local(gpu.array(3))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            local(gpu.array(4))
    assert entries(recording, local) == []


def test_a_recording_refuses_a_file_of_something_else(tmp_path: Path) -> None:
    """At its start, and leaves the file alone."""
    (tmp_path / "notes").write_text("notes")
    with pytest.raises(ManifestError):
        cuplate.record(tmp_path / "notes")
    with pytest.raises(ManifestError, match="cannot be written"):
        cuplate.record(tmp_path / "no" / "run.json")
    assert (tmp_path / "notes").read_text() == "notes"


def test_a_fault_of_the_file_ends_the_recording_and_no_call(
    gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one warning."""
    monkeypatch.setattr(sys.modules["cuplate.record"], "_SHARE", 0)  # nothing is left for later, however slow the disk
    with cuplate.record(tmp_path / "run.json") as recording:
        (tmp_path / "run.json").write_text("something else")
        with pytest.warns(CacheWarning, match="ends here"):
            plain(gpu.array((3, 5)))
        plain(gpu.array((3, 6)))
    assert recording.manifest
    assert (tmp_path / "run.json").read_text() == "something else"


SCRIPT = """
import multiprocessing, os, sys
import numpy as np
from tests.bindings.first import saxpy, stencil

if __name__ == "__main__":
    saxpy(2.0, np.ones(5, np.float32), np.ones(5, np.float32))
    child = os.fork()
    if child == 0:
        stencil(np.ones((4, 4), np.float32))
        sys.stdout.flush()
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    own(np.ones(5, np.float32))
    given = dict(args=(np.ones(5, np.float32),), kwargs={"mode": Mode.B})
    child = multiprocessing.get_context("spawn").Process(target=own, **given)
    child.start()
    child.join()
    assert child.exitcode == 0
"""


def test_the_environment_records_children_and_scripts(tmp_path: Path) -> None:
    """`CUPLATE_RECORD`: from the first call on, in one file for all, what is the script's by its module's name."""
    kernel = (
        'extern "C" __global__ void {{ kernel }}({{ args }}) { out[threadIdx.x] = x[threadIdx.x] * {{ mode.value }}; }'
    )
    script = (
        "from __future__ import annotations\nimport enum\nfrom jaxtyping import Float32\n"
        "from cuplate import Array, Inline, specialize\n"
        "class Mode(enum.Enum):\n    A, B = 1, 2\n"
        f"@specialize(Inline({kernel!r}), block=5)\n"
        "def own(x: Float32[Array, ' N'], *, mode: Mode = Mode.A) -> Float32[Array, ' N']:\n"
        "    raise NotImplementedError\n"
    )
    (tmp_path / "program.py").write_text(script + SCRIPT)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "program.py")],
        env={
            **os.environ,
            "CUPLATE_RECORD": str(tmp_path / "run.json"),
            "CUPLATE_CPU_CHECK": "off",
            "PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], str(Path(__file__).parents[1])]),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = [entry.function for entry in Manifest.read(tmp_path / "run.json", imports=False)]
    assert found == [*["program:own"] * 2, "tests.bindings.first:saxpy", "tests.bindings.first:stencil"]
    text = (tmp_path / "run.json").read_text()
    assert '"program:Mode.A"' in text and '"program:Mode.B"' in text
    assert str(tmp_path) not in text and os.uname().nodename not in text
