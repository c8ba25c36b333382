"""Calls inside a CUDA graph capture: a cold one is refused before anything forbidden, a warm one replays (B43)."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import cupy
import pytest

from cuplate import CachePolicy, CaptureError, cache, subscribe
from cuplate.cache import set_policy
from tests.bindings import first, more
from tests.gpu.waiting import LONG, Gate, times, wait

ROOT = Path(__file__).parents[2]
GLOBAL = cupy.cuda.runtime.streamCaptureModeGlobal
MODES = [cupy.cuda.runtime.streamCaptureModeRelaxed, cupy.cuda.runtime.streamCaptureModeThreadLocal, GLOBAL]


@pytest.fixture(autouse=True)
def bare() -> None:
    """Nothing loaded, nothing pending, and no graph left for the collector to destroy in the midst of a capture."""
    gc.collect()
    cache.clear(disk=False)
    cupy.cuda.Device().synchronize()


def test_a_cold_call_in_a_capture_is_refused_and_leaves_the_capture_whole() -> None:
    """Nothing is compiled or loaded in a capture; the error says to call once before."""
    first.saxpy.cache_clear()
    x = cupy.ones(64, cupy.float32)
    out = cupy.empty_like(x)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        with pytest.raises(CaptureError, match="capture"):
            first.saxpy(2.0, x, x, out=out)
        graph = stream.end_capture()
    del graph
    assert bool((first.saxpy(2.0, x, x) == 3).all())


def test_a_warm_call_is_captured_and_replays_with_changed_inputs_after_its_eviction() -> None:
    """A captured kernel is never unloaded, whatever the memory tier lets go: the graph still points at it."""
    x = cupy.arange(1000, dtype=cupy.float32)
    y, out = cupy.ones_like(x), cupy.empty_like(x)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        first.saxpy(2.0, x, y, out=out)
        stream.synchronize()
        stream.begin_capture()
        first.saxpy(2.0, x, y, out=out)
        graph = stream.end_capture()
    before = set_policy(CachePolicy(memory_kernels=1))
    try:
        m = cupy.ones((32, 32), cupy.float32)
        for other in (first.transpose, first.softmax, first.stencil):  # they push saxpy out
            other(m)
    finally:
        set_policy(before)
    first.saxpy.cache_clear()
    cache.clear(disk=False)
    x[:] = 5
    cupy.cuda.Device().synchronize()
    graph.launch(stream)
    stream.synchronize()
    assert bool((out == 11).all())


def test_scratch_of_a_captured_call_is_nobody_elses() -> None:
    """A replay writes it again, so it must not have become another array's memory meanwhile."""
    x = cupy.arange(5_000, dtype=cupy.float32)
    out = cupy.zeros((), cupy.float32)
    side = cupy.cuda.Stream(non_blocking=True)
    with side:
        for _ in range(3):
            more.total_ordered(x, out=out)
        side.synchronize()
        side.begin_capture()
        more.total_ordered(x, out=out)
        graph = side.end_capture()
        others = [cupy.full(n, 77, cupy.uint8) for n in (4, 4, 512, 512, 1024, 1024) for _ in range(8)]
        x += 1
        graph.launch(side)
        side.synchronize()
        assert float(out) == float(x.sum())
        assert all(bool((other == 77).all()) for other in others)


# by torch -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [True, False], ids=["out=", "fresh"])
def test_torch_captures_a_warm_call_and_replays_it_with_changed_inputs(torch: Any, given: bool) -> None:
    """Nothing is loaded, with ``out=`` nothing is allocated, and each replay reads its inputs anew."""
    x = torch.arange(1000, dtype=torch.float32, device="cuda")
    out = torch.zeros_like(x) if given else None
    warm = torch.cuda.Stream()
    with torch.cuda.stream(warm):
        times(x, factor=3, out=out)
    torch.cuda.synchronize()
    told: list[Any] = []
    graph = torch.cuda.CUDAGraph()
    with subscribe(told.append), torch.cuda.graph(graph):
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        result = times(x, factor=3, out=out)
        allocated = torch.cuda.memory_stats()["allocation.all.allocated"] - before
    assert [e.kind for e in told] == ["hit", "launch"]
    assert allocated == (0 if given else 1)
    for value in (5.0, -2.0):
        x.fill_(value)
        graph.replay()
        torch.cuda.synchronize()
        assert bool((result == 3 * value).all())


def test_a_cold_call_in_torchs_capture_is_refused_and_leaves_it_whole(torch: Any) -> None:
    """The capture goes on: what else is in it replays; and the call works afterwards."""
    x, y = torch.ones(64, device="cuda"), torch.zeros(64, device="cuda")
    times(x, factor=9)
    cache.clear(disk=False)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y += 1
        with pytest.raises(CaptureError, match="came inside a graph capture"):
            times(x, factor=9)
    graph.replay()
    torch.cuda.synchronize()
    assert bool((y == 1).all()) and bool((times(x, factor=9) == 9).all())


# whose arrays and whose stream ----------------------------------------------------------------------------------------


class Interface:
    """An array of a library that is not known: only its interface."""

    def __init__(self, array: Any) -> None:
        self._array = array
        self.__cuda_array_interface__ = array.__cuda_array_interface__


def kept() -> int:
    """Kernels that a graph has captured, ever."""
    from cuplate.backend.cuda import device

    return len(device._kept)


