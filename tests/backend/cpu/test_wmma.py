"""Warp matrix operations on the CPU backend, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cuplate.backend.cpu.build import BuildError

Make = Callable[..., Any]

KERNEL = """#include <mma.h>
using namespace nvcuda;
__global__ void k(const {a}* pa, const {a}* pb, const {c}* pc, {c}* pd) {{
  wmma::fragment<wmma::matrix_a, {m}, {n}, {k}, {ta}, wmma::{la}_major> a;
  wmma::fragment<wmma::matrix_b, {m}, {n}, {k}, {ta}, wmma::{lb}_major> b;
  wmma::fragment<wmma::accumulator, {m}, {n}, {k}, {c}> c, d;
  wmma::load_matrix_sync(a, pa, {sa});
  wmma::load_matrix_sync(b, pb, {sb});
  wmma::load_matrix_sync(c, pc, {sc}, wmma::mem_{lc}_major);
  wmma::mma_sync(d, a, b, c);
  wmma::store_matrix_sync(pd, d, {sc}, wmma::mem_{lc}_major);
}}
"""
SHAPES = [(16, 16, 16), (32, 8, 16), (8, 32, 16)]


def stored(matrix: np.ndarray, layout: str) -> np.ndarray:
    """The matrix as it lies in memory, rows or columns first, with a stride that is 8 elements too long."""
    rows = matrix if layout == "row" else matrix.T
    padded = np.zeros((rows.shape[0], rows.shape[1] + 8), rows.dtype)
    padded[:, : rows.shape[1]] = rows
    return padded


def product(
    compiled: Make, shape: tuple[int, int, int], ctype: str, result: str, a: np.ndarray, b: np.ndarray, c: np.ndarray,
    layouts: tuple[str, str, str], check: str = "off",
) -> np.ndarray:  # fmt: skip
    """D = A B + C by one warp."""
    la, lb, lc = layouts
    pa, pb, pc = stored(a, la), stored(b, lb), stored(c, lc)
    pd = np.zeros_like(pc)
    text = KERNEL.format(
        a=ctype, ta="wmma::precision::tf32" if ctype == "float" else ctype,
        c=result, m=shape[0], n=shape[1], k=shape[2],
        la=la, lb=lb, lc=lc, sa=pa.shape[1], sb=pb.shape[1], sc=pc.shape[1],
    )  # fmt: skip
    reports = compiled(text, check=check)(1, 32, pa, pb, pc, pd, check=check)
    assert reports == ()
    rows = pd[:, : pd.shape[1] - 8]
    return rows if lc == "row" else rows.T


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("layouts", [("row", "col", "row"), ("col", "row", "col"), ("row", "row", "row")])
def test_half_products(compiled: Make, shape: tuple[int, int, int], layouts: tuple[str, str, str]) -> None:
    """half times half into float, for each shape, layout and a stride longer than a row."""
    m, n, k = shape
    random = np.random.default_rng(1)
    a, b = random.normal(size=(m, k)).astype(np.float16), random.normal(size=(k, n)).astype(np.float16)
    c = random.normal(size=(m, n)).astype(np.float32)
    got = product(compiled, shape, "half", "float", a, b, c, layouts)
    want = a.astype(np.float64) @ b.astype(np.float64) + c
    assert np.abs(got - want).max() <= 1e-6


def test_half_accumulators(compiled: Make) -> None:
    """An accumulator of half is rounded once from the exact sum."""
    random = np.random.default_rng(2)
    a, b = random.normal(size=(16, 16)).astype(np.float16), random.normal(size=(16, 16)).astype(np.float16)
    c = random.normal(size=(16, 16)).astype(np.float16)
    got = product(compiled, (16, 16, 16), "half", "half", a.view(np.float16), b, c, ("row", "row", "row"))
    want = (a.astype(np.float64) @ b.astype(np.float64) + c).astype(np.float16)
    assert np.array_equal(got, want)


@pytest.mark.parametrize("shape", SHAPES)
def test_bfloat16_products(compiled: Make, shape: tuple[int, int, int]) -> None:
    """bfloat16 times bfloat16 into float."""
    m, n, k = shape
    random = np.random.default_rng(3)
    a, b = (
        (random.normal(size=s).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) for s in ((m, k), (k, n))
    )
    c = np.zeros((m, n), np.float32)
    got = product(compiled, shape, "__nv_bfloat16", "float", a, b, c, ("row", "col", "row"))
    wide = [(v.astype(np.uint32) << 16).view(np.float32).astype(np.float64) for v in (a, b)]
    assert np.abs(got - wide[0] @ wide[1]).max() <= 1e-5


@pytest.mark.parametrize(("ctype", "dtype"), [("signed char", np.int8), ("unsigned char", np.uint8)])
@pytest.mark.parametrize("shape", SHAPES)
def test_integer_products(compiled: Make, shape: tuple[int, int, int], ctype: str, dtype: Any) -> None:
    """Bytes of either sign into int are exact."""
    m, n, k = shape
    random = np.random.default_rng(4)
    info = np.iinfo(dtype)
    a, b = (random.integers(info.min, info.max + 1, s).astype(dtype) for s in ((m, k), (k, n)))
    c = random.integers(-1000, 1000, (m, n)).astype(np.int32)
    got = product(compiled, shape, ctype, "int", a, b, c, ("row", "col", "row"))
    assert np.array_equal(got, a.astype(np.int64) @ b.astype(np.int64) + c)


def test_tf32_products_drop_the_low_bits(compiled: Make) -> None:
    """tf32 reads floats and ignores their last 13 bits."""
    random = np.random.default_rng(5)
    a, b = random.normal(size=(16, 8)).astype(np.float32), random.normal(size=(8, 16)).astype(np.float32)
    got = product(compiled, (16, 16, 8), "float", "float", a, b, np.zeros((16, 16), np.float32), ("row", "col", "row"))
    short = [(v.view(np.uint32) & 0xFFFFE000).view(np.float32).astype(np.float64) for v in (a, b)]
    assert np.abs(got - short[0] @ short[1]).max() <= 1e-5
    assert np.abs(got - a.astype(np.float64) @ b).max() > 1e-6


def test_fragments_are_filled_scaled_and_counted(compiled: Make) -> None:
    """fill_fragment, element-wise arithmetic over num_elements and store: the usual epilogue."""
    text = """#include <mma.h>
    using namespace nvcuda;
    __global__ void k(const half* pa, float* out, int* counts) {
      wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a;
      wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> b;
      wmma::fragment<wmma::accumulator, 16, 16, 16, float> c;
      wmma::fill_fragment(c, 1.0f);
      wmma::fill_fragment(b, __float2half(0.5f));
      wmma::load_matrix_sync(a, pa, 16);
      for (int i = 0; i < a.num_elements; ++i) a.x[i] = a.x[i] * half(2.0f);
      wmma::mma_sync(c, a, b, c);
      for (int i = 0; i < c.num_elements; ++i) c.x[i] = fmaxf(c.x[i], 0.0f);
      wmma::store_matrix_sync(out, c, 16, wmma::mem_row_major);
      counts[0] = a.num_elements; counts[1] = c.num_elements;
    }"""
    a = np.random.default_rng(6).normal(size=(16, 16)).astype(np.float16)
    out, counts = np.zeros((16, 16), np.float32), np.zeros(2, np.int32)
    compiled(text)(1, 32, a, out, counts)
    want = np.maximum(1 + a.astype(np.float64).sum(1, keepdims=True) * np.ones((1, 16)), 0)
    assert np.abs(out - want).max() < 1e-5
    assert counts.tolist() == [16, 8]


def test_loads_and_stores_are_checked(compiled: Make) -> None:
    """A fragment loaded past the end of its matrix is found at the kernel's line; a sound kernel is clean."""
    a = np.zeros((16, 16), np.float16)
    product(
        compiled, (16, 16, 16), "half", "float", a, a, np.zeros((16, 16), np.float32), ("row", "col", "row"), "full"
    )
    text = KERNEL.format(
        a="half", ta="half", c="float", m=16, n=16, k=16, la="row", lb="col", lc="row", sa=16, sb=24, sc=16
    )
    c = np.zeros((16, 16), np.float32)
    b = np.zeros((64, 16), np.float16)[:16]  # with room behind it that is no other array's
    reports = compiled(text, check="full")(1, 32, a, b, c, c.copy(), check="full")
    assert {(r.kind, r.array, r.line) for r in reports} == {("out of bounds", "a1", 8)}


@pytest.mark.parametrize(
    "fragment",
    [
        "wmma::matrix_a, 16, 16, 8, half, wmma::row_major",
        "wmma::matrix_a, 16, 16, 16, float, wmma::row_major",
        "wmma::accumulator, 16, 16, 16, signed char",
        "wmma::accumulator, 8, 8, 16, float",
    ],
)
def test_fragments_that_do_not_exist_are_refused(compiled: Make, fragment: str) -> None:
    """Shapes and types outside CUDA's table do not compile."""
    with pytest.raises(BuildError):
        compiled(
            f"#include <mma.h>\nusing namespace nvcuda;\n"
            f"__global__ void k(float* o) {{ wmma::fragment<{fragment}> f; o[0] = f.x[0]; }}"
        )
