"""Shared memory: static and dynamic, in kernels, functions and templates."""

from __future__ import annotations

from typing import Generic, NamedTuple

import numpy as np
from jaxtyping import Float32, Float64, Int32, Num

from cuplate import Array, Inline, specialize
from tests.corpus.case import Case, integers, normal, relative, ulps

FIXED_ORDER = "the kernel sums in single precision, in one order; the reference in double"


@specialize(
    Inline("""
extern "C" __global__ void __launch_bounds__(256) {{ kernel }}({{ args }})
{
    __shared__ double tile[32][33];  // one column more: a warp that reads a column meets every bank
    int column = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y * 32 + threadIdx.y;
    for (int step = 0; step < 32; step += 8) {
        if (row + step < M && column < N) tile[threadIdx.y + step][threadIdx.x] = a[(row + step) * N + column];
    }
    __syncthreads();
    column = blockIdx.y * 32 + threadIdx.x, row = blockIdx.x * 32 + threadIdx.y;
    for (int step = 0; step < 32; step += 8) {
        if (row + step < N && column < M) out[(row + step) * M + column] = tile[threadIdx.x][threadIdx.y + step];
    }
}
"""),
    tiles={"N": 32, "M": 32},
    block=(32, 8),
)
def transpose(a: Float64[Array, "M N"]) -> Float64[Array, "N M"]:
    """The transpose, tile by tile through static shared memory."""
    return a.T


class Summary(NamedTuple, Generic[Array]):
    """One of each a row."""

    total: Float32[Array, " R"]
    largest: Int32[Array, " R"]


@specialize(
    Inline("""
template <int threads, class T, class Combine>
__device__ T reduce(T mine, Combine combine)
{
    __shared__ T held[threads];  // one array for each instance
    held[threadIdx.x] = mine;
    __syncthreads();
    for (int half = threads / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) held[threadIdx.x] = combine(held[threadIdx.x], held[threadIdx.x + half]);
        __syncthreads();
    }
    const T all = held[0];
    __syncthreads();
    return all;
}

struct Larger {
    template <class T>
    __device__ T operator()(T a, T b) const { return a > b ? a : b; }
};

extern "C" __global__ void {{ kernel }}({{ args }})
{
    constexpr int threads = {{ block.x }};
    float sum = 0;
    int best = -2147483647;
    for (int i = threadIdx.x; i < C; i += threads) {
        sum += x[blockIdx.x * C + i];
        best = max(best, n[blockIdx.x * C + i]);
    }
    sum = reduce<threads>(sum, [](float a, float b) { return a + b; });
    best = reduce<threads>(best, Larger());
    if (threadIdx.x == 0) total[blockIdx.x] = sum, largest[blockIdx.x] = best;
}
"""),
    tiles={"R": 1},
    block=64,
)
def row_summary(x: Float32[Array, "R C"], n: Int32[Array, "R C"]) -> Summary[Array]:
    """Sum and maximum of each row, by two instances of one function with shared memory of its own."""
    return Summary(x.sum(axis=1), n.max(axis=1))


@specialize(
    Inline("""
template <int threads, class T>
__global__ void reverse_rows(T* x, const int C)
{
    extern __shared__ unsigned char raw[];
    T* row = reinterpret_cast<T*>(raw);
    T* mine = x + blockIdx.x * C;
    for (int i = threadIdx.x; i < C; i += threads) row[i] = mine[i];
    __syncthreads();
    for (int i = threadIdx.x; i < C; i += threads) mine[i] = row[C - 1 - i];
}
"""),
    entry="reverse_rows<{{ block.x }}, {{ x.ctype }}>",
    tiles={"R": 1},
    block=32,
    shared_bytes="C * x.itemsize",
    mutates="x",
)
def reverse_rows(x: Num[Array, "R C"]) -> None:
    """Each row backwards, in place, by an instance of a kernel template."""
    x[:] = x[:, ::-1].copy()


