"""The register-blocked float32 product on a GPU: against float64 over poisoned memory, and when it is chosen."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np
import pytest

from cuplate.events import Event
from cuplate.kernels import (
    matmul_epilogue,
    matmul_simt,
    matmul_simt_balanced,
    matmul_simt_medium,
    matmul_simt_ragged,
    matmul_simt_ragged_medium,
    matmul_simt_ragged_small,
    matmul_simt_ragged_split,
    matmul_simt_ragged_split_small,
    matmul_simt_small,
    matmul_simt_split,
    matmul_simt_split_small,
)

# Both sides of a tile's edges, fewer rows than a warp has, K below and above the ring, K of 0.
SHAPES = [
    (1, 1, 1), (1, 8, 8), (128, 8, 256), (129, 9, 260), (127, 7, 252), (256, 256, 256), (200, 136, 264), (37, 29, 53),
    (1000, 300, 500), (129, 72, 520), (640, 129, 3000), (2049, 1056, 1032), (300, 0, 300), (5, 31, 4), (4, 33, 1000),
]  # fmt: skip
WHOLE = (matmul_simt, matmul_simt_medium, matmul_simt_small, matmul_simt_split, matmul_simt_split_small)
RAGGED = (
    matmul_simt_ragged,
    matmul_simt_ragged_medium,
    matmul_simt_ragged_small,
    matmul_simt_ragged_split,
    matmul_simt_ragged_split_small,
)
SPLITS = {  # rows and columns of a tile, and the blocks that K is divided among
    matmul_simt_split: (64, 128, 396),
    matmul_simt_split_small: (32, 32, 264),
    matmul_simt_ragged_split: (64, 64, 396),
    matmul_simt_ragged_split_small: (32, 32, 264),
}
GUARD = 77.0
Product = tuple[Any, Any, Any]


def inputs(m: int, k: int, n: int, *, order: str = "C", offset: int = 0, seed: int = 0) -> Product:
    """Random normal data, each array `offset` elements into its memory, among values that would be noticed."""
    rng = np.random.default_rng(seed)
    arrays = []
    for shape in ((m, k), (k, n), (n,)):
        memory = cupy.full(int(np.prod(shape)) + 2 * 64, cupy.nan, cupy.float32)
        array = memory[offset : offset + int(np.prod(shape))]
        if len(shape) == 2 and order == "F" and len(arrays) == 1:
            array = array.reshape(shape[::-1]).T
        else:
            array = array.reshape(shape)
        array[...] = cupy.asarray(rng.standard_normal(shape, dtype=np.float32))
        arrays.append(array)
    return tuple(arrays)  # type: ignore[return-value]


def poisoned(m: int, n: int, offset: int = 0) -> tuple[Any, Any]:
    """An output full of NaN, and the memory around it full of `GUARD`."""
    memory = cupy.full(m * n + 2 * 64, GUARD, cupy.float32)
    out = memory[offset : offset + m * n].reshape(m, n)
    out[...] = cupy.nan
    return out, memory


def assert_right(got: Any, a: Any, b: Any, bias: Any, *, relu: bool) -> None:
    """Within the bound of a sum in order of k in float32, which TF32 misses by orders of magnitude."""
    a, b, bias = (x.astype(cupy.float64) for x in (a, b, bias))
    wanted = a @ b + bias if a.shape[1] else cupy.broadcast_to(bias, got.shape)
    wanted = cupy.maximum(wanted, 0) if relu else wanted
    sizes = cupy.abs(a) @ cupy.abs(b) if a.shape[1] else 0
    bound = (a.shape[1] + 2) * 2.0**-24 * (sizes + cupy.abs(bias)) + 1e-30
    assert bool((cupy.abs(got - wanted) <= bound).all())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("relu", [False, True])
def test_any_shape_is_right(shape: tuple[int, int, int], relu: bool) -> None:
    """Every function where it can run, both orders of `b`; nothing beside the output is written."""
    m, _, n = shape
    for function, order in [(f, o) for f in RAGGED for o in "CF"] + [(f, "C") for f in WHOLE if n % 4 == 0]:
        if relu and function not in (matmul_simt, matmul_simt_ragged):
            continue  # the epilogue is one text
        a, b, bias = inputs(*shape, order=order, seed=m + n)
        out, memory = poisoned(m, n)
        assert function(a, b, bias, relu=relu, out=out) is out
        assert_right(out, a, b, bias, relu=relu)
        assert bool((memory[m * n :] == GUARD).all())


@pytest.mark.parametrize(
    ("shape", "parts"),
    [((128, 5000, 128), 78), ((300, 700, 500), 9), ((70, 129, 260), 2), ((33, 65, 36), 1), ((1000, 70, 2000), 1)],
    ids=str,
)
def test_k_divided_among_blocks_is_right(shape: tuple[int, int, int], parts: int) -> None:
    """Many parts, some, two, one for want of K, one since the tiles suffice; the same bits each time."""
    m, k, n = shape
    for function, (tile_m, tile_n, split) in SPLITS.items():
        a, b, bias = inputs(*shape, order="F" if function in RAGGED else "C")
        out, memory = poisoned(m, n)
        tiles = -(-m // tile_m) * -(-n // tile_n)
        blocks = function.inspect(a, b, bias, relu=True).grid.grid[0]
        assert blocks == tiles * max(1, min(k // 64, split // tiles))
        if function is matmul_simt_ragged_split:
            assert blocks == tiles * parts
        function(a, b, bias, relu=True, out=out)
        assert_right(out, a, b, bias, relu=True)
        assert bool((memory[out.size :] == GUARD).all())
        first = out.copy()
        for _ in range(20):
            out[...] = cupy.nan
            function(a, b, bias, relu=True, out=out)
            assert bool((out == first).all())


@pytest.mark.parametrize(
    ("shape", "divided"),
    [
        ((300, 700, 500), 12),
        ((128, 5000, 256), 19),
        ((1500, 1030, 4100), 132),
        ((2500, 520, 3000), 132),
        ((129, 300, 260), 0),
    ],
    ids=str,
)
def test_tiles_that_are_divided_among_blocks_are_right(shape: tuple[int, int, int], divided: int) -> None:
    """Parts of a tile, a part of two tiles, whole waves before them, too little to divide; the same bits each time."""
    a, b, bias = inputs(*shape)
    out, memory = poisoned(shape[0], shape[2])
    grid = matmul_simt_balanced.inspect(a, b, bias, relu=True).grid.grid[0]
    tiles = -(-shape[0] // 128) * -(-shape[2] // 256)
    assert grid == (tiles // 132 * 132 + divided if divided > tiles % 132 else tiles)
    matmul_simt_balanced(a, b, bias, relu=True, out=out)
    assert_right(out, a, b, bias, relu=True)
    assert bool((memory[out.size :] == GUARD).all())
    first = out.copy()
    for _ in range(30):
        out[...] = cupy.nan
        matmul_simt_balanced(a, b, bias, relu=True, out=out)
        assert bool((out == first).all())


@pytest.mark.parametrize("offset", [1, 2, 3, 4])
def test_arrays_may_begin_anywhere(offset: int) -> None:
    """Views that begin 4, 8 and 12 bytes into their memory take the copies of one element, and narrow stores."""
    a, b, bias = inputs(300, 70, 512, offset=offset)
    out, memory = poisoned(300, 512, offset)
    report = matmul_epilogue.inspect(a, b, bias)
    assert report.variant == ("matmul_simt_small" if offset == 4 else "matmul_simt_ragged_small")
    matmul_simt_ragged(a, b, bias, out=out)
    assert_right(out, a, b, bias, relu=False)
    assert bool((memory[:offset] == GUARD).all()) and bool((memory[offset + 300 * 512 :] == GUARD).all())
    b_aligned, out = inputs(300, 70, 512)[1], poisoned(300, 512)[0]
    matmul_simt(a, b_aligned, bias, relu=True, out=out)  # only `b` and `out` must be aligned
    assert_right(out, a, b_aligned, bias, relu=True)


@pytest.mark.parametrize(
    "parameters",
    [
        {"tile_m": 64, "tile_n": 128, "warp_m": 32, "warp_n": 64},
        {"tile_n": 128},
        {"stages": 2},
        {"stages": 5, "group_m": 4},
        {"tile_m": 64, "warp_m": 32, "warp_n": 32, "stages": 3},
        {"tile_k": 16, "stages": 2},
    ],
    ids=str,
)
def test_other_tiles_are_right(parameters: dict[str, Any]) -> None:
    """Every parameter can be set, also so that one copy pass moves several rows of `b`."""
    for function in (matmul_simt, matmul_simt_ragged):
        a, b, bias = inputs(333, 111, 404)
        out, _ = poisoned(333, 404)
        function(a, b, bias, relu=True, out=out, **parameters)
        assert_right(out, a, b, bias, relu=True)


def test_it_repeats_to_the_bit() -> None:
    """The ring is waited for: the same inputs give the same bits every time."""
    for function, order in [(f, "C") for f in WHOLE] + [(f, "F") for f in RAGGED]:
        a, b, bias = inputs(1000, 517, 1100, order=order)
        first = function(a, b, bias)
        for _ in range(60):
            out, _ = poisoned(1000, 1100)
            function(a, b, bias, out=out)
            assert bool((out == first).all())


def test_indices_pass_32_bits(device_memory: Any) -> None:
    """Arrays of more than 2**31 bytes, and an output of more than 2**31 elements' bytes: the far corners are right."""
    for m, k, n in ((150_001, 17, 4096), (264, 2_100_000, 260), (256, 2_100_001, 264)):
        a = cupy.random.default_rng(1).standard_normal((m, k), dtype=cupy.float32)
        b = cupy.random.default_rng(2).standard_normal((k, n), dtype=cupy.float32)
        bias = cupy.ones(n, cupy.float32)
        report = matmul_simt.inspect(a, b, bias)
        assert "using index_t = long long" in report.source
        out = matmul_simt(a, b, bias)
        for rows in (slice(0, 40), slice(m - 40, m)):
            assert_right(out[rows], a[rows], b, bias, relu=False)
        del a, b, out
        device_memory.free_all_blocks()


