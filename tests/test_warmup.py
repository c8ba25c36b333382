"""Compiling ahead: each key once, wherever the executor works, and what goes wrong told in a row."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
import time
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from dataclasses import replace
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

import cuplate
from cuplate import ArgumentError, Manifest, ManifestError, ToolchainError, Wanted, cache
from cuplate import warmup as warm
from cuplate.warmup import Row, Warmed, _work
from tests.bindings import first, more

SAXPY = first.saxpy.wanted()
BROKEN = Wanted(function="tests.bindings.first:nothing")


class Here(Executor):
    """Runs at once, in this thread, and notes what it is sent; may lose some of it."""

    def __init__(self, *, loses: int = 0, refuses: bool = False) -> None:
        self.sent: list[tuple[Any, ...]] = []
        self.loses, self.refuses = loses, refuses

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.refuses:
            raise BrokenExecutor("gone")
        self.sent.append(args)
        future: Future[Any] = Future()
        if self.loses:
            self.loses -= 1
            future.set_exception(BrokenExecutor("its worker was killed"))
        else:
            future.set_result(fn(*args, **kwargs))
        return future


def origins(result: Warmed) -> list[str]:
    """What became of each row."""
    return [row.origin for row in result]


def test_the_first_time_compiles_and_the_second_finds() -> None:
    """In threads of this process, into its store; a row for each specialization and architecture."""
    first_time = warm([SAXPY], arch=["sm_80", "sm_90"])
    assert origins(first_time) == ["compile", "compile"] and first_time.compiled == 2
    assert origins(warm([SAXPY], arch="sm_90")) == ["disk"]
    before = cache.stats(all_threads=True).compile.compiles
    first.saxpy.compile(arch="sm_90")
    assert cache.stats(all_threads=True).compile.compiles == before
    assert "2 compiled, 0 there already, 0 failed" in str(first_time)
    assert len({row.key for row in first_time}) == 2


def test_equal_keys_are_sent_once() -> None:
    """Two names of one architecture, or an entry that stands there twice, are one compile; each has its row."""
    executor = Here()
    result = warm([SAXPY, SAXPY, first.saxpy], arch=["sm_90a", "sm_90"], executor=executor)
    assert len(executor.sent) == 1
    assert [(row.arch, row.origin) for row in result] == [("sm_90a", "compile"), ("sm_90", "compile")]
    assert result.compiled == 1


def test_what_is_sent_and_comes_back_is_small() -> None:
    """A line of text and an architecture; the function goes by reference, and the kernel stays."""
    executor = Here()
    (row,) = warm([SAXPY], arch="sm_90", executor=executor)
    ((work, sent, _),) = executor.sent
    assert work is _work and sent == ((SAXPY.line(), "sm_90"),)
    assert len(pickle.dumps(executor.sent[0])) < 400
    assert len(pickle.dumps(row)) < 800
    assert pickle.loads(pickle.dumps(first.saxpy)) is first.saxpy


def test_a_failure_is_a_row_and_stops_nobody() -> None:
    """A function that is not there, an architecture that nobody knows; `check` raises the first."""
    result = warm([BROKEN, SAXPY], arch=["sm_90", "sm_12"])
    assert origins(result).count("error") == 3 and origins(result).count("compile") == 1
    assert "cannot be imported" in result.failed[0].error
    with pytest.raises(ManifestError, match="3 of 4 specializations could not be compiled"):
        result.check()
    assert result.failed[0].function == "tests.bindings.first:nothing"


def test_no_gpu_and_no_architecture_is_an_error_of_the_worker() -> None:
    """Without `arch` the worker's own device counts, so the error is its."""
    if cuplate_has_gpu():
        pytest.skip("there is a GPU")
    (row,) = warm([SAXPY])
    assert "arch= is needed" in row.error and row.where.endswith(f":{os.getpid()}")


def cuplate_has_gpu() -> bool:
    """Whether this machine has one."""
    from tests.conftest import missing_gpu

    return missing_gpu() is None


