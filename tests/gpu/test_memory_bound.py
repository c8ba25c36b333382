"""The memory-bound functions on a GPU: large and ragged shapes, poisoned outputs, float64 references."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np
import pytest

from cuplate.kernels import (
    fused_elementwise,
    histogram,
    inclusive_scan,
    inclusive_scan_large,
    inclusive_scan_small,
    layer_norm,
    rms_norm,
    row_argmax,
    row_reduce,
    softmax,
    transpose,
)
from cuplate.testing import check

pytestmark = pytest.mark.filterwarnings("ignore:cuplate. .* has been rendered in")  # every dtype, length and operation

ROWS = (softmax, layer_norm, rms_norm, row_reduce, row_argmax, fused_elementwise)
# Rows in every number of threads from 1 to 1024, whole and ragged, held and read again; one row, one column, none.
SHAPES = [
    (100_003, 1), (50_001, 5), (30_000, 16), (9_999, 31), (8_000, 100), (3_001, 129), (2_000, 256), (1_027, 1000),
    (513, 1024), (300, 2048), (257, 4095), (1, 4096), (101, 8192), (33, 16384), (33, 16383), (7, 16388), (5, 50_001),
    (3, 200_000), (1, 3_000_000), (0, 64), (64, 0),
]  # fmt: skip
TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}


def normal(shape: Any, seed: int, dtype: str = "float32") -> Any:
    """Random normal data."""
    return cupy.random.default_rng(seed).standard_normal(shape, dtype=cupy.float32).astype(dtype)


def agree(got: Any, wanted: Any, dtype: str, scale: Any = None) -> None:
    """Within the dtype's rounding of the largest magnitude of the row's result, or of what was added up."""
    assert got.shape == wanted.shape
    if got.size == 0:
        return
    got = got.astype(cupy.float64)
    same = (got == wanted) | (cupy.isnan(got) & cupy.isnan(wanted))
    error = cupy.where(same, 0, abs(got - wanted))
    assert float(error.max()) <= TOLERANCE[dtype] * float(abs(wanted).max() if scale is None else scale)


def poisoned(shape: Any, dtype: Any) -> Any:
    """An array in which an element that nobody writes is seen."""
    return cupy.full(shape, cupy.nan if np.dtype(dtype).kind == "f" else -77, dtype)


def lse(y: Any) -> Any:
    """Logarithm of the sum of exponentials of each row."""
    peak = y.max(axis=1)
    return peak + cupy.log(cupy.exp(y - peak[:, None]).sum(axis=1))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rows(shape: tuple[int, int], dtype: str) -> None:
    """Softmax, both norms, all reductions and the chain, twice each: a first call and a warm one."""
    rows, columns = shape
    x, r = normal(shape, 1, dtype), normal(shape, 2, dtype)
    w, b = normal(columns, 3, dtype), normal(columns, 4, dtype)
    wide, factor, shift = x.astype("f8"), w.astype("f8"), b.astype("f8")
    for _ in range(2):
        out = poisoned(shape, dtype)
        y = wide * factor + shift
        y = cupy.maximum(y, 0) + r.astype("f8")
        agree(fused_elementwise(x, w, b, r, activation="relu", low=-3.0, high=3.0, out=out), y.clip(-3, 3), dtype)
        if not columns:
            assert float(abs(row_reduce(x, op="sum")).sum()) == 0
            assert bool((row_argmax(x) == -1).all())
            assert bool(cupy.isneginf(row_reduce(x, op="max")).all())
            assert bool(cupy.isneginf(row_reduce(x, op="logsumexp")).all())
            continue
        out = poisoned(shape, dtype)
        e = cupy.exp(wide - wide.max(axis=1, keepdims=True)) if rows else wide
        agree(softmax(x, out=out), e / e.sum(axis=1, keepdims=True), dtype)
        out = poisoned(shape, dtype)
        centred = wide - wide.mean(axis=1, keepdims=True)
        variance = (centred * centred).mean(axis=1, keepdims=True)
        if columns > 1:
            agree(layer_norm(x, w, b, out=out), centred / cupy.sqrt(variance + 1e-5) * factor + shift, dtype)
        out = poisoned(shape, dtype)
        agree(rms_norm(x, w, out=out), wide / cupy.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-6) * factor, dtype)
        total = poisoned(rows, dtype)
        agree(row_reduce(x, op="sum", out=total), wide.sum(axis=1), dtype, columns**0.5 * 8)
        if rows:
            agree(row_reduce(x, op="max", out=poisoned(rows, dtype)), wide.max(axis=1), dtype)
            agree(row_reduce(x, op="logsumexp", out=poisoned(rows, dtype)), lse(wide), dtype)
            assert bool((row_argmax(x, out=poisoned(rows, "int64")) == wide.argmax(axis=1)).all())


def test_rows_that_begin_anywhere() -> None:
    """Slices off a multiple of 16 bytes, as input, weight or output, take the narrow path and are right."""
    flat = normal(64 * 1000 + 3, 5)
    w = normal(1001, 6)
    wide = flat.astype("f8")
    for offset in range(4):
        x = flat[offset : offset + 64_000].reshape(64, 1000)
        y = wide[offset : offset + 64_000].reshape(64, 1000)
        for start in (0, 1):
            out = poisoned(64_001, "float32")[start : start + 64_000].reshape(64, 1000)
            wanted = y / cupy.sqrt((y * y).mean(axis=1, keepdims=True) + 1e-6) * w[start : start + 1000].astype("f8")
            agree(rms_norm(x, w[start : start + 1000], out=out), wanted, "float32")


def test_not_a_number_and_infinities() -> None:
    """A NaN is the largest, the sum, the softmax of its row and of no other; infinities are as in NumPy."""
    x = normal((6, 1000), 7)
    x[1, 500] = cupy.nan
    x[2, 3] = cupy.inf
    x[3, :] = -cupy.inf
    host = x.get().astype(np.float64)
    with np.errstate(all="ignore"):
        for op in ("sum", "max", "logsumexp"):
            np.testing.assert_allclose(
                row_reduce(x, op=op).get(), row_reduce.reference(host, op=op), rtol=1e-4, atol=1e-4
            )
        np.testing.assert_array_equal(row_argmax(x).get(), host.argmax(axis=1))
        np.testing.assert_allclose(softmax(x).get(), softmax.reference(host), rtol=1e-5)
        np.testing.assert_allclose(
            fused_elementwise(x, activation="relu", low=-1.0, high=1.0).get()[:3],
            fused_elementwise.reference(host, activation="relu", low=-1.0, high=1.0)[:3],
            rtol=1e-6,
        )


def test_a_large_mean_costs_no_digits() -> None:
    """The variance of layer_norm is summed from differences: a mean of 10,000 deviations is no matter."""
    x = (normal((64, 4096), 8) + 10_000).astype(cupy.float32)
    y = x.astype("f8") - x.astype("f8").mean(axis=1, keepdims=True)
    wanted = y / cupy.sqrt((y * y).mean(axis=1, keepdims=True) + 1e-5)
    assert float(abs(layer_norm(x) - wanted).max()) < 2e-3  # of which 1e-3 is half an ulp of the mean


@pytest.mark.parametrize("f", ROWS, ids=lambda f: f.__name__)
def test_torch_bfloat16(torch: Any, f: Any) -> None:
    """Torch tensors in bfloat16, ragged and whole, against the reference in float64."""
    torch.manual_seed(0)
    for shape in ((100, 1000), (3, 5, 8192), (17, 333), (2, 40_000)):
        x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        wanted = f.reference(x.double().cpu().numpy())
        for _ in range(2):
            got = f(x)
            if f is row_argmax:
                assert (got.cpu().numpy() == wanted).all()
                continue
            assert got.dtype == torch.bfloat16
            scale = shape[-1] ** 0.5 * 8 if f is row_reduce else abs(wanted).max()
            assert abs(got.double().cpu().numpy() - wanted).max() <= 8e-3 * scale


@pytest.mark.parametrize("dtype", ["int8", "bool", "float16", "float32", "float64", "complex128"])
@pytest.mark.parametrize(
    "shape", [(4096, 2048), (1000, 3001), (1, 70_000), (70_000, 1), (129, 127), (0, 5), (5, 0), (6_000_000, 3)], ids=str
)
def test_transpose_is_exact(shape: tuple[int, int], dtype: str) -> None:
    """Bit for bit, for every size of an element, also where the grid is folded."""
    a = (normal(shape, 9) * 50).astype(dtype)
    for _ in range(2):
        out = poisoned(shape[::-1], dtype) if dtype != "bool" else ~a.T.copy()
        assert transpose(a, out=out) is out
        assert bool((out == a.T).all())


@pytest.mark.parametrize("n", [0, 1, 31, 8191, 8192, 8193, 24_576, 73_729, 5_000_001, 2**27 + 5])
def test_inclusive_scan(n: int) -> None:
    """Integers exactly and floats closely, tiles of several sizes, aligned or not, many times over."""
    x = cupy.random.default_rng(10).integers(-50, 50, n, dtype=cupy.int32)
    wanted = cupy.cumsum(x, dtype=cupy.int64).astype(cupy.int32)
    sizes = [{"threads": t, "items": i} for t, i in ((512, 32), (128, 8), (256, 32), (512, 16))]
    given: list[tuple[Any, dict[str, Any]]] = [(inclusive_scan, size) for size in sizes]
    for function, parameters in (*given, (inclusive_scan_large, {}), (inclusive_scan_small, {})):
        for _ in range(3):
            out = poisoned(n, cupy.int32)
            assert bool((function(x, out=out, **parameters) == wanted).all())
    if n > 1:
        assert bool((inclusive_scan(x[1:]) == wanted[1:] - x[0]).all())
    for dtype in ("float32", "float16"):
        y = (normal(n, 11) / max(1, n) ** 0.5).astype(dtype)
        agree(inclusive_scan(y, out=poisoned(n, dtype)), cupy.cumsum(y.astype("f8")), dtype, 8)


@pytest.mark.parametrize("large", [1e20, np.inf])
def test_a_large_element_changes_no_sum_before_it(large: float) -> None:
    """In a pack, a warp's part, a tile and behind tiles of other blocks."""
    for f in (inclusive_scan, inclusive_scan_large, inclusive_scan_small):
        for place in (43, 127, 4000, 30_001, 59_998):
            x = cupy.ones(60_000, cupy.float32)
            x[place] = large
            assert bool((f(x)[:place] == cupy.arange(1, place + 1)).all())
            assert bool((f(x)[place:] == large).all())


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int32", "int64"])
@pytest.mark.parametrize("n", [0, 1, 15, 100_001, 2**25 + 3])
def test_histogram(n: int, dtype: str) -> None:
    """Exact counts, uniform and all alike, aligned or not, in shared and in global memory."""
    low = -20 if np.dtype(dtype).kind == "i" else 0
    x = cupy.random.default_rng(12).integers(low, 127, n).astype(dtype)
    for values in (x, cupy.full_like(x, 7), x[1:]):
        for bins in (100, 256, 5000, 20_000):
            inside = values[(values >= 0) & (values < bins)].astype(cupy.int64)
            wanted = cupy.bincount(inside, minlength=bins) if inside.size else cupy.zeros(bins, cupy.int64)
            out = poisoned(bins, cupy.int64)
            assert bool((histogram(values, bins=bins, out=out) == wanted).all())


@pytest.mark.parametrize("f", [*ROWS, transpose, inclusive_scan, histogram], ids=lambda f: f.__name__)
def test_kernel_agrees_with_its_reference(f: Any) -> None:
    """Drawn calls, as users check their own."""
    with np.errstate(all="ignore"):
        check(f, examples=10)
