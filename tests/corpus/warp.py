"""Operations of a warp, with full and partial masks."""

from __future__ import annotations

from typing import Generic, NamedTuple

import numpy as np
from jaxtyping import Float32, Int32, Int64, UInt32, UInt64

from cuplate import Array, Inline, specialize
from tests.corpus.case import Case, integers, normal, relative

TYPES = ("int", "unsigned int", "long long", "unsigned long long", "float", "double")


@specialize(
    Inline("""
template <class T>
__device__ void exchange(long long* to, int N, int i, T mine)
{
    constexpr unsigned int all = 0xffffffffu;
    const int lane = threadIdx.x % 32;
    for (int width = 32; width >= 8; width /= 2) {
        to[i] = (long long)__shfl_sync(all, mine, lane * 5 + 3, width);
        to[N + i] = (long long)__shfl_up_sync(all, mine, 3, width);
        to[2 * N + i] = (long long)__shfl_down_sync(all, mine, 5, width);
        to[3 * N + i] = (long long)__shfl_xor_sync(all, mine, 13, width);
        to += 4 * N;
    }
}

extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    {% for type in types %}
    exchange(out + {{ loop.index0 * 12 }} * N, N, i, ({{ type }})x[i]);
    {% endfor %}
}
"""),
    grid="N // 64",
    block=64,
    require="N % 64 == 0",
)
def shuffles(x: Int32[Array, " N"], *, types: tuple[str, ...] = TYPES) -> Int64[Array, "72 N"]:
    """Every shuffle, at three widths, of six types."""
    lane, rows = np.arange(32), []
    for width in (32, 16, 8):
        first, last = lane & -width, lane | (width - 1)
        up, down, across = lane - 3, lane + 5, lane ^ 13
        for source in (
            first + (lane * 5 + 3) % width,
            np.where(up < first, lane, up),
            np.where(down > last, lane, down),
            np.where(across > last, lane, across),
        ):
            rows.append(x.reshape(-1, 32)[:, source].reshape(-1))
    return np.concatenate([rows for _ in types])


class Parts(NamedTuple, Generic[Array]):
    """What halves and thirds of a warp find."""

    halves: Int32[Array, " N"]
    thirds: Int32[Array, " N"]


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
    int value = x[i];
    if (lane < 16) {
        for (int step = 8; step > 0; step /= 2) value += __shfl_xor_sync(0x0000ffffu, value, step);
    } else {
        for (int step = 8; step > 0; step /= 2) value = max(value, __shfl_xor_sync(0xffff0000u, value, step));
    }
    halves[i] = value;

    // Each lane joins those of its own remainder, in code of its own.
    unsigned int same[3];
    for (int r = 0; r < 3; ++r) same[r] = __ballot_sync(0xffffffffu, lane % 3 == r);
    if (lane % 3 == 0) value = __ballot_sync(same[0], x[i] > 0);
    else if (lane % 3 == 1) value = __shfl_sync(same[1], x[i], 31);
    else value = __all_sync(same[2], x[i] > -90) + 2 * __any_sync(same[2], x[i] > 90);
    thirds[i] = value;
}
"""),
    grid="N // 64",
    block=64,
    require="N % 64 == 0",
)
def partial_masks(x: Int32[Array, " N"]) -> Parts[Array]:
    """Halves and thirds of a warp, each with operations of its own."""
    lane, rows = np.arange(32), x.reshape(-1, 32)
    halves, thirds = np.empty_like(rows), np.empty_like(rows)
    halves[:, :16] = rows[:, :16].sum(axis=1, keepdims=True)
    halves[:, 16:] = rows[:, 16:].max(axis=1, keepdims=True)
    ballot = ((rows > 0) & (lane % 3 == 0)) @ (1 << lane.astype(np.int64))
    thirds[:, 0::3] = ballot[:, None].astype(np.int32)
    thirds[:, 1::3] = rows[:, 31:]
    third = rows[:, 2::3]
    thirds[:, 2::3] = ((third > -90).all(axis=1) + 2 * (third > 90).any(axis=1))[:, None]
    return Parts(halves.reshape(-1), thirds.reshape(-1))


class Ballots(NamedTuple, Generic[Array]):
    """What the votes of each warp give each of its threads."""

    ballot: UInt32[Array, " N"]
    every: Int32[Array, " N"]
    some: Int32[Array, " N"]
    awake: Int32[Array, " N"]


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
    const unsigned int mask = __ballot_sync(0xffffffffu, i < N);
    if (i >= N) return;
    ballot[i] = __ballot_sync(mask, x[i] > 0);
    every[i] = __all_sync(mask, x[i] > -9);
    some[i] = __any_sync(mask, x[i] == 9);
    awake[i] = __activemask() >> lane & 1;
}
"""),
    block=128,
)
def votes(x: Int32[Array, " N"]) -> Ballots[Array]:
    """Ballot, all, any and the active mask, in a last warp of which lanes have left."""
    out = [np.zeros(len(x), d) for d in ("uint32", "int32", "int32", "int32")]
    for first in range(0, len(x), 32):
        row = x[first : first + 32]
        bits = int(((row > 0) * (1 << np.arange(len(row)))).sum())
        for to, value in zip(out, (bits, (row > -9).all(), (row == 9).any(), 1), strict=True):
            to[first : first + 32] = value
    return Ballots(*out)


