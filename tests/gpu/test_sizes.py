"""Sizes: nothing, 2**31 and more, grids beyond 65535, shared memory to the device's limit, grids that are resident."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from jaxtyping import Float32, Int8, Int32, Int64

from cuplate import Array, Inline, LaunchError, specialize
from tests.bindings import first, more

KIB = 1024


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    extern __shared__ unsigned char dynamic[];
    __shared__ unsigned char fixed[{{ fixed }}];
    for (int i = threadIdx.x; i < {{ room }}; i += blockDim.x) dynamic[i] = i * 7 + x[0];
    for (int i = threadIdx.x; i < {{ fixed }}; i += blockDim.x) fixed[i] = i * 5;
    __syncthreads();
    if (threadIdx.x) return;
    long long sum = 0;
    for (int i = 0; i < {{ room }}; ++i) sum += dynamic[i];
    for (int i = 0; i < {{ fixed }}; ++i) sum += fixed[i];
    out[0] = sum;
}
"""),
    grid=1,
    shared_bytes="room",
)
def fill_shared(x: Int32[Array, " N"], *, room: int, fixed: int = 1024) -> Int64[Array, "one=1"]:
    """The sum of what was written to all of a block's shared memory."""
    raise NotImplementedError


def in_shared(room: int, fixed: int) -> int:
    """What `fill_shared` finds for x[0] = 1."""
    both = (np.arange(room) * 7 + 1) & 255, (np.arange(fixed) * 5) & 255
    return int(both[0].sum() + both[1].sum())


@pytest.mark.parametrize("room", [47 * KIB, 48 * KIB, 49 * KIB, "limit"])
@pytest.mark.parametrize("fixed", [1, 1024, 16 * KIB])
def test_shared_memory_up_to_the_limit(cp: Any, room: Any, fixed: int) -> None:
    """Dynamic and static together count: right up to the last byte, and one step more is refused with the numbers."""
    x = cp.ones(1, cp.int32)
    limit = int(cp.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"])
    size = limit - -(-fixed // 16) * 16 if room == "limit" else room
    for _ in range(2):
        assert int(fill_shared(x, room=size, fixed=fixed)[0]) == in_shared(size, fixed)
    if room == "limit":
        with pytest.raises(LaunchError, match=f"the device allows {limit}") as caught:
            fill_shared(x, room=size + 16, fixed=fixed)
        assert caught.value.dynamic_bytes == size + 16 and caught.value.static_bytes >= fixed
        assert int(fill_shared(x, room=100, fixed=fixed)[0]) == in_shared(100, fixed)


def test_one_kernel_with_more_and_less_shared_memory(cp: Any) -> None:
    """The limit is the kernel's, and is raised once: a small call behind a large one, and a larger one behind both."""

    @specialize(
        Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    extern __shared__ float row[];
    for (int i = threadIdx.x; i < N; i += blockDim.x) row[N - 1 - i] = x[i];
    __syncthreads();
    for (int i = threadIdx.x; i < N; i += blockDim.x) out[i] = row[i];
}
"""),
        grid=1,
        shared_bytes="4 * N",
    )
    def turned(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        return x[::-1]

    for n in (100, 20_000, 1, 13_000, 50_000, 5):
        x = cp.arange(n, dtype=cp.float32)
        assert bool((turned(x) == x[::-1]).all())
    assert turned.cache_info().compiles <= 1


@pytest.mark.parametrize("rows", [65535, 65536, 70000, 200_001])
def test_many_rows_fold_onto_x_b45(cp: Any, rows: int) -> None:
    """B45: more rows than y has blocks; every row is the right one, cold and warm."""
    x, s = cp.ones((rows, 3), cp.float32), cp.arange(rows, dtype=cp.float32)
    for _ in range(2):
        assert bool((more.scale_rows(x, s) == s[:, None]).all())


def test_a_text_that_reads_its_block_is_refused_with_the_numbers_b45(cp: Any) -> None:
    """B45: before the launch, and nothing is left behind."""
    x, s = cp.ones((65536, 1), cp.float32), cp.arange(65536, dtype=cp.float32)
    assert bool((more.scale_rows_unfoldable(x[:65535], s[:65535]) == s[:65535, None]).all())
    with pytest.raises(LaunchError, match="65536") as caught:
        more.scale_rows_unfoldable(x, s)
    assert "65535" in str(caught.value)
    assert bool((more.scale_rows_unfoldable(x[:9], s[:9]) == s[:9, None]).all())


def test_empty_calls_leave_no_error_b38(cp: Any) -> None:
    """B38: empty outputs of every kind, then the next call of CUDA and of ours is as if nothing had been."""
    none = cp.empty((0, 5), cp.float32)
    assert first.softmax(none).shape == (0, 5)
    assert first.saxpy(1.0, none[:, 0], none[:, 0]).shape == (0,)
    assert first.linear(cp.empty((4, 0), cp.float32), cp.empty((0, 3), cp.float32)).tolist() == [[0.0] * 3] * 4
    assert float(first.total(cp.empty(0, cp.float32))) == 0
    cp.cuda.runtime.deviceSynchronize()
    assert float(first.total(cp.ones(77, cp.float32))) == 77
    assert float((cp.arange(5) * 2).sum()) == 20


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const {{ index_t }} i = ({{ index_t }})blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) out[i] = x[i] + 1;
}
""")
)
def add_one(x: Int8[Array, " N"]) -> Int8[Array, " N"]:
    """x + 1, with indices of the width that the call needs."""
    return x + 1