@pytest.mark.parametrize("library", ["cupy", "torch", "interface"])
@pytest.mark.parametrize("mode", MODES, ids=["relaxed", "thread", "global"])
def test_whoever_captures_whose_arrays_ever(torch: Any, library: str, mode: int) -> None:
    """A capture by CuPy on a given stream: cold refused, warm kept, for arrays whose library knows nothing of it."""
    x = cupy.ones(64, cupy.float32)
    out = cupy.zeros_like(x)
    given: Any = {"cupy": lambda a: a, "torch": torch.from_dlpack, "interface": Interface}[library]
    a, b = given(x), given(out)
    side = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    side.begin_capture(mode)
    with pytest.raises(CaptureError):
        times(a, factor=7, out=b, stream=side)
    side.end_capture()
    times(a, factor=7, out=b, stream=side)
    side.synchronize()
    before = kept()
    side.begin_capture(mode)
    times(a, factor=7, out=b, stream=side)
    graph = side.end_capture()
    assert kept() == before + 1
    cache.clear(disk=False)
    x[:] = 3
    cupy.cuda.Device().synchronize()
    graph.launch(side)
    side.synchronize()
    assert bool((out == 21).all())


def test_a_cold_call_on_the_default_stream_beside_a_capture_is_refused() -> None:
    """The legacy stream would wait for a captured one that blocks: told before that breaks the capture."""
    x = cupy.ones(64, cupy.float32)
    out = cupy.zeros_like(x)
    blocking = cupy.cuda.Stream()
    cupy.cuda.Device().synchronize()
    blocking.begin_capture(GLOBAL)
    with pytest.raises(CaptureError, match="default stream while another stream that waits for it is captured"):
        times(x, factor=13, out=out)
    assert blocking.is_capturing()
    blocking.end_capture()
    assert bool((times(x, factor=13, out=out) == 13).all())


# what goes on beside a capture ----------------------------------------------------------------------------------------


def captured(x: Any, out: Any, during: Any) -> Any:
    """A graph of one warm call, captured in the global mode, and the stream; `during` is called before its end."""
    side = cupy.cuda.Stream(non_blocking=True)
    times(x, factor=2, out=out, stream=side)
    side.synchronize()
    side.begin_capture(GLOBAL)
    try:
        times(x, factor=2, out=out, stream=side)
        during()
    finally:
        graph = side.end_capture()
    return graph, side


@pytest.mark.parametrize("where", ["same thread", "other thread"])
def test_kernels_are_unloaded_beside_a_capture(where: str) -> None:
    """`clear` and eviction in the middle of a capture break it as little as they break its replays."""
    x = cupy.ones(64, cupy.float32)
    out = cupy.zeros_like(x)
    for factor in range(20, 30):
        times(x, factor=factor, out=out)

    cleared: list[int] = []

    def clear() -> None:
        cleared.append(cache.clear(disk=False))

    def during() -> None:
        if where == "same thread":
            clear()
        else:
            thread = threading.Thread(target=clear)
            thread.start()
            thread.join()

    graph, side = captured(x, out, during)
    assert cleared == [11]
    x[:] = 4
    cupy.cuda.Device().synchronize()
    graph.launch(side)
    side.synchronize()
    assert bool((out == 8).all())


def test_another_thread_compiles_and_loads_beside_a_capture() -> None:
    """A capture in the global mode forbids what might depend on it; a load does not, and breaks nothing."""
    x, y = cupy.ones(64, cupy.float32), cupy.ones(64, cupy.float32)
    out, other = cupy.zeros_like(x), cupy.zeros_like(x)
    beside = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    failures: list[BaseException] = []

    def call() -> None:
        try:
            times(y, factor=31, out=other, stream=beside)
        except BaseException as error:
            failures.append(error)

    def during() -> None:
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()

    graph, side = captured(x, out, during)
    assert not failures, failures
    graph.launch(side)
    cupy.cuda.Device().synchronize()
    assert bool((out == 2).all()) and bool((other == 31).all())


def test_a_kernel_in_flight_is_not_pulled_away() -> None:
    """`clear` while a kernel runs waits for it, and its result is right."""
    gate = Gate(cupy)
    gate.open()
    wait(LONG, gate.array)
    cupy.cuda.Device().synchronize()
    gate.close()
    side = cupy.cuda.Stream(non_blocking=True)
    seen = wait(LONG, gate.array, stream=side)
    opener = threading.Timer(0.3, gate.open)
    opener.start()
    cache.clear(disk=False)
    opener.join()
    side.synchronize()
    assert int(seen[0]) == 1


EXIT = """
import cupy, sys
sys.path.insert(0, sys.argv[1])
from tests.gpu.waiting import Gate, times, wait
x = cupy.ones(1 << 20, cupy.float32)
out = cupy.zeros_like(x)
side = cupy.cuda.Stream(non_blocking=True)
times(x, factor=2, out=out, stream=side)
side.begin_capture()
times(x, factor=2, out=out, stream=side)
graph = side.end_capture()
gate = Gate(cupy)
wait(300_000_000, gate.array, stream=side)
for _ in range(100):
    graph.launch(side)
times(x, factor=5)
print("ends")
"""


def test_the_interpreter_may_end_while_kernels_and_graphs_run() -> None:
    """No crash, no message, status 0: loaded kernels are left to the driver."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-c", EXIT, str(ROOT)], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", "")