def test_matmul_epilogue_runs_it_where_it_pays(launches: list[Event]) -> None:
    """By shape, alignment and layout; a given tile, and products of a few elements, stay with the tiled kernel."""
    a, b, bias = inputs(1536, 64, 1536)
    narrow = inputs(1536, 64, 1535)
    columns = inputs(1536, 64, 1536, order="F")
    small = inputs(64, 64, 64)
    calls: list[tuple[Product, dict[str, Any], str]] = [
        ((a, b, bias), {}, "matmul_simt_medium"),
        ((a, b, bias), {"tile": 16}, "matmul_epilogue"),
        (narrow, {}, "matmul_simt_ragged_medium"),
        (columns, {}, "matmul_simt_ragged_medium"),
        (inputs(1536, 64, 1536, offset=1), {}, "matmul_simt_ragged_medium"),
        (inputs(256, 2048, 256), {}, "matmul_simt_split_small"),
        (small, {}, "matmul_epilogue"),
    ]
    for arrays, given, name in calls:
        launches.clear()
        for _ in range(2):  # cold, and from its plan
            assert_right(matmul_epilogue(*arrays, relu=True, **given), *arrays, relu=True)
        assert [event.detail["variant"] for event in launches] == [name] * 2
        assert matmul_epilogue.inspect(*arrays, relu=True, **given).variant == name


