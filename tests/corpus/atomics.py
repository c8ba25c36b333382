"""Atomic operations on every type that has them; sums are of small integers, so that their order is without effect."""

from __future__ import annotations

from typing import Generic, NamedTuple

import numpy as np
from jaxtyping import Float16, Float32, Float64, Int32, Int64, UInt8, UInt16, UInt32, UInt64

from cuplate import Array, Inline, specialize
from tests.corpus.case import Arrays, Case, integers, uniform

THREAD = """extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N) return;
"""


class Old(NamedTuple, Generic[Array]):
    """What atomic operations gave back."""

    old: Int32[Array, " N"]


@specialize(
    Inline(
        THREAD
        + """
    old[i] = atomicAdd(&cells[0], 1);
    atomicSub(&cells[1], x[i]);
    atomicMin(&cells[2], x[i]);
    atomicMax(&cells[3], x[i]);
    atomicAnd(&cells[4], x[i] | 0xff);
    atomicOr(&cells[5], 1 << (i & 31));
    atomicXor(&cells[6], x[i]);
    atomicExch(&cells[7], 77);
    if (atomicCAS(&cells[8], 0, 5) == 0) atomicAdd(&cells[9], 1);  // one thread of all
    atomicAdd(&cells[10], -x[i]);
}
"""
    ),
    tiles={"N": 64},
    block=64,
    mutates="cells",
)
def atomics_int(x: Int32[Array, " N"], cells: Int32[Array, " 11"]) -> Old[Array]:
    """Each operation on signed words; what the first gave back is a permutation."""
    bits = 0
    for i in range(len(x)):
        bits |= 1 << (i & 31)
    cells[:] = (
        len(x), -x.sum(), x.min(), x.max(), np.bitwise_and.reduce(x | 0xFF), np.array(bits, "uint32").view("int32"),
        np.bitwise_xor.reduce(x), 77, 5, 1, -x.sum(),
    )  # fmt: skip
    return Old(np.arange(len(x), dtype=np.int32))


@specialize(
    Inline(
        THREAD
        + """
    atomicAdd(&cells[0], x[i]);
    atomicSub(&cells[1], x[i]);
    atomicMin(&cells[2], x[i]);
    atomicMax(&cells[3], x[i]);
    atomicAnd(&cells[4], x[i] | 0xffu);
    atomicOr(&cells[5], x[i] & 0xff00u);
    atomicXor(&cells[6], x[i]);
    atomicExch(&cells[7], 0xfffffff0u);
    atomicCAS(&cells[8], 9u, 0x80000000u);
    old[i] = (int)atomicInc(&cells[9], 6u);
    atomicDec(&cells[10], 6u);
}
"""
    ),
    tiles={"N": 64},
    block=64,
    mutates="cells",
)
def atomics_uint(x: UInt32[Array, " N"], cells: UInt32[Array, " 11"]) -> Old[Array]:
    """Each operation on unsigned words; those that wrap around give back 0 to 6 in turn."""
    total = int(x.astype(np.uint64).sum()) % 2**32
    cells[:] = np.array([
        total, -total % 2**32, x.min(), x.max(), np.bitwise_and.reduce(x | 0xFF), np.bitwise_or.reduce(x & 0xFF00),
        np.bitwise_xor.reduce(x), 0xFFFFFFF0, 0x80000000, len(x) % 7, -len(x) % 7,
    ], dtype=np.uint32)  # fmt: skip
    return Old(np.sort(np.arange(len(x), dtype=np.int32) % 7))


@specialize(
    Inline(
        THREAD
        + """
    const unsigned long long bits = (unsigned long long)x[i];
    atomicAdd(&cells[0], bits);
    atomicMin(&cells[1], bits);
    atomicMax(&cells[2], bits);
    atomicAnd(&cells[3], bits | 0xffffull);
    atomicOr(&cells[4], bits & 0xff00ff0000000000ull);
    atomicXor(&cells[5], bits);
    atomicExch(&cells[6], 1ull << 63);
    atomicCAS(&cells[7], 3ull, 1ull << 40);
    atomicMin(&least[0], x[i]);
    atomicMax(&least[1], x[i]);
}
"""
    ),
    tiles={"N": 64},
    block=64,
    mutates=("cells", "least"),
)
def atomics_long(x: Int64[Array, " N"], cells: UInt64[Array, " 8"], least: Int64[Array, " 2"]) -> None:
    """Each operation on 64 bits."""
    bits = x.view(np.uint64)
    with np.errstate(over="ignore"):
        total = bits.sum()
    cells[:] = np.array([
        total, bits.min(), bits.max(), np.bitwise_and.reduce(bits | np.uint64(0xFFFF)),
        np.bitwise_or.reduce(bits & np.uint64(0xFF00FF0000000000)), np.bitwise_xor.reduce(bits), 2**63, 2**40,
    ], dtype=np.uint64)  # fmt: skip
    least[:] = x.min(), x.max()


