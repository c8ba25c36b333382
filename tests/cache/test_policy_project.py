"""``[tool.cuplate]`` in pyproject.toml: which file, what it may say, and what is wrong with it, by file and line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cuplate import project
from cuplate.cache import UNLIMITED, CachePolicy, disk_tier
from cuplate.config import settings
from cuplate.errors import CacheWarning, SettingError


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A working directory of the test's own, and nothing remembered before or after."""
    monkeypatch.delenv("CUPLATE_CACHE_DIR")
    monkeypatch.chdir(tmp_path)
    project.forget()
    yield
    project.forget()


def write(folder: Path, *lines: str, head: str = "[tool.cuplate]") -> Path:
    """A pyproject.toml; the first of `lines` is its line 4."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "pyproject.toml"
    file.write_text("\n".join(["[project]", 'name = "x"', head, *lines]) + "\n", encoding="utf-8")
    return file


def test_every_value_may_stand_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the types of TOML or as in the environment; the source is file and line."""
    file = write(
        tmp_path,
        "memory_kernels = 64",
        'disk_bytes = "2G"',
        'directory = "build/kernels"',
        'eviction = "least-frequently-used"',
        'time_to_live_s = "30d"',
        'layers = ["seeds/a", "/b"]',
        'shared = "redis://host/1"',
        'engine = "files"',
        "frozen = true",
        "single_flight = false",
        "flight_wait_s = 2.5",
        'on_error = "ignore"',
        'tune = "cached"',
        'tune_s = "2m"',
        "explain = true",
    )
    monkeypatch.setenv("CUPLATE_CACHE_SECRET", "a secret of the test")
    found = CachePolicy().effective()
    assert found.shared == "redis://host/1"
    assert (found.memory_kernels, found.disk_bytes, found.time_to_live_s) == (64, 2 << 30, 30 * 86400.0)
    assert found.directory == str(tmp_path / "build" / "kernels")
    assert found.layers == (tmp_path / "seeds" / "a", Path("/b"))
    assert (found.eviction, found.engine, found.on_error) == ("least-frequently-used", "files", "ignore")
    assert (found.frozen, found.single_flight, found.flight_wait_s) == (True, False, 2.5)
    assert (found.tune, found.tune_s) == ("cached", 120.0)
    assert settings("explain").explain
    names = [name for name, _, source in found.rows() if source.startswith(str(file))]
    assert names == [name for name, _, _ in found.rows() if name not in ("secret", "disk")]
    assert found.source("memory_kernels") == f"{file}:4"
    assert found.source("on_error") == f"{file}:15"


def test_code_and_environment_win_over_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Code, environment, file, default."""
    file = write(tmp_path, "memory_kernels = 1", "disk_bytes = 20000000", 'eviction = "none"', 'directory = "off"')
    monkeypatch.setenv("CUPLATE_DISK_BYTES", "30000000")
    found = CachePolicy(memory_kernels=3).effective()
    assert (found.memory_kernels, found.disk_bytes, found.eviction) == (3, 30_000_000, "none")
    assert (found.directory, found.disk, found.source("directory")) == (None, False, f"{file}:7")
    assert CachePolicy(directory="/x").effective().directory == "/x"
    monkeypatch.setenv("CUPLATE_CACHE_DIR", "/y")
    assert CachePolicy().effective().directory == "/y"


def test_the_nearest_file_with_the_table_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Upwards from the working directory; a file without the table, or a folder of that name, is passed over."""
    write(tmp_path, "memory_kernels = 1")
    write(tmp_path / "a", "memory_kernels = 2")
    write(tmp_path / "a" / "b", head="[tool.other]")
    (tmp_path / "a" / "b" / "c" / "pyproject.toml").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b" / "c")
    assert CachePolicy().effective().memory_kernels == 2


