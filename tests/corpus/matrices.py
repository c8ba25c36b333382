"""Products of matrices: tiled, batched, in registers, with copies ahead of time, and on the matrix units."""

from __future__ import annotations

from typing import Literal

import numpy as np
from jaxtyping import Float16, Float32, Float64, Int8, Int32, UInt8, UInt16

from cuplate import Array, Inline, specialize
from tests.corpus.case import Arrays, Case, integers, normal, relative
from tests.corpus.halves import from_bfloat16, to_bfloat16

SINGLE = "the kernel sums in single precision, in one order; the reference in double"
UNITS = "the matrix unit adds in an order and with roundings of its own"


@specialize(
    Inline("""
extern "C" __global__ void __launch_bounds__({{ tile * tile }}) {{ kernel }}({{ args }})
{
    constexpr int tile = {{ tile }};
    __shared__ float a_tile[tile][tile], b_tile[tile][tile];
    const int column = blockIdx.x * tile + threadIdx.x, row = blockIdx.y * tile + threadIdx.y;
    float sum = 0;
    for (int k = 0; k < K; k += tile) {
        const int a_column = k + threadIdx.x, b_row = k + threadIdx.y;
        a_tile[threadIdx.y][threadIdx.x] = row < M && a_column < K ? a[row * K + a_column] : 0;
        b_tile[threadIdx.y][threadIdx.x] = b_row < K && column < N ? b[b_row * N + column] : 0;
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < tile; ++i) sum += a_tile[threadIdx.y][i] * b_tile[i][threadIdx.x];
        __syncthreads();
    }
    if (row < M && column < N) out[row * N + column] = sum;
}
"""),
    tiles={"N": "tile", "M": "tile"},
    block=("tile", "tile"),
)
def matmul(a: Float32[Array, "M K"], b: Float32[Array, "K N"], *, tile: int = 16) -> Float32[Array, "M N"]:
    """a @ b, tile by tile."""
    return a @ b


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int column = blockIdx.x * 8 + threadIdx.x, row = blockIdx.y * 8 + threadIdx.y, matrix = blockIdx.z;
    if (column >= N || row >= M) return;
    const double* left = a + (matrix * M + row) * K;
    const double* right = b + matrix * K * N + column;
    double sum = 0;
    for (int k = 0; k < K; ++k) sum += left[k] * right[k * N];
    out[(matrix * M + row) * N + column] = sum;
}
"""),
    tiles={"N": 8, "M": 8, "batch": 1},
    block=(8, 8),
)
def batched_matmul(a: Float64[Array, "*batch M K"], b: Float64[Array, "*batch K N"]) -> Float64[Array, "*batch M N"]:
    """a @ b for each matrix of the batch, in double precision."""
    return a @ b


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    // 64 threads make 32 x 32 results, 4 x 4 each; tiles alternate between two buffers, one barrier a step.
    __shared__ float a_tile[2][8][32 + 1], b_tile[2][8][32];
    const int thread = threadIdx.x, top = blockIdx.y * 32, left = blockIdx.x * 32;
    float sums[4][4] = {};
    auto load = [&](int buffer, int k) {
        for (int i = thread; i < 8 * 32; i += 64) {
            const int a_row = top + i / 8, a_column = k + i % 8, b_row = k + i / 32, b_column = left + i % 32;
            a_tile[buffer][i % 8][i / 8] = a_row < M && a_column < K ? a[a_row * K + a_column] : 0;
            b_tile[buffer][i / 32][i % 32] = b_row < K && b_column < N ? b[b_row * N + b_column] : 0;
        }
    };
    load(0, 0);
    for (int k = 0, buffer = 0; k < K; k += 8, buffer ^= 1) {
        __syncthreads();
        if (k + 8 < K) load(buffer ^ 1, k + 8);
        for (int i = 0; i < 8; ++i) {
            float u[4], v[4];
            for (int j = 0; j < 4; ++j) {
                u[j] = a_tile[buffer][i][thread / 8 * 4 + j];
                v[j] = b_tile[buffer][i][thread % 8 + 8 * j];
            }
            #pragma unroll
            for (int p = 0; p < 4; ++p)
                #pragma unroll
                for (int q = 0; q < 4; ++q) sums[p][q] += u[p] * v[q];
        }
    }
    for (int p = 0; p < 4; ++p)
        for (int q = 0; q < 4; ++q) {
            const int row = top + thread / 8 * 4 + p, column = left + thread % 8 + 8 * q;
            if (row < M && column < N) out[row * N + column] = sums[p][q];
        }
}
"""),
    tiles={"N": 32, "M": 32},
    block=64,
)
def matmul_double_buffered(a: Float32[Array, "M K"], b: Float32[Array, "K N"]) -> Float32[Array, "M N"]:
    """a @ b in registers, with the next tile loaded while this one is used."""
    return a @ b


