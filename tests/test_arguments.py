"""Every check of a call, on arrays of a recording GPU: what is accepted, what is refused, and in which words."""

from __future__ import annotations

import contextlib
import enum
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Bool, Float, Float32, Float64, Int32

from cuplate import (
    ArgumentError,
    Array,
    ArraySpec,
    DtypeError,
    Inline,
    LayoutError,
    ParameterError,
    ScalarOverflowError,
    ShapeError,
    f32,
    specialize,
    subscribe,
)
from cuplate.arguments import Described, is_packed, packed_strides
from cuplate.encode import encoder
from cuplate.errors import CuplateError
from cuplate.layout import check_overlap, check_writable
from cuplate.parameters import check_parameters, parameter_key
from cuplate.signature import ScalarArgument, read_signature
from tests.doubles import Gpu, install

EMPTY = 'extern "C" __global__ void {{ kernel }}({{ args }}) {}'


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """A recording GPU; the functions of this module forget it again."""
    yield install(monkeypatch)
    for function in [v for v in globals().values() if hasattr(v, "reload")]:
        function.reload()


@specialize(Inline(EMPTY), tiles={"N": 16, "M": 16}, block=(16, 16))
def product(
    a: Float32[Array, "M K"], b: Float32[Array, "K N"], bias: Float32[Array, " N"] | None = None
) -> Float32[Array, "M N"]:
    """A matrix product with an optional bias."""
    raise NotImplementedError


@specialize(Inline(EMPTY))
def tied(a: Float[Array, " N"], b: Float[Array, " N"], c: Int32[Array, " N"]) -> Float[Array, " N"]:
    """Two arrays of one family."""
    raise NotImplementedError


@specialize(Inline(EMPTY))
def folded(a: Float32[Array, "*B N"], b: Float32[Array, "*B N"], row: Float32[Array, " N"]) -> Float32[Array, "*B N"]:
    """Leading axes as one."""
    raise NotImplementedError


@specialize(Inline(EMPTY), tiles={"N": 32})
def fixed(x: Float32[Array, "N 3"], y: Float32[Array, "2*N+1 c=4"]) -> Float32[Array, "N-2 c=4"]:
    """Numbers and expressions as axes."""
    raise NotImplementedError


@specialize(
    Inline(EMPTY.replace("{}", "{ /* {{ a.stride(0) }} {{ out.stride(0) }} */ }")),
    tiles={"N": 16, "M": 16},
    block=(16, 16),
)
def rows(a: Float32[Array, "M N"]) -> Float32[Array, "M N"]:
    """Reads the stride of rows."""
    raise NotImplementedError


@specialize(Inline(EMPTY.replace("{}", "{ /* {{ a.order }} */ }")))
def ordered(a: Float32[Array, "*B N"]) -> Float32[Array, "*B N"]:
    """Reads the order."""
    raise NotImplementedError


@specialize(Inline(EMPTY), mutates="x")
def update(x: Float32[Array, " N"], y: Float32[Array, " N"]) -> None:
    """In place."""
    raise NotImplementedError


@specialize(Inline(EMPTY))
def axpy(alpha: f32, x: Float32[Array, " N"]) -> Float32[Array, " N"]:
    """A run-time scalar."""
    raise NotImplementedError


def message(kind: type[CuplateError], function: Any, *args: Any, **kwargs: Any) -> str:
    """The text of the error that a call raises."""
    with pytest.raises(kind) as caught:
        function(*args, **kwargs)
    return str(caught.value)


# dtypes ---------------------------------------------------------------------------------------------------------------


def test_a_wrong_dtype_is_told_in_the_house_order(gpu: Gpu) -> None:
    """B36: what failed, what was given, what is allowed, what to try; nothing is compiled or launched."""
    text = message(DtypeError, product, gpu.array((2, 3), "float64"), gpu.array((3, 4)))
    assert text == (
        "product: array 'a' is float64.\n"
        "  given      a: float64[2, 3]\n"
        "  allowed    float32\n"
        "  try        a.astype('float32')"
    )
    assert gpu.log == []


def test_a_family_is_one_dtype_a_call(gpu: Gpu) -> None:
    """Where `Float` stands, one call has one dtype; the message names the array that decided."""
    c = gpu.array(4, "int32")
    assert tied(gpu.array(4, "float64"), gpu.array(4, "float64"), c).dtype == np.float64
    assert tied(gpu.array(4), gpu.array(4), c).dtype == np.float32
    text = message(DtypeError, tied, gpu.array(4), gpu.array(4, "float64"), c)
    assert text.startswith("tied: array 'b' is float64, but 'a' is float32: one dtype a call.")
    out = gpu.array(4, "float64")
    assert "array 'out' is float64, but 'a' is float32" in message(
        DtypeError, tied, gpu.array(4), gpu.array(4), c, out=out
    )