def test_it_is_found_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither a later chdir nor an edit changes the policy of a running process."""
    file = write(tmp_path, "memory_kernels = 1")
    write(tmp_path / "other", "memory_kernels = 2")
    assert CachePolicy().effective().memory_kernels == 1
    monkeypatch.chdir(tmp_path / "other")
    file.write_text("[tool.cuplate]\nmemory_kernels = 3\n")
    assert CachePolicy().effective().memory_kernels == 1
    project.forget()
    assert CachePolicy().effective().memory_kernels == 2


def test_a_variable_names_another_file_or_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """For a program that starts elsewhere, and for one that wants no file."""
    write(tmp_path, "memory_kernels = 1")
    file = write(tmp_path / "other", "memory_kernels = 2")
    monkeypatch.setenv("CUPLATE_CONFIG", str(file))
    assert CachePolicy().effective().memory_kernels == 2
    monkeypatch.setenv("CUPLATE_CONFIG", "off")
    assert CachePolicy().effective().memory_kernels == 256
    monkeypatch.setenv("CUPLATE_CONFIG", str(tmp_path / "none.toml"))
    with pytest.raises(SettingError, match=r"CUPLATE_CONFIG names a file that cannot be read"):
        CachePolicy().effective()


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("memory_kernel = 3", ["no key 'memory_kernel'", "try        memory_kernels = ..."]),
        ("disk-bytes = 3", ["no key 'disk-bytes'", "try        disk_bytes = ..."]),
        ('secret = "x"', ["no key 'secret'", "CUPLATE_CACHE_SECRET"]),
        ("disk = false", ["no key 'disk'", 'directory = "off"']),
        ("xyz = 1", ["no key 'xyz'", "allowed    directory, disk_bytes"]),
        ('memory_kernels = "many"', ["memory_kernels is not a count", "'many'", 'memory_kernels = "256"']),
        ("memory_kernels = true", ["memory_kernels is no switch", "True"]),
        ("memory_kernels = 0", ["memory_kernels", "too small", "at least 1"]),
        ("disk_bytes = [1]", ["a list", "[1]"]),
        ("disk_bytes = 1000", ["disk_bytes", "too small", "16000000"]),
        ('eviction = "lru"', ["eviction is not one of its kinds", "'lru'", "least-recently-used"]),
        ("time_to_live_s = 0", ["time_to_live_s is no time", "30d"]),
        ('frozen = "maybe"', ["frozen is not a switch", "'maybe'"]),
        ('shared = "redis://host"', ["a shared tier needs a secret", "CUPLATE_CACHE_SECRET"]),
        ('shared = "redis:/host"', ["shared", "neither a URL nor module:Class"]),
        ('shared = "redis://me:hunter2@host"', ["do not belong in a file", "CUPLATE_SHARED"]),
        ('shared = ["redis://me:hunter2@host"]', ["a list"]),
        ("layers = [1979-05-27]", ["a date", "text or a number"]),
        ('directory = "~/x"', ["starts with '~'", "not expanded"]),
    ],
)
def test_a_wrong_key_or_value_names_file_and_line(tmp_path: Path, line: str, parts: list[str]) -> None:
    """And what is allowed, and what to try; every time, not only the first."""
    file = write(tmp_path, "# a comment", 'on_error = "warn"', line)
    for _ in range(2):
        with pytest.raises(SettingError) as caught:
            CachePolicy().effective()
        for part in [*parts, f"{file}:6"]:
            assert part in str(caught.value)
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[tool]\ncuplate.memory_kernels = 0\n", 2),
        ("[tool]\ncuplate = { on_error = 'warn', memory_kernels = 0 }\n", 2),
        ("tool.cuplate.memory_kernels = 0\n", 1),
        ("[ tool . \"cuplate\" ] # here\n'memory_kernels' = 0\n", 2),
        ("[tool.x]\nmemory_kernels = 5\n[tool.cuplate]\n\n memory_kernels=0\n", 5),
    ],
)
def test_the_line_is_found_in_every_spelling(tmp_path: Path, text: str, line: int) -> None:
    """TOML has several for one table."""
    file = tmp_path / "pyproject.toml"
    file.write_text(text)
    with pytest.raises(SettingError, match="too small") as caught:
        CachePolicy().effective()
    assert f"({file}:{line})" in str(caught.value)


def test_a_file_that_is_no_toml(tmp_path: Path) -> None:
    """Told with its line if it has the table; somebody else's mistake stays theirs."""
    file = tmp_path / "pyproject.toml"
    file.write_text('[project]\ndependencies = ["cuplate"]\nname = \n')
    assert CachePolicy().effective().memory_kernels == 256
    project.forget()
    file.write_text("[tool.cuplate]\nmemory_kernels = \n")
    with pytest.raises(SettingError, match=r"(?s)cannot be read.*pyproject\.toml.*line 2"):
        CachePolicy().effective()
    file.write_text("[tool]\ncuplate = 3\n")
    with pytest.raises(SettingError, match="is no table"):
        CachePolicy().effective()


def test_nothing_is_read_at_import_and_the_parser_only_for_a_table(tmp_path: Path) -> None:
    """Importing opens no pyproject.toml; one that does not name cuplate needs no parser."""
    (tmp_path / "pyproject.toml").write_text("[tool.other]\n")
    script = (
        "import sys\n"
        "opened = []\n"
        "sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == 'open' else None)\n"
        "import cuplate, cuplate.cache, cuplate.config\n"
        "print([name for name in opened if 'pyproject' in name])\n"
        "print(cuplate.cache.current_policy().memory_kernels, 'tomllib' in sys.modules)\n"
        "print(len([name for name in opened if 'pyproject' in name]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[:2] == ["[]", "256 False"]
    assert int(done.stdout.splitlines()[2]) >= 1


def test_unlimited_is_written_as_a_word(tmp_path: Path) -> None:
    """In both limits and both times."""
    write(tmp_path, *(f'{n} = "unlimited"' for n in ("memory_kernels", "disk_bytes", "time_to_live_s")))
    found = CachePolicy().effective()
    assert found.memory_kernels == found.disk_bytes == found.time_to_live_s == UNLIMITED


@pytest.mark.parametrize("where", ["file", "variable", "code"])
def test_a_warning_about_a_layer_names_who_set_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """The line of the file, the variable, or the code: what there is to change."""
    policy, source = CachePolicy(), "CUPLATE_LAYERS"
    if where == "file":
        file = write(tmp_path, 'layers = ["nothing"]')
        source = f"{file}:4"
    elif where == "variable":
        monkeypatch.setenv("CUPLATE_LAYERS", str(tmp_path / "nothing"))
    else:
        policy, source = CachePolicy(layers=[tmp_path / "nothing"]), "policy="
    with pytest.warns(CacheWarning, match="is not used: .*nothing") as caught:
        disk_tier(policy).get(bytes(32))
    assert f"(setting: layers, from {source})." in str(caught[0].message)
