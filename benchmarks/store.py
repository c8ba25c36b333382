"""The disk tier against bare diskcache and ``cuda.core``'s ``FileStreamProgramCache``; no GPU is needed.

Goals: a warm start (import, open, first get, with ``cuda.core`` imported) at most half of eager diskcache's; a sealed
hit of 6 KB at most once, one of 60 KB at most 1.5 times FileStreamProgramCache's; an evicting put at 10,000 entries at
most a tenth; 16 processes of mixed load at least 1.5 times its throughput; 16 processes that miss one key with the real
NVRTC at least 6 times faster than without the lock.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measuring import (
    Goal,
    Result,
    child_environment,
    ratio,
    read_options,
    run_child,
    start,
    tell,
    time_bursts,
)

PROCESSES = 16
ENTRIES = 10_000
KEYS, SMALL, LARGE = 400, 6144, 61440

WARM = {
    "cuplate disk tier": "from cuplate.cache import DiskTier\nstore = DiskTier({base!r})\nfound = store.get({key!r})",
    "cuplate file tier": (
        "from cuplate.cache.files import FilesTier\nstore = FilesTier({base!r})\nfound = store.get({key!r})"
    ),
    "diskcache, eager": "import diskcache\nstore = diskcache.Cache({bare!r})\nfound = store.get({key!r})",
    "FileStreamProgramCache": (
        "from cuda.core.utils import FileStreamProgramCache\nstore = FileStreamProgramCache({theirs!r})\n"
        "found = store.get({key!r})"
    ),
}
WARM_CHILD = """
import cuda.core, cuda.core.utils, json, time
begin = time.perf_counter()
{statement}
seconds = time.perf_counter() - begin
assert len(found) == {size}
print(json.dumps(dict(ms=seconds * 1e3)))
"""


def main() -> int:
    options = read_options(__doc__)
    result = start("store", options)
    with tempfile.TemporaryDirectory(prefix="cuplate-benchmark-") as folder:
        place = Path(folder)
        warm_start(result, place / "warm", options.quick)
        hits(result, place / "hits", options.quick)
        evicting_puts(result, place / "evict", options.quick)
        mixed_load(result, place / "mixed", options.quick)
        stampede(result, place / "stampede", options.quick)
    return result.finish(options)


def key(number: int) -> bytes:
    """32 bytes whose first one varies."""
    return number.to_bytes(32, "little")


# one process ----------------------------------------------------------------------------------------------------------


def warm_start(result: Result, place: Path, quick: bool) -> None:
    """Fresh processes on stores of 1000 entries."""
    import diskcache
    from cuda.core.utils import FileStreamProgramCache

    from cuplate.cache import DiskTier
    from cuplate.cache.files import FilesTier

    places = {"base": str(place / "base"), "bare": str(place / "bare"), "theirs": str(place / "theirs")}
    stores: list[Any] = [DiskTier(places["base"]), FilesTier(places["base"])]
    bare, theirs = diskcache.Cache(places["bare"]), FileStreamProgramCache(places["theirs"])
    for number in range(100 if quick else 1000):
        payload = os.urandom(SMALL)
        for store in stores:
            store.put(key(number), payload)
        bare[key(number)] = theirs[key(number)] = payload
    for store in (*stores, bare, theirs):
        store.close()
    times: dict[str, list[float]] = {name: [] for name in WARM}
    environment = child_environment()
    for i in range(4 if quick else 21):
        for name, statement in WARM.items():
            script = WARM_CHILD.format(statement=statement.format(key=key(7), **places), size=SMALL)
            found = run_child(["-c", script], environment)
            if i:  # the first round wrote the bytecode
                times[name].append(found["ms"])
    tell(result, "warm start", times, "ms")
    compared = ratio(times["cuplate disk tier"], times["diskcache, eager"])
    result.goals.append(Goal("warm start: disk tier / eager diskcache", compared.worse, 0.5))


def hits(result: Result, place: Path, quick: bool) -> None:
    """A get of a present key; ours checks a seal."""
    from cuda.core.utils import FileStreamProgramCache

    from cuplate.cache import DiskTier
    from cuplate.cache.files import FilesTier

    for size, limit in ((SMALL, 1.0), (LARGE, 1.5)):
        stores: dict[str, Any] = {
            "cuplate disk tier": DiskTier(str(place / f"disk{size}")),
            "cuplate file tier": FilesTier(str(place / f"files{size}")),
            "FileStreamProgramCache": FileStreamProgramCache(place / f"theirs{size}"),
        }
        for number in range(200):
            payload = os.urandom(size)
            for store in list(stores.values())[:2]:
                store.put(key(number), payload)
            stores["FileStreamProgramCache"][key(number)] = payload
        gets = {name: reader(store) for name, store in stores.items()}
        times = time_bursts(gets, lambda: None, rounds=5 if quick else 25, calls=200)
        tell(result, f"hit of {size} bytes", times, "us")
        compared = ratio(times["cuplate disk tier"], times["FileStreamProgramCache"])
        result.goals.append(Goal(f"sealed hit of {size} bytes / FileStreamProgramCache", compared.worse, limit))


def reader(store: Any) -> Callable[[], object]:
    """A call that gets the next of 200 keys."""
    numbers = iter(range(1 << 60))
    keys = [key(number) for number in range(200)]

    def get() -> None:
        if store.get(keys[next(numbers) % 200]) is None:
            raise RuntimeError(f"{store!r} lost an entry")

    return get


def evicting_puts(result: Result, place: Path, quick: bool) -> None:
    """Puts into a store that is full with 10,000 entries of 1 KB."""
    from cuda.core.utils import FileStreamProgramCache

    from cuplate.cache import DiskTier
    from cuplate.cache.files import FilesTier

    entries, size = (1000 if quick else ENTRIES), 1024
    disk = DiskTier(str(place / "disk"), limit_bytes=entries * (size + 40))
    files = FilesTier(str(place / "files"), limit_bytes=entries * (size + 40 + 60))
    uncapped = FileStreamProgramCache(place / "theirs")  # with a cap each of the first puts might scan as well
    payload = os.urandom(size)
    files.put(key(0), payload)
    for number in range(entries):
        disk.put(key(number), payload)
        files._folder.write(key(number), "", os.urandom(size + 40), sync=False)
        uncapped[key(number)] = payload
    theirs = FileStreamProgramCache(place / "theirs", max_size_bytes=entries * size)
    numbers = iter(range(entries, 1 << 60))

    def put(store: Any) -> Callable[[], object]:
        def call() -> None:
            if store is theirs:
                store[key(next(numbers))] = payload
            elif not store.put(key(next(numbers)), payload):
                raise RuntimeError(f"{store!r} did not store")

        return call

    calls = {"cuplate disk tier": put(disk), "cuplate file tier": put(files), "FileStreamProgramCache": put(theirs)}
    times = time_bursts(calls, lambda: None, rounds=3 if quick else 7, calls=5)
    tell(result, f"evicting put at {entries} entries", times, "us")
    compared = ratio(times["cuplate disk tier"], times["FileStreamProgramCache"])
    result.goals.append(Goal(f"evicting put at {entries} entries / FileStreamProgramCache", compared.worse, 0.1))


# many processes -------------------------------------------------------------------------------------------------------

MIXED_CHILD = """
import json, os, random, sys, time
kind, place, seconds, seed = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
def key(n): return n.to_bytes(32, "little")
if kind == "FileStreamProgramCache":
    from cuda.core.utils import FileStreamProgramCache
    store = FileStreamProgramCache(place)
    put = store.__setitem__
