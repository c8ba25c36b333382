"""The policy: what is allowed, which value wins, and where the directory is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cuplate.cache import UNLIMITED, CachePolicy
from cuplate.cache.policy import resolve_directory
from cuplate.config import SettingError

PLACES = ("CUPLATE_CACHE_DIR", "XDG_CACHE_HOME", "HOME")


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """No place named by the environment."""
    for variable in PLACES:
        monkeypatch.delenv(variable, raising=False)


def test_the_defaults_are_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    """256 kernels and 1 GiB, and both are said with their source (B25)."""
    monkeypatch.setenv("HOME", "/home/x")
    assert CachePolicy().describe().splitlines() == [
        "memory_kernels 256 kernels  [default]",
        "disk_bytes     1073741824 bytes  [default]",
        "directory      /home/x/.cache/cuplate  [HOME]",
        "secret         none  [default]",
        "disk           on  [default]",
    ]


def test_code_wins_over_the_environment_value_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code, then environment, then default, for each value alone."""
    monkeypatch.setenv("CUPLATE_MEMORY_KERNELS", "64")
    monkeypatch.setenv("CUPLATE_DISK_BYTES", "2G")
    monkeypatch.setenv("CUPLATE_CACHE_SECRET", "geheim")
    monkeypatch.setenv("CUPLATE_CACHE_DIR", "/from/environment")
    found = CachePolicy(memory_kernels=8, directory="/from/code").effective()
    assert (found.memory_kernels, found.disk_bytes, found.directory, found.secret) == (
        8,
        2 << 30,
        "/from/code",
        b"geheim",
    )
    assert found.sources == ("code", "CUPLATE_DISK_BYTES", "code", "CUPLATE_CACHE_SECRET", "default")


def test_the_secret_is_never_shown() -> None:
    """Neither repr nor describe gives it away."""
    policy = CachePolicy(secret=b"geheim", directory="/x")
    for text in (repr(policy), repr(policy.effective()), policy.describe()):
        assert "geheim" not in text
    assert "secret         set  [code]" in policy.describe()


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"memory_kernels": 0}, ["memory_kernels", "too small", "at least 1"]),
        ({"memory_kernels": True}, ["memory_kernels", "not an int"]),
        ({"disk_bytes": 15_999_999}, ["disk_bytes", "too small", "at least 16000000", "UNLIMITED"]),
        ({"disk_bytes": 1e9}, ["disk_bytes", "not an int", "1000000000.0"]),
        ({"directory": b"/x"}, ["directory", "not a path"]),
        ({"directory": ""}, ["directory", "a full path"]),
        ({"directory": "~/cache"}, ["directory", "not expanded", "~/cache"]),
        ({"secret": "text"}, ["secret", "bytes"]),
        ({"disk": 1}, ["disk", "True or False"]),
    ],
)
def test_a_value_outside_what_is_allowed_is_an_error(values: dict[str, object], parts: list[str]) -> None:
    """The message says which value, what was given and what is allowed."""
    with pytest.raises(SettingError) as caught:
        CachePolicy(**values)  # type: ignore[arg-type]
    for part in parts:
        assert part in str(caught.value)


def test_a_limit_of_the_environment_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the message names the variable."""
    monkeypatch.setenv("CUPLATE_DISK_BYTES", "1M")
    with pytest.raises(SettingError, match="CUPLATE_DISK_BYTES"):
        CachePolicy(directory="/x").effective()


def test_no_limit_is_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    """In code and by environment (B25)."""
    monkeypatch.setenv("CUPLATE_DISK_BYTES", "unlimited")
    assert "disk_bytes     unlimited  [CUPLATE_DISK_BYTES]" in CachePolicy().describe()
    assert CachePolicy(memory_kernels=UNLIMITED).effective().memory_kernels == UNLIMITED


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"CUPLATE_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, ("/a", "CUPLATE_CACHE_DIR")),
        ({"CUPLATE_CACHE_DIR": "", "XDG_CACHE_HOME": "/b"}, ("/b/cuplate", "XDG_CACHE_HOME")),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/c"}, ("/c/.cache/cuplate", "HOME")),
        ({"CUPLATE_CACHE_DIR": "off", "HOME": "/c"}, (None, "CUPLATE_CACHE_DIR")),
        ({"CUPLATE_CACHE_DIR": "OFF", "HOME": "/c"}, (None, "CUPLATE_CACHE_DIR")),
        ({"CUPLATE_CACHE_DIR": "/a/$HOME/b", "HOME": "/c"}, ("/a/$HOME/b", "CUPLATE_CACHE_DIR")),
    ],
)
def test_where_the_directory_is(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: tuple[str, str]
) -> None:
    """Setting, XDG, HOME; empty and relative values are passed over, and nothing is expanded."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert resolve_directory() == expected


def test_without_home_the_user_database_is_asked() -> None:
    """A service without HOME still finds its cache."""
    pwd = pytest.importorskip("pwd")
    home = pwd.getpwuid(os.getuid()).pw_dir
    assert resolve_directory() == (f"{home}/.cache/cuplate", "user database")


def test_without_any_home_there_is_no_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Memory only, and no directory named "~" in the working directory."""
    pwd = pytest.importorskip("pwd")

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.chdir(tmp_path)
    assert resolve_directory() == (None, "no home directory")
    assert CachePolicy().effective().directory is None
    assert list(tmp_path.iterdir()) == []


def test_a_tilde_in_the_environment_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's ENV does not expand it, and a directory of that name is nobody's wish."""
    monkeypatch.setenv("CUPLATE_CACHE_DIR", "~/cache")
    monkeypatch.setenv("HOME", "/home/x")
    with pytest.raises(SettingError, match=r"(?s)CUPLATE_CACHE_DIR starts with '~'.*try\s+/home/x/cache"):
        resolve_directory()


def test_a_relative_directory_is_taken_from_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Once, when the policy is read: a later chdir moves nothing."""
    monkeypatch.chdir(tmp_path)
    assert CachePolicy(directory="here").effective().directory == str(tmp_path / "here")
    assert CachePolicy(directory=Path("./off")).effective().directory == str(tmp_path / "off")


def test_off_means_no_disk_and_code_may_turn_it_on_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUPLATE_CACHE_DIR=off, unless the code names a directory."""
    monkeypatch.setenv("CUPLATE_CACHE_DIR", "off")
    assert not CachePolicy().effective().disk
    assert CachePolicy(directory="/x").effective().directory == "/x"
