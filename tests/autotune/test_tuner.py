"""Calls that leave parameters to tuning: what is measured, kept, found again, and when nothing is measured.

Most run on the GPU of `tests.doubles`, where the test says what a run takes and leaves: everything above the driver is
as it is, NVRTC included. What a kernel really does to its arrays is told by the CPU backend, whose clock counts work.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
from jaxtyping import Float32

import cuplate
from cuplate import (
    ArgumentError,
    Array,
    CachePolicy,
    CaptureError,
    Inline,
    TuneError,
    TuneWarning,
    cache,
    specialize,
    tune,
)
from cuplate.autotune.workspace import NoRoom, Workspace
from cuplate.backend.cpu.bench import Bench as HostBench
from cuplate.cache.flight import NodeFlights
from cuplate.events import Event
from cuplate.variants import Variants
from tests.doubles import Bench, Gpu, install, install_bench

KERNEL = """
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const {{ index_t }} i = ({{ index_t }})blockIdx.x * {{ tile }} + threadIdx.x;
    if (i < {{ N }}) out[i] = x[i];
}
"""
COSTS = {"tile=16": 3e-3, "tile=32": 1e-3, "tile=64": 2e-3}


def copying(template: str = KERNEL, **keywords: Any) -> Any:
    """A fresh function over three tiles."""

    @specialize(Inline(template), tiles={"N": "tile"}, block="tile", **keywords)
    def f(x: Float32[Array, " N"], *, tile: Literal[16, 32, 64] = tune()) -> Float32[Array, " N"]:
        return x

    return f


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A layer with the kernels of `copying`, so that not every test compiles them."""
    directory, layer = (tmp_path_factory.mktemp(name) for name in ("compiled", "layer"))
    f = copying(policy=CachePolicy(directory=directory))
    for tile in (16, 32, 64):
        f.compile(arch="sm_90", tile=tile)
    with cuplate.configure(directory=directory):
        assert cache.export(layer).kernels == 3
    return layer


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, compiled: Path) -> Iterator[Gpu]:
    """A recording GPU."""
    monkeypatch.setenv("CUPLATE_LAYERS", str(compiled))
    yield install(monkeypatch)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, gpu: Gpu) -> Bench:
    """A bench on which the middle tile is the fastest."""
    return install_bench(monkeypatch, gpu, lambda parameters: COSTS[parameters])


def last(gpu: Gpu) -> str:
    """Parameters of the last launch."""
    return gpu.launches[-1].parameters


# first use ------------------------------------------------------------------------------------------------------------


def test_the_first_call_measures_and_the_next_ones_look_up(gpu: Gpu, bench: Bench) -> None:
    """The winner runs from the first call on; then a call is a launch and nothing else, of any size of the class."""
    f = copying()
    x = gpu.array(100)
    f(x)
    assert last(gpu) == "tile=32"
    launches, compiles = len(gpu.launches), cache.stats(all_threads=True).compile.compiles
    f(x)
    f(x)
    assert len(gpu.launches) == launches + 2 and f.cache_info().hits >= 2
    f(gpu.array(128))
    assert len(gpu.launches) == launches + 3 and last(gpu) == "tile=32"
    assert cache.stats(all_threads=True).compile.compiles == compiles
    f(gpu.array(129))
    assert len(gpu.launches) > launches + 10


def test_the_plan_of_a_tuned_call_is_on_the_hot_path(gpu: Gpu, bench: Bench) -> None:
    """No call of the second kind walks."""
    f = copying()
    x = gpu.array(100)
    f(x)
    walk = f.reload.__self__
    walk._cold = None
    f(x)
    assert last(gpu) == "tile=32" and len(walk.hot.plans) == 1


def test_a_value_that_is_given_is_taken(gpu: Gpu, bench: Bench) -> None:
    """No tuning for that parameter; ``tune()`` itself, as who binds by inspect.signature() gives it, is no value."""
    f = copying()
    x = gpu.array(100)
    f(x, tile=16)
    assert last(gpu) == "tile=16" and not bench.log
    f(x, tile=tune())
    assert last(gpu) == "tile=32" and bench.log