def test_a_dtype_in_foreign_byte_order_is_refused(gpu: Gpu) -> None:
    """Big-endian floats have the name of native ones, and other bits."""
    assert "'>f4'" in repr(np.dtype(">f4"))
    assert ">f4" in message(DtypeError, axpy, 1.0, gpu.array(4, ">f4"))


def test_bool_is_not_uint8(gpu: Gpu) -> None:
    """The same size is not the same dtype."""

    @specialize(Inline(EMPTY))
    def mask(m: Bool[Array, " N"]) -> Bool[Array, " N"]:
        raise NotImplementedError

    assert "array 'm' is uint8" in message(DtypeError, mask, gpu.array(4, "uint8"))
    assert mask(gpu.array(4, "bool")).dtype == np.bool_


# sizes ----------------------------------------------------------------------------------------------------------------


def test_an_axis_is_one_size_a_call(gpu: Gpu) -> None:
    """The message has both sizes, and the array that said so first."""
    text = message(ShapeError, product, gpu.array((2, 3)), gpu.array((5, 4)))
    assert text == (
        "product: axis K of 'b' is 5, not 3.\n"
        "  given      b: float32[5, 4], a[2, 3]\n"
        '  allowed    Float32 "K N" with K = 3'
    )


def test_the_rank_is_checked(gpu: Gpu) -> None:
    """Too many axes, too few, none; a fold takes any number."""
    assert "array 'a' has 1 axes, not 2." in message(ShapeError, product, gpu.array(3), gpu.array((3, 4)))
    assert "array 'b' has 3 axes, not 2." in message(ShapeError, product, gpu.array((2, 3)), gpu.array((1, 3, 4)))
    scalar, row = gpu.array(()), gpu.array(4)
    assert "array 'a' has 0 axes, not at least 1." in message(ShapeError, folded, scalar, scalar, row)


def test_a_fold_is_one_size_of_equal_axes(gpu: Gpu) -> None:
    """`*B` is (2, 3) wherever it stands, not any product of 6; outputs have the caller's axes."""
    row = gpu.array(4)
    a = gpu.array((2, 3, 4))
    assert folded(a, gpu.array((2, 3, 4)), row).shape == (2, 3, 4)
    assert gpu.launches[-1].values[-2:] == (6, 4)
    assert folded(row, gpu.array(4), gpu.array(4)).shape == (4,)
    assert gpu.launches[-1].values[-2:] == (1, 4)
    text = message(ShapeError, folded, a, gpu.array((3, 2, 4)), row)
    assert "axis *B of 'b' is (3, 2), not (2, 3)." in text


def test_fixed_and_computed_axes_are_checked(gpu: Gpu) -> None:
    """`3`, `c=4`, `2*N+1` in an input, `N-2` in an output."""
    x = gpu.array((5, 3))
    assert fixed(x, gpu.array((11, 4))).shape == (3, 4)
    assert "axis 3 of 'x' is 2, not 3." in message(ShapeError, fixed, gpu.array((5, 2)), gpu.array((11, 4)))
    assert "axis c=4 of 'y' is 5, not 4." in message(ShapeError, fixed, x, gpu.array((11, 5)))
    assert "axis 2*N+1 of 'y' is 10, not 11." in message(ShapeError, fixed, x, gpu.array((10, 4)))
    assert "axis N-2 of 'out' would be -1." in message(ShapeError, fixed, gpu.array((1, 3)), gpu.array((3, 4)))


def test_a_fixed_output_axis_must_agree_with_the_arguments(gpu: Gpu) -> None:
    """`N=3` in the output and an N of 4 would let the kernel write past the end."""

    @specialize(Inline(EMPTY))
    def f(x: Float32[Array, " N"]) -> Float32[Array, "N=3"]:
        raise NotImplementedError

    assert f(gpu.array(3)).shape == (3,)
    assert "axis N is 4, and 'out' needs N=3." in message(ShapeError, f, gpu.array(4))


def test_out_must_have_the_shape_of_the_call(gpu: Gpu) -> None:
    """A larger `out` is refused too: nobody knows which part was meant."""
    a, b = gpu.array((2, 3)), gpu.array((3, 4))
    for shape in [(2, 5), (4, 2), (3, 4)]:
        text = message(ShapeError, product, a, b, out=gpu.array(shape))
        assert f"out has shape {shape}, not (2, 4)." in text
    assert message(ShapeError, product, a, b, out=gpu.array(8)).startswith("product: out has shape (8,)")
    assert "array 'out' is float64" in message(DtypeError, product, a, b, out=gpu.array((2, 4), "float64"))


def test_empty_arrays_launch_only_what_has_an_output_b38(gpu: Gpu) -> None:
    """B38: no rows, no launch and an empty result; an inner size of 0 launches, with its sizes."""
    assert product(gpu.array((0, 3)), gpu.array((3, 4))).shape == (0, 4)
    assert product(gpu.array((2, 3)), gpu.array((3, 0))).shape == (2, 0)
    assert gpu.launches == []
    assert product(gpu.array((2, 0)), gpu.array((0, 4))).shape == (2, 4)
    (launch,) = gpu.launches
    assert launch.values[-3:] == (2, 0, 4) and launch.grid.grid == (1, 1, 1)