@pytest.mark.parametrize("n", [2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1, 2**32, 2**32 + 999], ids=hex)
def test_each_element_around_the_limits_of_32_bits(cp: Any, device_memory: Any, n: int) -> None:
    """Every element is written once, to the last, at the sizes where an index changes its width or its sign."""
    x = cp.zeros(n, cp.int8)
    x[::1_000_003] = 5
    out = cp.full(n, 99, cp.int8)
    add_one(x, out=out)
    for start in range(0, n, 2**30):
        part = slice(start, start + 2**30)
        assert bool((out[part] == x[part] + 1).all())
    assert int(out[-1]) in (1, 6)


def test_more_than_2_gib_of_larger_elements(cp: Any, device_memory: Any) -> None:
    """2**29 floats are 2 GiB: byte offsets need 64 bits before element indices do."""
    n = 2**29 + 5
    x = cp.arange(n, dtype=cp.float32)
    y = cp.ones(n, cp.float32)
    assert bool((first.saxpy(2.0, x, y) == 2 * x + 1).all())


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    {{ index_t }} i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) out[i] = x[i] + 1;
}
""")
)
def add_one_32(x: Int8[Array, " N"]) -> Int8[Array, " N"]:
    """As people write it: the product is one of unsigned integers."""
    return x + 1


def test_a_product_that_would_wrap_is_refused(cp: Any, device_memory: Any) -> None:
    """Below 2**32 threads the product is right; above it the last elements would never be written."""
    x = cp.zeros(2**32 + 1, cp.int8)
    assert bool((add_one_32(x[: 2**32 - 1])[-3:] == 1).all())
    with pytest.raises(LaunchError, match=r"blockIdx.x \* blockDim.x is a product of 32-bit integers"):
        add_one_32(x)


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    if (threadIdx.x) return;
    volatile int* arrived = count;
    atomicAdd(count, 1);
    while (*arrived < {{ blocks }}) {}
    out[blockIdx.x] = 1;
}
"""),
    grid="blocks",
    block=256,
    cooperative=True,
    scratch={"count": ("int32", 1)},
    zeroed="count",
    require="B == blocks",
)
def all_at_once(x: Int32[Array, " B"], *, blocks: int) -> Int32[Array, " B"]:
    """Ones, once all blocks have arrived: it ends only if all of them are resident."""
    raise NotImplementedError


def test_a_cooperative_grid_of_all_that_is_resident(cp: Any) -> None:
    """The largest grid runs, whole; one block more is refused with the capacity, on the first call and the next."""
    with pytest.raises(LaunchError, match="cannot be resident at once") as caught:
        all_at_once(cp.zeros(1_000_000, cp.int32), blocks=1_000_000)
    capacity = int(caught.value.facts["allowed"].split()[0])
    for blocks in (1, capacity, capacity):
        assert int(all_at_once(cp.zeros(blocks, cp.int32), blocks=blocks).sum()) == blocks
    for _ in range(2):
        with pytest.raises(LaunchError, match=f"{capacity + 1} blocks"):
            all_at_once(cp.zeros(capacity + 1, cp.int32), blocks=capacity + 1)


def test_clusters_are_checked_before_the_launch(cp: Any) -> None:
    """Right ranks up to 8; a cluster that does not divide the grid, or is too large, is refused with the numbers."""
    if int(cp.cuda.Device().compute_capability) < 90:
        pytest.skip("thread block clusters need compute capability 9.0")
    text = """extern "C" __global__ void {{ kernel }}({{ args }}) {
    int rank; asm("mov.u32 %0, %cluster_ctarank;" : "=r"(rank)); if (!threadIdx.x) out[blockIdx.x] = rank; }"""

    @specialize(Inline(text), grid="N", cluster="size", block=32)
    def ranks(x: Int32[Array, " N"], *, size: int) -> Int32[Array, " N"]:
        raise NotImplementedError

    for size in (1, 2, 4, 8):
        n = 3 * size
        assert ranks(cp.zeros(n, cp.int32), size=size).tolist() == [i % size for i in range(n)]
    with pytest.raises(LaunchError, match="does not divide the grid of 9"):
        ranks(cp.zeros(9, cp.int32), size=2)
    with pytest.raises(LaunchError, match="a cluster of 16 blocks, the device allows 8"):
        ranks(cp.zeros(32, cp.int32), size=16)


def test_broadcast_views_are_numbered_by_their_elements(cp: Any) -> None:
    """A view of few bytes and more than 2**31 elements needs 64-bit indices all the same."""

    @specialize(
        Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    using index_t = {{ index_t }};
    const index_t row = (index_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (row < R) out[row] = (row + 1) * C - 1 == (long long)(row + 1) * C - 1 ? x[row * {{ x.stride(0) }}] : -1;
    {% if false %}{{ x.stride(1) }}{% endif %}
}
"""),
        tiles={"R": 256},
    )
    def ends(x: Int32[Array, "R C"]) -> Int32[Array, " R"]:
        raise NotImplementedError

    x = cp.broadcast_to(cp.arange(70_000, dtype=cp.int32)[:, None], (70_000, 70_000))
    assert bool((ends(x) == cp.arange(70_000)).all())
