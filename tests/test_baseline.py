"""The record of what kernels take: its form, what is compared, and what is said of a file that cannot be used."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from jaxtyping import Float32

from cuplate import Array, ArraySpec, CompileError, Inline, specialize
from cuplate.baseline import FORMAT, Baseline, BaselineError, Figures, GrowthError, Record, read, table, write
from cuplate.errors import ArgumentError, SettingError
from tests.bindings import first, more

SAXPY = f"{first.__name__}.saxpy(x=float32, y=float32)"
SM90 = "sm_90, nvrtc 13"


def record(*figures: int | None, build: str = "13.0.88") -> Record:
    """Registers, spills, stack and shared memory, 0 where not given."""
    return Record(Figures(*(figures + (0,) * 4)[:4]), build)


def recorded(path: Path, f: Any, **keywords: Any) -> dict[Any, Record]:
    """What an update writes for one kernel; the file is at `path` then."""
    baseline = Baseline(path, update=True)
    baseline.check(f, **keywords)
    baseline.save()
    return read(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the record of a test is."""
    return tmp_path / "record.json"


@pytest.fixture(scope="module")
def target() -> str:
    """sm_90 under the compiler that is here, as the record calls it."""
    report = first.saxpy.inspect(arch="sm_90")
    name, _, build = report.cubin.toolchain.partition(" ")
    return f"sm_90, {name} {build.split('.')[0]}"


def lowered(path: Path, by: int = 5, **figures: int) -> None:
    """Edit every record of a file: as if the kernel had taken fewer registers, or what `figures` says."""
    content = json.loads(path.read_text())
    for targets in content["kernels"].values():
        for values in targets.values():
            values["registers"] -= by
            values.update(figures)
    path.write_text(json.dumps(content))


# the form of the file -------------------------------------------------------------------------------------------------


def test_one_line_is_one_kernel_on_one_architecture(path: Path) -> None:
    """The file is JSON with a format, sorted, and each line of figures stands by itself in a diff."""
    records = {
        ("b.twice(x=float32)", "sm_90, nvrtc 13"): record(12, 8, 16, 48, build="13.5.37"),
        ("b.twice(x=float32)", "sm_80, nvrtc 13"): record(10, build="13.5.37"),
        ("a.café(x=float32, mode='\"')", "sm_80, nvrtc 12"): record(9, None, None, 0, build="12.9"),
    }
    write(path, records)
    assert path.read_text(encoding="utf-8") == (
        """{
  "format": "cuplate resources 1",
  "kernels": {
    "a.café(x=float32, mode='\\"')": {
      "sm_80, nvrtc 12": {"registers": 9, "spill_bytes": null, "stack_bytes": null, "shared_bytes": 0, "build": "12.9"}
    },
    "b.twice(x=float32)": {
      "sm_80, nvrtc 13": {"registers": 10, "spill_bytes": 0, "stack_bytes": 0, "shared_bytes": 0, "build": "13.5.37"},
      "sm_90, nvrtc 13": {"registers": 12, "spill_bytes": 8, "stack_bytes": 16, "shared_bytes": 48, "build": "13.5.37"}
    }
  }
}
"""
    )
    assert read(path) == records


def test_no_records_are_a_file_too(path: Path) -> None:
    """A record without kernels can be written and read; no file is no records."""
    assert read(path) == {}
    write(path, {})
    assert json.loads(path.read_text()) == {"format": FORMAT, "kernels": {}}
    assert read(path) == {}


