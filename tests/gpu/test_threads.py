"""Threads and forks: many at once are right and compile once; a parent that has only looked may fork."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from jaxtyping import Float32

import cuplate
from cuplate import Array, Inline, cache, specialize

ROOT = Path(__file__).parents[2]
THREADS = 16


def make_shift(tag: int) -> Any:
    """A function that no other test has compiled."""

    @specialize(
        Inline(
            """
extern "C" __global__ void {{ kernel }}({{ args }})  // TAG
{
    const {{ index_t }} i = ({{ index_t }})blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) out[i] = x[i] + {{ by }};
}
""".replace("TAG", f"{os.getpid()} {tag}")
        )
    )
    def shift(x: Float32[Array, " N"], *, by: int) -> Float32[Array, " N"]:
        return x + by

    return shift


@pytest.mark.parametrize("distinct", [1, 4, THREADS])
def test_16_threads_on_their_own_streams_b12(cp: Any, distinct: int) -> None:
    """B12: equal and different specializations at once: right results, and one compile and one load for each key."""
    shift = make_shift(distinct)
    failures: list[BaseException] = []
    together = threading.Barrier(THREADS)
    loads: list[Any] = []

    def work(place: int) -> None:
        try:
            with cp.cuda.Stream(non_blocking=True) as stream:
                x = cp.full(10_000 + place, place, cp.float32)
                together.wait()
                for round_ in range(50):
                    by = (place + round_) % distinct
                    out = shift(x, by=by) if round_ % 2 else shift(x, by=by, out=cp.empty_like(x))
                    assert bool((out == place + by).all()), (place, round_)
                stream.synchronize()
        except BaseException as error:  # told by the main thread
            failures.append(error)

    with cuplate.subscribe(loads.append, "load"):
        threads = [threading.Thread(target=work, args=(i,)) for i in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures, failures
    assert shift.cache_info().compiles == distinct
    assert len([e for e in loads if e.function == "shift"]) == distinct


def test_threads_call_while_another_clears(cp: Any) -> None:
    """Kernels come and go under 15 threads that call: nothing is launched that has been unloaded."""
    shift = make_shift(100)
    failures: list[BaseException] = []
    done = threading.Event()

    def work(place: int) -> None:
        try:
            with cp.cuda.Stream(non_blocking=True):
                x = cp.full(3_000, place, cp.float32)
                for round_ in range(60):
                    assert bool((shift(x, by=round_ % 3) == place + round_ % 3).all())
        except BaseException as error:
            failures.append(error)

    def clear() -> None:
        while not done.wait(0.002):
            cache.clear(disk=False)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(THREADS - 1)]
    sweeper = threading.Thread(target=clear)
    sweeper.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    sweeper.join()
    assert not failures, failures
    assert shift.cache_info().compiles == 3


FORK = """
import os, sys, traceback, warnings
import cuplate
from cuplate import cache
from cuplate.kernels import matmul_epilogue

cache.info(); cache.stats(); matmul_epilogue.cache_info()
square, row = cuplate.ArraySpec((32, 32)), cuplate.ArraySpec((32,))
matmul_epilogue.compile(square, square, row, relu=True, arch=sys.argv[1])
matmul_epilogue.inspect(square, square, row, relu=True, arch=sys.argv[1])

warnings.simplefilter("ignore", DeprecationWarning)  # NumPy's threads, which the children do not need
children = []
for child in range(3):
    pid = os.fork()
    if pid:
        children.append(pid)
        continue
    status = 1
    try:
        import cupy
        a = cupy.full((32, 32), child + 1, cupy.float32)
        c = matmul_epilogue(a, a, a[0], relu=True)
        c = matmul_epilogue(a, a, a[0], relu=True)
        assert bool((c == 32 * (child + 1) ** 2 + child + 1).all())
        assert matmul_epilogue.cache_info().compiles == 1, matmul_epilogue.cache_info()  # the parent's, before the fork
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush(); sys.stderr.flush()
        os._exit(status)
assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0, 0, 0]
print("right")
"""


def test_a_parent_that_has_looked_may_fork(cp: Any, tmp_path: Path) -> None:
    """Import, decorate, read the cache, compile and inspect touch no driver: children call, from the parent's store."""
    arch = f"sm_{cp.cuda.Device().compute_capability}"
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", FORK, arch],
        env={**os.environ, "PYTHONPATH": path, "CUPLATE_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0 and done.stdout == "right\n", done.stdout + done.stderr
