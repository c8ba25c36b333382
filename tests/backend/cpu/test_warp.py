"""Warp operations against what the programming guide says of them, with full, partial and divergent masks."""

from __future__ import annotations

import numpy as np
import pytest

from cuplate.backend.cpu.engine import KernelFault

LANES = np.arange(32)

TYPES = {
    "int": "int32",
    "unsigned": "uint32",
    "long long": "int64",
    "unsigned long long": "uint64",
    "long": "int64",
    "unsigned long": "uint64",
    "float": "float32",
    "double": "float64",
}


@pytest.mark.parametrize("ctype", TYPES)
@pytest.mark.parametrize("width", [2, 8, 32])
def test_shuffles_move_every_type(compiled, ctype, width):
    """Index, up, down and xor in segments of 2, 8 and 32 lanes; a lane with nothing to read keeps its value."""
    text = f"""
    extern "C" __global__ void k(const {ctype}* a, {ctype}* out, int d) {{
        const {ctype} v = a[threadIdx.x];
        out[threadIdx.x] = __shfl_sync(0xffffffffu, v, d, {width});
        out[64 + threadIdx.x] = __shfl_up_sync(~0u, v, d, {width});
        out[128 + threadIdx.x] = __shfl_down_sync(~0u, v, d, {width});
        out[192 + threadIdx.x] = __shfl_xor_sync(~0u, v, d, {width});
    }}
    """
    kernel = compiled(text)
    a = (np.arange(64) * 1234567.5 - 5).astype(TYPES[ctype])
    for d in (0, 1, 3, 7):
        out = np.zeros((4, 64), TYPES[ctype])
        kernel(1, 64, a, out, np.int32(d))
        lanes = np.arange(64)
        base, own = lanes // width * width, lanes % width
        want = [
            base + d % width,
            np.where(own >= d, lanes - d, lanes),
            np.where(own + d < width, lanes + d, lanes),
            np.where((lanes ^ d) <= (lanes | (width - 1)), lanes ^ d, lanes),  # earlier segments can be read
        ]
        for got, index in zip(out, want, strict=True):
            assert (got == a[index]).all()


def test_small_types_are_promoted_as_in_cuda(compiled):
    """char, short and bool have no overload of their own: they travel as int and come back."""
    text = """
    extern "C" __global__ void k(int* out) {
        const unsigned char c = 250 + threadIdx.x;
        const short s = -threadIdx.x;
        const unsigned char got = __shfl_sync(~0u, c, 3);
        const short down = __shfl_down_sync(~0u, s, 1);
        out[threadIdx.x] = got * 1000 + down;
    }
    """
    out = np.zeros(32, np.int32)
    compiled(text)(1, 32, out)
    assert out.tolist() == [253 * 1000 - min(t + 1, 31) for t in range(32)]


def test_votes(compiled):
    """ballot, any and all over the lanes of a mask, with divergent halves voting on their own."""
    text = """
    extern "C" __global__ void k(unsigned* out) {
        const unsigned t = threadIdx.x;
        out[t] = __ballot_sync(~0u, t % 3 == 0);
        out[32 + t] = __any_sync(~0u, t == 40) + 2 * __any_sync(~0u, t == 5)
            + 4 * __all_sync(~0u, t < 32) + 8 * __all_sync(~0u, t != 9);
        if (t < 16) out[64 + t] = __ballot_sync(0xffffu, 256);
        else out[64 + t] = __ballot_sync(0xffff0000u, t != 20);
        out[96 + t] = __activemask();
    }
    """
    out = np.zeros((4, 32), np.uint32)
    compiled(text)(1, 32, out)
    assert set(out[0]) == {sum(1 << t for t in range(0, 32, 3))}
    assert set(out[1]) == {2 + 4}
    assert set(out[2, :16]) == {0xFFFF}
    assert set(out[2, 16:]) == {0xFFFF0000 & ~(1 << 20)}
    assert set(out[3]) == {0xFFFFFFFF}


