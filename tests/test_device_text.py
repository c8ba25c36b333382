"""Expressions of device code: what is read, what is refused and how, and that NumPy and the kernel agree."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import pytest
from jaxtyping import Float32

from cuplate import Array, Inline, ParameterError, specialize
from cuplate.device_text import FUNCTIONS, DeviceText

LANGUAGE = DeviceText("x", "y", integers=("row", "column"))


def checked(text: str) -> str:
    """The text as a kernel gets it."""
    return LANGUAGE.check(text, "expression", "f")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("x", "x"),
        (" x /\n (1.0f + fabsf(x)) ", "x / (1.0f + fabsf(x))"),
        ("0.5 * x", "0.5f * x"),
        ("1e-3*x + .5 + 2.", "1e-3f*x + .5f + 2.f"),
        ("2f * x", "2.0f * x"),
        ("row % 3 == 0 && !(x < y) ? x : -y", "row % 3 == 0 && !(x < y) ? x : -y"),
        ("row >= column ? x : 0.0f", "row >= column ? x : 0.0f"),
        ("x - -y", "x - -y"),
        ("fmaxf(x, y) / __fdividef(x, row + 1)", "fmaxf(x, y) / __fdividef(x, row + 1)"),
    ],
)
def test_numbers_are_floats_and_the_rest_stays(text: str, wanted: str) -> None:
    """A number with a point would make a double of the whole; what was read once is read again."""
    assert checked(text) == checked(wanted) == wanted


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("tanh(x)", "unknown name 'tanh'", "tanhf"),
        ("z + 1", "unknown name 'z'", None),
        ("sum", "unknown name 'sum'", None),
        ("fabsf", "fabsf is a function and must be called", "fabsf(x)"),
        ("fmaxf(x)", "fmaxf takes 2 values, not 1", None),
        ("x(1)", "x is a value and cannot be called", None),
        ("x; y", "';' is not part of one", None),
        ("x = 3", "'=' is not part of one", None),
        ("x /* y */", "'*' where a value should stand", None),
        ("x // y", "'/' where a value should stand", None),
        ("x, y", "',' where the expression should end", None),
        ("{x}", "'{' is not part of one", None),
        ("*(float*)0", "'*' where a value should stand", None),
        ("x[0]", "'[' is not part of one", None),
        ("x\\", "'\\\\' is not part of one", None),
        ('"x"', "'\"' is not part of one", None),
        ("x.y", "'.' is not part of one", None),
        ("x->y", "'>' where a value should stand", None),
        ("--x", "'--' is not part of one", "- -"),
        ("x ++y", "'++' is not part of one", "+ +"),
        ("", "it is not finished", None),
        ("x +", "it is not finished", None),
        ("(x", "no ')'", None),
        ("x ? 1 : 0", "a number where a comparison should stand", "x != 0.0f"),
        ("x < y", "a comparison where a number should stand", "condition ? 1.0f : 0.0f"),
        ("0 < x < 1", "a comparison where a number should stand", "condition ? 1.0f : 0.0f"),
        ("1 / 2 * x", "a quotient of integers, which C++ rounds", "2.0f, a float, on one side"),
        ("x**2", "'**' is not part of one", "x * x, or powf(x, 2.0f)"),
        ("x % 2", "% is for integers", "fmodf(a, b)"),
        ("row % 0", "a remainder by zero, which C++ leaves open", "fmodf(a, b): NaN by zero"),
        ("row % (3 - +3 * 1) * x", "a remainder by zero, which C++ leaves open", "fmodf(a, b): NaN by zero"),
        ("row % -(7 % 7)", "a remainder by zero, which C++ leaves open", "fmodf(a, b): NaN by zero"),
        ("row % column", "a remainder by what may be zero, which C++ leaves open", "fmodf(a, b): NaN by zero"),
        ("row % (x < y ? 2 : 1)", "a remainder by what may be zero, which C++ leaves open", "fmodf(a, b): NaN by zero"),
        ("row % (65536 * 65536)", "an integer beyond 2**31 - 1", "1.0f, a float, on one side"),
        ("-(-2147483647 - 1) + row", "an integer beyond 2**31 - 1", "1.0f, a float, on one side"),
        ("010", "'0' is not part of one", None),
        ("0x1f", "'0' is not part of one", None),
        ("3000000000 * x", "an integer beyond 2**31 - 1", "3000000000.0f"),
        ("1e40 * x", "a number beyond what a float holds", None),
        ("1e-50 * x", "a number too small for a float", None),
        ("1\u0663 * x", "'\u0663' is not part of one", None),  # a digit, but none of C++
        ("(" * 60 + "x" + ")" * 60, "more than 50 levels of nesting", None),
        ("-" + "+-" * 60 + "x", "more than 50 levels of nesting", None),
        ("x + " * 400 + "x", "more than 1000 characters", None),
    ],
)
def test_what_is_no_expression_is_refused(text: str, said: str, hint: str | None) -> None:
    """Nothing but an expression of known names gets through: no statement, comment, assignment or memory."""
    with pytest.raises(ParameterError) as caught:
        checked(text)
    assert caught.value.summary == f"expression is not an expression of device code: {said}."
    assert caught.value.facts["try_"] == hint


def test_an_unknown_name_lists_those_that_are_known() -> None:
    """At its place."""
    with pytest.raises(ParameterError) as caught:
        checked("x + fabs(y)")
    assert caught.value.facts["given"] == "x + fabs(y)\n    ^"
    assert str(caught.value.facts["allowed"]).startswith("x, y, row, column; the functions fabsf, sqrtf, ")
    assert caught.value.facts["try_"] == "fabsf"


# Of functions, arguments inside their domain.
WITHIN = {"asinf": "x - 1", "acosf": "x - 1", "copysignf": "x, y - 3", "fmaf": "x, y, 0.5"}
EVERY = " + ".join(
    f"{name}({WITHIN.get(name, ', '.join(['x', 'y + 0.25', 'x'][:count]))})" for name, (count, _) in FUNCTIONS.items()
)


KERNEL = """extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int row = threadIdx.x, column = blockIdx.x;
    if (row < N) {
        const float x = a[row], y = b[row];
        out[row] = {{ expression }};
    }
}
"""


@specialize(Inline(KERNEL), grid=1, block=64)
def written(
    a: Float32[Array, " N"],
    b: Float32[Array, " N"],
    *,
    expression: Annotated[str, DeviceText("x", "y", integers=("row", "column"))],
) -> Float32[Array, " N"]:
    """The expression of each pair."""
    raise NotImplementedError


@pytest.mark.parametrize(
    "text",
    [
        EVERY,
        "row % 3 == 1 || !(x < y) && row != 7 ? x - 2 * y / (row + 1.0) : row < 9 ? -x * -y : row * 2 - 1",
        "row < 9 ? -1.0 / 0.0 : powf(2, -1) + powf(row, -2) + fmodf(row, 4) + (row - 20) % -(7 - 4) + 1 / rsqrtf(0)",
    ],
    ids=["every function", "every operator", "integers and infinities"],
)
def test_numpy_says_what_the_kernel_says(text: str) -> None:
    """One text of all that there is, on the CPU backend; and NVRTC knows every function."""
    rng = np.random.default_rng(0)
    a, b = rng.uniform(1, 2, 50).astype(np.float32), rng.uniform(1, 5, 50).astype(np.float32)
    values: dict[str, Any] = {"x": a.astype(float), "y": b.astype(float), "row": np.arange(50), "column": 0}
    wanted = LANGUAGE.evaluate(text, values)
    got = written(a, b, expression=text)
    assert np.allclose(got, wanted, rtol=1e-5, atol=1e-5)
    assert "call" not in written.inspect(expression=text, arch="sm_90").ptx


def test_equal_texts_are_one_kernel() -> None:
    """Apart from white space and the spelling of numbers; another text is another one."""
    keys = {written.inspect(expression=t, arch="sm_90").key for t in ("0.5f * x", "0.5  *\n x", "0.5 * x")}
    assert len(keys) == 1 and written.inspect(expression="0.25 * x", arch="sm_90").key not in keys
