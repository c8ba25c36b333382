"""Cooperative groups: the block and its tiles."""

from __future__ import annotations

from typing import Generic, NamedTuple

import numpy as np
from jaxtyping import Float32, Int32, UInt32

from cuplate import Array, Inline, specialize
from tests.corpus.case import Case, integers, normal, relative


@specialize(
    Inline("""
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

extern "C" __global__ void {{ kernel }}({{ args }})
{
    const cg::thread_block block_ = cg::this_thread_block();
    __shared__ int held[{{ block.size }}];
    const int rank = block_.thread_rank(), first = block_.group_index().x * block_.size();
    held[rank] = x[first + rank];
    block_.sync();
    const dim3 shape = block_.group_dim();
    const dim3 mine = block_.thread_index();
    const int other = held[block_.num_threads() - 1 - rank];
    cg::sync(block_);
    held[rank] = other + (mine.z * shape.y + mine.y) * shape.x + mine.x - rank;
    __syncthreads();
    out[first + rank] = held[(rank + 1) % block_.size()];
}
"""),
    grid="N // 24",
    block=(4, 3, 2),
    require="N % 24 == 0",
)
def group_of_block(x: Int32[Array, " N"]) -> Int32[Array, " N"]:
    """Each block backwards and one further."""
    return np.roll(x.reshape(-1, 24)[:, ::-1], -1, axis=1).reshape(-1)


class Tiles(NamedTuple, Generic[Array]):
    """What tiles of four sizes find."""

    sums: Float32[Array, "4 N"]
    masks: UInt32[Array, "5 N"]
    ranks: Int32[Array, "4 N"]


@specialize(
    Inline("""
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

template <class Tile>
__device__ float sum_of(const Tile& tile, float value)
{
    for (int step = tile.size() / 2; step > 0; step /= 2) value += tile.shfl_down(value, step);
    return tile.shfl(value, 0);
}

extern "C" __global__ void {{ kernel }}({{ args }})
{
    const cg::thread_block block_ = cg::this_thread_block();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    {% for size in (4, 8, 16, 32) %}
    {
        const cg::thread_block_tile<{{ size }}> tile = cg::tiled_partition<{{ size }}>(block_);
        sums[{{ loop.index0 }} * N + i] = sum_of(tile, x[i]);
        const int place = tile.meta_group_rank() * 1000 + tile.meta_group_size() * 100;
        ranks[{{ loop.index0 }} * N + i] = place + tile.thread_rank();
        tile.sync();
    }
    {% endfor %}
    const auto tile = cg::tiled_partition<8>(block_);
    masks[i] = tile.ballot(x[i] > 0);
    masks[N + i] = tile.any(x[i] > 1.5f) + 2 * tile.all(x[i] > -1.5f);
    masks[2 * N + i] = tile.match_any((int)(x[i] > 0));
    masks[3 * N + i] = (unsigned int)tile.shfl_xor((int)i, 3);
    masks[4 * N + i] = (unsigned int)tile.shfl_up((int)i, 2);
}
"""),
    grid="N // 64",
    block=64,
    require="N % 64 == 0",
)
def tiles(x: Float32[Array, " N"]) -> Tiles[Array]:
    """Tiles of 4 to 32 threads: sums, votes, matches and ranks."""
    i, sums, ranks = np.arange(len(x)), [], []
    for size in (4, 8, 16, 32):
        sums.append(np.repeat(x.reshape(-1, size).sum(axis=1), size))
        ranks.append(i % 64 // size * 1000 + 64 // size * 100 + i % size)
    rows, weight = x.reshape(-1, 8), 1 << np.arange(8)
    positive = rows > 0
    ballot = positive @ weight
    masks = [
        np.repeat(ballot, 8),
        np.repeat((rows > 1.5).any(axis=1) + 2 * (rows > -1.5).all(axis=1), 8),
        np.where(positive, ballot[:, None], 255 - ballot[:, None]).reshape(-1),
        i ^ 3,
        np.where(i % 8 < 2, i, i - 2),
    ]
    return Tiles(np.array(sums), np.array(masks, np.uint32), np.array(ranks))


class GroupReduced(NamedTuple, Generic[Array]):
    """Reductions of tiles."""

    sums: Int32[Array, " N"]
    least: Int32[Array, " N"]
    most: Float32[Array, " N"]
    bits: UInt32[Array, " N"]


@specialize(
    Inline("""
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;

extern "C" __global__ void {{ kernel }}({{ args }})
{
    const auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    const auto tile = cg::tiled_partition<16>(cg::this_thread_block());
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    sums[i] = cg::reduce(warp, x[i], cg::plus<int>());
    least[i] = cg::reduce(tile, x[i], cg::less<int>());
    most[i] = cg::reduce(warp, (float)x[i], cg::greater<float>());
    bits[i] = cg::reduce(tile, (unsigned int)x[i], cg::bit_xor<unsigned int>());
}
"""),
    grid="N // 64",
    block=64,
    require="N % 64 == 0",
)
def group_reduce(x: Int32[Array, " N"]) -> GroupReduced[Array]:
    """Sum, minimum, maximum and exclusive or of tiles."""
    warps, tiles_ = x.reshape(-1, 32), x.reshape(-1, 16)
    return GroupReduced(
        np.repeat(warps.sum(axis=1), 32),
        np.repeat(tiles_.min(axis=1), 16),
        np.repeat(warps.max(axis=1), 32),
        np.repeat(np.bitwise_xor.reduce(tiles_.view(np.uint32), axis=1), 16),
    )


CASES = (
    Case(group_of_block, lambda rng: {"x": integers(rng, -99, 100, 96)}),
    Case(
        tiles,
        lambda rng: {"x": normal(rng, 128)},
        near=relative(1e-6, "the kernel sums in single precision, in one order; the reference in double"),
    ),
    Case(group_reduce, lambda rng: {"x": integers(rng, -9999, 9999, 128)}),
)
