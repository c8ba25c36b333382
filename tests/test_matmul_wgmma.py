"""The wgmma product without a GPU: what its parts agree on, which tile is chosen, what is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cuplate import ArraySpec, LayoutError, ParameterError
from cuplate.grid import limits_for
from cuplate.kernels import (
    matmul_epilogue,
    matmul_wgmma,
    matmul_wgmma_flat,
    matmul_wgmma_small,
    matmul_wgmma_tuned,
    matmul_wgmma_wide,
)
from cuplate.plan import Plan, make_plan

SMS = 132  # of an H200
LIMIT_BYTES = 232_448  # shared memory of a block
TILES: list[tuple[Any, dict[str, Any]]] = [
    (matmul_wgmma, {}),
    (matmul_wgmma_wide, {"cluster": 2}),
    (matmul_wgmma_small, {}),
    (matmul_wgmma_flat, {}),
    (matmul_wgmma, {"tile_n": 256, "stages": 4, "cluster": 2, "schedule": "cooperative"}),
    (matmul_wgmma, {"tile_m": 256, "stages": 4, "schedule": "cooperative"}),
    (matmul_wgmma, {"tile_n": 64, "stages": 2, "cluster": 2}),
]
SHAPES = [(1, 8, 8), (4096, 4096, 4096), (2049, 1056, 1032)]


def arrays(
    m: int, k: int, n: int, order: str = "C", dtype: str = "bfloat16", *, more: bool = False
) -> tuple[ArraySpec, ...]:
    """The arrays of a product; `more`: a residual and both scales too."""
    b = ArraySpec((k, n), dtype, strides=(1, k) if order == "F" else None)
    given = (ArraySpec((m, k), dtype), b, ArraySpec((n,), dtype))
    return (*given, ArraySpec((m, n), dtype), ArraySpec((m,)), ArraySpec((n,))) if more else given


def planned(
    function: Any, given: dict[str, Any], shape: tuple[int, int, int], order: str = "C", *, more: bool = False
) -> tuple[Plan, str]:
    """The plan on a device of 132 multiprocessors, and the text."""
    inspection = function.inspect.__self__
    described = inspection._described(arrays(*shape, order, more=more), given, "sm_90")
    binding = described.chosen.variants.binding
    limits = replace(limits_for("sm_90"), sm_count=SMS)
    chosen = described.chosen
    plan = make_plan(binding, chosen.solved, chosen.parameters, arch="sm_90a", limits=limits, called_as="")
    return plan, described.content.source.text


def size(box: tuple[int, ...]) -> int:
    """Bytes of a box of 16-bit elements."""
    return int(np.prod(box)) * 2


@pytest.mark.parametrize("m", [1, 65, 4096])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("tile", TILES, ids=lambda t: f"{t[0].__name__}-{t[1]}")
def test_a_stage_waits_for_the_bytes_that_its_copies_bring(tile: Any, order: str, m: int) -> None:
    """One too many and the kernel hangs, one too few and it multiplies what has not come."""
    function, given = tile
    plan, text = planned(function, given, (m, 4096, 4096), order)
    parameters = dict(plan.specialization.parameters)
    cluster, tile_n, tile_m = parameters["cluster"], parameters["tile_n"], parameters["tile_m"]
    (b_bytes,) = map(int, re.findall(r"barrier_expect\(full \+ stage \* 8, box_bytes \+ (\d+)u\)", text))
    (rows,) = map(int, re.findall(r"box_bytes = min\(m_size, (\d+)\) \* 128u", text))
    expected = min(m, rows) * 128 + b_bytes
    assert rows == tile_m and plan.maps["a"].box == (min(m, tile_m), 64)
    b_box = plan.maps["b"].box
    pieces = tile_n // b_box[1] if order == "C" else tile_n // b_box[0]  # of all blocks of the cluster together
    assert expected == size(plan.maps["a"].box) + pieces * size(b_box)
    assert b_box == ((64, 64) if order == "C" else (tile_n // cluster, 64))
    a_ring, b_ring = (int(n) for n in re.findall(r"(?:a|b)_ring \+ stage \* (\d+)u", text)[:2])
    assert (a_ring, b_ring) == (tile_m * 128, tile_n * 128)


@pytest.mark.parametrize("tile", TILES, ids=lambda t: f"{t[0].__name__}-{t[1]}")
def test_shared_memory_ends_where_the_text_ends(tile: Any) -> None:
    """Rings, buffers, barriers, and rows of bias and scale for each group, by the offsets that are in the text."""
    function, given = tile
    for more in (False, True):
        stages = min(3, given.get("stages", 3))
        plan, text = planned(function, {**given, "stages": stages}, (4096, 4096, 4096), more=more)
        assert plan.grid is not None and plan.grid.shared_memory_bytes <= LIMIT_BYTES
        offset = sum(int(n) for n in re.findall(r"const unsigned (?:b_ring|buffer) = \w+ \+ (\d+)u", text))
        offset += int(re.search(r"full = buffer \+ (\d+)u", text)[1])  # type: ignore[index]
        assert offset % 8 == 0 and all(int(n) % 1024 == 0 for n in re.findall(r"ring \+ (\d+)u", text))  # of a swizzle
        end = stages * 16
        for name in ("own_bias", *(("own_scale", "came") if more else ())):
            start, each = map(int, re.search(rf"{name} = full \+ (\d+)u \+ group \* (\d+)u", text).groups())  # type: ignore[union-attr]
            assert start == end and (offset + start) % (8 if name == "came" else 16) == 0
            end = start + 2 * each
        assert plan.grid.shared_memory_bytes == offset + end
        assert ("came" in text) == more
        if more:  # the barriers that are made are those that are waited for, and each waits for one box
            barriers = re.search(r"i < (\d+); \+\+i\) barrier_init\(full \+ (\d+)u", text)
            assert barriers is not None and int(barriers[1]) * 8 == end - int(barriers[2]) == 32
            assert re.findall(r"barrier_expect\(barrier, (\d+)\)", text) == [str(size(plan.maps["residual"].box))]


@pytest.mark.parametrize("tile", TILES, ids=lambda t: f"{t[0].__name__}-{t[1]}")
def test_shared_memory_of_the_defaults_fits_with_everything(tile: Any) -> None:
    """Bias, residual and scales of the three functions need no smaller ring."""
    function, given = tile
    if given.get("tile_n", 0) <= 192 and "tile_m" not in given:
        plan, _ = planned(function, given, (4096, 4096, 4096), more=True)
        assert plan.grid is not None and plan.grid.shared_memory_bytes <= LIMIT_BYTES


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("tile", TILES, ids=lambda t: f"{t[0].__name__}-{t[1]}")
def test_every_tile_is_visited_once_by_the_fewest_clusters(tile: Any, shape: tuple[int, int, int]) -> None:
    """The walk of the text, in Python: all of the output, in no more rounds than a full device needs."""
    function, given = tile
    plan, text = planned(function, given, shape)
    p = dict(plan.specialization.parameters)
    assert plan.grid is not None
    blocks, cluster = plan.grid.grid[0], p["cluster"]
    assert blocks % cluster == 0 and blocks <= SMS
    assert (f"__cluster_dims__({cluster}, 1, 1)" in text) == (cluster > 1)
    tiles_m, tiles_n = -(-shape[0] // (p["tile_m"] * cluster)), -(-shape[2] // p["tile_n"])
    teams, tiles = blocks // cluster, tiles_m * tiles_n
    assert -(-tiles // teams) == -(-tiles // (SMS // cluster))
    seen = np.zeros((tiles_m, tiles_n), int)
    for team in range(teams):
        for tile_index in range(team, tiles, teams):
            in_group = p["group_m"] * tiles_n
            first = tile_index // in_group * p["group_m"]
            height, rest = min(tiles_m - first, p["group_m"]), tile_index % in_group
            seen[first + rest % height, rest // height] += 1
    assert (seen == 1).all()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("pingpong", [True, False])
@pytest.mark.parametrize(
    ("tiles", "steps", "stages"), [(1, 1, 2), (2, 1, 4), (5, 3, 4), (7, 9, 4), (4, 64, 6), (9, 5, 2)]
)
def test_the_ring_neither_stands_still_nor_runs_over(
    tiles: int, steps: int, stages: int, pingpong: bool, seed: int
) -> None:
    """Barriers by their parity, as the text waits for them: every group multiplies the step that it is at.

    A model of one block, whose three groups run in an order drawn at random.
    """
    full, empty, arrived = [0] * stages, [0] * stages, [0] * stages  # phases that are complete, arrivals in the next
    ring = [(-1, -1)] * stages  # what lies there
    turns = [0, 0]  # how often each group was let go on
    multiplied: list[tuple[int, int, int]] = []

    def complete(phases: list[int], stage: int, parity: int) -> bool:
        return phases[stage] & 1 != parity

    def release(stage: int) -> None:
        arrived[stage] += 1
        if arrived[stage] == (1 if pingpong else 2):
            arrived[stage] = 0
            empty[stage] += 1

    def produce() -> Iterator[None]:
        stage = parity = 0
        for tile in range(tiles):
            for step in range(steps):
                while not complete(empty, stage, parity ^ 1):
                    yield
                ring[stage] = (tile, step)
                full[stage] += 1
                yield
                stage, parity = (0, parity ^ 1) if stage + 1 == stages else (stage + 1, parity)

    def consume(group: int) -> Iterator[None]:
        stage = parity = 0
        for tile in range(tiles):
            if pingpong and tile % 2 != group:
                stage += steps
                parity ^= stage // stages & 1
                stage %= stages
                continue
            while pingpong and turns[group] < (tile + 1) // 2:
                yield
            before = -1
            for step in range(steps):
                while not complete(full, stage, parity):
                    yield
                assert ring[stage] == (tile, step)
                multiplied.append((group, tile, step))
                yield
                assert ring[stage] == (tile, step)  # nobody copies there while it is read
                if before >= 0:
                    release(before)
                before = stage
                stage, parity = (0, parity ^ 1) if stage + 1 == stages else (stage + 1, parity)
            if pingpong and tile + 1 < tiles:
                turns[group ^ 1] += 1
            yield
            release(before)

    rng = np.random.default_rng(seed)
    running = [produce(), consume(0), consume(1)]
    for _ in range(200 * tiles * steps + 1000):
        if running:
            chosen = running[rng.integers(len(running))]
            if next(chosen, "ended") == "ended":
                running.remove(chosen)
    assert not running, "it stands still"
    assert len(set(multiplied)) == len(multiplied) == tiles * steps * (1 if pingpong else 2)


def test_the_source_includes_nothing() -> None:
    """Header-free; one product of 64 x 128 x 16 for each part of a tile, by rows or by columns of `b`."""
    for order, transposed in (("C", 1), ("F", 0)):
        source = planned(matmul_wgmma, {"relu": True}, (4096, 4096, 4096), order)[1]
        assert "#include" not in source and "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16" in source
        assert f"p, 1, 1, 0, {transposed};" in source
    report = matmul_wgmma.inspect(*arrays(4096, 4096, 4096), arch="sm_90")
    assert report.arch == "sm_90a" and report.ptx.count("wgmma.mma_async") == 2 * 4


# chosen ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "order", "variant"),
    [
        ((8192, 8192, 8192), "C", "matmul_wgmma_wide"),
        ((8192, 512, 8192), "F", "matmul_wgmma_wide"),
        ((4096, 4096, 4096), "C", "matmul_wgmma"),  # 6 rounds of the wide tile for what fills 5.3
        ((2048, 2048, 2048), "C", "matmul_wgmma"),
        ((1024, 4096, 1024), "C", "matmul_wgmma_small"),
        ((2048, 768, 2304), "F", "matmul_wgmma_flat"),
        ((512, 512, 512), "C", "matmul_wgmma_single"),
        ((64, 4096, 4096), "F", "matmul_wgmma_split"),
        ((128, 11008, 4096), "C", "matmul_wgmma_split_tall"),
        ((256, 16384, 1024), "C", "matmul_wgmma_split_deep"),
        ((256, 16384, 1022), "C", "matmul_mma_ragged"),
        ((8192, 8192, 8190), "C", "matmul_mma_ragged"),  # rows of b that are no multiple of 16 bytes
        ((8192, 8190, 8192), "C", "matmul_mma_ragged"),
        ((8192, 8192, 8190), "F", "matmul_mma_tma"),  # rows of out
        ((64, 0, 64), "C", "matmul_mma"),
    ],
    ids=str,
)
def test_the_tile_follows_from_the_shape(shape: tuple[int, int, int], order: str, variant: str) -> None:
    """What was the fastest on an H200, or close to it; and what has no tensor map is left to others."""
    described: Any = matmul_epilogue.inspect.__self__._described  # type: ignore[attr-defined]
    assert described(arrays(*shape, order), {}, "sm_90").chosen.name == variant
    older = variant if variant == "matmul_mma_ragged" else "matmul_mma"
    assert described(arrays(*shape, order), {}, "sm_80").chosen.name == older
    newer = older if "ragged" in variant or shape[1] == 0 else "matmul_mma_tma"
    assert described(arrays(*shape, order), {}, "sm_120").chosen.name == newer
    assert described(arrays(*shape, order), {"tile": 16}, "sm_90").chosen.name == "matmul_epilogue"


def test_what_may_be_measured_can_run() -> None:
    """No candidate is refused or needs more shared memory than there is; a winner counts for tiles of 64 x 64."""
    table = matmul_wgmma_tuned.tuning(*arrays(1024, 512, 1000), arch="sm_90")
    assert len(table.tried) == 8 and table.origin == "default"
    for tried in table.tried:
        plan, _ = planned(matmul_wgmma_tuned, dict(tried.parameters), SHAPES[1])
        assert plan.grid is not None and plan.grid.shared_memory_bytes <= LIMIT_BYTES
    classes = [
        matmul_wgmma_tuned.tuning(*arrays(m, k, 1000), arch="sm_90").size_class
        for m, k in ((1024, 512), (1000, 264), (1032, 512), (1024, 520))
    ]
    assert classes[0] == classes[1] and len(set(classes)) == 3


@pytest.mark.parametrize(
    ("given", "condition"),
    [
        ({"tile_m": 256}, "schedule == 'pingpong'"),
        ({"tile_m": 64, "schedule": "cooperative"}, "schedule == 'pingpong'"),
        ({"tile_n": 256}, "<= 192"),
        ({"relu": True, "epilogue": "silu"}, "relu == None"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_refused(given: dict[str, Any], condition: str) -> None:
    """Registers, and who takes which rows."""
    with pytest.raises(ParameterError, match=re.escape(condition)):
        matmul_wgmma.inspect(*arrays(256, 64, 256), arch="sm_90", **given)


def test_what_no_tensor_map_holds_is_refused() -> None:
    """With what to do about it; architectures without wgmma, and host memory, likewise."""
    with pytest.raises(LayoutError, match="'a' is read through a tensor map, and its rows are 120 bytes apart"):
        matmul_wgmma.inspect(*arrays(256, 60, 256), arch="sm_90")
    with pytest.raises(LayoutError, match="'out' is read through a tensor map, and its rows are 8 bytes apart"):
        matmul_wgmma.inspect(*arrays(256, 64, 4, "F"), arch="sm_90")
    with pytest.raises(LayoutError, match="without elements"):
        matmul_wgmma.inspect(*arrays(256, 0, 256), arch="sm_90")
    padded = ArraySpec((256, 60), "float16", strides=(64, 1)), *arrays(256, 60, 256, dtype="float16")[1:]
    assert matmul_wgmma.inspect.__self__._described(padded, {}, "sm_90").plan.maps["a"].strides == (128, 2)  # type: ignore[attr-defined]
    for arch in ("sm_100", "sm_120"):
        with pytest.raises(ParameterError, match="arch == 90"):
            matmul_wgmma.inspect(*arrays(256, 64, 256), arch=arch)
    x = np.zeros((64, 64), np.float16)
    with pytest.raises(Exception, match="CPU backend has no tensor maps"):
        matmul_wgmma(x, x)
