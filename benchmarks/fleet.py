"""A warm-up by four Dask workers on this machine against one by one thread of one process, per core.

Goal: at least 0.8 times as many specializations a second and core. The workers are processes with disks of their own
and, where redis-server is installed, one shared tier, as in examples/dask_warmup.py; scheduler and client take their
part of the same cores. Imports and the compiler's start are not counted, and told.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from measuring import Goal, Result, print_rows, ratio, read_options, start, summary

from cuplate import Manifest, cache, configure, warmup
from cuplate.kernels import fused_elementwise

WORKERS = 4
ARCH = "sm_90"
MOST = 200


def main() -> int:
    options = read_options(__doc__)
    result = start("fleet", options)
    try:
        import distributed  # noqa: F401
    except ImportError as error:
        result.skipped = f"needs distributed: {error}"
        print(f"Nothing was measured: this benchmark {result.skipped}.")
        return result.finish(options)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="cuplate-benchmark-"))
        stack.enter_context(configure(directory=f"{folder}/one"))
        compare(result, stack.enter_context(cluster(folder)), options.quick)
    return result.finish(options)


def compare(result: Result, fleet: tuple[Any, Callable[[], object]], quick: bool) -> None:
    """The same list, cold in every round."""
    client, forget = fleet
    cores = min(WORKERS, os.cpu_count() or 1)
    names: dict[str, Executor] = {
        "one thread": ThreadPoolExecutor(1),
        f"{WORKERS} workers": client.get_executor(pure=False),
    }
    for name, executor in names.items():  # every worker needs its imports and its compiler
        begin = time.perf_counter()
        warmup(wanted(4 * WORKERS), arch="sm_80", executor=executor, progress=False).check()
        result.note(f"{name}: the first {4 * WORKERS}, with imports, {time.perf_counter() - begin:.1f} s")
    times: dict[str, list[float]] = {name: [] for name in names}
    used: dict[str, list[float]] = {name: [] for name in names}
    manifest = wanted(24 if quick else MOST)
    for _ in range(1 if quick else 3):
        for name, executor in names.items():
            forget()
            before = processor_s(client)
            warmed = warmup(manifest, arch=ARCH, executor=executor, progress=False).check()
            if warmed.compiled != len(manifest):
                raise RuntimeError(f"{name}: {warmed.compiled} of {len(manifest)} were compiled")
            times[name].append(warmed.seconds)
            used[name].append(processor_s(client) - before)
    rows = [summary(f"{len(manifest)} specializations: {name}", values, "s") for name, values in times.items()]
    rows += [summary(f"processors, idle workers included: {name}", values, "s") for name, values in used.items()]
    result.rows += rows
    print_rows(rows)
    result.note(f"{WORKERS} workers, client and scheduler on {cores} cores; each key compiled once")
    found = ratio(times[f"{WORKERS} workers"], times["one thread"]).worse * cores
    result.goals.append(Goal(f"{WORKERS} Dask workers / one thread, time of a core", found, 1.25))


def processor_s(client: Any) -> float:
    """What this process, which is client and scheduler too, and the workers have used."""
    return float(time.process_time() + sum(client.run(time.process_time).values()))


def wanted(count: int) -> Manifest:
    """So many of a shipped kernel's specializations."""
    lows = (None, *map(float, range(-5, 0)))
    every = itertools.product(lows, ("gelu", "gelu_tanh", "silu", "relu", "identity"), (1, 2, 4), (128, 256, 512))
    return Manifest(
        fused_elementwise.wanted(x="float32", low=low, activation=activation, packs=packs, threads=threads)
        for low, activation, packs, threads in itertools.islice(every, count)
    )


@contextlib.contextmanager
def cluster(folder: str) -> Iterator[tuple[Any, Callable[[], object]]]:
    """A client of the workers, and what makes everything cold."""
    sys.path.append(str(Path(__file__).parents[1] / "examples"))
    import dask_warmup

    logging.getLogger("distributed").setLevel(logging.ERROR)
    with dask_warmup.shared_tier(folder) as shared, dask_warmup.nodes(folder, WORKERS, shared) as client:

        def forget() -> None:
            cache.clear()
            client.run(cache.clear)
            if shared:
                import redis

                with redis.Redis.from_url(shared["CUPLATE_SHARED"]) as server:
                    server.flushall()

        yield client, forget


if __name__ == "__main__":
    sys.exit(main())
