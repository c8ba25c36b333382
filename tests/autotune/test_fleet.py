"""A tuning on the workers of an executor: threads, processes, a Dask cluster; lost workers, and different ones."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from jaxtyping import Float32

from cuplate import ArgumentError, Array, CachePolicy, Inline, TuneError, cache, specialize, tune
from tests.doubles import Bench, Gpu, install, install_bench

KERNEL = """
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const {{ index_t }} i = ({{ index_t }})blockIdx.x * {{ tile }} + threadIdx.x;
    if (i < {{ N }}) out[i] = x[i] {% if bias %}+ bias[i]{% endif %};
}
"""
SECONDS = {"tile=16": 3e-3, "tile=32": 1e-3, "tile=64": 2e-3, "tile=128": 9e-3}


@specialize(Inline(KERNEL), tiles={"N": "tile"}, block="tile")
def add(
    x: Float32[Array, " N"],
    bias: Float32[Array, " N"] | None = None,
    *,
    tile: Literal[16, 32, 64, 128] = tune(),
) -> Float32[Array, " N"]:
    """X + bias."""
    return x if bias is None else x + bias


class Stream:
    """By its pointer."""

    ptr = 7


class AtOnce(Executor):
    """Runs what is submitted at once, here; and notes it."""

    def __init__(self, fail: Any = lambda number, attempt: None) -> None:
        self.fail = fail
        self.tasks: list[tuple[Any, ...]] = []

    def submit(self, task: Any, /, *args: Any, **more: Any) -> Future[Any]:
        """A future that is done."""
        future: Future[Any] = Future()
        number, attempt = args[-1], sum(known[-1] == args[-1] for known in self.tasks)
        self.tasks.append(args)
        error = self.fail(number, attempt)
        try:
            future.set_result(task(*args, **more)) if error is None else future.set_exception(error)
        except Exception as raised:
            future.set_exception(raised)
        return future


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the kernels, so that not every test compiles them."""
    directory = tmp_path_factory.mktemp("compiled")
    f = specialize(Inline(KERNEL), tiles={"N": "tile"}, block="tile", policy=CachePolicy(directory=directory))(
        add.reference
    )
    for tile in (16, 32, 64, 128):
        f.compile("float32", "float32", arch="sm_90", tile=tile)
    return directory


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, compiled: Path) -> Iterator[Gpu]:
    """Two recording GPUs."""
    monkeypatch.setenv("CUPLATE_LAYERS", str(compiled))
    yield install(monkeypatch, devices=2)
    add.cache_clear()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, gpu: Gpu) -> Bench:
    """Times that a test knows."""
    return install_bench(monkeypatch, gpu, lambda parameters: SECONDS[parameters])


def test_each_worker_takes_a_set_and_a_device_and_the_best_of_each_meet_here(gpu: Gpu, bench: Bench) -> None:
    """Sets by turns, devices by number; what a worker measured stays in the table, and the winner is kept."""
    x = gpu.array(100)
    executor = AtOnce()
    table = add.tune(x, gpu.array(100), executor=executor, sets=2)
    assert [task[2] for task in executor.tasks] == [(0, 2), (1, 3)]
    assert [(note[0], *note[2:]) for note in bench.log if note[0] == "write"] == [("write", 400, 0)] * 2 + [
        ("write", 400, 1)
    ] * 2
    assert table.parameters == {"tile": 32} and [t.state for t in table.tried] == ["measured"] * 3 + ["slow"]
    add(x, x)
    assert gpu.launches[-1].parameters == "tile=32" and add.tuning(x, x).origin == "measured"


def test_real_threads_measure_by_turns(gpu: Gpu, bench: Bench) -> None:
    """An executor of the standard library says how many workers it has."""
    with ThreadPoolExecutor(4) as executor:
        table = add.tune(gpu.array(100), executor=executor)
    assert len(table.tried) == 4 and table.parameters["tile"] in (16, 32, 64, 128)


def test_a_lost_worker_is_asked_again_and_then_done_without(gpu: Gpu, bench: Bench) -> None:
    """Its candidates are told as not measured; the others decide."""
    lost = AtOnce(lambda number, attempt: RuntimeError("killed") if number == 1 and attempt == 0 else None)
    assert add.tune(gpu.array(100), executor=lost, sets=2).parameters == {"tile": 32}
    assert [task[-1] for task in lost.tasks] == [0, 1, 1]
    gone = AtOnce(lambda number, attempt: RuntimeError("killed") if number == 1 else None)
    table = add.tune(gpu.array(100), executor=gone, sets=2)
    assert table.parameters == {"tile": 64} and table.tried[1].reason == "its worker was lost: killed"
    everybody = AtOnce(lambda number, attempt: RuntimeError("killed"))
    with pytest.raises(TuneError, match="no worker of the executor has answered") as caught:
        add.tune(gpu.array(100), executor=everybody, sets=2)
    assert caught.value.given == "RuntimeError: killed" and len(everybody.tasks) == 4