class Matches(NamedTuple, Generic[Array]):
    """Masks of the lanes that hold the same."""

    words: UInt32[Array, " N"]
    longs: UInt32[Array, " N"]
    floats: UInt32[Array, " N"]
    every: UInt32[Array, " N"]
    agreed: Int32[Array, " N"]


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    words[i] = __match_any_sync(0xffffffffu, x[i]);
    longs[i] = __match_any_sync(0xffffffffu, ((long long)x[i] << 40) + 1);
    int same = 0;
    every[i] = __match_all_sync(0xffffffffu, x[i], &same);
    agreed[i] = same;
    if (threadIdx.x % 2) floats[i] = __match_any_sync(0xaaaaaaaau, (float)x[i]);
    else floats[i] = __match_all_sync(0x55555555u, (unsigned long long)x[i], &same);
}
"""),
    grid="N // 32",
    block=32,
    require="N % 32 == 0",
)
def matches(x: Int32[Array, " N"]) -> Matches[Array]:
    """Lanes that hold the same, in 32 and 64 bits, among all of them and among every second."""
    lane = np.arange(32)
    out = [np.zeros(len(x), d) for d in ("uint32", "uint32", "uint32", "uint32", "int32")]
    words, longs, floats, every, agreed = out
    for first in range(0, len(x), 32):
        row, rows = x[first : first + 32], slice(first, first + 32)
        same = row[:, None] == row[None]
        words[rows] = longs[rows] = same @ (1 << lane)
        agreed[rows] = same.all()
        every[rows] = 0xFFFFFFFF if same.all() else 0
        odd = (same & (lane % 2 == 1)) @ (1 << lane)
        floats[rows] = np.where(lane % 2, odd, 0x55555555 if same[::2, ::2].all() else 0)
    return Matches(*out)


class Reduced(NamedTuple, Generic[Array]):
    """Three reductions of signed words, six of unsigned ones."""

    signed_: Int32[Array, "3 N"]
    unsigned_: UInt32[Array, "3 N"]


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
    const unsigned int bits = (unsigned int)x[i];
    signed_[i] = __reduce_add_sync(0xffffffffu, x[i]);
    signed_[N + i] = __reduce_min_sync(0xffffffffu, x[i]);
    signed_[2 * N + i] = __reduce_max_sync(0xffffffffu, x[i]);
    if (lane < 12) {
        unsigned_[i] = __reduce_add_sync(0x00000fffu, bits);
        unsigned_[N + i] = __reduce_min_sync(0x00000fffu, bits);
        unsigned_[2 * N + i] = __reduce_max_sync(0x00000fffu, bits);
    } else {
        unsigned_[i] = __reduce_and_sync(0xfffff000u, bits);
        unsigned_[N + i] = __reduce_or_sync(0xfffff000u, bits);
        unsigned_[2 * N + i] = __reduce_xor_sync(0xfffff000u, bits);
    }
}
"""),
    grid="N // 32",
    block=32,
    require="N % 32 == 0",
)
def reduce_sync(x: Int32[Array, " N"]) -> Reduced[Array]:
    """Reductions by hardware: of signed words over the warp, of unsigned ones over 12 and 20 lanes."""
    rows, bits = x.reshape(-1, 32), x.view(np.uint32).reshape(-1, 32)
    wide = [f(rows, axis=1).astype(np.int32) for f in (np.sum, np.min, np.max)]
    low = [f(bits[:, :12], axis=1).astype(np.uint32) for f in (np.sum, np.min, np.max)]
    high = [f.reduce(bits[:, 12:], axis=1) for f in (np.bitwise_and, np.bitwise_or, np.bitwise_xor)]
    narrow = [np.where(np.arange(32) < 12, a[:, None], b[:, None]) for a, b in zip(low, high, strict=True)]
    return Reduced(np.array([np.repeat(w, 32) for w in wide]), np.array([n.reshape(-1) for n in narrow]))


