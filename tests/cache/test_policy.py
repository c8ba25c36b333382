"""The policy: what is allowed, which value wins, and where the directory is."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from cuplate.cache import UNLIMITED, CachePolicy
from cuplate.cache.policy import PolicyValues, resolve
from cuplate.config import scope
from cuplate.errors import SettingError


def where() -> tuple[str | None, str]:
    """The directory in force, and where it came from."""
    found = CachePolicy().effective()
    return found.directory, found.source("directory")


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
        "eviction       least-recently-used  [default]",
        "time_to_live_s unlimited  [default]",
        "layers         none  [default]",
        "shared         none  [default]",
        "engine         auto  [default]",
        "frozen         off  [default]",
        "single_flight  on  [default]",
        "flight_wait_s  60 s  [default]",
        "on_error       warn  [default]",
        "tune           auto  [default]",
        "tune_s         60 s  [default]",
    ]
    assert str(CachePolicy().effective()) == CachePolicy().describe()


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
    assert found.sources[:5] == ("code", "CUPLATE_DISK_BYTES", "code", "CUPLATE_CACHE_SECRET", "default")
    assert set(found.sources[5:]) == {"default"}


def test_every_variable_reaches_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its type, and its name as the source."""
    values = {
        "CUPLATE_EVICTION": ("None", "eviction", "none"),
        "CUPLATE_TIME_TO_LIVE": ("1.5d", "time_to_live_s", 129600.0),
        "CUPLATE_LAYERS": (f"/a{os.pathsep}/b c", "layers", (Path("/a"), Path("/b c"))),
        "CUPLATE_ENGINE": ("files", "engine", "files"),
        "CUPLATE_FROZEN": ("1", "frozen", True),
        "CUPLATE_SINGLE_FLIGHT": ("0", "single_flight", False),
        "CUPLATE_FLIGHT_WAIT": ("0", "flight_wait_s", 0.0),
        "CUPLATE_ON_ERROR": ("ignore", "on_error", "ignore"),
        "CUPLATE_TUNE": ("Off", "tune", "off"),
        "CUPLATE_TUNE_SECONDS": ("1.5m", "tune_s", 90.0),
    }
    for variable, (text, _, _) in values.items():
        monkeypatch.setenv(variable, text)
    found = CachePolicy().effective()
    for variable, (_, name, value) in values.items():
        assert (getattr(found, name), found.source(name)) == (value, variable)


@pytest.mark.parametrize(
    ("variable", "text", "allowed"),
    [
        ("CUPLATE_EVICTION", "lru", "least-recently-used, least-recently-stored, least-frequently-used, none"),
        ("CUPLATE_TIME_TO_LIVE", "0", "with s, m, h, d or w"),
        ("CUPLATE_TIME_TO_LIVE", "-3d", "with s, m, h, d or w"),
        ("CUPLATE_TIME_TO_LIVE", "nan", "with s, m, h, d or w"),
        ("CUPLATE_FLIGHT_WAIT", "soon", "with s, m, h, d or w"),
        ("CUPLATE_ENGINE", "redis", "auto, diskcache, files"),
        ("CUPLATE_FROZEN", "2", "0 or 1"),
        ("CUPLATE_ON_ERROR", "die", "warn, ignore, raise"),
        ("CUPLATE_LAYERS", "~/seed", "a path, full or relative"),
    ],
)
def test_a_wrong_variable_is_an_error(monkeypatch: pytest.MonkeyPatch, variable: str, text: str, allowed: str) -> None:
    """It names the variable, what it holds and what is allowed."""
    monkeypatch.setenv(variable, text)
    with pytest.raises(SettingError) as caught:
        CachePolicy().effective()
    assert variable in str(caught.value)
    assert text in str(caught.value)
    assert allowed in str(caught.value)