def test_times_of_another_device_tell_nothing(gpu: Gpu, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are set aside, and what is left is measured here."""
    settler = add.reload.__self__.settler()  # type: ignore[attr-defined]
    part = settler.part
    monkeypatch.setattr(settler, "part", lambda *task: replace(part(*task), device="another GPU"))
    table = add.tune(gpu.array(100), executor=AtOnce(), sets=2)
    assert table.parameters == {"tile": 32} and [t.state for t in table.tried] == ["measured"] * 3 + ["slow"]
    assert "another" not in table.device


def test_a_worker_of_another_version_is_an_error(gpu: Gpu, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its candidates are not the caller's."""
    settler = add.reload.__self__.settler()  # type: ignore[attr-defined]
    part = settler.part
    monkeypatch.setattr(settler, "part", lambda given, places, texts: part(given, places, texts[:-1]))
    with pytest.raises(TuneError, match="another version"):
        add.tune(gpu.array(100), executor=AtOnce(), sets=2)


def test_what_cannot_travel_is_refused(gpu: Gpu, bench: Bench) -> None:
    """With what to do instead."""
    x = gpu.array(100)
    with pytest.raises(ArgumentError, match="executor= is none"):
        add.tune(x, executor="dask")
    with pytest.raises(ArgumentError, match=r"stream= cannot travel"):
        add.tune(x, stream=Stream(), executor=AtOnce())
    from cuplate.autotune import fleet

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet, "_MOST_BYTES", 100)
        with pytest.raises(ArgumentError, match="400 bytes, and travel once for each set"):
            add.tune(x, executor=AtOnce())


def host_arrays() -> tuple[Any, Any]:
    """For the CPU backend."""
    return np.arange(20, dtype=np.float32), np.ones(20, np.float32)


def test_processes_compile_and_measure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A pool of fresh ones, which import the function by its name; nothing of the caller's is changed."""
    monkeypatch.setenv("CUPLATE_CPU_CHECK", "off")
    add.cache_clear()
    x, bias = host_arrays()
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as executor:
        table = add.tune(x, bias, executor=executor)
    assert {t.state for t in table.tried} <= {"measured", "slow"} and len(table.tried) == 4
    before = cache.stats(all_threads=True).compile.compiles
    assert np.array_equal(add(x, bias), x + 1) and add.tuning(x, bias).origin == "measured"
    assert cache.stats(all_threads=True).compile.compiles == before


def test_a_dask_cluster_compiles_and_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the executor that its client gives."""
    distributed = pytest.importorskip("distributed")
    monkeypatch.setenv("CUPLATE_CPU_CHECK", "off")
    add.cache_clear()
    x, bias = host_arrays()
    cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0")
    with cluster, distributed.Client(cluster) as client:
        table = add.tune(x, bias, executor=client.get_executor(), sets=2)
    assert {t.state for t in table.tried} <= {"measured", "slow"} and len(table.tried) == 4
    assert np.array_equal(add(x, bias), x + 1)


def test_layouts_that_have_no_gaps_travel(gpu: Gpu, bench: Bench) -> None:
    """An array by columns arrives as one; one with gaps does not."""
    from cuplate.autotune import fleet

    @specialize(
        Inline('extern "C" __global__ void {{ kernel }}({{ args }}) { /* {{ x.order }} {{ t }} {{ x.stride(0) }} */ }'),
        tiles={"M": 1},
        mutates="x",
    )
    def f(x: Float32[Array, "M N"], *, t: Literal[16, 32] = tune()) -> None:
        raise NotImplementedError

    bench.seconds = lambda parameters: 1e-3
    executor = AtOnce()
    f.tune(gpu.hold(np.zeros((8, 4), np.float32).T), executor=executor, sets=1)
    sent = executor.tasks[0][1]["x"]
    assert isinstance(sent, fleet._Array) and (sent.shape, sent.transposed, len(sent.data)) == ((4, 8), True, 128)
    arrived = sent.unpack(0)
    assert arrived.shape == (4, 8) and arrived.strides == (4, 16)
    with pytest.raises(ArgumentError, match="has gaps"):
        f.tune(gpu.hold(np.zeros((8, 8), np.float32)[:, :4]), executor=executor)
