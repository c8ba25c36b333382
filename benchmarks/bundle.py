"""A bundle of 200 cubins: its mount, and a hit in it against the disk tier's; no GPU is needed.

Goals: in a fresh process that has imported the cache, mounting and opening it (the first hit included) takes at most
5 ms; a hit costs at most what one of the disk tier does, at 6 and at 60 KB.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    time_bursts,
)

ENTRIES, SMALL, LARGE = 200, 6144, 61440
MOUNT_CHILD = """
import json, time
import cuplate, cuplate.cache
from cuplate.cache import disk_tier
{before}
begin = time.perf_counter()
cuplate.mount({path!r})
mounted = time.perf_counter()
found = disk_tier().get({key!r})
end = time.perf_counter()
assert len(found) == {size}
print(json.dumps(dict(mount_ms=(mounted - begin) * 1e3, ms=(end - begin) * 1e3)))
"""
# As where something was looked up before: then the modules of layers are there, and the time is the bundle's own.
READY = "from cuplate.cache import layers; disk_tier().get(bytes(32))"


def main() -> int:
    options = read_options(__doc__)
    result = start("bundle", options)
    with tempfile.TemporaryDirectory(prefix="cuplate-benchmark-") as folder:
        place = Path(folder)
        mount(result, place, options.quick)
        hits(result, place, options.quick)
    return result.finish(options)


def key(number: int) -> bytes:
    """32 bytes whose first one varies."""
    return number.to_bytes(32, "little")


def write(path: Path, size: int) -> None:
    """A bundle of 200 entries, and a disk tier of the same beside it."""
    from cuplate.cache import DiskTier
    from cuplate.cache.bundle import write_bundle
    from cuplate.seal import seal

    payloads = {key(number): os.urandom(size) for number in range(ENTRIES)}
    write_bundle(f"{path}.cuplate", ((k, "f", seal(k, payload)) for k, payload in payloads.items()))
    tier = DiskTier(str(path))
    for k, payload in payloads.items():
        tier.put(k, payload)
    tier.close()


def mount(result: Result, place: Path, quick: bool) -> None:
    """Fresh processes, with and without the modules of layers imported."""
    path = place / "mounted"
    write(path, SMALL)
    environment = child_environment() | {"CUPLATE_CACHE_DIR": "off"}
    times: dict[str, list[float]] = {"mount alone": [], "mount and first hit": [], "the same, with imports": []}
    for i in range(4 if quick else 21):
        for name, before in (("mount and first hit", READY), ("the same, with imports", "")):
            script = MOUNT_CHILD.format(path=f"{path}.cuplate", key=key(7), size=SMALL, before=before)
            found = run_child(["-c", script], environment)
            if i:  # the first round wrote the bytecode
                times[name].append(found["ms"])
                times["mount alone"].append(found["mount_ms"])
    tell(result, f"bundle of {ENTRIES}", times, "ms")
    median = sorted(times["mount and first hit"])[len(times["mount and first hit"]) // 2]
    result.goals.append(Goal(f"mount of {ENTRIES} cubins and first hit, ms", median, 5.0))


def hits(result: Result, place: Path, quick: bool) -> None:
    """A get of a present key, in one process; both check the seal."""
    from cuplate.cache import DiskTier, NoStore
    from cuplate.cache.layers import Layer, Layered

    for size in (SMALL, LARGE):
        path = place / f"hits{size}"
        write(path, size)
        layer = Layer(f"{path}.cuplate")
        stores: dict[str, Any] = {
            "bundle": Layered(NoStore("nothing is written"), (layer,)),
            "bundle below an empty disk tier": Layered(DiskTier(str(place / "empty")), (layer,)),
            "disk tier": DiskTier(str(path)),
        }
        gets = {name: reader(store) for name, store in stores.items()}
        times = time_bursts(gets, lambda: None, rounds=5 if quick else 25, calls=ENTRIES)
        tell(result, f"hit of {size} bytes", times, "us")
        compared = ratio(times["bundle"], times["disk tier"])
        result.goals.append(Goal(f"hit of {size} bytes: bundle / disk tier", compared.worse, 1.0))


def reader(store: Any) -> Callable[[], object]:
    """A call that gets the next of the keys."""
    numbers = iter(range(1 << 60))
    keys = [key(number) for number in range(ENTRIES)]

    def get() -> None:
        if store.get(keys[next(numbers) % ENTRIES]) is None:
            raise RuntimeError(f"{store!r} lost an entry")

    return get


def tell(result: Result, what: str, times: dict[str, list[float]], unit: str) -> None:
    """Keep and print the figures of one measurement."""
    print(f"-- {what}")
    rows = [summary(f"{what}: {name}", values, unit) for name, values in times.items()]
    result.rows += rows
    print_rows(rows)


if __name__ == "__main__":
    sys.exit(main())