@specialize(
    Inline("""
#include <cuda_pipeline_primitives.h>

extern "C" __global__ void {{ kernel }}({{ args }})
{
    // 16 x 16 results; each of 64 threads copies four floats of either matrix ahead, and makes four results of a row.
    constexpr int stages = {{ stages }};
    __shared__ alignas(16) float a_tile[stages][16][16], b_tile[stages][16][16];
    const int row = threadIdx.x / 4, column = threadIdx.x % 4 * 4, top = blockIdx.y * 16, left = blockIdx.x * 16;
    auto fetch = [&](int step) {
        if (step * 16 < K) {
            const float* from_a = a + (top + row) * K + step * 16 + column;
            const float* from_b = b + (step * 16 + row) * N + left + column;
            __pipeline_memcpy_async(&a_tile[step % stages][row][column], from_a, 16);
            __pipeline_memcpy_async(&b_tile[step % stages][row][column], from_b, 16);
        }
        __pipeline_commit();  // an empty one too, so that the count of those under way is constant
    };
    for (int step = 0; step < stages - 1; ++step) fetch(step);
    float sums[4] = {};
    for (int step = 0; step * 16 < K; ++step) {
        __pipeline_wait_prior(stages - 2);
        __syncthreads();
        fetch(step + stages - 1);
        for (int k = 0; k < 16; ++k)
            for (int j = 0; j < 4; ++j) sums[j] += a_tile[step % stages][row][k] * b_tile[step % stages][k][column + j];
    }
    const float4 result = make_float4(sums[0], sums[1], sums[2], sums[3]);
    *reinterpret_cast<float4*>(out + (top + row) * N + left + column) = result;
}
"""),
    tiles={"N": 16, "M": 16},
    block=64,
    require=("M % 16 == 0", "N % 16 == 0", "K % 16 == 0", "a.aligned(16)", "b.aligned(16)", "out.aligned(16)"),
)
def matmul_pipelined(
    a: Float32[Array, "M K"], b: Float32[Array, "K N"], *, stages: Literal[2, 3] = 3
) -> Float32[Array, "M N"]:
    """a @ b, with copies to shared memory some steps ahead."""
    return a @ b


@specialize(
    Inline("""
#include <cuda_pipeline_primitives.h>

extern "C" __global__ void {{ kernel }}({{ args }})
{
    __shared__ alignas(16) int held[3][64 * 4];
    const int t = threadIdx.x, first = blockIdx.x * 256;
    // Copies of 16, 8 and 4 bytes; the last leave the end of what they fill as zeros.
    __pipeline_memcpy_async(&held[0][4 * t], x + first + 4 * t, 16);
    __pipeline_commit();
    for (int k = 0; k < 2; ++k) __pipeline_memcpy_async(&held[1][2 * t + 128 * k], x + first + 2 * t + 128 * k, 8);
    __pipeline_commit();
    for (int k = 0; k < 4; ++k) {
        const int zeros = t % 2 ? 4 : 0;
        __pipeline_memcpy_async(&held[2][t + 64 * k], x + first + t + 64 * k, 4, zeros);
    }
    __pipeline_commit();
    __pipeline_wait_prior(2);  // the first copy is there; each thread reads what it copied itself
    int sum = held[0][4 * t] + held[0][4 * t + 3];
    __pipeline_wait_prior(0);
    __syncthreads();
    for (int k = 0; k < 4; ++k) {
        const int at = (t + 64 * k + 1) % 256;
        out[first + t + 64 * k] = held[0][at] + 2 * held[1][at] + 4 * held[2][at] + sum;
        sum = 0;
    }
}
"""),
    grid="N // 256",
    block=64,
    require=("N % 256 == 0", "x.aligned(16)"),
)
def pipeline_copies(x: Int32[Array, " N"]) -> Int32[Array, " N"]:
    """Asynchronous copies of every size, whole and filled up with zeros."""
    rows = x.reshape(-1, 256)
    third = np.where(np.arange(256) % 2, 0, rows)
    out = np.roll(3 * rows + 4 * third, -1, axis=1)
    out[:, :64] += rows[:, 0::4] + rows[:, 3::4]
    return out.reshape(-1)


