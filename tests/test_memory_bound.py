"""The memory-bound functions without a GPU: on the CPU backend with every check on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from jaxtyping import Int32, UInt64

from cuplate import Array, ArraySpec, Inline, ParameterError, specialize
from cuplate.kernels import (
    fused_elementwise,
    histogram,
    inclusive_scan,
    inclusive_scan_large,
    layer_norm,
    rms_norm,
    row_argmax,
    row_reduce,
    softmax,
    transpose,
)
from cuplate.testing import check

pytestmark = [pytest.mark.cpp, pytest.mark.filterwarnings("ignore:cuplate. .* has been rendered in")]

FAMILY = (
    fused_elementwise, histogram, inclusive_scan, layer_norm, rms_norm, row_argmax, row_reduce, softmax, transpose,
)  # fmt: skip
NORMS = (softmax, layer_norm, rms_norm)
# Every way that a row is dealt: part of a warp, a warp, two, ten, twice as many elements a thread, read in each pass;
# whole and ragged; no rows, one.
SHAPES = [
    (9, 1), (3, 2, 7), (5, 16), (2, 31), (3, 100), (2, 256), (3, 257), (2, 515), (2, 1000), (3, 1024), (1, 5000),
    (2, 5120), (1, 16388), (1, 16387), (1, 30_004), (0, 12),
]  # fmt: skip
EPS = {"float32": 2.0**-24, "float16": 2.0**-11}
# The dtype changes how many elements a thread holds, not how a row is dealt: one of each way will do for the second.
ROWS = [(shape, "float32") for shape in SHAPES] + [
    (shape, "float16") for shape in ((2, 31), (2, 256), (3, 257), (2, 515), (1, 16388))
]


def normal(shape: Any, seed: int, dtype: str = "float32") -> Any:
    """Random normal data."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def poisoned(shape: Any, dtype: Any) -> Any:
    """An array in which an element that nobody writes is seen."""
    return np.full(shape, np.nan if np.dtype(dtype).kind == "f" else 77, dtype)


def agree(got: Any, wanted: Any, units: float, scale: float | None = None) -> None:
    """Within so many roundings of the dtype, of the largest magnitude."""
    assert got.shape == wanted.shape
    scale = float(np.abs(wanted).max(initial=0)) if scale is None else scale
    assert np.abs(got.astype(np.float64) - wanted).max(initial=0) <= units * EPS[got.dtype.name] * scale


@pytest.mark.parametrize(("shape", "dtype"), ROWS, ids=str)
def test_norms_agree_with_float64(shape: tuple[int, ...], dtype: str) -> None:
    """Softmax and both norms over the last axis of any number of axes, into an output that holds none of it."""
    x, w, b = normal(shape, 1, dtype), normal(shape[-1], 2, dtype), normal(shape[-1], 3, dtype)
    calls: list[tuple[Any, tuple[Any, ...]]] = [(softmax, ()), (layer_norm, (w, b)), (rms_norm, (w,))]
    if shape in ((2, 31), (2, 515), (1, 16387)):  # what is absent does not change how a row is dealt
        calls += [(layer_norm, (None, b)), (rms_norm, ())]
    for f, more in calls:
        out = poisoned(shape, dtype)
        assert f(x, *more, out=out) is out
        wide = [None if a is None else a.astype(np.float64) for a in (x, *more)]
        agree(out, f.reference(*wide), 16)


@pytest.mark.parametrize(("shape", "dtype"), [*ROWS, ((4, 0), "float32"), ((4, 0), "float16")], ids=str)
def test_reductions_agree_with_float64(shape: tuple[int, ...], dtype: str) -> None:
    """Sum, mean, largest, its place, and log of the sum of exponentials; also of nothing."""
    x = normal(shape, 4, dtype)
    wide = x.astype(np.float64)
    for op in ("sum", "mean", "max", "logsumexp") if shape[-1] in (0, 7, 100, 1000) else ("sum", "logsumexp"):
        got, wanted = row_reduce(x, op=op), row_reduce.reference(wide, op=op)
        if shape[-1]:
            agree(got, wanted, 16, float(np.abs(wide).sum(axis=-1).max(initial=1)) ** 0.5 + 10)
        else:
            np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(row_argmax(x), row_argmax.reference(wide))