def test_exited_lanes_of_a_mask_are_not_waited_for(compiled):
    """A full mask after some lanes have returned: the others go on without them."""
    text = """
    extern "C" __global__ void k(unsigned* out) {
        if (threadIdx.x >= 10) return;
        out[threadIdx.x] = __ballot_sync(0xffffffffu, 1);
    }
    """
    out = np.zeros(32, np.uint32)
    compiled(text)(1, 32, out)
    assert out[:10].tolist() == [0x3FF] * 10


def test_lanes_that_wait_go_on_when_those_they_wait_for_exit(compiled):
    """Two groups wait in one warp, each for a lane that then returns."""
    text = """
    extern "C" __global__ void k(unsigned* out) {
        const unsigned t = threadIdx.x;
        if (t == 31) return;
        if (t < 8) out[t] = __ballot_sync(0x800000ffu, 1);
        else if (t < 16) out[t] = __ballot_sync(0x8000ff00u, 1);
    }
    """
    out = np.zeros(32, np.uint32)
    compiled(text)(1, 32, out)
    assert set(out[:8]) == {0xFF}
    assert set(out[8:16]) == {0xFF00}


@pytest.mark.parametrize("ctype", TYPES)
def test_match(compiled, ctype):
    """match_any groups equal bits; match_all sets its flag only if all are equal."""
    text = f"""
    extern "C" __global__ void k(const {ctype}* a, unsigned* out) {{
        const unsigned t = threadIdx.x;
        int same = -1, none = -1;
        out[t] = __match_any_sync(~0u, a[t]);
        out[32 + t] = __match_all_sync(~0u, a[3], &same);
        out[64 + t] = __match_all_sync(~0u, a[t], &none);
        out[96 + t] = same * 2 + none;
    }}
    """
    a = (LANES % 5).astype(TYPES[ctype])
    out = np.zeros((4, 32), np.uint32)
    compiled(text)(1, 32, a, out)
    assert out[0].tolist() == [sum(1 << u for u in range(32) if u % 5 == t % 5) for t in range(32)]
    assert set(out[1]) == {0xFFFFFFFF}
    assert set(out[2]) == {0}
    assert set(out[3]) == {2}


def test_reductions(compiled):
    """add wraps, min and max respect the sign, and and-or-xor combine; a mask leaves lanes out."""
    text = """
    extern "C" __global__ void k(const int* a, int* out, unsigned* bits) {
        const unsigned t = threadIdx.x;
        const unsigned m = t < 16 ? 0xffffu : 0xffff0000u;
        out[t] = __reduce_add_sync(m, a[t]);
        out[32 + t] = __reduce_min_sync(m, a[t]);
        out[64 + t] = __reduce_max_sync(m, a[t]);
        bits[t] = __reduce_and_sync(m, (unsigned)a[t] | 0x100u);
        bits[32 + t] = __reduce_or_sync(m, (unsigned)a[t]);
        bits[64 + t] = __reduce_xor_sync(m, (unsigned)a[t]);
        bits[96 + t] = __reduce_max_sync(m, (unsigned)a[t]);
        bits[128 + t] = __reduce_min_sync(m, (unsigned)a[t]);
        bits[160 + t] = __reduce_add_sync(m, (unsigned)a[t]);
    }
    """
    a = np.random.default_rng(1).integers(-(2**31), 2**31, 32, dtype=np.int32)
    out, bits = np.zeros((3, 32), np.int32), np.zeros((6, 32), np.uint32)
    compiled(text)(1, 32, a, out, bits)
    for half in (slice(0, 16), slice(16, 32)):
        v, u = a[half], a[half].view(np.uint32)
        assert set(out[0, half]) == {np.add.reduce(v, dtype=np.int32)}
        assert set(out[1, half]) == {v.min()} and set(out[2, half]) == {v.max()}
        assert set(bits[0, half]) == {np.bitwise_and.reduce(u | 0x100)}
        assert set(bits[1, half]) == {np.bitwise_or.reduce(u)} and set(bits[2, half]) == {np.bitwise_xor.reduce(u)}
        assert set(bits[3, half]) == {u.max()} and set(bits[4, half]) == {u.min()}
        assert set(bits[5, half]) == {np.add.reduce(u, dtype=np.uint32)}


