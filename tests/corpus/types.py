"""Vector types, conversions and operations on bits."""

from __future__ import annotations

from typing import Generic, NamedTuple

import numpy as np
from jaxtyping import Complex64, Float32, Float64, Int32, Int64, UInt8, UInt32, UInt64

from cuplate import Array, Inline, f32, specialize
from tests.corpus.case import Case, integers, normal, relative, uniform

# name, elements' size, elements; sizes and alignments are those of the CUDA C++ guide: of 1, 2 and 4 elements whole.
SCALARS = {"char": 1, "uchar": 1, "short": 2, "ushort": 2, "int": 4, "uint": 4, "float": 4, "longlong": 8, "double": 8}
VECTORS = tuple(
    f"{name}{n}" for name, size in SCALARS.items() for n in (1, 2, 3, 4) if size * n <= 16 and (size, n) != (8, 3)
)


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    {% for type in types %}
    out[{{ 2 * loop.index0 }}] = sizeof({{ type }});
    out[{{ 2 * loop.index0 + 1 }}] = alignof({{ type }});
    {% endfor %}
}
"""),
    grid=1,
    block=1,
)
def vector_layout(x: Int32[Array, " N"], *, types: tuple[str, ...] = VECTORS) -> Int32[Array, "N 2"]:
    """Size and alignment of the vector types."""
    result = []
    for name in types:
        size, n = SCALARS[name[:-1]], int(name[-1])
        result.append((size * n, size if n == 3 else min(size * n, 16)))
    return np.array(result)


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (4 * i + 3 < N) {
        const float4 v = reinterpret_cast<const float4*>(x)[i];
        reinterpret_cast<float4*>(out)[i] = make_float4(factor * v.x, factor * v.y, factor * v.z, factor * v.w);
        return;
    }
    for (int j = 4 * i; j < N; ++j) out[j] = factor * x[j];
}
"""),
    grid="cdiv(N, 4 * 64)",
    block=64,
    require=("x.aligned(16)", "out.aligned(16)"),
)
def scale_by_four(x: Float32[Array, " N"], factor: f32) -> Float32[Array, " N"]:
    """factor * x, four elements at once, and the rest one by one."""
    return factor * x


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N) return;
    const uchar4 pixel = reinterpret_cast<const uchar4*>(x)[i];
    const int grey = (77 * pixel.x + 150 * pixel.y + 29 * pixel.z) >> 8;
    reinterpret_cast<uchar4*>(out)[i] = make_uchar4(grey, grey, grey, pixel.w);
    uchar3 turned = reinterpret_cast<const uchar3*>(y)[i];
    turned = make_uchar3(turned.z, turned.x, turned.y);
    reinterpret_cast<uchar3*>(y)[i] = turned;
}
"""),
    tiles={"N": 64},
    block=64,
    mutates="y",
)
def pixels(x: UInt8[Array, "N rgba=4"], y: UInt8[Array, "N rgb=3"]) -> UInt8[Array, "N rgba=4"]:
    """Grey values of four bytes, and three bytes in turn, in place."""
    grey = (x[:, :3].astype(np.int64) @ [77, 150, 29]) >> 8
    y[:] = np.roll(y, 1, axis=1)
    return np.stack([grey, grey, grey, x[:, 3]], axis=1)


@specialize(
    Inline("""
__device__ double2 operator+(double2 a, double2 b) { return make_double2(a.x + b.x, a.y + b.y); }

extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N) return;
    const short4 s = reinterpret_cast<const short4*>(x)[i];  // 8 bytes
    const int2 n = reinterpret_cast<const int2*>(x)[i];
    const uint2 u = reinterpret_cast<const uint2*>(x)[i];
    const longlong2 l = make_longlong2(x[i], ~x[i]);
    const double2 sum = make_double2(s.x, s.y) + make_double2(s.z, s.w);
    const float3 f = make_float3(u.x % 1000u, u.y % 1000u, s.x);
    reinterpret_cast<longlong2*>(out)[3 * i] = l;
    reinterpret_cast<longlong2*>(out)[3 * i + 1] = longlong2{(long long)sum.x, (long long)sum.y};
    out[6 * i + 4] = (long long)n.x - n.y;
    out[6 * i + 5] = (long long)(f.x + f.y + f.z);
}
"""),
    tiles={"N": 64},
    block=64,
)
def vectors(x: Int64[Array, " N"]) -> Int64[Array, "N 6"]:
    """Eight bytes as short4, int2, uint2; pairs of long long and double; a float3."""
    s, n, u = (x.view(d).reshape(len(x), -1) for d in ("int16", "int32", "uint32"))
    s, n, u = s.astype(np.int64), n.astype(np.int64), u.astype(np.int64)
    last = u[:, 0] % 1000 + u[:, 1] % 1000 + s[:, 0]
    return np.stack([x, ~x, s[:, 0] + s[:, 2], s[:, 1] + s[:, 3], n[:, 0] - n[:, 1], last], axis=1)


@specialize(
    Inline("""
__device__ float2 times(float2 a, float2 b)
{
    return make_float2(fmaf(a.x, b.x, -__fmul_rn(a.y, b.y)), fmaf(a.x, b.y, __fmul_rn(a.y, b.x)));
}

extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N) return;
    float2 value = x[N];
    for (int k = N - 1; k >= 0; --k) {
        value = times(value, z[i]);
        value.x += x[k].x, value.y += x[k].y;
    }
    out[i] = value;
}
"""),
    tiles={"N": 32},
    block=32,
)
def polynomial(x: Complex64[Array, " N+1"], z: Complex64[Array, " N"]) -> Complex64[Array, " N"]:
    """A polynomial of complex numbers by Horner's rule, on float2."""
    return np.polyval(x[::-1], z)