@specialize(
    Inline("""
__device__ float scan(float value)
{
    const int lane = threadIdx.x & 31;
    for (int step = 1; step < warpSize; step *= 2) {
        const float left = __shfl_up_sync(0xffffffffu, value, step);
        if (lane >= step) value += left;
    }
    return value;
}

extern "C" __global__ void {{ kernel }}({{ args }})
{
    __shared__ float sums[32];
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    float before = 0;
    for (int first = 0; first < C; first += blockDim.x) {
        const int i = first + threadIdx.x;
        float value = scan(i < C ? x[blockIdx.x * C + i] : 0);
        if (lane == 31) sums[warp] = value;
        __syncthreads();
        if (warp == 0) sums[lane] = scan(lane < blockDim.x / 32 ? sums[lane] : 0);
        __syncthreads();
        if (warp > 0) value += sums[warp - 1];
        if (i < C) out[blockIdx.x * C + i] = before + value;
        before += sums[31];
        __syncthreads();
    }
}
"""),
    tiles={"R": 1},
    block=128,
)
def running_sum(x: Float32[Array, "R C"]) -> Float32[Array, "R C"]:
    """The running sum of each row: shuffles in a warp, shared memory between warps."""
    return np.cumsum(x, axis=1)


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
    const bool keep = i < N && x[i] % 3 == 0;
    const unsigned int marks = __ballot_sync(0xffffffffu, keep);
    const int leader = __ffs(marks) - 1;
    int place = 0;
    if (lane == leader) place = atomicAdd(count, __popc(marks));
    place = __shfl_sync(0xffffffffu, place, leader < 0 ? 0 : leader);
    if (keep) kept[place + __popc(marks & ((1u << lane) - 1))] = x[i];
}
"""),
    grid="cdiv(N, 64)",
    block=64,
    mutates=("count", "kept"),
)
def compact(x: Int32[Array, " N"], count: Int32[Array, " 1"], kept: Int32[Array, " N"]) -> None:
    """The multiples of 3 of x, in any order: one atomic operation a warp."""
    chosen = x[x % 3 == 0]
    kept[: len(chosen)] = chosen
    count[0] = len(chosen)


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    __shared__ int held[2][32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, i = blockIdx.x * blockDim.x + threadIdx.x;
    int* mine = held[warp];
    mine[lane] = x[i];
    __syncwarp();
    const int right = mine[(lane + 1) % 32];
    __syncwarp();
    mine[31 - lane] = right;
    __syncwarp();
    int value = mine[lane];
    __syncwarp();
    if (lane < 16) {  // one half goes on exchanging
        mine[lane] = value;
        __syncwarp(0x0000ffffu);
        value = mine[lane ^ 1];
    }
    out[i] = value;
}
"""),
    grid="N // 64",
    block=64,
    require="N % 64 == 0",
)
def warp_exchange(x: Int32[Array, " N"]) -> Int32[Array, " N"]:
    """Lanes that hand values around in shared memory, with barriers of the warp alone."""
    rows = np.roll(x.reshape(-1, 32), -1, axis=1)[:, ::-1]
    order = np.where(np.arange(32) < 16, np.arange(32) ^ 1, np.arange(32))
    return rows[:, order].reshape(-1)


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    // 200 threads: the last warp has 8 lanes.
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const int lanes = min(32, (int)blockDim.x - (int)threadIdx.x / 32 * 32);
    const unsigned int mask = lanes == 32 ? 0xffffffffu : (1u << lanes) - 1;
    int sum = x[i];
    for (int step = 16; step > 0; step /= 2) {
        const int source = threadIdx.x % 32 + step;
        const int other = __shfl_sync(mask, sum, min(source, lanes - 1));  // no lane is asked that is not there
        if (source < lanes) sum += other;
    }
    out[i] = __shfl_sync(mask, sum, 0);
}
"""),
    grid="N // 200",
    block=200,
    require="N % 200 == 0",
)
def ragged_warp(x: Int32[Array, " N"]) -> Int32[Array, " N"]:
    """The sum of each warp, the last one of 8 lanes."""
    out = np.empty_like(x)
    for block in range(0, len(x), 200):
        for first in range(block, block + 200, 32):
            rows = slice(first, min(first + 32, block + 200))
            out[rows] = x[rows].sum()
    return out


@specialize(
    Inline("""
