"""The first call of a fresh process: what the disk cache costs, and what the whole call takes.

1. Disk hit, with imports done and both stores open: cuplate's look-up and load against the same two steps of
   ``cuda.core.utils.FileStreamProgramCache`` and ``ObjectCode``, for the same cubins. Goal: at most 1.0. The cost of
   opening each store (its first look-up, of another kernel) is a row of its own.
2. The whole first call, imports done: cold (compiles) and warm (finds it on disk).
3. A cold specialization of each fused product in bfloat16 (bias and ReLU, and GELU by erf): render and compile for
   sm_90a, no launch; NVRTC's own cache is off. Goal (C1): 800 ms.

Without a GPU only the look-ups and compiles are measured, and a compile instead of a call.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
)

if TYPE_CHECKING:
    from cuplate.key import Key

DECOY = {"tile": 32, "epilogue": "identity"}
TARGETS = [{"tile": t, "epilogue": e} for t, e in ((16, "relu"), (32, "relu"), (16, "identity"))]
ENTRY = "matmul_epilogue"


def main() -> int:
    options = read_options(
        __doc__, ("--child", {"nargs": 2, "metavar": ("WHAT", "FILE"), "help": "what a fresh process runs; internal"})
    )
    if options.child:
        what, file = options.child
        facts = json.loads(Path(file).read_text())
        print(json.dumps({"hit": measure_hit, "call": measure_call, "products": measure_products}[what](facts)))
        return 0
    result = start("cold_start", options)
    cupy, reason = find_cupy()
    if cupy is None:
        result.note(f"Loads and calls were not measured, only look-ups and compiles: {reason}.")
    with tempfile.TemporaryDirectory(prefix="cuplate-benchmark-") as folder:
        facts = prepare(Path(folder), cupy)
        disk_hit(result, facts, Path(folder), processes=1 if options.quick else 15)
        first_call(result, facts, Path(folder), processes=1 if options.quick else 7)
        products(result, facts, Path(folder), processes=1 if options.quick else 7)
    return result.finish(options)


# the parent -----------------------------------------------------------------------------------------------------------


def prepare(folder: Path, cupy: Any) -> dict[str, Any]:
    """Both stores, filled with the same cubins; what a child must know of them."""
    from cuda.core.utils import FileStreamProgramCache

    import cuplate
    from cuplate.kernels import matmul_epilogue

    arch = f"sm_{cupy.cuda.Device(0).compute_capability}" if cupy else "sm_90"
    facts: dict[str, Any] = {"arch": arch, "gpu": cupy is not None, "entries": []}
    facts |= {"ours": str(folder / "cuplate"), "theirs": str(folder / "filestream")}
    theirs = FileStreamProgramCache(facts["theirs"])
    with cuplate.configure(directory=facts["ours"]):
        for parameters in (DECOY, *TARGETS):
            report = matmul_epilogue.inspect("float32", arch=arch, **parameters)
            key = bytes.fromhex(report.key)  # 32 bytes, as theirs has
            theirs[key] = report.cubin.code
            facts["entries"].append({"key": report.key, "ingredients": report.ingredients})
    theirs.close()
    return facts


def children(what: str, facts: dict[str, Any], folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    """What one fresh process found."""
    file = folder / "facts.json"
    file.write_text(json.dumps(facts))
    return run_child([__file__, "--child", what, str(file)], environment)


def disk_hit(result: Result, facts: dict[str, Any], folder: Path, *, processes: int) -> None:
    """Rows and goal of the disk hit."""
    environment = child_environment(CUPLATE_CACHE_DIR=facts["ours"])
    _, *found = [children("hit", facts, folder, environment) for _ in range(1 + processes)]  # the first writes bytecode
    times: dict[str, list[float]] = {}
    for child in found:
        for name, values in child.items():
            times.setdefault(name, []).extend(values)
    rows = [summary(name, values, "us") for name, values in times.items()]
    print_rows(rows)
    result.rows += rows
    steps = ("look-up", "load") if facts["gpu"] else ("look-up",)
    mine, theirs = (
        [sum(step) for step in zip(*(times[f"{who}: {s}"] for s in steps), strict=True)]
        for who in ("cuplate", "FileStreamProgramCache")
    )
    name = f"disk hit, {' + '.join(steps)}: cuplate / FileStreamProgramCache"
    compared = ratio(mine, theirs)
    result.note(f"{name}: of medians {compared.of_medians:.3f}, median of pairs {compared.median_of_rounds:.3f}")
    result.goals.append(Goal(name, compared.worse, 1.0, stretch=not facts["gpu"]))


def first_call(result: Result, facts: dict[str, Any], folder: Path, *, processes: int) -> None:
    """Rows of the whole first call."""
    times: dict[str, list[float]] = {}
    for i in range(1 + processes):
        environment = child_environment(CUPLATE_CACHE_DIR=str(folder / f"cold{i}"))
        for state, origin in (("cold", "compile"), ("warm", "disk")):
            found = children("call", facts, folder, environment)
            if found["origin"] != origin:
                raise RuntimeError(f"the {state} first call came from {found['origin']!r}")
            if not i:
                continue  # it wrote the bytecode
            times.setdefault(f"first {found['what']}, {state}", []).append(found["call_ms"])
            times.setdefault(f"imports before it, {state}", []).append(found["import_ms"])
    rows = [summary(name, values, "ms") for name, values in times.items()]
    print_rows(rows)
    result.rows += rows


def products(result: Result, facts: dict[str, Any], folder: Path, *, processes: int) -> None:
    """Rows of cold specializations, and C1 for each of them."""
    times: dict[str, list[float]] = {}
    for i in range(processes):
        environment = child_environment(CUPLATE_CACHE_DIR=str(folder / f"products{i}"))
        for name, took_ms in children("products", facts, folder, environment).items():
            times.setdefault(f"render + compile, {name}", []).append(took_ms)
    rows = [summary(name, values, "ms") for name, values in times.items()]
    print_rows(rows)
    result.rows += rows
    result.goals += [Goal(f"{row['name']}: ms", row["median"], 800, stretch="relu" not in row["name"]) for row in rows]


# a fresh process ------------------------------------------------------------------------------------------------------


def measure_hit(facts: dict[str, Any]) -> dict[str, list[float]]:
    """Microseconds of opening, look-up and load, of both stores, in random order."""
    import cuda.core.utils  # noqa: F401 - the imports are not what is measured
    import jinja2  # noqa: F401

    import cuplate.cache.disk
    import cuplate.compile
    import cuplate.cubin  # noqa: F401
    from cuplate.key import Key

    if facts["gpu"]:
        from cuda.core import Device

        Device(0).set_current()
    decoy, *targets = [Key(bytes.fromhex(e["key"]), tuple(map(tuple, e["ingredients"]))) for e in facts["entries"]]
    sides = [ours(facts), filestream(facts)]
    random.shuffle(sides)
    times: dict[str, list[float]] = {}
    for name, open_store, look_up, load in sides:
        begin = time.perf_counter()
        open_store()
        first = look_up(decoy)  # a lazy store opens here
        times[f"{name}: opening"] = [(time.perf_counter() - begin) * 1e6]
        if facts["gpu"]:
            load(first)  # what a process loads once is not a kernel's cost
    keep = []
    for target in random.sample(targets, len(targets)):
        random.shuffle(sides)
        for name, _, look_up, load in sides:
            begin = time.perf_counter()
            found = look_up(target)
            looked = time.perf_counter()
            times.setdefault(f"{name}: look-up", []).append((looked - begin) * 1e6)
            if facts["gpu"]:
                keep.append(load(found))
                times.setdefault(f"{name}: load", []).append((time.perf_counter() - looked) * 1e6)
    return dict(sorted(times.items()))


def ours(facts: dict[str, Any]) -> tuple[Any, ...]:
    """What the walk does on a miss in memory: look-up with check of the seal and decoding; then load."""
    from cuplate import cache
    from cuplate.compile import obtain

    if facts["gpu"]:
        from cuplate.backend.cuda import device

    def never() -> Any:
        raise RuntimeError("a miss, where the disk holds it")

    opened: list[Any] = []

    def open_store() -> None:
        opened.append(cache.disk_tier())

    def look_up(key: Key) -> Any:
        return obtain(key, store=opened[0], build=never, function=ENTRY)

    def load(found: Any) -> Any:
        return device.load(found.cubin, 0)

    return "cuplate", open_store, look_up, load


def filestream(facts: dict[str, Any]) -> tuple[Any, ...]:
    """The same two steps with cuda.core's own store: bytes, then a kernel."""
    from cuda.core import ObjectCode
    from cuda.core.utils import FileStreamProgramCache

    opened: list[Any] = []

    def open_store() -> None:
        opened.append(FileStreamProgramCache(facts["theirs"]))

    def look_up(key: Key) -> Any:
        found = opened[0].get(key.digest)
        if found is None:
            raise RuntimeError("a miss, where the disk holds it")
        return found

    def load(found: bytes) -> Any:
        code = ObjectCode.from_cubin(found)
        return code, code.get_kernel(ENTRY)  # loads the module

    return "FileStreamProgramCache", open_store, look_up, load


