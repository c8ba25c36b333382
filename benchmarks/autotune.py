"""What a tuned parameter costs: a warm call, a start with a stored winner, and the tuning itself, on the CPU backend.

Warm calls with the winner in the plan against calls that give the same value; fresh processes that find a stored winner
against fresh processes that give it; both in random order. On a GPU also the host time of a warm call there.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float32
from measuring import (
    Goal,
    Result,
    child_environment,
    find_cupy,
    print_rows,
    ratio,
    read_options,
    run_child,
    start,
    summary,
    time_bursts,
)

import cuplate
from cuplate import Array, Inline, cache, specialize, tune

TEXT = """
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const {{ index_t }} i = ({{ index_t }})blockIdx.x * {{ tile }} + threadIdx.x;
    if (i < {{ N }}) out[i] = 2 * x[i];
}
"""
CHILD = """
import json, sys, time
import numpy as np
sys.path.insert(0, {folder!r})
from autotune import twice
x = np.ones(1000, np.float32)
begin = time.perf_counter()
twice(x{given})
took = time.perf_counter() - begin
tile = twice.tuning(x).parameters["tile"]
print(json.dumps(dict(ms=took * 1e3, compiles=twice.cache_info().compiles, tile=tile)))
"""


@specialize(Inline(TEXT), tiles={"N": "tile"}, block="tile")
def twice(
    x: Float32[Array, " N"], *, tile: Literal[64, 256] = tune(), out: Float32[Array, " N"] | None = None
) -> Float32[Array, " N"]:
    """2 * x."""
    return x + x


def main() -> int:
    options = read_options(__doc__)
    result = start("autotune", options)
    unchecked = cuplate.config.scope(cpu_check="off")
    with tempfile.TemporaryDirectory() as directory, cuplate.configure(directory=directory), unchecked:
        tile = tuning(result)
        warm(result, np, tile, options.quick, "in host memory")
        starts(result, directory, tile, options.quick)
        cupy, reason = find_cupy()
        if cupy is None:
            result.note(f"Calls on a GPU were not measured: {reason}")
        else:
            on_gpu = twice.tune(cupy.ones(1000, cupy.float32)).parameters["tile"]
            warm(result, cupy, on_gpu, options.quick, "on a GPU")
    print_rows(result.rows)
    return result.finish(options)


def tuning(result: Result) -> int:
    """The tuning itself, once with every compile and once without."""
    x = np.ones(1000, np.float32)
    for name in ("a tuning of 2 candidates, with its compiles", "the same, compiled before"):
        before = cache.stats(all_threads=True).compile.seconds
        begin = time.perf_counter()
        table = twice.tune(x)
        result.rows.append(summary(name, [(time.perf_counter() - begin) * 1e3], "ms"))
        compiling = cache.stats(all_threads=True).compile.seconds - before
        result.rows.append(summary(f"{name}: the compiler, all threads", [compiling * 1e3], "ms"))
    return int(table.parameters["tile"])


def warm(result: Result, library: Any, tile: Any, quick: bool, where: str) -> None:
    """A warm call with the winner in its plan, and one that gives it."""
    x, out = library.ones(1000, library.float32), library.ones(1000, library.float32)
    drain: Callable[[], object] = library.cuda.Device().synchronize if hasattr(library, "cuda") else int
    calls: dict[str, Callable[[], object]] = {
        "tuned": lambda: twice(x, out=out),
        "given": lambda: twice(x, tile=tile, out=out),
    }
    for call in calls.values():
        call()
    times = time_bursts(calls, drain, rounds=9 if quick else 61, calls=100)
    result.rows += [summary(f"a warm call {where}, {name}", values, "us") for name, values in times.items()]
    compared = ratio(times["tuned"], times["given"])
    result.goals.append(Goal(f"a warm call {where}, tuned / given", compared.worse, 1.15))


def starts(result: Result, directory: str, tile: int, quick: bool) -> None:
    """The first call of a fresh process, which finds the winner on disk, and that of one that gives it."""
    environment = child_environment(CUPLATE_CACHE_DIR=directory, CUPLATE_CPU_CHECK="off")
    given = {"tuned": "", "given": f", tile={tile}"}
    folder = str(Path(__file__).parent)
    times: dict[str, list[float]] = {name: [] for name in given}
    for i in range(3 if quick else 16):
        for name in random.sample(list(given), len(given)):
            found = run_child(["-c", CHILD.format(given=given[name], folder=folder)], environment)
            assert (found["compiles"], found["tile"]) == (0, tile), found
            if i:  # the first round wrote the bytecode
                times[name].append(found["ms"])
    result.rows += [summary(f"the first call of a process, {name}", values, "ms") for name, values in times.items()]
    more = statistics.median(times["tuned"]) - statistics.median(times["given"])
    result.rows.append(summary("a stored winner costs", [more], "ms"))


if __name__ == "__main__":
    sys.exit(main())
