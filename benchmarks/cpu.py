"""The CPU backend: the matrix product of README against NumPy and against Numba's CUDA simulator.

1. relu(a @ b + bias), float32, tile 16: unchecked on two threads and with all checks on one, against NumPy on the same
   matrices in the same rounds; and against Numba's simulator on the same tiling at 64^3, scaled by the number of
   multiplications (it takes an hour at 512^3).
2. Building a kernel: the first of a process with the runtime at hand, and the next ones.
3. A warm call of one block, and memory over a thousand launches.
"""

from __future__ import annotations

import os

# NumPy's threads are set when it is imported: as many as the two of the unchecked run.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "2")
os.environ["NUMBA_ENABLE_CUDASIM"] = "1"

import random
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32
from measuring import (
    Goal,
    Result,
    child_environment,
    print_rows,
    ratio,
    read_options,
    run_child,
    start,
    summary,
)

import cuplate
from cuplate import Array, Inline, config, specialize
from cuplate.kernels import matmul_epilogue

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # The simulator puts its own module in place of this global while a kernel runs.
        from numba import cuda, float32
except ImportError:
    cuda = None

FULL, UNCHECKED, NUMPY = "cuplate, all checks, one thread", "cuplate, unchecked, two threads", "NumPy, two threads"
BOUNDS = "cuplate, bounds only, one thread"
SIMULATED = 64  # edge of the product that the simulator can do


@specialize(
    Inline('extern "C" __global__ void {{ kernel }}({{ args }}) { out[threadIdx.x] = x[threadIdx.x] + {{ value }}; }'),
    grid=(1,),
    block=(256,),
)
def one_block(x: Float32[Array, "256"], *, value: int = 0) -> Float32[Array, "256"]:
    """x + value, in one block."""
    return x + value


def main() -> int:
    options = read_options(
        __doc__,
        ("--size", {"type": int, "default": None, "help": "edge of the product (default 512, quick 96)"}),
        ("--child", {"action": "store_true", "help": "what a fresh process runs; internal"}),
    )
    if options.child:
        return child()
    result = start("cpu", options)
    with tempfile.TemporaryDirectory(prefix="cuplate-benchmark-") as folder, cuplate.configure(directory=folder):
        one_block(np.zeros(256, np.float32))  # finds the compiler, builds the runtime
        size = options.size or (96 if options.quick else 512)
        product(result, size, rounds=3 if options.quick else 7)
        builds(result, Path(folder), processes=2 if options.quick else 5)
        warm_calls(result, launches=200 if options.quick else 1000)
    return result.finish(options)


# the product ----------------------------------------------------------------------------------------------------------


def product(result: Result, size: int, rounds: int) -> None:
    """Rows and goals of the product."""
    a, b, bias = operands(size)
    want = np.maximum(a @ b + bias, 0)

    def ours(check: str, threads: int) -> Callable[[], Any]:
        def call() -> Any:
            with config.scope(cpu_check=check, cpu_threads=threads):
                return matmul_epilogue(a, b, bias, relu=True)

        return call

    contenders = {
        NUMPY: lambda: np.maximum(a @ b + bias, 0),
        UNCHECKED: ours("off", 2),
        BOUNDS: ours("bounds", 1),
        FULL: ours("full", 1),
    }
    for call in contenders.values():
        np.testing.assert_allclose(call(), want, atol=1e-3)
    times = timed(contenders, rounds)
    for name in contenders:
        result.rows.append(summary(f"{name}, {size}^3", [t * 1e3 for t in times[name]], "ms"))
    small = simulate(result)
    print_rows(result.rows)
    for mine, limit in ((UNCHECKED, 160), (FULL, 3500)):
        found = ratio(times[mine], times[NUMPY])
        result.goals.append(Goal(f"{mine} / NumPy, {size}^3", found.worse, limit))
    if small is not None:
        scaled = small * (size / SIMULATED) ** 3
        best = float(np.median(times[UNCHECKED]))
        result.note(f"Numba's simulator, scaled to {size}^3: {scaled:.0f} s, {scaled / best:.0f} x the unchecked run")
        result.goals.append(
            Goal(f"5000 x unchecked run / Numba's simulator, scaled to {size}^3", 5000 * best / scaled, 1)
        )


def operands(size: int) -> tuple[Any, Any, Any]:
    draw = np.random.default_rng(0).standard_normal
    return draw((size, size), np.float32), draw((size, size), np.float32), draw(size, np.float32)


