"""Tuning on a real GPU: results of first calls, winners that are found again, times by events, captures, libraries."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Literal

import cupy
import numpy as np
import pytest
from jaxtyping import Float32, Int32

import cuplate
from cuplate import Array, CachePolicy, Inline, TuneWarning, cache, f32, specialize, tune
from cuplate.events import Event

ROOT = Path(__file__).parents[2]

# The more of `waste`, the slower by construction: dependent loads of a chain that ends where it began.
SLOW = """
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const {{ index_t }} i = ({{ index_t }})blockIdx.x * {{ tile }} + threadIdx.x;
    if (i >= {{ N }}) return;
    {{ index_t }} at = i;
    for (int k = 0; k < {{ waste }}; ++k) at = next[at];
    y[i] += alpha * x[at];
}
"""


@specialize(Inline(SLOW), tiles={"N": "tile"}, block="tile", mutates="y")
def accumulate(
    alpha: f32,
    x: Float32[Array, " N"],
    next: Int32[Array, " N"],
    y: Float32[Array, " N"],
    *,
    tile: Literal[128, 256] = tune(),
    waste: Literal[256, 4, 64] = tune(),
) -> None:
    """y += alpha * x: each index leads to itself."""
    y += alpha * x


@specialize(Inline(SLOW.replace("y[i] += alpha * x[at]", "out[i] = alpha * x[at]")), tiles={"N": "tile"}, block="tile")
def scaled(
    alpha: f32,
    x: Float32[Array, " N"],
    next: Int32[Array, " N"],
    *,
    tile: Literal[2048, 128, 256] = tune(),
    waste: Literal[256, 4] = tune(),
) -> Float32[Array, " N"]:
    """Alpha * x."""
    return alpha * x


def arrays(n: int = 1 << 20) -> tuple[Any, Any, Any]:
    """x, next, y."""
    return cupy.arange(n, dtype=cupy.float32) % 97, cupy.arange(n, dtype=cupy.int32), cupy.ones(n, cupy.float32)


@pytest.fixture(autouse=True)
def untuned() -> None:
    """Nothing is known of earlier tests; the directory of each is its own."""
    accumulate.cache_clear()
    scaled.cache_clear()


def test_the_first_call_in_place_is_as_right_as_the_second_b58() -> None:
    """B58: alpha * x is added once a call, whatever was measured."""
    x, chain, y = arrays()
    for number in (1, 2, 3):
        accumulate(2.0, x, chain, y)
        assert bool((y == 1 + 2 * number * x).all())


def test_the_kernel_that_does_less_wins_and_every_row_has_its_time() -> None:
    """By events: 256 dependent loads take longer than 4."""
    x, chain, y = arrays()
    accumulate(2.0, x, chain, y)
    table = accumulate.tuning(2.0, x, chain, y)
    assert table.parameters["waste"] == 4 and table.origin == "measured"
    times = {t.parameters: t.median_s for t in table.tried}
    assert all(t.median_s and t.samples >= 2 for t in table.tried)
    for tile in (128, 256):
        assert times[("tile", tile), ("waste", 256)] > times[("tile", tile), ("waste", 4)]


def test_a_block_that_is_too_large_is_a_row_b60() -> None:
    """B60: skipped by name; the result is right."""
    x, chain, _ = arrays(1000)
    assert bool((scaled(3.0, x, chain) == 3 * x).all())
    states = {t.parameters: t.state for t in scaled.tuning(3.0, x, chain).tried}
    assert states[("tile", 2048), ("waste", 4)] == "launch error"
    assert states[("tile", 128), ("waste", 4)] == "measured"


def test_hot_calls_of_a_tuned_function_are_launches_alone(launches: list[Event]) -> None:
    """Trials are no launches of anybody's, and a warm call is one."""
    x, chain, y = arrays(4096)
    accumulate(2.0, x, chain, y)
    accumulate(2.0, x, chain, y)
    assert len(launches) == 2
    assert accumulate.cache_info().hits >= 1