def test_a_functions_own_policy_wins_value_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """policy=, then configure, then the environment; loaded kernels have one limit, the process's."""
    monkeypatch.setenv("CUPLATE_DISK_BYTES", "2G")
    monkeypatch.setenv("CUPLATE_EVICTION", "none")
    found = resolve(
        function=CachePolicy(directory="/f", memory_kernels=3, frozen=True),
        code=CachePolicy(directory="/c", memory_kernels=8, frozen=False, eviction="least-recently-stored"),
    )
    shown = {name: (value, source) for name, value, source in found.rows()}
    assert shown["directory"] == ("/f", "policy=")
    assert shown["frozen"] == ("on", "policy=")
    assert shown["memory_kernels"] == ("8 kernels", "code")
    assert shown["eviction"] == ("least-recently-stored", "code")
    assert shown["disk_bytes"] == ("2147483648 bytes", "CUPLATE_DISK_BYTES")
    assert shown["engine"] == ("auto", "default")


def test_false_and_nothing_are_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """frozen=False, no layers and a wait of 0 are said, not left to the environment."""
    for variable, text in (("FROZEN", "1"), ("LAYERS", "/a"), ("FLIGHT_WAIT", "9"), ("SINGLE_FLIGHT", "1")):
        monkeypatch.setenv(f"CUPLATE_{variable}", text)
    found = CachePolicy(frozen=False, layers=(), flight_wait_s=0, single_flight=False).effective()
    assert (found.frozen, found.layers, found.flight_wait_s, found.single_flight) == (False, (), 0, False)


def test_the_secret_is_never_shown() -> None:
    """Neither repr nor describe gives it away."""
    policy = CachePolicy(secret=b"geheim", directory="/x")
    for text in (repr(policy), repr(policy.effective()), policy.describe()):
        assert "geheim" not in text
    assert "secret         set  [code]" in policy.describe()


def test_a_shared_tier_needs_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever either of them is said; the message says what to set, and off needs none."""
    monkeypatch.setenv("CUPLATE_SHARED", "redis://:hunter2@host")
    for policy in (CachePolicy(), CachePolicy(shared="module:Class"), CachePolicy(secret=b"")):
        with pytest.raises(SettingError, match="a shared tier needs a secret") as caught:
            policy.effective()
        assert "CUPLATE_CACHE_SECRET" in str(caught.value) and "hunter2" not in str(caught.value)
    for off in ("off", "OFF"):
        assert CachePolicy(shared=off).effective().shared == ""
    assert CachePolicy(secret=b"x").effective().source("shared") == "CUPLATE_SHARED"
    monkeypatch.setenv("CUPLATE_CACHE_SECRET", "x")
    assert CachePolicy(shared="module:Class").effective().shared == "module:Class"


def test_a_password_of_the_shared_tier_is_never_shown() -> None:
    """Neither it nor the user."""
    policy = CachePolicy(shared="redis://me:hunter2@host/0?db=1", secret=b"x")
    for text in (repr(policy), repr(policy.effective()), policy.describe(), str(policy.effective().rows())):
        assert "hunter2" not in text and "me:" not in text
    assert "shared         redis://***@host/0  [code]" in policy.describe()


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"memory_kernels": 0}, ["memory_kernels", "too small", "at least 1"]),
        ({"memory_kernels": True}, ["memory_kernels", "not an int"]),
        ({"disk_bytes": 15_999_999}, ["disk_bytes", "too small", "at least 16000000", "UNLIMITED"]),
        ({"disk_bytes": 1e9}, ["disk_bytes", "not an int", "1000000000.0"]),
        ({"directory": b"/x"}, ["directory", "not a path"]),
        ({"directory": ""}, ["directory", "a path, full or relative"]),
        ({"directory": "~/cache"}, ["directory", "not expanded", "~/cache"]),
        ({"secret": "text"}, ["secret", "bytes"]),
        ({"disk": 1}, ["disk", "True or False"]),
        ({"frozen": "yes"}, ["frozen", "True or False"]),
        ({"eviction": "lru"}, ["eviction", "'lru'", "least-recently-used", "none"]),
        ({"eviction": ["none"]}, ["eviction", "least-recently-used"]),
        ({"engine": "sqlite"}, ["engine", "auto, diskcache, files"]),
        ({"on_error": "stop"}, ["on_error", "warn, ignore, raise"]),
        ({"time_to_live_s": 0}, ["time_to_live_s", "above 0", "UNLIMITED"]),
        ({"time_to_live_s": float("nan")}, ["time_to_live_s", "nan"]),
        ({"time_to_live_s": float("inf")}, ["time_to_live_s", "UNLIMITED"]),
        ({"time_to_live_s": True}, ["time_to_live_s", "seconds"]),
        ({"flight_wait_s": -1}, ["flight_wait_s", "at least 0"]),
        ({"layers": "/a"}, ["layers", "a tuple of str"]),
        ({"layers": 3}, ["layers", "a tuple of str"]),
        ({"layers": ["~/a"]}, ["layer", "not expanded"]),
        ({"layers": [None]}, ["layer", "not a path"]),
        ({"shared": b"redis://host"}, ["shared", "bytes", "redis://HOST:PORT/DB"]),
        ({"shared": "redis"}, ["shared", "neither a URL nor module:Class", "off"]),
        ({"shared": "http://host"}, ["shared", "scheme"]),
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
    assert where() == expected


def test_without_home_the_user_database_is_asked() -> None:
    """A service without HOME still finds its cache."""
    pwd = pytest.importorskip("pwd")
    home = pwd.getpwuid(os.getuid()).pw_dir
    assert where() == (f"{home}/.cache/cuplate", "user database")


def test_without_any_home_there_is_no_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Memory only, and no directory named "~" in the working directory."""
    pwd = pytest.importorskip("pwd")

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.chdir(tmp_path)
    assert where() == (None, "no home directory")
    assert CachePolicy().effective().directory is None
    assert list(tmp_path.iterdir()) == []


