"""Whether memory stays flat: over warm calls, and over many values of a parameter with room for 32 kernels.

Each value of the parameter is a kernel of its own, with 100 kB of device memory in its module, so that one kernel that
is not unloaded shows at once. All are compiled into the store first; then two passes bring every value back from disk.
A pass is flat when its second half ends where its first half ended, within the limit printed.

Without a GPU only host memory over rendered, compiled and looked-up values is measured.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32
from measuring import Goal, Result, find_cupy, read_options, start

import cuplate
from cuplate import Array, Inline, specialize
from cuplate.kernels import matmul_epilogue

LIMIT_KERNELS = 32
TABLE = """
__device__ float table[25600];  // 100 kB of device memory a module: what is not unloaded cannot hide
extern "C" __global__ void {{ kernel }}({{ args }})
{
    {{ index_t }} i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) out[i] = x[i] + {{ value }} + table[i];
}
"""


@specialize(Inline(TABLE))
def add_value(x: Float32[Array, " N"], *, value: int) -> Float32[Array, " N"]:
    """Return ``x + value``."""
    return x + value


def main() -> int:
    options = read_options(__doc__)
    result = start("memory", options)
    warnings.simplefilter("ignore", cuplate.VariantWarning)  # thousands of variants are the point
    calls, values = (1000, 200) if options.quick else (10_000, 2000)
    cupy, reason = find_cupy()
    with (
        tempfile.TemporaryDirectory(prefix="cuplate-benchmark-") as folder,
        cuplate.configure(memory_kernels=LIMIT_KERNELS, directory=folder),
    ):
        if cupy is None:
            result.note(f"Device memory and calls were not measured: {reason}.")
            without_gpu(result, values // 10)
        else:
            warm_calls(result, cupy, calls)
            distinct_values(result, cupy, values)
    return result.finish(options)


def without_gpu(result: Result, values: int) -> None:
    """Host memory over the compiles of distinct values, then over their look-ups."""
    for name in ("compiled", "from disk"):
        gauge = Gauge(None)
        gauge.run(values, lambda i: add_value.inspect(arch="sm_90", value=i))
        gauge.tell(result, f"{values} values, {name}, nothing loaded", host_limit=None)
        add_value.cache_clear()


def warm_calls(result: Result, cupy: Any, calls: int) -> None:
    """One function, the same call over and over."""
    a, b = (cupy.random.default_rng(0).standard_normal((64, 64), dtype=cupy.float32) for _ in range(2))
    bias = cupy.zeros(64, dtype=cupy.float32)
    for _ in range(200):  # the output pool, and the interpreter's own caches
        matmul_epilogue(a, b, bias, relu=True)
    gauge = Gauge(cupy)
    gauge.run(calls, lambda _: matmul_epilogue(a, b, bias, relu=True))
    gauge.tell(result, f"{calls} warm calls", host_limit=1 << 20)


def distinct_values(result: Result, cupy: Any, values: int) -> None:
    """Every value into the store; then every value from disk, twice."""
    gauge = Gauge(cupy)
    gauge.run(2, lambda half: fill(range(half * values // 2, (half + 1) * values // 2)))
    gauge.tell(result, f"{values} values compiled, in halves", host_limit=None)
    x = cupy.arange(1000, dtype=cupy.float32)
    for i in range(2 * LIMIT_KERNELS):
        add_value(x, value=-1 - i)
    evicted: list[object] = []
    with cuplate.subscribe(evicted.append, kinds="evict"):
        for name in ("first pass", "second pass"):
            before = add_value.cache_info()
            gauge = Gauge(cupy)
            gauge.run(values, lambda i: expect(add_value(x, value=i), i))
            gauge.tell(result, f"{values} values, {name}", host_limit=8 << 20)
            after = add_value.cache_info()
            compiles = after.compiles - before.compiles
            result.goals.append(Goal(f"compiles of {values} values, {name}: all come back from disk", compiles, 0))
    loaded, live = cuplate.cache.info().memory_kernels, live_kernels()
    result.goals.append(Goal("kernels in memory afterwards", loaded, LIMIT_KERNELS))
    result.goals.append(Goal("loaded kernels that exist afterwards", live, LIMIT_KERNELS + 1))
    result.note(f"{len(evicted)} evictions in two passes; {loaded} kernels kept, {live} exist")
    result.rows.append({"name": "evictions", "count": len(evicted), "kept": loaded, "exist": live})


def fill(values: range) -> None:
    """Compile these values into the store, in parallel: NVRTC lets the interpreter go on."""
    begin = time.perf_counter()

    def build(value: int) -> None:
        add_value.compile(cuplate.ArraySpec((1000,), "float32"), value=value)

    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        list(pool.map(build, values))
    print(f"{len(values)} kernels compiled and stored in {time.perf_counter() - begin:.1f} s")


def expect(got: Any, value: int) -> None:
    """The right result, looked at now and then: an unloaded kernel that still ran would give another."""
    if value % 100 == 0 and not (got.get() == np.arange(1000) + value).all():
        raise RuntimeError(f"value={value}: the result is wrong")


def live_kernels() -> int:
    """Loaded kernels that still exist in this process, wherever they are held."""
    from cuplate.backend.cuda.device import LoadedKernel

    gc.collect()
    return sum(type(o) is LoadedKernel for o in gc.get_objects())


class Gauge:
    """Host and device memory at the start, at half and at the end of a loop."""

    def __init__(self, cupy: Any) -> None:
        self.cupy = cupy
        self.count = 0
        self.marks: list[tuple[int, int]] = []

    def run(self, count: int, step: Callable[[int], object]) -> None:
        """`count` steps, read three times."""
        self.count = count
        self.read()
        for i in range(count):
            step(i)
            if i + 1 == count // 2:
                self.read()
        self.read()

    def read(self) -> None:
        """Bytes now: resident host memory, and used device memory."""
        gc.collect()
        device = 0
        if self.cupy is not None:
            self.cupy.cuda.runtime.deviceSynchronize()
            free, total = self.cupy.cuda.runtime.memGetInfo()
            device = total - free
        self.marks.append((resident_bytes(), device))

    def tell(self, result: Result, name: str, *, host_limit: int | None) -> None:
        """Growth in both halves, and the goals: the second half is what counts."""
        kinds = [("host", host_limit)] + ([("device", 4 << 20)] if self.cupy is not None else [])
        for index, (kind, limit) in enumerate(kinds):
            begin, half, end = (mark[index] for mark in self.marks)
            slope = (end - half) / (self.count - self.count // 2)
            print(f"{name}, {kind}: {half - begin:+d} then {end - half:+d} bytes; {slope:+.1f} bytes each")
            row = {"name": name, "kind": kind, "count": self.count, "slope_bytes": round(slope, 2), "end_bytes": end}
            result.rows.append({**row, "first_half_bytes": half - begin, "second_half_bytes": end - half})
            if limit is not None:
                result.goals.append(
                    Goal(f"{name}, {kind}: growth in the second half, MiB", (end - half) / 2**20, limit >> 20)
                )


def resident_bytes() -> int:
    """Resident memory of this process; its peak where there is no /proc."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    sys.exit(main())
