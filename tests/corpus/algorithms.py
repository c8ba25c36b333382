"""Kernels that people write: normalizations, scans, random numbers, transforms, attention."""

from __future__ import annotations

import numpy as np
from jaxtyping import Complex64, Float32, Int32, UInt32

from cuplate import Array, Inline, f32, specialize, u32
from tests.corpus.case import Case, integers, normal, relative

SINGLE = "the kernel sums in single precision, in one order; the reference in double"
EXPONENTIAL = "the exponential of CUDA against the C library's: each within an ulp or two"


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    // One pass for maximum and sum: each thread keeps both, and merges with others.
    struct Part { float most, sum; };
    auto merge = [](Part a, Part b) {
        const float most = fmaxf(a.most, b.most);
        return Part{most, a.sum * expf(a.most - most) + b.sum * expf(b.most - most)};
    };
    __shared__ Part parts[{{ block.x // 32 }}];
    const float* from = x + blockIdx.x * C;
    Part mine = {-3.4e38f, 0.0f};
    for (int i = threadIdx.x; i < C; i += blockDim.x) mine = merge(mine, Part{from[i], 1.0f});
    for (int step = 16; step > 0; step /= 2) {
        const Part other = {__shfl_xor_sync(~0u, mine.most, step), __shfl_xor_sync(~0u, mine.sum, step)};
        mine = merge(mine, other);
    }
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = mine;
    __syncthreads();
    mine = parts[0];
    for (int warp = 1; warp < {{ block.x // 32 }}; ++warp) mine = merge(mine, parts[warp]);
    for (int i = threadIdx.x; i < C; i += blockDim.x) out[blockIdx.x * C + i] = expf(from[i] - mine.most) / mine.sum;
}
"""),
    tiles={"R": 1},
    block=96,
)
def softmax(x: Float32[Array, "R C"]) -> Float32[Array, "R C"]:
    """The softmax of each row, in one pass over it."""
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


@specialize(
    Inline("""
struct Moments {
    float count, mean, square;  // square: the sum of squared distances from the mean
};

__device__ Moments merge(Moments a, Moments b)
{
    const float count = a.count + b.count;
    if (count == 0) return a;
    const float distance = b.mean - a.mean, share = b.count / count;
    const float square = fmaf(distance * distance, a.count * share, a.square + b.square);
    return Moments{count, fmaf(distance, share, a.mean), square};
}

extern "C" __global__ void {{ kernel }}({{ args }})
{
    // One warp a row.
    const int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= R) return;
    Moments moments = {0, 0, 0};
    for (int i = threadIdx.x; i < C; i += 32) moments = merge(moments, Moments{1, x[row * C + i], 0});
    for (int step = 16; step > 0; step /= 2) {
        Moments other;
        other.count = __shfl_xor_sync(0xffffffffu, moments.count, step);
        other.mean = __shfl_xor_sync(0xffffffffu, moments.mean, step);
        other.square = __shfl_xor_sync(0xffffffffu, moments.square, step);
        // Both lanes of a pair merge in one order, so that both get the same.
        moments = threadIdx.x & step ? merge(other, moments) : merge(moments, other);
    }
    const float scale = 1.0f / sqrtf(moments.square / C + epsilon);
    for (int i = threadIdx.x; i < C; i += 32)
        out[row * C + i] = fmaf((x[row * C + i] - moments.mean) * scale, weight[i], bias[i]);
}
"""),
    tiles={"R": 4},
    block=(32, 4),
)
def layer_norm(
    x: Float32[Array, "R C"], weight: Float32[Array, " C"], bias: Float32[Array, " C"], epsilon: f32
) -> Float32[Array, "R C"]:
    """Rows of mean 0 and variance 1, scaled and shifted; moments by Welford's merging."""
    centred = x - x.mean(axis=1, keepdims=True)
    return centred / np.sqrt(x.var(axis=1, keepdims=True) + epsilon) * weight + bias


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    // Up and down a tree over 256 elements of a row; two a thread.
    extern __shared__ int tree[];
    const int t = threadIdx.x;
    int carry = 0;
    for (int first = 0; first < C; first += 256) {
        for (int i = t; i < 256; i += 128) tree[i] = first + i < C ? x[blockIdx.x * C + first + i] : 0;
        int step = 1;
        for (int width = 128; width > 0; width /= 2, step *= 2) {
            __syncthreads();
            if (t < width) tree[step * (2 * t + 2) - 1] += tree[step * (2 * t + 1) - 1];
        }
        __syncthreads();
        const int total = tree[255];
        __syncthreads();
        if (t == 0) tree[255] = 0;
        for (int width = 1; width < 256; width *= 2) {
            step /= 2;
            __syncthreads();
            if (t < width) {
                const int low = step * (2 * t + 1) - 1, high = step * (2 * t + 2) - 1, kept = tree[low];
                tree[low] = tree[high];
                tree[high] += kept;
            }
        }
        __syncthreads();
        for (int i = t; i < 256; i += 128) if (first + i < C) out[blockIdx.x * C + first + i] = carry + tree[i];
        carry += total;
        __syncthreads();
    }
}
"""),
    tiles={"R": 1},
    block=128,
    shared_bytes=1024,
)
def exclusive_scan(x: Int32[Array, "R C"]) -> Int32[Array, "R C"]:
    """The sum of what stands before each element of a row, by Blelloch's tree."""
    return np.cumsum(x, axis=1) - x


@specialize(
    Inline("""
__device__ uint4 ten_rounds(uint4 counter, uint2 key)
{
    #pragma unroll
    for (int turn = 0; turn < 10; ++turn) {
        const unsigned int high0 = __umulhi(0xD2511F53u, counter.x), low0 = 0xD2511F53u * counter.x;
        const unsigned int high1 = __umulhi(0xCD9E8D57u, counter.z), low1 = 0xCD9E8D57u * counter.z;
        counter = make_uint4(high1 ^ counter.y ^ key.x, low1, high0 ^ counter.w ^ key.y, low0);
        key.x += 0x9E3779B9u, key.y += 0xBB67AE85u;
    }
    return counter;
}

extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N) return;
    const uint4 bits = ten_rounds(make_uint4(i, 0, stream_, 0), make_uint2(seed, ~seed));
    reinterpret_cast<uint4*>(words)[i] = bits;
    const float scale = 1.0f / 4294967296.0f;
    reinterpret_cast<float4*>(share)[i]
        = make_float4(bits.x * scale, bits.y * scale, bits.z * scale, (bits.w >> 8) * (1.0f / 16777216.0f));
}
"""),
    tiles={"N": 64},
    block=64,
    mutates=("words", "share"),
)
def philox(seed: u32, stream_: u32, words: UInt32[Array, "N 4"], share: Float32[Array, "N 4"]) -> None:
    """Random words by Philox 4x32-10 (Salmon et al., 2011), and floats of them."""
    mask = 0xFFFFFFFF
    for i in range(len(words)):
        a, b, c, d = i, 0, stream_, 0
        u, v = seed, ~seed & mask
        for _ in range(10):
            p, q = 0xD2511F53 * a, 0xCD9E8D57 * c
            a, b, c, d = q >> 32 ^ b ^ u, q & mask, p >> 32 ^ d ^ v, p & mask
            u, v = u + 0x9E3779B9 & mask, v + 0xBB67AE85 & mask
        words[i] = a, b, c, d
    share[:] = words.astype(np.float32) / np.float32(2**32)
    share[:, 3] = (words[:, 3] >> 8) / 2**24


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    // A row of 128, two elements a thread, in stages of doubling width.
    __shared__ float2 held[128];
    const int t = threadIdx.x;
    for (int i = t; i < 128; i += 64) held[__brev((unsigned int)i) >> 25] = x[blockIdx.x * 128 + i];
    for (int half = 1; half < 128; half *= 2) {
        __syncthreads();
        const int low = t / half * 2 * half + t % half, high = low + half;
        float s, c;
        sincospif(-(float)(t % half) / half, &s, &c);
        const float2 a = held[low], b = held[high];
        const float2 turned = make_float2(fmaf(c, b.x, -__fmul_rn(s, b.y)), fmaf(c, b.y, __fmul_rn(s, b.x)));
        held[low] = make_float2(a.x + turned.x, a.y + turned.y);
        held[high] = make_float2(a.x - turned.x, a.y - turned.y);
    }
    __syncthreads();
    for (int i = t; i < 128; i += 64) out[blockIdx.x * 128 + i] = held[i];
}
"""),
    tiles={"R": 1},
    block=64,
)
def fourier(x: Complex64[Array, "R n=128"]) -> Complex64[Array, "R n=128"]:
    """The Fourier transform of each row, in shared memory."""
    return np.fft.fft(x, axis=1)


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    __shared__ float4 others[32];
    const int i = blockIdx.x * 32 + threadIdx.x;
    const float4 mine = i < N ? reinterpret_cast<const float4*>(body)[i] : make_float4(0, 0, 0, 0);
    float3 pull = make_float3(0, 0, 0);
    for (int first = 0; first < N; first += 32) {
        if (first + threadIdx.x < N) others[threadIdx.x] = reinterpret_cast<const float4*>(body)[first + threadIdx.x];
        __syncthreads();
        for (int j = 0; j < min(32, N - first); ++j) {
            const float4 o = others[j];
            const float dx = o.x - mine.x, dy = o.y - mine.y, dz = o.z - mine.z;
            const float near = rsqrtf(fmaf(dx, dx, fmaf(dy, dy, fmaf(dz, dz, 0.01f))));
            const float weight = o.w * near * near * near;
            pull.x = fmaf(weight, dx, pull.x), pull.y = fmaf(weight, dy, pull.y), pull.z = fmaf(weight, dz, pull.z);
        }
        __syncthreads();
    }
    if (i < N) out[3 * i] = pull.x, out[3 * i + 1] = pull.y, out[3 * i + 2] = pull.z;
}
"""),
    tiles={"N": 32},
    block=32,
    require="body.aligned(16)",
)
def gravity(body: Float32[Array, "N xyzm=4"]) -> Float32[Array, "N xyz=3"]:
    """The pull of all bodies on each, tile by tile."""
    d = body[None, :, :3] - body[:, None, :3]
    weight = body[None, :, 3] * ((d**2).sum(axis=2) + np.float32(0.01)) ** -1.5
    return (weight[:, :, None] * d).sum(axis=1)


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    // A block of 32 queries, one a thread; keys and values in tiles of 16. The sum is rescaled when the maximum grows.
    constexpr int D = {{ D }}, tile = 16;
    __shared__ float keys[tile][D], values[tile][D];
    const int row = blockIdx.x * 32 + threadIdx.x;
    float query[D], sum[D] = {}, most = -3.4e38f, weight = 0;
    if (row < M)
        for (int d = 0; d < D; ++d) query[d] = q[row * D + d] * scale;
    for (int first = 0; first < N; first += tile) {
        for (int i = threadIdx.x; i < tile * D; i += 32) {
            const bool inside = first + i / D < N;
            keys[i / D][i % D] = inside ? k[first * D + i] : 0;
            values[i / D][i % D] = inside ? v[first * D + i] : 0;
        }
        __syncthreads();
        if (row < M) {
            for (int j = 0; j < tile && first + j < N; ++j) {
                {% if causal %}
                if (first + j > row) break;
                {% endif %}
                float score = 0;
                for (int d = 0; d < D; ++d) score += query[d] * keys[j][d];
                const float now = fmaxf(most, score), kept = expf(most - now), share = expf(score - now);
                weight = fmaf(weight, kept, share);
                for (int d = 0; d < D; ++d) sum[d] = fmaf(sum[d], kept, share * values[j][d]);
                most = now;
            }
        }
        __syncthreads();
    }
    if (row < M)
        for (int d = 0; d < D; ++d) out[row * D + d] = sum[d] / weight;
}
"""),
    tiles={"M": 32},
    block=32,
    static="D",
)
def attention(
    q: Float32[Array, "M D"], k: Float32[Array, "N D"], v: Float32[Array, "N D"], scale: f32, *, causal: bool = False
) -> Float32[Array, "M D"]:
    """Softmax of q @ k.T times v, without the matrix of scores."""
    scores = scale * (q @ k.T)
    if causal:
        scores[np.arange(len(k)) > np.arange(len(q))[:, None]] = -np.inf
    e = np.exp(scores - scores.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True) @ v


CASES = (
    Case(
        softmax,
        lambda rng: {"x": 3 * normal(rng, 5, 250)},
        near=relative(1e-6, EXPONENTIAL),
        agrees=relative(1e-6, EXPONENTIAL),
    ),
    Case(
        layer_norm,
        lambda rng: {"x": 2 + 3 * normal(rng, 6, 150), "weight": normal(rng, 150), "bias": normal(rng, 150)},
        {"epsilon": 1e-5},
        near=relative(2e-6, SINGLE),
    ),
    Case(exclusive_scan, lambda rng: {"x": integers(rng, -99, 100, 3, 600)}),
    Case(
        philox,
        lambda rng: {"words": np.zeros((100, 4), "uint32"), "share": np.zeros((100, 4), "float32")},
        {"seed": 0x12345678, "stream_": 3},
    ),
    Case(
        fourier,
        lambda rng: {"x": (normal(rng, 4, 128) + 1j * normal(rng, 4, 128)).astype("complex64")},
        near=relative(1e-6, SINGLE),
        agrees=relative(5e-7, "sines and cosines of CUDA against the C library's"),
    ),
    Case(
        gravity,
        lambda rng: {"body": abs(normal(rng, 90, 4))},
        near=relative(3e-6, SINGLE),
        agrees=relative(2e-6, "the reciprocal root of the GPU is within 2 ulps; the CPU's is rounded"),
    ),
    *(
        Case(
            attention,
            lambda rng: {"q": normal(rng, 40, 24), "k": normal(rng, 40, 24), "v": normal(rng, 40, 24)},
            {"scale": 0.2, "causal": causal},
            near=relative(2e-6, EXPONENTIAL),
            agrees=relative(2e-6, EXPONENTIAL),
            label="causal" if causal else "full",
        )
        for causal in (False, True)
    ),
)