@specialize(
    Inline("""
#include <mma.h>
using namespace nvcuda;

extern "C" __global__ void {{ kernel }}({{ args }})
{
    // One warp a tile of {{ m }} x {{ n }}; b is given by rows or by columns.
    wmma::fragment<wmma::matrix_a, {{ m }}, {{ n }}, 16, __half, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, {{ m }}, {{ n }}, 16, __half, wmma::{{ layout }}_major> right;
    wmma::fragment<wmma::accumulator, {{ m }}, {{ n }}, 16, float> sum;
    const int row = blockIdx.y * {{ m }}, column = blockIdx.x * {{ n }};
    wmma::fill_fragment(sum, 0.0f);
    for (int k = 0; k < K; k += 16) {
        wmma::load_matrix_sync(left, a + row * K + k, K);
        {% if layout == "row" %}
        wmma::load_matrix_sync(right, b + k * N + column, N);
        {% else %}
        wmma::load_matrix_sync(right, b + column * K + k, K);
        {% endif %}
        wmma::mma_sync(sum, left, right, sum);
    }
    for (int i = 0; i < sum.num_elements; ++i) sum.x[i] = 2.0f * sum.x[i];
    wmma::store_matrix_sync(out + row * N + column, sum, N, wmma::mem_row_major);
}
"""),
    tiles={"N": "n", "M": "m"},
    block=32,
    require=("M % m == 0", "N % n == 0", "K % 16 == 0", "100 * m + n in (1616, 3208, 832)"),
)
def wmma_half(
    a: Float16[Array, "M K"],
    b: Float16[Array, "K N"],
    *,
    m: int = 16,
    n: int = 16,
    layout: Literal["row", "col"] = "row",
) -> Float32[Array, "M N"]:
    """Twice a @ b of halves, summed in single precision; b's memory is read by rows or by columns."""
    return 2 * (a @ (b if layout == "row" else b.reshape(b.shape[1], b.shape[0]).T))


@specialize(
    Inline("""
#include <mma.h>
using namespace nvcuda;

extern "C" __global__ void {{ kernel }}({{ args }})
{
    // Each of four warps takes its tile through shared memory; results are halves.
    __shared__ alignas(32) __half held[4][16 * 24];
    __half* mine = held[threadIdx.y];
    const int row = blockIdx.y * 16, column = (blockIdx.x * 4 + threadIdx.y) * 16, lane = threadIdx.x;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> right;
    wmma::fragment<wmma::accumulator, 16, 16, 16, half> sum;
    wmma::load_matrix_sync(sum, c + row * N + column, N, wmma::mem_row_major);
    for (int k = 0; k < K; k += 16) {
        for (int i = lane; i < 256; i += 32) mine[i / 16 * 24 + i % 16] = a[(row + i / 16) * K + k + i % 16];
        __syncwarp();
        wmma::load_matrix_sync(left, mine, 24);
        __syncwarp();
        wmma::load_matrix_sync(right, b + k * N + column, N);
        wmma::mma_sync(sum, left, right, sum);
    }
    wmma::store_matrix_sync(mine, sum, 24, wmma::mem_col_major);
    __syncwarp();
    for (int i = lane; i < 256; i += 32) out[(row + i / 16) * N + column + i % 16] = mine[i % 16 * 24 + i / 16];
}
"""),
    grid=("N // 64", "M // 16"),
    block=(32, 4),
    require=("M % 16 == 0", "N % 64 == 0", "K % 16 == 0"),
)
def wmma_half_sums(
    a: Float16[Array, "M K"], b: Float16[Array, "K N"], c: Float16[Array, "M N"]
) -> Float16[Array, "M N"]:
    """a @ b + c in halves, by way of shared memory, stored by columns."""
    return a @ b + c


@specialize(
    Inline("""
#include <cuda_bf16.h>
#include <mma.h>
using namespace nvcuda;

extern "C" __global__ void {{ kernel }}({{ args }})
{
    const __nv_bfloat16* left_ = reinterpret_cast<const __nv_bfloat16*>(a);
    const __nv_bfloat16* right_ = reinterpret_cast<const __nv_bfloat16*>(b);
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::row_major> right;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    const int row = blockIdx.y * 16, column = blockIdx.x * 16;
    wmma::fill_fragment(sum, 0.0f);
    for (int k = 0; k < K; k += 16) {
        wmma::load_matrix_sync(left, left_ + row * K + k, K);
        wmma::load_matrix_sync(right, right_ + k * N + column, N);
        wmma::mma_sync(sum, left, right, sum);
    }
    wmma::store_matrix_sync(out + row * N + column, sum, N, wmma::mem_row_major);
}
"""),
    tiles={"N": 16, "M": 16},
    block=32,
    require=("M % 16 == 0", "N % 16 == 0", "K % 16 == 0"),
)
def wmma_bfloat16(a: UInt16[Array, "M K"], b: UInt16[Array, "K N"]) -> Float32[Array, "M N"]:
    """a @ b of bfloat16, given as bits."""
    return from_bfloat16(a) @ from_bfloat16(b)


