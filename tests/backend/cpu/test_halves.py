"""half and bfloat16: every value widened, and each operation against exact fractions rounded once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from cuplate.backend.cpu.build import BuildError
from tests.backend.cpu.evaluation import evaluate

Make = Callable[..., Any]
ROUND = {"rn": round, "rz": math.trunc, "rd": math.floor, "ru": math.ceil}


@dataclass(frozen=True, slots=True)
class Format:
    """A 16-bit format and what its functions are called."""

    word: str  # in names of functions
    pair: str
    type: str
    header: str
    exponent: int
    mantissa: int

    @property
    def infinity(self) -> int:
        return ((1 << self.exponent) - 1) << self.mantissa

    def value(self, bits: int) -> float:
        """What the bits stand for."""
        sign = -1.0 if bits >> 15 else 1.0
        magnitude = bits & 0x7FFF
        if magnitude >= self.infinity:
            return sign * math.inf if magnitude == self.infinity else math.nan
        bias = (1 << (self.exponent - 1)) - 1
        exponent, mantissa = magnitude >> self.mantissa, magnitude & ((1 << self.mantissa) - 1)
        if exponent == 0:
            return sign * math.ldexp(mantissa, 1 - bias - self.mantissa)
        return sign * math.ldexp(mantissa + (1 << self.mantissa), exponent - bias - self.mantissa)

    def rounded(self, exact: Fraction, mode: str = "rn", zero: int = 0) -> int:
        """The bits of a fraction rounded once; ``zero`` is what an exact zero becomes."""
        if exact == 0:
            return zero
        smallest = 2 - (1 << (self.exponent - 1))
        size = abs(exact)
        exponent = size.numerator.bit_length() - size.denominator.bit_length()
        if Fraction(2) ** exponent > size:
            exponent -= 1
        exponent = max(exponent, smallest)
        unit = Fraction(2) ** (exponent - self.mantissa)
        steps = abs(ROUND[mode](exact / unit))
        bits = steps + ((exponent - smallest) << self.mantissa)
        if bits >= self.infinity:
            outward = mode == "rn" or (mode == "ru" and exact > 0) or (mode == "rd" and exact < 0)
            bits = self.infinity if outward else self.infinity - 1
        return bits | (0x8000 if exact < 0 else 0)


HALF = Format("half", "half2", "__half", "#include <cuda_fp16.h>", 5, 10)
BFLOAT = Format("bfloat16", "bfloat162", "__nv_bfloat16", "#include <cuda_bf16.h>", 8, 7)
FORMATS = pytest.mark.parametrize("fmt", [HALF, BFLOAT], ids=["half", "bfloat16"])
ALL = np.arange(65536, dtype=np.uint16)


def samples(fmt: Format, count: int, columns: int) -> np.ndarray:
    """Finite values of every magnitude, and pairs near each other: shape (columns, count), as bits."""
    random = np.random.default_rng(7)
    bits = random.integers(0, fmt.infinity, (columns, count)).astype(np.uint16)
    near = random.integers(fmt.infinity // 3, 2 * fmt.infinity // 3, (columns, count)).astype(np.uint16)
    edges = np.array(
        [0, 1, 2, (1 << fmt.mantissa) - 1, 1 << fmt.mantissa, fmt.infinity - 1, fmt.infinity // 2], np.uint16
    )
    product = np.array(np.meshgrid(*[edges] * columns)).reshape(columns, -1)
    values = np.concatenate([bits, near, product], axis=1)
    return values | (random.integers(0, 2, values.shape).astype(np.uint16) << 15)


def of_bits(fmt: Format, *names: str) -> str:
    """Statements that read the columns' bits as values: a, b, c for x, y, z."""
    return " ".join(
        f"{fmt.type} {new} = __ushort_as_{fmt.word}({old});" for new, old in zip(names, "xyz", strict=False)
    )


def bits_of(fmt: Format, expression: str) -> str:
    """The bits of an expression."""
    return f"__{fmt.word}_as_ushort({expression})"


