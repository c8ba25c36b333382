"""literal.py: the C++ spelling of values, held against a compiler where one is installed."""

from __future__ import annotations

import enum
import math
import pickle

import numpy as np
import pytest

from cuplate.errors import CuplateError, TemplateError
from cuplate.literal import LiteralError, cpp, cstr


class Epilogue(enum.Enum):
    RELU = "relu"


class Stages(enum.IntEnum):
    TWO = 2


SPELLINGS = [
    (True, "true"),
    (False, "false"),
    (np.True_, "true"),
    (0, "0"),
    (5, "5"),
    (-5, "(-5)"),
    (2**31 - 1, "2147483647"),
    (-(2**31), "(-2147483647 - 1)"),
    (2**31, "2147483648LL"),
    (-(2**31) - 1, "(-2147483649LL)"),
    (-(2**63), "(-9223372036854775807LL - 1)"),
    (2**63, "9223372036854775808ULL"),
    (2**64 - 1, "18446744073709551615ULL"),
    (np.int8(5), "((signed char)5)"),
    (np.int8(-128), "((signed char)(-128))"),
    (np.uint8(255), "((unsigned char)255)"),
    (np.int16(-3), "((short)(-3))"),
    (np.uint16(7), "((unsigned short)7)"),
    (np.int32(5), "5"),
    (np.int32(-(2**31)), "(-2147483647 - 1)"),
    (np.uint32(5), "5u"),
    (np.int64(5), "5LL"),
    (np.int64(-(2**31)), "(-2147483648LL)"),
    (np.int64(-(2**63)), "(-9223372036854775807LL - 1)"),
    (np.uint64(5), "5ULL"),
    (1.0, "1.0"),
    (0.1, "0.1"),
    (-2.5, "(-2.5)"),
    (0.0, "0.0"),
    (-0.0, "(-0.0)"),
    (1e-5, "1e-05"),
    (1e300, "1e+300"),
    (5e-324, "5e-324"),
    (math.inf, "(1.0/0.0)"),
    (-math.inf, "(-1.0/0.0)"),
    (math.nan, "(0.0/0.0)"),
    (np.float64(0.1), "0.1"),
    (np.float32(0.1), "0.1f"),
    (np.float32(-0.0), "(-0.0f)"),
    (np.float32(16777216), "16777216.0f"),
    (np.float32(math.inf), "(1.0f/0.0f)"),
    (np.float32(-math.inf), "(-1.0f/0.0f)"),
    (np.float32(math.nan), "(0.0f/0.0f)"),
    (np.float16(0.1), "0.099975586f"),
    (np.float16(65504), "65504.0f"),
    (np.float16(-math.inf), "(-1.0f/0.0f)"),
    (Epilogue.RELU, "relu"),
    (Stages.TWO, "2"),
    (np.dtype("float32"), "float"),
    (np.float16, "__half"),
    (np.uint64, "unsigned long long"),
    ("a + b", "a + b"),
    (np.str_("a"), "a"),
    ([1, -2], "{1, (-2)}"),
    ([[1.0], [True, "x"]], "{{1.0}, {true, x}}"),
    ([], "{}"),
]


@pytest.mark.parametrize(("value", "spelling"), SPELLINGS, ids=lambda x: repr(x)[:40])
def test_every_allowed_value_has_one_documented_spelling(value: object, spelling: str) -> None:
    """B49: a value prints as C++, never as Python's own word for it."""
    assert cpp(value) == spelling


REFUSED = [
    None, (1, 2), [(1, 2)], 1j, np.complex64(1), b"x", np.bytes_(b"x"), {}, {1: 2}, {1}, frozenset(), len, lambda: 0,
    object(), 2**64, -(2**63) - 1, np.arange(3), np.datetime64(0, "s"), np.longdouble(1), np.dtype("datetime64[s]"),
    np.dtype(">f4"), np.dtype([("x", "f4")]), int, iter([1]), range(3), ...,
]  # fmt: skip