# layouts --------------------------------------------------------------------------------------------------------------


def test_a_layout_that_the_kernel_does_not_read_is_refused_b35(gpu: Gpu) -> None:
    """B35: transposed, stepped, reversed, broadcast, column-major: for each argument, and for the output."""
    good = {"a": gpu.array((4, 4)), "b": gpu.array((4, 4)), "bias": gpu.array(4), "out": gpu.array((4, 4))}
    square = np.zeros((8, 8), np.float32)
    broken = [
        square[:4, :4].T,
        square[:4, :4],
        square[::2, ::2],
        np.zeros((4, 4), np.float32)[::-1],
        np.zeros((4, 4), np.float32)[:, ::-1],
        np.zeros((4, 4), np.float32, order="F"),
        np.broadcast_to(np.zeros(4, np.float32), (4, 4)),
    ]
    for name in ("a", "b", "out"):
        for view in broken:
            held = gpu.hold(np.array(view) if view.base is None else view)
            if held._c_contiguous:
                continue
            text = message(LayoutError, product, **{**good, name: held})
            assert f"'{name}'" in text.splitlines()[0] and "strides" in text
    row = gpu.hold(np.zeros(8, np.float32)[::2])
    assert "strides [2] (elements)" in message(LayoutError, product, **{**good, "bias": row})
    assert gpu.launches == []


def test_a_layout_error_says_what_the_template_could_read(gpu: Gpu) -> None:
    """The strides given, those wanted, and the facts that would allow them."""
    text = message(LayoutError, product, gpu.hold(np.zeros((4, 8), np.float32)[:, :4]), gpu.array((4, 4)))
    assert text == (
        "product: array 'a' is not row-major without gaps, and the kernel does not read its layout.\n"
        "  given      a: float32[4, 4] with strides [8, 1] (elements)\n"
        "  allowed    strides [4, 1]\n"
        "  try        a contiguous copy of a, or a template that reads a.stride(0)"
    )


def test_offset_slices_are_packed(gpu: Gpu) -> None:
    """Rows from the middle are row-major; their pointer is their own."""
    whole = gpu.array((8, 4))
    product(whole[2:6], gpu.array((4, 4)))
    assert gpu.launches[-1].values[0] == whole.data.ptr + 2 * 4 * 4


@pytest.mark.parametrize("view", ["[:, :1]", "[:1, :]", "[1:2, 1:2]", "[:0, :]", "[:, :0]", "[::-1][:1]"])
def test_axes_of_one_element_and_empty_arrays_have_no_layout(gpu: Gpu, view: str) -> None:
    """What no index walks may be anything, and the text that reads a stride is the same for all of them."""
    square = np.zeros((4, 4), np.float32)
    host = eval(f"square{view}", {"square": square})
    if host.shape == (4, 1):
        text = message(LayoutError, product, gpu.hold(host), gpu.array((1, 2)))
        assert "a.stride(0)" in text
        return
    m, k = host.shape
    product(gpu.hold(host), gpu.array((k, 2)))
    rows(gpu.hold(host))
    if m * k:
        assert gpu.launches[-1].values[-2:] == (m, k)


def test_a_stride_that_no_index_uses_makes_no_variant(gpu: Gpu) -> None:
    """One row of matrices with different row lengths: one text, one kernel, on the cold path too."""
    with subscribe(lambda event: None):
        for length in (4, 8, 16):
            rows(gpu.hold(np.zeros((2, length), np.float32)[:1, :4]))
    assert len(gpu.launches) == 3 and len(gpu.notes("load")) == 1


def test_a_kernel_that_reads_a_stride_gets_such_arrays(gpu: Gpu) -> None:
    """`a.stride(0)` in the template admits gaps between rows, of inputs and of `out`; not gaps between columns."""
    gaps = gpu.hold(np.zeros((4, 8), np.float32)[:, :4])
    rows(gaps)
    rows(gpu.array((4, 4)), out=gpu.hold(np.zeros((4, 8), np.float32)[:, :4]))
    rows(gpu.hold(np.zeros((4, 4), np.float32)[::-1]))
    assert len(gpu.launches) == 3 and len(gpu.notes("load")) == 3
    text = message(LayoutError, rows, gpu.hold(np.zeros((4, 8), np.float32)[:, ::2]))
    assert "a.stride(0) and a.stride(1)" in text


def test_a_fold_of_column_major_axes_is_refused(gpu: Gpu) -> None:
    """Leading axes in column-major order are not one axis, even for a kernel that reads `order`."""
    ordered(gpu.hold(np.zeros((3, 4), np.float32, order="F")))
    text = message(LayoutError, ordered, gpu.hold(np.zeros((2, 3, 4), np.float32, order="F")))
    assert text.splitlines()[-1] == "  try        a contiguous copy of a"


