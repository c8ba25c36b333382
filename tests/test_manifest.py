"""Specializations as a file: by type and value, each once, in a fixed order, for several writers."""

from __future__ import annotations

import enum
import json
import math
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuplate import ArraySpec, Manifest, ManifestError, Wanted
from cuplate.manifest import add_to_file
from cuplate.wanted import find_object

SRC = Path(__file__).parents[1] / "src"


class Mode(enum.Enum):
    """A parameter that is one of two."""

    FAST = 1
    EXACT = 2


class Flag(enum.Flag):
    """A parameter that is several of two."""

    ONE = 1
    OTHER = 2


@dataclass(frozen=True)
class Shape:
    """A parameter with parts."""

    m: int
    ratio: float
    area: int = field(init=False, default=2)


def wanted(function: str = "m:f", **values: Any) -> Wanted:
    """An entry of a function that nobody imports."""
    return Wanted(function=function, **values)


VALUES = [
    None, True, 1, 1.0, 0.0, -0.0, 0.1, 5e-324, math.inf, -math.inf, 10**30, "", "ümlaut \"'\n", (1, (2.0, "x")),
    int, np.float32(0.1), np.int64(3), math.nan, struct.unpack("<d", b"\1\0\0\0\0\0\xf8\x7f")[0],
]  # fmt: skip