def test_a_file_is_written_whole_or_not_at_all(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails leaves the old file and nothing beside it."""
    write(path, {("k", SM90): record(1)})
    before = path.read_bytes()

    def fail(*names: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write(path, {("k", SM90): record(2)})
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_link_stays_a_link(path: Path) -> None:
    """A record that is a symbolic link is written where it points."""
    path.symlink_to(path.with_name("real.json"))
    write(path, {("k", SM90): record(1)})
    assert path.is_symlink() and read(path.with_name("real.json")) == {("k", SM90): record(1)}


def test_folders_are_made(path: Path) -> None:
    """The record may lie in a folder that is not there yet."""
    write(path.parent / "new" / "folder" / "record.json", {})
    assert read(path.parent / "new" / "folder" / "record.json") == {}


GOOD = '{"registers": 1, "spill_bytes": 0, "stack_bytes": 0, "shared_bytes": 0, "build": "13"}'


def body(text: str) -> str:
    """A file of the right format around the value of its kernels."""
    return f'{{"format": "{FORMAT}", "kernels": {text}}}'


@pytest.mark.parametrize(
    ("text", "said", "given"),
    [
        ("", "is no JSON: Expecting value", ":1: nothing"),
        ('{\n"format": 3,\n"kernels" {}}', "is no JSON: Expecting ':' delimiter", ':3: "kernels" {}}'),
        ('{\n<<<<<<< HEAD\n"a": 1\n=======\n>>>>>>> b\n}', "has an unresolved merge", ":2: <<<<<<< HEAD"),
        (body('{"k": 1, "k": 2}'), "is damaged: 'k' stands there twice", ""),
        ("[" * 100_000, "is damaged", ""),
        ("[]", "is no record that this version of cuplate reads", '"format": null'),
        ("{}", "is no record that this version of cuplate reads", '"format": null'),
        ('{"format": "cuplate resources 0"}', "is no record that this", '"format": "cuplate resources 0"'),
        (f'{{"format": "{FORMAT}"}}', "is damaged: KeyError: 'kernels'", ""),
        (body("[]"), "is damaged: AttributeError", ""),
        (body('{"k": {"t": []}}'), "is damaged: ValueError: a record holds", ""),
        (body('{"k": {"t": {"registers": 1}}}'), "is damaged: ValueError: a record holds registers", ""),
        (body(f'{{"k": {{"t": {GOOD.replace("1,", "-1,")}}}}}'), "are no counts", ""),
        (body(f'{{"k": {{"t": {GOOD.replace("1,", "true,")}}}}}'), "are no counts", ""),
        (body(f'{{"k": {{"t": {GOOD.replace("1,", "1.5,")}}}}}'), "are no counts", ""),
        (body(f'{{"k": {{"t": {GOOD.replace(chr(34) + "13" + chr(34), "13")}}}}}'), "build 13 is no text", ""),
    ],
    ids=range(16),
)
@pytest.mark.parametrize("update", [False, True], ids=["compare", "update"])
def test_damaged_file_is_said_and_left_alone(path: Path, text: str, said: str, given: str, update: bool) -> None:
    """Damage is a BaselineError with file, reason and remedy, to an update too, which does not write over it."""
    path.write_text(text)
    baseline = Baseline(path, update=update)
    with pytest.raises(BaselineError) as caught:
        baseline.check(first.saxpy, arch="sm_90")
        baseline.save()
    assert said in str(caught.value) and "record.json" in str(caught.value)
    assert given in caught.value.given
    assert "--cuplate-update" in caught.value.try_
    assert path.read_text() == text


@pytest.mark.parametrize("what", ["folder", "bytes"])
def test_file_that_cannot_be_read(path: Path, what: str) -> None:
    """A folder in its place, and bytes that are no text, are said to be so."""
    if what == "folder":
        path.mkdir()
    else:
        path.write_bytes(b"\xff\xfe{}")
    with pytest.raises(BaselineError, match=r"record\.json cannot be read: "):
        read(path)


# recording ------------------------------------------------------------------------------------------------------------


def test_update_records_what_the_compiler_says(path: Path, target: str) -> None:
    """Registers, spills, stack and static shared memory, under function, dtypes, parameters, architecture, major."""
    found = recorded(path, first.transpose, arch=["sm_90"], tile=16, rows=8)
    (((kernel, where), entry),) = found.items()
    assert kernel == f"{first.__name__}.transpose(a=float32, tile=16, rows=8)"
    assert where == target
    resources = first.transpose.compile(arch="sm_90", tile=16, rows=8).resources
    assert entry.figures == Figures(resources.registers, 0, 0, 16 * 17 * 4)
    assert entry.build == first.transpose.inspect(arch="sm_90").cubin.toolchain.split()[1]


def test_update_keeps_what_it_did_not_look_at(path: Path, target: str) -> None:
    """Other kernels, architectures and compilers stay in the file, with a run of only some tests."""
    others = {("other.f()", target): record(1), (SAXPY, "sm_90, nvrtc 1"): record(2), (SAXPY, "sm_100"): record(3)}
    write(path, others)
    found = recorded(path, first.saxpy, arch="sm_90")
    assert {**others, (SAXPY, target): found[SAXPY, target]} == found


def test_update_writes_nothing_where_nothing_changed(path: Path, target: str) -> None:
    """Equal figures of another build leave the file as it is, byte for byte."""
    found = recorded(path, first.saxpy, arch="sm_90")
    write(path, {(SAXPY, target): Record(found[SAXPY, target].figures, "13.0.1")})
    before = path.stat().st_mtime_ns, path.read_bytes()
    assert recorded(path, first.saxpy, arch="sm_90")[SAXPY, target].build == "13.0.1"
    assert (path.stat().st_mtime_ns, path.read_bytes()) == before


def test_save_says_what_it_did(path: Path, target: str) -> None:
    """How many kernels are new, how many were known, and each figure that is different."""
    recorded(path, first.saxpy, arch="sm_90")
    lowered(path)
    baseline = Baseline(path, update=True)
    baseline.check(first.saxpy, arch=["sm_80", "sm_90"])
    saved = baseline.save()
    assert (saved.new, saved.known) == (1, 1)
    ((kernel, where, what, was, now, _),) = [
        (c.kernel, c.target, c.what, c.was, c.now, c.allowed) for c in saved.changes
    ]
    assert (kernel, where, what, was) == (SAXPY, target, "registers", now - 5)


def test_dtypes_sizes_and_layouts_are_part_of_the_name(path: Path) -> None:
    """What chooses another kernel is in its name: an open dtype, a given shape, strides, alignment."""
    baseline = Baseline(path, update=True)
    baseline.check(more.add, "float16", "float16", arch="sm_90")
    baseline.check(more.add, "float64", "float64", arch="sm_90")
    baseline.check(first.sgemm, 1.0, ArraySpec((4, 5), strides=(8, 1)), ArraySpec((5, 6)), arch="sm_90")
    baseline.check(first.saxpy, x=ArraySpec(alignment=4), arch="sm_90")
    names = [kernel.partition(".")[2].rpartition(".")[2] for kernel, _ in baseline.made]
    assert "add(x=float16, y=float16)" in names and "add(x=float64, y=float64)" in names
    assert "sgemm(a=float32[4, 5], b=float32[5, 6]), a strides [8, 1] aligned to 256" in names
    assert "saxpy(x=float32, y=float32), x aligned to 4" in names


def test_two_kernels_of_one_name_are_refused(path: Path) -> None:
    """Two functions that a record could not tell apart are an error, not a record of the last."""

    def make(text: str) -> Any:
        @specialize(Inline('extern "C" __global__ void {{ kernel }}({{ args }}) {' + text + "}"))
        def same(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
            """Something."""
            return x

        return same

    baseline = Baseline(path, update=True)
    baseline.check(make("out[0] = 1;"), arch="sm_90")
    baseline.check(make("out[0] = 1;"), arch="sm_90")
    with pytest.raises(BaselineError, match="two kernels have one name"):
        baseline.check(make("out[0] = 2;"), arch="sm_90")


# comparing ------------------------------------------------------------------------------------------------------------


def test_equal_figures_pass(path: Path) -> None:
    """The kernel that was recorded passes, and its resources are returned for each architecture."""
    recorded(path, first.saxpy, arch=["sm_80", "sm_90"])
    baseline = Baseline(path)
    found = baseline.check(first.saxpy, arch=["sm_80", "sm_90"])
    assert {arch: r.registers for arch, r in found.items()}.keys() == {"sm_80", "sm_90"}
    assert baseline.smaller == [] and baseline.made == {}


def test_growth_fails_with_a_table(path: Path, target: str) -> None:
    """More registers than recorded: a table of target, figure, was, now, allowed, then the kernel and what to do."""
    now = recorded(path, first.saxpy, arch="sm_90")[SAXPY, target]
    lowered(path, build="13.0.1")
    with pytest.raises(GrowthError) as caught:
        Baseline(path).check(first.saxpy, arch="sm_90")
    n = now.figures.registers or 0
    assert str(caught.value).splitlines() == [
        "saxpy: the kernel takes more than record.json records.",
        "  given      target           figure     was  now  allowed",
        f"             {target}  registers    {n - 5}   {n}        {n - 5}",
        f"  called as  {SAXPY}",
        "  try        pytest --cuplate-update, if it is meant to",
        f"  compiler   {now.build}, recorded with 13.0.1",
    ]
    error = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(error, AssertionError)
    assert [(c.what, c.was, c.now) for c in error.changes] == [("registers", n - 5, n)]


SPILLING = """
extern "C" __global__ void __launch_bounds__({bounds}) {{{{ kernel }}}}({{{{ args }}}})
{{
    float v[48];
    #pragma unroll
    for (int k = 0; k < 48; ++k) v[k] = x[threadIdx.x + k * 1024];
    __syncthreads();
    float sum = 0;
    #pragma unroll
    for (int k = 0; k < 48; ++k) sum = sum * v[k] + v[47 - k];
    out[threadIdx.x] = sum;
}}
"""


def test_new_spills_fail_though_registers_fell(path: Path, tmp_path: Path) -> None:
    """A launch bound that makes the compiler spill is found by spills and stack, in a real compile."""
    template = tmp_path / "heavy.cu.j2"
    template.write_text(SPILLING.format(bounds="256"))

    @specialize(template)
    def heavy(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        """A polynomial of 48 elements."""
        raise NotImplementedError

    recorded(path, heavy, arch="sm_90")
    template.write_text(SPILLING.format(bounds="1024, 2"))
    heavy.reload()
    with pytest.raises(GrowthError) as caught:
        Baseline(path).check(heavy, arch="sm_90")
    assert [(c.what, c.was) for c in caught.value.changes] == [("spill_bytes", 0), ("stack_bytes", 0)]
    assert all(c.now > 0 for c in caught.value.changes)
    allow = {"spill_bytes": 10_000, "stack_bytes": 10_000}
    baseline = Baseline(path)
    baseline.check(heavy, arch="sm_90", allow=allow)
    assert [c.what for c in baseline.smaller] == ["registers"]


@pytest.mark.parametrize(
    ("figures", "allow", "passes"),
    [
        ({"shared_bytes": 1000}, {"shared_bytes": 88}, True),
        ({"shared_bytes": 1000}, {"shared_bytes": 87}, False),
        ({"shared_bytes": 1000}, {"shared_bytes": "8%"}, False),
        ({"shared_bytes": 1000}, {"shared_bytes": "9%"}, True),
        ({"shared_bytes": 1000}, {"registers": 100}, False),
        ({"shared_bytes": 0}, {"shared_bytes": "100%"}, False),
        ({"shared_bytes": None, "stack_bytes": None}, {}, True),
    ],
    ids=str,
)
@pytest.mark.parametrize("place", ["setting", "check"])
def test_growth_that_is_allowed(path: Path, figures: Any, allow: Any, passes: bool, place: str) -> None:
    """Growth up to a number or a percentage passes, as a setting or in one check; what is not known is not compared."""
    recorded(path, first.transpose, arch="sm_90", tile=16, rows=8)  # 1088 bytes of shared memory
    lowered(path, 0, **figures)
    baseline = Baseline(path, allow=allow if place == "setting" else None)
    keywords = {"allow": allow} if place == "check" else {}
    if passes:
        baseline.check(first.transpose, arch="sm_90", tile=16, rows=8, **keywords)
    else:
        with pytest.raises(GrowthError):
            baseline.check(first.transpose, arch="sm_90", tile=16, rows=8, **keywords)


def test_a_check_says_more_than_the_setting(path: Path) -> None:
    """`allow` of one check replaces the setting for the figures that it names, and only for those."""
    recorded(path, first.saxpy, arch="sm_90")
    lowered(path, 5)
    baseline = Baseline(path, allow={"registers": 5})
    baseline.check(first.saxpy, arch="sm_90", allow={"stack_bytes": 1})
    with pytest.raises(GrowthError):
        baseline.check(first.saxpy, arch="sm_90", allow={"registers": 4})


@pytest.mark.parametrize(
    "allow", [{"register": 4}, {"registers": -1}, {"registers": "4 %"}, {"registers": ""}], ids=str
)
def test_allowed_growth_is_a_figure_and_a_number(path: Path, allow: Any) -> None:
    """A misspelt figure and what is no number are refused, with what there is."""
    with pytest.raises(SettingError, match="allowed growth is a figure and a number") as caught:
        Baseline(path, allow=allow)
    assert "registers, spill_bytes, stack_bytes, shared_bytes" in caught.value.allowed


def test_smaller_figures_pass_and_are_remembered(path: Path) -> None:
    """A kernel that takes less than recorded passes; what could be recorded anew is told."""
    recorded(path, first.saxpy, arch="sm_90")
    lowered(path, -3)
    baseline = Baseline(path)
    baseline.check(first.saxpy, arch="sm_90")
    ((change, *_),) = [(c,) for c in baseline.smaller]
    assert (change.what, change.was - change.now) == ("registers", 3)


def test_kernel_that_is_not_recorded_fails(path: Path, target: str) -> None:
    """No file, another parameter, architecture or major version of the compiler: a failure that says what to do."""
    with pytest.raises(BaselineError, match=r"record\.json does not record this kernel"):
        Baseline(path).check(first.saxpy, arch="sm_90")
    write(path, {(SAXPY, "sm_90, nvrtc 1"): record(1)})
    with pytest.raises(BaselineError) as caught:
        Baseline(path).check(first.saxpy, arch="sm_90")
    assert str(caught.value).splitlines() == [
        "saxpy: record.json does not record this kernel.",
        f"  given      {target}",
        "  allowed    sm_90, nvrtc 1",
        f"  called as  {SAXPY}",
        "  try        pytest --cuplate-update, and keep the file with the code",
    ]


def test_architectures_come_from_the_setting_or_the_check(path: Path) -> None:
    """A check's own list replaces the setting; with neither, the message names both."""
    baseline = Baseline(path, update=True, arch=("sm_80",))
    assert list(baseline.check(first.saxpy)) == ["sm_80"]
    assert list(baseline.check(first.saxpy, arch=("sm_86", "sm_90"))) == ["sm_86", "sm_90"]
    with pytest.raises(ArgumentError, match="arch= is needed") as caught:
        Baseline(path).check(first.saxpy)
    assert "cuplate_arch" in caught.value.try_


def test_a_kernel_that_does_not_compile_is_not_recorded(path: Path) -> None:
    """A compile error comes through with the architecture, and nothing is noted."""

    @specialize(Inline('extern "C" __global__ void {{ kernel }}({{ args }}) { out[0] = y; }'))
    def broken(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        """x."""
        return x

    baseline = Baseline(path, update=True)
    with pytest.raises(CompileError) as caught:
        baseline.check(broken, arch=["sm_90", "sm_80"])
    assert caught.value.__notes__ == ["compiling for sm_90"]
    assert baseline.made == {}


def test_what_a_worker_found_is_taken_over(path: Path) -> None:
    """Plain values carry records and smaller figures from one process to another."""
    worker = Baseline(path, update=True)
    worker.check(first.saxpy, arch=["sm_80", "sm_90"])
    other = Baseline(path, update=True)
    other.absorb(json.loads(json.dumps(worker.export())))
    assert other.made == worker.made and len(other.made) == 2
    recorded(path, first.saxpy, arch="sm_90")
    lowered(path, -1)
    worker, other = Baseline(path), Baseline(path)
    worker.check(first.saxpy, arch="sm_90")
    other.absorb(json.loads(json.dumps(worker.export())))
    assert other.smaller == worker.smaller != []
    assert table(other.smaller, kernels=True).endswith(SAXPY)