class Converted(NamedTuple, Generic[Array]):
    """By dtype of the result."""

    words: Int32[Array, "10 N"]
    longs: Int64[Array, "8 N"]
    floats: Float32[Array, "8 N"]
    doubles: Float64[Array, "4 N"]


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N) return;
    words[i] = __float2int_rn(x[i]);
    words[N + i] = __float2int_rz(x[i]);
    words[2 * N + i] = __float2int_ru(x[i]);
    words[3 * N + i] = __float2int_rd(x[i]);
    words[4 * N + i] = (int)__float2uint_rn(x[i]);
    words[5 * N + i] = __double2int_rn(1.5 * x[i]);
    words[6 * N + i] = __float_as_int(x[i]);
    words[7 * N + i] = (int)__float_as_uint(x[i]);
    words[8 * N + i] = __double2hiint((double)x[i]);
    words[9 * N + i] = __double2loint((double)x[i] / 3);

    longs[i] = __float2ll_rn(x[i]);
    longs[N + i] = __float2ll_rz(x[i]);
    longs[2 * N + i] = __double2ll_rn(2.5 * x[i]);
    longs[3 * N + i] = __double2ll_rd(2.5 * x[i]);
    longs[4 * N + i] = (long long)__float2ull_rz(x[i]);
    longs[5 * N + i] = __double_as_longlong((double)x[i]);
    longs[6 * N + i] = (long long)(signed char)n[i];
    longs[7 * N + i] = (long long)(unsigned short)n[i];

    floats[i] = __int2float_rn((int)n[i]);
    floats[N + i] = __uint2float_rn((unsigned int)n[i]);
    floats[2 * N + i] = __ll2float_rn(n[i]);
    floats[3 * N + i] = __ull2float_rn((unsigned long long)n[i]);
    floats[4 * N + i] = __double2float_rn((double)n[i] / 7);
    floats[5 * N + i] = __int_as_float((int)n[i] & 0x3fffffff);
    floats[6 * N + i] = __uint_as_float((unsigned int)n[i] & 0x3fffffffu);
    floats[7 * N + i] = (float)(n[i] & 0xff) / 3.0f;

    doubles[i] = __int2double_rn((int)n[i]);
    doubles[N + i] = __ll2double_rn(n[i]);
    doubles[2 * N + i] = __longlong_as_double(n[i] & 0x3fffffffffffffffll);
    doubles[3 * N + i] = __hiloint2double((int)n[i] & 0x3fffffff, (int)(n[i] >> 32));
}
"""),
    tiles={"N": 64},
    block=64,
)
def conversions(x: Float32[Array, " N"], n: Int64[Array, " N"]) -> Converted[Array]:
    """Between integers and floats in every way of rounding, with saturation, and bits as they are."""
    top, low = 2.0**31 - 1, -(2.0**31)
    x32, word = x.astype(np.float32), n.astype(np.int32)
    doubles = x.view(np.uint64), (x / 3).view(np.uint64)
    words = [
        *(np.clip(f(x), low, top) for f in (np.rint, np.trunc, np.ceil, np.floor)),
        np.clip(np.rint(x), 0, 2.0**32 - 1).astype(np.uint32).view(np.int32),
        np.clip(np.rint(1.5 * x), low, top),
        x32.view(np.int32),
        x32.view(np.int32),
        (doubles[0] >> np.uint64(32)).astype(np.uint32).view(np.int32),
        doubles[1].astype(np.uint32).view(np.int32),
    ]
    longs = [
        np.rint(x), np.trunc(x), np.rint(2.5 * x), np.floor(2.5 * x), np.clip(np.trunc(x), 0, None),
        x.view(np.int64), n.astype(np.int8), n.astype(np.uint16),
    ]  # fmt: skip
    floats = [
        word.astype(np.float32), n.astype(np.uint32).astype(np.float32), n.astype(np.float32),
        n.view(np.uint64).astype(np.float32), n.astype(np.float64) / 7, (word & 0x3FFFFFFF).view(np.float32),
        (word & 0x3FFFFFFF).view(np.float32), (n & 0xFF).astype(np.float32) / np.float32(3),
    ]  # fmt: skip
    high = (word & 0x3FFFFFFF).astype(np.uint64) << np.uint64(32)
    made = high | (n >> 32).astype(np.uint32).astype(np.uint64)
    exact = [word, n.astype(np.float64), (n & 0x3FFFFFFFFFFFFFFF).view(np.float64), made.view(np.float64)]
    return Converted(
        np.array([np.asarray(row).astype(np.int32) for row in words]),
        np.array([np.asarray(row).astype(np.int64) for row in longs]),
        np.array([np.asarray(row).astype(np.float32) for row in floats]),
        np.array(exact),
    )


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N) return;
    const unsigned int u = x[i], v = y[i], w = u ^ (v >> 3);
    const int a = (int)u, b = (int)v;
    const unsigned int results[] = {
        (unsigned int)__popc(u), (unsigned int)__clz(a), (unsigned int)__ffs(a), __brev(u),
        __byte_perm(u, v, w & 0x7777u), __funnelshift_l(u, v, w), __funnelshift_r(u, v, w),
        __funnelshift_lc(u, v, w & 63u), __funnelshift_rc(u, v, w & 63u),
        __umulhi(u, v), (unsigned int)__mulhi(a, b), __umul24(u, v), (unsigned int)__mul24(a, b),
        __usad(u, v, w), (unsigned int)__sad(a >> 1, b >> 1, w),
        (unsigned int)__hadd(a, b), (unsigned int)__rhadd(a, b), __uhadd(u, v), __urhadd(u, v),
        (unsigned int)__dp4a(a, b, 5), __dp4a(u, v, 5u),
        (unsigned int)min(a, b), (unsigned int)max(a, b), min(u, v), max(u, v), (unsigned int)abs(a >> 1),
    };
    for (int k = 0; k < 26; ++k) out[k * N + i] = results[k];
}
"""),
    tiles={"N": 64},
    block=64,
)
def bits(x: UInt32[Array, " N"], y: UInt32[Array, " N"]) -> UInt32[Array, "26 N"]:
    """Operations on the bits of words."""
    u, v = x.astype(np.uint64), y.astype(np.uint64)
    w = u ^ (v >> np.uint64(3))
    a, b = x.view(np.int32).astype(np.int64), y.view(np.int32).astype(np.int64)
    both = (v << np.uint64(32)) | u
    one, mask = np.uint64(1), np.uint64(0xFFFFFFFF)

    def each(f: object, *arrays: np.ndarray) -> np.ndarray:
        return np.array([f(*map(int, values)) & 0xFFFFFFFF for values in zip(*arrays, strict=True)], np.uint32)

    def reverse(word: int) -> int:
        return int(f"{word:032b}"[::-1], 2)

    def permute(p: int, q: int, s: int) -> int:
        source = p | q << 32
        return sum((source >> 8 * (s >> 4 * k & 7) & 0xFF) << 8 * k for k in range(4))

    def signed24(value: int) -> int:
        value &= 0xFFFFFF
        return value - (1 << 24) if value >> 23 else value

    def dot(p: int, q: int, *, signed: bool) -> int:
        parts = [(p >> 8 * k & 0xFF, q >> 8 * k & 0xFF) for k in range(4)]
        if signed:
            parts = [tuple(c - 256 if c > 127 else c for c in pair) for pair in parts]
        return sum(c * d for c, d in parts) + 5

    wide = [int(n) for n in both]
    shift = [int(n) & 31 for n in w]
    capped = [min(int(n) & 63, 32) for n in w]
    rows = [
        each(lambda p: p.bit_count(), u),
        each(lambda p: 32 - p.bit_length(), u),
        each(lambda p: (p & -p).bit_length(), u),
        each(reverse, u),
        each(permute, u, v, w & np.uint64(0x7777)),
        np.array([n << s >> 32 & 0xFFFFFFFF for n, s in zip(wide, shift, strict=True)], np.uint32),
        np.array([n >> s & 0xFFFFFFFF for n, s in zip(wide, shift, strict=True)], np.uint32),
        np.array([n << s >> 32 & 0xFFFFFFFF for n, s in zip(wide, capped, strict=True)], np.uint32),
        np.array([n >> s & 0xFFFFFFFF for n, s in zip(wide, capped, strict=True)], np.uint32),
        (u * v) >> np.uint64(32),
        (a * b) >> 32,
        ((u & np.uint64(0xFFFFFF)) * (v & np.uint64(0xFFFFFF))) & mask,
        each(lambda p, q: signed24(p) * signed24(q), u, v),
        (np.where(u > v, u - v, v - u) + w) & mask,
        each(lambda p, q, r: abs((p >> 1) - (q >> 1)) + r, a, b, w),
        (a + b) >> 1,
        (a + b + 1) >> 1,
        (u + v) >> one,
        (u + v + one) >> one,
        each(lambda p, q: dot(p, q, signed=True), u, v),
        each(lambda p, q: dot(p, q, signed=False), u, v),
        np.minimum(a, b),
        np.maximum(a, b),
        np.minimum(u, v),
        np.maximum(u, v),
        abs(a >> 1),
    ]
    return np.array([np.asarray(row).astype(np.uint32) for row in rows])


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N) return;
    const unsigned long long u = x[i], v = y[i];
    out[i] = __popcll(u);
    out[N + i] = __clzll((long long)u);
    out[2 * N + i] = __ffsll((long long)u);
    out[3 * N + i] = __brevll(u);
    out[4 * N + i] = __umul64hi(u, v);
    out[5 * N + i] = (unsigned long long)__mul64hi((long long)u, (long long)v);
    out[6 * N + i] = u * v + (u % (v | 1));
    out[7 * N + i] = max(u, v) - min(u, v);
}
"""),
    tiles={"N": 64},
    block=64,
)
def long_bits(x: UInt64[Array, " N"], y: UInt64[Array, " N"]) -> UInt64[Array, "8 N"]:
    """Operations on the bits of 64-bit integers."""
    rows: list[list[int]] = [[] for _ in range(8)]
    for u, v in zip(map(int, x), map(int, y), strict=True):
        a, b = (n - (1 << 64) if n >> 63 else n for n in (u, v))
        results = (
            u.bit_count(), 64 - u.bit_length(), (u & -u).bit_length(), int(f"{u:064b}"[::-1], 2),
            u * v >> 64, a * b >> 64, u * v + u % (v | 1), max(u, v) - min(u, v),
        )  # fmt: skip
        for row, value in zip(rows, results, strict=True):
            row.append(value % (1 << 64))
    return np.array(rows, np.uint64)


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N) return;
    const unsigned int u = x[i], v = y[i];
    out[i] = __vadd4(u, v);
    out[N + i] = __vsub2(u, v);
    out[2 * N + i] = __vabsdiffu4(u, v);
    out[3 * N + i] = __vmaxu4(u, v);
    out[4 * N + i] = __vmins2(u, v);
    out[5 * N + i] = __vcmpgtu4(u, v);
    out[6 * N + i] = __vaddus4(u, v);
    out[7 * N + i] = __vsadu4(u, v);
}
"""),
    tiles={"N": 64},
    block=64,
)
def packed_bytes(x: UInt32[Array, " N"], y: UInt32[Array, " N"]) -> UInt32[Array, "8 N"]:
    """Operations on four bytes, or two half words, of a word at once."""
    u, v = x.view(np.uint8).astype(np.int64), y.view(np.uint8).astype(np.int64)
    s, t = x.view(np.int16).astype(np.int64), y.view(np.int16).astype(np.int64)
    rows = [
        (u + v).astype(np.uint8).view(np.uint32),
        (s - t).astype(np.int16).view(np.uint32),
        abs(u - v).astype(np.uint8).view(np.uint32),
        np.maximum(u, v).astype(np.uint8).view(np.uint32),
        np.minimum(s, t).astype(np.int16).view(np.uint32),
        np.where(u > v, 255, 0).astype(np.uint8).view(np.uint32),
        np.minimum(u + v, 255).astype(np.uint8).view(np.uint32),
        abs(u - v).reshape(-1, 4).sum(axis=1).astype(np.uint32),
    ]
    return np.array(rows)


