"""Tensor maps on a GPU: a kernel that copies boxes by them, against slices. What to run first of all that uses TMA."""

from __future__ import annotations

import threading
from typing import Any

import cupy
import numpy as np
import pytest
from jaxtyping import Shaped

from cuplate import Array, Inline, TensorMap, specialize
from cuplate.plan import MAPS_ARCH

pytestmark = pytest.mark.skipif(
    int(cupy.cuda.Device().compute_capability) < MAPS_ARCH, reason="tensor maps need sm_90 or later"
)

# Boxes of a into out, which has room for whole ones: what is outside of a must come as zeros.
BOXES = Inline("""
struct alignas(64) CUtensorMap { unsigned long long opaque[16]; };
extern "C" __global__ void {{ kernel }}({{ args }})
{
    __shared__ alignas(128) {{ out.ctype }} box[{{ rows * columns }}];
    __shared__ alignas(8) unsigned long long full;
    const unsigned barrier = (unsigned)__cvta_generic_to_shared(&full);
    const int row = blockIdx.y * {{ rows }}, column = blockIdx.x * {{ columns }};
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(barrier));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                     :: "r"(barrier), "r"({{ rows * columns * out.itemsize }}) : "memory");
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                     " [%0], [%1, { %3, %4}], [%2];"
                     :: "r"((unsigned)__cvta_generic_to_shared(box)), "l"(&{{ a }}), "r"(barrier),
                        {% if a.order == "F" %}
                        "r"(row), "r"(column)
                        {% else %}
                        "r"(column), "r"(row)
                        {% endif %}
                        : "memory");
    }
    __syncthreads();
    asm volatile("{\\n .reg .pred p;\\n W_%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;\\n"
                 " @p bra D_%=;\\n bra W_%=;\\n D_%=:\\n}" :: "r"(barrier) : "memory");
    for (int i = threadIdx.x; i < {{ rows * columns }}; i += blockDim.x) {
        {% if a.order == "F" %}
        const int r = i % {{ rows }}, c = i / {{ rows }};
        {% else %}
        const int r = i / {{ columns }}, c = i % {{ columns }};
        {% endif %}
        {{ out }}[(row + r) * (long long)(gridDim.x * {{ columns }}) + column + c] = box[i];
    }
}
""")


@specialize(
    BOXES,
    tensor_maps={"a": TensorMap(box=("rows", "columns"))},
    grid=("cdiv(N, columns)", "cdiv(M, rows)"),
    block=128,
)
def boxes(
    a: Shaped[Array, "M N"], *, rows: int = 16, columns: int = 32
) -> Shaped[Array, "cdiv(M,rows)*rows cdiv(N,columns)*columns"]:
    """`a` in whole boxes."""
    raise NotImplementedError


def drawn(shape: Any, dtype: str, seed: int = 0) -> Any:
    """Any bits but those of a NaN."""
    values = np.random.default_rng(seed).integers(-100, 100, shape)
    return cupy.asarray(values.astype(dtype))


def assert_copied(got: Any, a: Any) -> None:
    """Inside `a` its elements, outside of it zeros."""
    m, n = a.shape
    wanted = cupy.zeros(got.shape, a.dtype)
    wanted[:m, :n] = a
    assert bool((got == wanted).all())


@pytest.mark.parametrize("dtype", ["int8", "uint16", "float16", "int32", "float32", "float64", "int64"])
def test_boxes_are_copied(dtype: str) -> None:
    """Whole and ragged, from one row to many."""
    if dtype == "float16":
        pytest.skip("its C type needs a header")
    for shape in ((16, 32), (1, 16), (17, 48), (100, 208), (33, 1024)):
        a = drawn(shape, dtype)
        out = cupy.full((-(-shape[0] // 16) * 16, -(-shape[1] // 32) * 32), 77, dtype)
        assert boxes(a, out=out) is out
        assert_copied(out, a)


def test_padded_rows_and_columns() -> None:
    """Views whose rows have gaps, arrays by columns, and both."""
    whole = drawn((64, 128), "float32")
    for a in (whole[:, :52], whole[3:40, 4:104], whole.T, drawn((48, 36), "float32", 1).T):
        assert_copied(boxes(a), a)


def test_each_call_has_the_descriptors_of_its_own_arrays() -> None:
    """Arrays of one plan by turns, old ones and new ones, and memory that is used again for other values."""
    kept = [drawn((40, 64), "float32", seed) for seed in range(5)]
    for turn in range(60):
        a = kept[turn % 5] if turn % 2 else drawn((40, 64), "float32", 100 + turn)
        assert_copied(boxes(a), a)


def test_more_arrays_than_a_plan_keeps_descriptors_of() -> None:
    """The table is dropped at its limit, and made anew."""
    many = [drawn((16, 32), "float32", seed) for seed in range(100)]
    for _ in range(2):
        for a in many:
            assert_copied(boxes(a), a)


def test_a_graph_keeps_the_descriptors_of_its_capture() -> None:
    """Other arrays that come later change nothing in it."""
    a, other = drawn((40, 64), "float32", 1), drawn((40, 64), "float32", 2)
    out = cupy.zeros((48, 64), "float32")
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        boxes(a, out=out)
        stream.synchronize()
        stream.begin_capture()
        boxes(a, out=out)
        graph = stream.end_capture()
    for _ in range(100):
        boxes(other)
    a += 1
    out[...] = 0
    cupy.cuda.Device().synchronize()
    graph.launch(stream)
    stream.synchronize()
    assert_copied(out, a)


def test_threads_share_a_plan() -> None:
    """Each gets what it asked for."""
    failed: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            with cupy.cuda.Stream(non_blocking=True) as stream:
                for turn in range(40):
                    a = drawn((40, 64), "float32", 1000 * seed + turn)
                    got = boxes(a)
                    stream.synchronize()
                    assert_copied(got, a)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