template <class T>
__device__ T sorted(T value)
{
    const int lane = threadIdx.x;
    #pragma unroll
    for (int size = 2; size <= 32; size *= 2) {
        #pragma unroll
        for (int step = size / 2; step > 0; step /= 2) {
            const T other = __shfl_xor_sync(0xffffffffu, value, step);
            const bool up = (lane & size) == 0, low = (lane & step) == 0;
            value = (up == low) == (value < other) ? value : other;
        }
    }
    return value;
}

extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int i = (blockIdx.x * blockDim.y + threadIdx.y) * 32 + threadIdx.x;
    out[i] = sorted(x[i]);
}
"""),
    grid="R // 4",
    block=(32, 4),
    require="R % 4 == 0",
)
def warp_sort(x: UInt64[Array, "R lanes=32"]) -> UInt64[Array, "R lanes=32"]:
    """Each row in order, in registers."""
    return np.sort(x, axis=1)


class Place(NamedTuple, Generic[Array]):
    """The largest of each row, and where it stands first."""

    value: Float32[Array, " R"]
    place: Int32[Array, " R"]


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= R) return;  // whole warps
    float best = x[row * C];
    int at = 0;
    for (int i = threadIdx.x; i < C; i += 32)
        if (x[row * C + i] > best) best = x[row * C + i], at = i;
    for (int step = 16; step > 0; step /= 2) {
        const float other = __shfl_down_sync(0xffffffffu, best, step);
        const int there = __shfl_down_sync(0xffffffffu, at, step);
        if (other > best || (other == best && there < at)) best = other, at = there;
    }
    if (threadIdx.x == 0) value[row] = best, place[row] = at;
}
"""),
    tiles={"R": 4},
    block=(32, 4),
)
def row_peak(x: Float32[Array, "R C"]) -> Place[Array]:
    """One warp a row."""
    return Place(x.max(axis=1), x.argmax(axis=1))


CASES = (
    Case(shuffles, lambda rng: {"x": integers(rng, 0, 100, 64)}),
    Case(partial_masks, lambda rng: {"x": integers(rng, -100, 100, 128)}),
    Case(votes, lambda rng: {"x": integers(rng, -9, 10, 300)}),
    Case(matches, lambda rng: {"x": np.concatenate([integers(rng, 0, 5, 64), np.full(32, 7, np.int32)])}),
    Case(reduce_sync, lambda rng: {"x": integers(rng, -(2**31), 2**31, 96)}),
    Case(
        running_sum,
        lambda rng: {"x": normal(rng, 3, 300)},
        near=relative(1e-6, "the kernel sums in single precision, in one order; the reference in double"),
    ),
    Case(
        compact,
        lambda rng: {
            "x": integers(rng, 0, 1000, 500),
            "count": np.zeros(1, "int32"),
            "kept": np.full(500, -1, "int32"),
        },
        settle=lambda arrays: {**arrays, "kept": np.sort(arrays["kept"])},
    ),
    Case(warp_exchange, lambda rng: {"x": integers(rng, 0, 1000, 128)}),
    Case(ragged_warp, lambda rng: {"x": integers(rng, -100, 100, 400)}),
    Case(warp_sort, lambda rng: {"x": integers(rng, 0, 2**64, 8, 32, dtype="uint64")}),
    Case(row_peak, lambda rng: {"x": normal(rng, 6, 100)}),
)