@specialize(
    Inline("""
// The arena of the block, as three arrays: doubles, then integers, then bytes.
__device__ double* sums() { extern __shared__ double arena[]; return arena; }
__device__ int* counts() { return reinterpret_cast<int*>(sums() + {{ block.x }}); }
__device__ unsigned char* marks() { return reinterpret_cast<unsigned char*>(counts() + {{ block.x }}); }

extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int t = threadIdx.x, first = blockIdx.x * {{ block.x }};
    const bool live = first + t < N;
    sums()[t] = live ? x[first + t] : 0;
    counts()[t] = live ? (int)(x[first + t] > 0) : 0;
    marks()[t] = (unsigned char)(live ? t : 255);
    __syncthreads();
    for (int half = {{ block.x // 2 }}; half > 0; half /= 2) {
        if (t < half) {
            sums()[t] += sums()[t + half];
            counts()[t] += counts()[t + half];
            marks()[t] = marks()[t] < marks()[t + half] ? marks()[t] : marks()[t + half];
        }
        __syncthreads();
    }
    if (t == 0) {
        out[3 * blockIdx.x] = sums()[0];
        out[3 * blockIdx.x + 1] = counts()[0];
        out[3 * blockIdx.x + 2] = marks()[0];
    }
}
"""),
    grid="cdiv(N, threads)",
    block="threads",
    shared_bytes="threads * 13",
)
def carved(x: Float64[Array, " N"], *, threads: int = 64) -> Float64[Array, "(N+threads-1)//threads 3"]:
    """Three arrays carved out of dynamic shared memory, declared in a function."""
    blocks = [x[i : i + threads] for i in range(0, len(x), threads)]
    return np.array([[b.sum(), (b > 0).sum(), 0] for b in blocks])


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    constexpr int tile = {{ tile }}, side = tile + 2;
    __shared__ float held[side][side];
    const int left = blockIdx.x * tile - 1, top = blockIdx.y * tile - 1;
    for (int i = threadIdx.y * tile + threadIdx.x; i < side * side; i += tile * tile) {
        const int column = left + i % side, row = top + i / side;
        held[i / side][i % side] = 0 <= column && column < W && 0 <= row && row < H ? x[row * W + column] : 0;
    }
    __syncthreads();
    const int column = left + 1 + threadIdx.x, row = top + 1 + threadIdx.y;
    if (column >= W || row >= H) return;
    const int u = threadIdx.x + 1, v = threadIdx.y + 1;
    out[row * W + column] = 0.2f * (held[v][u] + held[v][u - 1] + held[v][u + 1] + held[v - 1][u] + held[v + 1][u]);
}
"""),
    tiles={"W": "tile", "H": "tile"},
    block=("tile", "tile"),
)
def stencil(x: Float32[Array, "H W"], *, tile: int = 8) -> Float32[Array, "H W"]:
    """Mean of each cell and its four neighbours; zero outside."""
    p = np.pad(x, 1)
    return 0.2 * (p[1:-1, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] + p[:-2, 1:-1] + p[2:, 1:-1])


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    __shared__ float held[4][6][10];  // a block of 8 x 4 x 2 and one cell around it
    const int x0 = blockIdx.x * 8 - 1, y0 = blockIdx.y * 4 - 1, z0 = blockIdx.z * 2 - 1;
    const int thread = (threadIdx.z * 4 + threadIdx.y) * 8 + threadIdx.x;
    for (int i = thread; i < 4 * 6 * 10; i += 64) {
        const int x = min(max(x0 + i % 10, 0), X - 1);
        const int y = min(max(y0 + i / 10 % 6, 0), Y - 1);
        const int z = min(max(z0 + i / 60, 0), Z - 1);
        held[i / 60][i / 10 % 6][i % 10] = a[(z * Y + y) * X + x];
    }
    __syncthreads();
    const int x = x0 + 1 + threadIdx.x, y = y0 + 1 + threadIdx.y, z = z0 + 1 + threadIdx.z;
    if (x >= X || y >= Y || z >= Z) return;
    const int u = threadIdx.x + 1, v = threadIdx.y + 1, w = threadIdx.z + 1;
    const float mine = held[w][v][u];
    const float around = held[w - 1][v][u] + held[w + 1][v][u] + held[w][v - 1][u] + held[w][v + 1][u]
        + held[w][v][u - 1] + held[w][v][u + 1];
    out[(z * Y + y) * X + x] = mine + 0.1f * (around - 6 * mine);
}
"""),
    tiles={"X": 8, "Y": 4, "Z": 2},
    block=(8, 4, 2),
)
def heat(a: Float32[Array, "Z Y X"]) -> Float32[Array, "Z Y X"]:
    """One step of heat flow in three dimensions; nothing passes the walls."""
    p = np.pad(a, 1, mode="edge")
    i = slice(1, -1)
    around = p[:-2, i, i] + p[2:, i, i] + p[i, :-2, i] + p[i, 2:, i] + p[i, i, :-2] + p[i, i, 2:]
    return a + 0.1 * (around - 6 * a)


