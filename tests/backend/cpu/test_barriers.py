"""Barriers of a block: who has to arrive, what they give, and what is said when not all do."""

from __future__ import annotations

import numpy as np
import pytest

from cuplate.backend.cpu.engine import KernelFault
from cuplate.options import Options


@pytest.mark.parametrize("order", [0, 1, 2, 3])
@pytest.mark.parametrize("block", [1, 31, 32, 33, 1000, 1024])
def test_all_threads_see_what_was_written_before_a_barrier(compiled, block, order):
    """A reversal through shared memory, for full and partial warps, in any order of threads and blocks."""
    text = """
    extern "C" __global__ void k(const int* a, int* out) {
        __shared__ int part[1024];
        const int i = blockIdx.x * blockDim.x + threadIdx.x;
        part[threadIdx.x] = a[i];
        __syncthreads();
        out[i] = part[blockDim.x - 1 - threadIdx.x];
        __syncthreads();
        part[threadIdx.x] = -1;
    }
    """
    a = np.arange(3 * block, dtype=np.int32)
    out = np.zeros_like(a)
    compiled(text)(3, block, a, out, order=order)
    assert out.tolist() == a.reshape(3, block)[:, ::-1].ravel().tolist()


def test_threads_that_have_ended_are_not_waited_for(compiled):
    """A barrier counts the threads that have not exited, as hardware does since Volta."""
    text = """
    extern "C" __global__ void k(int* out) {
        if (threadIdx.x >= 40) return;
        __shared__ int sum;
        if (threadIdx.x == 0) sum = 0;
        __syncthreads();
        atomicAdd(&sum, 1);
        if (threadIdx.x % 2) return;
        __syncthreads();
        out[threadIdx.x] = sum;
    }
    """
    out = np.zeros(64, np.int32)
    compiled(text)(1, 64, out)
    assert out[:40:2].tolist() == [40] * 20
    assert not out[1::2].any()


def test_the_last_thread_that_ends_releases_a_barrier(compiled):
    """All others wait already when thread 0 exits."""
    text = """
    extern "C" __global__ void k(int* out) {
        if (threadIdx.x == 63) return;
        __syncthreads();
        out[threadIdx.x] = 1;
    }
    """
    out = np.zeros(64, np.int32)
    compiled(text)(1, 64, out)
    assert out.sum() == 63


@pytest.mark.parametrize("check", ["off", "full"])
def test_count_and_or(compiled, check):
    """Each form combines the predicates of the threads that have not exited; results of one do not leak to the next."""
    text = """
    extern "C" __global__ void k(int* out) {
        const int t = threadIdx.x;
        if (t >= 50) return;
        int* mine = out + 6 * t;
        mine[0] = __syncthreads_count(t % 3);
        mine[1] = __syncthreads_and(t < 50);
        mine[2] = __syncthreads_and(t != 7);
        mine[3] = __syncthreads_or(t == 49);
        mine[4] = __syncthreads_or(t == 50);
        mine[5] = __syncthreads_count(0);
    }
    """
    out = np.full((64, 6), -1, np.int32)
    compiled(text, check=check)(1, 64, out, check=check)
    assert (out[:50] == [33, 1, 0, 1, 0, 0]).all()
    assert (out[50:] == -1).all()


def test_barriers_of_one_block_do_not_touch_another(compiled):
    """Blocks on several workers, each with its own shared variables."""
    text = """
    extern "C" __global__ void k(int* out) {
        __shared__ int part[128];
        for (int round = 0; round < 10; ++round) {
            part[threadIdx.x] = blockIdx.x * 1000 + threadIdx.x + round;
            __syncthreads();
            const int got = part[(threadIdx.x + 1) % 128];
            __syncthreads();
            if (got != blockIdx.x * 1000 + (threadIdx.x + 1) % 128 + round) atomicAdd(out, 1);
        }
    }
    """
    out = np.zeros(1, np.int32)
    compiled(text)(200, 128, out, workers=4)
    assert out[0] == 0


@pytest.mark.parametrize("check", ["off", "full"])
def test_a_barrier_in_a_branch_that_not_all_take_is_a_deadlock_that_names_the_lines(compiled, check):
    """Some wait at a barrier, the rest at a warp operation that those would have to join."""
    text = """extern "C" __global__ void k(int* out) {
        if (threadIdx.x < 16)
            __syncthreads();
        else
            __syncwarp();
        out[threadIdx.x] = 1;
    }
    """
    with pytest.raises(KernelFault) as caught:
        compiled(text, check=check)(2, 32, np.zeros(32, np.int32), check=check)
    fault = caught.value
    assert fault.kind == "deadlock"
    assert fault.block == (0, 0, 0)
    assert [(w.first, w.last, w.operation, w.line) for w in fault.waiting] == [
        (0, 15, "__syncthreads", 3),
        (16, 31, "__syncwarp", 5),
    ]
    assert "threads 0 to 15 wait in __syncthreads at kernel.cu:3" in str(fault)


