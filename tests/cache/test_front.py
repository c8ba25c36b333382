"""``cuplate.cache``: the policy in force, the tiers behind it, and everything about them in one call."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cuplate import cache
from cuplate.cache import (
    CachePolicy,
    DiskTier,
    NoStore,
    configure,
    current_policy,
    disk_tier,
    front,
    info,
    memory_tier,
    set_policy,
)
from cuplate.errors import SettingError


@pytest.fixture(autouse=True)
def policy_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test leaves a policy behind, and none puts what is no kernel into the tier of the process."""
    monkeypatch.setattr(front._process, "memory", None)
    yield
    set_policy(None)


def test_importing_it_loads_nothing_heavy() -> None:
    """Neither NumPy, Jinja, CUDA, diskcache nor SQLite; and it touches no disk."""
    heavy = ("numpy", "jinja2", "jaxtyping", "cuda", "cupy", "diskcache", "sqlite3", "pickle", "logging")
    script = f"import sys, cuplate.cache; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_policy_set_is_the_policy_in_force(tmp_path: Path) -> None:
    """set_policy gives back the one before; None goes back to environment and defaults."""
    before = set_policy(CachePolicy(memory_kernels=7, directory=tmp_path))
    assert current_policy().memory_kernels == 7
    assert current_policy().directory == str(tmp_path)
    assert set_policy(None) == CachePolicy(memory_kernels=7, directory=tmp_path)
    assert current_policy().memory_kernels == 256
    assert before == CachePolicy()


def test_configure_lasts_for_a_block_or_for_good(tmp_path: Path) -> None:
    """As a statement it stays; in ``with`` the policy before comes back, after an exception too."""
    configure(memory_kernels=9)
    with pytest.raises(KeyError), configure(CachePolicy(memory_kernels=3)) as inside:
        assert inside.memory_kernels == current_policy().memory_kernels == 3
        raise KeyError
    assert current_policy().memory_kernels == 9


def test_configure_changes_what_it_names(tmp_path: Path) -> None:
    """A block that sets a limit does not move the cache; None gives a value back to environment and default."""
    configure(directory=tmp_path, memory_kernels=9)
    with configure(memory_kernels=3, eviction="none") as inside:
        assert (inside.directory, inside.memory_kernels, inside.eviction) == (str(tmp_path), 3, "none")
        configure(disk=False)
    now = current_policy()
    assert (now.memory_kernels, now.eviction, now.disk) == (9, "least-recently-used", False)
    configure(memory_kernels=None)
    assert current_policy().source("memory_kernels") == "default"


def test_blocks_of_two_threads_may_end_in_any_order(tmp_path: Path) -> None:
    """Each puts back the values that it set."""
    first, second = configure(memory_kernels=3), configure(directory=tmp_path)
    first.__exit__()
    assert (current_policy().memory_kernels, current_policy().directory) == (256, str(tmp_path))
    second.__exit__()
    assert current_policy().source("directory") == "CUPLATE_CACHE_DIR"


def test_configure_refuses_names_and_mixtures() -> None:
    """A misspelt value names the nearest."""
    with pytest.raises(
        SettingError, match=r"(?s)no such value.*memory_kernel\b.*try\s+configure\(memory_kernels=...\)"
    ):
        configure(memory_kernel=3)
    with pytest.raises(SettingError, match="not both"):
        configure(CachePolicy(), disk=False)


def test_a_wrong_environment_leaves_the_policy_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """set_policy fails before it changes anything."""
    set_policy(CachePolicy(memory_kernels=5))
    monkeypatch.setenv("CUPLATE_DISK_BYTES", "lots")
    with pytest.raises(SettingError):
        set_policy(CachePolicy(memory_kernels=6))
    monkeypatch.delenv("CUPLATE_DISK_BYTES")
    assert current_policy().memory_kernels == 5


def test_a_lower_memory_limit_trims_at_once() -> None:
    """And later puts keep to it."""
    set_policy(CachePolicy(memory_kernels=4))
    tier = memory_tier()
    for number in range(4):
        tier.put(number, number)
    set_policy(CachePolicy(memory_kernels=2))
    assert memory_tier() is tier
    assert [e.key for e in tier] == [2, 3]
    tier.put(9, 9)
    assert len(tier) == 2


