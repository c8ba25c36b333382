"""The expression language: what it computes, what it refuses, and how it says so."""

from __future__ import annotations

import enum
import pickle
import re
import shutil
import subprocess
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuplate.errors import DeclarationError, ExpressionError
from cuplate.expression import DEVICE_FACTS, Expression, cdiv, parse
from cuplate.specialization import Fact

NAMES = ("M", "N", "K", "tile", "alpha", "mode", *DEVICE_FACTS)
ARRAYS = ("a", "bias")


@dataclass(frozen=True)
class FakeArray:
    """What an array looks like to an expression: the protocol that `Expression.evaluate` documents."""

    present: bool = True
    itemsize: int = 4
    ndim: int = 2
    dtype: str = "float32"
    order: str = "C"

    def __bool__(self) -> bool:
        return self.present

    def aligned(self, size_bytes: int) -> bool:
        return size_bytes <= 16

    def stride(self, axis: int) -> int:
        return (1000, 1)[axis]


class Mode(enum.Enum):
    FAST = "fast"
    EXACT = "exact"


VALUES = {
    **{"M": 1000, "N": 4096, "K": 0, "tile": 16, "alpha": 0.5, "mode": Mode.FAST},
    **{"arch": 90, "sm_count": 132, "max_shared_bytes": 232448, "on_gpu": True},
    **{"a": FakeArray(), "bias": FakeArray(present=False)},
}


def expr(text: str | int, **facts: object) -> Expression:
    """The text parsed with the names of this file."""
    return parse(text, names=NAMES, arrays=ARRAYS, function="saxpy", where='tiles["N"]', **facts)


def refused(text: object) -> ExpressionError:
    """The error of parsing."""
    with pytest.raises(ExpressionError) as caught:
        expr(text)
    return caught.value


def failed(text: str, **values: object) -> ExpressionError:
    """The error of evaluating."""
    with pytest.raises(ExpressionError) as caught:
        expr(text).evaluate({**VALUES, **values})
    return caught.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("N", 4096),
        (" N ", 4096),
        (7, 7),
        (-7, -7),
        (True, True),
        ("cdiv(M, tile) * cdiv(N, tile)", 63 * 256),
        ("min(sm_count, cdiv(M,tile)*cdiv(N,tile))", 132),
        ("max(1, K, 3)", 3),
        ("abs(K - 5)", 5),
        ("-7 // 2", -4),
        ("-7 % 2", 1),
        ("2 ** 10 + (1 << 4) - (256 >> 4)", 1024),
        ("6 & 3 | 8 ^ 1", 2 | 9),
        ("~0", -1),
        ("'as' in mode and 'x' not in mode", True),
        ("True + 1", 2),
        ("16 <= tile < 32", True),
        ("16 < tile < 32", False),
        ("tile % 8 == 0 and tile in (16, 32)", True),
        ("tile not in [16, 32]", False),
        ("tile in (8, 2 * 8)", True),
        ("not K or M", True),
        ("K or M", 1000),
        ("K and 1 // K", 0),
        ("1 if arch >= 90 else 2", 1),
        ("alpha > -1.5 and alpha == 0.5", True),
        ("mode == 'fast'", True),
        ("mode in ('exact', 'safe')", False),
        ("None == None", True),
        ("a.itemsize * a.ndim", 8),
        ("a.dtype in ('float32', 'float16')", True),
        ("a.order == 'C' and a.aligned(16) and not a.aligned(32)", True),
        ("a.stride(0) // a.stride(1)", 1000),
        ("a and not bias", True),
        ("bias.itemsize if bias else 4", 4),
        ("min(M,\n    N)", 1000),
        ("2 ** 4096 > 2 ** 4095", True),
    ],
)
def test_value(text: str | int, value: object) -> None:
    """An expression has the value, and the type, that Python would give it."""
    result = expr(text).evaluate(VALUES)
    assert (result, type(result)) == (value, type(value))


def test_what_is_used_is_known_without_evaluating() -> None:
    """Names, arrays and facts are read off the text; plain facts of dtype and rank are always there and are none."""
    expression = expr("cdiv(N, tile) * a.itemsize if a.aligned(16) and bias else a.stride(1) + arch")
    assert expression.names == {"N", "tile", "arch"}
    assert expression.arrays == {"a", "bias"}
    assert expression.facts == {Fact("a", "aligned", 16), Fact("a", "stride", 1)}
    assert expr("a.order == 'F'").facts == {Fact("a", "order")}
    assert not expr("a.ndim + a.itemsize").facts


