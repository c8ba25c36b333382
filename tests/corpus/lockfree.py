"""Blocks that work together without a barrier between them: fences, atomic operations and waiting.

Each of them also ends when the blocks run one after another, in order.
"""

from __future__ import annotations

from typing import Generic, NamedTuple

import numpy as np
from jaxtyping import Float32, Int32

from cuplate import Array, Inline, specialize
from tests.corpus.case import Arrays, Case, integers, normal, relative


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    __shared__ float held[128];
    __shared__ bool last;
    const int t = threadIdx.x;
    float sum = 0;
    for (int i = blockIdx.x * 128 + t; i < N; i += gridDim.x * 128) sum += x[i];
    held[t] = sum;
    __syncthreads();
    for (int half = 64; half > 0; half /= 2) {
        if (t < half) held[t] += held[t + half];
        __syncthreads();
    }
    if (t == 0) {
        partial[blockIdx.x] = held[0];
        __threadfence();
        last = atomicInc(finished, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;
    if (t == 0) {
        float total = 0;
        for (int block_ = 0; block_ < gridDim.x; ++block_) total += ((volatile float*)partial)[block_];
        out[0] = total;
    }
}
"""),
    grid="blocks",
    block=128,
    scratch={"partial": ("float32", "blocks"), "finished": ("uint32", 1)},
    zeroed="finished",
)
def last_block(x: Float32[Array, " N"], *, blocks: int = 7) -> Float32[Array, ""]:
    """The sum of x: the block that finishes last adds up what all have left."""
    return x.sum()


@specialize(
    Inline("""
__device__ unsigned int finished = 0;
__device__ int partial[64];

extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const int count = __syncthreads_count(i < N && x[i] > 0);
    __shared__ unsigned int ticket;
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = count;
        __threadfence();
        ticket = atomicAdd(&finished, 1u);
    }
    __syncthreads();
    if (ticket == gridDim.x - 1) {
        __threadfence();
        if (threadIdx.x == 0) {
            int sum = 0;
            for (int k = 0; k < gridDim.x; ++k) sum += partial[k];
            out[0] = sum;
            finished = 0;  // for the next launch
        }
    }
}
"""),
    tiles={"N": 64},
    block=64,
    require="N <= 64 * 64",
)
def device_variables(x: Int32[Array, " N"]) -> Int32[Array, " 1"]:
    """How many are positive, by way of variables of the module that every launch leaves as it found them."""
    return np.array([(x > 0).sum()])


class Locked(NamedTuple, Generic[Array]):
    """What is written under a lock."""

    total: Int32[Array, " 2"]
    counts: Int32[Array, " 8"]


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    // One lock for all blocks, taken by one thread of each.
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const int positive = __syncthreads_count(x[i] > 0);
    if (threadIdx.x == 0) {
        while (atomicCAS(lock, 0u, 1u) != 0u) {}
        __threadfence();
        total[0] += positive;
        total[1] = max(total[1], positive);
        __threadfence();
        atomicExch(lock, 0u);
    }
    // Eight locks, taken by every thread: lanes of one warp wait for each other.
    const int mine = x[i] & 7;
    bool done = false;
    while (!done) {
        if (atomicCAS(&lock[1 + mine], 0u, 1u) == 0u) {
            __threadfence();
            ((volatile int*)counts)[mine] = ((volatile int*)counts)[mine] + 1;
            __threadfence();
            atomicExch(&lock[1 + mine], 0u);
            done = true;
        }
    }
}
"""),
    grid="N // 64",
    block=64,
    scratch={"lock": ("uint32", 9)},
    zeroed=("lock", "total", "counts"),
    require="N % 64 == 0",
)
def spin_locks(x: Int32[Array, " N"]) -> Locked[Array]:
    """Sums and counts without atomic additions, under spin locks."""
    positive = (x.reshape(-1, 64) > 0).sum(axis=1)
    return Locked(np.array([positive.sum(), positive.max()]), np.bincount(x & 7, minlength=8))


