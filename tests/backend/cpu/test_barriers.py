"""Barriers of a block: who has to arrive, what they give, and what is said when not all do."""

from __future__ import annotations

import numpy as np
import pytest

from cuplate.backend.cpu.engine import KernelFault


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
