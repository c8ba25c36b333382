"""Settings: what the environment says, typed, and what it may not say."""

from __future__ import annotations

import pytest

from cuplate.config import UNLIMITED, VARIABLES, Settings, cpu_settings, scope, settings
from cuplate.errors import SettingError


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable set."""
    for variable in VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)


def test_nothing_said_is_none_and_false() -> None:
    """Without variables nothing is set, and the switches are off."""
    assert settings() == Settings()


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """``CUPLATE_CACHE_DIR=`` is no directory."""
    for variable in VARIABLES.values():
        monkeypatch.setenv(variable, "")
    assert settings() == Settings()


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1073741824", 1 << 30),
        ("16K", 16 << 10),
        ("512 MiB", 512 << 20),
        ("2G", 2 << 30),
        ("2gb", 2 << 30),
        ("1.5G", 3 << 29),
        ("1T", 1 << 40),
        ("unlimited", UNLIMITED),
    ],
)
def test_sizes(monkeypatch: pytest.MonkeyPatch, text: str, size: int) -> None:
    """A size is bytes, or a number with a unit in powers of 1024 (B25)."""
    monkeypatch.setenv("CUPLATE_DISK_BYTES", text)
    assert settings().disk_bytes == size


@pytest.mark.parametrize(
    ("variable", "text", "allowed"),
    [
        ("CUPLATE_DISK_BYTES", "-1", "bytes, or a number with K, M, G or T"),
        ("CUPLATE_DISK_BYTES", "lots", "unlimited"),
        ("CUPLATE_DISK_BYTES", "1e9", "powers of 1024"),
        ("CUPLATE_MEMORY_KERNELS", "2.5", "an integer of at least 1"),
        ("CUPLATE_MEMORY_KERNELS", "-3", "an integer of at least 1"),
        ("CUPLATE_MEMORY_KERNELS", "²", "an integer of at least 1"),
        ("CUPLATE_EXPLAIN", "maybe", "0 or 1"),
    ],
)
def test_text_of_the_wrong_type_names_variable_and_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, allowed: str
) -> None:
    """A typing error in a variable is not silently the default."""
    monkeypatch.setenv(variable, text)
    with pytest.raises(SettingError) as caught:
        settings()
    assert variable in str(caught.value)
    assert repr(text) in str(caught.value)
    assert allowed in str(caught.value)


def test_switches_counts_and_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each variable arrives with its type."""
    monkeypatch.setenv("CUPLATE_EXPLAIN", "1")
    monkeypatch.setenv("CUPLATE_REQUIRE_GPU", "off")
    monkeypatch.setenv("CUPLATE_MEMORY_KERNELS", "32")
    monkeypatch.setenv("CUPLATE_CACHE_SECRET", "geheim")
    monkeypatch.setenv("CUPLATE_CACHE_DIR", "/x")
    assert settings() == Settings(
        explain=True, require_gpu=False, memory_kernels=32, cache_secret=b"geheim", cache_dir="/x"
    )


def test_a_change_of_the_environment_is_seen_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read at import and nothing is kept."""
    assert not settings().explain
    monkeypatch.setenv("CUPLATE_EXPLAIN", "1")
    assert settings().explain


def test_the_secret_is_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """repr() goes into logs."""
    monkeypatch.setenv("CUPLATE_CACHE_SECRET", "geheim")
    assert "geheim" not in repr(settings())
    assert "cache_secret=set" in repr(settings())
    monkeypatch.setenv("CUPLATE_SHARED", "redis://:hunter2@host")
    assert "shared=set" in repr(settings()) and "hunter2" not in repr(settings())


def test_a_scope_overrides_until_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scopes nest, win over the environment, and end with an exception too."""
    monkeypatch.setenv("CUPLATE_MEMORY_KERNELS", "32")
    with scope(memory_kernels=8, explain=True):
        with pytest.raises(KeyError), scope(memory_kernels=None):
            assert settings().memory_kernels is None
            assert settings().explain
            raise KeyError
        assert settings().memory_kernels == 8
    assert settings().memory_kernels == 32
    assert not settings().explain


def test_what_the_cpu_backend_reads_is_remembered_until_something_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same object means: same variables, same scopes, same PATH."""
    at_first = cpu_settings()
    assert cpu_settings() is at_first
    with scope(cpu_check="off"):
        inside = cpu_settings()
        assert inside.cpu_check == "off"
        assert cpu_settings() is inside
        with scope(cpu_check="bounds"):
            assert cpu_settings().cpu_check == "bounds"
        assert cpu_settings().cpu_check == "off"
    assert cpu_settings() == at_first
    monkeypatch.setenv("CUPLATE_CPU_THREADS", "3")
    assert cpu_settings().cpu_threads == 3
    before = cpu_settings()
    monkeypatch.setenv("PATH", "/nowhere")
    assert cpu_settings() is not before


def test_a_scope_refuses_a_name_that_does_not_exist() -> None:
    """A misspelt setting would have no effect."""
    with pytest.raises(TypeError), scope(explian=True):
        pass
    assert settings() == Settings()


@pytest.mark.parametrize("variable", ["CUPLATE_MEMORY_KERNELS", "CUPLATE_DISK_BYTES"])
@pytest.mark.parametrize("text", ["9" * 5000, "9" * 400 + ".5"], ids=["integer", "fraction"])
def test_a_number_of_any_length_is_no_error_of_pythons(
    variable: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of digits are refused like any other nonsense."""
    monkeypatch.setenv(variable, text)
    with pytest.raises(SettingError, match=variable):
        settings()
