"""Grids and blocks of one to three dimensions."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32, Int32, UInt32

from cuplate import Array, Inline, f32, specialize
from tests.corpus.case import Case, integers, normal


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    const int y = blockIdx.y * blockDim.y + threadIdx.y;
    const int z = blockIdx.z * blockDim.z + threadIdx.z;
    if (x >= X || y >= Y || z >= Z) return;
    const int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    const int block_ = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const int at = (z * Y + y) * X + x;
    out[at] = base[at] + 1000 * block_ + thread;
}
"""),
    tiles={"X": 4, "Y": 3, "Z": 2},
    block=(4, 3, 2),
)
def coordinates(base: Int32[Array, "Z Y X"]) -> Int32[Array, "Z Y X"]:
    """Each thread's block and thread number in its own cell, on a ragged grid of three dimensions."""
    z, y, x = np.indices(base.shape)
    blocks = [-(-n // tile) for n, tile in zip(base.shape, (2, 3, 4), strict=True)]
    block = (z // 2 * blocks[1] + y // 3) * blocks[2] + x // 4
    return base + 1000 * block + (z % 2 * 3 + y % 3) * 4 + x % 4


@specialize(
    Inline("""
__device__ void put(unsigned int* to, const uint3& v) { to[0] = v.x, to[1] = v.y, to[2] = v.z; }

extern "C" __global__ void {{ kernel }}({{ args }})
{
    const dim3 last(gridDim.x - 1, gridDim.y - 1, gridDim.z - 1);
    const uint3 mine = blockIdx;
    if (mine.x != last.x || mine.y != last.y || mine.z != last.z) return;
    const dim3 threads = blockDim;
    if (threadIdx.x != threads.x - 1 || threadIdx.y != threads.y - 1 || threadIdx.z != threads.z - 1) return;
    put(out, make_uint3(gridDim.x, gridDim.y, gridDim.z));
    put(out + 3, make_uint3(threads.x, threads.y, threads.z));
    put(out + 6, mine);
    put(out + 9, threadIdx);
    const dim3 ones, two(2);
    out[12] = ones.x + ones.y + ones.z + two.x + two.y;
    out[13] = warpSize;
    out[14] = x[0];
}
"""),
    grid=("columns", 3, 2),
    block=(5, "rows", 3),
)
def launch_shape(x: UInt32[Array, " N"], *, columns: int = 4, rows: int = 2) -> UInt32[Array, " 15"]:
    """What the last thread of the last block sees of the launch."""
    return np.array([columns, 3, 2, 5, rows, 3, columns - 1, 2, 1, 4, rows - 1, 2, 6, 32, x[0]])


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const {{ index_t }} step = ({{ index_t }})gridDim.x * blockDim.x;
    for ({{ index_t }} i = ({{ index_t }})blockIdx.x * blockDim.x + threadIdx.x; i < N; i += step)
        out[i] = alpha * x[i] + y[i];
}
"""),
    grid=3,
    block=96,
)
def grid_stride(alpha: f32, x: Float32[Array, " N"], y: Float32[Array, " N"]) -> Float32[Array, " N"]:
    """alpha * x + y, rounded once, by a grid smaller than the array."""
    return alpha * x + y


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    if (column >= W || row >= H) return;
    out[column * H + (H - 1 - row)] = x[row * W + column];
}
"""),
    tiles={"W": 16, "H": 8},
    block=(16, 8),
)
def quarter_turn(x: Int32[Array, "H W"]) -> Int32[Array, "W H"]:
    """x turned clockwise."""
    return np.rot90(x, -1)


CASES = (
    Case(coordinates, lambda rng: {"base": integers(rng, 0, 100, 5, 7, 10)}),
    Case(launch_shape, lambda rng: {"x": integers(rng, 0, 2**32, 1, dtype="uint32")}),
    Case(grid_stride, lambda rng: {"x": normal(rng, 1000), "y": normal(rng, 1000)}, {"alpha": 0.7}),
    Case(quarter_turn, lambda rng: {"x": integers(rng, -1000, 1000, 21, 37)}),
)
