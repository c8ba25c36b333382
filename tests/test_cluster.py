"""A warm-up over a real Dask cluster on loopback: a scheduler, four workers with their own disks, one shared tier."""

from __future__ import annotations

import collections
import contextlib
import importlib.util
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import cuplate
from cuplate import Manifest, Wanted, cache, warmup
from cuplate.warmup import Row, Warmed
from tests.bindings import first, more
from tests.servers import Served, missing_server

ROOT = Path(__file__).parents[1]
ARCHS = ("sm_80", "sm_90")
NODES = 4


def required(name: str, reason: str | None) -> None:
    """Skip where something is missing, or fail where this machine was to have it."""
    if reason is not None and os.environ.get(f"CUPLATE_REQUIRE_{name}") == "1":
        pytest.fail(f"CUPLATE_REQUIRE_{name}=1, but {reason}", pytrace=False)
    if reason is not None:
        pytest.skip(reason)


def missing_dask() -> str | None:
    """Why there can be no cluster here."""
    try:
        import distributed  # noqa: F401
    except ImportError as error:
        return f"distributed cannot be imported: {error}"
    return None


def example() -> ModuleType:
    """examples/dask_warmup.py, which starts clusters."""
    spec = importlib.util.spec_from_file_location("example_dask", ROOT / "examples" / "dask_warmup.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A client of the cluster; the server, or None, is its attribute ``served``."""
    required("DASK", missing_dask())
    import dask
    from distributed.utils import get_mp_context

    with dask.config.set(
        {"distributed.worker.multiprocessing-method": "forkserver"}
    ):  # import once, not in each worker
        get_mp_context().set_forkserver_preload(["distributed", "cuda.core", "cuplate.warmup", "tests.bindings.first"])
    served = Served(tmp_path_factory.mktemp("server")) if missing_server() is None else None
    environment = {"CUPLATE_TEST_DEADLY": "1", "CUPLATE_CACHE_SECRET": "ab" * 32}
    if served is not None:
        environment["CUPLATE_SHARED"] = served.url
    try:
        with (
            dask.config.set({"distributed.scheduler.allowed-failures": 1}),
            example().nodes(str(tmp_path_factory.mktemp("nodes")), NODES, environment) as client,
        ):
            client.served = served
            yield client
    finally:
        if served is not None:
            served.stop()


@pytest.fixture
def cold(fleet: Any) -> Any:
    """The fleet with nothing stored anywhere, and nothing counted."""
    fleet.wait_for_workers(NODES)
    empty(fleet)
    return fleet


def empty(fleet: Any) -> None:
    """Forget every entry, in the server and on the nodes."""
    if fleet.served is not None:
        fleet.served.ask("FLUSHALL")
    fleet.run(forget)


def forget() -> None:
    """On a node: no entries, no counts."""
    cache.clear()
    cache.reset()


def compiles() -> int:
    """Of this process."""
    return cache.stats(all_threads=True).compile.compiles


def pid() -> int:
    """Of this process."""
    return os.getpid()


def fetched(manifest: Manifest) -> dict[str, int]:
    """On a node: have all of a manifest, and say what each was."""
    return collections.Counter(row.origin for row in warmup(manifest, arch=ARCHS, progress=False).check())


MANIFEST = Manifest(
    [
        first.saxpy.wanted(),
        more.square.wanted(),
        *(first.softmax.wanted(threads=threads) for threads in (32, 64)),
        *(first.total.wanted(threads=threads) for threads in (64, 256)),
    ]
)
KEYS = len(MANIFEST) * len(ARCHS)


def test_every_key_is_compiled_once_in_the_fleet(cold: Any) -> None:
    """On some node; every other then takes it from the shared tier, and what it has is on its own disk."""
    told: list[tuple[int, int]] = []
    warmed = warmup(
        MANIFEST, arch=ARCHS, executor=cold.get_executor(pure=False), progress=lambda n, of: told.append((n, of))
    ).check()
    assert warmed.compiled == len(warmed) == KEYS
    assert told == [(n, KEYS) for n in range(KEYS + 1)]
    each = cold.run(compiles)
    assert sum(each.values()) == KEYS and all(each.values()), each
    if cold.served is None:
        required("REDIS", missing_server())
    found = cold.run(fetched, MANIFEST)
    assert {sum(node.values()) for node in found.values()} == {KEYS}
    assert sum(node["disk"] for node in found.values()) == KEYS
    assert sum(node["shared"] for node in found.values()) == (NODES - 1) * KEYS
    assert sum(cold.run(compiles).values()) == KEYS


def test_the_example_says_who_compiled_what(
    cold: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the cluster of these tests, and with fewer kernels."""
    module = example()
    shared = {} if cold.served is None else {"CUPLATE_SHARED": cold.served.url}
    monkeypatch.setattr(module, "nodes", lambda *given: contextlib.nullcontext(cold))
    monkeypatch.setattr(module, "shared_tier", lambda folder: contextlib.nullcontext(shared))
    monkeypatch.setattr(module, "wanted", lambda: MANIFEST)
    monkeypatch.setattr(sys, "argv", ["dask_warmup.py"])
    assert module.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{len(MANIFEST)} compiled, 0 there already, ")
    if shared:
        assert sum(line.endswith(" from the others, 0 compiled") for line in lines) == NODES
    else:
        assert lines[-1].startswith("No redis-server here")


def test_a_second_warm_up_asks_again(cold: Any) -> None:
    """Even of an executor that answers equal calls with what it has; equal work of two at once is done once."""
    executor = cold.get_executor()  # pure
    assert warmup(MANIFEST, arch="sm_90", executor=executor).compiled == len(MANIFEST)
    again = warmup(MANIFEST, arch="sm_90", executor=executor)
    assert (again.compiled, again.hits) == (0, len(MANIFEST))
    empty(cold)
    assert warmup(MANIFEST, arch="sm_90", executor=executor).compiled == len(MANIFEST)


def test_work_of_a_killed_worker_is_done_by_another(cold: Any) -> None:
    """Killed in mid-run; nothing fails, and what it had told is not compiled again."""
    pids = set(cold.run(pid).values())
    killed: list[int] = []

    def kill(done: int, total: int) -> None:
        if done == 2:
            killed.append(min(pids))
            os.kill(killed[0], signal.SIGKILL)

    warmed = warmup(MANIFEST, arch=ARCHS, executor=cold.get_executor(pure=False), progress=kill).check()
    assert len(warmed) == KEYS and len(killed) == 1
    assert suspicious(cold) >= 1  # the scheduler saw work die
    cold.wait_for_workers(NODES)
    assert killed[0] not in set(cold.run(pid).values())
    if cold.served is not None:
        assert sum(fetched_again(cold).values()) == 0


def suspicious(client: Any) -> int:
    """How often work was on a worker that died."""
    return client.run_on_scheduler(
        lambda dask_scheduler: sum(p.suspicious for p in dask_scheduler.task_prefixes.values())
    )


def fetched_again(client: Any) -> dict[str, int]:
    """Compiles of each node for a manifest that the fleet has."""
    return {node: found["compile"] for node, found in client.run(fetched, MANIFEST).items()}


def test_work_that_kills_its_workers_is_an_error_and_stays_away_from_the_caller(cold: Any) -> None:
    """The others are done all the same."""
    manifest = MANIFEST | Manifest([Wanted(function="tests.deadly:nothing", arrays=first.saxpy.wanted().arrays[:1])])
    warmed = warmup(manifest, executor=cold.get_executor(pure=False), arch="sm_90")
    (failed,) = warmed.failed
    assert failed.function == "tests.deadly:nothing" and "its worker was lost twice" in failed.error
    assert len(warmed) == len(MANIFEST) + 1


def test_all_that_travels_goes_by_reference(fleet: Any) -> None:
    """Functions, manifests and results, by pickle and by cloudpickle: a few bytes, the same object at the other end."""
    import cloudpickle

    rows = Warmed((Row(wanted=first.saxpy.wanted().line(), arch="sm_90"),))
    for dumps in (pickle.dumps, cloudpickle.dumps):
        for function in (first.saxpy, first.softmax, more.square):
            assert pickle.loads(dumps(function)) is function
            assert len(dumps(function)) < 100
        assert pickle.loads(dumps(MANIFEST)) == MANIFEST
        assert pickle.loads(dumps(rows)) == rows
    there = fleet.submit(names, first.saxpy, MANIFEST, pure=False).result()
    assert there == ("tests.bindings.first", len(MANIFEST), True)


def names(function: Any, manifest: Manifest) -> tuple[str, int, bool]:
    """On a worker: where a function is from, and whether it is the one of its module."""
    return function.__module__, len(manifest), function is first.saxpy


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # from Python 3.12
def test_forked_processes_work() -> None:
    """Into the store of the node, as spawned ones do (tests/test_warmup.py)."""
    with ProcessPoolExecutor(2, mp_context=get_context("fork")) as pool:
        warmed = warmup([first.saxpy, more.square], arch="sm_90", executor=pool).check()
    assert warmed.compiled == 2 and all(not row.where.endswith(f":{os.getpid()}") for row in warmed)


MPI = """
import json, os
from mpi4py import MPI
from mpi4py.futures import MPIPoolExecutor
from cuplate import Manifest, warmup
if __name__ == "__main__":
    with MPIPoolExecutor() as pool:
        warmed = warmup("manifest.json", arch="sm_90", executor=pool, progress=False).check()
    print(json.dumps([[row.origin, row.where.endswith(f":{os.getpid()}")] for row in warmed]))
"""


@pytest.mark.slow
def test_mpi_works(tmp_path: Path) -> None:
    """Under mpiexec, one process is the caller and the other the worker."""
    mpiexec = shutil.which("mpiexec")
    if mpiexec is None or importlib.util.find_spec("mpi4py") is None:
        pytest.skip("mpiexec or mpi4py is not installed")
    Manifest([first.saxpy.wanted()]).write(tmp_path / "manifest.json")
    (tmp_path / "program.py").write_text(MPI)
    more_options = ["--allow-run-as-root", "--oversubscribe"] if "open-mpi" in version(mpiexec) else []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    done = subprocess.run(
        [mpiexec, *more_options, "-n", "2", sys.executable, "-m", "mpi4py.futures", "program.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout) == [["compile", False]]


def version(program: str) -> str:
    """What a program says of itself."""
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout


def test_the_executors_are_those_of_the_standard_library() -> None:
    """What `warmup` takes is a `concurrent.futures.Executor`, and all of them are."""
    with contextlib.suppress(ImportError):
        from distributed.cfexecutor import ClientExecutor

        assert issubclass(ClientExecutor, Executor)
    with contextlib.suppress(ImportError, RuntimeError):
        from mpi4py.futures import MPIPoolExecutor

        assert issubclass(MPIPoolExecutor, Executor)
    assert cuplate.warmup.__kwdefaults__["executor"] is None