def test_is_name() -> None:
    """Only a single bare name that is no array is a name."""
    assert [expr(text).is_name for text in ("N", " N", "N + 0", "a", 3)] == [True, True, False, False, False]


def test_expression_is_a_value() -> None:
    """Equal texts at the same place are equal, hash alike, show the text, and survive pickling."""
    one, other = expr("cdiv(N, tile)"), expr(" cdiv(N, tile)")
    assert one == other and hash(one) == hash(other)
    assert one != expr("cdiv(M, tile)")
    assert repr(one) == "Expression('cdiv(N, tile)')"
    back = pickle.loads(pickle.dumps(one))
    assert back == one and back.evaluate(VALUES) == 256
    with pytest.raises(AttributeError):
        one.text = "N"  # type: ignore[misc]


def test_unknown_name_message() -> None:
    """A wrong name is an error at decoration that shows the place, the nearest name and what is allowed."""
    error = refused("cdiv(N, tille)")
    assert isinstance(error, DeclarationError)
    assert str(error) == (
        "saxpy: unknown name 'tille' in tiles[\"N\"].\n"
        "  given      cdiv(N, tille)\n"
        "                     ^~~~~\n"
        "  allowed    M, N, K, tile, alpha, mode, arch, sm_count, max_shared_bytes, on_gpu, a, bias\n"
        "  try        tile"
    )
    assert (error.where, error.expression) == ('tiles["N"]', "cdiv(N, tille)")


def test_caret_counts_characters() -> None:
    """The caret stands under the right column after a name of several UTF-8 bytes."""
    error = parse("µ + 1", names=("μ",), function="f", where="grid[0]")  # Python folds both signs into one
    assert error.names == {"μ"}
    with pytest.raises(ExpressionError) as caught:
        parse("größe + x", names=("größe",), function="f", where="grid[0]")
    assert caught.value.given.splitlines()[1] == "        ^"