class Charges(NamedTuple, Generic[Array]):
    """Two outputs of different sizes."""

    around: Int32[Array, " N"]
    gap: Float32[Array, " N//32"]


@specialize(
    Inline("""
struct Particle {
    float3 place;
    int charge;
};

extern "C" __global__ void {{ kernel }}({{ args }})
{
    __shared__ Particle held[{{ block.x }}];
    __shared__ union { int bits; float value; } nearest;
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const float3 mine = make_float3(at[3 * i], at[3 * i + 1], at[3 * i + 2]);
    held[threadIdx.x] = Particle{mine, charge[i]};
    if (threadIdx.x == 0) nearest.value = 1e30f;
    __syncthreads();
    int sum = 0;
    for (int j = 0; j < {{ block.x }}; ++j) {
        const float dx = held[j].place.x - mine.x, dy = held[j].place.y - mine.y, dz = held[j].place.z - mine.z;
        const float square = fmaf(dz, dz, fmaf(dy, dy, dx * dx));
        if (square < 1) sum += held[j].charge;
        if (j != threadIdx.x) atomicMin(&nearest.bits, __float_as_int(square));  // not negative: in the order of bits
    }
    __syncthreads();
    around[i] = sum;
    if (threadIdx.x == 0) gap[blockIdx.x] = nearest.value;
}
"""),
    grid="N // 32",
    block=32,
    require="N % 32 == 0",
)
def charges(at: Float32[Array, "N xyz=3"], charge: Int32[Array, " N"]) -> Charges[Array]:
    """Charge within a distance of 1 of each particle of a block, and the smallest squared distance in it."""
    around, gap = [], []
    for first in range(0, len(at), 32):
        rows = slice(first, first + 32)
        square = ((at[rows, None] - at[None, rows]) ** 2).sum(axis=2)
        around.append((square < 1) @ charge[rows])
        gap.append(square[~np.eye(32, dtype=bool)].min())
    return Charges(np.concatenate(around), np.array(gap))


CASES = (
    Case(transpose, lambda rng: {"a": normal(rng, 45, 70, dtype="float64")}),
    Case(
        row_summary,
        lambda rng: {"x": normal(rng, 5, 150), "n": integers(rng, -99, 99, 5, 150)},
        near=relative(1e-6, FIXED_ORDER),
    ),
    Case(reverse_rows, lambda rng: {"x": normal(rng, 4, 45, dtype="float64")}, label="double"),
    Case(reverse_rows, lambda rng: {"x": integers(rng, -100, 100, 4, 45, dtype="int8")}, label="char"),
    Case(
        carved,
        lambda rng: {"x": integers(rng, -999, 999, 200, dtype="float64")},
    ),
    Case(stencil, lambda rng: {"x": normal(rng, 19, 27)}, near=relative(5e-7, FIXED_ORDER)),
    Case(heat, lambda rng: {"a": normal(rng, 5, 9, 18)}, near=relative(5e-7, FIXED_ORDER)),
    Case(
        charges,
        lambda rng: {"at": normal(rng, 96, 3), "charge": integers(rng, -5, 5, 96)},
        near=ulps(4, FIXED_ORDER),
    ),
)