class Sums(NamedTuple, Generic[Array]):
    """In single and double precision."""

    single: Float32[Array, " bins=8"]
    double_: Float64[Array, " bins=8"]
    last: Float32[Array, " 1"]


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    __shared__ float here[8];
    __shared__ double here_too[8];
    if (threadIdx.x < 8) here[threadIdx.x] = 0, here_too[threadIdx.x] = 0;
    __syncthreads();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) {
        atomicAdd(&here[i % 8], x[i]);
        atomicAdd(&here_too[i % 8], 0.5 * x[i]);
        atomicExch(last, 2.5f);
    }
    __syncthreads();
    if (threadIdx.x >= 8) return;
    atomicAdd(&single[threadIdx.x], here[threadIdx.x]);
    atomicAdd(&double_[threadIdx.x], here_too[threadIdx.x]);
}
"""),
    tiles={"N": 64},
    block=64,
    zeroed=("single", "double_", "last"),
)
def atomics_float(x: Float32[Array, " N"]) -> Sums[Array]:
    """Sums of float and double, in shared and global memory."""
    sums = np.array([x[k::8].sum() for k in range(8)])
    return Sums(sums, 0.5 * sums, np.array([2.5]))


@specialize(
    Inline(
        """
#include <cuda_bf16.h>
#include <cuda_fp16.h>
"""
        + THREAD
        + """
    atomicAdd(&half_[0], __int2half_rn(x[i]));
    atomicAdd(reinterpret_cast<__half2*>(half_ + 2), __halves2half2(__int2half_rn(x[i]), __float2half(0.5f)));
    __nv_bfloat16* brain = reinterpret_cast<__nv_bfloat16*>(bits);
    atomicAdd(&brain[1], __int2bfloat16_rn(x[i]));
    atomicAdd(reinterpret_cast<__nv_bfloat162*>(bits + 2), __floats2bfloat162_rn((float)x[i], -1.0f));
}
"""
    ),
    tiles={"N": 64},
    block=64,
    mutates=("half_", "bits"),
)
def atomics_half(x: Int32[Array, " N"], half_: Float16[Array, " 4"], bits: UInt16[Array, " 4"]) -> None:
    """Sums of half, half2, bfloat16 and its pair."""
    half_[:] = x.sum(), 0, x.sum(), 0.5 * len(x)
    bits[:] = np.array([0, x.sum(), x.sum(), -len(x)], np.float32).view(np.uint32) >> 16


@specialize(
    Inline(
        THREAD
        + """
    // A maximum of floats: the bits of a negative float have the other order.
    int seen = *(volatile int*)&cells[0];
    while (__int_as_float(seen) < x[i]) {
        const int found = atomicCAS((int*)&cells[0], seen, __float_as_int(x[i]));
        if (found == seen) break;
        seen = found;
    }
    // A product of doubles that are powers of two, so in any order.
    unsigned long long* product = reinterpret_cast<unsigned long long*>(product_);
    unsigned long long assumed, now = *product;
    do {
        assumed = now;
        const double next = __longlong_as_double((long long)assumed) * (i % 2 ? 2.0 : 0.5);
        now = atomicCAS(product, assumed, (unsigned long long)__double_as_longlong(next));
    } while (now != assumed);
    // One byte of a word.
    const int at = i % 4;
    unsigned int word = packed[0], was;
    do {
        was = word;
        const unsigned int byte_ = ((was >> 8 * at) + 1) & 0xff;
        word = atomicCAS(packed, was, (was & ~(0xffu << 8 * at)) | byte_ << 8 * at);
    } while (word != was);
    // Half a word, which has an operation of its own.
    unsigned short old = shorts[0], expected;
    do {
        expected = old;
        old = atomicCAS(shorts, expected, (unsigned short)(expected + 3));
    } while (old != expected);
}
"""
    ),
    tiles={"N": 64},
    block=64,
    mutates=("cells", "product_", "packed", "shorts"),
)
def compare_and_swap(
    x: Float32[Array, " N"],
    cells: Int32[Array, " 1"],
    product_: Float64[Array, " 1"],
    packed: UInt32[Array, " 1"],
    shorts: UInt16[Array, " 1"],
) -> None:
    """Operations that are made of compare-and-swap: maximum, product, bytes and half words."""
    cells[:] = x.astype(np.float32).max().view(np.int32)
    product_[:] = 2.0 ** (len(x) // 2 - (len(x) + 1) // 2)
    packed[:] = sum(len(range(at, len(x), 4)) % 256 << 8 * at for at in range(4))
    shorts[:] = 3 * len(x)


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    __shared__ unsigned int count, most;
    if (threadIdx.x == 0) count = 0, most = 0;
    __syncthreads();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) {
        atomicAdd_block(&count, x[i]);
        atomicMax_block(&most, x[i]);
        atomicAdd_system(&cells[0], x[i]);
        atomicExch_system(&cells[2], 8u);
    }
    __threadfence_block();
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicAdd(&cells[1], count);
        atomicMax_system(&cells[3], most);
        __threadfence_system();
    }
}
"""),
    tiles={"N": 64},
    block=64,
    mutates="cells",
)
def atomic_scopes(x: UInt32[Array, " N"], cells: UInt32[Array, " 4"]) -> None:
    """Operations with the scope of a block and of the system."""
    cells[:] = x.sum(), x.sum(), 8, x.max()


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    extern __shared__ unsigned int counts[];
    for (int bin = threadIdx.x; bin < {{ bins }}; bin += blockDim.x) counts[bin] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < N; i += gridDim.x * blockDim.x)
        if (x[i] < {{ bins }}) atomicAdd(&counts[x[i]], 1u);
    __syncthreads();
    for (int bin = threadIdx.x; bin < {{ bins }}; bin += blockDim.x)
        if (counts[bin]) atomicAdd(&out[bin], counts[bin]);
}
"""),
    grid=3,
    block=64,
    shared_bytes="4 * bins",
    zeroed="out",
)
def histogram(x: UInt8[Array, " N"], *, bins: int = 50) -> UInt32[Array, " (bins)"]:
    """How often each value below `bins` occurs."""
    return np.bincount(x, minlength=256)[:bins]


def sorted_old(arrays: Arrays) -> Arrays:
    """The values that were given back, in order."""
    return {**arrays, "old": np.sort(arrays["old"])}


CASES = (
    Case(
        atomics_int,
        lambda rng: {
            "x": integers(rng, -9999, 9999, 150),
            "cells": np.array([0, 0, 2**31 - 1, -(2**31), -1, 0, 0, 0, 0, 0, 0], "int32"),
        },
        settle=sorted_old,
    ),
    Case(
        atomics_uint,
        lambda rng: {
            "x": integers(rng, 0, 2**32, 150, dtype="uint32"),
            "cells": np.array([0, 0, 2**32 - 1, 0, 2**32 - 1, 0, 0, 0, 9, 0, 0], "uint32"),
        },
        settle=sorted_old,
    ),
    Case(
        atomics_long,
        lambda rng: {
            "x": integers(rng, -(2**62), 2**62, 150, dtype="int64"),
            "cells": np.array([0, 2**64 - 1, 0, 2**64 - 1, 0, 0, 0, 3], "uint64"),
            "least": np.array([2**63 - 1, -(2**63)], "int64"),
        },
    ),
    Case(atomics_float, lambda rng: {"x": integers(rng, -99, 99, 300, dtype="float32")}),
    Case(
        atomics_half,
        lambda rng: {
            "x": integers(rng, 0, 3, 100),
            "half_": np.zeros(4, "float16"),
            "bits": np.zeros(4, "uint16"),
        },
    ),
    Case(
        compare_and_swap,
        lambda rng: {
            "x": uniform(rng, -9, 9, 150),
            "cells": np.array([-1e30], "float32").view("int32"),
            "product_": np.ones(1),
            "packed": np.zeros(1, "uint32"),
            "shorts": np.zeros(1, "uint16"),
        },
    ),
    Case(
        atomic_scopes,
        lambda rng: {"x": integers(rng, 0, 1000, 150, dtype="uint32"), "cells": np.zeros(4, "uint32")},
    ),
    Case(histogram, lambda rng: {"x": integers(rng, 0, 256, 2000, dtype="uint8")}),
)