elif kind == "diskcache, inline":
    import diskcache
    store = diskcache.Cache(place, disk_min_file_size=1 << 31)
    put = store.set
else:
    from cuplate.cache import DiskTier
    from cuplate.cache.files import FilesTier
    store = (DiskTier if kind == "cuplate disk tier" else FilesTier)(place)
    put = store.put
values = [os.urandom(6144), os.urandom(61440)]
rng = random.Random(seed)
print("ready", flush=True)
sys.stdin.readline()
end, done, missed, slowest = time.perf_counter() + seconds, 0, 0, 0.0
while (begin := time.perf_counter()) < end:
    number = rng.randrange(400)
    if rng.random() < 0.1:
        put(key(number), values[number >= 300])
    else:
        missed += store.get(key(number)) is None
    done += 1
    slowest = max(slowest, time.perf_counter() - begin)
print(json.dumps([done, missed, slowest]))
"""


def together(script: str, arguments: list[list[str]]) -> list[Any]:
    """Start children, let all go at once when all are ready, and read the JSON that each prints."""
    children = [
        subprocess.Popen(
            [sys.executable, "-c", script, *own],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=child_environment(),
        )
        for own in arguments
    ]
    for child in children:
        assert child.stdout is not None
        if child.stdout.readline() != "ready\n":
            raise RuntimeError("a child did not start")
    for child in children:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
    return [json.loads(child.communicate()[0]) for child in children]


def mixed_load(result: Result, place: Path, quick: bool) -> None:
    """16 processes, 90 % gets and 10 % puts, three quarters of 6 KB and a quarter of 60 KB.

    Bare diskcache with its values in the rows, which checks nothing, says what the engine of our disk tier can reach.
    """
    import diskcache
    from cuda.core.utils import FileStreamProgramCache

    from cuplate.cache import DiskTier
    from cuplate.cache.files import FilesTier

    kinds = ("cuplate disk tier", "cuplate file tier", "diskcache, inline", "FileStreamProgramCache")
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    for round_number in range(1 if quick else 3):
        for kind in kinds:
            folder = str(place / f"{kind}{round_number}")
            store: Any
            if kind == "FileStreamProgramCache":
                store = FileStreamProgramCache(folder)
                put = store.__setitem__
            elif kind == "diskcache, inline":
                store = diskcache.Cache(folder, disk_min_file_size=1 << 31)
                put = store.set
            else:
                store = (DiskTier if kind == "cuplate disk tier" else FilesTier)(folder)
                put = store.put
            for number in range(KEYS):
                put(key(number), os.urandom(LARGE if number >= 300 else SMALL))
            store.close()
            seconds = 1.0 if quick else 4.0
            found = together(MIXED_CHILD, [[kind, folder, str(seconds), str(seed)] for seed in range(PROCESSES)])
            rates[kind].append(sum(done for done, _, _ in found) / seconds)
            slowest = max(slow for _, _, slow in found) * 1e3
            result.note(f"{kind}: {sum(missed for _, missed, _ in found)} misses, slowest operation {slowest:.0f} ms")
    tell(result, f"{PROCESSES} processes, operations a second", rates, "/s")
    compared = ratio(rates["FileStreamProgramCache"], rates["cuplate disk tier"])
    goal = f"{PROCESSES} processes: FileStreamProgramCache's throughput / disk tier's"
    result.goals.append(Goal(goal, compared.worse, 1 / 1.5))


STAMPEDE_CHILD = """
import json, sys, time
from typing import Literal
from jaxtyping import Float32
import cuplate
from cuplate import Array, Inline, specialize

