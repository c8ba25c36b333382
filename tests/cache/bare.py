"""Faults of many processes, forked by one that has imported the store alone.

``python -m tests.cache.bare kills files FOLDER`` prints one line of JSON. A fork of the test runner would copy all that
the other tests have imported, and take three times as long.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

from cuplate.cache import DiskTier
from cuplate.cache.files import FilesTier
from tests.cache.children import Children

Tier = DiskTier | FilesTier
KEY = b"k" * 32
KILLS, AT_ONCE = 300, 6
FORKS = 150


def numbered(number: int) -> bytes:
    """A key; its first byte, and so its folder, varies."""
    return number.to_bytes(32, "little")


def content(key: bytes) -> bytes:
    """The one payload that is right for a key."""
    return key * 200


def kills(make: type[Tier], base: str, children: Children) -> dict[str, Any]:
    """Kill writers in the middle of their puts, and look at what they left."""
    pause = random.Random(1)

    def write(seed: int) -> None:
        tier = make(base, write_wait_s=20.0)
        for number in range(seed << 16, (seed + 1) << 16):
            if tier.put(numbered(number), content(numbered(number))):
                children.say(f"put {number}")

    for start in range(0, KILLS, AT_ONCE):
        pids = [children.start(lambda seed=start + i: write(seed)) for i in range(AT_ONCE)]  # type: ignore[misc]
        time.sleep(pause.uniform(0.0, 0.06))
        for pid in pids:
            children.kill(pid)
    acknowledged = [int(line.split()[1]) for line in children.lines() if line.startswith("put ")]
    tier = make(base)
    answer: dict[str, Any] = {"acknowledged": len(acknowledged), "put": tier.put(KEY, content(KEY))}
    answer["lost"] = [n for n in acknowledged if tier.get(numbered(n)) != content(numbered(n))]
    answer["wrong"] = sum(payload != content(key) for key, _, payload in tier.all())
    answer["troubles"] = {name: n for name, n in tier.counters().items() if n}
    answer["entries"], answer["entry_bytes"] = tier.sums()
    answer["volume"] = tier.volume()
    pruned = tier.prune()
    answer["pruned_volume"], answer["removed_entries"] = tier.volume(), pruned.removed_entries
    answer["beside"] = sorted(name for name in os.listdir(base) if not name.endswith(".flights"))
    return answer


def forks(make: type[Tier], base: str, children: Children) -> dict[str, Any]:
    """Fork while two threads write; each child reads what was there, writes, and reads its own."""
    tier = make(base, write_wait_s=20.0)
    tier.put(KEY, content(KEY))
    stop = threading.Event()

    def write(number: int) -> None:
        while not stop.is_set():
            number += 2
            tier.put(numbered(number), content(numbered(number)))
            tier.get(KEY)

    def child(number: int) -> tuple[bool, bool, bool]:
        mine = b"child%03d" % number * 4
        return tier.get(KEY) == content(KEY), tier.put(mine, content(mine)), tier.get(mine) == content(mine)

    writers = [threading.Thread(target=write, args=(seed,)) for seed in range(2)]
    for writer in writers:
        writer.start()
    try:
        for start in range(0, FORKS, 5):
            for number in range(start, start + 5):
                children.start(lambda number=number: child(number))  # type: ignore[misc]
            children.finish()
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    said = children.lines()
    troubles = {name: n for name, n in tier.counters().items() if n}
    return {"fine": said.count("done (True, True, True)"), "said": len(said), "troubles": troubles}


def main(fault: str, kind: str, folder: str) -> None:
    """Run one, and print its answer."""
    warnings.simplefilter("error")
    if kind == "diskcache":
        import cuplate.cache.engine  # noqa: F401 - once, before the forks
    make: type[Tier] = DiskTier if kind == "diskcache" else FilesTier
    with Children(Path(folder, "log")) as children:
        answer = {"kills": kills, "forks": forks}[fault](make, os.path.join(folder, "cache"), children)
    heavy = ("numpy", "jinja2", "jaxtyping", "cuda", "cupy", "pytest")
    print(json.dumps({**answer, "imported": [name for name in heavy if name in sys.modules]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
