"""What every benchmark here shares: where it ran, medians of interleaved contenders, goals, and the JSON it writes."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import gc
import importlib.metadata
import importlib.util
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any

PACKAGES = (
    "cuplate", "cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc", "numpy", "cupy-cuda13x", "cupy-cuda12x", "torch",
    "triton", "nvmath-python", "numba-cuda", "jinja2", "diskcache", "jaxtyping",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Goal:
    """One figure that must not be larger than its limit.

    Attributes
    ----------
    name : str
    value : float
    limit : float
    stretch : bool
        Wanted, not demanded.
    """

    name: str
    value: float
    limit: float
    stretch: bool = False

    @property
    def passed(self) -> bool:
        """False for a NaN too."""
        return self.value <= self.limit

    def __str__(self) -> str:
        kind = " (stretch)" if self.stretch else ""
        return f"{'PASS' if self.passed else 'FAIL'}  {self.value:10.3f} <= {self.limit:<8g} {self.name}{kind}"


@dataclass(slots=True)
class Result:
    """What one benchmark found; `finish` prints the goals and writes it down."""

    benchmark: str
    quick: bool
    rows: list[dict[str, Any]] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    skipped: str | None = None
    machine: dict[str, Any] = field(default_factory=dict)

    def note(self, text: str) -> None:
        """Print a remark and keep it."""
        print(text)
        self.notes.append(text)

    def finish(self, options: argparse.Namespace) -> int:
        """Exit status: 1 only with ``--strict`` and a goal that is missed."""
        for goal in self.goals:
            print(goal)
        if options.output is not None:
            goals = [{**asdict(g), "passed": g.passed} for g in self.goals]
            text = json.dumps({**asdict(self), "goals": goals}, indent=1)
            options.output.parent.mkdir(parents=True, exist_ok=True)
            options.output.write_text(text + "\n")
        return int(options.strict and any(not (g.passed or g.stretch) for g in self.goals))


def read_options(description: str | None, *more: tuple[str, dict[str, Any]]) -> argparse.Namespace:
    """``--quick``, ``--output``, ``--strict``, and `more`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions: shows that it works, measures little")
    parser.add_argument("--output", type=Path, metavar="JSON", help="write all figures to this file")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a goal is missed")
    for name, keywords in more:
        parser.add_argument(name, **keywords)
    return parser.parse_args()


def start(benchmark: str, options: argparse.Namespace) -> Result:
    """Print where and when this runs."""
    result = Result(benchmark, options.quick, machine=machine())
    print(f"== {benchmark}{' (quick)' if options.quick else ''}")
    for name, value in result.machine.items():
        print(f"{name:<10} {value}")
    return result


def machine() -> dict[str, Any]:
    """Date, processor, GPU and versions."""
    versions = []
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{name} {importlib.metadata.version(name)}")
    if not any(v.startswith("cuplate ") for v in versions):
        import cuplate

        versions.insert(0, f"cuplate {cuplate.__version__}")
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "gpu": _gpu(),
        "versions": ", ".join(versions),
    }


def _gpu() -> str:
    cupy, reason = find_cupy()
    if cupy is None:
        return f"none: {reason}"
    properties = cupy.cuda.runtime.getDeviceProperties(0)
    return f"{properties['name'].decode()}, driver for CUDA {cupy.cuda.runtime.driverGetVersion()}"


def find_cupy() -> tuple[Any, str]:
    """CuPy if it is here and sees a GPU; else None and why not."""
    try:
        import cupy
    except ImportError as error:
        return None, f"CuPy cannot be imported ({error})"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return None, f"no GPU ({error})"
    return (cupy, "") if count else (None, "no GPU (the driver lists no device)")


def skip_without_gpu(result: Result) -> Any:
    """CuPy; None where there is no GPU, which the result then says."""
    cupy, reason = find_cupy()
    if cupy is None:
        result.skipped = f"needs a GPU: {reason}"
        print(f"Nothing was measured: this benchmark {result.skipped}.")
    return cupy


def skip_without_torch(result: Result, why: str) -> Any:
    """torch; None where it cannot be imported, which the result then says."""
    try:
        import torch
    except ImportError as error:
        result.skipped = f"needs torch, for {why}: {error}"
        print(f"Nothing was measured: this benchmark {result.skipped}.")
        return None
    return torch


# bursts in one process ------------------------------------------------------------------------------------------------