BODY = '''
extern "C" __global__ void {{ kernel }}({{ args }}) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = i < N ? x[i] : 0.0f;
    {% for n in range(count) %}v = __sinf(v) * {{ n }}.5f + __cosf(v + {{ n }}.25f) * {{ salt }}.0f;
    if (v > {{ n }}.0f) v = sqrtf(v) + x[(i + {{ n }}) % N];
    {% endfor %}if (i < N) out[i] = v;
}
'''

@specialize(Inline(BODY))
def heavy(x: Float32[Array, " N"], *, count: int, salt: int) -> Float32[Array, " N"]:
    raise NotImplementedError

cuplate.configure(directory=sys.argv[1], single_flight=sys.argv[2] == "lock")
if sys.argv[2] != "first":  # imports, compiler and templates ready: the miss alone is measured
    with cuplate.configure(directory=sys.argv[5]):
        assert heavy.inspect(count=1, salt=1, arch="sm_90").origin == "disk"
print("ready", flush=True)
sys.stdin.readline()
begin = time.time()
report = heavy.inspect(count=int(sys.argv[4]), salt=int(sys.argv[3]), arch="sm_90")
print(json.dumps([begin, time.time(), report.origin, len(report.cubin.code)]))
"""


def stampede(result: Result, place: Path, quick: bool) -> None:
    """16 processes that miss one key at once: until the last of them has the kernel."""
    times: dict[str, list[float]] = {"with the lock": [], "without": []}
    first = str(place / "first")
    together(STAMPEDE_CHILD, [[first, "first", "1", "1", first]])
    for round_number in range(1 if quick else 3):
        for name, kind in (("without", "none"), ("with the lock", "lock")):
            folder = str(place / f"{kind}{round_number}")
            begin = time.perf_counter()
            count = "60" if quick else "150"
            found = together(STAMPEDE_CHILD, [[folder, kind, str(round_number), count, first]] * PROCESSES)
            times[name].append((max(end for _, end, _, _ in found) - min(first for first, _, _, _ in found)) * 1e3)
            compiles = sum(origin == "compile" for _, _, origin, _ in found)
            size = found[0][3]
            total = time.perf_counter() - begin
            result.note(f"{name}: {compiles} compiles of {size} bytes, {total:.1f} s with the start of the processes")
    tell(result, f"{PROCESSES} processes miss one key", times, "ms")
    compared = ratio(times["with the lock"], times["without"])
    result.goals.append(Goal(f"{PROCESSES} processes on one key: with the lock / without", compared.worse, 1 / 6))


if __name__ == "__main__":
    sys.exit(main())
