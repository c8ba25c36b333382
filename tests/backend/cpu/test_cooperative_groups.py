"""Cooperative groups and asynchronous copies on the CPU backend: numbers, exchanges, partitions, reductions, checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cuplate.backend.cpu.build import BuildError
from cuplate.backend.cpu.engine import KernelFault

Make = Callable[..., Any]
HEADER = """#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cooperative_groups/memcpy_async.h>
namespace cg = cooperative_groups;
"""


def rows(compiled: Make, body: str, threads: int | tuple[int, ...], count: int, grid: int = 1) -> np.ndarray:
    """What each thread of one-dimensional rank wrote with ``row[j] = ...``: shape (threads in all, count)."""
    text = f"""{HEADER}
    __global__ void k(int* out) {{
      unsigned rank = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
      unsigned size = blockDim.x * blockDim.y * blockDim.z;
      int* row = out + (blockIdx.x * size + rank) * {count};
      {body}
    }}"""
    size = int(np.prod(threads))
    out = np.full((grid * size, count), -99, np.int32)
    compiled(text)(grid, threads, out)
    return out


def test_a_block_knows_its_shape(compiled: Make) -> None:
    """Ranks, sizes and indices of a block of three dimensions, and of the grid that it is in."""
    out = rows(
        compiled,
        """auto b = cg::this_thread_block();
        row[0] = b.thread_rank(); row[1] = b.size(); row[2] = b.num_threads(); row[3] = b.thread_index().y;
        row[4] = b.group_index().x; row[5] = b.dim_threads().z; row[6] = cg::thread_rank(b); row[7] = cg::group_size(b);
        auto g = cg::this_grid(); row[8] = g.thread_rank(); row[9] = g.size(); row[10] = g.num_blocks();
        row[11] = g.block_rank();
        b.sync(); cg::sync(b);""",
        (4, 3, 2),
        12,
        grid=2,
    )
    for i, row in enumerate(out.tolist()):
        block, rank = divmod(i, 24)
        assert row == [rank, 24, 24, rank // 4 % 3, block, 2, rank, 24, i, 48, 2, block]


@pytest.mark.parametrize("size", [1, 2, 8, 32])
def test_tiles_number_and_exchange(compiled: Make, size: int) -> None:
    """A tile's ranks and numbers, and its shuffles, which stay within it."""
    out = rows(
        compiled,
        f"""auto t = cg::tiled_partition<{size}>(cg::this_thread_block());
        int v = 100 + rank;
        row[0] = t.thread_rank(); row[1] = t.size(); row[2] = t.meta_group_rank(); row[3] = t.meta_group_size();
        row[4] = t.shfl(v, 0); row[5] = t.shfl_up(v, 1); row[6] = t.shfl_down(v, 1); row[7] = t.shfl_xor(v, {size} / 2);
        t.sync();""",
        64,
        8,
    )
    for rank, row in enumerate(out.tolist()):
        own, first = rank % size, rank - rank % size
        up = rank if own == 0 else rank - 1
        down = rank if own == size - 1 else rank + 1
        other = rank ^ (size // 2)
        assert row == [own, size, rank // size, 64 // size, 100 + first, 100 + up, 100 + down, 100 + other]


def test_tiles_vote_and_match(compiled: Make) -> None:
    """any, all, ballot, match_any and match_all are of the tile, with bits by rank."""
    out = rows(
        compiled,
        """auto t = cg::tiled_partition<8>(cg::this_thread_block());
        int same;
        row[0] = t.any(rank == 9); row[1] = t.all(rank < 16); row[2] = t.ballot(rank % 3 == 0);
        row[3] = t.match_any(rank % 2); row[4] = t.match_all(rank / 8, same); row[5] = same;
        row[6] = t.match_all((int)rank, same); row[7] = same;""",
        24,
        8,
    )
    for rank, row in enumerate(out.tolist()):
        tile = range(rank - rank % 8, rank - rank % 8 + 8)
        ballot = sum(1 << i for i, r in enumerate(tile) if r % 3 == 0)
        match = sum(1 << i for i, r in enumerate(tile) if r % 2 == rank % 2)
        assert row == [9 in tile, rank < 16, ballot, match, 0xFF, 1, 0, 0]


def test_large_values_travel_through_shuffles(compiled: Make) -> None:
    """A struct of 24 bytes moves whole."""
    out = rows(
        compiled,
        """struct Big { double a; int b[3]; char c; };
        auto t = cg::tiled_partition<4>(cg::this_thread_block());
        Big big = {rank + 0.5, {(int)rank, (int)rank + 1, (int)rank + 2}, (char)rank};
        Big got = t.shfl(big, 3);
        row[0] = (int)(got.a * 2); row[1] = got.b[2]; row[2] = got.c;""",
        8,
        3,
    )
    assert out.tolist() == [[2 * s + 1, s + 2, s] for s in [3] * 4 + [7] * 4]


def test_a_tile_of_a_tile_is_numbered_within_it(compiled: Make) -> None:
    """meta_group_rank of a nested tile counts within its parent; a tile converts to one without parent."""
    out = rows(
        compiled,
        """auto warp = cg::tiled_partition<32>(cg::this_thread_block());
        auto four = cg::tiled_partition<4>(warp);
        cg::thread_block_tile<4> plain = four;
        row[0] = four.meta_group_rank(); row[1] = four.meta_group_size();
        row[2] = plain.thread_rank(); row[3] = plain.meta_group_rank();""",
        64,
        4,
    )
    for rank, row in enumerate(out.tolist()):
        assert row == [rank % 32 // 4, 8, rank % 4, rank % 32 // 4]


def test_reductions_and_scans(compiled: Make) -> None:
    """reduce and scans over tiles, with each operator, give every thread the right value."""
    out = rows(
        compiled,
        """auto t = cg::tiled_partition<16>(cg::this_thread_block());
        int v = (rank * 7 + 3) % 16;
        row[0] = cg::reduce(t, v, cg::plus<int>()); row[1] = cg::reduce(t, v, cg::less<int>());
        row[2] = cg::reduce(t, v, cg::greater<int>()); row[3] = cg::reduce(t, v, cg::bit_xor<int>());
        row[4] = cg::reduce(t, v, cg::bit_or<int>()); row[5] = cg::reduce(t, v | 8, cg::bit_and<int>());
        row[6] = cg::inclusive_scan(t, v); row[7] = cg::exclusive_scan(t, v);
        row[8] = cg::inclusive_scan(t, v, cg::greater<int>());""",
        32,
        9,
    )
    values = [(r * 7 + 3) % 16 for r in range(32)]
    for rank, row in enumerate(out.tolist()):
        first = rank - rank % 16
        tile, upto = values[first : first + 16], values[first : rank + 1]
        assert row == [
            sum(tile), min(tile), max(tile), int(np.bitwise_xor.reduce(tile)), int(np.bitwise_or.reduce(tile)),
            int(np.bitwise_and.reduce([v | 8 for v in tile])), sum(upto), sum(upto[:-1]), max(upto),
        ]  # fmt: skip


def test_coalesced_threads_are_those_of_the_branch(compiled: Make) -> None:
    """In a divergent branch the group is the lanes that took it, ranked in order; outside it is the warp."""
    out = rows(
        compiled,
        """auto whole = cg::coalesced_threads(); row[0] = whole.size();
        if (rank % 3 == 1) {
          auto g = cg::coalesced_threads();
          row[1] = g.size(); row[2] = g.thread_rank(); row[3] = g.shfl((int)rank, 1);
          row[4] = cg::reduce(g, 1, cg::plus<int>());
          row[5] = g.shfl_down((int)rank, 1); row[6] = g.ballot(rank > 10);
        }""",
        32,
        7,
    )
    members = [r for r in range(32) if r % 3 == 1]
    for rank, row in enumerate(out.tolist()):
        assert row[0] == 32
        if rank not in members:
            assert row[1:] == [-99] * 6
            continue
        own = members.index(rank)
        following = members[own + 1] if own + 1 < len(members) else rank
        ballot = sum(1 << i for i, r in enumerate(members) if r > 10)
        assert row[1:] == [len(members), own, members[1], len(members), following, ballot]


def test_warp_aggregated_atomics_count_right(compiled: Make) -> None:
    """The well-known pattern, one atomic for the lanes of a branch, hands every lane its own place."""
    text = f"""{HEADER}
    __global__ void k(const int* in, int* out, int* count) {{
      int v = in[blockIdx.x * blockDim.x + threadIdx.x];
      if (v > 0) {{
        auto g = cg::coalesced_threads();
        int base = 0;
        if (g.thread_rank() == 0) base = atomicAdd(count, (int)g.size());
        out[g.shfl(base, 0) + g.thread_rank()] = v;
      }}
    }}"""
    values = np.random.default_rng(5).integers(-5, 5, 512).astype(np.int32)
    out, count = np.zeros(512, np.int32), np.zeros(1, np.int32)
    for check in ("off", "full"):
        count[0] = 0
        reports = compiled(text, check=check)(4, 128, values, out, count, check=check)
        assert not reports
        assert count[0] == (values > 0).sum()
        assert sorted(out[: count[0]]) == sorted(values[values > 0])


def test_activemask_names_the_lanes_of_the_branch(compiled: Make) -> None:
    """In a divergent branch the mask has the lanes that took it, so a shuffle under it meets."""
    out = rows(
        compiled,
        """if (rank == 5) return;
        row[0] = __popc(__activemask());
        if (rank & 1) {
          unsigned active = __activemask();
          row[1] = active; row[2] = __shfl_sync(active, (int)rank, __ffs(active) - 1);
        } else {
          unsigned active = __activemask();
          row[1] = active;
        }""",
        32,
        3,
    )
    odd = sum(1 << r for r in range(1, 32, 2) if r != 5)
    even = sum(1 << r for r in range(0, 32, 2))
    for rank, row in enumerate(out.tolist()):
        if rank == 5:
            assert row == [-99] * 3
        elif rank % 2:
            assert row == [31, np.uint32(odd).view(np.int32), 1]
        else:
            assert row[:2] == [31, np.uint32(even).view(np.int32)]


def test_partitions_by_label_and_by_predicate(compiled: Make) -> None:
    """Threads with one label form one group; groups are numbered by their lowest lane."""
    out = rows(
        compiled,
        """auto t = cg::tiled_partition<32>(cg::this_thread_block());
        auto l = cg::labeled_partition(t, (int)(rank % 5)); row[0] = l.size(); row[1] = l.thread_rank();
        row[2] = l.meta_group_rank(); row[3] = l.meta_group_size();
        auto b = cg::binary_partition(t, rank < 10);
        row[4] = b.size(); row[5] = b.thread_rank(); row[6] = b.meta_group_size();""",
        32,
        7,
    )
    for rank, row in enumerate(out.tolist()):
        same = [r for r in range(32) if r % 5 == rank % 5]
        half = [r for r in range(32) if (r < 10) == (rank < 10)]
        assert row == [len(same), same.index(rank), rank % 5, 5, len(half), half.index(rank), 2]


def test_a_group_chosen_at_run_time(compiled: Make) -> None:
    """thread_group takes a block or a tile, and tiled_partition a size that is no constant."""
    out = rows(
        compiled,
        """cg::thread_group g = cg::this_thread_block(); row[0] = g.size(); row[1] = g.thread_rank(); g.sync();
        cg::thread_group t = cg::tiled_partition(cg::this_thread_block(), 4);
        row[2] = t.size(); row[3] = t.thread_rank(); t.sync();""",
        40,
        4,
    )
    assert out.tolist() == [[40, r, 4, r % 4] for r in range(40)]


def test_the_last_warp_may_be_short(compiled: Make) -> None:
    """A tile at the end of a block of 40 threads reduces over the 8 lanes that exist."""
    out = rows(
        compiled,
        """auto t = cg::tiled_partition<8>(cg::this_thread_block());
        row[0] = cg::reduce(t, 1, cg::plus<int>()); row[1] = t.ballot(1);""",
        40,
        2,
    )
    assert out.tolist() == [[8, 255]] * 40


COPY = """{header}#include <cuda_pipeline_primitives.h>
__global__ void k(const float* in, float* out) {{
  __shared__ __align__(16) float tile[128];
  auto b = cg::this_thread_block();
  {copy}
  out[b.thread_rank()] = tile[127 - b.thread_rank()];
}}
"""


@pytest.mark.parametrize(
    "copy",
    [
        "cg::memcpy_async(b, tile, in, sizeof(tile)); cg::wait(b);",
        "cg::memcpy_async(b, tile, 128, in, 200); cg::wait_prior<0>(b);",
        "if (threadIdx.x < 32) __pipeline_memcpy_async(tile + 4 * threadIdx.x, in + 4 * threadIdx.x, 16);"
        " __pipeline_commit(); __pipeline_wait_prior(0); b.sync();",
    ],
)
def test_asynchronous_copies_arrive(compiled: Make, copy: str) -> None:
    """A waited-for copy is complete, and the checker has nothing to say."""
    x, out = np.arange(200, dtype=np.float32), np.zeros(128, np.float32)
    kernel = compiled(COPY.format(header=HEADER, copy=copy), check="full")
    assert kernel(1, 128, x, out, check="full") == ()
    assert np.array_equal(out, x[127::-1])


def test_a_copy_without_a_barrier_is_a_race(compiled: Make) -> None:
    """Reading another thread's part of a copy before the barrier is reported at the lines of the kernel."""
    copy = "__pipeline_memcpy_async(tile + threadIdx.x, in + threadIdx.x, 4); __pipeline_wait_prior(0);"
    kernel = compiled(COPY.format(header=HEADER, copy=copy), check="full")
    reports = kernel(1, 128, np.zeros(200, np.float32), np.zeros(128, np.float32), check="full")
    assert "data race" in {r.kind for r in reports}
    assert all(r.file == "kernel.cu" for r in reports)


def test_a_copy_out_of_bounds_is_reported(compiled: Make) -> None:
    """A copy past the end of its source is found at the kernel's line, as a plain read would be."""
    copy = "__pipeline_memcpy_async(tile + threadIdx.x, in + 1 + threadIdx.x, 4); b.sync();"
    kernel = compiled(COPY.format(header=HEADER, copy=copy), check="full")
    reports = kernel(1, 128, np.zeros(128, np.float32), np.zeros(128, np.float32), check="full")
    found = [r for r in reports if r.kind == "out of bounds"]
    assert [(r.access, r.size_bytes, r.thread, r.file) for r in found] == [("read", 4, (127, 0, 0), "kernel.cu")]


def test_a_copy_can_fill_with_zeros(compiled: Make) -> None:
    """The last bytes of a copy may be zeros that are not read."""
    text = """#include <cuda_pipeline_primitives.h>
    __global__ void k(const float* in, float* out) { __pipeline_memcpy_async(out, in, 16, 12); }"""
    out = np.ones(4, np.float32)
    reports = compiled(text, check="full")(1, 1, np.array([7.0], np.float32), out, check="full")
    assert out.tolist() == [7, 0, 0, 0]
    assert reports == ()


def test_a_copy_of_another_size_fails(compiled: Make) -> None:
    """cp.async copies 4, 8 or 16 bytes."""
    text = """#include <cuda_pipeline_primitives.h>
    __global__ void k(const float* in, float* out) { __pipeline_memcpy_async(out, in, 12); }"""
    with pytest.raises(KernelFault, match="4, 8 or 16"):
        compiled(text)(1, 1, np.zeros(4, np.float32), np.zeros(4, np.float32))


def test_grid_sync_is_refused_at_its_line(compiled: Make) -> None:
    """grid.sync() says why it cannot work and what to do."""
    text = f"{HEADER}__global__ void k(int* out) {{\n  auto g = cg::this_grid();\n  g.sync();\n}}\n"
    with pytest.raises(BuildError) as error:
        compiled(text)
    line = text[: text.index("g.sync")].count("\n") + 1
    assert any("split the kernel" in f.message and f.line == line for f in error.value.findings), error.value.log
