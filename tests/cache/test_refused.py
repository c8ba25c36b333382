"""A stored cubin that the driver refuses: removed, compiled once more, and only then the true error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jaxtyping import Float32

import cuplate
from cuplate import Array, Inline, LaunchError, cache, specialize
from cuplate.backend.protocol import DeviceFacts, runs_on
from cuplate.cubin import Cubin
from cuplate.grid import Limits
from tests.doubles import Gpu, install

pytest.importorskip("cuda.bindings.nvrtc")


@specialize(Inline('extern "C" __global__ void {{ kernel }}({{ args }}) { }'))
def copy(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
    """One array in, one out."""
    raise NotImplementedError


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """A recording GPU; the function forgets it again."""
    yield install(monkeypatch)
    copy.reload()


@pytest.fixture(autouse=True)
def policy_back() -> Iterator[None]:
    """No test leaves a policy behind."""
    yield
    cache.set_policy(None)


class Driver:
    """Refuses the first loads."""

    def __init__(self, gpu: Gpu, monkeypatch: pytest.MonkeyPatch, refusals: int) -> None:
        self.refusals, self.loads, self._load = refusals, 0, gpu.load
        monkeypatch.setattr(gpu, "load", self)

    def __call__(self, cubin: Any, device: int) -> Any:
        self.loads += 1
        if self.loads <= self.refusals:
            raise LaunchError("load the cubin: CUDA_ERROR_INVALID_IMAGE")
        return self._load(cubin, device)


def test_a_refused_entry_is_evicted_and_compiled_once(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call works, and the next process finds the good one."""
    copy.compile(arch="sm_90")
    digest = bytes.fromhex(copy.inspect(arch="sm_90").key)
    tier = cache.disk_tier()
    stored = tier.get(digest)
    driver = Driver(gpu, monkeypatch, refusals=1)
    cache.reset()
    copy(gpu.array(8))
    assert (driver.loads, cache.stats().compile.compiles) == (2, 1)
    assert tier.get(digest) is not None
    assert stored is not None


def test_what_is_refused_after_a_compile_is_the_true_error(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """One compile, two loads, and nothing bad stays stored."""
    copy.compile(arch="sm_90")
    digest = bytes.fromhex(copy.inspect(arch="sm_90").key)
    driver = Driver(gpu, monkeypatch, refusals=9)
    cache.reset()
    with pytest.raises(LaunchError, match="INVALID_IMAGE"):
        copy(gpu.array(8))
    assert (driver.loads, cache.stats().compile.compiles) == (2, 1)
    assert cache.disk_tier().get(digest) is None


def test_a_fresh_compile_that_is_refused_is_not_repeated(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store had no part in it."""
    driver = Driver(gpu, monkeypatch, refusals=9)
    cache.reset()
    with pytest.raises(LaunchError, match="INVALID_IMAGE"):
        copy(gpu.array(8))
    assert (driver.loads, cache.stats().compile.compiles) == (1, 1)


def test_a_frozen_cache_gives_the_drivers_error(gpu: Gpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing may be compiled, and nothing is removed."""
    copy.compile(arch="sm_90")
    digest = bytes.fromhex(copy.inspect(arch="sm_90").key)
    Driver(gpu, monkeypatch, refusals=9)
    with cuplate.configure(frozen=True), pytest.raises(LaunchError, match="INVALID_IMAGE"):
        copy(gpu.array(8))
    assert cache.disk_tier().get(digest) is not None


def test_the_architecture_is_checked_before_the_driver_sees_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the record's own word (B31)."""
    from cuplate.backend.cuda import device

    class Seen(Exception):
        pass

    def see(*arguments: object) -> None:
        raise Seen

    monkeypatch.setattr(
        device, "device_facts", lambda ordinal: DeviceFacts("sm_90", Limits(arch=90, shared_memory_bytes=1), "double")
    )
    monkeypatch.setattr(device, "driver", SimpleNamespace(cuLibraryLoadData=see))
    monkeypatch.setattr(device, "beside_captures", nullcontext)
    with pytest.raises(LaunchError, match=r"(?s)another architecture.*given\s+sm_80.*allowed\s+sm_90"):
        device.load(Cubin(b"\x7fELF", "k", "sm_80", "f"), 0)
    with pytest.raises(Seen):
        device.load(Cubin(b"\x7fELF", "k", "sm_90", "f"), 0)


@pytest.mark.parametrize(
    ("arch", "device", "runs"),
    [
        ("sm_80", "sm_80", True),
        ("sm_80", "sm_86", True),
        ("sm_86", "sm_80", False),
        ("sm_80", "sm_90", False),
        ("sm_90a", "sm_90", True),
        ("sm_100a", "sm_103", False),
        ("sm_100f", "sm_103", True),
        ("sm_100f", "sm_120", False),
        ("sm_103", "sm_100", False),
        ("sm_120", "sm_121", True),
        ("host", "sm_90", False),
        ("", "sm_90", False),
    ],
)
def test_a_cubin_runs_on_its_own_major_architecture(arch: str, device: str, runs: bool) -> None:
    """Binary compatibility: later minors of one major; with a suffix less (B31)."""
    assert runs_on(arch, device) is runs