def timed(contenders: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of a call, the best of two, in an order drawn anew in each round."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name in random.sample(list(contenders), len(contenders)):
            spans = []
            for _ in range(2):
                begin = time.perf_counter()
                contenders[name]()
                spans.append(time.perf_counter() - begin)
            times[name].append(min(spans))
    return times


def simulate(result: Result) -> float | None:
    """Seconds of the same tiling in Numba's CUDA simulator."""
    if cuda is None:
        result.note("not run: Numba's CUDA simulator: numba is not installed")
        return None

    @cuda.jit  # type: ignore[untyped-decorator, unused-ignore]
    def tiled(a: Any, b: Any, bias: Any, out: Any) -> None:
        left = cuda.shared.array((16, 16), dtype=float32)
        right = cuda.shared.array((16, 16), dtype=float32)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        row, column = cuda.blockIdx.y * 16 + y, cuda.blockIdx.x * 16 + x
        total = 0.0
        for step in range(a.shape[1] // 16):
            left[y, x] = a[row, step * 16 + x]
            right[y, x] = b[step * 16 + y, column]
            cuda.syncthreads()
            for k in range(16):
                total += left[y, k] * right[k, x]
            cuda.syncthreads()
        out[row, column] = max(total + bias[column], 0.0)

    a, b, bias = operands(SIMULATED)
    out = np.zeros((SIMULATED, SIMULATED), np.float32)
    begin = time.perf_counter()
    tiled[(SIMULATED // 16, SIMULATED // 16), (16, 16)](a, b, bias, out)
    seconds = time.perf_counter() - begin
    np.testing.assert_allclose(out, np.maximum(a @ b + bias, 0), atol=1e-3)
    result.rows.append(summary(f"Numba's CUDA simulator, {SIMULATED}^3", [seconds * 1e3], "ms"))
    return seconds


# builds ---------------------------------------------------------------------------------------------------------------


def builds(result: Result, folder: Path, processes: int) -> None:
    """What the host compiler takes for a kernel, in fresh processes that find the runtime in the store."""
    environment = child_environment(CUPLATE_CACHE_DIR=str(folder), CUPLATE_CPU_CHECK="off")
    found = [run_child([__file__, "--child"], environment) for _ in range(processes)]
    first = [f["first_s"] for f in found]
    later = [s for f in found for s in f["later_s"]]
    rows = [summary("first build of a process", first, "s"), summary("next builds", later, "s")]
    print_rows(rows)
    result.rows += rows
    result.goals.append(Goal("first build of a kernel, s", float(np.median(first)), 0.3))
    result.goals.append(Goal("next builds, s", float(np.median(later)), 0.15))


def child() -> int:
    """Build kernels that no store has; the runtime comes from the store."""
    import json

    from cuplate import cache
    from cuplate.backend.cpu import device as cpu
    from cuplate.backend.cpu.build import build
    from cuplate.host import runtime
    from cuplate.options import Options

    target = cpu.target(config.settings())
    store = cache.disk_tier()
    seconds = []
    for number in range(6):
        text = f'extern "C" __global__ void k(const float* x, float* out) {{ out[threadIdx.x] = x[0] + {number}.5f; }}'
        begin = time.perf_counter()
        build(
            text, ["k"], name="k.cu", compiler=target.compiler, options=Options(), check=target.check, arch=800,
            directories=(), runtime=runtime(target, store),
        )  # fmt: skip
        seconds.append(time.perf_counter() - begin)
    print(json.dumps({"first_s": seconds[0], "later_s": seconds[1:]}))
    return 0


# calls ----------------------------------------------------------------------------------------------------------------


def warm_calls(result: Result, launches: int) -> None:
    """A warm call of one block, and what a thousand of them leave behind."""
    x = np.zeros(256, np.float32)
    for check in ("off", "full"):
        with config.scope(cpu_check=check):
            spans = []
            for i in range(launches):
                if i == launches // 2:
                    before = resident_bytes()
                begin = time.perf_counter()
                one_block(x)
                spans.append((time.perf_counter() - begin) * 1e6)
            grown = (resident_bytes() - before) / 2**20
        row = summary(f"warm call of one block, {check}", spans[launches // 2 :], "us")
        print_rows([row])
        result.rows.append(row)
        result.goals.append(Goal(f"warm call of one block, {check}, us", row["median"], 100, stretch=check == "full"))
        result.goals.append(Goal(f"growth over {launches // 2} launches, {check}, MiB", grown, 0.5))


def resident_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    sys.exit(main())
