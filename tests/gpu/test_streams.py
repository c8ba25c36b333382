"""Streams: order behind a slow producer, outputs that belong to the stream, and streams of every library (B41)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.bindings import first
from tests.gpu.waiting import LONG, Gate, times, wait

N = 1 << 20


class Producer:
    """Threes, written on a stream behind a kernel that waits for the host; zeros to whoever does not wait.

    All that may wait for the device (memory, first calls) is done before `start`.
    """

    def __init__(self, cp: Any) -> None:
        self.gate = Gate(cp)
        self.x = cp.zeros(N, cp.float32)
        self.gate.open()
        wait(LONG, self.gate.array)
        times(self.x, factor=2)
        self.x += 0
        cp.count_nonzero(self.x != 6)
        cp.cuda.Device().synchronize()
        self.gate.close()

    def start(self, stream: Any) -> None:
        """Begin; nothing is written before the gate is opened."""
        with stream:
            self._seen = wait(LONG, self.gate.array)
            self.x += 3


@pytest.mark.parametrize("how", ["current", "given"])
@pytest.mark.parametrize("out", [False, True], ids=["fresh", "out="])
def test_order_holds_behind_a_slow_producer_b41(cp: Any, how: str, out: bool) -> None:
    """B41: the call runs behind it, and what reads the result on that stream runs behind the call, with no sync."""
    for _ in range(3):
        side, made = cp.cuda.Stream(non_blocking=True), Producer(cp)
        given = cp.zeros(N, cp.float32) if out else None
        cp.cuda.Device().synchronize()
        made.start(side)
        if how == "current":
            with side:
                y = times(made.x, factor=2, out=given)
        else:
            y = times(made.x, factor=2, out=given, stream=side)
        with side:
            wrong = cp.count_nonzero(y != 6)
        made.gate.open()
        side.synchronize()
        assert int(wrong) == 0


@pytest.mark.parametrize("how", ["current", "given"])
def test_order_holds_behind_a_slow_producer_of_torch_b41(cp: Any, torch: Any, how: str) -> None:
    """B41: torch's tensors, on torch's side stream."""
    for _ in range(3):
        side, made = torch.cuda.Stream(), Producer(cp)
        x = torch.from_dlpack(made.x)
        (times(x, factor=2) != 6).sum()
        torch.cuda.synchronize()
        made.start(cp.cuda.Stream.from_external(side))
        with torch.cuda.stream(side):
            y = times(x, factor=2) if how == "current" else None
        if y is None:
            y = times(x, factor=2, stream=side)
        with torch.cuda.stream(side):
            wrong = (y != 6).sum()
        made.gate.open()
        side.synchronize()
        assert int(wrong) == 0


def test_fresh_outputs_belong_to_the_given_stream(cp: Any) -> None:
    """CuPy's pool gives the memory out again on that stream, and not on another one."""
    side, x = cp.cuda.Stream(non_blocking=True), cp.ones(N, cp.float32)
    cp.cuda.Device().synchronize()
    out = times(x, factor=2, stream=side)
    place = out.data.ptr
    del out
    assert cp.empty(N, cp.float32).data.ptr != place
    with side:
        assert cp.empty(N, cp.float32).data.ptr == place
    side.synchronize()


def test_fresh_tensors_belong_to_the_given_stream(torch: Any) -> None:
    """torch's allocator gives the memory out again on that stream, and not on another one."""
    side, x = torch.cuda.Stream(), torch.ones(N, device="cuda")
    torch.cuda.synchronize()
    out = times(x, factor=2, stream=side)
    place = out.data_ptr()
    del out
    assert torch.empty(N, device="cuda").data_ptr() != place
    with torch.cuda.stream(side):
        assert torch.empty(N, device="cuda").data_ptr() == place
    side.synchronize()