def test_a_tilde_in_the_environment_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's ENV does not expand it, and a directory of that name is nobody's wish."""
    monkeypatch.setenv("CUPLATE_CACHE_DIR", "~/cache")
    monkeypatch.setenv("HOME", "/home/x")
    said = (
        r"(?s)CUPLATE_CACHE_DIR starts with '~'.*allowed +a path, full or relative.*try\s+/home/x/cache \(or ./~/cache "
    )
    with pytest.raises(SettingError, match=said):
        where()


def test_a_relative_directory_is_taken_from_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Once, when the policy is read: a later chdir moves nothing."""
    monkeypatch.chdir(tmp_path)
    assert CachePolicy(directory="here").effective().directory == str(tmp_path / "here")
    assert CachePolicy(directory=Path("./off")).effective().directory == str(tmp_path / "off")
    before = CachePolicy(directory="here", layers=["below"])
    monkeypatch.chdir("/")
    assert before.effective().directory == str(tmp_path / "here")
    assert before.effective().layers == (tmp_path / "below",)


def test_off_means_no_disk_and_code_may_turn_it_on_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUPLATE_CACHE_DIR=off, unless the code names a directory."""
    monkeypatch.setenv("CUPLATE_CACHE_DIR", "off")
    assert not CachePolicy().effective().disk
    assert CachePolicy(directory="/x").effective().directory == "/x"


def test_a_scope_of_a_test_reaches_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """And None in it stands for a variable that is not set."""
    monkeypatch.setenv("CUPLATE_MEMORY_KERNELS", "64")
    with scope(memory_kernels=None, eviction="none", cache_dir=None):
        found = CachePolicy().effective()
    assert (found.memory_kernels, found.source("memory_kernels")) == (256, "default")
    assert (found.eviction, found.source("eviction")) == ("none", "scope")


def test_checkers_know_every_value_of_a_policy() -> None:
    """What `configure` is said to take is what a policy has."""
    assert list(PolicyValues.__annotations__) == [f.name for f in dataclasses.fields(CachePolicy)]