@pytest.mark.parametrize("value", REFUSED, ids=lambda x: repr(x).partition(" at 0x")[0][:40])
def test_everything_else_is_refused_with_what_is_allowed(value: object) -> None:
    """B49: None and its like raise an error that is a TemplateError and a TypeError, and pickles."""
    with pytest.raises(LiteralError) as caught:
        cpp(value)
    error = caught.value
    assert isinstance(error, TemplateError) and isinstance(error, TypeError) and isinstance(error, CuplateError)
    assert "allowed" in str(error) or error.facts.get("allowed")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_tuple_is_told_how_braces_are_written() -> None:
    """{{1,2}} reaches Jinja as a tuple, so the message shows the list and the braces with spaces."""
    with pytest.raises(LiteralError, match=r"\{\{ \[1, 2\] \}\}"):
        cpp((1, 2))


def test_an_object_may_spell_itself() -> None:
    """`__cpp__` decides, which is how arrays and axes print their C names."""

    class Name:
        def __cpp__(self) -> str:
            return "x"

    assert cpp([Name()]) == "{x}"


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("plain", '"plain"'),
        ('say "x"\\', '"say \\"x\\"\\\\"'),
        ("a\nb\tc\r", '"a\\nb\\tc\\r"'),
        ("\x001", '"\\0001"'),
        ("é", '"\\303\\251"'),
        (7, '"7"'),
        (True, '"true"'),
    ],
)
def test_cstr_quotes_and_escapes(text: object, quoted: str) -> None:
    """A quoted string means the same bytes whatever the encoding of the source and whatever follows."""
    assert cstr(text) == quoted


def test_a_surrogate_has_no_c_string() -> None:
    """What is no UTF-8 is refused rather than mangled."""
    with pytest.raises(LiteralError, match="surrogate"):
        cstr("\ud800")


def test_float32_literals_read_back_exactly() -> None:
    """Every float32 is the same float32 after a compiler has read it as a double and rounded."""
    bits = np.random.default_rng(0).integers(0, 2**32, 5000, dtype=np.uint32)
    for value in bits.view(np.float32):
        if np.isfinite(value):
            text = cpp(value).strip("()")
            assert text.endswith("f") and np.float32(float(text[:-1])) == value


def _check(value: object, index: int) -> str:
    """Return assertions that the literal has the value's type and bits."""
    literal = cpp(value)
    if isinstance(value, (bool, np.bool_)):
        ctype, test = "bool", f"({literal}) == {int(value)}"
    elif isinstance(value, (float, np.float32, np.float16)):
        single = not isinstance(value, float)
        ctype, bits = ("float", "unsigned") if single else ("double", "unsigned long long")
        kind = (np.float32, np.uint32) if single else (np.float64, np.uint64)
        pattern = int(kind[0](value).view(kind[1]))
        test = f"__builtin_bit_cast({bits}, v{index}) == {pattern}ULL"
        if math.isnan(value):
            test = f"v{index} != v{index}"
    else:
        number = int(value)  # type: ignore[call-overload]
        names = {"i1": "signed char", "u1": "unsigned char", "i2": "short", "u2": "unsigned short", "u4": "unsigned"}
        names |= {"i4": "int", "i8": "long long", "u8": "unsigned long long"}
        if isinstance(value, np.generic):
            ctype = names[value.dtype.str[1:]]
        else:
            ctype = "int" if -(2**31) <= number < 2**31 else names["i8"] if number < 2**63 else names["u8"]
        test = f"(unsigned long long)v{index} == {number % 2**64}ULL"
    return (
        f"constexpr auto v{index} = {literal};\n"
        f'static_assert(same<decltype(v{index}), const {ctype}>::v, "type of {literal}");\n'
        f'static_assert({test}, "value of {literal}");\n'
    )


def test_nvrtc_reads_the_literals_as_they_are_meant() -> None:
    """Type and bits of every number survive NVRTC, in constant expressions too."""
    core = pytest.importorskip("cuda.core")
    numbers = [v for v, _ in SPELLINGS if isinstance(v, (int, float, np.number, np.bool_)) and v is not Stages.TWO]
    text = "template<class A, class B> struct same { static constexpr bool v = false; };\n"
    text += "template<class A> struct same<A, A> { static constexpr bool v = true; };\n"
    text += "".join(_check(value, index) for index, value in enumerate(numbers))
    text += 'extern "C" __global__ void k() {}\n'
    program = core.Program(text, "c++", core.ProgramOptions(arch="sm_90"))
    assert program.compile("cubin").code