def test_the_hot_path_runs_what_was_chosen() -> None:
    """Warm calls are hits of one loaded kernel each, by turns, and nothing is compiled again."""
    a, b, bias = inputs(1536, 64, 1536)
    apart = inputs(1536, 64, 1536, offset=1)
    out, _ = poisoned(1536, 1536)
    for _ in range(2):
        for arrays in ((a, b, bias), apart):
            matmul_epilogue(*arrays, out=out)
            matmul_epilogue(*arrays, tile=16, out=out)
    before = matmul_epilogue.cache_info()
    for _ in range(5):
        for arrays in ((a, b, bias), apart):
            out[...] = cupy.nan
            matmul_epilogue(*arrays, out=out)
            assert_right(out, *arrays, relu=False)
            out[...] = cupy.nan
            matmul_epilogue(*arrays, tile=16, out=out)
            assert_right(out, *arrays, relu=False)
    after = matmul_epilogue.cache_info()
    assert after.hits - before.hits == 20 and after.compiles == before.compiles


def test_a_graph_captures_it_and_replays() -> None:
    """A warm call of a variant is captured like any other; new inputs give new outputs."""
    a, b, bias = inputs(1536, 64, 1536)
    out, _ = poisoned(1536, 1536)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        matmul_epilogue(a, b, bias, out=out)
        stream.synchronize()
        stream.begin_capture()
        matmul_epilogue(a, b, bias, out=out)
        graph = stream.end_capture()
    matmul_epilogue.cache_clear()
    a[...] *= -2
    out[...] = cupy.nan
    cupy.cuda.Device().synchronize()
    graph.launch(stream)
    stream.synchronize()
    assert_right(out, a, b, bias, relu=False)


def test_torch_tensors_take_it_too(torch: Any, launches: list[Event]) -> None:
    """A transposed torch tensor is column-major `b`: no copy, the variant that reads its order."""
    a, b = torch.randn(1536, 96, device="cuda"), torch.randn(1536, 96, device="cuda").T
    bias = torch.randn(1536, device="cuda")
    got = matmul_epilogue(a, b, bias, relu=True)
    assert launches[-1].detail["variant"] == "matmul_simt_ragged_medium"
    as_cupy = [cupy.asarray(x) for x in (got, a, b, bias)]
    assert_right(*as_cupy, relu=True)
