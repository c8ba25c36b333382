"""Which store a command is about, and how its choices are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuplate.cache import DiskTier
from cuplate.cli.store import Choice, read_secret
from cuplate.project import SettingError
from tests.cache.entries import put
from tests.cli.conftest import Command

pytest.importorskip("diskcache")


def test_the_directory_of_the_option_goes_before_the_environment(
    command: Command, keys: dict[str, str], tmp_path: Path
) -> None:
    """And shows as the code's in the policy."""
    other = tmp_path / "other"
    tier = DiskTier(str(other), write_wait_s=20.0)
    key = put(tier, 1)
    tier.close()
    assert [entry["key"] for entry in command("ls", "-d", other, "--json").json["entries"]] == [key]
    policy = command("info", "--directory", other, "--json").json["policy"]
    assert policy["directory"] == {"value": str(other), "source": "code"}


@pytest.mark.parametrize("name", ["ls", "info"])
def test_a_bundle_in_a_directory_s_place_is_told(command: Command, tmp_path: Path, name: str) -> None:
    """``export`` writes such a file too, and ``bundle`` is what reads it."""
    (tmp_path / "kernels.cuplate").write_bytes(b"")
    ended = command(name, "-d", tmp_path / "kernels.cuplate")
    assert ended.code == 3 and "is a file" in ended.err and "cuplate bundle ls" in ended.err


def test_a_relative_directory_is_meant_from_here(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As every path on a command line."""
    put(DiskTier(str(tmp_path / "here"), write_wait_s=20.0), 1)
    monkeypatch.chdir(tmp_path)
    assert command("path", "-d", "here").out == f"{tmp_path / 'here'}\n"
    assert len(command("ls", "-d", "here", "--json").json["entries"]) == 1


def test_pyproject_says_where_the_cache_is(
    command: Command, keys: dict[str, str], directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for the library, for the folder that the command runs in."""
    (tmp_path / "pyproject.toml").write_text('[tool.cuplate]\ndirectory = "cache"\n')
    monkeypatch.delenv("CUPLATE_CACHE_DIR")
    monkeypatch.setenv("CUPLATE_CONFIG", str(tmp_path / "pyproject.toml"))
    assert command("path").out == f"{directory}\n"
    assert len(command("ls", "--json").json["entries"]) == 3


def test_a_store_under_a_secret_is_read_with_its_file(command: Command, tmp_path: Path, directory: Path) -> None:
    """Or with the variable of the library; the line break that an editor adds does not count."""
    tier = DiskTier(str(directory), secret=b"two words")
    key = put(tier, 1)
    tier.close()
    (tmp_path / "secret").write_bytes(b"two words\n")
    assert read_secret(tmp_path / "secret") == b"two words"
    (entry,) = command("ls", "-d", directory, "--secret-file", tmp_path / "secret", "--json").json["entries"]
    assert (entry["key"], entry["arch"]) == (key, "sm_90")
    assert command("ls", "-d", directory, "--json").json["entries"][0]["arch"] is None
    assert command("ls", "-d", directory, "--secret-file", tmp_path / "none").code == 2
    (tmp_path / "secret").write_bytes(b"\n")  # a seal without a key is one that anybody can make
    assert command("ls", "-d", directory, "--secret-file", tmp_path / "secret").code == 2


@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("older_than", "soon"),
        ("newer_than", "3 years"),
        ("unused_for", ""),
        ("larger_than", "big"),
        ("smaller_than", "-1"),
    ],
)
def test_a_choice_that_cannot_be_read_names_its_option(option: str, given: str) -> None:
    """As it is written on the command line."""
    names = ("kernels", "archs", "older_than", "newer_than", "unused_for", "larger_than", "smaller_than")
    with pytest.raises(SettingError, match=f"--{option.replace('_', '-')}"):
        Choice.of(**{name: given if name == option else None for name in names})  # type: ignore[arg-type]
