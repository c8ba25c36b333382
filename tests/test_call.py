"""How the values of one call find their names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import pytest
from jaxtyping import Float32, Int32

from cuplate import ArgumentError, Array, Inline, LayoutError, f32, specialize
from tests.doubles import Gpu, install

KERNEL = 'extern "C" __global__ void {{ kernel }}({{ args }}) { /* %s */ }'


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """A recording GPU; the functions of this module forget it again."""
    yield install(monkeypatch)
    for function in [v for v in globals().values() if hasattr(v, "reload")]:
        function.reload()


class Both(NamedTuple):
    high: Float32[Array, " N"]
    low: Int32[Array, " N"]


@specialize(Inline(KERNEL % "{{ tile }} {{ must }} {{ relu }}"))
def f(
    x: Float32[Array, " N"],
    alpha: f32,
    bias: Float32[Array, " N"] | None = None,
    *,
    tile: Literal[16, 32] = 16,
    relu: bool = False,
    must: int,
) -> Float32[Array, " N"]:
    """What is called below."""
    raise NotImplementedError


@specialize(Inline(KERNEL % ""))
def both(x: Float32[Array, " N"]) -> Both:
    """Two outputs."""
    raise NotImplementedError


@specialize(Inline(KERNEL % ""), mutates="x")
def inplace(x: Float32[Array, " N"]) -> None:
    """In place."""
    raise NotImplementedError


@specialize(Inline(KERNEL % ""))
def fill(value: f32) -> Float32[Array, " N"]:
    """No array argument."""
    raise NotImplementedError


def message(error: type[Exception], function: Any, *args: Any, **kwargs: Any) -> str:
    """The text of the error that a call raises."""
    with pytest.raises(error) as caught:
        function(*args, **kwargs)
    return str(caught.value)


def test_positions_and_keywords_are_one_call_b07(gpu: Gpu) -> None:
    """B07: positional, by keyword, in another order, defaults spelled out: one kernel, one plan, equal launches."""
    x = gpu.array(4)
    for _ in range(2):
        f(x, 2.0, must=1)
        f(x, alpha=2.0, must=1)
        f(must=1, alpha=2.0, x=x)
        f(x, 2.0, None, must=1, tile=16, relu=False, out=None, stream=None)
    values = {n.values[:1] + n.values[2:] for n in gpu.launches}  # all but the fresh output's place is equal
    assert len(gpu.launches) == 8 and len(gpu.notes("load")) == 1
    assert {v[0] for v in values} == {x.data.ptr} and {v[-1] for v in values} == {4}
    assert len(f.__globals__["_plans"]) == 1


def test_a_misspelt_keyword_has_its_nearest_b48(gpu: Gpu) -> None:
    """B48: the function, the keyword, all names, the nearest one; on a cold and on a warm call."""
    x = gpu.array(4)
    for _ in range(2):
        assert message(ArgumentError, f, x, 1.0, must=1, til=32) == (
            "f: there is no argument or parameter 'til'.\n"
            "  allowed    x, alpha, bias, tile, relu, must, out, stream\n"
            "  try        tile="
        )
        assert message(ArgumentError, f, x, 1.0, must=1, rleu=True).endswith("try        relu=")
        f(x, 1.0, must=1)
    assert len(gpu.launches) == 2


def test_what_is_missing_is_named(gpu: Gpu) -> None:
    """B36, B48: an array, a scalar, a parameter without default: with what it should be."""
    x = gpu.array(4)
    f(x, 1.0, must=1)
    assert message(ArgumentError, f) == "f: argument 'x' is missing.\n  allowed    Float32 \"N\""
    assert message(ArgumentError, f, x, must=1) == "f: argument 'alpha' is missing.\n  allowed    scalar float32"
    assert message(ArgumentError, f, x, 1.0) == "f: parameter 'must' is missing.\n  allowed    int"


def test_too_many_positions_are_refused(gpu: Gpu) -> None:
    """A parameter is given by name: the message says so."""
    x = gpu.array(4)
    f(x, 1.0, must=1)
    text = message(ArgumentError, f, x, 1.0, None, 16, must=1)
    assert text.startswith("f: 4 positional arguments given, 3 taken.") and "for example tile=..." in text


def test_a_name_given_twice_is_pythons_own_error(gpu: Gpu) -> None:
    """The function is a plain Python function: Python refuses before anything of ours runs."""
    with pytest.raises(TypeError, match=r"f\(\) got multiple values for argument 'x'"):
        f(gpu.array(4), 1.0, x=gpu.array(4), must=1)
    assert "'x' is given twice" in message(ArgumentError, f.inspect, "float32", x="float32", must=1, arch="sm_90")


def test_out_belongs_to_functions_with_outputs(gpu: Gpu) -> None:
    """An in-place function has none."""
    x = gpu.array(4)
    for _ in range(2):
        assert inplace(x) is None
        assert "has no output, so out= has no meaning" in message(ArgumentError, inplace, x, out=gpu.array(4))


def test_several_outputs_want_as_many_arrays(gpu: Gpu) -> None:
    """A list or tuple in the order of the fields, or the result of an earlier call."""
    x = gpu.array(4)
    result = both(x)
    again = both(x, out=result)
    assert again.high is result.high and again.low is result.low
    assert both(x, out=[result.high, result.low]).low is result.low
    assert "out= holds 3 arrays" in message(ArgumentError, both, x, out=(result.high, result.low, x))
    assert "argument 'low' is no array" in message(ArgumentError, both, x, out=(result.high, None))
    low = gpu.array(4, "int32")
    high = low.view(low.host.view("float32"))
    assert "shares memory" in message(LayoutError, both, x, out=(high, low))


def test_a_function_without_arrays_wants_out(gpu: Gpu) -> None:
    """Its size and its place come from there."""
    assert message(ArgumentError, fill, 1.0) == "fill: there is no array to launch on.\n  try        out="
    out = gpu.array(7)
    assert fill(2.0, out=out) is out and gpu.launches[-1].values[-1] == 7
