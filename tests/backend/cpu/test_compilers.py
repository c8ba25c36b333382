"""Which compiler is found, and what identifies it."""

from __future__ import annotations

import os
import stat

import pytest

from cuplate.backend.cpu.compilers import HostCompiler, cpu_features, environment, find_compiler
from cuplate.errors import ToolchainError
from cuplate.options import Options


def tool(directory, name: str, version: str) -> None:
    """A program that answers as a compiler does."""
    path = directory / name
    path.write_text(f'#!/bin/sh\ncase "$1" in -dump*) echo 13.1.0;; *) echo "{version}";; esac\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def only(tmp_path, monkeypatch):
    """A PATH with nothing else than /bin/sh's needs, and no ziglang."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("cuplate.backend.cpu.compilers._zig", lambda: None)
    return tmp_path


def test_the_systems_compiler_is_preferred(only):
    """c++, then g++, then clang++."""
    tool(only, "clang++", "Ubuntu clang version 18.1.3 (1ubuntu1)")
    assert (find_compiler().family, find_compiler().version) == ("clang", "18.1.3")


def test_gcc_comes_before_clang(only):
    """And c++ before both."""
    tool(only, "clang++", "clang version 18.1.3")
    tool(only, "g++", "g++ (Debian 13.1.0-1) 13.1.0")
    found = find_compiler()
    assert (found.family, found.command, found.version) == ("gcc", ("g++",), "13.1.0")
    assert found.build.startswith("g++ (Debian 13.1.0-1) 13.1.0")


def test_none_found_names_both_ways_out(only):
    """A system compiler, or the extra."""
    with pytest.raises(ToolchainError) as caught:
        find_compiler()
    text = str(caught.value)
    assert "the CPU backend needs a C++ compiler and found none" in text
    assert "c++, g++, clang++ on PATH, or the package ziglang" in text
    assert 'pip install "cuplate[cpu]"' in text


def test_a_chosen_one_that_is_not_there_is_named(only):
    """With the variable that chose it."""
    with pytest.raises(ToolchainError, match="'g\\+\\+-99' was not found") as caught:
        find_compiler("g++-99")
    assert "CUPLATE_CPU_COMPILER=g++-99" in str(caught.value)


def test_one_that_does_not_run_is_said_so(only):
    """What it said is shown."""
    path = only / "g++"
    path.write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    path.chmod(0o755)
    with pytest.raises(ToolchainError, match="does not run") as caught:
        find_compiler()
    assert "broken" in str(caught.value)


def test_the_identity_has_version_and_target(compiler: HostCompiler):
    """For keys; and asking again asks no process."""
    assert compiler.version[0].isdigit()
    assert compiler.version in compiler.build
    assert os.uname().machine in compiler.build
    assert os.uname().release not in compiler.build
    assert find_compiler("zig" if compiler.family == "zig" else "g++") is compiler


def test_flags_decide_and_hold_no_path(compiler: HostCompiler, tmp_path):
    """Options that matter change them, those of GPUs do not."""
    plain = compiler.flags(check="off", options=Options())
    assert plain == compiler.flags(check="off", options=Options(max_registers=32, include=tmp_path, arch_specific=True))
    others = [
        compiler.flags(check="full", options=Options()),
        compiler.flags(check="off", options=Options(std="c++20")),
        compiler.flags(check="off", options=Options(fast_math=True)),
        compiler.flags(check="off", options=Options(debug=True)),
        compiler.flags(check="off", options=Options(define={"A": 1})),
        compiler.flags(check="off", options=Options(define={"A": 2})),
    ]
    assert len({plain, *others}) == 7
    assert not any("/" in flag for flags in (plain, *others) for flag in flags)
    assert compiler.flags(check="full", options=Options()) == compiler.flags(check="bounds", options=Options())


def test_the_cpu_is_part_of_the_identity(compiler: HostCompiler):
    """A kernel for one machine's instructions may not run on another's."""
    assert compiler.cpu == cpu_features()
    assert len(compiler.cpu) == 12


def test_the_environment_is_in_english(monkeypatch):
    """And without search paths of other projects."""
    monkeypatch.setenv("CPATH", "/x")
    monkeypatch.setenv("LANG", "fr_FR.UTF-8")
    given = environment()
    assert given["LC_ALL"] == "C"
    assert "CPATH" not in given