def test_a_compiler_that_is_not_here_may_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no key can be told everything is sent, and the worker tells; without an executor it is an error."""

    def no_compiler(memo: object = None) -> None:
        raise ToolchainError("there is none")

    monkeypatch.setattr("cuplate.backend.cuda.nvrtc.toolchain", no_compiler)
    executor = Here()
    first.saxpy.cache_clear()
    (row,) = warm([SAXPY], arch="sm_90", executor=executor)
    assert len(executor.sent) == 1 and row.error == "there is none"
    assert warm([SAXPY], arch="sm_90").failed


@pytest.mark.parametrize(("loses", "sent"), [(1, 3), (2, 4)])
def test_lost_work_is_sent_once_more(loses: int, sent: int) -> None:
    """And each time it looks like other work to an executor that answers what it was asked before."""
    executor = Here(loses=loses)
    result = warm([SAXPY, more.square.wanted()], arch="sm_90", executor=executor)
    assert origins(result) == ["compile", "compile"]
    assert len(executor.sent) == len(set(executor.sent)) == sent


class Late:
    """A shared tier that takes its time to store."""

    held: ClassVar[dict[bytes, bytes]] = {}

    def get(self, key: bytes) -> bytes | None:
        return self.held.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        time.sleep(0.2)
        self.held[key] = value


def test_what_is_told_as_compiled_is_on_the_shared_tier() -> None:
    """The worker waits for that; who asks next is served from there."""
    Late.held.clear()
    with cuplate.configure(shared=f"{__name__}:Late", secret=b"of this test"):
        assert origins(warm([SAXPY], arch="sm_90", executor=Here())) == ["compile"]
        assert len(Late.held) == 1
        cache.clear()
        found = warm([SAXPY], arch="sm_90", executor=Here())
    assert origins(found) == ["shared"] and (found.compiled, found.hits) == (0, 1)


def test_each_time_is_another_order() -> None:
    """So that nodes which warm up side by side do not all begin with the same."""
    archs = ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"]
    orders = set()
    for _ in range(3):
        executor = Here()
        result = warm([SAXPY], arch=archs, executor=executor)
        assert [row.arch for row in result] == archs
        orders.add(tuple(what for _, what, _ in executor.sent))
    assert len(orders) > 1


def test_a_long_list_is_sent_in_batches_and_again_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that an executor's cost of a task is paid less often, and what is lost with others is lost for itself."""
    monkeypatch.setattr(sys.modules["cuplate.warmup"], "_SENDINGS", 2)
    executor = Here(loses=1)
    told: list[int] = []
    archs = ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"]
    result = warm([SAXPY], arch=archs, executor=executor, progress=lambda n, of: told.append(n))
    assert origins(result) == ["compile"] * 5 and [row.arch for row in result] == archs
    assert [len(what) for _, what, _ in executor.sent] == [3, 2, 1, 1, 1]
    assert told == [0, 1, 2, 3, 4, 5]
    monkeypatch.undo()
    batch = sys.modules["cuplate.warmup"]._batch
    assert [batch(n) for n in (1, 127, 128, 200, 256, 1024, 1025, 10_000)] == [1, 1, 2, 3, 4, 4, 5, 40]


WRONG_ANSWERS = {
    "none": None,
    "no rows": [],
    "text": ["a row"],
    "another's": [Row(wanted=SAXPY.line(), arch="sm_75")],
    "exit": SystemExit(3),
    "interrupt": KeyboardInterrupt(),
    "cancelled": asyncio.CancelledError(),
}


@pytest.mark.parametrize("answer", WRONG_ANSWERS)
def test_an_answer_that_is_none_is_lost_work(answer: str) -> None:
    """Also the one to another task, and whatever ended the worker: that is nothing that ends this process."""

    class Wrong(Here):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            future: Future[Any] = Future()
            given: Any = WRONG_ANSWERS[answer]
            if isinstance(given, BaseException):
                future.set_exception(given)
            else:
                future.set_result(given)
            return future

    (row,) = warm([SAXPY], arch="sm_90", executor=Wrong())
    assert row.origin == "error" and "its worker was lost twice" in row.error


def test_a_worker_with_another_version_is_told() -> None:
    """Its key is another: what it has compiled is not what this process will ask for."""

    class Older(Here):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            future = super().submit(fn, *args, **kwargs)
            (row,) = future.result()
            future = Future()
            future.set_result([replace(row, key="ab" * 32)])
            return future

    told = warm([SAXPY], arch="sm_90", executor=Older())
    assert len(told.other) == 1 and "1 with another key than here" in str(told)
    told = warm([SAXPY], arch="sm_90", executor=Here())
    assert not told.other and "another" not in str(told)