@pytest.mark.parametrize(
    ("text", "summary", "advice"),
    [
        ("n", "unknown name 'n'", "N"),
        ("Tile", "unknown name 'Tile'", "tile"),
        ("true", "unknown name 'true'", "True"),
        ("cdvi(N, 2)", "unknown function 'cdvi'", "cdiv"),
        ("__import__('os')", "unknown function '__import__'", None),
        ("cdiv", "cdiv is a function and must be called", "cdiv(a, b)"),
        ("cdiv(N)", "cdiv takes 2 arguments, not 1", None),
        ("min(N)", "min takes at least 2 arguments, not 1", None),
        ("min(N, M, key=abs)", "keyword arguments", "positional"),
        ("N / tile", "/ is not integer arithmetic", "N // tile rounds down, cdiv(N, tile) up"),
        ("N @ M", "the operator @", None),
        ("N * 0.5", "0.5 cannot enter *", "// for a fraction"),
        ("N * 2.0", "2.0 cannot enter *", "2"),
        ("'x' * N", "'x' cannot enter *", None),
        ("a[0]", "a subscript", None),
        ("lambda: 0", "a lambda", None),
        ("[x for x in (1, 2)]", "a comprehension", None),
        ("(N := 1)", "an assignment", None),
        ("f'{N}'", "an f-string", None),
        ("(1, 2)", "a tuple", "right of `in`"),
        ("min(N, *a)", "a starred item", None),
        ("{1: 2}", "a dictionary", None),
        ("b'x'", "b'x'", None),
        ("1j", "1j", None),
        ("...", "Ellipsis", None),
        ("N in tile", "the right side of `in`", "tile in (16, 32)"),
        ("bias is None", "`is`", "=="),
        ("bias == None", "bias means whether the array is present", "bias, or not bias"),
        ("None != bias", "bias means whether the array is present", "bias, or not bias"),
        ("N.bit_length()", "N is not an array", None),
        ("a.itemsize.real", "the attribute .real", None),
        ("a.__class__", "unknown array fact .__class__", None),
        ("a.alined(16)", "unknown array fact .alined", "a.aligned"),
        ("b.ndim", "unknown name 'b'", None),
        ("a.aligned(N)", ".aligned takes one integer constant", "a.aligned(16)"),
        ("a.aligned(12)", "a power of two", None),
        ("a.aligned", ".aligned takes one integer constant", "a.aligned(16)"),
        ("a.stride(-1)", "axis, from 0", "a.stride(0)"),
        ("a.ndim()", ".ndim is not called", "a.ndim"),
        ("N && M", "is not an expression", "and, instead of &&"),
        ("N ? 1 : 2", "is not an expression", "x if condition else y"),
        ("!N", "is not an expression", "not, instead of !"),
        ("tile = 16", "is not an expression", "==, instead of ="),
        ("N +", "is not an expression", None),
        ("N; M", "is not an expression", None),
        ("N\x00", "is not an expression", None),
        ("", "is empty", None),
        ("1 // 0", "// by zero", None),
        ("2 ** 5000", "more than 4096 bits", None),
        (1.5, "must be a string or an integer, not float", None),
        (None, "must be a string or an integer, not NoneType", None),
        ("(" * 300 + "N" + ")" * 300, "is not an expression", None),
        ("+".join(["N"] * 200), "levels of nesting", None),
        ("-" * 3000 + "N", "nest", None),
        ("N" * 5000, "5000 characters", None),
        (1 << 5000, "4096 bits", None),
    ],
)
def test_refused_at_decoration(text: object, summary: str, advice: str | None) -> None:
    """Whatever is not the language is refused when parsed, by name, with what to write instead where that is known."""
    error = refused(text)
    assert summary in error.summary
    assert 'tiles["N"]' in error.summary and error.function == "saxpy"
    assert advice is None or advice in error.try_


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("N // K", "// by zero"),
        ("N % K", "% by zero"),
        ("cdiv(N, K)", "cdiv by zero"),
        ("1 << -N", "negative shift count"),
        ("1 << N * N", "more than 4096 bits"),
        ("N ** N ** 2", "more than 4096 bits"),
        ("N ** (K - 1)", "4096 ** -1 is not an integer"),
        ("N * alpha", "* of 0.5: arithmetic is on integers"),
        ("mode + 1", "+ of 'fast': arithmetic is on integers"),
        ("mode < 3", "'fast' < 3: these kinds have no order"),
        ("'as' in tile", "'as' in 16: 16 is no text"),
        ("bias.stride(0)", "the array bias was not given"),
    ],
)
def test_fails_for_these_values(text: str, summary: str) -> None:
    """Arithmetic that fails for a call is an ExpressionError, never a bare ZeroDivisionError, OverflowError or hang."""
    assert summary in failed(text).summary


def test_failure_shows_the_values() -> None:
    """A failing evaluation shows the expression, the place in it and the values used."""
    assert str(failed("N + M // K")) == (
        'saxpy: // by zero in tiles["N"].\n'
        "  given      N + M // K\n"
        "                 ^~~~~~\n"
        "  values     K=0, M=1000, N=4096"
    )


def test_value_of_unknown_kind_is_named() -> None:
    """A value that the language has no kind for is refused by name and type."""
    assert "tile is a value of type object" in failed("tile + 1", tile=object()).summary


@pytest.mark.parametrize(("text", "shown"), [("N > 1", "True"), ("alpha", "0.5"), ("mode", "'fast'"), ("a", "True")])
def test_integer_demands_an_int(text: str, shown: str) -> None:
    """A size must be an int: a bool or a float is refused, with the expression and the values."""
    with pytest.raises(ExpressionError, match=re.escape(f'tiles["N"] must be an integer, not {shown}')) as caught:
        expr(text).integer(VALUES)
    assert caught.value.given == text
    assert expr("N").integer(VALUES) == 4096


def test_error_pickles() -> None:
    """An ExpressionError crosses a process boundary with its message."""
    error = failed("N // K")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@given(a=st.integers(-(10**30), 10**30), b=st.integers(-(10**6), 10**6).filter(bool))