def test_a_changed_policy_is_another_disk_tier_and_an_equal_one_the_same(tmp_path: Path) -> None:
    """Also for the policies of single functions."""
    set_policy(CachePolicy(directory=tmp_path / "a"))
    first = disk_tier()
    assert isinstance(first, DiskTier)
    assert first.base == str(tmp_path / "a")
    assert disk_tier(CachePolicy(directory=tmp_path / "a")) is first
    other = disk_tier(CachePolicy(directory=tmp_path / "b", secret=b"s"))
    assert isinstance(other, DiskTier)
    assert other is not first
    set_policy(CachePolicy(directory=tmp_path / "b"))
    assert disk_tier() not in (first, other)


def test_no_disk_is_a_store_that_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """disk=False, or CUPLATE_CACHE_DIR=off."""
    monkeypatch.setenv("CUPLATE_CACHE_DIR", "off")
    for policy in (CachePolicy(), CachePolicy(disk=False)):
        tier = disk_tier(policy)
        assert isinstance(tier, NoStore)
        assert not tier.put(b"k", b"v", tag="f")
        assert tier.get(b"k") is None
        assert list(tier.entries("f")) == []
        assert (tier.clear(), tier.delete(b"k")) == (0, False)
    assert "off: CUPLATE_CACHE_DIR" in str(info())


def test_no_home_is_memory_only_and_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Said once, with the setting that helps."""
    pwd = pytest.importorskip("pwd")

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    for name in ("CUPLATE_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.warns(match="no home directory.*CUPLATE_CACHE_DIR") as caught:
        assert isinstance(disk_tier(), NoStore)
        assert isinstance(disk_tier(), NoStore)
    assert len(caught) == 1


def test_one_call_says_limits_sizes_evictions_directory_and_policy(tmp_path: Path) -> None:
    """People searched for a day for a limit that dropped entries (B25)."""
    set_policy(CachePolicy(directory=tmp_path, disk_bytes=16_000_000, memory_kernels=2))
    before = info()
    tier = disk_tier()
    for number in range(10):
        tier.put(number.to_bytes(32, "big"), bytes(1_960_000 if number else 100), tag="f")
    for number in range(3):
        memory_tier().put(number, number)
    now = info()
    assert now.directory == str(tmp_path / "v1")
    assert now.disk_state == "on"
    assert now.disk_limit_bytes == 16_000_000
    assert now.disk_entries == 8
    assert 15_600_000 < now.disk_entry_bytes <= 16_000_000
    assert now.disk_file_bytes >= now.disk_entry_bytes
    assert now.disk_evictions - before.disk_evictions == 2
    assert (now.memory_kernels, now.memory_limit_kernels) == (2, 2)
    assert now.memory_evictions - before.memory_evictions == 1
    text = str(now)
    for part in (str(tmp_path), "of 16000000 bytes in 8 entries", "evictions", "2 of 2 kernels", "[code]", "[default]"):
        assert part in text


def test_clear_empties_both_tiers_or_one(tmp_path: Path) -> None:
    """And says how many entries went."""
    set_policy(CachePolicy(directory=tmp_path))
    memory_tier().put("a", "a")
    disk_tier().put(b"k" * 32, b"p")
    assert cache.clear(disk=False) == 1
    assert disk_tier().get(b"k" * 32) == b"p"
    assert cache.clear() == 1
    assert disk_tier().get(b"k" * 32) is None


def test_no_module_of_the_package_hides_a_function_of_its_front() -> None:
    """Importing a module sets its name in the package: none may be that of a function which users call."""
    modules = {path.stem for path in Path(cache.__file__).parent.glob("*.py")}
    functions = {name for name in cache.__all__ if callable(getattr(cache, name))}
    assert modules & functions <= {"stats"}  # imported before the function of that name is put over it
    for _ in range(2):
        cache.prune()
        assert callable(cache.stats)
