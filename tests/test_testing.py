"""`cuplate.testing.check`: what it draws, what it compares, and what it says; the kernel is played by NumPy code."""

from __future__ import annotations

import math
import pickle
import sys
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
from jaxtyping import BFloat16, Float32, Int8, Int64, UInt64

import cuplate.search
from cuplate import Array, CuplateError, Inline, f32, i32, specialize
from cuplate.errors import ArgumentError, BudgetError, CompileError, KernelError, ToolchainError
from cuplate.kernels import matmul_epilogue
from cuplate.testing import Checked, CheckError, check, resources
from tests.bindings import first, more

ENGINES = ("hypothesis", "random")
EMPTY = Inline('extern "C" __global__ void {{ kernel }}({{ args }}) {}')


def play(f: Any, change: Callable[[Any], Any] = lambda result: result) -> Callable[..., Any]:
    """A launch that runs the reference in the arrays' own dtype, and spoils its result with `change`."""
    signature = f.inspect.__self__.signature

    def launch(*values: Any, **parameters: Any) -> Any:
        result = f.reference(*values, **parameters)
        if result is None:
            return change(values[0])
        if signature.result_type is not None:
            pairs = zip(result, signature.outputs, strict=True)
            return change(signature.result_type(*(np.asarray(v, dtype=o.dtypes[0]) for v, o in pairs)))
        (out,) = signature.outputs
        array = next(v for v in values if isinstance(v, np.ndarray))
        drawn = parameters[out.dtype_parameter] if out.dtype_parameter else array.dtype
        return change(np.asarray(result, dtype=out.dtypes[0] if len(out.dtypes) == 1 else drawn))

    return launch


def run(f: Any, change: Callable[[Any], Any] = lambda result: result, **keywords: Any) -> Any:
    """Check `f` as NumPy plays it."""
    return check(f, arrays="numpy", launch=play(f, change), **keywords)


def spoil_last(result: Any) -> Any:
    """The last element wrong by one, where there is one."""
    result = np.array(result)
    if result.size:
        result.reshape(-1)[-1] += 1
    return result


# what passes and what does not ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("f", [*first.FIFTEEN, *more.MORE], ids=lambda f: f.__name__)
def test_reference_passes_against_itself(f: Any, engine: str) -> None:
    """Every binding's reference, run in the arrays' own dtype, is within tolerance of the same in double precision."""
    result = run(f, examples=24, engine=engine)
    assert result.engine == engine
    assert result.examples == len(result.drawn) == 24
    assert result.function == f.__name__
    assert 0 <= result.largest_share < 0.5