def test_the_next_process_starts_tuned_and_compiles_nothing(tmp_path: Path) -> None:
    """From the same directory."""
    code = """
import cupy
from cuplate import cache
from tests.gpu.test_tune import arrays, scaled
x, chain, _ = arrays(5000)
assert bool((scaled(3.0, x, chain) == 3 * x).all())
table = scaled.tuning(3.0, x, chain)
print(table.origin, table.parameters["waste"], cache.stats(all_threads=True).compile.compiles)
"""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}", "CUPLATE_CACHE_DIR": str(tmp_path)}
    said = [
        subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert said[0].startswith("measured 4 ") and said[1] == "stored 4 0\n"


def test_a_capture_is_left_whole_and_nothing_is_measured_in_it() -> None:
    """The default, loaded before, is captured with a warning; a call outside measures."""
    x, chain, y = arrays(4096)
    accumulate(2.0, x, chain, y, tile=128, waste=256)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        with pytest.warns(TuneWarning, match="graph capture"):
            accumulate(2.0, x, chain, y)
        graph = stream.end_capture()
        graph.launch(stream)
    stream.synchronize()
    assert bool((y == 1 + 4 * x).all())
    assert accumulate.tuning(2.0, x, chain, y).origin == "default"
    accumulate(2.0, x, chain, y)
    assert accumulate.tuning(2.0, x, chain, y).origin == "measured" and bool((y == 1 + 6 * x).all())


def test_a_given_stream_and_views_are_tuned_on() -> None:
    """On a stream that is not current, with an output of the caller's that lies within a larger array."""
    x, chain, _ = arrays(4096)
    room = cupy.full(3 * 4096, -1, cupy.float32)
    out = room[4096 : 2 * 4096]
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    scaled(3.0, x, chain, out=out, stream=stream)
    stream.synchronize()
    assert bool((out == 3 * x).all()) and bool((room[:4096] == -1).all()) and bool((room[2 * 4096 :] == -1).all())


def test_torchs_tensors_are_tuned(torch: Any) -> None:
    """Memory for copies comes from torch's own allocator; a mutated tensor is right at once."""
    x, chain = torch.arange(4096, device="cuda").float() % 97, torch.arange(4096, device="cuda", dtype=torch.int32)
    y = torch.ones(4096, device="cuda")
    accumulate(2.0, x, chain, y)
    assert bool((y == 1 + 2 * x).all())
    assert accumulate.tuning(2.0, x, chain, y).parameters["waste"] == 4


def test_arrays_that_are_only_exported_are_tuned() -> None:
    """Their library makes no memory: the driver's own is used."""

    class Exported:
        def __init__(self, array: Any) -> None:
            self.array = array
            self.__cuda_array_interface__ = array.__cuda_array_interface__

    x, chain, y = arrays(4096)
    cupy.cuda.Device().synchronize()
    accumulate(2.0, Exported(x), Exported(chain), Exported(y))
    cupy.cuda.Device().synchronize()
    assert bool((y == 1 + 2 * x).all())


def test_a_wrong_candidate_is_found_by_the_reference() -> None:
    """It would be the fastest."""
    text = SLOW.replace(
        "y[i] += alpha * x[at];", "{% if waste == 4 %}y[i] = 0;{% else %}y[i] += alpha * x[at];{% endif %}"
    )
    f = specialize(Inline(text), tiles={"N": "tile"}, block="tile", mutates="y")(accumulate.reference)
    x, chain, y = arrays(5000)
    with pytest.warns(TuneWarning, match="right is what agrees with the reference"):
        f(2.0, x, chain, y)
    assert bool((y == 1 + 2 * x).all()) and f.tuning(2.0, x, chain, y).parameters["waste"] == 64


def test_a_small_memory_runs_the_default(device_memory: Any) -> None:
    """No copy fits: a warning, and a right result."""
    x, chain, y = arrays(1 << 24)
    device_memory.set_limit(size=device_memory.used_bytes() + (1 << 20))
    try:
        with pytest.warns(TuneWarning, match="not enough memory"):
            accumulate(2.0, x, chain, y)
    finally:
        device_memory.set_limit(size=0)
    assert bool((y == 1 + 2 * x).all())


def test_shipped_layers_start_tuned(tmp_path: Path) -> None:
    """An export carries the winner; without a writable directory the next process takes it."""
    x, chain, y = arrays(4096)
    accumulate(2.0, x, chain, y)
    cache.export(tmp_path, functions=["accumulate"])
    again = specialize(
        Inline(SLOW), tiles={"N": "tile"}, block="tile", mutates="y", policy=CachePolicy(disk=False, layers=[tmp_path])
    )(accumulate.reference)
    with cuplate.configure(tune="cached"):
        again(2.0, x, chain, y)
    assert again.tuning(2.0, x, chain, y).origin == "stored"


def test_processes_take_a_gpu_each_and_agree_on_a_winner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One candidate set a GPU, by number; with one GPU they measure by turns, which a file named by its UUID gives."""
    x, chain, _ = arrays(5000)
    assert tempfile.gettempdir() != str(tmp_path)  # is kept: only the workers see what is set now
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as executor:
        table = scaled.tune(3.0, x, chain, executor=executor)
    assert table.parameters["waste"] == 4
    assert len(list(tmp_path.glob("*.turn"))) == min(2, cupy.cuda.runtime.getDeviceCount())
    assert np.array_equal(cupy.asnumpy(scaled(3.0, x, chain)), cupy.asnumpy(3 * x))
