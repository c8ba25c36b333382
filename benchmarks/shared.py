"""The shared tier on a Redis-protocol server of loopback; no GPU is needed.

Goals: a hit at most 1/50 of the smallest compile; 64 clients that miss one key, each a process that shares nothing but
the server, have it no later than without the tier (5 % for the look-ups where all begin within one compile, which two
cores do for 64 nodes), and compile it at most three times where they begin a compile apart. A client's compile is a
sleep, as on a node of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jaxtyping import Float32
from measuring import Goal, Result, child_environment, ratio, read_options, run_child, start, tell, time_bursts

import cuplate
from cuplate import Array, Inline, specialize
from cuplate.cache import DiskTier, SharedTier
from cuplate.cache.server import Server, server_of
from cuplate.compile import obtain
from cuplate.cubin import Cubin, encode
from cuplate.key import Key

CLIENTS = 64
SECRET = b"a secret of the benchmark"

IMPORT_CHILD = """
import cuplate.cache.remote, json, time
begin = time.perf_counter()
import cuplate.cache.redis_server
print(json.dumps(dict(ms=(time.perf_counter() - begin) * 1e3)))
"""


def main() -> int:
    options = read_options(__doc__)
    result = start("shared", options)
    program = shutil.which("valkey-server") or shutil.which("redis-server")
    if program is None:
        result.skipped = "needs redis-server or valkey-server"
        print(f"Nothing was measured: this benchmark {result.skipped}.")
        return result.finish(options)
    with tempfile.TemporaryDirectory(prefix="cuplate-benchmark-") as folder, served(program, Path(folder)) as places:
        hits(result, Path(folder), places, options.quick)
        fleet(result, places[0], options.quick)
    imports(result, options.quick)
    return result.finish(options)


@contextmanager
def served(program: str, folder: Path) -> Iterator[tuple[str, str]]:
    """A server that keeps nothing; its URLs, by TCP and by a socket of the file system."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    where = ["--bind", "127.0.0.1", "--port", str(port), "--unixsocket", str(folder / "socket")]
    command = [program, *where, "--save", "", "--appendonly", "no", "--dir", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + 20
            while not (folder / "socket").exists():
                if time.monotonic() > until:
                    raise RuntimeError("the server does not start")
                time.sleep(0.01)
            yield f"redis://127.0.0.1:{port}/0", f"unix://{folder}/socket?db=0"
        finally:
            process.kill()


# one client -----------------------------------------------------------------------------------------------------------


TEXT = 'extern "C" __global__ void {{ kernel }}({{ args }}) { if (threadIdx.x == 0) out[0] = {{ value }}; }'


@specialize(Inline(TEXT))
def smallest(x: Float32[Array, " N"], *, value: int) -> Float32[Array, " N"]:
    raise NotImplementedError


class Renamed:
    """A tier that has one entry under every key: what is asked for is new to the disk, and always there."""

    def __init__(self, tier: SharedTier, key: bytes) -> None:
        self._tier, self._key = tier, key

    def get(self, key: bytes) -> bytes | None:
        """The one entry."""
        return self._tier.get(self._key)

    def offer(self, key: bytes, payload: bytes, *, replace: bool = False) -> bool:
        """Nothing is compiled, so nothing is offered."""
        raise RuntimeError("the tier lost an entry")


def hits(result: Result, folder: Path, places: tuple[str, str], quick: bool) -> None:
    """A hit beside the compile that it spares: the smallest kernel and the real NVRTC, by turns."""
    with cuplate.configure(disk=False):
        record = encode(smallest.inspect(value=-1, arch="sm_90").cubin.without_source())
    tcp, unix = (SharedTier(server_of(place), secret=SECRET) for place in places)
    disk = DiskTier(str(folder / "disk"))
    key, numbers = b"k" * 32, iter(range(1 << 30))
    disk.put(key, record)
    for tier in (tcp, unix):
        tier.offer(key, record)
        tier.flush()

    def whole() -> None:
        fresh = Key(next(numbers).to_bytes(32, "little"), ())
        obtain(fresh, store=disk, build=never, function="smallest", distant=lambda: Renamed(tcp, key))

    calls: dict[str, Callable[[], object]] = {
        "hit by TCP": reader(tcp, key),
        "hit by a socket": reader(unix, key),
        "miss by TCP": lambda: tcp.get(b"m" * 32),
        "hit, stored on the disk": whole,
        "disk hit": reader(disk, key),
    }
    times: dict[str, list[float]] = {name: [] for name in (*calls, "compile")}
    for number in range(3 if quick else 15):
        for name, found in time_bursts(calls, lambda: None, rounds=1, calls=20 if quick else 100).items():
            times[name] += found
        with cuplate.configure(disk=False):
            times["compile"].append(smallest.inspect(value=number, arch="sm_90").compile_s * 1e6)
    tell(result, f"one client, {len(record)} bytes", times, "us")
    compared = ratio(times["hit by TCP"], times["compile"])
    result.goals.append(Goal("shared hit / smallest compile", compared.worse, 1 / 50))
    for tier in (tcp, unix):
        tier.server.close()


def never() -> Any:
    raise RuntimeError("the tier lost an entry")


def reader(store: Any, key: bytes) -> Callable[[], object]:
    """A call that gets the entry."""

    def get() -> None:
        if store.get(key) is None:
            raise RuntimeError(f"{store!r} lost an entry")

    return get


def imports(result: Result, quick: bool) -> None:
    """What the client adds to the first miss of a process."""
    environment = child_environment()
    found = [run_child(["-c", IMPORT_CHILD], environment)["ms"] for _ in range(3 if quick else 10)][1:]
    tell(result, "a fresh process", {"import of the client": found}, "ms")


# many clients ---------------------------------------------------------------------------------------------------------


def fleet(result: Result, url: str, quick: bool) -> None:
    """64 cold clients on one key: how long each waits for its kernel, and how many compile."""
    for title, compile_s, apart_s in (("within a compile", 0.5, 0.5 / CLIENTS), ("a compile apart", 0.1, 0.1)):
        waits: dict[str, list[float]] = {"with the tier": [], "without": []}
        last: dict[str, list[float]] = {name: [] for name in waits}
        compiles = []
        for round_number in range(1 if quick else 3):
            for name in waits:
                key = f"{title} {round_number}".encode().ljust(32, b".")
                found = clients(url if name == "with the tier" else "", key, compile_s, apart_s)
                waits[name] += [(ready - begun) * 1e3 for begun, ready, _ in found]
                last[name].append(max(ready for _, ready, _ in found) - min(begun for begun, _, _ in found))
                if name == "with the tier":
                    compiles.append(sum(compiled for _, _, compiled in found))
        result.note(f"{CLIENTS} clients {title}: {compiles} compiles with the tier, one each without")
        tell(result, f"{CLIENTS} clients {title}, wait of each", waits, "ms")
        middle = statistics.median(waits["with the tier"]) / statistics.median(waits["without"])
        goal = f"{CLIENTS} clients {title}: ready with the tier / without"
        within = apart_s < compile_s
        result.goals.append(Goal(goal, max(middle, ratio(*last.values()).worse), 1.05 if within else 1.0))
        if not within:
            result.goals.append(Goal(f"{CLIENTS} clients {title}: compiles", max(compiles), 3))


def clients(url: str, key: bytes, compile_s: float, apart_s: float) -> list[tuple[float, float, bool]]:
    """Forked processes, which have imported what they need: when each began, was ready, and whether it compiled."""
    if url:  # what a process does once, a node does beside the others
        client(url, b"first" + key[5:], 0.0)
    gate, go = os.pipe()
    read, write = os.pipe()
    pids = []
    for number in range(CLIENTS):
        pid = os.fork()
        if pid == 0:
            try:
                os.close(go)
                begin = float(os.read(gate, 32))
                time.sleep(max(0.0, begin + number * apart_s - time.monotonic()))
                line = json.dumps(client(url, key, compile_s))
                os.write(write, f"{line}\n".encode())
            finally:
                os._exit(0)
        pids.append(pid)
    os.write(go, f"{time.monotonic() + 0.2:<32.6f}".encode() * CLIENTS)
    for pid in pids:
        os.waitpid(pid, 0)
    for end in (gate, go, write):
        os.close(end)
    with os.fdopen(read) as lines:
        found = [json.loads(line) for line in lines]
    if len(found) != CLIENTS:
        raise RuntimeError(f"{CLIENTS - len(found)} clients failed")
    return [(begun, ready, compiled) for begun, ready, compiled in found]


def client(url: str, key: bytes, compile_s: float) -> tuple[float, float, bool]:
    """One miss of one client."""

    def build() -> Cubin:
        time.sleep(compile_s)
        return Cubin(b"\x7fELF" + bytes(6000), "k", "sm_90", "f")

    begun = time.monotonic()
    tier = SharedTier(Server(url), secret=SECRET) if url else None
    got = obtain(Key(key, ()), store=None, build=build, function="f", distant=lambda: tier)
    ready = time.monotonic()
    if tier is not None:
        tier.server.close()
    return begun, ready, got.origin == "compile"


if __name__ == "__main__":
    sys.exit(main())