@pytest.mark.parametrize(
    ("f", "sizes", "place"),
    [
        (first.saxpy, {"N": 300}, (299,)),
        (first.total, {"N": 300}, ()),
        (first.histogram, {"N": 300}, (15,)),
        (first.batched_matmul, {"batch": [(2, 3)], "M": 4, "N": 5}, (1, 2, 3, 4)),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_one_wrong_element_fails(f: Any, sizes: dict[str, Any], place: tuple[int, ...]) -> None:
    """One element that is off by one fails, at its place."""
    with pytest.raises(CheckError) as caught:
        run(f, spoil_last, sizes=sizes)
    error = caught.value
    assert (error.array, error.index) == ("out", place)
    assert error.got == pytest.approx(error.wanted + 1)


def test_message_says_everything() -> None:
    """The message names function, place, values, sizes, parameters, dtype, how much is wrong, and how to repeat it."""
    with pytest.raises(CheckError) as caught:
        run(
            first.transpose,
            spoil_last,
            seed=7,
            sizes={"M": 3, "N": 5},
            parameters={"tile": 16, "rows": 4},
            engine="random",
        )
    text = str(caught.value)
    assert text.startswith("transpose: out[4, 2] is ")
    assert "the reference says" in text
    assert "a=float32[3, 5]" in text and "tile=16, rows=4" in text
    assert "M = 3, N = 5" in text
    assert "1 of 15 elements, largest error 1 at [4, 2], allowed" in text
    drawn = "sizes={'M': 3, 'N': 5}, parameters={'tile': 16, 'rows': 4}"
    assert f"check(transpose, seed=7, example={caught.value.example}, {drawn})" in text


def test_error_is_an_assertion_with_facts() -> None:
    """A CheckError is an AssertionError and a CuplateError, has its facts as attributes, and pickles with them."""
    with pytest.raises(CheckError) as caught:
        run(first.saxpy, spoil_last, sizes={"N": 4}, engine="random")
    error = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(error, AssertionError) and isinstance(error, CuplateError)
    assert (error.function, error.example, error.seed, error.index) == ("saxpy", 0, 0, (3,))
    assert error.sizes == {"N": 4} and error.parameters == {}
    assert error.largest_error == pytest.approx(1)
    assert error.got == pytest.approx(error.wanted + 1)


@pytest.mark.parametrize("engine", ENGINES)
def test_failure_repeats_by_its_name(engine: str) -> None:
    """Seed and example draw the same sizes, parameters and data again."""

    def spoil_large(result: Any) -> Any:
        return spoil_last(result) if result.size > 5000 else result

    with pytest.raises(CheckError) as once:
        run(first.stencil, spoil_large, seed=3, engine=engine)
    assert once.value.example != 0
    with pytest.raises(CheckError) as again:
        run(first.stencil, spoil_large, seed=3, example=once.value.example)
    assert str(again.value) == str(once.value)


def test_nan_and_infinity_are_wrong_unless_both_sides_have_them() -> None:
    """A NaN that the reference lacks fails; the same infinity on both sides passes."""
    with pytest.raises(CheckError) as caught:
        run(first.saxpy, lambda result: result * np.float32(math.nan))
    assert math.isnan(caught.value.got) and math.isnan(caught.value.largest_error)
    data = {"x": lambda rng, shape, dtype: np.full(shape, -np.inf)}
    assert run(more.square, data=data).examples == 20
    with pytest.raises(CheckError):
        run(more.square, lambda result: -result, data=data)


def test_overflow_of_a_narrow_output_is_infinity() -> None:
    """Where the reference is beyond the output's largest value, the kernel's infinity is right."""
    data = {"x": lambda rng, shape, dtype: np.full(shape, 1e6)}
    with np.errstate(over="ignore"):
        assert run(first.cast, parameters={"out_dtype": "float16"}, data=data).examples == 20


def test_wrong_dtype_and_shape_fail() -> None:
    """A result of another dtype or shape than the annotation says fails, whatever its values."""
    with pytest.raises(
        CheckError, match=r"out is float64\[\d+\] from the kernel, .* and float32\[\d+\] by the annotation"
    ):
        run(first.saxpy, lambda result: result.astype(np.float64))
    with pytest.raises(CheckError, match=r"out is float32\[\d+, 1\] from the kernel"):
        run(first.saxpy, lambda result: result[:, None])


def test_mutated_array_is_compared() -> None:
    """What an in-place kernel leaves in its array is compared, and the reference's copy is its own."""

    def forget(array: Any) -> None:
        array[-1:] = 0

    assert run(first.scale, lambda array: None).examples == 20
    with pytest.raises(CheckError, match=r"x\[\d+\] is 0.0"):
        run(first.scale, forget, minimum=1)


def test_each_named_output_is_compared() -> None:
    """An error in the second field of a NamedTuple is found there, and integers must be equal."""

    def spoil(result: Any) -> Any:
        return result._replace(place=result.place + 1)

    with pytest.raises(CheckError, match=r"place\[0\] is") as caught:
        run(first.row_max, spoil)
    assert caught.value.array == "place"


def test_tolerance_can_be_given() -> None:
    """`rtol` and `atol` replace the default: a rough kernel passes with them, and only with them."""

    def rough(result: Any) -> Any:
        return result * np.float32(1.001)

    with pytest.raises(CheckError):
        run(first.saxpy, rough)
    assert run(first.saxpy, rough, rtol=1e-2).largest_share == pytest.approx(0.1, rel=0.1)
    with pytest.raises(CheckError):
        run(first.saxpy, lambda result: result + np.float32(0.1), atol=0.05)


# what is drawn --------------------------------------------------------------------------------------------------------


def drawn_calls(f: Any, **keywords: Any) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """What the launch got, example by example."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def launch(*values: Any, **parameters: Any) -> Any:
        calls.append((values, parameters))
        return play(f)(*values, **parameters)

    check(f, arrays="numpy", launch=launch, **keywords)
    return calls


def test_draws_depend_on_the_seed_only() -> None:
    """Equal seeds draw equal calls however many there are, other seeds draw others."""
    few, many = (run(first.linear, examples=n, engine="random") for n in (5, 30))
    assert many.drawn[:5] == few.drawn
    assert run(first.linear, examples=5, seed=1, engine="random").drawn != few.drawn
    assert run(first.linear, engine="hypothesis").drawn == run(first.linear, engine="hypothesis").drawn


@pytest.mark.parametrize("engine", ENGINES)
def test_data_depends_on_the_seed_only(engine: str) -> None:
    """Equal seeds fill the arrays with equal data."""
    once, again = (drawn_calls(first.saxpy, examples=3, engine=engine) for _ in range(2))
    assert all(np.array_equal(a[1], b[1]) and a[0] == b[0] for (a, _), (b, _) in zip(once, again, strict=True))


@pytest.mark.parametrize("engine", ENGINES)
def test_sizes_are_ragged_one_and_empty(engine: str) -> None:
    """Some examples have an empty axis, an axis of 1, sizes below and above a block, and few are alike."""
    sizes = [values[1].size for values, _ in drawn_calls(first.saxpy, engine=engine, examples=40)]
    assert 0 in sizes and 1 in sizes
    assert min(s for s in sizes if s > 1) < 40 and max(sizes) > 256
    assert len(set(sizes)) > 10


def test_minimum_keeps_empty_arrays_out() -> None:
    """No axis is smaller than `minimum`; a mapping speaks of the axes it names."""
    shapes = [values[0].shape for values, _ in drawn_calls(first.stencil, minimum=1)]
    assert min(min(shape) for shape in shapes) == 1
    shapes = [values[0].shape for values, _ in drawn_calls(first.stencil, minimum={"W": 20}, examples=60)]
    assert min(w for _, w in shapes) >= 20 and min(h for h, _ in shapes) == 0


def test_sizes_can_be_given() -> None:
    """A size is fixed by a number and chosen from a sequence; the other axes are drawn."""
    shapes = [values[0].shape for values, _ in drawn_calls(first.stencil, sizes={"H": 7, "W": range(100, 103)})]
    assert {h for h, _ in shapes} == {7}
    assert {w for _, w in shapes} == {100, 101, 102}
    shapes = [values[0].shape[:-2] for values, _ in drawn_calls(first.batched_matmul, sizes={"batch": [(2, 1), ()]})]
    assert set(shapes) == {(2, 1), ()}


def test_folded_axes_have_any_number() -> None:
    """`*batch` is drawn with no, one and two axes."""
    ranks = {values[0].ndim for values, _ in drawn_calls(first.batched_matmul)}
    assert ranks == {2, 3, 4}


def test_output_sizes_stay_possible() -> None:
    """An expression such as N-K+1 is never negative in what is drawn, and also 0."""
    lengths = [len(values[0]) - len(values[1]) + 1 for values, _ in drawn_calls(first.convolve, examples=100)]
    assert min(lengths) >= 0


def test_arrays_and_work_stay_small() -> None:
    """No array is larger than a reference takes at ease, no product of axes than the CPU backend does, checked."""
    calls = drawn_calls(first.batched_matmul, examples=60)
    assert max(array.size for values, _ in calls for array in values) <= 2**18
    work = [a.size * b.shape[-1] for (a, b), _ in calls]
    assert 2**18 < max(work) <= 2**20


def test_work_of_given_sizes_is_left_to_the_user() -> None:
    """Sizes that were given are not made smaller; the free ones are, as far as it helps."""
    shapes = {values[0].shape for values, _ in drawn_calls(first.matmul, sizes={"M": 2000, "K": 600}, examples=6)}
    assert shapes == {(2000, 600)}


def test_parameters_follow_annotations_and_require() -> None:
    """`Literal` and `Enum` values are all drawn, but no pair that `require=` forbids; an int keeps its default."""
    pairs = {(p["tile"], p["rows"]) for _, p in drawn_calls(first.transpose, examples=60)}
    assert pairs == {(16, 4), (16, 8), (32, 4), (32, 8), (32, 32)}
    assert {p["kind"] for _, p in drawn_calls(more.activate)} == set(more.Activation)
    assert {p["bins"] for _, p in drawn_calls(first.histogram)} == {16}


def test_parameters_can_be_given() -> None:
    """A list holds the choices for a parameter, anything else is its value."""
    assert {p["bins"] for _, p in drawn_calls(first.histogram, parameters={"bins": [3, 200]})} == {3, 200}
    assert {p["tile"] for _, p in drawn_calls(first.linear, parameters={"tile": 8})} == {8}


def test_optional_arrays_come_and_go() -> None:
    """An optional array is given in some examples and None in others."""
    given = {values[2] is None for values, _ in drawn_calls(first.linear)}
    assert given == {True, False}


def test_one_dtype_a_call() -> None:
    """A family gives all its arrays one dtype a call, and every dtype that NumPy has in some call."""
    calls = drawn_calls(more.add, examples=40)
    assert all(values[0].dtype == values[1].dtype for values, _ in calls)
    assert {values[0].dtype.name for values, _ in calls} == {"float16", "float32", "float64"}


def test_dtype_parameters_are_drawn() -> None:
    """A parameter that names a dtype takes each value of its Literal."""
    assert {p["out_dtype"] for _, p in drawn_calls(first.cast)} == {"float16", "float32", "float64"}


def test_layouts_that_the_kernel_reads_are_drawn() -> None:
    """A kernel that reads `order` gets column-major arrays too, one that reads strides gets gaps, others neither."""
    orders = [values[0].flags.c_contiguous for values, _ in drawn_calls(first.transpose, minimum=2)]
    assert set(orders) == {True, False}
    gaps = [values[1] for values, _ in drawn_calls(first.sgemm, minimum=2)]
    assert {a.strides[0] // 4 - a.shape[1] for a in gaps} == {0, 3}
    assert all(values[0].flags.c_contiguous for values, _ in drawn_calls(first.softmax))


def test_what_lies_in_gaps_is_not_data() -> None:
    """The reference sees the same values as the kernel, and none from between the rows."""
    values = drawn_calls(first.sgemm, minimum=2, sizes={"M": 4, "K": 5})
    a = next(v[1] for v, _ in values if not v[1].flags.c_contiguous)
    assert np.all(np.asarray(a.base).reshape(4, 8)[:, 5:] == 77)
    assert not np.any(a == 77)


def test_scalars_are_exact_in_their_dtype() -> None:
    """A drawn float32 scalar is a Python float that float32 holds exactly: kernel and reference get the same."""
    alphas = [values[0] for values, _ in drawn_calls(first.saxpy)]
    assert all(type(a) is float and float(np.float32(a)) == a for a in alphas)


def test_integers_do_not_wrap_in_the_reference() -> None:
    """The reference gets int8 data as int64: its sums are the true ones."""

    @specialize(EMPTY, tiles={"N": 1})
    def total8(x: Int8[Array, " N"], start: i32) -> Float32[Array, ""]:
        """start + the sum of x."""
        assert x.dtype == np.int64 and type(start) is int
        return start + x.sum(dtype=x.dtype)

    result = check(total8, arrays="numpy", launch=lambda x, start: np.float32(start + x.sum(dtype=np.int64)))
    assert result.examples == 20


def through_double(x: Any) -> Any:
    """What a kernel gives that has a double where an integer is due: above 2**53 not all bits."""
    return x.astype(np.float64).astype(x.dtype)


@specialize(EMPTY, tiles={"N": 1})
def same64(x: Int64[Array, " N"]) -> Int64[Array, " N"]:
    """x."""
    return x


@specialize(EMPTY, tiles={"N": 1})
def same_unsigned(x: UInt64[Array, " N"]) -> UInt64[Array, " N"]:
    """x."""
    return x


@pytest.mark.parametrize("f", [same64, same_unsigned])
def test_integers_are_compared_without_rounding(f: Any) -> None:
    """Two that are one in double precision differ, by 1, above all that float64 tells apart."""
    with pytest.raises(CheckError) as caught:
        run(f, lambda x: x ^ x.dtype.type(1), data={"x": lambda rng, shape, dtype: np.full(shape, 2**62)}, minimum=1)
    assert (caught.value.got, caught.value.wanted, caught.value.largest_error) == (2**62 + 1, 2**62, 1.0)


def test_floats_of_a_reference_are_compared_with_integers_without_rounding() -> None:
    """2**53 + 1 is not 2.0**53, though its float is; and NaN is no integer."""

    @specialize(EMPTY, tiles={"N": 1})
    def halves(x: Int64[Array, " N"]) -> Int64[Array, " N"]:
        """x / 1, in floats."""
        return np.where(x == 7, np.nan, x / 1)

    for value in (2**53 + 1, 7):
        with pytest.raises(CheckError):
            check(
                halves,
                arrays="numpy",
                launch=lambda x: x,
                minimum=1,
                data={"x": lambda r, s, d, v=value: np.full(s, v)},
            )
    assert check(halves, arrays="numpy", launch=lambda x: x, data={"x": lambda r, s, d: np.full(s, 2**53)}).examples


@pytest.mark.parametrize("engine", ENGINES)
def test_default_integers_are_now_and_then_large(engine: str) -> None:
    """So a kernel that loses their low bits is found by what is drawn; the sum of an array stays within its dtype."""
    with pytest.raises(CheckError):
        run(same64, through_double, engine=engine)
    arrays = [values[0] for values, _ in drawn_calls(same64, engine=engine)]
    assert any(np.abs(x).max(initial=0) > 2**53 for x in arrays)
    assert sum(np.abs(x).max(initial=0) <= 100 for x in arrays) > len(arrays) // 3
    assert all(sum(abs(int(v)) for v in x) < 2**63 for x in arrays)


def test_what_an_output_cannot_hold_counts_as_it_wraps() -> None:
    """200 in an int8 is -56, as C++ and NumPy have it; a kernel that gives anything else is wrong all the same."""

    @specialize(EMPTY, tiles={"N": 1})
    def double8(x: Int8[Array, " N"]) -> Int8[Array, " N"]:
        """2 * x, modulo 256."""
        return x * 2

    full = {"x": lambda rng, shape, dtype: np.full(shape, 100)}
    assert check(double8, arrays="numpy", launch=lambda x: x * np.int8(2), data=full).examples == 20
    with pytest.raises(CheckError) as caught:
        check(double8, arrays="numpy", launch=lambda x: np.full_like(x, 127), data=full, minimum=1)
    assert (caught.value.got, caught.value.wanted, caught.value.largest_error) == (127, 200, 73.0)


def test_data_can_be_given() -> None:
    """`data` makes an argument's values, and must keep to the shape."""
    calls = drawn_calls(first.histogram, data={"x": lambda rng, shape, dtype: rng.integers(3, 5, size=shape)})
    assert {int(v) for values, _ in calls for v in values[0]} == {3, 4}
    assert all(values[0].dtype == np.int32 for values, _ in calls)
    with pytest.raises(ArgumentError, match=r"data\['x'\] made an array of shape \(1,\)"):
        run(first.histogram, data={"x": lambda rng, shape, dtype: np.zeros(1)}, sizes={"N": 9})


def test_array_library_is_a_module_or_a_function() -> None:
    """`arrays` takes a module with `asarray` and a function; the kernel writes into copies."""
    made: list[Any] = []

    def put(host: Any) -> Any:
        made.append(host)
        return host

    check(first.scale, arrays=put, launch=play(first.scale, lambda array: None), examples=4)
    assert len(made) == 4
    check(first.scale, arrays=np, launch=play(first.scale, lambda array: None), examples=4)


# what is refused ------------------------------------------------------------------------------------------------------


def test_plain_function_is_refused() -> None:
    """Only a specialized function has a kernel to check."""
    with pytest.raises(ArgumentError, match="check takes a specialized function"):
        check(lambda x: x)


def test_missing_reference_is_said() -> None:
    """A function whose body raises NotImplementedError has nothing to compare with."""
    with pytest.raises(ArgumentError, match="hungry: there is no reference to compare with"):
        check(more.hungry, arrays="numpy")


def test_parameter_without_values_is_refused() -> None:
    """An open parameter without a default needs values, and the message says where to give them."""

    @specialize(EMPTY, block="threads")
    def open_(x: Float32[Array, " N"], *, threads: int) -> Float32[Array, " N"]:
        """x."""
        return x

    with pytest.raises(ArgumentError, match="'threads': int without a default") as caught:
        check(open_, arrays="numpy")
    assert caught.value.try_ == "parameters={'threads': [...]}"
    assert check(open_, arrays="numpy", parameters={"threads": 64}, launch=lambda x, threads: x).examples == 20


def test_impossible_require_is_refused() -> None:
    """Where no drawn call fulfils `require=`, the message shows the conditions."""

    @specialize(EMPTY, block="threads", require="N > 10**6")
    def huge(x: Float32[Array, " N"], *, threads: Literal[32] = 32) -> Float32[Array, " N"]:
        """x."""
        return x

    with pytest.raises(ArgumentError, match="no sizes and parameters were found") as caught:
        check(huge, arrays="numpy")
    assert "N > 10**6" in str(caught.value)


@pytest.mark.parametrize("keyword", ["sizes", "minimum", "parameters"])
def test_misspelt_names_are_refused(keyword: str) -> None:
    """A name that the function does not have is an error, with those it has."""
    with pytest.raises(ArgumentError, match=f"{keyword}= names 'Q'"):
        run(first.saxpy, **{keyword: {"Q": 1}})


def test_unknown_library_is_refused() -> None:
    """`arrays` that is nothing of the kind says what it may be."""
    with pytest.raises(ArgumentError, match="arrays= is no array library"):
        check(first.saxpy, arrays="jax")


def test_function_without_arrays_is_refused() -> None:
    """Sizes come from array arguments: a function that has none cannot be drawn."""

    @specialize(EMPTY)
    def fill(value: f32) -> Float32[Array, " N"]:
        """value everywhere."""
        raise NotImplementedError

    with pytest.raises(ArgumentError, match="no array argument gives sizes to draw"):
        check(fill, arrays="numpy")


def test_dtype_that_numpy_lacks_is_refused() -> None:
    """An array of a dtype that NumPy cannot hold by itself is said to be so."""

    @specialize(EMPTY)
    def halves(x: BFloat16[Array, " N"]) -> BFloat16[Array, " N"]:
        """x."""
        return x

    with pytest.raises(ArgumentError, match="array 'x' is bfloat16, which cannot be drawn"):
        check(halves, arrays="numpy")


def test_other_errors_carry_the_example() -> None:
    """An error out of the call keeps its kind and gets a note with the drawn call."""

    def launch(*values: Any, **parameters: Any) -> Any:
        raise RuntimeError("the device is on fire")

    with pytest.raises(RuntimeError, match="on fire") as caught:
        check(first.saxpy, arrays="numpy", launch=launch, engine="random")
    assert "check(saxpy, seed=0, example=0): x=float32[" in caught.value.__notes__[0]


def test_arch_conditions_are_left_to_the_call() -> None:
    """A condition on the device does not keep anything from being drawn."""
    assert run(more.swap_pairs, examples=4).examples == 4


def test_family_of_one_drawable_dtype_is_allowed() -> None:
    """A family keeps to the dtypes that can be drawn."""
    assert all("float8" not in line and "bfloat16" not in line for line in run(more.add).drawn)


# the simplest failure -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "simplest"),
    [
        (lambda n: n > 256, 257),  # past a block
        (lambda n: n % 32 != 0, 1),  # not whole warps
        (lambda n: n >= 100, 100),
        (lambda n: True, 1),
    ],
    ids=["past a block", "ragged", "a hundred", "wherever there is something"],
)
def test_simplest_failing_size_is_found(wrong: Callable[[int], bool], simplest: int) -> None:
    """hypothesis goes on from a failure to the smallest size that fails, and says how to repeat that one."""

    def spoil(result: Any) -> Any:
        return np.append(result, result) if wrong(result.size) else result

    with pytest.raises(CheckError) as caught:
        run(first.saxpy, spoil)
    assert caught.value.sizes == {"N": simplest}
    assert f"check(saxpy, seed=0, example='{simplest}.0')" in str(caught.value)


def test_simplest_failing_parameters_are_found() -> None:
    """Parameters and sizes that have nothing to do with a failure are as simple as can be in what is told."""

    def launch(a: Any, *, tile: int, rows: int) -> Any:
        return a.T + (rows == 32)

    with pytest.raises(CheckError) as caught:
        check(first.transpose, arrays="numpy", launch=launch, minimum=1)
    assert caught.value.sizes == {"M": 1, "N": 1}
    assert caught.value.parameters == {"tile": 32, "rows": 32}
    assert "calls that failed" in caught.value.__notes__[-1]


def test_finding_of_the_checker_is_reduced() -> None:
    """What the CPU backend's checker raises is brought to its simplest call as well, with a note how to repeat it."""
    sizes = []

    def launch(alpha: float, x: Any, y: Any) -> Any:
        sizes.append(x.size)
        if x.size > 40:
            raise KernelError("read past the end of x")
        return play(first.saxpy)(alpha, x, y)

    with pytest.raises(KernelError, match="past the end") as caught:
        check(first.saxpy, arrays="numpy", launch=launch)
    assert min(n for n in sizes if n > 40) == 41
    assert caught.value.__notes__[0].startswith("in cuplate.testing.check, check(saxpy, seed=0, example='41.0'): x=")


@pytest.mark.parametrize("kind", [RuntimeError, BudgetError, CuplateError])
def test_other_errors_end_the_search(kind: type[Exception]) -> None:
    """An error that each call may have (no compiler, a broken device), or that takes long, is run into once."""
    runs = []

    def launch(*values: Any, **parameters: Any) -> Any:
        runs.append(1)
        raise kind("the device is on fire")

    with pytest.raises(kind, match="on fire") as caught:
        check(first.saxpy, arrays="numpy", launch=launch)
    assert len(runs) == 1
    assert "check(saxpy, seed=0, example='" in caught.value.__notes__[0]


def test_failure_that_comes_and_goes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that failed is not run again, so a failure that a second run would not show is not lost."""
    seen: set[int] = set()

    def launch(alpha: float, x: Any, y: Any) -> Any:
        wrong = x.size > 2 and not seen
        seen.add(x.size)
        return play(first.saxpy, spoil_last if wrong else lambda result: result)(alpha, x, y)

    with pytest.raises(CheckError):
        check(first.saxpy, arrays="numpy", launch=launch, minimum=3)


def test_search_for_a_simpler_call_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no time for it, the first failure is told as it is."""
    monkeypatch.setattr(cuplate.search, "_REDUCE_S", -1.0)
    sizes = []

    def launch(alpha: float, x: Any, y: Any) -> Any:
        sizes.append(x.size)
        return play(first.saxpy, spoil_last)(alpha, x, y)

    with pytest.raises(CheckError) as caught:
        check(first.saxpy, arrays="numpy", launch=launch, minimum=1)
    assert caught.value.sizes == {"N": sizes[-1]}
    assert len([n for n in sizes if n]) == 1


def test_without_hypothesis_calls_are_drawn_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """hypothesis is no dependency: where it is not installed, `check` draws by itself."""
    monkeypatch.setattr("cuplate.testing.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    assert run(first.saxpy).engine == "random"


@pytest.mark.parametrize("name", ["", "x", "1.2.3.4", "5", "-1.0", "700.0", "3.4294967296"])
def test_example_of_another_function_is_refused(name: str) -> None:
    """A name that no draw of the function has is an error."""
    with pytest.raises(ArgumentError, match="example= is of another function"):
        run(first.saxpy, example=name)


def test_unknown_engine_is_refused() -> None:
    """There are two engines."""
    with pytest.raises(ArgumentError, match="engine= is none") as caught:
        run(first.saxpy, engine="hypotesis")
    assert caught.value.allowed == "'hypothesis', 'random'"


# where it runs --------------------------------------------------------------------------------------------------------


def test_result_says_what_ran_where() -> None:
    """A result in one line: function, how many calls, device, how near to the limit, and who drew."""
    result = run(first.saxpy, engine="random")
    assert (result.device, result.engine) == ("cpu", "random")
    shown = str(Checked("f", 20, 3, 0.25, (), "cuda", "hypothesis"))
    assert shown == ("f: 20 calls right on a GPU, largest error 0.25 of what is allowed (drawn by hypothesis, seed 3)")


def test_without_a_gpu_numpy_arrays_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where CuPy is missing, or finds no device, the arrays are NumPy's and the kernel runs on the CPU backend."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr("cuplate.testing.find_spec", lambda name: None if name == "cupy" else object())
    assert check(first.saxpy, launch=play(first.saxpy)).device == "cpu"

    class NoDevice:
        class cuda:
            class runtime:
                @staticmethod
                def getDeviceCount() -> int:
                    raise RuntimeError("cudaErrorNoDevice")

    monkeypatch.setitem(sys.modules, "cupy", NoDevice)  # type: ignore[arg-type]
    monkeypatch.setattr("cuplate.testing.find_spec", lambda name: object())
    assert check(first.saxpy, launch=play(first.saxpy)).device == "cpu"


def test_with_a_gpu_cupy_arrays_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where CuPy finds a device, its arrays are drawn, and the result says so."""

    class OnDevice(np.ndarray):
        __cuda_array_interface__ = {"version": 3}  # noqa: RUF012

    class cupy:
        class cuda:
            class runtime:
                getDeviceCount = staticmethod(lambda: 1)

        asarray = staticmethod(lambda host: host.view(OnDevice))

    monkeypatch.setitem(sys.modules, "cupy", cupy)  # type: ignore[arg-type]
    monkeypatch.setattr("cuplate.testing.find_spec", lambda name: object())
    assert check(first.saxpy, launch=play(first.saxpy)).device == "cuda"


@pytest.fixture(scope="module")
def cpu() -> None:
    """A C++ compiler for the CPU backend, or a reason to skip."""
    from cuplate.backend.cpu.compilers import find_compiler

    try:
        find_compiler()
    except ToolchainError as error:
        pytest.skip(str(error))


# Clusters and cooperative grids are for GPUs.
ON_CPU = [matmul_epilogue, *first.FIFTEEN, *(f for f in more.MORE if f not in (more.swap_pairs, more.peak_normalize))]


@pytest.mark.usefixtures("cpu")
@pytest.mark.parametrize("f", ON_CPU, ids=lambda f: f.__name__)
def test_kernels_pass_on_the_cpu_backend(f: Any) -> None:
    """The shipped kernel and every binding here do what their bodies say, and the checker finds nothing."""
    result = check(f, arrays="numpy", examples=8)
    assert (result.device, result.examples) == ("cpu", 8)


@pytest.mark.usefixtures("cpu")
@pytest.mark.parametrize("engine", ENGINES)
def test_read_past_the_end_is_found_on_the_cpu_backend(engine: str) -> None:
    """A kernel with right results that reads one element too many fails, with hypothesis at its smallest size."""

    @specialize(
        Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const float next = x[i < {{ N }} ? i + 1 : {{ N }} - 1];
    if (i < {{ N }}) out[i] = next == next ? x[i] : x[i] + 0 * next;
}
""")
    )
    def same(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        """x."""
        return x

    with pytest.raises(KernelError) as caught:
        check(same, arrays="numpy", minimum=1, engine=engine)
    assert "x[" in str(caught.value)
    assert caught.value.__notes__[0].startswith("in cuplate.testing.check, check(same, seed=0, example=")
    if engine == "hypothesis":
        assert "x[1] (1 element" in str(caught.value)


# resources ------------------------------------------------------------------------------------------------------------


def test_resources_are_told_for_each_architecture() -> None:
    """Compiled for every architecture named, without a GPU; one may be a plain string."""
    found = resources(first.transpose, arch=["sm_80", "sm_90"], tile=16, rows=8)
    assert list(found) == ["sm_80", "sm_90"]
    assert all(r.registers and r.static_shared_bytes == 16 * 17 * 4 and r.stack_bytes == 0 for r in found.values())
    assert list(resources(first.saxpy, arch="sm_86")) == ["sm_86"]


def test_resources_of_a_kernel_that_one_architecture_refuses() -> None:
    """The compile error says for which architecture it was."""

    @specialize(
        Inline(
            "{% if arch < 90 %}#error needs sm_90\n{% endif %}"
            'extern "C" __global__ void {{ kernel }}({{ args }}) { out[0] = x[0]; }'
        )
    )
    def newer(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        """x."""
        return x

    assert list(resources(newer, arch=["sm_90"])) == ["sm_90"]
    with pytest.raises(CompileError, match="needs sm_90") as caught:
        resources(newer, arch=("sm_90", "sm_80"))
    assert caught.value.__notes__ == ["compiling for sm_80"]


def test_resources_need_an_architecture_and_a_function() -> None:
    """No architecture and no specialized function are errors."""
    with pytest.raises(ArgumentError, match="arch= names no architecture"):
        resources(first.saxpy, arch=[])
    with pytest.raises(ArgumentError, match="resources takes a specialized function"):
        resources(lambda x: x, arch="sm_90")


def test_the_line_that_repeats_has_what_decided_the_drawing() -> None:
    """Sizes, parameters and tolerances as they were given; a function has no text, so it stays open."""
    drawn = {
        "sizes": {"N": range(5, 50)},
        "minimum": 5,
        "atol": 0.0,
        "data": {"x": lambda rng, shape, dtype: rng.random(shape)},
    }
    with pytest.raises(CheckError) as caught:
        run(first.saxpy, spoil_last, **drawn, engine="random", seed=7)
    asked = "sizes={'N': range(5, 50)}, minimum=5, data=..., atol=0.0"
    assert caught.value.repeat == f"check(saxpy, seed=7, example={caught.value.example!r}, {asked})"
    with pytest.raises(CheckError) as again:
        run(first.saxpy, spoil_last, **drawn, example=caught.value.example, seed=7)
    assert str(again.value) == str(caught.value)
