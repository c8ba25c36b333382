"""A fleet warmed through a Dask cluster: each kernel compiled once, on some node, and found by all of them.

On one machine four worker processes play the nodes: each has a cache directory of its own, and if a redis-server is
installed they share a tier on it. On a real cluster the environment of a node says both (CUPLATE_CACHE_DIR,
CUPLATE_SHARED, CUPLATE_CACHE_SECRET), and what is left of this file is the function `warm`.

    python examples/dask_warmup.py --workers 4
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import logging
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.config
from dask.distributed import Client, Nanny, Scheduler, SpecCluster

from cuplate import Manifest, warmup
from cuplate.kernels import fused_elementwise
from cuplate.warmup import Warmed

ARCH = "sm_90"


def wanted() -> Manifest:
    """24 specializations; a program's own manifest comes from `cuplate.record()`."""
    return Manifest(
        fused_elementwise.wanted(x="float32", activation=activation, packs=packs, threads=threads)
        for activation in ("identity", "relu", "gelu", "silu")
        for packs in (1, 2, 4)
        for threads in (128, 256)
    )


def warm(client: Client, manifest: Manifest, **options: Any) -> Warmed:
    """Compile what is missing, wherever a worker is free."""
    # Dask keys a call by its arguments, and answers an equal call with what it has: pure=False asks anew.
    executor = client.get_executor(pure=False)
    return warmup(manifest, arch=ARCH, executor=executor, **options)


def fetch(manifest: Manifest) -> collections.Counter[str]:
    """On one node: have all of it here; what each was."""
    return collections.Counter(row.origin for row in warmup(manifest, arch=ARCH, progress=False).check())


def main() -> int:
    options = read_options()
    logging.getLogger("distributed").setLevel(logging.ERROR)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        shared = stack.enter_context(shared_tier(folder))
        client: Any = stack.enter_context(nodes(folder, options.workers, shared))
        warmed = warm(client, wanted()).check()
        print(f"{warmed.compiled} compiled, {warmed.hits} there already, {warmed.seconds:.1f} s")
        for where, count in sorted(collections.Counter(row.where for row in warmed).items()):
            print(f"  {where}: {count}")
        if not shared:
            print("No redis-server here: each kernel is on the node that compiled it, and nowhere else.")
            return 0
        print("then each node takes what it lacks")
        for where, had in sorted(client.run(fetch, wanted()).items()):
            print(f"  {where}: {had['disk']} on its disk, {had['shared']} from the others, {had['compile']} compiled")
    return 0


@contextlib.contextmanager
def nodes(folder: str, count: int, shared: dict[str, str]) -> Iterator[Client]:
    """Workers in processes of their own, each with its own cache directory."""
    place = {"host": "127.0.0.1", "dashboard": False}
    workers = {
        number: {
            "cls": Nanny,
            "options": {
                **place,
                "silence_logs": 40,
                "nthreads": 1,  # compiles at a time; on a real node its cores
                "local_directory": folder,
                "env": {"CUPLATE_CACHE_DIR": str(Path(folder, f"node{number}")), **shared},
            },
        }
        for number in range(count)
    }
    scheduler = {"cls": Scheduler, "options": {**place, "port": 0}}
    with (
        dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}),
        SpecCluster(scheduler=scheduler, workers=workers) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(count)
        yield client


@contextlib.contextmanager
def shared_tier(folder: str) -> Iterator[dict[str, str]]:
    """The settings of a tier on a redis-server on loopback; none where none is installed."""
    program = shutil.which("valkey-server") or shutil.which("redis-server")
    if program is None:
        yield {}
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [program, "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no", "--dir", folder]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        for _ in range(500):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.01)
        yield {"CUPLATE_SHARED": f"redis://127.0.0.1:{port}", "CUPLATE_CACHE_SECRET": secrets.token_hex(32)}
    finally:
        process.kill()
        process.wait()


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=int, default=4, help="nodes to play")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
