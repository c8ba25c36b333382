"""The product whose clusters share a tile, without a GPU: what its parts agree on, what is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from cuplate import ArraySpec, ParameterError
from cuplate.kernels import matmul_wgmma_split

LIMIT_BYTES = 232_448  # shared memory of a block
TILES: list[dict[str, int]] = [
    {},
    {"tile_m": 64, "tile_n": 64, "stages": 6, "split": 8},
    {"tile_m": 64, "tile_n": 128, "stages": 4, "split": 1},
    {"tile_m": 128, "tile_n": 128, "stages": 5, "split": 4},
    {"tile_m": 256, "tile_n": 128, "stages": 3, "split": 2},
    {"tile_m": 64, "tile_n": 96, "stages": 8, "split": 4},
]
SHAPES = [(1, 8, 8), (512, 512, 512), (129, 72, 520), (64, 4096, 4096)]


def arrays(m: int, k: int, n: int, order: str = "C", dtype: str = "bfloat16") -> tuple[ArraySpec, ...]:
    """The arrays of a product."""
    b = ArraySpec((k, n), dtype, strides=(1, k) if order == "F" else None)
    return ArraySpec((m, k), dtype), b, ArraySpec((n,), dtype)


def planned(given: dict[str, int], shape: tuple[int, int, int], order: str = "C") -> tuple[Any, str, dict[str, Any]]:
    """The plan, the text, the parameters."""
    described: Any = matmul_wgmma_split.inspect.__self__._described(arrays(*shape, order), given, "sm_90")  # type: ignore[attr-defined]
    plan = described.plan
    return plan, described.content.source.text, dict(plan.specialization.parameters)


def numbers(pattern: str, text: str) -> tuple[int, ...]:
    """The numbers in the one place where the text is like that."""
    (found,) = re.findall(pattern, text)
    return tuple(map(int, found)) if isinstance(found, tuple) else (int(found),)


def size(box: tuple[int, ...]) -> int:
    """Bytes of a box of 16-bit elements."""
    return int(np.prod(box)) * 2


@pytest.mark.parametrize("m", [1, 65, 512])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("given", TILES, ids=str)
def test_a_stage_waits_for_the_bytes_that_its_copies_bring(given: dict[str, int], order: str, m: int) -> None:
    """One too many and the kernel hangs, one too few and it multiplies what has not come."""
    plan, text, p = planned(given, (m, 512, 512), order)
    (b_bytes,) = numbers(r"barrier_expect\(full \+ stage \* 8, box_bytes \+ (\d+)u\)", text)
    (rows,) = numbers(r"box_bytes = min\(m_size, (\d+)\) \* 128u", text)
    slabs = numbers(r"slab < (\d+); \+\+slab", text)[0] if order == "C" else 1
    assert rows == p["tile_m"] and plan.maps["a"].box == (min(m, rows), 64)
    assert min(m, rows) * 128 + b_bytes == size(plan.maps["a"].box) + slabs * size(plan.maps["b"].box)
    assert slabs * size(plan.maps["b"].box) == (-(-p["tile_n"] // 64) * 64 if order == "C" else p["tile_n"]) * 128
    assert text.count("copy_in(") == 1 + 2  # its definition, and one for each of a and b


@pytest.mark.parametrize("given", TILES, ids=str)
def test_shared_memory_ends_where_the_text_ends(given: dict[str, int]) -> None:
    """Rings, shares of the others, barriers."""
    plan, text, p = planned(given, SHAPES[1])
    (a_bytes,) = numbers(r"b_ring = a_ring \+ (\d+)u", text)
    (b_bytes,) = numbers(r"shares = b_ring \+ (\d+)u", text)
    shares, half = numbers(r"full = shares \+ (\d+)u, empty = full \+ (\d+)u", text)
    assert plan.grid.shared_memory_bytes == a_bytes + b_bytes + shares + 2 * half <= LIMIT_BYTES
    slabs = -(-p["tile_n"] // 64)
    assert (a_bytes, b_bytes, half) == tuple(p["stages"] * each for each in (p["tile_m"] * 128, slabs * 8192, 8))
    assert (a_bytes + b_bytes) % 1024 == 0 and shares % 16 == 0  # swizzle, vectors of four floats


@pytest.mark.parametrize("given", [t for t in TILES if t.get("split") != 1], ids=str)
def test_every_sum_goes_to_one_place_and_is_added_once(given: dict[str, int]) -> None:
    """The stores and the loads of the text, in Python: a block reads what the others wrote for it, and only that."""
    _, text, p = planned(given, SHAPES[1])
    split, pieces = p["split"], p["tile_n"] // 8 // p["split"]
    groups = min(p["tile_m"] // 64, 2)
    parts = p["tile_m"] // 64 // groups
    (share_bytes,) = numbers(r"remote_address\(shares \+ slot \* (\d+)u", text)
    stored, piece_bytes = numbers(r"share \+ \(part \* (\d+) \+ i\) \* (\d+)u", text)
    assert numbers(r"slot \* (\d+)u \+ \(part \* (\d+) \+ i\) \* (\d+)u", text) == (share_bytes, pieces, piece_bytes)
    assert stored == pieces
    shares = numbers(r"full = shares \+ (\d+)u", text.replace(", empty", ";"))[0]
    threads = groups * 128
    for to in range(split):
        written: dict[int, tuple[int, int, int]] = {}
        for rank in set(range(split)) - {to}:
            slot = rank if rank < to else rank - 1
            for part in range(parts):
                for i in range(pieces):
                    address = slot * share_bytes + (part * pieces + i) * piece_bytes
                    for thread in (0, threads - 1):
                        place = address + thread * 16
                        assert place not in written and 0 <= place <= shares - 16
                        written[place] = (rank, part, to * pieces + i)
        for slot in range(split - 1):
            sender = slot if slot < to else slot + 1
            for part in range(parts):
                for i in range(pieces):
                    place = slot * share_bytes + (part * pieces + i) * piece_bytes
                    assert written.pop(place) == (sender, part, to * pieces + i)
                    assert written.pop(place + (threads - 1) * 16) == (sender, part, to * pieces + i)
        assert not written
    columns = {rank * pieces + i for rank in range(split) for i in range(pieces)}
    assert columns == set(range(p["tile_n"] // 8))  # every eight columns are stored by one block


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("given", TILES, ids=str)
def test_clusters_share_out_tiles_and_blocks_steps(given: dict[str, int], shape: tuple[int, int, int]) -> None:
    """Each tile is one cluster's, each step of K one block's; where there are fewer steps some have none."""
    plan, text, p = planned(given, shape)
    m, k, n = shape
    split = p["split"]
    assert f"tile = (int)(blockIdx.x / {split})" in text and f"rank = (int)(blockIdx.x % {split})" in text
    assert (f"__cluster_dims__({split}, 1, 1)" in text) == (split > 1)
    tiles_m, tiles_n = -(-m // p["tile_m"]), -(-n // p["tile_n"])
    assert plan.grid.grid == (split * tiles_m * tiles_n, 1, 1) and plan.grid.block == (
        min(p["tile_m"], 128) * 2 + 32,
        1,
        1,
    )
    places = {(tile % tiles_m, tile // tiles_m) for tile in range(tiles_m * tiles_n)}
    assert places == {(i, j) for i in range(tiles_m) for j in range(tiles_n)}
    steps = -(-k // 64)
    edges = [steps * rank // split for rank in range(split + 1)]
    assert edges[0] == 0 and edges[-1] == steps and max(np.diff(edges)) - min(np.diff(edges)) <= 1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("steps", "stages", "groups"), [(0, 2, 1), (1, 2, 1), (3, 4, 2), (4, 4, 1), (9, 4, 2), (64, 6, 2)]
)
def test_the_ring_neither_stands_still_nor_runs_over(steps: int, stages: int, groups: int, seed: int) -> None:
    """Barriers by their parity, as the text waits for them, in an order drawn at random."""
    full, empty, arrived, ring = [0] * stages, [0] * stages, [0] * stages, [-1] * stages
    multiplied: list[tuple[int, int]] = []

    def complete(phases: list[int], stage: int, parity: int) -> bool:
        return phases[stage] & 1 != parity

    def fetch(step: int, stage: int) -> None:
        ring[stage] = step
        full[stage] += 1

    def produce() -> Iterator[None]:
        for step in range(min(steps, stages)):
            fetch(step, step)
            yield
        stage = parity = 0
        for step in range(stages, steps):
            while not complete(empty, stage, parity):
                yield
            fetch(step, stage)
            yield
            stage, parity = (0, parity ^ 1) if stage + 1 == stages else (stage + 1, parity)

    def consume(group: int) -> Iterator[None]:
        stage = parity = 0
        before = -1
        for step in range(steps):
            while not complete(full, stage, parity):
                yield
            assert ring[stage] == step
            multiplied.append((group, step))
            yield
            assert ring[stage] == step  # nobody copies there while it is read
            if before >= 0:
                arrived[before] += 1
                if arrived[before] == groups:
                    arrived[before] = 0
                    empty[before] += 1
            before = stage
            stage, parity = (0, parity ^ 1) if stage + 1 == stages else (stage + 1, parity)

    rng = np.random.default_rng(seed)
    running = [produce(), *map(consume, range(groups))]
    for _ in range(400 * steps + 1000):
        if running:
            chosen = running[rng.integers(len(running))]
            if next(chosen, "ended") == "ended":
                running.remove(chosen)
    assert not running, "it stands still"
    assert len(set(multiplied)) == len(multiplied) == steps * groups


def test_every_thread_is_at_every_barrier_of_the_cluster() -> None:
    """Twice each, outside of any branch: a block writes to others when they run, and reads when they have written."""
    _, text, _ = planned({}, SHAPES[1])
    body = text[text.index("__global__") :]
    assert [m[1] for m in re.finditer(r"barrier\.cluster\.(arrive|wait);", body)] == ["arrive", "wait"] * 2
    depth = 0
    for line in body.splitlines():
        if "barrier.cluster" in line:
            assert depth == 1
        depth += line.count("{") - line.count("}") if "asm" not in line else 0
    first, second = body.index("st.shared::cluster"), body.index("ld.shared.v4")
    waits = [m.start() for m in re.finditer(r"barrier\.cluster\.wait", body)]
    assert waits[0] < first < waits[1] < second < body.index("narrow(", waits[1])
    assert "return;" not in body[: waits[1]]
    assert "barrier.cluster" not in planned({"split": 1}, SHAPES[1])[1]


def test_the_source_includes_nothing() -> None:
    """Header-free, and no parts of K are added by atomics."""
    for order, transposed in (("C", 1), ("F", 0)):
        source = planned({}, SHAPES[1], order)[1]
        assert "#include" not in source and "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16" in source
        assert f"p, 1, 1, 0, {transposed};" in source
        assert not re.search(r"\b(atom|red)\.", source)


@pytest.mark.parametrize(
    ("given", "shape", "condition"),
    [
        ({"tile_m": 256, "tile_n": 256}, (256, 64, 256), "cdiv(tile_m, 128) * tile_n <= 256"),
        ({"split": 3}, (256, 64, 256), "split"),
        ({}, (256, 64, 255), "N % 2 == 0"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_refused(
    given: dict[str, Any], shape: tuple[int, int, int], condition: str
) -> None:
    """Registers, sizes of clusters, pairs of columns."""
    with pytest.raises(ParameterError, match=re.escape(condition)):
        matmul_wgmma_split.inspect(*arrays(*shape, "F"), arch="sm_90", **given)