@specialize(
    Inline("""
enum State : int { nothing, sum_known, prefix_known };

extern "C" __global__ void {{ kernel }}({{ args }})
{
    __shared__ int held[128], tile, before;
    const int t = threadIdx.x;
    if (t == 0) tile = atomicAdd(ticket, 1);  // a tile's predecessors have begun
    __syncthreads();
    const int i = tile * 128 + t;
    held[t] = i < N ? x[i] : 0;
    __syncthreads();
    for (int step = 1; step < 128; step *= 2) {
        const int left = t >= step ? held[t - step] : 0;
        __syncthreads();
        held[t] += left;
        __syncthreads();
    }
    if (t == 0) {
        sums[tile] = held[127];
        __threadfence();
        atomicExch(&state[tile], sum_known);
        int sum = 0;
        for (int at = tile - 1; at >= 0; --at) {
            int known;
            while ((known = ((volatile int*)state)[at]) == nothing) {}
            __threadfence();
            if (known == prefix_known) {
                sum += ((volatile int*)prefixes)[at];
                break;
            }
            sum += ((volatile int*)sums)[at];
        }
        prefixes[tile] = sum + held[127];
        __threadfence();
        atomicExch(&state[tile], prefix_known);
        before = sum;
    }
    __syncthreads();
    if (i < N) out[i] = before + held[t];
}
"""),
    tiles={"N": 128},
    block=128,
    scratch={
        "ticket": ("int32", 1),
        "state": ("int32", "cdiv(N, 128)"),
        "sums": ("int32", "cdiv(N, 128)"),
        "prefixes": ("int32", "cdiv(N, 128)"),
    },
    zeroed=("ticket", "state"),
)
def look_back(x: Int32[Array, " N"]) -> Int32[Array, " N"]:
    """The running sum in one pass: each tile looks back at its predecessors' sums."""
    return np.cumsum(x)


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    // Blocks take rows until none is left.
    __shared__ int row, sum;
    for (;;) {
        if (threadIdx.x == 0) row = atomicAdd(queue, 1), sum = 0;
        __syncthreads();
        const int mine = row;
        if (mine >= R) return;
        int part = 0;
        for (int i = threadIdx.x; i < length[mine]; i += blockDim.x) part += x[mine * C + i];
        atomicAdd(&sum, part);
        __syncthreads();
        if (threadIdx.x == 0) out[mine] = sum;
    }
}
"""),
    grid=3,
    block=32,
    scratch={"queue": ("int32", 1)},
    zeroed="queue",
)
def work_queue(x: Int32[Array, "R C"], length: Int32[Array, " R"]) -> Int32[Array, " R"]:
    """Sums of rows of unequal lengths, which blocks take from a queue."""
    return np.array([row[:n].sum() for row, n in zip(x, length, strict=True)])


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N) return;
    for (unsigned int slot = (unsigned int)x[i] * 2654435761u % S;; slot = (slot + 1) % S) {
        const int found = atomicCAS(&keys[slot], -1, x[i]);
        if (found == -1 || found == x[i]) {
            atomicAdd(&counts[slot], 1);
            return;
        }
    }
}
"""),
    tiles={"N": 64},
    block=64,
    mutates=("keys", "counts"),
)
def hash_table(x: Int32[Array, " N"], keys: Int32[Array, " S"], counts: Int32[Array, " S"]) -> None:
    """A table with open addresses that counts keys; where two collide, their places depend on who came first."""
    values, number = np.unique(x, return_counts=True)
    keys[-len(values) :], counts[-len(values) :] = values, number


class Labels(NamedTuple, Generic[Array]):
    """One label a node."""

    label: Int32[Array, " N"]


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    for (int i = threadIdx.x; i < N; i += blockDim.x) label[i] = i;
    __syncthreads();
    volatile int* now = label;
    for (bool again = true; again;) {
        int changed = 0;
        for (int i = threadIdx.x; i < E; i += blockDim.x) {
            const int u = ends[2 * i], v = ends[2 * i + 1];
            const int a = now[u], b = now[v];
            if (a < b) changed |= atomicMin(&label[v], a) > a;
            if (b < a) changed |= atomicMin(&label[u], b) > b;
        }
        again = __syncthreads_or(changed);
    }
}
"""),
    grid=1,
    block=64,
)
def components(ends: Int32[Array, "E 2"], node: Int32[Array, " N"]) -> Labels[Array]:
    """The smallest node that each node of a graph is connected with."""
    label = np.arange(len(node))
    for _ in node:
        for u, v in ends:
            label[u] = label[v] = min(label[u], label[v])
    return Labels(label)


def by_key(arrays: Arrays) -> Arrays:
    """The table in the order of its keys."""
    order = np.argsort(arrays["keys"], kind="stable")
    return {name: array[order] for name, array in arrays.items()}


CASES = (
    Case(
        last_block,
        lambda rng: {"x": normal(rng, 3000)},
        near=relative(2e-5, "the kernel sums in single precision, in one order; the sum is small beside its terms"),
    ),
    Case(device_variables, lambda rng: {"x": integers(rng, -9, 10, 500)}),
    Case(spin_locks, lambda rng: {"x": integers(rng, -99, 100, 192)}),
    Case(look_back, lambda rng: {"x": integers(rng, -99, 100, 1500)}),
    Case(work_queue, lambda rng: {"x": integers(rng, -99, 100, 11, 90), "length": integers(rng, 0, 91, 11)}),
    Case(
        hash_table,
        lambda rng: {
            "x": integers(rng, 0, 90, 300),
            "keys": np.full(128, -1, "int32"),
            "counts": np.zeros(128, "int32"),
        },
        settle=by_key,
    ),
    Case(components, lambda rng: {"ends": integers(rng, 0, 120, 90, 2), "node": np.zeros(120, "int32")}),
)