def hard_words(rng: np.random.Generator, dtype: str, top: int) -> np.ndarray:
    """Words with bits at either end, none and all of them."""
    words = integers(rng, 0, top, 150, dtype=dtype) >> rng.integers(0, 60 if top > 2**32 else 30, 150).astype(dtype)
    words[:4] = 0, top - 1, 1, top // 2
    return words


CASES = (
    Case(vector_layout, lambda rng: {"x": np.zeros(len(VECTORS), "int32")}),
    Case(scale_by_four, lambda rng: {"x": normal(rng, 1003)}, {"factor": 1.7}),
    Case(
        pixels,
        lambda rng: {
            "x": integers(rng, 0, 256, 100, 4, dtype="uint8"),
            "y": integers(rng, 0, 256, 100, 3, dtype="uint8"),
        },
    ),
    Case(vectors, lambda rng: {"x": integers(rng, -(2**62), 2**62, 100, dtype="int64")}),
    Case(
        polynomial,
        lambda rng: {
            "x": (uniform(rng, -1, 1, 41) + 1j * uniform(rng, -1, 1, 41)).astype("complex64"),
            "z": np.exp(1j * uniform(rng, 0, 6, 40)).astype("complex64"),
        },
        near=relative(2e-6, "a chain of 40 products in single precision"),
    ),
    Case(
        conversions,
        lambda rng: {
            "x": np.concatenate([uniform(rng, -9, 9, 100), [0.5, 1.5, -2.5, 3e9, -3e9, 5e9, 0.0]]).astype("float32"),
            "n": integers(rng, -(2**62), 2**62, 107, dtype="int64"),
        },
    ),
    Case(bits, lambda rng: {n: hard_words(rng, "uint32", 2**32) for n in "xy"}),
    Case(long_bits, lambda rng: {n: hard_words(rng, "uint64", 2**64) for n in "xy"}),
    Case(packed_bytes, lambda rng: {n: integers(rng, 0, 2**32, 150, dtype="uint32") for n in "xy"}),
)
