"""Half precision and bfloat16, alone and in pairs. bfloat16 has no dtype in NumPy and travels as its bits."""

from __future__ import annotations

from typing import Generic, NamedTuple

import numpy as np
from jaxtyping import Float16, Float32, Int32, UInt16

from cuplate import Array, Inline, f32, specialize
from tests.corpus.case import Case, normal, relative, ulps, uniform

HALF_MATH = "each side rounds a function of single precision, which may be off by its last bit"


def to_bfloat16(x: np.ndarray) -> np.ndarray:
    """The bits of the nearest bfloat16; ties to even. From double precision, rounded once."""
    single = np.asarray(x, np.float64).astype(np.float32)
    # A value that rounds to single first may come to lie on a tie: step back to the odd side, so that nothing is lost.
    inexact = single.astype(np.float64) != x
    towards = np.nextafter(single, np.where(single.astype(np.float64) > x, -np.inf, np.inf).astype(np.float32))
    odd = np.where(inexact & (single.view(np.uint32) % 2 == 0), towards, single).astype(np.float32)
    word = odd.view(np.uint32).astype(np.uint64)
    return ((word + 0x7FFF + (word >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)).astype(np.uint16)


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    """The values of bfloat16 bits, in double precision."""
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


@specialize(
    Inline("""
#include <cuda_fp16.h>

extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const __half2 factor = __float2half2_rn(alpha);
    if (2 * i + 1 < N) {
        const __half2* pairs = reinterpret_cast<const __half2*>(x);
        const __half2 y2 = __halves2half2(y[2 * i], y[2 * i + 1]);
        reinterpret_cast<__half2*>(out)[i] = __hfma2(factor, pairs[i], y2);
    } else if (2 * i < N) {
        out[2 * i] = __hfma(__low2half(factor), x[2 * i], y[2 * i]);
    }
}
"""),
    grid="cdiv(N, 2 * 64)",
    block=64,
)
def half_axpy(alpha: f32, x: Float16[Array, " N"], y: Float16[Array, " N"]) -> Float16[Array, " N"]:
    """alpha * x + y in half precision, rounded once, two at a time."""
    return np.float64(np.float16(alpha)) * x + y


class HalfResults(NamedTuple, Generic[Array]):
    """Single values, pairs, and bits of comparisons."""

    single: Float16[Array, "16 N"]
    pairs: Float16[Array, " 2*N"]
    truth: Int32[Array, " N"]


@specialize(
    Inline("""
#include <cuda_fp16.h>

extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N) return;
    const __half a = x[i], b = y[i];
    const __half results[] = {
        __hadd(a, b), __hsub(a, b), __hmul_rn(a, b), __hneg(a), __habs(a), __hmin(a, b), __hmax(a, b),
        hsqrt(__habs(a)), hfloor(a), hceil(a), htrunc(a), hrint(a), a + b, -a, __hadd_sat(a, b),
        __shfl_xor_sync(__activemask(), a, 0),
    };
    for (int k = 0; k < 16; ++k) single[k * N + i] = results[k];
    __half2 two = __halves2half2(a, b);
    two = __lowhigh2highlow(__hadd2(two, __half2half2(a)));
    pairs[2 * i] = __low2half(two), pairs[2 * i + 1] = __high2half(two);
    truth[i] = __hlt(a, b) | __hge(a, b) << 1 | __heq(a, a) << 2 | (a > b) << 3 | __hisnan(a) << 4 | (a != b) << 5;
}
"""),
    tiles={"N": 64},
    block=64,
)
def half_arithmetic(x: Float16[Array, " N"], y: Float16[Array, " N"]) -> HalfResults[Array]:
    """Sums, comparisons and roots of halves; each result is defined to the bit."""
    rows = [
        x + y, x - y, x * y, -x, abs(x), np.minimum(x, y), np.maximum(x, y), np.sqrt(abs(x)), np.floor(x), np.ceil(x),
        np.trunc(x), np.rint(x), x + y, -x, np.clip(x + y, 0, 1), x,
    ]  # fmt: skip
    truth = (x < y) | (x >= y) * 2 | 4 | (x > y) * 8 | (x != y) * 32
    return HalfResults(np.array(rows), np.stack([x + y, x + x], axis=1).reshape(-1), truth)


class HalfConversions(NamedTuple, Generic[Array]):
    """To half and from it."""

    halves: Float16[Array, "7 N"]
    words: Int32[Array, "5 N"]


@specialize(
    Inline("""
#include <cuda_fp16.h>

extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N) return;
    halves[i] = __float2half_rn(x[i]);
    halves[N + i] = __float2half_rz(x[i]);
    halves[2 * N + i] = __float2half_ru(x[i]);
    halves[3 * N + i] = __float2half_rd(x[i]);
    halves[4 * N + i] = __double2half((double)x[i] / 3);
    halves[5 * N + i] = __int2half_rn((int)x[i]);
    halves[6 * N + i] = (__half)(x[i] * 0.25f);
    const __half h = halves[i];
    words[i] = __half2int_rn(h);
    words[N + i] = __half2int_rz(h);
    words[2 * N + i] = (int)__half2float(h);
    words[3 * N + i] = __half_as_ushort(h);
    words[4 * N + i] = __half_as_short(__ushort_as_half((unsigned short)(i * 17)));
}
"""),
    tiles={"N": 64},
    block=64,
)
def half_conversions(x: Float32[Array, " N"]) -> HalfConversions[Array]:
    """Floats and integers to half in every way of rounding, and back."""
    nearest = x.astype(np.float16)
    up = np.where(nearest.astype(np.float64) < x, np.nextafter(nearest, np.float16(np.inf)), nearest)
    down = np.where(nearest.astype(np.float64) > x, np.nextafter(nearest, np.float16(-np.inf)), nearest)
    towards_zero = np.where(x < 0, up, down)
    halves = [nearest, towards_zero, up, down, x / 3, np.trunc(x) + 0.0, x * 0.25]
    h = nearest.astype(np.float64)
    words = [np.rint(h), np.trunc(h), np.trunc(h), nearest.view(np.uint16), (np.arange(len(x)) * 17).astype(np.int16)]
    return HalfConversions(np.array([np.asarray(row).astype(np.float16) for row in halves]), np.array(words))


@specialize(
    Inline("""
#include <cuda_fp16.h>

extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N) return;
    out[i] = hexp(x[i]);
    out[N + i] = hlog(x[i]);
    out[2 * N + i] = hsin(x[i]);
    out[3 * N + i] = hcos(x[i]);
    out[4 * N + i] = hrsqrt(x[i]);
    out[5 * N + i] = hrcp(x[i]);
    out[6 * N + i] = __hdiv(__float2half(1.5f), x[i]);
    out[7 * N + i] = hexp2(x[i]);
    out[8 * N + i] = hlog2(x[i]);
    const __half2 both = h2exp(__half2half2(x[i]));
    out[9 * N + i] = __low2half(both);
}
"""),
    tiles={"N": 64},
    block=64,
)
def half_math(x: Float16[Array, " N"]) -> Float16[Array, "10 N"]:
    """Functions of halves."""
    return np.array([
        np.exp(x), np.log(x), np.sin(x), np.cos(x), x**-0.5, 1 / x, 1.5 / x, 2**x, np.log2(x), np.exp(x),
    ])  # fmt: skip


class BrainResults(NamedTuple, Generic[Array]):
    """As bits, and as floats."""

    bits: UInt16[Array, "14 N"]
    wide: Float32[Array, "2 N"]


@specialize(
    Inline("""
#include <cuda_bf16.h>

extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N) return;
    const __nv_bfloat16 a = reinterpret_cast<const __nv_bfloat16*>(x)[i];
    const __nv_bfloat16 b = reinterpret_cast<const __nv_bfloat16*>(y)[i];
    const __nv_bfloat16 results[] = {
        __hadd(a, b), __hsub(a, b), __hmul_rn(a, b), __hfma(a, b, a), __hmax(a, b), __hmin(a, b), __habs(a), __hneg(a),
        a + b, __float2bfloat16(z[i]), __int2bfloat16_rn((int)(1000 * z[i])), __float2bfloat16_rz(z[i]),
    };
    for (int k = 0; k < 12; ++k) bits[k * N + i] = __bfloat16_as_ushort(results[k]);
    const __nv_bfloat162 two = __hfma2(__halves2bfloat162(a, b), __bfloat162bfloat162(b), __float2bfloat162_rn(0.5f));
    bits[12 * N + i] = __bfloat16_as_ushort(__low2bfloat16(two));
    bits[13 * N + i] = __bfloat16_as_ushort(__high2bfloat16(two));
    wide[i] = __bfloat162float(a) + (float)b;
    wide[N + i] = __hgt(a, b) + 2 * (a < b) + 4 * __heq(b, b);
}
"""),
    tiles={"N": 64},
    block=64,
)
def bfloat16_arithmetic(x: UInt16[Array, " N"], y: UInt16[Array, " N"], z: Float32[Array, " N"]) -> BrainResults[Array]:
    """Sums, products and comparisons of bfloat16, and conversions."""
    a, b = from_bfloat16(x), from_bfloat16(y)
    cut = (z.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    rows = [
        a + b, a - b, a * b, a * b + a, np.maximum(a, b), np.minimum(a, b), abs(a), -a, a + b, z,
        np.trunc(np.float32(1000) * z.astype(np.float32)),
    ]  # fmt: skip
    pairs = [a * b + 0.5, b * b + 0.5]
    bits = [*map(to_bfloat16, rows), cut, *map(to_bfloat16, pairs)]
    return BrainResults(np.array(bits), np.array([a + b, (a > b) + 2 * (a < b) + 4]))


@specialize(
    Inline("""
#include <cuda_fp16.h>

extern "C" __global__ void {{ kernel }}({{ args }})
{
    // One warp a row; products of halves are exact in single precision.
    const __half2* a = reinterpret_cast<const __half2*>(x + blockIdx.x * C);
    const __half2* b = reinterpret_cast<const __half2*>(y);
    float sum = 0;
    for (int i = threadIdx.x; i < C / 2; i += 32) {
        const float2 u = __half22float2(a[i]), v = __half22float2(b[i]);
        sum += u.x * v.x;
        sum += u.y * v.y;
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x == 0) out[blockIdx.x] = __float2half(sum);
}
"""),
    tiles={"R": 1},
    block=32,
    require="C % 2 == 0",
)
def half_dot(x: Float16[Array, "R C"], y: Float16[Array, " C"]) -> Float16[Array, " R"]:
    """x @ y, added up in single precision."""
    return x @ y


CASES = (
    Case(half_axpy, lambda rng: {n: normal(rng, 301, dtype="float16") for n in "xy"}, {"alpha": 0.3}),
    Case(half_arithmetic, lambda rng: {n: normal(rng, 150, dtype="float16") for n in "xy"}),
    Case(
        half_conversions,
        lambda rng: {"x": np.concatenate([30 * normal(rng, 120), 1e-6 * normal(rng, 10)]).astype("float32")},
    ),
    Case(
        half_math,
        lambda rng: {"x": uniform(rng, 0.1, 4, 150, dtype="float16")},
        near=ulps(2, HALF_MATH),
        agrees=ulps(1, HALF_MATH),
    ),
    Case(
        bfloat16_arithmetic,
        lambda rng: {**{n: to_bfloat16(normal(rng, 150)) for n in "xy"}, "z": normal(rng, 150)},
    ),
    Case(
        half_dot,
        lambda rng: {"x": normal(rng, 7, 98, dtype="float16"), "y": normal(rng, 98, dtype="float16")},
        near=relative(1e-3, "the result is rounded to half; the sum is of single precision"),
    ),
)