def test_what_cannot_be_stored_cannot_be_warmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be compiled for nothing."""
    known = sys.modules["cuplate.warmup"].prepare

    def clocked(*args: Any) -> Any:
        variants, content = known(*args)
        key = SimpleNamespace(hex=content.key.hex, storable=False, reason="it reads the clock")
        return variants, SimpleNamespace(key=key)

    monkeypatch.setattr(sys.modules["cuplate.warmup"], "prepare", clocked)
    (row,) = warm([SAXPY], arch="sm_90", executor=Here())
    assert row.origin == "error" and "it reads the clock" in row.error


def test_work_that_is_lost_twice_is_an_error_and_is_not_done_here() -> None:
    """It may be what kills its workers."""
    executor, before = Here(loses=99), cache.stats(all_threads=True).compile.compiles
    result = warm([SAXPY, more.square.wanted()], arch="sm_90", executor=executor)
    assert origins(result) == ["error", "error"] and len(executor.sent) == 4
    assert "its worker was lost twice" in result.failed[0].error
    assert cache.stats(all_threads=True).compile.compiles == before


def test_an_executor_that_takes_nothing_leaves_it_to_this_process() -> None:
    """Nothing is lost with it."""
    assert origins(warm([SAXPY], arch="sm_90", executor=Here(refuses=True))) == ["compile"]


def test_progress_is_told_from_nothing_to_all() -> None:
    """Of what is to be done: equal keys are one."""
    told: list[tuple[int, int]] = []
    warm([SAXPY, more.square], arch=["sm_90", "sm_90a"], executor=Here(), progress=lambda n, of: told.append((n, of)))
    assert told == [(0, 2), (1, 2), (2, 2)]


def test_an_interrupt_cancels_what_has_not_begun() -> None:
    """And gets to the caller."""
    waiting: list[Future[Any]] = []

    class Slow(Here):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            waiting.append(Future())
            if len(waiting) == 2:
                raise KeyboardInterrupt
            return waiting[-1]

    with pytest.raises(KeyboardInterrupt):
        warm([SAXPY, more.square], arch="sm_90", executor=Slow())
    assert waiting[0].cancelled()


def test_a_path_is_that_of_a_manifest(tmp_path: Path) -> None:
    """As `cuplate.record` wrote it."""
    Manifest([SAXPY]).write(tmp_path / "run.json")
    assert origins(warm(tmp_path / "run.json", arch="sm_90", executor=Here())) == ["compile"]
    with pytest.raises(ManifestError):
        warm(tmp_path / "other.json")


def test_a_list_of_something_else_is_refused() -> None:
    """With what it has."""
    with pytest.raises(ArgumentError, match="something else in it"):
        warm([print])
    with pytest.raises(ArgumentError, match="are no list"):
        warm(first.saxpy)  # type: ignore[arg-type]


def test_an_executor_of_another_kind_is_refused() -> None:
    """A Dask client submits too, but its futures are its own; what has no submit would pass for broken."""
    for other in (Here, object()):
        with pytest.raises(ArgumentError, match=r"get_executor"):
            warm([SAXPY], arch="sm_90", executor=other)  # type: ignore[arg-type]


def test_a_function_inside_another_is_not_found_and_told_why() -> None:
    """No package that is installed would help."""
    (row,) = warm([Wanted(function=f"{__name__}:make.<locals>.inner")], arch="sm_90", executor=Here())
    assert "at the top of a module" in row.error


def killed(line: str, arch: str) -> Any:
    """A worker that is killed at its work."""
    os.kill(os.getpid(), signal.SIGKILL)


def test_processes_share_the_work_and_one_that_is_killed_loses_none() -> None:
    """Into the store of the node; a pool that is broken takes no more, so the rest is done here."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        result = warm([SAXPY, more.square], arch=["sm_80", "sm_90"], executor=pool)
        assert origins(result) == ["compile"] * 4
        assert all(row.where and not row.where.endswith(f":{os.getpid()}") for row in result)
        pool.submit(killed, "", "").exception()
        assert origins(warm([SAXPY], arch="sm_75", executor=pool)) == ["compile"]


def test_a_manifest_of_the_run_warms_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was recorded on the CPU backend is compiled for it, and the next call of its kind compiles nothing."""
    import numpy as np

    monkeypatch.setenv("CUPLATE_CPU_CHECK", "off")
    monkeypatch.setattr(import_module("cuplate.record"), "live_walks", list)
    with cuplate.record(tmp_path / "run.json") as recording:
        first.stencil(np.ones((4, 4), np.float32))
    first.stencil.cache_clear()
    cache.clear()
    mine = [entry for entry in recording.manifest if entry.function == "tests.bindings.first:stencil"]
    assert origins(warm(mine, arch="host").check()) == ["compile"]
    before = cache.stats(all_threads=True).compile.compiles
    first.stencil(np.ones((7, 5), np.float32))
    assert cache.stats(all_threads=True).compile.compiles == before