def test_the_stride_of_a_fold_is_that_of_the_folded_array(gpu: Gpu) -> None:
    """`a.stride(0)` of `*B N` is the length of a row, however many axes B has."""

    @specialize(Inline(EMPTY.replace("{}", "{ /* stride {{ a.stride(0) }} rank {{ a.ndim }} */ }")))
    def f(a: Float32[Array, "*B N"]) -> Float32[Array, "*B N"]:
        raise NotImplementedError

    for shape in [(6, 4), (2, 3, 4), (1, 2, 3, 4)]:
        assert "stride 4 rank 2" in f.inspect(ArraySpec(shape), arch="sm_90").source


def test_a_written_array_shares_memory_with_no_other(gpu: Gpu) -> None:
    """`out` over an input, an input over what is mutated, in part too; two equal inputs are fine; cold and warm."""
    x = gpu.array((4, 4))
    for _ in range(3):
        product(x, x)
        product(x, x, out=gpu.array((4, 4)))
        assert "'out' is written by the kernel and shares memory with 'b'" in message(
            LayoutError, product, gpu.array((4, 4)), x, out=x
        )
    line = gpu.array(12)
    update(line[:4], line[8:])
    update(line[:4], line[4:8])
    for _ in range(2):
        for a, b in [(line[:4], line[:4]), (line[:4], line[3:7]), (line[3:7], line[:4])]:
            assert "'x' is written by the kernel and shares memory with 'y'" in message(LayoutError, update, a, b)
    assert len(gpu.launches) == 3 * 2 + 2


def test_an_empty_array_shares_no_memory(gpu: Gpu) -> None:
    """A pointer into the middle of `out` with nothing behind it is no overlap."""
    out = gpu.array((4, 4))
    nothing = out[1:3, :0]
    object.__setattr__(nothing, "_c_contiguous", True)
    assert product(gpu.hold(nothing.host), gpu.array((0, 4))).shape == (2, 4)
    x = Described("x", 100, "float32", (4,), (1,), ("cuda", 0))
    check_overlap([x, Described("y", 108, "float32", (0,), (1,), ("cuda", 0))], ["x"], "f")


@pytest.mark.parametrize(
    ("shape", "strides", "fine"),
    [
        ((4, 4), (4, 1), True),
        ((4, 4), (1, 4), True),
        ((4, 4), (-8, 2), True),
        ((4, 1), (9, 0), True),
        ((0, 4), (0, 0), True),
        ((4,), (0,), False),
        ((4, 4), (0, 1), False),
        ((4, 3), (1, 1), False),  # a sliding window
        ((4, 3), (2, 1), False),
    ],
)
def test_a_written_array_does_not_overlap_itself(shape: Any, strides: Any, fine: bool) -> None:
    """Broadcast views and sliding windows name one element twice."""
    array = Described("x", 0, "float32", shape, strides, ("cuda", 0))
    if fine:
        check_writable(array, "f")
    else:
        with pytest.raises(LayoutError, match="'x' is written by the kernel"):
            check_writable(array, "f")


