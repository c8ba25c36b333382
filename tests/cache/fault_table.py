"""Each fault against both tiers, as a table: what was asked, what came back, and the slowest operation.

``nox -s faults`` runs it; as root on Linux with bindfs it mounts what it needs, elsewhere those rows say so. Its last
table stands in docs/faults.md.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cuplate.cache import DiskTier
from cuplate.cache.files import FilesTier

Tier = DiskTier | FilesTier
SECONDS = 2.0


def key(number: int) -> bytes:
    """A key, and a part of its payload."""
    return number.to_bytes(32, "little")


def load(make: type[Tier], base: str, seed: int, seconds: float = SECONDS) -> list[float]:
    """Gets and puts at random: operations, hits, misses, refused puts, wrong values, exceptions, slowest (s)."""
    rng, result = random.Random(seed), [0.0] * 7
    tier = make(base, cooldown_s=0.5)
    end = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        name = key(rng.randrange(100))
        result[0] += 1
        try:
            if rng.random() < 0.3:
                result[3] += not tier.put(name, name * 200)
            else:
                found = tier.get(name)
                result[1] += found is not None
                result[2] += found is None
                result[4] += found not in (None, name * 200)
        except Exception:
            result[5] += 1
        result[6] = max(result[6], time.perf_counter() - begin)
    with suppress(Exception):
        tier.close()
    return result


def forked(work: Callable[[], list[float]]) -> tuple[int, int]:
    """Process id and pipe of a child at work."""
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(send, " ".join(map(str, work())).encode())
        os._exit(0)
    os.close(send)
    return pid, receive


def gather(children: list[tuple[int, int]]) -> list[float]:
    """The children's results, summed; the slowest of all."""
    total = [0.0] * 7
    for pid, receive in children:
        with open(receive, "rb") as pipe:
            own = [float(word) for word in pipe.read().split()]
        os.waitpid(pid, 0)
        if own:
            total = [*(a + b for a, b in zip(total[:6], own[:6], strict=True)), max(total[6], own[6])]
    return total


def alone(make: type[Tier], base: str) -> list[float]:
    """16 processes at once."""
    return gather([forked(lambda seed=seed: load(make, base, seed)) for seed in range(16)])  # type: ignore[misc]


def killed(make: type[Tier], base: str) -> list[float]:
    """60 writers die by SIGKILL while one process works."""
    worker = forked(lambda: load(make, base, 0))
    for seed in range(60):
        pid, receive = forked(lambda seed=seed: load(make, base, seed, 60.0))  # type: ignore[misc]
        time.sleep(0.02)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(receive)
    return gather([worker])


def frozen(make: type[Tier], base: str) -> list[float]:
    """A writer is stopped now and then while one process works."""
    worker = forked(lambda: load(make, base, 0))
    pid, receive = forked(lambda: load(make, base, 1, 60.0))
    for _ in range(4):
        time.sleep(0.1)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.4)
        os.kill(pid, signal.SIGCONT)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(receive)
    return gather([worker])


def damaged(make: type[Tier], base: str) -> list[float]:
    """Some of the files are cut or overwritten every 50 ms."""
    worker, rng = forked(lambda: load(make, base, 0)), random.Random(0)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        time.sleep(0.05)
        files = [p for p in Path(base).rglob("*") if p.is_file() and "v1" in p.parts[-2] + p.parts[-3]]
        # SQLite maps the index of its log: whoever cuts that file under a live process kills it (SIGBUS).
        files = [p for p in files if p.suffix != ".db-shm"]
        for path in rng.sample(files, min(3, len(files))):
            with suppress(OSError), open(path, "r+b") as file:
                if rng.random() < 0.5:
                    file.truncate(rng.randrange(1 + path.stat().st_size))
                else:
                    file.seek(rng.randrange(1 + path.stat().st_size))
                    file.write(os.urandom(500))
    return gather([worker])


def removed(make: type[Tier], base: str) -> list[float]:
    """The directory is removed every 100 ms."""
    worker = forked(lambda: load(make, base, 0))
    for _ in range(int(SECONDS * 10)):
        time.sleep(0.1)
        shutil.rmtree(base, ignore_errors=True)
    return gather([worker])


def mounted(options: str, then: str | None = None) -> Callable[[type[Tier], str], list[float] | None]:
    """A file system of its own, filled and then mounted anew."""

    def fault(make: type[Tier], base: str) -> list[float] | None:
        os.makedirs(base, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", base]
        if os.getuid() != 0 or subprocess.run(command, capture_output=True).returncode:
            return None
        try:
            if then is not None:  # not under open files: the kernel refuses that
                gather([forked(lambda: load(make, os.path.join(base, "cache"), 0, 0.5))])
                subprocess.run(["mount", "-o", f"remount,{then}", base], check=True)
            return gather([forked(lambda: load(make, os.path.join(base, "cache"), 0))])
        finally:
            subprocess.run(["umount", "-l", base], check=False)

    return fault


def two_mounts(make: type[Tier], base: str) -> list[float] | None:
    """8 processes on two FUSE mounts of one directory."""
    if os.getuid() != 0 or shutil.which("bindfs") is None or make is DiskTier:
        return None  # the disk tier is never used there
    places = [f"{base}-{number}" for number in range(2)]
    for place in (base, *places):
        os.makedirs(place, 0o700, exist_ok=True)
    for place in places:
        subprocess.run(["bindfs", "-o", "attr_timeout=3,entry_timeout=3", base, place], check=True)
    try:
        return gather(
            [forked(lambda n=n: load(make, os.path.join(places[n % 2], "cache"), n)) for n in range(8)]  # type: ignore[misc]
        )
    finally:
        for place in places:
            subprocess.run(["umount", "-l", place], check=False)


FAULTS: dict[str, Callable[[type[Tier], str], list[float] | None]] = {
    "16 processes, no fault": alone,
    "writers killed, 60 times": killed,
    "a writer frozen, 4 times": frozen,
    "files cut and overwritten": damaged,
    "directory removed, 20 times": removed,
    "disk of 300 KB": mounted("size=300k,mode=700"),
    "disk turns read-only": mounted("size=20m,mode=700", "ro"),
    "two FUSE mounts of one directory": two_mounts,
}


def main() -> int:
    """Print the table; 1 if anything raised, was wrong, or took longer than 2 s."""
    warnings.simplefilter("ignore")
    import cuplate.cache.engine  # noqa: F401 - once, before the forks

    print("| fault | tier | operations | hits | misses | puts refused | wrong | raised | slowest, ms |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    bad = 0
    with tempfile.TemporaryDirectory(prefix="cuplate-faults-") as folder:
        for number, (name, fault) in enumerate(FAULTS.items()):
            for make in (DiskTier, FilesTier):
                tier = "diskcache" if make is DiskTier else "files"
                result = fault(make, os.path.join(folder, f"{tier}{number}"))
                if result is None:
                    print(f"| {name} | {tier} | not run | | | | | | |", flush=True)
                    continue
                counts = " | ".join(str(int(value)) for value in result[:6])
                print(f"| {name} | {tier} | {counts} | {result[6] * 1e3:.0f} |", flush=True)
                bad += result[4] > 0 or result[5] > 0 or result[6] > 2.0
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
