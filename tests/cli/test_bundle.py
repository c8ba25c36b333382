"""From a manifest to a bundle on the command line, and what is told of one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cuplate import Manifest, Wanted
from cuplate.cache.bundle import write_bundle
from cuplate.cache.comparing import compare
from cuplate.cache.layers import Layer
from cuplate.cubin import encode
from cuplate.seal import seal
from tests.bindings import first, more
from tests.cache.entries import kernel
from tests.cli.conftest import Command

SAXPY, SQUARE = first.saxpy.wanted(), more.square.wanted()


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """Of two functions."""
    Manifest([SAXPY, SQUARE]).write(tmp_path / "run.json")
    return tmp_path / "run.json"


def bundle(path: Path, *numbers: int, **more: str) -> Path:
    """Kernels that no compiler was needed for."""
    kernels = [kernel(number, **more) for number in numbers]  # type: ignore[arg-type]
    write_bundle(str(path), [(key, cubin.function, seal(key, encode(cubin))) for key, cubin in kernels])
    return path


def test_build_writes_what_bundle_shows_and_verifies(manifest: Path, tmp_path: Path, whole_command: Command) -> None:
    """One after the other, as a release does it."""
    target = tmp_path / "b.cuplate"
    built = whole_command("build", manifest, "--arch", "sm_80,sm_90a", "--arch", "sm_100", "-o", target)
    assert (built.code, built.err) == (0, "") and f"{target}: 6 kernels" in built.out
    listed = whole_command("bundle", "ls", target)
    assert [line.split()[1] for line in listed.lines[1:]].count("sm_90") == 2
    assert "6 kernels for sm_100, sm_80, sm_90, compiled by nvrtc" in listed.err
    entries = whole_command("bundle", "ls", target, "--json").json
    assert {entry["function"] for entry in entries["entries"]} == {"saxpy", "square"}
    assert entries["toolchains"][0].startswith("nvrtc ")
    verified = whole_command("bundle", "verify", target, "-m", manifest, "--arch", "sm_80,sm_90,sm_100")
    assert (verified.code, verified.out) == (0, "13 entries checked, 0 wrong, 0 missing.\n")


def test_build_that_fails_says_each_and_writes_nothing(manifest: Path, tmp_path: Path, whole_command: Command) -> None:
    """Exit code 1, the reasons on stdout, each once for all architectures; and as JSON."""
    gone = tmp_path / "gone.json"
    Manifest([Wanted(function="tests.bindings.first:gone")]).write(gone)
    target = tmp_path / "b.cuplate"
    done = whole_command("build", manifest, gone, "--arch", "sm_80,sm_90", "-o", target)
    assert done.code == 1 and not target.exists()
    assert "tests.bindings.first:gone() for sm_80, sm_90:\n  tests.bindings.first:gone cannot be imported." in done.out
    assert "2 of 6 failed" in done.err
    told = whole_command("build", manifest, gone, "--arch", "sm_80", "-o", target, "--json")
    assert told.code == 1 and told.json["written"] is False
    assert [row["origin"] for row in told.json["rows"]].count("error") == 1


@pytest.mark.parametrize("options", [["--arch", "sm_1"], ["--arch", "sm_80", "-o", "/nowhere/b.cuplate"], []])
def test_build_refuses_what_cannot_be_meant(options: list[str], manifest: Path, whole_command: Command) -> None:
    """Exit code 2."""
    done = whole_command("build", manifest, "-o", manifest.with_suffix(".cuplate"), *options)
    assert done.code == 2 and done.out == ""


def test_manifests_are_merged(tmp_path: Path, whole_command: Command) -> None:
    """To stdout, or into a file that may be one of them."""
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    Manifest([SAXPY]).write(one)
    Manifest([SQUARE, SAXPY]).write(two)
    both = Manifest([SAXPY, SQUARE]).text()
    assert whole_command("manifest", "merge", one, two).out == both
    assert whole_command("manifest", "merge", one, two, "-o", one).code == 0
    assert one.read_text() == both
    (tmp_path / "no.json").write_text("{}")
    assert whole_command("manifest", "merge", one, tmp_path / "no.json").code == 2


def test_verify_names_what_is_missing(manifest: Path, tmp_path: Path, whole_command: Command) -> None:
    """Of the manifest, by its line; and an architecture without any kernel."""
    target = tmp_path / "b.cuplate"
    Manifest([SAXPY]).write(tmp_path / "one.json")
    whole_command("build", tmp_path / "one.json", "--arch", "sm_80", "-o", target)
    done = whole_command("bundle", "verify", target, "-m", manifest)
    assert done.code == 1 and f"missing for sm_80: {SQUARE.line()}" in done.out
    told = whole_command("bundle", "verify", target, "--arch", "sm_80,sm_90", "--json")
    assert (told.code, told.json["missing_archs"], told.json["archs"]) == (1, ["sm_90"], ["sm_80"])


def test_verify_names_what_is_damaged(tmp_path: Path, whole_command: Command) -> None:
    """Entry by entry; a file that is none, or was cut, is a store that cannot be read."""
    path = bundle(tmp_path / "b.cuplate", 1, 2)
    data = path.read_bytes()
    path.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    done = whole_command("bundle", "verify", path)
    assert done.code == 1 and "2 entries checked, 1 wrong." in done.out and "its seal is wrong" in done.out
    path.write_bytes(data[:-1])
    cut = whole_command("bundle", "verify", path)
    assert cut.code == 3 and "is cut, or damaged" in cut.err
    assert whole_command("bundle", "ls", tmp_path / "none.cuplate").code == 2


def test_a_sealed_bundle_needs_its_secret(tmp_path: Path, whole_command: Command) -> None:
    """For each of its commands."""
    (tmp_path / "secret").write_bytes(b"secret\n")
    key, cubin = kernel(1)
    path = tmp_path / "b.cuplate"
    write_bundle(str(path), [(key, "f", seal(key, encode(cubin), b"secret"))], secret=b"secret")
    assert whole_command("bundle", "verify", path).code == 3
    assert whole_command("bundle", "verify", path, "--secret-file", tmp_path / "secret").code == 0


def test_diff_says_what_came_what_went_and_what_changed(tmp_path: Path, whole_command: Command) -> None:
    """And by which ingredient of the key."""
    first_one = bundle(tmp_path / "a.cuplate", 1, 2)
    second = bundle(tmp_path / "b.cuplate", 2, 3)
    done = whole_command("bundle", "diff", first_one, second)
    assert done.code == 1 and done.lines[-1] == "1 added, 1 removed, 0 changed, 1 the same."
    same = whole_command("bundle", "diff", first_one, first_one)
    assert (same.code, same.out) == (0, "0 added, 0 removed, 0 changed, 2 the same.\n")
    other = bundle(tmp_path / "c.cuplate", 1, 2, source="// another template\n")
    changed = whole_command("bundle", "diff", first_one, other)
    assert changed.code == 1 and changed.out.count("source") == 2
    told = whole_command("bundle", "diff", first_one, other, "--json").json
    assert [change["ingredients"][0]["name"] for change in told["changed"]] == ["source", "source"]
    assert told["added"] == told["removed"] == []


def test_pairs_are_what_differs_least(tmp_path: Path) -> None:
    """Of two kernels of one function that another compiler has made anew each is compared with itself."""
    from cuplate.cubin import Cubin

    def made(source: str, compiler: str, registers: int) -> Cubin:
        ingredients = (("source", source), ("compiler", compiler))
        like = kernel(registers)[1]
        return Cubin(
            like.code,
            "k",
            "sm_90",
            "f",
            ingredients=ingredients,
            parameters_text="",
            resources=like.resources,
        )

    old = {"1": made("a", "nvrtc 13.0.1", 8), "2": made("b", "nvrtc 13.0.1", 16)}
    new = {"3": made("b", "nvrtc 13.5.37", 16), "4": made("a", "nvrtc 13.5.37", 9)}
    compared = compare(old, new)
    assert [(c.key, c.other) for c in compared.changed] == [("2", "3"), ("1", "4")]
    assert compared.changed[1].ingredients == (("compiler", "nvrtc 13.0.1", "nvrtc 13.5.37"),)
    assert compared.changed[1].resources == (("registers", 8, 9),)
    assert compared.differs and not (compared.added or compared.removed)


def test_cache_commands_write_and_read_bundles(
    keys: dict[str, str], tmp_path: Path, command: Command, whole_command: Command
) -> None:
    """`cuplate cache export` to a name with the suffix, `import` from it, and a look at one as at a directory."""
    path = tmp_path / "b.cuplate"
    assert command("export", path).code == 0
    assert len(Layer(path).get(bytes.fromhex(keys["f"]))[0] or b"") > 0
    shutil.rmtree(tmp_path / "cache")
    assert command("import", path).code == 0
    assert whole_command("bundle", "verify", path).code == 0
    assert len(command("ls", "--json").json["entries"]) == 3