def test_two_barriers_at_different_lines_are_divergence_when_checked(compiled):
    """Unchecked they meet, as in hardware; checked the first pair of lines is named."""
    text = """extern "C" __global__ void k(int* out) {
        if (threadIdx.x < 32)
            __syncthreads();
        else
            __syncthreads();
        out[threadIdx.x] = 1;
    }
    """
    out = np.zeros(64, np.int32)
    compiled(text)(1, 64, out)
    assert out.all()
    with pytest.raises(KernelFault) as caught:
        compiled(text, check="full")(1, 64, out, check="full")
    assert caught.value.kind == "divergence"
    assert {w.line for w in caught.value.waiting} == {3, 5}


def test_a_barrier_in_a_function_is_at_the_line_of_the_function(compiled):
    """The place is where the barrier is written, not where the function is called."""
    text = """__device__ void wait() {
        __syncthreads();
    }
    extern "C" __global__ void k(int* out) {
        if (threadIdx.x == 0) wait(); else __syncwarp(0xfffffffeu | 1u);
    }
    """
    with pytest.raises(KernelFault) as caught:
        compiled(text)(1, 32, np.zeros(32, np.int32))
    assert [w.line for w in caught.value.waiting] == [2, 5]


@pytest.mark.parametrize("check", ["off", "full"])
@pytest.mark.parametrize("debug", [False, True])
def test_what_a_thread_knows_outlives_barriers(compiled, check, debug):
    """Integers, floats, predicates, masks and a local array, in a frame that calls nothing else."""
    text = """
    extern "C" __global__ void k(const int* a, const double* b, double* out, int rounds) {
        __shared__ int turn;
        const int t = threadIdx.x;
        int i0 = a[t], i1 = i0 * 3, i2 = i0 ^ 5, i3 = i0 + 7, i4 = i0 - 9, i5 = i0 * i0, i6 = ~i0, i7 = i0 << 2;
        double d0 = b[t], d1 = d0 * 2, d2 = d0 + 1, d3 = -d0;
        volatile int local[4] = {i0, i1, i2, i3};
        bool odd = t % 2, high = d0 > 0.5;
        for (int r = 0; r < rounds; ++r) {
            if (t == r) turn = a[t];
            __syncthreads();
            const int said = turn;
            __syncthreads();
            i0 += said; i1 ^= i0; i2 += i1; i3 -= i2; i4 ^= i3; i5 += i4; i6 -= i5; i7 ^= i6;
            d0 += odd ? said : -said; d1 -= high ? d0 : 1; d2 += d1; d3 -= d2;
            local[r % 4] += i7;
        }
        out[t] = (double)i7 + d3 + local[0] + local[1] + local[2] + local[3];
    }
    """
    threads, rounds = 100, 9
    draw = np.random.default_rng(0)
    a, b = draw.integers(0, 1000, threads).astype(np.int32), draw.random(threads)
    out = np.zeros(threads)
    kernel = compiled(text, check=check, options=Options(debug=debug))
    kernel(3, threads, a, b, out, np.int32(rounds), check=check)
    i = [a, a * 3, a ^ 5, a + 7, a - 9, a * a, ~a, a << 2]
    d = [b, b * 2, b + 1, -b]
    odd, high, local = np.arange(threads) % 2 == 1, b > 0.5, i[:4]
    with np.errstate(over="ignore"):
        for r in range(rounds):
            i[0] = i[0] + a[r]
            for n, sign in enumerate("^+-^+-^", 1):
                i[n] = {"^": np.bitwise_xor, "+": np.add, "-": np.subtract}[sign](i[n], i[n - 1])
            d[0] = d[0] + np.where(odd, a[r], -a[r])
            d[1] = d[1] - np.where(high, d[0], 1)
            d[2] = d[2] + d[1]
            d[3] = d[3] - d[2]
            local = [part + i[7] if n == r % 4 else part for n, part in enumerate(local)]
    np.testing.assert_allclose(out, i[7] + d[3] + sum(part.astype(np.float64) for part in local), rtol=1e-12)


def test_a_barrier_leaves_the_frame_of_a_function_that_calls_nothing_alone(compiled):
    """Below its stack pointer a function that calls nothing may keep what it likes, were it not told otherwise."""
    text = """
    __device__ __noinline__ int swapped(volatile int* slot, int given) {
        volatile int kept[6] = {given, given + 1, given + 2, given + 3, given + 4, given + 5};
        *slot = given;
        __syncthreads();
        return kept[0] * 1000000 + kept[1] * 100000 + kept[2] * 10000 + kept[3] * 1000 + kept[4] * 100
            + kept[5];
    }
    extern "C" __global__ void k(int* out) {
        __shared__ int slot;
        out[threadIdx.x] = swapped(&slot, threadIdx.x % 4);
    }
    """
    out = np.zeros(64, np.int32)
    compiled(text)(1, 64, out)
    digits = (6, 5, 4, 3, 2, 0)
    assert out.tolist() == [sum((t % 4 + n) * 10**digit for n, digit in enumerate(digits)) for t in range(64)]


