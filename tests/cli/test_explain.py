"""Why two kernels are two entries, and what a call would miss."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cuplate.cache import DiskTier
from cuplate.cubin import encode
from tests.cache.entries import kernel, put
from tests.cli.conftest import Command

pytest.importorskip("diskcache")


def test_an_entry_is_compared_with_its_nearest(command: Command, directory: Path) -> None:
    """Of the same function the one with the fewest differences, the ingredients with both values."""
    tier = DiskTier(str(directory), write_wait_s=20.0)
    far, near = put(tier, 1, arch="sm_80", source="// other\n"), put(tier, 1, arch="sm_80")
    put(tier, 1, function="g")
    mine = put(tier, 1, source="// x\n")
    put(tier, 2, arch="sm_80", source="// y\n")
    tier.close()
    done = command("explain", near, "-d", directory)
    assert done.code == 0
    assert done.lines[0].split() == ["DIFFERS", far[:16], near[:16]]
    assert done.lines[1].split()[0] == "source"
    told = command("explain", mine, far, "-d", directory, "--json").json
    assert (told["key"], told["other"]) == (mine, far)
    assert [row["name"] for row in told["differences"]] == ["source", "arch"]
    assert told["differences"][1] == {"name": "arch", "other": "sm_80", "value": "sm_90"}


def test_a_difference_of_sources_is_shown_line_by_line(command: Command, keys: dict[str, str]) -> None:
    """Where both records hold one; and the parameters that made it."""
    done = command("explain", keys["f"], keys["g"])
    assert "parameters  number=20" in done.out
    assert "-// one kernel\n+// 16\n __global__ void k() {}" in done.out
    assert "+// 16" in command("explain", keys["f"], keys["g"], "--json").json["source_diff"]


def test_the_same_entry_twice_has_no_difference(command: Command, keys: dict[str, str]) -> None:
    """Said in a sentence."""
    assert "have the same ingredients" in command("explain", keys["f"], keys["f"]).out


def test_the_only_entry_of_a_function_has_no_neighbour(command: Command, keys: dict[str, str]) -> None:
    """Code 1: what was asked for is not there."""
    done = command("explain", keys["g"])
    assert (done.code, done.out) == (1, "")
    assert "is the only entry of g" in done.err


def test_explain_wants_one_or_two_keys(command: Command, keys: dict[str, str]) -> None:
    """More is a wrong usage, and so is an architecture beside a key; what is no kernel is named."""
    assert command("explain", keys["f"], keys["g"], keys["host"]).code == 2
    assert command("explain", keys["f"], "--arch", "sm_90").code == 2
    done = command("explain", (b"memo" * 8).hex())
    assert (done.code, "is no kernel" in done.err) == (1, True)


def test_a_damaged_neighbour_is_passed_over(command: Command, directory: Path) -> None:
    """The next one is compared instead."""
    tier = DiskTier(str(directory), write_wait_s=20.0)
    mine, next_one = put(tier, 1), put(tier, 3, arch="sm_80")
    key, cubin = kernel(2)
    tier.put(key, encode(cubin)[:-1], tag="f")
    tier.close()
    assert command("explain", mine, "-d", directory, "--json").json["other"] == next_one


# ---- a call ----------------------------------------------------------------------------------------------------------

MODULE = """
from jaxtyping import Float, Float32
from cuplate import Array, Inline, specialize

@specialize(Inline('extern "C" __global__ void {{ kernel }}({{ args }}) { out[0] = {{ tile }} + {{ label }}; }'))
def f(x: Float[Array, " N"], *, tile: int = 1, label: str = "1") -> Float[Array, " N"]:
    raise NotImplementedError

nothing = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the working directory, which is not on Python's path."""
    pytest.importorskip("cuda.core")
    (tmp_path / "cli_explained.py").write_text(MODULE)
    (tmp_path / "cli_broken.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "cli_explained"  # type: ignore[misc]
    sys.modules.pop("cli_explained", None)


def test_a_call_is_explained(command: Command, module: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A miss with what differs, code 1; a hit, code 0, no use of the entry. Values are Python's, arrays, or text."""
    call = ("explain", f"{module}:f", "x=float32", "--arch", "sm_90", "-d", directory)
    done = command(*call)
    assert (done.code, done.out) == (1, "f: miss: nothing is stored for this function\n")
    from cuplate import cache

    with cache.configure(directory=directory):
        sys.modules[module].f.compile("float32", arch="sm_90", tile=2)
    done = command(*call, "tile=3")
    assert done.code == 1
    assert "source (tile=2, label='1' -> tile=3, label='1') differs" in done.out
    assert (command(*call, "tile=2").code, command(*call, "tile=2", "--json").json["hit"]) == (0, True)
    assert command("explain", f"{module}:f", "x=float32[33]", "--arch", "sm_90", "-d", directory, "tile=2").code == 0
    assert "label='N'" in command(*call, "tile=2", "label=N").out
    monkeypatch.setattr("cuplate.variants.NEAREST", 0)  # it is not among the nearest, so it is asked for by its key
    assert command(*call, "tile=2").code == 0
    with cache.configure(directory=directory):
        cache.disk_tier().close()  # which writes uses down
        assert {entry.uses for entry in cache.disk_tier().listing()} == {0}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["cli_none:f"], 2, "cannot be imported"),
        ([":f"], 2, "cannot be imported"),
        (["cli_broken:f"], 2, "cannot be imported: ZeroDivisionError"),
        (["cli_explained:f", "arch=sm_90"], 2, "--arch sm_90"),
        (["cli_explained:f", "tile={[]:1}", "x=float32", "--arch", "sm_90"], 2, "tile"),
        (["cli_explained:g"], 2, "has no attribute 'g'"),
        (["cli_explained:nothing"], 2, "is not a specialized function"),
        (["cli_explained:f", "tile"], 2, "is no NAME=VALUE"),
        (["cli_explained:f", "tiel=3", "x=float32", "--arch", "sm_90"], 2, "tiel"),
        (["cli_explained:f", "x=float32", "--arch", "sm_1"], 3, "sm_1"),
    ],
)
def test_a_call_that_cannot_be_is_named(
    command: Command, module: str, arguments: list[str], code: int, said: str
) -> None:
    """In the library's words, without a traceback."""
    done = command("explain", *arguments)
    assert (done.code, done.out) == (code, "")
    assert said in done.err