def test_a_block_reduction_with_shuffles(compiled):
    """The pattern that every textbook has, with a last warp that is divergent by warp."""
    text = """
    template <class T> __device__ __forceinline__ T warp_sum(T v) {
        for (int o = warpSize / 2; o > 0; o >>= 1) v += __shfl_down_sync(0xffffffffu, v, o);
        return v;
    }
    extern "C" __global__ void k(const int* a, int* out) {
        extern __shared__ int part[];
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        int v = warp_sum(a[blockIdx.x * blockDim.x + threadIdx.x]);
        if (lane == 0) part[warp] = v;
        __syncthreads();
        if (warp == 0) {
            v = lane < blockDim.x / 32 ? part[lane] : 0;
            v = warp_sum(v);
            if (lane == 0) atomicAdd(out, v);
        }
    }
    """
    a = np.arange(4096, dtype=np.int32)
    out = np.zeros(1, np.int32)
    compiled(text)(16, 256, a, out, shared_bytes=32, workers=2)
    assert out[0] == a.sum()


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("if (threadIdx.x != 20) out[0] = __shfl_sync(~0u, 1, 20);", ["shuffle", "lane 20", "has exited"]),
        ("if (threadIdx.x >= 32) out[0] = __shfl_sync(~0u, 1, 20);", ["shuffle", "lane 20", "the block does not have"]),
        ("if (threadIdx.x < 8) out[0] = __shfl_sync(0xf0u, 1, 5);", ["mask leaves out the lane that calls it"]),
    ],
)
def test_a_shuffle_from_an_absent_lane_is_said_when_checked(compiled, statement, words):
    """Which lane, and why it is not there."""
    text = f'extern "C" __global__ void k(int* out) {{\n{statement}\n}}'
    with pytest.raises(KernelFault) as caught:
        compiled(text, check="full")(1, 40, np.zeros(1, np.int32), check="full")
    assert caught.value.kind == "divergence"
    assert caught.value.line == 2
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_shuffle_from_a_lane_outside_its_mask_is_no_fault_and_no_number(compiled):
    """Sound code shuffles first and asks for the lane afterwards; who uses the value gets NaN."""
    text = """extern "C" __global__ void k(float* out) {
        unsigned lane = threadIdx.x;
        if (lane >= 8) return;
        float sum = 1.0f;
        for (unsigned step = 4; step; step /= 2) {
            float other = __shfl_down_sync(0xffu, sum, step);
            if (lane + step < 8) sum += other;
        }
        out[lane] = sum;
        out[8 + lane] = __shfl_sync(0xffu, sum, 20);
    }"""
    for check in ("off", "full"):
        out = np.zeros(16, np.float32)
        assert compiled(text, check=check)(1, 32, out, check=check) == ()
        assert out[0] == 8 and np.isnan(out[8:]).all()


def test_lanes_in_different_operations_are_divergence_when_checked(compiled):
    """A shuffle and a ballot with one mask would meet by accident."""
    text = """extern "C" __global__ void k(unsigned* out) {
        if (threadIdx.x < 16)
            out[0] = __ballot_sync(~0u, 1);
        else
            out[0] = __shfl_sync(~0u, 1, 0);
    }
    """
    with pytest.raises(KernelFault) as caught:
        compiled(text, check="full")(1, 32, np.zeros(1, np.uint32), check="full")
    assert caught.value.kind == "divergence"
    assert {(w.operation, w.line) for w in caught.value.waiting} == {("__ballot_sync", 3), ("__shfl_sync", 5)}
