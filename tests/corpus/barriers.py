"""Barriers of a block: plain and voting, in loops, and with threads that have left."""

from __future__ import annotations

from typing import Generic, NamedTuple

import numpy as np
from jaxtyping import Int8, Int32, UInt8

from cuplate import Array, Inline, specialize
from tests.corpus.case import Case, integers


class Votes(NamedTuple, Generic[Array]):
    """What a block's threads agree on."""

    count: Int32[Array, " N"]
    every: Int32[Array, " N"]
    some: Int32[Array, " N"]


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N) return;  // leaves amid a warp: who is left votes alone
    count[i] = __syncthreads_count(x[i] > 0);
    every[i] = __syncthreads_and(x[i] > -9);
    some[i] = __syncthreads_or(x[i] == 9) != 0;
}
"""),
    block=96,
)
def barrier_votes(x: Int32[Array, " N"]) -> Votes[Array]:
    """How many of a block are positive, whether all are above -9, whether one is 9."""
    votes = [np.zeros(len(x), np.int32) for _ in range(3)]
    for first in range(0, len(x), 96):
        rows = slice(first, first + 96)
        for vote, value in zip(votes, ((x[rows] > 0).sum(), (x[rows] > -9).all(), (x[rows] == 9).any()), strict=True):
            vote[rows] = value
    return Votes(*votes)


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int warp = threadIdx.x / 32;
    if (blockIdx.x * blockDim.x + threadIdx.x >= N) return;
    __shared__ int sum[4];
    if (threadIdx.x < 4) sum[threadIdx.x] = 0;
    for (int turn = 0; turn < 4; ++turn) {
        if (warp < turn) return;  // one warp leaves in each turn
        const int left = __syncthreads_count(1);
        atomicAdd(&sum[turn], x[blockIdx.x * blockDim.x + threadIdx.x] + left);
        __syncthreads();
    }
    if (threadIdx.x % 32 < 4) out[4 * blockIdx.x + threadIdx.x % 32] = sum[threadIdx.x % 32];
}
"""),
    grid="cdiv(N, 128)",
    block=128,
)
def leave_in_turn(x: Int32[Array, " N"]) -> Int32[Array, "(N+127)//128 4"]:
    """Sums over the warps that are left, while warps and a ragged tail leave a loop of barriers."""
    rows = []
    for first in range(0, len(x), 128):
        left = [x[first + 32 * turn : first + 128] for turn in range(4)]
        rows.append([row.sum() + len(row) ** 2 for row in left])
    return np.array(rows)


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    __shared__ int held[256];
    int* mine = x + blockIdx.x * C;
    const int t = threadIdx.x;
    for (int i = t; i < 256; i += 128) held[i] = i < C ? mine[i] : 2147483647;
    __syncthreads();
    for (int size = 2; size <= 256; size *= 2) {
        for (int step = size / 2; step > 0; step /= 2) {
            const int low = 2 * t - (t & (step - 1)), high = low + step;
            const bool up = (low & size) == 0;
            const int a = held[low], b = held[high];
            if ((a > b) == up) held[low] = b, held[high] = a;
            __syncthreads();
        }
    }
    for (int i = t; i < C; i += 128) mine[i] = held[i];
}
"""),
    tiles={"R": 1},
    block=128,
    mutates="x",
    require="C <= 256",
)
def sort_rows(x: Int32[Array, "R C"]) -> None:
    """Each row in order, in place: a bitonic network."""
    x.sort(axis=1)


@specialize(
    Inline("""
extern "C" __global__ void __launch_bounds__(1024) {{ kernel }}({{ args }})
{
    __shared__ unsigned char world[2][32][32];
    const int u = threadIdx.x, v = threadIdx.y;
    world[0][v][u] = x[(blockIdx.x * 32 + v) * 32 + u];
    for (int turn = 0; turn < {{ turns }}; ++turn) {
        __syncthreads();
        const unsigned char (*now)[32] = world[turn % 2];
        int around = 0;
        for (int dv = 31; dv <= 33; ++dv)
            for (int du = 31; du <= 33; ++du) around += now[(v + dv) % 32][(u + du) % 32];
        around -= now[v][u];
        world[(turn + 1) % 2][v][u] = around == 3 || (around == 2 && now[v][u]);
    }
    out[(blockIdx.x * 32 + v) * 32 + u] = world[{{ turns % 2 }}][v][u];
}
"""),
    tiles={"R": 1},
    block=(32, 32),
)
def life(x: UInt8[Array, "R h=32 w=32"], *, turns: int = 5) -> UInt8[Array, "R h=32 w=32"]:
    """Conway's game on tori: a block of 1024 threads, one barrier a turn."""
    for _ in range(turns):
        around = sum(np.roll(x, (v, u), axis=(1, 2)) for v in (-1, 0, 1) for u in (-1, 0, 1)) - x
        x = ((around == 3) | ((around == 2) & (x == 1))).astype(np.uint8)
    return x


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    // Anti-diagonals of the table, three at a time; thread i holds row i of it.
    __shared__ int line[3][{{ block.x + 1 }}];
    const signed char *s = a + blockIdx.x * M, *t = b + blockIdx.x * N;
    const int i = threadIdx.x;
    for (int diagonal = 0; diagonal <= M + N; ++diagonal) {
        const int j = diagonal - i;
        if (i <= M && 0 <= j && j <= N) {
            int best = i + j;
            if (i > 0 && j > 0) {
                const int from_left = line[(diagonal + 2) % 3][i] + 1, from_above = line[(diagonal + 2) % 3][i - 1] + 1;
                const int through = line[(diagonal + 1) % 3][i - 1] + (s[i - 1] != t[j - 1]);
                best = min(min(from_left, from_above), through);
            }
            line[diagonal % 3][i] = best;
        }
        __syncthreads();
    }
    if (i == M) out[blockIdx.x] = line[(M + N) % 3][M];
}
"""),
    tiles={"R": 1},
    block=64,
    require="M < 64",
)
def edit_distance(a: Int8[Array, "R M"], b: Int8[Array, "R N"]) -> Int32[Array, " R"]:
    """Levenshtein's distance of each pair of rows, by a wave front."""
    result = []
    for s, t in zip(a, b, strict=True):
        row = list(range(len(t) + 1))
        for i, letter in enumerate(s):
            new = [i + 1]
            for j, other in enumerate(t):
                new.append(min(new[j] + 1, row[j + 1] + 1, row[j] + int(letter != other)))
            row = new
        result.append(row[-1])
    return np.array(result)


CASES = (
    Case(barrier_votes, lambda rng: {"x": integers(rng, -9, 10, 250)}),
    Case(leave_in_turn, lambda rng: {"x": integers(rng, -99, 100, 500)}),
    Case(sort_rows, lambda rng: {"x": integers(rng, -999, 1000, 3, 201)}),
    Case(life, lambda rng: {"x": integers(rng, 0, 2, 2, 32, 32, dtype="uint8")}),
    Case(
        edit_distance,
        lambda rng: {"a": integers(rng, 0, 4, 3, 40, dtype="int8"), "b": integers(rng, 0, 4, 3, 29, dtype="int8")},
    ),
)