@FORMATS
def test_every_value_widens_exactly(compiled: Make, fmt: Format) -> None:
    """All 65,536 patterns give the float they stand for, by function and by conversion, and come back unchanged."""
    got = evaluate(
        compiled,
        [f"__{fmt.word}2float(a)", "(float)a"],
        ALL,
        out=np.float32,
        header=fmt.header,
        prepare=of_bits(fmt, "a"),
    )
    want = np.array([fmt.value(b) for b in ALL.tolist()])
    for row in got:
        assert np.array_equal(row, want.astype(np.float32), equal_nan=True)
        assert np.array_equal(np.signbit(row), np.signbit(want)) or np.isnan(want).any()
    back = evaluate(
        compiled,
        [bits_of(fmt, f"__float2{fmt.word}(__{fmt.word}2float(a))"), bits_of(fmt, "a")],
        ALL,
        out=np.uint16,
        header=fmt.header,
        prepare=of_bits(fmt, "a"),
    )
    nan = np.isnan(want)
    assert np.array_equal(back[0][~nan], ALL[~nan])
    assert (back[0][nan] == 0x7FFF).all()
    assert np.array_equal(back[1], ALL)


@FORMATS
@pytest.mark.parametrize("source", [np.float32, np.float64])
def test_narrowing_rounds_once_in_every_direction(compiled: Make, fmt: Format, source: Any) -> None:
    """Ties, subnormals, overflow, infinities and NaN, from float in four modes and from double to nearest."""
    random = np.random.default_rng(8)
    grid = np.array([fmt.value(b) for b in samples(fmt, 60, 1)[0].tolist()])
    step = np.array([fmt.value(min(b + 1, fmt.infinity - 1)) for b in samples(fmt, 60, 1)[0].tolist()])
    x = np.concatenate([grid, (grid + step) / 2, random.normal(size=50), random.normal(size=50) * 1e5, [0.0, -0.0]])
    x = np.concatenate(
        [x, [np.inf, -np.inf, np.nan, 65519.0, 65520.0, 1e300, 5e-324, 2.0**-25, 1.5 * 2.0**-25, 3.39e38]]
    )
    with np.errstate(over="ignore"):
        x = x.astype(source)
    modes = list(ROUND) if source is np.float32 else ["rn"]
    names = [f"__float2{fmt.word}_{m}(x)" for m in modes] if source is np.float32 else [f"__double2{fmt.word}(x)"]
    got = evaluate(compiled, [bits_of(fmt, n) for n in names], x, out=np.uint16, header=fmt.header)
    for row, mode in zip(got, modes, strict=True):
        for value, bits in zip(x.tolist(), row.tolist(), strict=True):
            if math.isnan(value):
                want = 0x7FFF
            elif math.isinf(value):
                want = fmt.infinity | (0x8000 if value < 0 else 0)
            else:
                want = fmt.rounded(Fraction(value), mode, 0x8000 if math.copysign(1, value) < 0 else 0)
            assert bits == want, (mode, value, hex(bits), hex(want))


@FORMATS
def test_arithmetic_is_rounded_once(compiled: Make, fmt: Format) -> None:
    """Sum, difference, product, quotient and fused multiply-add equal the exact result rounded to nearest."""
    x, y, z = samples(fmt, 300, 3)
    operations: dict[str, Callable[[Fraction, Fraction, Fraction], Fraction | None]] = {
        "__hadd(a, b)": lambda a, b, c: a + b,
        "__hsub(a, b)": lambda a, b, c: a - b,
        "__hmul(a, b)": lambda a, b, c: a * b,
        "__hdiv(a, b)": lambda a, b, c: a / b if b else None,
        "__hfma(a, b, c)": lambda a, b, c: a * b + c,
        "a + b": lambda a, b, c: a + b,
        "a * b": lambda a, b, c: a * b,
    }
    got = evaluate(
        compiled,
        [bits_of(fmt, e) for e in operations],
        x, y, z, out=np.uint16, header=fmt.header, prepare=of_bits(fmt, "a", "b", "c"),
    )  # fmt: skip
    for row, (name, exact) in zip(got, operations.items(), strict=True):
        for i, bits in enumerate(row.tolist()):
            a, b, c = (Fraction(fmt.value(int(v[i]))) for v in (x, y, z))
            value = exact(a, b, c)
            if value is None or value == 0:
                continue
            want = fmt.rounded(value)
            assert bits == want, (name, float(a), float(b), float(c), hex(bits), hex(want))


