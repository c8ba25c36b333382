"""Threads and forks on the CPU backend; `tests/gpu/test_threads.py` has the same for a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jaxtyping import Float32

from cuplate import Array, Inline, cache, specialize

ROOT = Path(__file__).parents[1]
THREADS = 16
TEXT = """
extern "C" __global__ void {{ kernel }}({{ args }})  // TAG
{
    const {{ index_t }} i = ({{ index_t }})blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) out[i] = x[i] + {{ by }};
}
"""


def make_shift(tag: str) -> Any:
    """A function that no other test has compiled."""

    @specialize(Inline(TEXT.replace("TAG", tag)), tiles={"N": 32}, block=32)
    def shift(x: Float32[Array, " N"], *, by: int) -> Float32[Array, " N"]:
        return x + by

    return shift


def together(work: Any) -> list[BaseException]:
    """What 16 threads raise that begin `work(place)` at once."""
    failures: list[BaseException] = []
    barrier = threading.Barrier(THREADS, timeout=60)

    def run(place: int) -> None:
        try:
            barrier.wait()
            work(place)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


@pytest.mark.parametrize("distinct", [1, 4])
def test_16_threads_are_right_and_compile_each_key_once_b12(distinct: int) -> None:
    """B12: equal and different specializations at once."""
    shift = make_shift(f"threads {distinct}")

    def work(place: int) -> None:
        x = np.full(70 + place, place, np.float32)
        for round_ in range(6):
            by = (place + round_) % distinct
            out = shift(x, by=by) if round_ % 2 else shift(x, by=by, out=np.full_like(x, 99))
            assert (out == place + by).all(), (place, round_)

    assert not (failures := together(work)), failures
    assert shift.cache_info().compiles == distinct


def test_kernels_go_while_16_threads_call() -> None:
    """`clear` in the middle: nothing that runs is unloaded, nothing is compiled again, and every result is right."""
    shift = make_shift("cleared")

    def work(place: int) -> None:
        x = np.full(40, place, np.float32)
        for round_ in range(10):
            if place == 0:
                cache.clear(disk=False)
            assert (shift(x, by=round_ % 2) == place + round_ % 2).all(), (place, round_)

    assert not (failures := together(work)), failures
    assert shift.cache_info().compiles == 2


FORK = '''
import os, sys, traceback, warnings
import numpy as np
from jaxtyping import Float32
from cuplate import Array, Inline, cache, specialize

@specialize(Inline("""TEXT"""), tiles={"N": 32}, block=32)
def shift(x: Float32[Array, " N"], *, by: int) -> Float32[Array, " N"]:
    return x + by

cache.info(); cache.stats(); shift.cache_info(); shift.explain(by=1, arch="sm_80")
if sys.argv[1] == "called":
    shift(np.ones(5, np.float32), by=1)
warnings.simplefilter("ignore", DeprecationWarning)
children = []
for child in range(3):
    pid = os.fork()
    if pid:
        children.append(pid)
        continue
    status = 1
    try:
        for by in (1, 2, 1):
            assert (shift(np.full(50, child, np.float32), by=by) == child + by).all()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)
assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0, 0, 0]
assert (shift(np.ones(5, np.float32), by=2) == 3).all()
print("right")
'''


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("parent", ["looked", "called"])
def test_children_call_after_a_fork(parent: str, tmp_path: Path) -> None:
    """The parent has imported, decorated and read the cache, or called too: children call, and it does afterwards."""
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", FORK.replace("TEXT", TEXT), parent],
        env={**os.environ, "PYTHONPATH": path, "CUPLATE_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0 and done.stdout == "right\n", done.stdout + done.stderr
