"""Memory stays flat, and an evicted kernel is unloaded for real."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jaxtyping import Float32

import cuplate
from cuplate import Array, Inline, specialize
from cuplate.kernels import matmul_epilogue

LIMIT_KERNELS = 32
MIB = 1 << 20
# 1 MiB of device memory a module: a hundred kernels that stay loaded are 100 MiB, and the driver's own steps are 2 MiB.
TABLE = """
__device__ float table[262144];
extern "C" __global__ void {{ kernel }}({{ args }})
{
    {{ index_t }} i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) out[i] = x[i] + {{ value }} + table[i];
}
"""
pytestmark = pytest.mark.filterwarnings("ignore::cuplate.VariantWarning")  # many variants are the point


@pytest.fixture
def cupy() -> Any:
    """CuPy."""
    return pytest.importorskip("cupy")


@pytest.fixture
def room_for_32(cupy: Any) -> Iterator[None]:
    """A memory limit of 32 kernels, reached from empty."""
    with cuplate.configure(memory_kernels=LIMIT_KERNELS):
        cuplate.cache.clear(disk=False)
        yield
        cuplate.cache.clear(disk=False)


def make_adder() -> Any:
    """x + value, each value a kernel of its own with 1 MiB of device memory."""

    @specialize(Inline(TABLE))
    def add_value(x: Float32[Array, " N"], *, value: int) -> Float32[Array, " N"]:
        return x + value

    return add_value


def device_bytes(cupy: Any) -> int:
    """Used device memory, once everything has ended."""
    gc.collect()
    cupy.cuda.runtime.deviceSynchronize()
    free, total = cupy.cuda.runtime.memGetInfo()
    return int(total - free)


def host_bytes() -> int:
    """Resident memory of this process."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def second_half(count: int, step: Callable[[int], object], *gauges: Callable[[], int]) -> list[int]:
    """How much each gauge grew in the second half of `count` steps."""
    for i in range(count // 2):
        step(i)
    half = [gauge() for gauge in gauges]
    for i in range(count // 2, count):
        step(i)
    return [gauge() - before for gauge, before in zip(gauges, half, strict=True)]


def live_kernels() -> int:
    """Loaded kernels that exist, wherever they are held."""
    from cuplate.backend.cuda.device import LoadedKernel

    gc.collect()
    return sum(type(o) is LoadedKernel for o in gc.get_objects())


def test_warm_calls_leave_memory_flat(cupy: Any) -> None:
    """The second thousand of 2,000 equal calls grows neither host nor device memory."""
    a, b = (cupy.ones((64, 64), dtype=cupy.float32) for _ in range(2))
    bias = cupy.zeros(64, dtype=cupy.float32)
    host, device = second_half(
        2000, lambda _: matmul_epilogue(a, b, bias, relu=True), host_bytes, lambda: device_bytes(cupy)
    )
    assert device <= 2 * MIB
    assert host <= 1 * MIB


def test_distinct_values_leave_memory_flat(cupy: Any, room_for_32: None) -> None:
    """200 values with room for 32 kernels: at most 32 stay loaded, and device memory stands still (B29)."""
    add_value = make_adder()
    x = cupy.arange(100, dtype=cupy.float32)
    before = live_kernels()
    (device,) = second_half(200, lambda i: add_value(x, value=i), lambda: device_bytes(cupy))
    assert device <= 8 * MIB, "100 kernels of 1 MiB each came and went"
    assert cuplate.cache.info().memory_kernels == LIMIT_KERNELS
    assert live_kernels() - before <= LIMIT_KERNELS + 1


def test_an_evicted_value_comes_back_from_disk(cupy: Any, room_for_32: None) -> None:
    """A value whose kernel was evicted is found on disk, compiles nothing and computes the same (B29)."""
    add_value = make_adder()
    x = cupy.arange(100, dtype=cupy.float32)
    evicted: list[Any] = []
    with cuplate.subscribe(evicted.append, kinds="evict"):
        for value in range(LIMIT_KERNELS + 8):
            add_value(x, value=value)
    assert len(evicted) == 8
    before = add_value.cache_info()
    assert (add_value(x, value=0) == x).all()
    after = add_value.cache_info()
    assert (after.compiles - before.compiles, after.disk_hits - before.disk_hits) == (0, 1)


def test_clearing_memory_gives_device_memory_back(cupy: Any, room_for_32: None) -> None:
    """Dropping 30 loaded kernels frees the 30 MiB that their modules took."""
    add_value = make_adder()
    x = cupy.arange(100, dtype=cupy.float32)
    for value in range(30):
        add_value(x, value=value)
    full = device_bytes(cupy)
    assert cuplate.cache.clear(disk=False) == 30
    assert full - device_bytes(cupy) >= 20 * MIB