@FORMATS
def test_fused_multiply_add_survives_double_rounding(compiled: Make, fmt: Format) -> None:
    """A product half way between two values, tipped by a tiny addend, goes the right way: a float sum would lose it."""
    one = ((1 << (fmt.exponent - 1)) - 1) << fmt.mantissa
    x = np.array([one + 1, one + 1], np.uint16)  # 1 + u
    # (1 + u) * 1.5 is a tie in the last place; the addends are the smallest positive and negative numbers.
    y = np.array([one + (1 << (fmt.mantissa - 1))] * 2, np.uint16)
    z = np.array([0x0001, 0x8001], np.uint16)
    got = evaluate(
        compiled, [bits_of(fmt, "__hfma(a, b, c)")], x, y, z,
        out=np.uint16, header=fmt.header, prepare=of_bits(fmt, "a", "b", "c"),
    )[0]  # fmt: skip
    want = [
        fmt.rounded(Fraction(fmt.value(int(x[i]))) * Fraction(fmt.value(int(y[i]))) + Fraction(fmt.value(int(z[i]))))
        for i in range(2)
    ]
    assert got.tolist() == want
    assert want[0] == want[1] + 1


@FORMATS
def test_comparisons_know_unordered(compiled: Make, fmt: Format) -> None:
    """An ordered comparison with NaN is false, an unordered one true; != is the unordered form."""
    special = np.array([0, 0x8000, 1, fmt.infinity, 0x8000 | fmt.infinity, 0x7FFF, fmt.infinity // 2], np.uint16)
    x, y = (a.ravel() for a in np.meshgrid(special, special))
    a = np.array([fmt.value(v) for v in x.tolist()])
    b = np.array([fmt.value(v) for v in y.tolist()])
    either = np.isnan(a) | np.isnan(b)
    plain = {"eq": a == b, "ne": (a != b) & ~either, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}
    names = [f"__h{n}{u}(a, b)" for u in ("", "u") for n in plain]
    operators = ["a == b", "a != b", "a < b", "a <= b", "a > b", "a >= b"]
    pairs = [f"__hb{n}{u}2(p, q)" for u in ("", "u") for n in plain]
    masks = [
        f"__h{n}{u}2_mask(p, q) == ({{}} ? 0xffffffffu : 0u)".format(f"__h{n}{u}(a, b)")
        for u in ("", "u")
        for n in plain
    ]
    prepare = of_bits(fmt, "a", "b") + f" auto p = __{fmt.word}2{fmt.pair}(a); auto q = __{fmt.word}2{fmt.pair}(b);"
    got = evaluate(compiled, names + pairs + operators + masks, x, y, out=np.int32, header=fmt.header, prepare=prepare)
    want = [*plain.values(), *[v | either for v in plain.values()]]
    assert np.array_equal(got[:12], np.stack(want).astype(np.int32))
    assert np.array_equal(got[12:24], np.stack(want).astype(np.int32))
    neu = (a != b) | either
    assert np.array_equal(got[24:30], np.stack([plain["eq"], neu, plain["lt"], plain["le"], plain["gt"], plain["ge"]]))
    assert got[30:].all()


@FORMATS
def test_minimum_and_maximum(compiled: Make, fmt: Format) -> None:
    """__hmin and __hmax prefer numbers and order zeros; the _nan forms give 0x7fff when either is NaN."""
    special = np.array([0, 0x8000, 1, 0x8001, fmt.infinity, 0x7FFF, fmt.infinity // 2], np.uint16)
    x, y = (a.ravel() for a in np.meshgrid(special, special))
    names = ["__hmin(a, b)", "__hmax(a, b)", "__hmin_nan(a, b)", "__hmax_nan(a, b)"]
    got = evaluate(
        compiled,
        [bits_of(fmt, n) for n in names],
        x,
        y,
        out=np.uint16,
        header=fmt.header,
        prepare=of_bits(fmt, "a", "b"),
    )

    def order(bits: int) -> int:
        return -(bits & 0x7FFF) - 1 if bits >> 15 else bits

    for i, (a, b) in enumerate(zip(x.tolist(), y.tolist(), strict=True)):
        numbers = [v for v in (a, b) if v & 0x7FFF <= fmt.infinity]
        low = min(numbers, key=order) if numbers else 0x7FFF
        high = max(numbers, key=order) if numbers else 0x7FFF
        both = len(numbers) == 2
        assert got[:, i].tolist() == [low, high, low if both else 0x7FFF, high if both else 0x7FFF], (hex(a), hex(b))


@FORMATS
def test_saturation_and_relu(compiled: Make, fmt: Format) -> None:
    """_sat clamps to [0, 1] and makes NaN 0; _relu clamps negative results to 0 and keeps NaN."""
    one = ((1 << (fmt.exponent - 1)) - 1) << fmt.mantissa
    x = np.array([one, one | 0x8000, 0x7FFF, one - 40], np.uint16)
    y = np.array([one, 0, one, 0], np.uint16)
    names = ["__hadd_sat(a, b)", "__hfma_sat(a, b, b)", "__hfma_relu(a, a, -a)", "__hfma_relu(a, b, a)"]
    got = evaluate(
        compiled,
        [bits_of(fmt, n) for n in names],
        x,
        y,
        out=np.uint16,
        header=fmt.header,
        prepare=of_bits(fmt, "a", "b"),
    )
    assert got[0].tolist() == [one, 0, 0, one - 40]
    assert got[1].tolist() == [one, 0, 0, 0]
    assert got[2][1] == fmt.rounded(Fraction(2))
    assert got[3][1] == 0
    assert got[3][2] == 0x7FFF


@FORMATS
def test_conversions_to_and_from_integers(compiled: Make, fmt: Format) -> None:
    """All widths in four roundings, saturating; NaN gives 0, or the top bit alone in 64 bits."""
    x = np.concatenate([samples(fmt, 15, 1)[0], np.array([fmt.infinity, 0x8000 | fmt.infinity, 0x7FFF], np.uint16)])
    for name, bits, signed in (
        ("short", 16, True),
        ("ushort", 16, False),
        ("int", 32, True),
        ("uint", 32, False),
        ("ll", 64, True),
        ("ull", 64, False),
    ):
        kind = np.dtype(f"{'' if signed else 'u'}int{bits}")
        got = evaluate(
            compiled,
            [f"__{fmt.word}2{name}_{m}(a)" for m in ROUND],
            x,
            out=kind,
            header=fmt.header,
            prepare=of_bits(fmt, "a"),
        )
        low, high = np.iinfo(kind).min, np.iinfo(kind).max
        top = (int(low) if signed else 1 << 63) if bits == 64 else 0
        for row, how in zip(got, ROUND.values(), strict=True):
            for pattern, result in zip(x.tolist(), row.tolist(), strict=True):
                value = fmt.value(pattern)
                if math.isnan(value):
                    want = top
                elif math.isinf(value):
                    want = int(high) if value > 0 else int(low)
                else:
                    want = max(int(low), min(int(high), how(Fraction(value))))
                assert result == want, (name, how, value)
        random = np.random.default_rng(9)
        values = np.concatenate([random.integers(low, high, 15, dtype=kind), np.array([0, 1, high, low], kind)])
        small = (values % 5000).astype(kind)
        values = np.concatenate([values, small])
        back = evaluate(
            compiled,
            [bits_of(fmt, f"__{name}2{fmt.word}_{m}(x)") for m in ROUND],
            values,
            out=np.uint16,
            header=fmt.header,
        )
        for row, mode in zip(back, ROUND, strict=True):
            assert row.tolist() == [fmt.rounded(Fraction(v), mode) for v in values.tolist()], (name, mode)


@FORMATS
def test_pairs_keep_their_lanes(compiled: Make, fmt: Format) -> None:
    """Low is x and comes first in memory; picking, swapping and lane-wise arithmetic act on the right lanes."""
    w, p = fmt.word, fmt.pair
    text = f"""{fmt.header}
    __global__ void k(const unsigned short* in, unsigned short* out, const float2* f, float2* g) {{
      const {fmt.type}2* pairs = reinterpret_cast<const {fmt.type}2*>(in);
      {fmt.type}2* to = reinterpret_cast<{fmt.type}2*>(out);
      auto a = pairs[0], b = pairs[1];
      to[0] = a; to[1] = __lowhigh2highlow(a); to[2] = __lows2{p}(a, b); to[3] = __highs2{p}(a, b);
      to[4] = __low2{p}(a); to[5] = __high2{p}(a);
      to[6] = make_{p}(__high2{w}(a), __low2{w}(b)); to[7] = {fmt.type}2(a.y, b.x);
      to[8] = __hadd2(a, b); to[9] = a + b; to[10] = __hneg2(a); to[11] = __habs2(__hneg2(a));
      to[12] = __float22{p}_rn(*f); to[13] = __floats2{p}_rn(f->x, f->y); to[14] = __float2{p}_rn(f->y);
      *g = __{p}2float2(a);
    }}"""
    bits = [fmt.rounded(Fraction(v)) for v in (1, 2, 3, 4)]
    x = np.array(bits, np.uint16)
    f, g, out = np.array([5.0, 6.0], np.float32), np.zeros(2, np.float32), np.zeros(30, np.uint16)
    compiled(text)(1, 1, x, out, f, g)
    one, two, three, four, five, six = (fmt.rounded(Fraction(v)) for v in range(1, 7))
    assert out.reshape(-1, 2).tolist() == [
        [one, two], [two, one], [one, three], [two, four], [one, one], [two, two], [two, three], [two, three],
        [four, six], [four, six], [one | 0x8000, two | 0x8000], [one, two], [five, six], [five, six], [six, six],
    ]  # fmt: skip
    assert g.tolist() == [1.0, 2.0]


@FORMATS
def test_math_functions_are_rounded_from_float(compiled: Make, fmt: Format) -> None:
    """h-functions are within an ulp of the exact value, and exact for roundings."""
    names = {
        "exp": math.exp, "exp2": lambda v: 2.0**v, "exp10": lambda v: 10.0**v, "log": math.log, "log2": math.log2,
        "log10": math.log10, "sqrt": math.sqrt, "rsqrt": lambda v: 1 / math.sqrt(v), "rcp": lambda v: 1 / v,
        "sin": math.sin, "cos": math.cos, "tanh": math.tanh, "floor": math.floor, "ceil": math.ceil,
        "trunc": math.trunc,
        "rint": round,
    }  # fmt: skip
    values = np.array([0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 3.25], np.float32)
    got = evaluate(
        compiled, [bits_of(fmt, f"h{n}({fmt.type}(x))") for n in names], values, out=np.uint16, header=fmt.header
    )
    for row, (name, function) in zip(got, names.items(), strict=True):
        for value, bits in zip(values.tolist(), row.tolist(), strict=True):
            assert abs(bits - fmt.rounded(Fraction(function(value)))) <= 1, (name, value)
    assert [fmt.value(b) for b in got[-1].tolist()] == [0, 0, 1, 1, 2, 2, 3]


@FORMATS
def test_shuffles_and_atomics(compiled: Make, fmt: Format) -> None:
    """Both types and their pairs travel through shuffles, and atomicAdd loses no thread's addend."""
    text = f"""{fmt.header}
    __global__ void k({fmt.type}* total, {fmt.type}2* pair, unsigned short* moved) {{
      {fmt.type} mine((float)threadIdx.x);
      {fmt.type}2 two(mine, {fmt.type}(1.0f));
      moved[threadIdx.x] = __{fmt.word}_as_ushort(__shfl_down_sync(0xffffffffu, mine, 1));
      moved[32 + threadIdx.x] = __{fmt.word}_as_ushort(__shfl_xor_sync(0xffffffffu, two, 3).x);
      atomicAdd(total, {fmt.type}(1.0f));
      atomicAdd(pair, {fmt.type}2({fmt.type}(1.0f), {fmt.type}(2.0f)));
    }}"""
    total, pair, moved = np.zeros(1, np.uint16), np.zeros(2, np.uint16), np.zeros(64, np.uint16)
    compiled(text)(1, 32, total, pair, moved)
    assert fmt.value(int(total[0])) == 32.0
    assert [fmt.value(int(b)) for b in pair] == [32.0, 64.0]
    assert [fmt.value(int(b)) for b in moved[:32]] == [*range(1, 32), 31]
    assert [fmt.value(int(b)) for b in moved[32:]] == [i ^ 3 for i in range(32)]


def test_complex_multiply_add(compiled: Make) -> None:
    """__hcmadd is a*b + c of complex numbers."""
    x, y, z = (np.array(v, np.float32) for v in ([1, 2], [3, 4], [5, 6]))
    text = """#include <cuda_fp16.h>
    __global__ void k(const float2* x, const float2* y, const float2* z, float2* out) {
      *out = __half22float2(__hcmadd(__float22half2_rn(*x), __float22half2_rn(*y), __float22half2_rn(*z)));
    }"""
    out = np.zeros(2, np.float32)
    compiled(text)(1, 1, x, y, z, out)
    assert complex(*out) == complex(1, 2) * complex(3, 4) + complex(5, 6)


ACCEPTED = [
    "h += f", "h = f", "h = 1.0", "h = 1", "h = n", "f = h", "h *= 2", "n = (int)h", "f = fmaxf(h, 0.f)", "f = expf(h)",
    "f = exp(h)", "h = -h", "h++", "--h", "h = b ? h : T(0.f)", "if (h) n = 1", "n = !h", "h = T(2) * h",
    "h = __hfma(h, h, 0.5f)",
    "p = p * p + p", "p = T2(h, h)", "p = {h, h}", "h = p.x", "n = h == h && h != h && h < h", "T x{f}; h = x",
    "h = T(n)",
]  # fmt: skip
REFUSED = [
    "h = h + 1.0f", "h = h + 1", "h = h * 2.0", "f = f * h", "n = h > 0", "n = h > 0.f", "h = b ? h : 0.f",
    "h = max(h, h)",
    "h = abs(h)", "p = T2(h)", "n = h.__x", "p = p * h", "h = __hadd(h, 1.0f)", "f += h", "constexpr T one(1.0f)",
]  # fmt: skip


def statement(fmt: Format, code: str) -> str:
    """A kernel whose line 4 is the statement."""
    return (
        f"{fmt.header}\n__global__ void k({fmt.type}* o, {fmt.type}2* o2, float f, int n, bool b) {{\n"
        f"  using T = {fmt.type}; using T2 = {fmt.type}2; T h = o[0]; T2 p = o2[0];\n  {code};\n"
        "  o[1] = h; o2[1] = p; o[2] = f; o[3] = n;\n}\n"
    )


@FORMATS
def test_implicit_conversions_are_those_of_cuda(compiled: Make, fmt: Format) -> None:
    """What NVRTC accepts of mixed arithmetic compiles here."""
    lines = " ".join(f"{{ {code}; }}" for code in ACCEPTED)
    compiled(statement(fmt, lines))


@FORMATS
def test_ambiguities_are_those_of_cuda(compiled: Make, fmt: Format) -> None:
    """What NVRTC finds ambiguous is refused here, each at its own line."""
    with pytest.raises(BuildError) as error:
        compiled(statement(fmt, "\n".join(f"{{ {code}; }}" for code in REFUSED)))
    lines = {finding.line for finding in error.value.findings}
    assert lines >= set(range(4, 4 + len(REFUSED))), [c for i, c in enumerate(REFUSED) if i + 4 not in lines]


def test_the_two_types_convert_only_explicitly(compiled: Make) -> None:
    """half(bfloat16) compiles, an implicit conversion does not."""
    text = "#include <cuda_bf16.h>\n__global__ void k(half* h, nv_bfloat16* b) {{ {}; }}"
    compiled(text.format("h[0] = half(b[0]); b[1] = nv_bfloat16(h[1])"))
    with pytest.raises(BuildError):
        compiled(text.format("half x = b[0]; h[0] = x"))


@FORMATS
@pytest.mark.parametrize(
    ("code", "access"),
    [
        ("a[i] += a[0]", "read"),
        ("a[0] = a[i] * a[1]", "read"),
        ("a[i] = 1.0f", "write"),
        ("o[0] = a[i]", "read"),
        ("a[0] = __hfma(a[0], a[i], a[1])", "read"),
        ("++a[i]", "read"),
        ("if (a[0] < a[i]) o[0] = 1", "read"),
        ("a[0] = __ldg(&a[i])", "read"),
    ],
)
def test_faults_in_operators_are_the_kernels(compiled: Make, fmt: Format, code: str, access: str) -> None:
    """An index out of bounds under an operator is reported at the kernel's line, not at the library's."""
    text = f"{fmt.header}\n__global__ void k({fmt.type}* a, float* o, int i) {{\n  {code};\n}}\n"
    kernel = compiled(text, check="full")
    assert kernel(1, 1, np.zeros(8, np.uint16), np.zeros(1, np.float32), np.int32(7), check="full") == ()
    reports = kernel(1, 1, np.zeros(8, np.uint16), np.zeros(1, np.float32), np.int32(8), check="full")
    found = {(r.kind, r.array, r.index, r.file, r.line) for r in reports}
    assert found == {("out of bounds", "a0", 8, "kernel.cu", 3)}
    assert access in {r.access for r in reports}
