"""A small fleet for real: processes are the nodes, a sleep is the compile, and the client is cuplate's own.

A sleep, so that nodes do not take each other's processors. `Slow` is a server whose every command takes a known time,
for what a real one does only to thousands of nodes.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from measuring import child_environment
from simulation import Fleet

from cuplate.cache.server import Server
from cuplate.cache.shared import SharedTier

__all__ = ["SLOW_S", "Slow", "calibrated", "missing", "run", "serving"]

SLOW_S = 0.006
_FOLDER = "SCALE_SLOW_FOLDER"


class Slow:
    """A store with one thread, so to speak: who holds the lock of its folder is served, for `SLOW_S`."""

    def __init__(self) -> None:
        self.folder = Path(os.environ[_FOLDER])

    def get(self, key: bytes) -> bytes | None:
        """In its turn."""
        file = self.folder / key.decode().replace(":", "_")
        with self._turn():
            return file.read_bytes() if file.exists() else None

    def put(self, key: bytes, value: bytes) -> None:
        """In its turn."""
        with self._turn():
            (self.folder / key.decode().replace(":", "_")).write_bytes(value)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            time.sleep(SLOW_S)
            yield


def missing() -> str | None:
    """Why there can be no real server here; None if there can."""
    if shutil.which("redis-server") is None:
        return "redis-server is not on PATH"
    return None if importlib.util.find_spec("redis") else "the package redis is not installed"


@contextlib.contextmanager
def serving(folder: str) -> Iterator[int]:
    """A redis-server without persistence on a free port of loopback; the port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no"]
    process = subprocess.Popen([*command, "--dir", folder], stdout=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 10
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            if time.monotonic() > end:
                raise RuntimeError("redis-server did not start")
            time.sleep(0.02)
        yield port
    finally:
        process.kill()
        process.wait()


def connected(named: str) -> SharedTier:
    """The real client."""
    return SharedTier(Server(named), secret=b"of this run")


def calibrated(port: int) -> dict[str, Any]:
    """What one request costs client and server here, as fields of a `Fleet`."""
    (small, small_s, client_s), (large, large_s, _) = (_cost(port, size) for size in (6 << 10, 1 << 20))
    byte_s = max(1e-12, (large_s - small_s) / (large - small))
    return {
        "client_s": client_s,  # the round trip is in it
        "command_s": max(1e-6, small_s - small * byte_s),
        "thread_bytes_per_s": 1 / byte_s,
    }


def _cost(port: int, size: int) -> tuple[int, float, float]:
    """The size, what a hit of so many bytes costs the server's processor, and the client's time; seconds."""
    tier, key = connected(f"redis://127.0.0.1:{port}"), size.to_bytes(32, "little")
    tier.offer(key, bytes(size), replace=True)
    if not tier.flush() or tier.get(key) is None:
        raise RuntimeError(f"the shared tier does not work: {tier.state()}")
    calls = 2000 if size < 1 << 16 else 200
    before, times = _processor_s(port), []
    for _ in range(calls):
        begin = time.perf_counter()
        tier.get(key)
        times.append(time.perf_counter() - begin)
    tier.server.close()
    return size, (_processor_s(port) - before) / calls, statistics.median(times)


def _processor_s(port: int) -> float:
    """What the server has used."""
    import redis

    with redis.Redis(port=port) as client:
        used: Any = client.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"])


def run(
    fleet: Fleet, named: str, starts: Sequence[float], orders: Sequence[Sequence[int]], folder: str
) -> tuple[int, float]:
    """Compiles of all nodes, and the seconds from the first possible start until the last is ready.

    Parameters
    ----------
    fleet : Fleet
    named : str
        The shared tier: a URL, or ``"loopback:Slow"``.
    starts : sequence of float
        Of each node.
    orders : sequence of sequence of int
        Keys of each node, as it asks for them.
    folder : str
        Of a `Slow` store.
    """
    told = {"named": named, **{n: getattr(fleet, n) for n in ("slots", "compile_s", "entry_bytes")}}
    environment = {**child_environment(), _FOLDER: folder}
    environment["PYTHONPATH"] += f":{Path(__file__).parent}"
    children = [
        subprocess.Popen(
            [sys.executable, __file__, json.dumps({**told, "start": start, "keys": list(order)})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for start, order in zip(starts, orders, strict=True)
    ]
    try:
        for child in children:
            assert child.stdout is not None
            if child.stdout.readline() != "ready\n":
                raise RuntimeError("a node did not start")
        go = time.time() + 0.1
        for child in children:
            assert child.stdin is not None
            child.stdin.write(f"{go}\n")
            child.stdin.flush()
        found = [json.loads(child.communicate()[0]) for child in children]
    finally:
        for child in children:
            child.kill()
            child.communicate()
    return sum(compiles for compiles, _ in found), max(end for _, end in found) - go


def node(told: dict[str, Any]) -> None:
    """One node, in a process of its own."""
    warnings.simplefilter("ignore")  # of a server that is late: the figures tell
    ready = threading.Barrier(told["slots"])

    def connect() -> None:
        ready.wait()
        tier.get(bytes(32))

    for _ in range(20):  # on two cores, connections of sixteen nodes that start at once may be late
        tier = connected(told["named"])
        together(connect, told["slots"])  # so that each slot finds one open
        if tier.state() == "on":
            break
    print("ready", flush=True)
    begin = float(sys.stdin.readline()) + told["start"]
    keys, lock = iter(told["keys"]), threading.Lock()
    compiled: list[int] = []

    def slot() -> None:
        while True:
            with lock:
                key = next(keys, None)
            if key is None:
                return
            digest = key.to_bytes(32, "little")
            if tier.get(digest) is None:
                time.sleep(told["compile_s"])
                compiled.append(key)
                tier.offer(digest, bytes(told["entry_bytes"]))

    time.sleep(max(0.0, begin - time.time()))
    together(slot, told["slots"])
    end = time.time()
    tier.flush()
    print(json.dumps([len(compiled), end]))


def together(work: Callable[[], object], slots: int) -> None:
    """In so many threads."""
    threads = [threading.Thread(target=work) for _ in range(slots)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    node(json.loads(sys.argv[1]))