@pytest.mark.parametrize("value", [*VALUES, Mode.EXACT, Flag.ONE | Flag.OTHER, Shape(3, -0.0)], ids=repr)
def test_values_come_back_by_type_and_bits(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each value of a parameter survives the file: its type, and of a float its bits."""
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or _this_module())
    entry = wanted(parameters=(("p", value),))
    (read,) = Manifest.parse(Manifest([entry]).text())
    ((name, back),) = read.parameters
    assert (name, type(back), repr(back)) == ("p", type(value), repr(value))
    if isinstance(value, float):
        assert struct.pack("<d", back) == struct.pack("<d", value)
    assert read == entry


def _this_module() -> Any:
    module = type(sys)(__name__)
    vars(module).update(Mode=Mode, Flag=Flag, Shape=Shape)
    return module


def test_values_of_other_types_stay_apart() -> None:
    """1, True, 1.0, -0.0, 0.0 and two NaNs are seven entries."""
    values = [1, True, 1.0, 0.0, -0.0, VALUES[-1], VALUES[-2]]
    assert len(Manifest(wanted(parameters=(("p", v),)) for v in values)) == 7


@pytest.mark.parametrize(
    "value", [object(), np.str_("a"), np.datetime64("2020-01-01"), type(None), Flag(0), enum.Enum("Local", "A").A]
)
def test_a_value_that_could_not_be_read_again_is_an_error(value: Any) -> None:
    """With its name and type: one that is written all the same would spoil the file."""
    with pytest.raises(ManifestError, match=r"parameter 'p' cannot be written down.\n  given"):
        wanted(parameters=(("p", value),)).line()


def test_who_adds_to_a_manifest_imports_nothing(tmp_path: Path) -> None:
    """The values of other programs stay as they are; who wants to have them imports them."""
    entry = {"function": "away:f", "parameters": {"p": [{"enum": "away:Mode.A"}, 1.0]}}
    text = json.dumps({"cuplate_manifest": 1, "specializations": [entry]})
    (tmp_path / "run.json").write_text(text)
    add_to_file(str(tmp_path / "run.json"), [wanted("m:f")])
    found = Manifest.read(tmp_path / "run.json", imports=False)
    assert [e.fields() for e in found] == [entry, {"function": "m:f"}]
    assert len(found | Manifest.parse(text, imports=False)) == 2
    with pytest.raises(ManifestError, match="away"):
        Manifest.read(tmp_path / "run.json")


def test_a_module_that_ends_the_program_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script without a guard, say: it does not take whoever imports it along."""
    (tmp_path / "unguarded.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ManifestError, match=r"unguarded:f cannot be imported(.|\n)*SystemExit: 0"):
        find_object("unguarded:f")


ARRAYS = [
    None,
    ArraySpec(None, "float32"),
    ArraySpec((), "int8"),
    ArraySpec((64, 0), "bfloat16"),
    ArraySpec((64, 32), "float32", (1, 64), 4),
]


@pytest.mark.parametrize("spec", ARRAYS, ids=str)
def test_arrays_come_back(spec: ArraySpec | None) -> None:
    """Absent ones, dtypes alone, sizes, strides and alignments."""
    (read,) = Manifest.parse(Manifest([wanted(arrays=(("a", spec),), sm_count=132)]).text())
    assert (read.arrays, read.sm_count) == ((("a", spec),), 132)


def test_a_manifest_is_text_with_one_line_for_each_specialization() -> None:
    """In one order, whatever the order of what it is made of; so a diff shows what was added."""
    a, b = wanted("m:f", parameters=(("tile", 16),)), wanted("m:g", arrays=(("x", ArraySpec(None, "float32")),))
    text = Manifest([b, a, b]).text()
    assert text == (
        '{\n "cuplate_manifest": 1,\n "specializations": [\n'
        '  {"function": "m:f", "parameters": {"tile": 16}},\n'
        '  {"function": "m:g", "arrays": {"x": "float32"}}\n ]\n}\n'
    )
    assert text == Manifest([a, b]).text() == (Manifest([a]) | Manifest([b])).text()
    assert json.loads(Manifest().text()) == {"cuplate_manifest": 1, "specializations": []}


def test_variants_are_merged_and_decide_nothing() -> None:
    """The same specialization from two machines is one entry that names both machines' variants."""
    first, second = wanted(variants=(("sm_90", "wgmma"),)), wanted(variants=(("sm_80", "mma"),))
    (merged,) = Manifest([first]) | Manifest([second])
    assert merged == first == second
    assert merged.variants == (("sm_80", "mma"), ("sm_90", "wgmma"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is not JSON"),
        ("[]", "no manifest of this version"),
        ('{"cuplate_manifest": 2, "specializations": []}', "version 2"),
        ('{"cuplate_manifest": 1, "specializations": [], "x": 1}', "nothing else"),
        ('{"cuplate_manifest": 1, "specializations": {}}', "nothing else"),
        ('{"cuplate_manifest": 1, "specializations": [{"function": "f"}]}', "a function is module:name"),
        ('{"cuplate_manifest": 1, "specializations": [{"function": "m:f", "paramters": {}}]}', "an entry has"),
        ('{"cuplate_manifest": 1, "specializations": [{"function": "m:f", "arrays": {"a": "int33"}}]}', "no array"),
        ('{"cuplate_manifest": 1, "specializations": [{"function": "m:f", "arrays": []}]}', "an object"),
        ('{"cuplate_manifest": 1, "specializations": [{"function": "m:f", "sm_count": true}]}', "a count"),
        (
            '{"cuplate_manifest": 1, "specializations": [{"function": "m:f", "parameters": {"p": {"q": 1}}}]}',
            "no value of a parameter",
        ),
    ],
)
def test_what_is_no_manifest_is_refused(text: str, told: str, tmp_path: Path) -> None:
    """With what is wrong, and in which file; nothing is left out in silence."""
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(ManifestError, match=told) as caught:
        Manifest.read(tmp_path / "run.json")
    assert caught.value.file == str(tmp_path / "run.json")


def test_a_manifest_that_is_not_there_is_an_error() -> None:
    """With its path."""
    with pytest.raises(ManifestError, match="cannot be read"):
        Manifest.read("/nowhere/run.json")


def test_manifests_and_entries_pickle_small() -> None:
    """A manifest travels as its text."""
    manifest = Manifest(wanted(parameters=(("tile", n),)) for n in range(3))
    assert pickle.loads(pickle.dumps(manifest)) == manifest
    assert len(pickle.dumps(manifest)) < len(manifest.text()) + 100


def test_several_processes_add_to_one_file(tmp_path: Path, later: Callable[..., Any] = subprocess.Popen) -> None:
    """None loses what another has added, and nobody leaves a file behind."""
    path = tmp_path / "run.json"
    code = (
        "import sys; from cuplate import Wanted; from cuplate.manifest import add_to_file\n"
        "for n in range(20):\n"
        "    add_to_file(sys.argv[1], [Wanted(function='m:f', parameters=(('p', sys.argv[2] + str(n)),))])"
    )
    env = {**os.environ, "PYTHONPATH": str(SRC)}
    running = [later([sys.executable, "-c", code, str(path), name], env=env) for name in "ab"]
    assert [process.wait() for process in running] == [0, 0]
    assert len(Manifest.read(path)) == 40
    assert os.listdir(tmp_path) == ["run.json"]


def test_what_is_no_plain_file_is_left_alone(tmp_path: Path) -> None:
    """Who records as root to /dev/null would replace it by a file."""
    os.mkfifo(tmp_path / "pipe")
    for write in (Manifest().write, lambda path: add_to_file(str(path), [])):
        with pytest.raises(ManifestError, match="no plain file"):
            write(tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo() and os.listdir(tmp_path) == ["pipe"]


def test_another_file_is_left_alone(tmp_path: Path) -> None:
    """What is no manifest is not written over."""
    (tmp_path / "notes.txt").write_text("notes")
    with pytest.raises(ManifestError):
        add_to_file(str(tmp_path / "notes.txt"), [wanted()])
    assert (tmp_path / "notes.txt").read_text() == "notes"