def time_bursts(
    contenders: Mapping[str, Callable[[], object]], drain: Callable[[], object], *, rounds: int, calls: int
) -> dict[str, list[float]]:
    """Host time of one call, microseconds, by contender and round.

    In each round every contender makes one burst of `calls`, in an order drawn anew, so that a slow moment of the
    machine meets them all alike. The device is drained between bursts, outside the clock. The garbage collector is off
    inside a burst, as in ``timeit``, and runs between rounds.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders.items())
    for _, call in order:  # caches, pools and clocks
        _burst(call, calls)
        drain()
    for _ in range(rounds):
        random.shuffle(order)
        gc.collect()
        gc.disable()
        try:
            for name, call in order:
                times[name].append(_burst(call, calls) * 1e6)
                drain()
        finally:
            gc.enable()
    return times


def time_events(
    contenders: Mapping[str, Callable[[], object]], event: Callable[[], Any], *, rounds: int, calls: int
) -> dict[str, list[float]]:
    """Device time of one call, milliseconds, by contender and round, between two events on the current stream.

    Each round runs every contender once, `calls` calls in a row, in an order drawn anew; the host waits only at the end
    of a round, so that the device keeps the clocks and the heat that it has under load.

    Parameters
    ----------
    contenders : mapping
    event : callable
        Makes an event, with ``record()``, ``synchronize()`` and ``elapsed_time(later)`` in milliseconds: torch's.
    rounds, calls : int
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders.items())
    for _ in range(rounds):
        random.shuffle(order)
        marks = [event()]
        marks[0].record()
        for _, call in order:
            for _ in repeat(None, calls):
                call()
            marks.append(event())
            marks[-1].record()
        marks[-1].synchronize()
        for (name, _), begin, end in zip(order, marks, marks[1:], strict=False):
            times[name].append(begin.elapsed_time(end) / calls)
    return times


def _burst(call: Callable[[], object], calls: int) -> float:
    begin = time.perf_counter()
    for _ in repeat(None, calls):
        call()
    return (time.perf_counter() - begin) / calls


@dataclass(frozen=True, slots=True)
class Ratio:
    """Two ways to compare the same rounds; `worse` is what a goal is held to."""

    of_medians: float
    median_of_rounds: float

    @property
    def worse(self) -> float:
        """The larger one."""
        return max(self.of_medians, self.median_of_rounds)


def ratio(mine: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Mine over theirs, round by round and as medians."""
    rounds = [a / b for a, b in zip(mine, theirs, strict=True)]
    return Ratio(statistics.median(mine) / statistics.median(theirs), statistics.median(rounds))


def summary(name: str, values: Sequence[float], unit: str) -> dict[str, Any]:
    """One row: median, least, and quartiles."""
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    figures = {"median": statistics.median(values), "min": min(values), "q1": low, "q3": high}
    return {"name": name, "unit": unit, "count": len(values), **{k: round(v, 5) for k, v in figures.items()}}


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows of `summary` as a table."""
    if not rows:
        return
    width = max(len(r["name"]) for r in rows)
    print(f"{'':<{width}}  {'median':>10} {'min':>10} {'q1':>10} {'q3':>10}  unit")
    for r in rows:
        figures = " ".join(f"{r[k]:10.3f}" for k in ("median", "min", "q1", "q3"))
        print(f"{r['name']:<{width}}  {figures}  {r['unit']}")


def tell(result: Result, what: str, times: dict[str, list[float]], unit: str) -> None:
    """Keep and print the figures of one measurement."""
    print(f"-- {what}")
    rows = [summary(f"{what}: {name}", values, unit) for name, values in times.items()]
    result.rows += rows
    print_rows(rows)


# fresh processes ------------------------------------------------------------------------------------------------------


def child_environment(**more: str) -> dict[str, str]:
    """The environment of a fresh process: finds this cuplate, and its bytecode as an installed package has it.

    A checkout may be read-only, and then every child would compile all of the library; so the bytecode goes to a folder
    of this run. The first child that runs a thing writes it, and is not to be counted.
    """
    spec = importlib.util.find_spec("cuplate")
    assert spec is not None and spec.origin is not None
    package_root = str(Path(spec.origin).parent.parent)
    paths = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    found = {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), "PYTHONPYCACHEPREFIX": _bytecode().name}
    return {**kept, **found, **more}


@functools.cache
def _bytecode() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="cuplate-bytecode-")


def run_child(arguments: Sequence[str], environment: Mapping[str, str], timeout_s: float = 120) -> dict[str, Any]:
    """Run Python with `arguments`; the last line that it prints is JSON."""
    done = subprocess.run(
        [sys.executable, *arguments], env=dict(environment), capture_output=True, text=True, timeout=timeout_s
    )
    if done.returncode:
        raise RuntimeError(f"a child process ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found