@pytest.mark.parametrize("debug", [False, True])
def test_a_barrier_leaves_a_frame_of_unknown_size_alone(compiled, debug):
    """What a compiler reaches such a frame from is not among the registers that it gives up."""
    text = """
    extern "C" __global__ void k(int* out, int n) {
        alignas(64) volatile int aligned[16];
        volatile int* part = (volatile int*)__builtin_alloca(n * 4);
        for (int i = 0; i < n; ++i) part[i] = threadIdx.x + i;
        for (int i = 0; i < 16; ++i) aligned[i] = threadIdx.x * i;
        int sum = 0;
        for (int i = 0; i < n; ++i) {
            __syncthreads();
            sum += part[i];
        }
        for (int i = 0; i < 16; ++i) sum += aligned[i];
        out[threadIdx.x] = (size_t)aligned % 64 ? -1 : sum;
    }
    """
    out = np.zeros(64, np.int32)
    compiled(text, options=Options(debug=debug))(1, 64, out, np.int32(7))
    assert out.tolist() == [7 * t + 21 + 120 * t for t in range(64)]


@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_barriers_go_together_with_warp_operations_and_exits(compiled, order):
    """Warps shuffle a different number of times between two barriers, and threads of all warps leave on the way."""
    text = """
    extern "C" __global__ void k(int* out) {
        __shared__ int sum;
        const int t = threadIdx.x;
        if (t == 0) sum = 0;
        __syncthreads();
        int value = t;
        for (int r = 0; r < t / 32; ++r) value += __shfl_xor_sync(0xffffffffu, value, 1);
        __syncthreads();
        if (t % 32 == 7) return;
        const int left = __syncthreads_count(1);
        if (t % 2) __syncwarp(__activemask());
        atomicAdd(&sum, 1);
        __syncthreads();
        if (t % 64 == 0) { out[512] = sum; out[513] = left; return; }
        __syncthreads();
        out[t] = value;
    }
    """
    out = np.zeros(514, np.int32)
    compiled(text)(2, 200, out, order=order)
    value = np.arange(200)
    for warp in range(7):
        lanes = slice(32 * warp, min(32 * warp + 32, 200))
        for _ in range(warp):
            value[lanes] += value[lanes].reshape(-1, 2)[:, ::-1].ravel()
    value[np.arange(200) % 32 == 7] = 0
    value[np.arange(200) % 64 == 0] = 0
    assert out[:200].tolist() == value.tolist()
    assert out[512:].tolist() == [200 - 7, 200 - 7]


def test_lanes_behind_a_barrier_converge_without_those_before_the_next(compiled):
    """Who waits at a barrier already is no lane that could still come."""
    text = """
    extern "C" __global__ void k(unsigned* out) {
        const int t = threadIdx.x;
        __syncthreads();
        if (t % 4 != 1) __syncthreads();
        else {
            out[t] = __activemask();
            __syncthreads();
        }
        __syncthreads();
    }
    """
    out = np.zeros(64, np.uint32)
    compiled(text)(1, 64, out)
    assert out[1::4].tolist() == [0x22222222] * 16


def test_a_deadlock_behind_barriers_names_where_each_thread_waits(compiled):
    """Also of threads that went from one barrier to the next without a look at the others."""
    text = """extern "C" __global__ void k(int* out) {
        for (int r = 0; r < 3; ++r)
            __syncthreads();
        if (threadIdx.x == 70)
            __syncwarp();
        __syncthreads();
        if (threadIdx.x == 71) return;
        __syncthreads();
    }
    """
    with pytest.raises(KernelFault) as caught:
        compiled(text)(1, 100, np.zeros(1, np.int32))
    assert [(w.first, w.last, w.operation, w.line) for w in caught.value.waiting] == [
        (0, 69, "__syncthreads", 6),
        (70, 70, "__syncwarp", 5),
        (71, 99, "__syncthreads", 6),
    ]


def test_a_thread_that_spins_between_barriers_lets_the_next_ones_go_on(compiled):
    """The one that it waits for stands behind it, on its way to the same barrier."""
    text = """
    extern "C" __global__ void k(volatile int* flag, int* out) {
        __syncthreads();
        __syncthreads();
        if (threadIdx.x == 5) { while (*flag == 0) { } }
        if (threadIdx.x == 60) *flag = 1;
        __syncthreads();
        out[threadIdx.x] = *flag;
        __syncthreads();
    }
    """
    out = np.zeros(64, np.int32)
    compiled(text)(1, 64, np.zeros(1, np.int32), out)
    assert out.all()