@specialize(
    Inline("""
#include <mma.h>
using namespace nvcuda;

extern "C" __global__ void {{ kernel }}({{ args }})
{
    // Both matrices are given in tiles of 16 columns, so that every tile begins at a multiple of 32 bytes.
    using element = {{ a.ctype }};
    wmma::fragment<wmma::matrix_a, 16, 16, 16, element, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, element, wmma::row_major> right;
    wmma::fragment<wmma::accumulator, 16, 16, 16, int> sum;
    const int row = blockIdx.y * 16, column = blockIdx.x;
    wmma::fill_fragment(sum, 0);
    for (int k = 0; k < P; ++k) {
        wmma::load_matrix_sync(left, a + (k * M + row) * 16, 16);
        wmma::load_matrix_sync(right, b + (column * P + k) * 256, 16);
        wmma::mma_sync(sum, left, right, sum);
    }
    wmma::store_matrix_sync(out + (column * M + row) * 16, sum, 16, wmma::mem_row_major);
}
"""),
    tiles={"Q": 1, "M": 16},
    block=32,
    require="M % 16 == 0",
)
def wmma_int8(
    a: Int8[Array, "P M 16"] | UInt8[Array, "P M 16"], b: Int8[Array, "Q P 16 16"] | UInt8[Array, "Q P 16 16"]
) -> Int32[Array, "Q M 16"]:
    """The product of matrices of bytes, signed or not, all of them in tiles."""
    return np.einsum("pmk,qpkn->qmn", a.astype(np.int64), b.astype(np.int64))


def small(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Small integers as halves: every sum of their products is exact, in any order."""
    return integers(rng, -4, 5, *shape, dtype="float16")


def tiled(rng: np.random.Generator, low: int, high: int, dtype: str) -> Arrays:
    """Two matrices of 32 x 48 and 48 x 32 bytes, in tiles."""
    return {
        "a": integers(rng, low, high, 3, 32, 16, dtype=dtype),
        "b": integers(rng, low, high, 2, 3, 16, 16, dtype=dtype),
    }


CASES = (
    Case(
        matmul,
        lambda rng: {"a": normal(rng, 37, 45), "b": normal(rng, 45, 50)},
        near=relative(1e-6, SINGLE),
    ),
    Case(
        batched_matmul,
        lambda rng: {"a": normal(rng, 2, 3, 9, 13, dtype="float64"), "b": normal(rng, 2, 3, 13, 10, dtype="float64")},
        near=relative(1e-14, "the reference may add in another order"),
    ),
    Case(
        matmul_double_buffered,
        lambda rng: {"a": normal(rng, 40, 35), "b": normal(rng, 35, 66)},
        near=relative(1e-6, SINGLE),
    ),
    Case(
        matmul_pipelined,
        lambda rng: {"a": normal(rng, 32, 64), "b": normal(rng, 64, 48)},
        near=relative(1e-6, SINGLE),
    ),
    Case(pipeline_copies, lambda rng: {"x": integers(rng, -999, 1000, 512)}),
    *(
        Case(
            wmma_half,
            lambda rng: {"a": small(rng, 32, 32), "b": small(rng, 32, 32)},
            {"m": m, "n": n, "layout": layout},
            label=f"{m}x{n}-{layout}",
        )
        for m, n, layout in ((16, 16, "row"), (32, 8, "col"), (8, 32, "row"))
    ),
    Case(
        wmma_half,
        lambda rng: {"a": normal(rng, 32, 48, dtype="float16"), "b": normal(rng, 48, 32, dtype="float16")},
        near=relative(4e-6, UNITS),
        agrees=relative(4e-6, UNITS),
        label="normal",
    ),
    Case(
        wmma_half_sums,
        lambda rng: {"a": small(rng, 16, 32), "b": small(rng, 32, 64), "c": small(rng, 16, 64)},
    ),
    Case(
        wmma_bfloat16,
        lambda rng: {n: to_bfloat16(small(rng, 32, 32)) for n in "ab"},
    ),
    Case(wmma_int8, lambda rng: tiled(rng, -128, 128, "int8"), label="signed"),
    Case(wmma_int8, lambda rng: tiled(rng, 0, 256, "uint8"), label="unsigned"),
)