@pytest.mark.parametrize("items", [8, 32])
@pytest.mark.parametrize("columns", [100, 515, 3000])
def test_other_numbers_of_elements_a_thread(columns: int, items: Any) -> None:
    """More and fewer registers, the same results."""
    x, w = normal((3, columns), 18), normal(columns, 19)
    wide, factor = x.astype(np.float64), w.astype(np.float64)
    agree(softmax(x, items=items), softmax.reference(wide), 16)
    agree(layer_norm(x, w, w, items=items), layer_norm.reference(wide, factor, factor), 16)
    np.testing.assert_array_equal(row_argmax(x, items=items), wide.argmax(axis=1))


@pytest.mark.parametrize("columns", [50, 1000, 30_004])
def test_not_a_number_and_infinities(columns: int) -> None:
    """A NaN is the largest, the sum, the softmax of its row and of no other; infinities are as in NumPy."""
    x = normal((6, columns), 5)
    x[1, columns // 2], x[2, 3], x[3, :], x[4, 0] = np.nan, np.inf, -np.inf, -np.inf
    wide = x.astype(np.float64)
    for op in ("sum", "max", "logsumexp"):
        np.testing.assert_allclose(row_reduce(x, op=op), row_reduce.reference(wide, op=op), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(row_argmax(x), wide.argmax(axis=1))
    np.testing.assert_allclose(softmax(x), softmax.reference(wide), rtol=1e-5)


def test_the_first_of_equal_places_is_told() -> None:
    """Ties are as in NumPy, across threads and packs."""
    for columns in (64, 1000, 3000):
        x = np.ones((3, columns), np.float32)
        x[1, columns // 3 :: 7] = 2
        np.testing.assert_array_equal(row_argmax(x), x.argmax(axis=1))


def test_a_large_mean_costs_no_digits() -> None:
    """The variance of layer_norm is summed from differences."""
    x = normal((2, 1000), 6) + np.float32(1000)
    agree(layer_norm(x), layer_norm.reference(x.astype(np.float64)), 2000)  # half an ulp of the mean is 500 of these


@pytest.mark.parametrize("f", NORMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("start", [1, 2, 3])
def test_rows_that_begin_anywhere(f: Any, start: int) -> None:
    """Input and output off a multiple of 16 bytes."""
    x, room = normal(3 * 64 + 4, 7), poisoned(3 * 64 + 4, "float32")
    out = room[4 - start :][: 3 * 64].reshape(3, 64)
    rows = x[start:][: 3 * 64].reshape(3, 64)
    assert f(rows, out=out) is out
    agree(out, f.reference(rows.astype(np.float64)), 16)
    assert np.isnan(room).sum() == 4


@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("activation", ["identity", "relu", "gelu", "gelu_tanh", "silu"])
def test_the_chain_agrees_with_float64(activation: Any, dtype: str) -> None:
    """With all of it, and, for one activation, with each part left out; whole, ragged and rows that straddle blocks."""
    for shape in ((3, 100), (2, 5, 33), (1, 1), (2, 5000), (0, 8)):
        x, r = normal(shape, 8, dtype), normal(shape, 9, dtype)
        w, b = normal(shape[-1], 10, dtype), normal(shape[-1], 11, dtype)
        whole = activation == "gelu" and shape in ((3, 100), (2, 5, 33))
        for given in ((w, b, r), (w, None, None), (None, b, None), (None, None, r)) if whole else ((w, b, r),):
            for limits in ({}, {"low": -0.5, "high": 0.75}) if whole else ({"low": -0.5, "high": 0.75},):
                out = poisoned(shape, dtype)
                fused_elementwise(x, *given, activation=activation, out=out, **limits)
                wide = [None if a is None else a.astype(np.float64) for a in (x, *given)]
                agree(out, fused_elementwise.reference(*wide, activation=activation, **limits), 16)


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "float32", "float64", "complex128"])
def test_transpose_is_exact(dtype: str) -> None:
    """Bit for bit, in tiles that are whole and that are not."""
    for shape in ((100, 70), (1, 5), (5, 1), (130, 260), (64, 128), (33, 65), (0, 4), (4, 0)):
        a = (normal(shape, 12) * 50).astype(dtype)
        np.testing.assert_array_equal(transpose(a), a.T)
    if dtype == "float32":
        a = normal(64 * 64 + 1, 13)[1:].reshape(64, 64)
        np.testing.assert_array_equal(transpose(a, threads=128), a.T)


@pytest.mark.parametrize("n", [0, 1, 5, 2048, 2049, 10_000])
@pytest.mark.parametrize("dtype", ["int32", *EPS])
def test_inclusive_scan(n: int, dtype: str) -> None:
    """One tile, several that look back, more than a warp looks at; aligned and not."""
    x = np.random.default_rng(14).integers(-9, 10, n) if dtype == "int32" else normal(n, 15) / 8
    x = x.astype(dtype)
    small = {"threads": 128, "items": 8}
    calls: list[tuple[Any, Any, dict[str, Any]]] = [
        (inclusive_scan, x, {}),
        (inclusive_scan, x, small),
        (inclusive_scan, x[1:], small),
    ]
    for function, values, parameters in calls:
        out = poisoned(values.shape, dtype)
        function(values, out=out, **parameters)
        wanted = np.cumsum(values.astype(np.float64))
        if dtype == "int32":
            np.testing.assert_array_equal(out, wanted)
        else:
            agree(out, wanted, 16, 1 + float(np.abs(values.astype(np.float64)).sum()) ** 0.75)


def test_long_arrays_are_scanned_by_large_tiles() -> None:
    """Two whole ones and a ragged one behind the loop; and what runs arrays of which length."""
    x = np.random.default_rng(16).integers(-9, 10, 50_000).astype(np.int32)
    np.testing.assert_array_equal(inclusive_scan_large(x), np.cumsum(x, dtype=np.int32))
    for n, given, name in (
        (2**19 - 1, {}, "inclusive_scan_small"),
        (2**19, {}, "inclusive_scan"),
        (2**25 - 1, {}, "inclusive_scan"),
        (2**25, {}, "inclusive_scan_large"),
        (2**25, {"items": 16}, "inclusive_scan"),
    ):
        assert inclusive_scan.inspect(ArraySpec((n,)), arch="sm_90", **given).variant == name


@specialize(
    Inline("""
using sum_t = int;
constexpr unsigned int every_lane = 0xffffffff;
__device__ unsigned int to_bits(int value) { return (unsigned int)value; }
__device__ int from_bits(unsigned int bits) { return (int)bits; }
{% include "look_back.cuh.j2" %}
extern "C" __global__ void {{ kernel }}({{ args }})
{
    out[threadIdx.x] = look_back((const word_t*)words, number, last, known, threadIdx.x);
}
"""),
    grid=1,
    block=32,
)
def looked_back(
    words: UInt64[Array, " N"],
    number: int,
    last: int,
    known: int,
    *,
    out: Int32[Array, "32"] | None = None,
) -> Int32[Array, "32"]:
    """What a block whose last tile was `last` finds before tile `number`."""
    raise NotImplementedError


# The tile that asks, tiles that are complete, and the asking block's own last tile.
LOOKS = [
    (0, (), -1), (1, (0,), -1), (31, (), -1), (64, (), -1), (65, (), -1), (299, (), -1), (299, (298,), -1),
    (299, (250, 3, 120), 100), (299, (235,), -1), (299, (234, 235), 2), (299, (), 298), (299, (), 234), (299, (), 235),
    (200, (), 40), (33, (40,), 0),
]  # fmt: skip


def test_what_a_tile_finds_before_it() -> None:
    """Sums of single tiles back to a complete one, to the block's own last tile, to the first; over several windows.

    Blocks run one after the other here, so that no scan ever looks back: the words are laid out by hand.
    """
    rng = np.random.default_rng(20)
    sums = rng.integers(-50, 50, 300)
    before = np.concatenate([[0], np.cumsum(sums)])
    low = np.uint64(0xFFFFFFFF)
    for number, complete, last in LOOKS:
        words = np.uint64(1) << np.uint64(32) | sums.astype(np.int64).astype(np.uint64) & low
        for tile in complete:
            words[tile] = np.uint64(2) << np.uint64(32) | np.int64(before[tile + 1]).astype(np.uint64) & low
        words[number:] = 0  # nobody has said anything: must not be waited for
        if last >= 0:
            words[: last + 1] = 0
        known = int(before[last + 1]) if last >= 0 else 0
        np.testing.assert_array_equal(looked_back(words, number, last, known), np.full(32, before[number]))


@pytest.mark.parametrize("large", [1e20, np.inf, np.nan])
@pytest.mark.parametrize("given", [{"threads": 128, "items": 8}, {}], ids=str)
def test_a_large_element_changes_no_sum_before_it(large: float, given: dict[str, int]) -> None:
    """Nor within its pack, its warp's part and its tile: no sum of what is before comes from a difference."""
    for place in (43, 127, 700, 2500):
        x = np.ones(3000, np.float32)
        x[place] = large
        np.testing.assert_array_equal(inclusive_scan(x, **given), np.cumsum(x))


def test_scan_wraps_around() -> None:
    """Sums of int32 are modulo 2**32, as CUDA's and NumPy's are."""
    x = np.full(5000, 2**30, np.int32)
    np.testing.assert_array_equal(inclusive_scan(x, threads=128, items=8), np.cumsum(x, dtype=np.int32))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int32", "int64"])
def test_histogram(dtype: str) -> None:
    """Exact, whatever is outside the bins; uniform and all alike, aligned and not, in shared and in global memory."""
    low = -20 if np.dtype(dtype).kind == "i" else 0
    for n in (0, 1, 17, 5000):
        x = np.random.default_rng(16).integers(low, 127, n).astype(dtype)
        for values in (x, np.full_like(x, 7), x[1:]):
            for bins in (100, 256, 9000) if dtype == "int32" else (256,):
                out = poisoned(bins, np.int64)
                histogram(values, bins=bins, out=out)
                inside = values[(values >= 0) & (values < bins)].astype(np.int64)
                np.testing.assert_array_equal(out, np.bincount(inside, minlength=bins))


@pytest.mark.parametrize("f", FAMILY, ids=lambda f: f.__name__)
def test_kernel_agrees_with_its_reference(f: Any) -> None:
    """Drawn calls, as users check their own."""
    assert check(f, arrays="numpy", examples=4, engine="random").examples == 4


@pytest.mark.parametrize("f", NORMS, ids=lambda f: f.__name__)
def test_bfloat16_tensors(f: Any) -> None:
    """torch's tensors in bfloat16 are rounded once, to nearest."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    for shape in ((3, 100), (2, 1000), (1, 33)):
        x = torch.randn(shape).bfloat16()
        wanted = f.reference(x.double().numpy())
        got = f(x)
        assert got.dtype == torch.bfloat16
        assert np.abs(got.double().numpy() - wanted).max() <= 2.0**-8 * np.abs(wanted).max()


def test_columns_and_bins_beyond_32_bits_are_counted_in_64() -> None:
    """4 columns of 2**32 + 4 would be scaled by the first 4 factors; of 2**32 bins none would be counted."""
    n = 2**32 + 4
    chain = fused_elementwise.inspect(ArraySpec((1, n), "float16"), ArraySpec((n,), "float16"), arch="sm_90")
    assert "long long columns" in chain.source
    counts = histogram.inspect(ArraySpec((9,), "int32"), bins=2**32, arch="sm_90")
    assert "unsigned long long bins" in counts.source


def test_mistakes_are_refused() -> None:
    """Literals and conditions hold for the family as for any function."""
    x = normal((4, 8), 17)
    with pytest.raises(ParameterError, match="items"):
        softmax(x, items=7)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="bins >= 1"):
        histogram(np.zeros(4, np.int32), bins=0)
    with pytest.raises(ParameterError, match="op"):
        row_reduce(x, op="min")  # type: ignore[arg-type]