def measure_call(facts: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds of the first call of this process, its result waited for; without a GPU of the first compile."""
    begin = time.perf_counter()
    import cuda.core  # noqa: F401
    import jinja2  # noqa: F401

    from cuplate.kernels import matmul_epilogue

    if not facts["gpu"]:
        imported = time.perf_counter()
        report = matmul_epilogue.inspect("float32", arch=facts["arch"], tile=16, epilogue="relu")
        called, origin, what = time.perf_counter(), report.origin, "compile"
    else:
        import cupy

        a = b = cupy.ones((32, 32), dtype=cupy.float32)
        bias = cupy.ones(32, dtype=cupy.float32)
        cupy.cuda.runtime.deviceSynchronize()
        imported = time.perf_counter()
        matmul_epilogue(a, b, bias, tile=16, epilogue="relu")
        cupy.cuda.runtime.deviceSynchronize()
        called, what = time.perf_counter(), "call"
        origin = "compile" if matmul_epilogue.cache_info().compiles else "disk"
    return {
        "what": what,
        "origin": origin,
        "import_ms": (imported - begin) * 1e3,
        "call_ms": (called - imported) * 1e3,
    }


def measure_products(facts: dict[str, Any]) -> dict[str, float]:
    """Milliseconds of each cold specialization, in random order behind one that loads NVRTC."""
    from cuplate import ArraySpec
    from cuplate.kernels import matmul_epilogue, matmul_wgmma, matmul_wgmma_small, matmul_wgmma_split, matmul_wgmma_wide

    matmul_epilogue.inspect("float32", arch="sm_90", tile=16)
    square, row = ArraySpec((4096, 4096), "bfloat16"), ArraySpec((4096,), "bfloat16")
    functions = (matmul_wgmma, matmul_wgmma_small, matmul_wgmma_split, matmul_wgmma_wide)
    jobs = [(f, epilogue) for f in functions for epilogue in ("relu", "gelu")]
    times = {}
    for f, epilogue in random.sample(jobs, len(jobs)):
        begin = time.perf_counter()
        report = f.inspect(square, square, row, arch="sm_90", epilogue=epilogue)
        times[f"{f.__name__}, {epilogue}"] = (time.perf_counter() - begin) * 1e3
        if report.origin != "compile":
            raise RuntimeError(f"{f.__name__} came from {report.origin!r}")
    return dict(sorted(times.items()))


if __name__ == "__main__":
    sys.exit(main())