@pytest.mark.parametrize("role", ["input", "out="])
def test_given_tensors_are_recorded_on_the_given_stream(cp: Any, torch: Any, role: str) -> None:
    """A tensor that dies while the stream uses it is not given to others before the stream is done."""
    gate = Gate(cp)
    gate.open()
    wait(LONG, gate.array)
    taken = [torch.empty(N, device="cuda") for _ in range(5)]
    x, out = torch.ones(N, device="cuda"), torch.empty(N, device="cuda")
    times(x, factor=2, out=out)
    del taken  # cached, so that nothing below needs memory of the driver
    torch.cuda.synchronize()
    gate.close()
    side = torch.cuda.Stream()
    wait(LONG, gate.array, stream=side)
    times(x, factor=2, out=out, stream=side)
    place = (x if role == "input" else out).data_ptr()
    if role == "input":
        del x
    else:
        del out
    taken = [torch.empty(N, device="cuda") for _ in range(4)]
    places = {t.data_ptr() for t in taken}
    gate.open()
    side.synchronize()
    assert place not in places


def test_a_foreign_stream_may_go_before_the_tensors(cp: Any, torch: Any) -> None:
    """torch records no stream that is not its own: its allocator would ask a destroyed one for an event, and crash."""
    for _ in range(20):
        x = torch.ones(N, device="cuda")
        torch.cuda.synchronize()
        side = cp.cuda.Stream(non_blocking=True)
        for stream in (side, torch.cuda.ExternalStream(side.ptr)):
            out = times(x, factor=2, stream=stream)
        side.synchronize()
        del side, stream
        assert bool((out == 2).all())
        del x, out


def streams(cp: Any, torch: Any) -> dict[str, Callable[[], Any]]:
    """How each library makes a stream."""
    from cuda.core import LEGACY_DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM, Device

    def core() -> Any:
        device = Device(0)
        device.set_current()
        return device.create_stream()

    class Foreign:
        def __init__(self) -> None:
            self.own = cp.cuda.Stream(non_blocking=True)

        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, self.own.ptr

    return {
        "cuda.core": core,
        "cupy": lambda: cp.cuda.Stream(non_blocking=True),
        "torch": torch.cuda.Stream,
        "protocol": Foreign,
        "legacy": lambda: LEGACY_DEFAULT_STREAM,
        "per thread": lambda: PER_THREAD_DEFAULT_STREAM,
        "cupy null": lambda: cp.cuda.Stream.null,
        "pointer": lambda: SimpleNamespace(ptr=0),
    }


@pytest.mark.parametrize(
    "kind", ["cuda.core", "cupy", "torch", "protocol", "legacy", "per thread", "cupy null", "pointer"]
)
@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_streams_of_every_library_are_taken_for_arrays_of_every_library(
    cp: Any, torch: Any, kind: str, library: str
) -> None:
    """B41: whoever made the stream; twice, so that what is remembered is used."""
    stream = streams(cp, torch)[kind]()
    module: Any = cp if library == "cupy" else torch
    where = {} if library == "cupy" else {"device": "cuda"}
    x = module.ones(1000, dtype=module.float32, **where)
    cp.cuda.Device().synchronize()
    for _ in range(2):
        out = times(x, factor=5, stream=stream)
        cp.cuda.Device().synchronize()
        assert bool((out == 5).all())
        total = first.total(x, stream=stream)  # zeroed there too
        cp.cuda.Device().synchronize()
        assert float(total) == 1000


def test_each_thread_has_its_current_stream(cp: Any) -> None:
    """16 threads, each on its own stream behind a slow producer of its own: no call goes to another's stream."""
    made = [(cp.cuda.Stream(non_blocking=True), Producer(cp)) for _ in range(16)]
    for side, producer in made:
        producer.start(side)
    wrong: list[Any] = [None] * len(made)
    ready = threading.Barrier(len(made))

    def work(place: int) -> None:
        side, producer = made[place]
        with side:
            ready.wait()
            for _ in range(5):
                y = times(producer.x, factor=2)
            wrong[place] = cp.count_nonzero(y != 6)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(made))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _, producer in made:
        producer.gate.open()
    cp.cuda.Device().synchronize()
    assert [int(w) for w in wrong] == [0] * len(made)