def test_cdiv_is_exact_for_any_signs(a: int, b: int) -> None:
    """cdiv is the least integer not below the quotient, also for negatives and beyond a double's precision."""
    quotient = cdiv(a, b)
    assert (quotient - 1) * abs(b) < a * (1 if b > 0 else -1) <= quotient * abs(b)


def _texts() -> st.SearchStrategy[str]:
    leaves = st.sampled_from(["N", "M", "0", "1", "7", "True", "a.ndim"])
    binary = st.sampled_from(["+", "-", "*", "//", "%", "&", "|", "^", "==", "<", "and", "or"])
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.tuples(inner, binary, inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
            st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} if {t[1]} else {t[2]})"),
            st.tuples(st.sampled_from(["cdiv", "min", "max"]), inner, inner).map(lambda t: f"{t[0]}({t[1]}, {t[2]})"),
            inner.map(lambda t: f"(not {t})"),
            inner.map(lambda t: f"(-{t})"),
        ),
        max_leaves=8,
    )


@given(text=_texts(), n=st.integers(-9, 9), m=st.integers(-9, 9))
@settings(max_examples=150, deadline=None)
def test_agrees_with_python(text: str, n: int, m: int) -> None:
    """The language means what Python means: same value, or an error where Python has one."""
    values = {"N": n, "M": m, "a": FakeArray()}
    try:
        wanted = eval(text, {"cdiv": cdiv, "__builtins__": {"min": min, "max": max}}, values)
    except ZeroDivisionError:
        with pytest.raises(ExpressionError, match="by zero"):
            expr(text).evaluate(values)
    else:
        assert expr(text).evaluate(values) == wanted


@given(text=st.text(alphabet="N M()+-*/%<>=!&|^~.,:0123e'\"[]{}a@\\\n", max_size=30))
@settings(max_examples=300, deadline=None)
def test_any_text_is_an_expression_or_an_expression_error(text: str) -> None:
    """No text makes the parser raise anything else."""
    try:
        expr(text)
    except ExpressionError as error:
        assert str(error)


C_TEXTS = ("N - K + 1", "N // K", "N % K", "cdiv(N, K)", "min(N, K, 3)", "max(N, -K)", "abs(N)", "(N << 2) ^ ~K", "+7")


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a host C++ compiler")
def test_c_text_computes_the_same(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """C text of an expression has Python's value in C++ too, for every pair of signs."""
    pairs = [(n, k) for n in range(-7, 8) for k in (-3, -2, -1, 1, 2, 3)]
    wanted = [expr(text).integer({"N": n, "K": k}) for n, k in pairs for text in C_TEXTS]
    rows = "".join(f'std::printf("%lld\\n", 1 * {expr(t).c({"N": "n", "K": "k"}, "long long")});' for t in C_TEXTS)
    calls = "".join(f"show({n}, {k});" for n, k in pairs)
    source = tmp_path / "check.cpp"
    source.write_text(f"#include <cstdio>\nstatic void show(int n, int k) {{{rows}}}\nint main() {{{calls}}}\n")
    subprocess.run(["g++", "-O0", "-o", tmp_path / "check", source], check=True)
    output = subprocess.run([tmp_path / "check"], check=True, capture_output=True, text=True).stdout
    assert [int(line) for line in output.split()] == wanted


@pytest.mark.parametrize("text", ["N ** 2", "a.stride(0)", "N if K else M", "N < K", "M", "alpha"])
def test_no_c_text(text: str) -> None:
    """What has no integer C form, or a name without C text, is refused rather than rendered wrong."""
    with pytest.raises(ExpressionError, match="C form"):
        expr(text).c({"N": "N", "K": "K"}, "int")


def test_c_text_is_bounded() -> None:
    """Operands repeat in C text; a nest that would explode is refused."""
    with pytest.raises(ExpressionError, match="no short C form"):
        expr("N" + " // 3" * 40).c({"N": "N"}, "int")


def test_a_name_without_a_value_is_said() -> None:
    """`inspect` without sizes, or without a device, asks for what the expression needs."""
    for text, hint in (("min(N, 1024)", "ArraySpec"), ("sm_count", "on a device")):
        with pytest.raises(ExpressionError, match=r"has no value here in block\[0\]") as caught:
            parse(text, names=["N", "sm_count"], function="f", where="block[0]").evaluate({})
        assert hint in str(caught.value)