@given(
    st.lists(st.integers(0, 4), max_size=4).flatmap(
        lambda shape: st.tuples(st.just(tuple(shape)), st.permutations(range(len(shape))), st.sampled_from("CF"))
    ),
    st.integers(1, 3),
)
def test_packedness_is_numpys(case: Any, step: int) -> None:
    """`is_packed` and `order` agree with NumPy's flags on every transposed and stepped view."""
    shape, axes, order = case
    host = np.zeros(shape, np.float32, order=order).transpose(axes)
    host = host[::step] if host.ndim else host
    strides = tuple(s // 4 for s in host.strides)
    array = Described("x", 0, "float32", host.shape, strides, None)
    assert is_packed(host.shape, strides) == host.flags.c_contiguous
    assert array.order == ("C" if host.flags.c_contiguous else "F" if host.flags.f_contiguous else "strided")
    assert is_packed(host.shape, packed_strides(host.shape))
    low, high = np.lib.array_utils.byte_bounds(host) if host.size else (0, 0)
    at = host.__array_interface__["data"][0]
    assert not host.size or array.extent() == (low - at, high - at)


# what is no array -----------------------------------------------------------------------------------------------------


def test_what_is_no_array_is_refused(gpu: Gpu) -> None:
    """A number, a list, None: named, with what was given and what is taken."""
    for value in (3.0, [[1.0]], None, "a"):
        text = message(ArgumentError, product, value, gpu.array((3, 4)))
        assert text.startswith("product: argument 'a' is no array.") and type(value).__name__ in text
    assert "argument 'out' is no array" in message(
        ArgumentError, product, gpu.array((2, 3)), gpu.array((3, 4)), out=[1]
    )


def test_a_described_array_cannot_be_launched(gpu: Gpu) -> None:
    """ArraySpec alone, or among real arrays: it is for inspect and compile."""
    spec, real = ArraySpec((4, 4)), gpu.array((4, 4))
    assert "there is no array to launch on" in message(ArgumentError, product, spec, spec)
    assert "array 'a' is only described" in message(ArgumentError, product, spec, real)
    assert "array 'b' is only described" in message(ArgumentError, product, real, spec)


def test_host_arrays_are_not_copied(gpu: Gpu) -> None:
    """NumPy among GPU arrays: both named, with where they are."""
    host = np.zeros((4, 4), np.float32)
    text = message(ArgumentError, product, gpu.array((4, 4)), host)
    assert "on different devices" in text and "a on cuda 0; b on cpu 0" in text


# scalars --------------------------------------------------------------------------------------------------------------

INTEGERS = {"int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint8": "B", "uint16": "H", "uint32": "I",
            "uint64": "Q"}  # fmt: skip
FLOATS = {"float16": "e", "float32": "f", "float64": "d"}


def encode(dtype: str, value: Any) -> bytes:
    """The eight bytes that a launch passes."""
    return struct.pack("<q", encoder(ScalarArgument("s", dtype), "f")(value))


@given(st.integers(-(2**65), 2**65), st.sampled_from(sorted(INTEGERS)))
def test_integers_arrive_exactly_or_not_at_all(value: int, dtype: str) -> None:
    """Python integers of any size: NumPy's own range decides."""
    info = np.iinfo(dtype)
    if info.min <= value <= info.max:
        size = np.dtype(dtype).itemsize
        assert encode(dtype, value) == np.array(value, dtype).tobytes() + bytes(8 - size)
    else:
        with pytest.raises(ScalarOverflowError, match=f"does not fit {dtype}"):
            encode(dtype, value)


@given(st.floats(), st.sampled_from(sorted(FLOATS)))
def test_floats_are_rounded_once_to_nearest(value: float, dtype: str) -> None:
    """The bits are NumPy's, NaN and infinities included; what rounds to infinity raises."""
    with np.errstate(over="ignore"):
        wanted = np.dtype(dtype).type(value)
    if math.isinf(wanted) and not math.isinf(value):
        with pytest.raises(OverflowError):
            encode(dtype, value)
    else:
        passed = np.frombuffer(encode(dtype, value)[: wanted.nbytes], dtype)[0]
        assert passed == wanted or (np.isnan(passed) and np.isnan(wanted))
        assert np.signbit(passed) == np.signbit(wanted) or np.isnan(wanted)


@given(st.integers(-(2**80), 2**80), st.sampled_from(sorted(FLOATS)))
def test_an_integer_for_a_float_is_exact_or_refused(value: int, dtype: str) -> None:
    """16777217 is no float32: an integer that would change is an OverflowError, not a rounding."""
    try:
        passed = np.frombuffer(encode(dtype, value)[: np.dtype(dtype).itemsize], dtype)[0]
    except ScalarOverflowError:
        with np.errstate(over="ignore"), contextlib.suppress(OverflowError):
            assert int(np.dtype(dtype).type(value)) != value
    else:
        assert int(passed) == value


NUMPY = [t(1) for t in (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)]
FLOAT64 = np.dtype("float64")
NUMPY_FLOATS = [t(1) for t in (np.float16, np.float32, np.float64, np.longdouble)]


def test_each_kind_of_scalar_goes_where_its_kind_is() -> None:
    """B36: NumPy integers to integers, NumPy floats to floats, bools to bools; anything else is a TypeError."""
    for dtype in INTEGERS:
        for value in [1, *NUMPY]:
            assert encode(dtype, value)[:1] == b"\1"
        for value in [True, np.True_, 1.0, *NUMPY_FLOATS, 1j, "1", None, b"1"]:
            with pytest.raises(TypeError):
                encode(dtype, value)
    for dtype in FLOATS:
        for value in [1.0, 1, *NUMPY_FLOATS]:
            assert np.frombuffer(encode(dtype, value)[: np.dtype(dtype).itemsize], dtype)[0] == 1
        for value in [True, np.True_, *NUMPY, 1j, np.complex64(1), "1", None]:
            with pytest.raises(TypeError):
                encode(dtype, value)
    for value in [True, np.True_]:
        assert encode("bool", value)[:1] == b"\1"
    assert encode("bool", False) == encode("bool", np.False_) == bytes(8)
    for value in [1, 0, 1.0, np.int8(1), "True", None]:
        with pytest.raises(TypeError):
            encode("bool", value)


@pytest.mark.parametrize("array", [np.array(1.0), np.array(1), np.array([1.0]), np.ma.array(1.0)])
def test_arrays_are_no_scalars(array: Any) -> None:
    """An array of no axes is an array: its value may live anywhere."""
    for dtype in ("float32", "int32", "bool"):
        with pytest.raises(DtypeError, match="of another kind"):
            encode(dtype, array)


def test_numpy_scalars_beyond_the_range_raise() -> None:
    """An int64 for an int32, a float64 for a float32, a long double for a float64."""
    with pytest.raises(ScalarOverflowError):
        encode("int32", np.int64(2**31))
    with pytest.raises(ScalarOverflowError):
        encode("float32", np.float64(1e39))
    beyond = np.longdouble(2) ** 2000
    if np.isfinite(beyond):  # where long double is wider than double
        with pytest.raises(ScalarOverflowError):
            encode("float64", beyond)
    assert encode("float64", np.longdouble("inf")) == struct.pack("<d", math.inf)


def test_a_long_double_is_rounded_once() -> None:
    """By way of float64 it would be rounded twice, and end a place off."""
    wide = np.longdouble(2) ** -60
    if np.longdouble(1) + wide == 1:
        pytest.skip("long double is no wider than double here")
    for dtype, place in (("float32", 24), ("float16", 11)):
        up = np.longdouble(1) + np.longdouble(2) ** -place + wide
        down = np.longdouble(1) + 3 * np.longdouble(2) ** -place - wide
        for value in (up, down, -up, -down):
            passed = np.frombuffer(encode(dtype, value)[: np.dtype(dtype).itemsize], dtype)[0]
            assert passed == math.copysign(1 + 2.0 ** (1 - place), value)


def test_an_integer_of_any_length_has_a_message() -> None:
    """Python refuses to print integers of more than 4300 digits; the error is still about the argument."""
    for dtype in ("int32", "float64", "bool"):
        with pytest.raises(CuplateError, match="an integer of 33220 bits"):
            encode(dtype, 10**10000)


def test_subclasses_of_numbers_count_as_what_they_are() -> None:
    """An IntEnum is an int."""

    class Level(enum.IntEnum):
        HIGH = 3

    assert encode("int32", Level.HIGH)[0] == 3


def test_a_wrong_scalar_is_refused_before_anything_is_compiled(gpu: Gpu) -> None:
    """In the house order, on cold and warm calls, on calls that launch nothing, and with no array zeroed."""
    x = gpu.array(4)
    text = (
        "axpy: scalar argument 'alpha' is float32; np.int32(2) (int32) is of another kind.\n"
        "  try        float(...)"
    )  # fmt: skip
    assert message(DtypeError, axpy, np.int32(2), x).replace("= 2 (", "= np.int32(2) (") == text
    assert message(DtypeError, axpy, np.int32(2), gpu.array(0)) == text
    assert gpu.log == []
    axpy(2.0, x)
    assert message(DtypeError, axpy, np.int32(2), x) == text
    assert "does not fit float32" in message(ScalarOverflowError, axpy, 1e39, x)
    assert len(gpu.launches) == 1 and gpu.launches[0].values[0] == struct.unpack("<q", encode("float32", 2.0))[0]


# parameters -----------------------------------------------------------------------------------------------------------


class Mode(enum.Enum):
    FAST = 1
    EXACT = 2


class Other(enum.Enum):
    FAST = 1


@specialize(
    Inline(
        EMPTY.replace("{}", "{ /* {{ lit }} {{ flag }} {{ count }} {{ rate }} {{ name }} {{ mode }} {{ sizes }} */ }")
    )
)
def choose(
    x: Float32[Array, " N"],
    *,
    lit: Literal[16, "wide", True] = 16,
    flag: bool = False,
    count: int = 1,
    rate: float = 1.0,
    name: str = "s",
    mode: Mode = Mode.FAST,
    sizes: list[int] = [1, 2],  # noqa: B006 - a compile-time value, frozen at every call
) -> Float32[Array, " N"]:
    """Every kind of parameter."""
    raise NotImplementedError


@pytest.mark.parametrize(
    "wrong",
    [
        {"lit": 8}, {"lit": 16.0}, {"lit": 1}, {"lit": False}, {"lit": "wid"}, {"lit": None}, {"lit": np.float32(16)},
        {"flag": 1}, {"flag": 0.0}, {"flag": "True"}, {"flag": None},
        {"count": 1.0}, {"count": True}, {"count": np.float64(1)}, {"count": np.True_}, {"count": "1"},
        {"rate": "1"}, {"rate": True}, {"rate": 2**53 + 1}, {"rate": 10**400}, {"rate": np.True_}, {"rate": 1j},
        {"name": b"s"}, {"name": 1}, {"mode": 1}, {"mode": Other.FAST}, {"mode": "FAST"}, {"mode": np.zeros(2)},
        {"sizes": 1}, {"sizes": "12"}, {"sizes": {1, 2}}, {"sizes": np.zeros(2)}, {"sizes": [[{}]]},
    ],
    ids=str,
)  # fmt: skip
def test_a_parameter_outside_its_annotation_is_refused(gpu: Gpu, wrong: dict[str, Any]) -> None:
    """By type and value, with its name, what was given, and what is allowed."""
    ((name, _),) = wrong.items()
    text = message(ParameterError, choose, gpu.array(4), **wrong)
    assert text.startswith(f"choose: {name} = ") and "is not allowed" in text and "\n  allowed " in text
    assert gpu.log == []


def test_a_misspelt_literal_has_its_nearest(gpu: Gpu) -> None:
    """The message has the values, and the one that was meant."""
    assert message(ParameterError, choose, gpu.array(4), lit="wyde") == (
        "choose: lit = 'wyde' (str) is not allowed.\n  allowed    16, 'wide', True\n  try        lit='wide'"
    )


def test_numpy_scalars_are_the_python_values_they_stand_for(gpu: Gpu) -> None:
    """One spelling each, and one kernel for both."""
    x = gpu.array(4)
    choose(x, lit=16, flag=True, count=2, rate=0.5, name="n", sizes=[1, 2])
    choose(
        x,
        lit=np.int64(16),
        flag=np.True_,
        count=np.uint8(2),
        rate=np.float32(0.5),
        name=np.str_("n"),
        sizes=(1, 2),
    )
    choose(x, flag=True, count=2, rate=np.float64(0.5), name="n")
    assert len(gpu.notes("load")) == 1 and len(gpu.launches) == 3


def test_an_integer_for_a_float_parameter_is_that_float(gpu: Gpu) -> None:
    """`rate=2` is `rate=2.0`."""
    choose(gpu.array(4), rate=2)
    choose(gpu.array(4), rate=2.0)
    assert len(gpu.notes("load")) == 1


def test_keys_keep_values_apart_that_python_takes_for_equal() -> None:
    """`1`, `True`, `1.0`, `-0.0`, `0.0`, NaN, NumPy's own, alone and in lists; a list and a tuple are one value."""
    values = [1, True, 1.0, -0.0, 0.0, 0, False, math.nan, np.float32(1), np.int32(1), "1", None, Mode.FAST, Other.FAST]
    keys = {parameter_key(v) for v in values}
    assert len(keys) == len(values)
    assert len({parameter_key((v,)) for v in values} | keys) == 2 * len(values)
    assert parameter_key(math.nan) == parameter_key(float("nan"))
    assert parameter_key([1, [2.0]]) == parameter_key((1, (2.0,)))
    assert parameter_key(((1,), 2)) != parameter_key((1, (2,)))


def test_an_object_that_may_change_is_no_parameter(gpu: Gpu) -> None:
    """What is equal to itself alone could change between two calls, and nobody would see it."""

    class Loose:
        tile = 16

    @dataclass(frozen=True)
    class Frozen:
        tile: int = 16

    @specialize(Inline(EMPTY.replace("{}", "{ out[0] = {{ c.tile }}; }")))
    def f(x: Float32[Array, " N"], *, c: Any) -> Float32[Array, " N"]:
        raise NotImplementedError

    x = gpu.array(4)
    assert "c = " in message(ParameterError, f, x, c=Loose())
    f(x, c=Frozen(16))
    f(x, c=Frozen(16))
    f(x, c=Frozen(32))
    assert len(gpu.launches) == 3 and len(gpu.notes("load")) == 2


def test_dtype_parameters_take_names_dtypes_and_classes(gpu: Gpu) -> None:
    """`"float32"`, `np.float32` and `np.dtype("float32")` are one value, and one kernel."""

    @specialize(Inline(EMPTY), dtypes={"out": "to"})
    def cast(x: Float32[Array, " N"], *, to: np.dtype = FLOAT64) -> Float[Array, " N"]:  # type: ignore[type-arg]
        raise NotImplementedError

    x = gpu.array(4)
    for to in ("float32", np.float32, np.dtype("float32")):
        assert cast(x, to=to).dtype == np.float32
    assert cast(x).dtype == np.float64 and len(gpu.notes("load")) == 2
    assert "to = 'int32' is outside the annotation of 'out'" in message(ParameterError, cast, x, to="int32")
    assert "to = 'flaot32'" in message(ParameterError, cast, x, to="flaot32")
    assert "array 'out' is float64" in message(DtypeError, cast, x, to="float32", out=gpu.array(4, "float64"))


def test_a_condition_that_does_not_hold_is_told_with_what_it_read(gpu: Gpu) -> None:
    """`require=` names the condition, the values, and the call."""

    @specialize(Inline(EMPTY), require=("tile % 32 == 0", "N % 4 == 0"), block="tile")
    def f(x: Float32[Array, " N"], *, tile: int = 32) -> Float32[Array, " N"]:
        raise NotImplementedError

    f(gpu.array(4))
    assert message(ParameterError, f, gpu.array(4), tile=48) == (
        "f: the condition 'tile % 32 == 0' does not hold.\n"
        "  given      tile = 48\n"
        "  called as  f(x=float32[4], tile=48)"
    )
    assert "given      N = 5" in message(ParameterError, f, gpu.array(5))


def test_double_and_float_arrays_are_not_confused_by_a_union(gpu: Gpu) -> None:
    """A union is one dtype a call too."""

    @specialize(Inline(EMPTY))
    def f(
        a: Float32[Array, " N"] | Float64[Array, " N"], b: Float64[Array, " N"] | Float32[Array, " N"]
    ) -> Float32[Array, " N"] | Float64[Array, " N"]:
        raise NotImplementedError

    assert f(gpu.array(3, "float64"), gpu.array(3, "float64")).dtype == np.float64
    assert "one dtype a call" in message(DtypeError, f, gpu.array(3), gpu.array(3, "float64"))


# parameters that only look alike, layouts that only look read ---------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """A frozen dataclass: equal where its fields are, and ``1 == True == 1.0``."""

    value: Any


class Speed(enum.IntEnum):
    SLOW = 1


class Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize("pair", [(1, True), (1, 1.0), (0.0, -0.0), (1, Setting(1)), ([1], [True])])
def test_dataclasses_are_told_apart_by_their_fields(pair: tuple[Any, Any]) -> None:
    """B04: two values that print as different text have different keys, inside a dataclass too."""
    one, other = (Setting(tuple(v) if isinstance(v, list) else v) for v in pair)
    assert parameter_key(one) != parameter_key(other)


@specialize(Inline('extern "C" __global__ void {{ kernel }}({{ args }}) { out[0] = {{ speed }} + x[N - 1]; }'))
def driven(x: Float32[Array, " N"], *, speed: Speed = Speed.SLOW) -> Float32[Array, " N"]:
    """An Enum parameter."""
    raise NotImplementedError


def test_a_member_of_another_enum_is_refused() -> None:
    """An IntEnum member equals every other of its value, and is still not allowed."""
    with pytest.raises(ParameterError, match=r"speed = <Colour\.RED: 1>"):
        driven.inspect(speed=Colour.RED, arch="sm_90")  # type: ignore[arg-type]


@specialize(Inline('extern "C" __global__ void {{ kernel }}({{ args }}) { out[0] = x[M * N - 1] + {{ n[0] }}; }'),
            require="x.stride(0) % 4 == 0")  # fmt: skip
def wide(x: Float32[Array, "M N"], *, n: list[Any] = [1]) -> Float32[Array, "M N"]:  # noqa: B006
    """Rows at multiples of 16 bytes, and a kernel that takes them for packed."""
    raise NotImplementedError


def test_a_condition_does_not_make_a_kernel_follow_a_layout() -> None:
    """A stride that only `require=` reads reaches no kernel, so a strided array is refused."""
    with pytest.raises(LayoutError, match="does not read its layout"):
        wide.inspect(ArraySpec((8, 4), "float32", (16, 1)), arch="sm_90")


@pytest.mark.parametrize("many", [10**5000, "itself"], ids=["digits", "itself"])
def test_a_value_that_no_message_can_print_is_refused(many: Any) -> None:
    """Neither an integer of thousands of digits nor a list in itself gets out as Python's own error."""
    values: list[Any] = [many]
    if many == "itself":
        values[0] = values
    with pytest.raises(ParameterError, match="n = "):
        wide.inspect(n=values, arch="sm_90")


@pytest.mark.parametrize(
    ("annotation", "given", "kept"),
    [
        (list[int], [1, np.int32(2)], (1, 2)),
        (list[float], [1, 0.5], (1.0, 0.5)),
        (tuple[int, ...], (3,), (3,)),
        (tuple[int, str], (3, "x"), (3, "x")),
        (list[Any], [1, 1.5, "x"], (1, 1.5, "x")),
        (list, [[1, 2], [3]], ((1, 2), (3,))),
    ],
)
def test_elements_of_a_list_are_enforced_where_they_are_plain(annotation: Any, given: Any, kept: Any) -> None:
    """``list[int]`` takes integers, NumPy's too, in one spelling; an open list takes what a template can print."""

    def f(x: Float32[Array, " N"], *, values) -> Float32[Array, " N"]:  # type: ignore[no-untyped-def]
        raise NotImplementedError

    f.__annotations__["values"] = annotation
    signature = read_signature(f, dtypes={})
    assert check_parameters(signature, {"values": given}) == (("values", kept),)
    assert [type(v) for v in check_parameters(signature, {"values": given})[0][1]] == [type(v) for v in kept]


@pytest.mark.parametrize(("annotation", "given"), [(list[int], [1.5]), (list[int], [True]), (tuple[str, ...], (1,))])
def test_elements_of_another_type_are_refused(annotation: Any, given: Any) -> None:
    """By type: True is no integer here, as everywhere."""

    def f(x: Float32[Array, " N"], *, values) -> Float32[Array, " N"]:  # type: ignore[no-untyped-def]
        raise NotImplementedError

    f.__annotations__["values"] = annotation
    with pytest.raises(ParameterError, match="is not allowed"):
        check_parameters(read_signature(f, dtypes={}), {"values": given})