def test_the_others_are_tuned_around_a_value_that_is_given(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each value of it has a winner of its own."""
    costs = {(1, 16): 4e-3, (1, 32): 1e-3, (2, 16): 1e-3, (2, 32): 4e-3}
    install_bench(monkeypatch, gpu, lambda p: next(v for (s, t), v in costs.items() if p == f"tile={t}, stages={s}"))

    @specialize(Inline(KERNEL.replace("x[i];", "x[i] * {{ stages }};")), tiles={"N": "tile"}, block="tile")
    def f(
        x: Float32[Array, " N"], *, tile: Literal[16, 32] = tune(), stages: Literal[1, 2] = tune()
    ) -> Float32[Array, " N"]:
        raise NotImplementedError

    x = gpu.array(100)
    for given, wanted in (({"stages": 1}, "tile=32, stages=1"), ({"stages": 2}, "tile=16, stages=2")):
        f(x, **given)
        assert last(gpu) == wanted
    assert [len(f.tuning(x, stages=1).tried), len(f.tuning(x).tried)] == [2, 4]


def test_the_call_itself_changes_nothing_but_once(gpu: Gpu, bench: Bench) -> None:
    """B58: trials write to copies, restored before each run; the caller's array is written by one launch."""

    @specialize(Inline(KERNEL.replace("out[i] = x[i]", "x[i] *= 2")), tiles={"N": "tile"}, block="tile", mutates="x")
    def f(x: Float32[Array, " N"], *, tile: Literal[16, 32, 64] = tune()) -> None:
        raise NotImplementedError

    x = gpu.array(100)
    f(x)
    own = [note for note in gpu.launches if note.values[0] == x.data.ptr]
    assert own == [gpu.launches[-1]] and len(gpu.launches) > 20
    runs = [i for i, (what, *_) in enumerate(bench.log) if what == "run"]
    assert len(runs) == len(gpu.launches) - 1
    for i in runs:
        what, to, source, size = bench.log[i - 1]
        assert (what, source, size) == ("copy", x.data.ptr, 400) and to % 256 == x.data.ptr % 256
    assert x.data.ptr not in {note[1] for note in bench.log if note[0] == "copy"}


def test_a_given_output_is_written_by_the_call_alone(gpu: Gpu, bench: Bench) -> None:
    """And what it held is what each trial finds, as a kernel may read it."""
    f = copying()
    x, out = gpu.array(100), gpu.array(100)
    f(x, out=out)
    assert [n for n in gpu.launches if out.data.ptr in n.values] == [gpu.launches[-1]]
    assert {note[2] for note in bench.log if note[0] == "copy"} == {out.data.ptr}


# what cannot run, what is wrong ---------------------------------------------------------------------------------------


def test_candidates_that_cannot_compile_or_launch_are_skipped_and_told_b60(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B60: by name, with the reason; the others go on."""
    install_bench(monkeypatch, gpu, lambda parameters: 1e-3)
    shared = "__shared__ float s[{{ bytes }} / 4]; s[threadIdx.x] = x[0]; out[0] = s[0];"
    text = KERNEL.replace("if (i < {{ N }})", "{% if bytes == 4 %}no such{% endif %}" + shared + "if (i < {{ N }})")

    @specialize(Inline(text), tiles={"N": "tile"}, block="tile * threads", shared_bytes="dynamic")
    def f(
        x: Float32[Array, " N"],
        *,
        tile: Literal[32] = 32,
        threads: int = tune(configs=CONFIGS),
        bytes: int = tune(),
        dynamic: int = tune(),
    ) -> Float32[Array, " N"]:
        raise NotImplementedError

    f(gpu.array(100))
    found = f.tuning(gpu.array(100))
    assert found.parameters == CONFIGS[3]
    assert [tried.state for tried in found.tried] == ["compile error", "launch error", "launch error", "measured"]
    for tried, reason in zip(found.tried, ('"no" is undefined', "2048 threads", "shared memory", ""), strict=True):
        assert reason in tried.reason, tried


CONFIGS = [
    {"threads": 1, "bytes": 4, "dynamic": 0},
    {"threads": 64, "bytes": 1024, "dynamic": 0},
    {"threads": 1, "bytes": 1024, "dynamic": 1 << 20},
    {"threads": 1, "bytes": 1024, "dynamic": 0},
]


def test_where_no_candidate_can_run_one_error_says_why_of_each_b60(gpu: Gpu, bench: Bench) -> None:
    """B60: and the next call asks again."""

    @specialize(Inline(KERNEL), tiles={"N": "tile"}, block="tile * 1000")
    def f(x: Float32[Array, " N"], *, tile: Literal[16, 32] = tune()) -> Float32[Array, " N"]:
        raise NotImplementedError

    for _ in range(2):
        with pytest.raises(TuneError) as caught:
            f(gpu.array(100))
    assert str(caught.value).splitlines() == [
        "f: none of 2 candidates can run this call.",
        "  given      tile=16: launch error: block in x is 16000 threads, the device allows 1024.",
        "             tile=32: launch error: block in x is 32000 threads, the device allows 1024.",
        "  called as  f(x=float32[100])",
        "  try        other values in tune(), or a condition in require= that leaves out what cannot run",
    ]
    assert [t.state for t in caught.value.tried] == ["launch error"] * 2


def test_a_wrong_candidate_is_told_and_never_wins(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """The majority says who is wrong: nothing computes here, so no reference agrees with anything."""
    results = {"tile=16": 1.0, "tile=32": 7.0, "tile=64": 1.0}

    def result(parameters: str, size: int) -> bytes:
        return np.full(size // 4, results[parameters], np.float32).tobytes()

    install_bench(monkeypatch, gpu, lambda parameters: COSTS[parameters], result)
    f = copying()
    x = gpu.array(100)
    with pytest.warns(TuneWarning, match=r"f: 1 of 3 candidates gave another result.*tile=32: out: element 0 is 7.0"):
        f(x)
    assert last(gpu) == "tile=64"
    assert [t.state for t in f.tuning(x).tried] == ["measured", "wrong", "measured"]


def test_a_fault_of_the_device_is_an_error_that_names_the_candidate(gpu: Gpu, bench: Bench) -> None:
    """Nothing can run after it."""
    bench.fault = "CUDA_ERROR_ILLEGAL_ADDRESS"
    with pytest.raises(TuneError, match="ILLEGAL_ADDRESS") as caught:
        copying()(gpu.array(100))
    assert caught.value.given == "tile=16"


def test_without_memory_for_copies_the_default_runs_with_a_warning(gpu: Gpu, bench: Bench) -> None:
    """And nothing is kept in the store."""
    bench.room = 100
    f = copying()
    with pytest.warns(TuneWarning, match="not enough memory for copies"):
        f(gpu.array(100))
    assert last(gpu) == "tile=16" and f.tuning(gpu.array(100)).origin == "default"
    f(gpu.array(100))  # no further word


def test_results_that_the_host_has_no_room_for_are_not_read(
    gpu: Gpu, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux would promise the memory, and end the process: a result is compared on the host, beside one more."""
    monkeypatch.setattr("cuplate.autotune.workspace.available_bytes", lambda: 200 << 20)
    read: list[int] = []
    monkeypatch.setattr(bench, "read", lambda source, size: read.append(size))
    f = copying()
    with pytest.warns(TuneWarning, match="not enough memory for copies.*of the host's"):
        f(gpu.array(30 << 20))
    assert last(gpu) == "tile=16" and not read


def test_copies_in_host_memory_are_asked_for_before_they_are_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them together."""
    monkeypatch.setattr("cuplate.autotune.workspace.available_bytes", lambda: 200 << 20)
    call: Any = SimpleNamespace(arrays={}, device=("cpu", 0))
    each = ((30 << 20,), "float32")
    with pytest.raises(NoRoom, match=f"{240 << 20} bytes of the host's, where {200 << 20} are free"):
        Workspace(HostBench(), call, (), {"one": each, "two": each})


def test_the_end_of_the_time_takes_the_best_so_far(gpu: Gpu, bench: Bench) -> None:
    """With no time at all the default is measured alone, and the table says what was not."""
    f = copying(policy=CachePolicy(tune_s=1e-9))
    f(gpu.array(100))
    found = f.tuning(gpu.array(100))
    assert last(gpu) == "tile=16" and "not measured" in [t.state for t in found.tried]
    assert "candidates were not measured" in found.note


# modes ----------------------------------------------------------------------------------------------------------------


def test_modes(gpu: Gpu, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Off takes the default though a winner is stored; cached takes a stored winner, and measures nothing."""
    f = copying()
    x = gpu.array(100)
    modes = [("off", 16), ("cached", 16), ("on", 32), ("cached", 32), ("off", 16)]
    for mode, wanted in modes:
        monkeypatch.setenv("CUPLATE_TUNE", mode)
        f.cache_clear()
        before = len(bench.log)
        f(x)
        assert last(gpu) == f"tile={wanted}" and (len(bench.log) > before) == (mode == "on")


def test_a_policy_of_the_function_decides(gpu: Gpu, bench: Bench) -> None:
    """In code, as every value of a policy."""
    x = gpu.array(100)
    copying(policy=CachePolicy(tune="off"))(x)
    with cuplate.configure(tune="off"):
        copying()(x)
    assert not bench.log


def test_a_frozen_cache_measures_nothing(gpu: Gpu, bench: Bench) -> None:
    """A stored winner is taken; without one the default, which must be stored as every kernel."""
    f, x = copying(), gpu.array(100)
    f(x)
    f.cache_clear()
    with cuplate.configure(frozen=True):
        f(x)
        assert last(gpu) == "tile=32"
        with pytest.raises(cuplate.FrozenCacheError):
            copying(KERNEL + "// other")(x)


def test_a_capture_is_never_measured_in(gpu: Gpu, bench: Bench) -> None:
    """The default runs with a warning, and the first call outside measures; a known winner runs in a capture too."""
    f, x = copying(), gpu.array(100)
    f(x, tile=16)  # loaded: else a capture refuses it
    gpu.capturing.add(7)
    with gpu.on_stream(7):
        with pytest.warns(TuneWarning, match="graph capture"):
            f(x)
        assert last(gpu) == "tile=16" and not bench.log
        with pytest.raises(CaptureError, match="nothing can be measured"):
            f.tune(x)
    f(x)
    assert last(gpu) == "tile=32"
    with gpu.on_stream(7):
        f(x)
    assert last(gpu) == "tile=32"


def test_debug_runs_the_winner_and_measures_nothing(gpu: Gpu, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The winner of the plain kernels, with line info; without one the default, until debugging is over."""
    f, x = copying(), gpu.array(100)
    monkeypatch.setenv("CUPLATE_DEBUG", "1")
    f(x)
    assert last(gpu) == "tile=16" and not bench.log
    monkeypatch.delenv("CUPLATE_DEBUG")
    f(x)
    assert last(gpu) == "tile=32"
    monkeypatch.setenv("CUPLATE_DEBUG", "1")
    measured = len(bench.log)
    f(x)
    assert last(gpu) == "tile=32" and len(bench.log) == measured
    monkeypatch.delenv("CUPLATE_DEBUG")
    f(x)


def test_nothing_to_launch_is_nothing_to_measure(gpu: Gpu, bench: Bench) -> None:
    """Empty arrays."""
    copying()(gpu.array(0))
    assert not bench.log and not gpu.launches


def test_a_sum_over_nothing_is_not_measured(gpu: Gpu, bench: Bench) -> None:
    """It is launched, untuned; the next one that has something to sum is measured."""
    text = """
    extern "C" __global__ void {{ kernel }}({{ args }})
    {
        if (threadIdx.x < {{ M }}) out[threadIdx.x] = {{ tile }} * {{ K }};
    }
    """

    @specialize(Inline(text), tiles={"M": "tile"}, block="tile")
    def f(a: Float32[Array, "M K"], *, tile: Literal[16, 32, 64] = tune()) -> Float32[Array, " M"]:
        raise NotImplementedError

    f(gpu.array((5, 0)))
    assert not bench.log and [n.parameters for n in gpu.launches] == ["tile=16"]
    with pytest.raises(ArgumentError, match="nothing to tune"):
        f.tune(gpu.array((5, 0)))
    f(gpu.array((5, 1)))
    assert bench.log and last(gpu) == "tile=32"


# what is kept ---------------------------------------------------------------------------------------------------------


def test_another_function_of_the_same_text_finds_the_winner(gpu: Gpu, bench: Bench) -> None:
    """By content, from the store; it compiles and measures nothing."""
    x = gpu.array(100)
    copying()(x)
    compiles, measured = cache.stats(all_threads=True).compile.compiles, len(bench.log)
    f = copying()
    cache.clear(disk=False)
    f(x)
    assert last(gpu) == "tile=32" and len(bench.log) == measured and f.tuning(x).origin == "stored"
    assert cache.stats(all_threads=True).compile.compiles == compiles
    assert (f.cache_info().compiles, f.cache_info().disk_hits) == (0, 1)


@pytest.mark.parametrize("what", ["text", "candidates", "launch", "dtype of the device", "key"])
def test_what_a_winner_depends_on_makes_another_key(
    what: str, gpu: Gpu, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of the template, of the candidates, of the launch, of the device: measured again."""
    x = gpu.array(100)
    copying()(x)
    measured = len(bench.log)
    if what == "text":
        f = copying(KERNEL + "// other")
    elif what == "candidates":
        f = copying(require="tile != 64")
    elif what == "launch":
        f = copying(shared_bytes=16)
    elif what == "key":

        @specialize(Inline(KERNEL), tiles={"N": "tile"}, block="tile")
        def f(x: Float32[Array, " N"], *, tile: Literal[16, 32, 64] = tune(key=())) -> Float32[Array, " N"]:
            raise NotImplementedError

    else:
        facts = replace(gpu.device_facts(0), name="another")
        monkeypatch.setattr(gpu, "device_facts", lambda device: facts)
        f = copying()
    f(x)
    assert len(bench.log) > measured and last(gpu) == "tile=32"


def test_a_key_of_its_own_joins_or_parts_sizes(gpu: Gpu, bench: Bench) -> None:
    """No axis: one class for all; exact: one for each size."""

    def made(**said: Any) -> Any:
        @specialize(Inline(KERNEL), tiles={"N": "tile"}, block="tile")
        def f(x: Float32[Array, " N"], *, tile: Literal[16, 32, 64] = tune(**said)) -> Float32[Array, " N"]:
            raise NotImplementedError

        return f

    def measured(f: Any, *sizes: int) -> list[bool]:
        found = []
        for size in sizes:
            before = len(bench.log)
            f(gpu.array(size))
            found.append(len(bench.log) > before)
        return found

    assert measured(made(key=()), 100, 5000) == [True, False]
    assert measured(made(size_class="exact"), 100, 101, 100) == [True, True, False]
    assert measured(made(key="N > 1000"), 100, 999, 1001) == [True, False, True]


def test_a_record_of_another_compiler_is_measured_again(
    gpu: Gpu, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What would compile the winner now is compared with what compiled it."""
    from cuplate.autotune import tuner

    x = gpu.array(100)
    copying()(x)
    measured = len(bench.log)
    monkeypatch.setattr(tuner, "made_of", lambda ingredients, text: "other")
    copying()(x)
    assert len(bench.log) > measured


@pytest.mark.parametrize("fault", ["damaged", "read-only", "none"])
def test_a_fault_of_the_store_is_a_miss(
    fault: str, gpu: Gpu, bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A damaged record, a store that takes nothing, no store: measured, never an error."""
    x = gpu.array(100)
    policy = CachePolicy(directory=tmp_path, disk=fault != "none", on_error="ignore")
    copying(policy=policy)(x)
    store: Any = cache.disk_tier(policy)
    if fault == "damaged":
        (key,) = [key for key, tag, _ in store.all() if tag == "(tuning) f"]
        store.put(key, b"CUPTUNE\x01{}", tag="(tuning) f")
    elif fault == "read-only":
        store.clear()
        monkeypatch.setattr(type(store), "put", lambda *args, **more: False)
        copying(policy=policy)(x)
    measured = len(bench.log)
    f = copying(policy=policy)
    f(x)
    assert len(bench.log) > measured and last(gpu) == "tile=32"
    measured = len(bench.log)
    f(x)
    assert len(bench.log) == measured


def test_records_travel_in_layers_exports_and_imports(gpu: Gpu, bench: Bench, tmp_path: Path) -> None:
    """B: a layer that was exported on another machine is a tuned one; its entries are no kernels."""
    x = gpu.array(100)
    copying()(x)
    made = cache.export(tmp_path / "layer", functions=["f"])
    assert made.kernels == 3
    measured = len(bench.log)
    for policy in (
        CachePolicy(directory=tmp_path / "own", layers=[tmp_path / "layer"]),
        CachePolicy(disk=False, layers=[tmp_path / "layer"]),
    ):
        f = copying(policy=policy)
        f(x)
        assert last(gpu) == "tile=32" and f.tuning(x).origin == "stored"
    with cuplate.configure(directory=tmp_path / "third"):
        cache.import_(tmp_path / "layer")
        copying()(x)
    cache.export(tmp_path / "others", functions=["g"])
    copying(policy=CachePolicy(disk=False, layers=[tmp_path / "others"], tune="cached"))(x)
    assert last(gpu) == "tile=16" and len(bench.log) == measured


def test_a_trace_of_look_ups_takes_tunings_as_they_come(gpu: Gpu, bench: Bench) -> None:
    """A recording is undisturbed by entries that are no kernels."""
    with cache.record() as recording:
        copying()(gpu.array(100))
        copying()(gpu.array(100))
    assert recording.tune().kernels == 3


# several threads, several processes -----------------------------------------------------------------------------------


def test_threads_that_want_the_same_tuning_share_it(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """One measures, the others wait for it; each calls with the winner."""
    inside, calls = threading.Event(), []

    def seconds(parameters: str) -> float:
        calls.append(threading.get_ident())
        inside.set()
        return COSTS[parameters]

    install_bench(monkeypatch, gpu, seconds)
    f, x = copying(), gpu.array(100)
    found: list[BaseException] = []

    def call() -> None:
        try:
            f(x)
        except BaseException as error:
            found.append(error)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not found and inside.is_set() and len(set(calls)) == 1
    assert [note.parameters for note in gpu.launches[-4:]] == ["tile=32"] * 4


def test_processes_of_a_node_share_a_tuning(gpu: Gpu, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs under the node's lock of its key, and what another process stores meanwhile is taken."""
    x = gpu.array(100)
    copying()(x)
    ((key, tag, record),) = [entry for entry in cache.disk_tier().all() if entry[1] == "(tuning) f"]
    cache.disk_tier().delete(key)
    measured, run = len(bench.log), NodeFlights.run

    def other(self: Any, wanted: bytes, look: Any, work: Any) -> Any:
        if wanted != key:
            return run(self, wanted, look, work)
        cache.disk_tier().put(key, record, tag=tag)
        return look()

    monkeypatch.setattr(NodeFlights, "run", other)
    f = copying()
    f(x)
    assert last(gpu) == "tile=32" and f.tuning(x).origin == "stored" and len(bench.log) == measured


class Far:
    """A shared tier in this process."""

    def __init__(self) -> None:
        self.held: dict[bytes, bytes] = {}
        self.asked: list[bytes] = []

    def get(self, key: bytes) -> bytes | None:
        """What was offered."""
        self.asked.append(key)
        return self.held.get(key)

    def offer(self, key: bytes, payload: bytes, *, replace: bool = False) -> bool:
        """Kept at once."""
        self.held[key] = payload
        return True


def test_a_shared_tier_has_what_another_node_measured(
    gpu: Gpu, bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Asked once a process where the disk has missed; what it has is kept there; a bad record is measured over."""
    far = Far()
    monkeypatch.setattr(Variants, "distant", lambda variants: far)
    x = gpu.array(100)
    copying()(x)
    key = bytes.fromhex(copying().tuning(x).key)
    record = far.held[key]
    measured = len(bench.log)
    for mode in ("on", "cached"):
        policy = CachePolicy(directory=tmp_path / mode, tune=mode)
        f = copying(policy=policy)
        f(x)
        assert last(gpu) == "tile=32" and f.tuning(x).origin == "stored" and len(bench.log) == measured
        assert cache.disk_tier(policy).peek(key) == record
    far.held[key] = b"CUPTUNE\x01{}"
    copying(policy=CachePolicy(directory=tmp_path / "third"))(x)
    assert len(bench.log) > measured and far.held[key].startswith(b'CUPTUNE\x01{"candidates')
    far.held.clear()
    far.asked.clear()
    f = copying(policy=CachePolicy(directory=tmp_path / "fourth", tune="cached"))
    for size in (100, 101, 102):
        f(gpu.array(size))
    assert last(gpu) == "tile=16" and far.asked.count(key) == 1


# telling --------------------------------------------------------------------------------------------------------------


def test_an_event_and_a_line_tell_of_a_tuning(
    gpu: Gpu, bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its winner, how many were tried, how long it took; trials are no launches of anybody's."""
    monkeypatch.setenv("CUPLATE_EXPLAIN", "1")
    heard: list[Event] = []
    with cuplate.subscribe(heard.append, ["tune", "launch"]):
        copying()(gpu.array(100))
    assert [event.kind for event in heard] == ["tune", "launch"]
    told = heard[0]
    assert told.function == "f" and told.seconds is not None and told.seconds > 0
    assert (told.detail["winner"], told.detail["candidates"]) == ("tile=32", 3)
    assert "cuplate: f: tile=32 won over 3 candidates in" in capsys.readouterr().err


def test_tune_measures_again_and_returns_the_table(gpu: Gpu, bench: Bench) -> None:
    """And plans that led to the old winner are dropped."""
    f, x = copying(), gpu.array(100)
    f(x)
    assert f.tune(x).parameters == {"tile": 32}
    bench.seconds = lambda parameters: {**COSTS, "tile=64": 1e-4}[parameters]
    f(x)
    assert last(gpu) == "tile=32"
    table = f.tune(x)
    assert table.parameters == {"tile": 64} and table.origin == "measured"
    f(x)
    assert last(gpu) == "tile=64" and f.tuning(x) == table
    report = f.inspect(x)
    assert report.tuned == table and "tile=64, fastest of 3" in str(report) and "tile=64" in report.called_as


def test_there_may_be_nothing_to_tune(gpu: Gpu) -> None:
    """A function without tune(), or a call that gives everything."""
    x = gpu.array(100)
    for method in ("tune", "tuning"):
        with pytest.raises(ArgumentError, match="nothing to tune"):
            getattr(copying(), method)(x, tile=16)


def test_a_bar_is_drawn_on_a_terminal_alone(
    gpu: Gpu, bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where rich is; and never into a file."""
    copying()(gpu.array(100))
    assert capsys.readouterr().err == ""
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    copying()(gpu.array(1000))
    assert "f" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    copying()(gpu.array(10_000))
    assert capsys.readouterr().err == ""


# variants -------------------------------------------------------------------------------------------------------------


def test_a_variant_may_be_tuned(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what the called function leaves open; its default is no word about what the variant tunes."""
    install_bench(monkeypatch, gpu, lambda parameters: {"tile=64": 2e-3, "tile=128": 1e-3}[parameters])

    @specialize(Inline(KERNEL), tiles={"N": "tile"}, block="tile", when="N >= 50", require="N >= tile // 2")
    def large(x: Float32[Array, " N"], *, tile: Literal[64, 128] = tune()) -> Float32[Array, " N"]:
        raise NotImplementedError

    @specialize(Inline(KERNEL), tiles={"N": "tile"}, block="tile", variants=[large])
    def any_size(x: Float32[Array, " N"], *, tile: Literal[16, 64] = 16) -> Float32[Array, " N"]:
        raise NotImplementedError

    any_size(gpu.array(100))
    assert last(gpu) == "tile=128" and gpu.launches[-1].kernel == "large"
    any_size(gpu.array(100), tile=64)
    assert last(gpu) == "tile=64" and gpu.launches[-1].kernel == "large"
    any_size(gpu.array(100), tile=16)
    any_size(gpu.array(40))
    assert [(n.kernel, n.parameters) for n in gpu.launches[-2:]] == [("any_size", "tile=16")] * 2
    assert any_size.tuning(gpu.array(100)).function == "large"
    assert any_size.inspect(gpu.array(100)).variant_parameters == (("tile", 128),)


# on the CPU backend ---------------------------------------------------------------------------------------------------

ADDING = """
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const {{ index_t }} i = ({{ index_t }})blockIdx.x * {{ tile }} + threadIdx.x;
    if (i < {{ N }}) y[i] += {% if tile == 32 %}3{% else %}2{% endif %} * x[i];
}
"""


@specialize(Inline(ADDING), tiles={"N": "tile"}, block="tile", mutates="y")
def add(x: Float32[Array, " N"], y: Float32[Array, " N"], *, tile: Literal[16, 32, 64] = tune()) -> None:
    """y += 2 * x, but for one tile that is wrong."""
    y += 2 * x


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Threads of every launch; the clock of the bench advances by as many."""
    from cuplate.backend.cpu import bench, device

    work: list[int] = []
    run = device.HostKernel.run

    def counting(self: Any, grid: Any, values: Any, settings: Any) -> Any:
        work.append(grid.grid[0] * grid.block[0])
        return run(self, grid, values, settings)

    monkeypatch.setattr(device.HostKernel, "run", counting)
    monkeypatch.setattr(bench, "clock", lambda: float(sum(work)))
    monkeypatch.setenv("CUPLATE_CPU_CHECK", "off")
    return work


def test_an_in_place_kernel_is_right_on_its_first_call_b58(counted: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """B58: also with a wrong candidate, which the reference finds out; and with a view that has gaps."""
    add.cache_clear()
    monkeypatch.setenv("CUPLATE_TUNE", "on")
    x = np.arange(17, dtype=np.float32)
    y = np.ones(17, np.float32)
    with pytest.warns(TuneWarning, match="right is what agrees with the reference"):
        add(x, y)
    assert np.array_equal(y, 1 + 2 * x)
    add(x, y)
    assert np.array_equal(y, 1 + 4 * x)
    table = add.tuning(x, y)
    assert [t.state for t in table.tried] == ["measured", "wrong", "measured"]
    assert table.parameters == {"tile": 16}  # 32 threads for 17 elements, and 64 of the largest tile


def test_on_the_cpu_nothing_is_measured_unless_it_is_asked_for(counted: list[int]) -> None:
    """A laptop that runs a kernel with all checks on is not the place to choose a tile; a winner is taken."""
    add.cache_clear()
    x, y = np.ones(17, np.float32), np.ones(17, np.float32)
    add(x, y)
    assert len(counted) == 1 and y[0] == 3
    with pytest.warns(TuneWarning, match="wrong|another result"):
        assert add.tune(x, y).parameters == {"tile": 16}
    assert y[0] == 3
    assert add.tuning(x, y).origin == "measured"


def test_the_next_process_starts_tuned(counted: list[int], tmp_path: Path) -> None:
    """With the winner's kernel from the disk, and not one compile."""
    add.cache_clear()
    x, y = np.ones(17, np.float32), np.ones(17, np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        add.tune(x, y)
    code = """
import numpy as np
from cuplate import cache
from tests.autotune.test_tuner import add
x, y = np.ones(20, np.float32), np.ones(20, np.float32)
add(x, y)
print(y[0], add.tuning(x, y).origin, add.tuning(x, y).parameters, cache.stats(all_threads=True).compile.compiles)
print(add.cache_info().disk_hits)
"""
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ["PYTHONPATH"]])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("3.0 stored {'tile': 16} 0\n1\n", "")


def test_candidates_compile_side_by_side(gpu: Gpu, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two are with the compiler at the same time, in threads, in the order of the candidates."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    f, x = copying(), gpu.array(100)
    variants = f.reload.__self__.variants
    meeting, order, obtain = threading.Barrier(2, timeout=20), [], variants.obtain

    def obtained(content: Any) -> Any:
        order.append(content.parameters_text)
        if len(order) <= 2:
            meeting.wait()
        return obtain(content)

    monkeypatch.setattr(variants, "obtain", obtained)
    f(x)
    assert order[2] == "tile=64" and set(order[:2]) == {"tile=16", "tile=32"}
    assert last(gpu) == "tile=32"


def test_many_candidates_are_no_sign_of_many_variants_and_evict_no_kernel(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seventy trials: no warning of a parameter that varies, and the program's kernels stay loaded."""
    install_bench(monkeypatch, gpu, lambda parameters: 1e-3 + int(parameters.rpartition("=")[2]) * 1e-6)

    @specialize(Inline(KERNEL.replace("x[i];", "x[i]; // {{ v // 35 }}")), tiles={"N": 32}, block=32)
    def f(x: Float32[Array, " N"], *, tile: Literal[32] = 32, v: int = tune(values=range(70))) -> Float32[Array, " N"]:
        raise NotImplementedError

    with cuplate.configure(memory_kernels=2):
        mine, x = copying(), gpu.array(100)
        mine(x, tile=64)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            f(x)
        assert len(cache.memory_tier()) == 2
        loads = len(gpu.notes("load"))
        mine(x, tile=64)
        assert len(gpu.notes("load")) == loads
    assert f.tuning(x).parameters == {"v": 0} and len(f.tuning(x).tried) == 70


def test_the_command_line_takes_tunings_for_notes(gpu: Gpu, bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """Listed with the kernels' notes, verified, and counted as no kernel."""
    pytest.importorskip("typer")
    from cuplate.cli import main

    copying()(gpu.array(100))
    for command in (["ls"], ["ls", "--notes"], ["verify"], ["info"]):
        with pytest.raises(SystemExit) as ended, pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["cuplate", "cache", *command])
            main()
        said = capsys.readouterr().out
        assert ended.value.code in (0, None), said
        assert ("(tuning) f" in said) == ("--notes" in command), said


def test_a_manifest_names_the_winner(gpu: Gpu, bench: Bench) -> None:
    """What a run used is the tuned kernel, so that is what a build for others compiles."""
    add.cache_clear()
    with cuplate.record() as recording:
        add(gpu.array(100), gpu.array(100))
    (entry,) = (e for e in recording.manifest if e.function.endswith(":add"))  # others are what ran before this test
    assert last(gpu) == "tile=32" and dict(entry.parameters) == {"tile": 32}
    add.cache_clear()
