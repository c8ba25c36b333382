"""Constants, variables of the module, caches' hints, and local arrays."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32, Float64, Int32

from cuplate import Array, Inline, specialize
from tests.corpus.case import Case, integers, normal, relative

SINGLE = "the kernel sums in single precision, in one order; the reference in double"


@specialize(
    Inline("""
__constant__ float weights[] = {{ weights }};
constexpr int radius = {{ weights | length }} / 2;

extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N) return;
    float sum = 0;
    for (int k = -radius; k <= radius; ++k)
        if (0 <= i + k && i + k < N) sum += x[i + k] * weights[radius - k];
    out[i] = sum;
}
""")
)
def convolution(
    x: Float32[Array, " N"], *, weights: tuple[float, ...] = (0.0625, 0.25, 0.375, 0.25, 0.0625)
) -> Float32[Array, " N"]:
    """The convolution with weights in constant memory, of equal length."""
    return np.convolve(x, weights, mode="same")


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    // A block holds 16 x 16 elements of the image and a halo; every thread loads several.
    __shared__ float held[20][21];
    __shared__ float kernel_[5][5];
    const int left = blockIdx.x * 16 - 2, top = blockIdx.y * 16 - 2, thread = threadIdx.y * 16 + threadIdx.x;
    if (thread < 25) kernel_[thread / 5][thread % 5] = w[thread];
    for (int i = thread; i < 400; i += 256) {
        const int column = left + i % 20, row = top + i / 20;
        held[i / 20][i % 20] = 0 <= row && row < H && 0 <= column && column < W ? x[row * W + column] : 0.0f;
    }
    __syncthreads();
    const int column = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    if (row >= H || column >= W) return;
    float sum = 0;
    #pragma unroll
    for (int v = 0; v < 5; ++v)
        #pragma unroll
        for (int u = 0; u < 5; ++u) sum += held[threadIdx.y + v][threadIdx.x + u] * kernel_[4 - v][4 - u];
    out[row * W + column] = sum;
}
"""),
    tiles={"W": 16, "H": 16},
    block=(16, 16),
)
def convolution_2d(x: Float32[Array, "H W"], w: Float32[Array, "5 5"]) -> Float32[Array, "H W"]:
    """The convolution of an image with 5 x 5 weights; zero outside."""
    p, (h, width) = np.pad(x, 2), x.shape
    return sum(w[4 - v, 4 - u] * p[v : v + h, u : u + width] for v in range(5) for u in range(5))


@specialize(
    Inline("""
struct Step {
    int scale, shift;
};
__constant__ Step steps[2][2] = { { {3, 1}, {-2, 5} }, { {7, 0}, {1, -9} } };
__constant__ double half = 0.5;
__device__ const int squares[] = {0, 1, 4, 9, 16, 25, 36, 49};
__device__ int biases[4] = {10, 20, 30, 40};

__device__ __noinline__ int square(int n) { return squares[n & 7] + biases[n & 3]; }

extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N) return;
    const Step step = steps[i % 2][x[i] & 1];
    out[i] = step.scale * x[i] + step.shift + square(i) + (int)(half * 8);
}
""")
)
def tables(x: Int32[Array, " N"]) -> Int32[Array, " N"]:
    """Tables in constant and global memory, of structures and of numbers."""
    i = np.arange(len(x))
    steps = np.array([[[3, 1], [-2, 5]], [[7, 0], [1, -9]]])[i % 2, x & 1]
    return steps[:, 0] * x + steps[:, 1] + (i & 7) ** 2 + np.array([10, 20, 30, 40])[i & 3] + 4


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N) return;
    const float4 four = __ldg(reinterpret_cast<const float4*>(x) + i);
    const int2 two = __ldcs(reinterpret_cast<const int2*>(n) + i);
    const int one = __ldcg(n + 2 * i) + __ldca(n + 2 * i + 1);
    __stcs(reinterpret_cast<float2*>(out) + i, make_float2(four.x + four.y, four.z + four.w));
    __stcg(sums + 2 * i, one - two.x);
    __stwb(sums + 2 * i + 1, two.y);
}
"""),
    tiles={"N": 64},
    block=64,
    mutates="sums",
)
def cache_hints(x: Float32[Array, "N 4"], n: Int32[Array, "N 2"], sums: Int32[Array, "N 2"]) -> Float32[Array, "N 2"]:
    """Loads and stores that name a cache."""
    sums[:] = n[:, 1:]
    return np.stack([x[:, 0] + x[:, 1], x[:, 2] + x[:, 3]], axis=1)


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    // The median of seven: an array of the thread, sorted in place.
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N) return;
    double window[7];
    int n = 0;
    for (int k = max(i - 3, 0); k <= min(i + 3, N - 1); ++k) {
        int at = n++;
        for (; at > 0 && window[at - 1] > x[k]; --at) window[at] = window[at - 1];
        window[at] = x[k];
    }
    out[i] = window[n / 2];
}
""")
)
def median_filter(x: Float64[Array, " N"]) -> Float64[Array, " N"]:
    """The median of each element's neighbourhood of seven."""
    windows = [np.sort(x[max(i - 3, 0) : i + 4]) for i in range(len(x))]
    return np.array([w[len(w) // 2] for w in windows])


CASES = (
    Case(convolution, lambda rng: {"x": normal(rng, 500)}, near=relative(5e-7, SINGLE)),
    Case(
        convolution_2d,
        lambda rng: {"x": normal(rng, 21, 35), "w": normal(rng, 5, 5)},
        near=relative(1e-6, SINGLE),
    ),
    Case(tables, lambda rng: {"x": integers(rng, -99, 100, 300)}),
    Case(
        cache_hints,
        lambda rng: {
            "x": normal(rng, 100, 4),
            "n": integers(rng, -99, 100, 100, 2),
            "sums": np.zeros((100, 2), "int32"),
        },
    ),
    Case(median_filter, lambda rng: {"x": normal(rng, 300, dtype="float64")}),
)
