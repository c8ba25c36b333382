"""The math API, intrinsics and conversions of the CPU backend, against NumPy, exact fractions and published values."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from cuplate.backend.cpu.build import BuildError
from cuplate.backend.cpu.compilers import HostCompiler
from tests.backend.cpu.evaluation import evaluate, ulps

Make = Callable[..., Any]

# Argument and value, the value rounded from 1,200 bits (mpmath 1.3).
SPECIAL: dict[str, dict[float, float]] = {
    "erfcx": {
        -5.0: 144009798674.66104,
        -0.1: 1.1236433541992095,
        0.3: 0.7345993345676551,
        3.0: 0.17900115118138996,
        24.9: 0.022639987776049506,
        25.1: 0.02245987581758139,
        100000.0: 5.6418958351954685e-06,
    },
    "erfinv": {
        -0.9: -1.1630871536766743,
        -0.3: -0.2724627147267543,
        1e-10: 8.862269254527581e-11,
        0.49999: 0.4769251504153166,
        0.99: 1.8213863677184494,
    },
    "erfcinv": {
        1e-100: 15.065574702592645,
        0.01: 1.8213863677184496,
        0.5: 0.4769362762044699,
        0.7: 0.2724627147267544,
        1.5: -0.4769362762044699,
    },
    "normcdf": {
        -37.0: 5.725571222524577e-300,
        -15.3: 3.82283156207345e-53,
        -1.0: 0.15865525393145705,
        0.4: 0.6554217416103242,
        5.0: 0.9999997133484281,
    },
    "normcdfinv": {
        1e-20: -9.262340089798407,
        0.2: -0.8416212335729142,
        0.45: -0.12566134685507402,
        0.75: 0.6744897501960817,
    },
    "cyl_bessel_i0": {
        0.1: 1.0025015629340956,
        10.0: 2815.7166284662544,
        29.0: 292520631785.69086,
        31.0: 2089962966491.9038,
        700.0: 1.5295933476718737e302,
    },
    "cyl_bessel_i1": {
        -1.0: -0.565159103992485,
        10.0: 2670.9883037012546,
        29.0: 287432108126.2548,
        31.0: 2055972795294.5647,
    },
    "j0": {0.1: 0.99750156206604, 5.0: -0.1775967713143383},
    "j1": {0.1: 0.049937526036242, 5.0: -0.32757913759146523},
    "y0": {0.1: -1.5342386513503667, 5.0: -0.30851762524903376},
    "y1": {0.1: -6.4589510947020266, 5.0: 0.14786314339122683},
    "tgamma": {0.5: 1.772453850905516, 5.5: 52.34277778455352, 20.0: 1.21645100408832e17, -1.5: 2.363271801207355},
    "lgamma": {0.5: 0.5723649429247001, 5.5: 3.9578139676187165, 100.0: 359.1342053695754, -1.5: 0.860047015376481},
    "exp10": {-3.3: 0.0005011872336272725, 0.1: 1.2589254117941673, 2.0: 100.0, 23.4: 2.5118864315095718e23},
    "rsqrt": {0.1: 3.162277660168379, 3.0: 0.5773502691896257, 1e30: 1e-15},
    "rcbrt": {-0.3: -1.4938015821857216, 2.0: 0.7937005259840998, 1e30: 1e-10},
    "sinpi": {0.1: 0.30901699437494745, -2.2: -0.5877852522924736, 0.5: 1.0},
    "cospi": {0.1: 0.9510565162951535, -2.2: 0.8090169943749471, 1.0: -1.0},
    "erf": {-0.1: -0.1124629160182849, 2.0: 0.9953222650189527},
    "erfc": {-3.0: 1.9999779095030015, 2.0: 0.004677734981047266},
}

ELEMENTARY = ["exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "cbrt", "sin", "cos", "tan"]
ELEMENTARY += ["asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"]
NUMPY_NAME = {
    "asin": "arcsin",
    "acos": "arccos",
    "atan": "arctan",
    "asinh": "arcsinh",
    "acosh": "arccosh",
    "atanh": "arctanh",
}

EDGE_TEXT = (
    "0 -0 1 -1 .5 1.5 2.5 -2.5 1e-45 -1e-45 1.1754944e-38 3.4028235e38 -3.4028235e38 inf -inf nan 2147483647 "
    "2147483648 -2147483648 4294967296 9.223372e18 1.8446744e19 1e20 -.7 .7 16777217 .3333333"
)
EDGES32 = np.array(
    [float(v) for v in EDGE_TEXT.split()],
    np.float32,
)
EDGES64 = np.concatenate(
    [EDGES32.astype(np.float64), np.array([5e-324, 1.7976931348623157e308, 2147483647.5, 9007199254740993.0, 0.1])]
)


def test_special_functions_agree_with_published_values(compiled: Make) -> None:
    """Every function that libm lacks is within 4 ulps in double precision."""
    for name, rows in SPECIAL.items():
        x = np.array(list(rows), np.float64)
        got = evaluate(compiled, [f"{name}(x)"], x, out=np.float64)[0]
        assert ulps(got, np.array(list(rows.values()))).max() <= 4, name


def test_single_precision_is_double_precision_rounded(compiled: Make) -> None:
    """name(float), namef(float) and the rounded double function agree within an ulp and a half."""
    names = [n for n in SPECIAL if n not in ("tgamma", "lgamma")]
    x = np.array([0.1, 0.3, 0.45, 0.75, 0.99], np.float32)
    single = evaluate(compiled, [f"{n}f(x)" for n in names], x, out=np.float32)
    overload = evaluate(compiled, [f"{n}(x)" for n in names], x, out=np.float32)
    double = evaluate(compiled, [f"{n}((double)x)" for n in names], x, out=np.float64)
    assert np.array_equal(single, overload)
    assert ulps(single, double).max() <= 1.5


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_elementary_functions_agree_with_numpy(compiled: Make, dtype: Any) -> None:
    """The libm functions are within 2 ulps of NumPy's extended precision, edge values included."""
    random = np.random.default_rng(1)
    edges = EDGES32 if dtype is np.float32 else EDGES64
    x = np.concatenate([edges, random.normal(size=200), random.uniform(-1, 1, 200), random.normal(size=100) * 40])
    x = x.astype(dtype)
    got = evaluate(compiled, [f"{n}(x)" for n in ELEMENTARY], x, out=dtype)
    with np.errstate(all="ignore"):
        for row, name in zip(got, ELEMENTARY, strict=True):
            want = getattr(np, NUMPY_NAME.get(name, name))(x.astype(np.longdouble))
            # NumPy's extended functions reduce huge angles less well than libm does.
            sane = np.abs(x) < 1e6 if name in ("sin", "cos", "tan") else np.ones(len(x), bool)
            assert ulps(row[sane], want[sane]).max() <= 2, name


def test_rounding_functions_are_exact(compiled: Make) -> None:
    """floor, ceil, trunc, rint, nearbyint and round give IEEE results; round takes halves away from zero."""
    x = np.concatenate([EDGES64, np.array([0.49999999999999994, -0.5, 4503599627370497.5])])
    names = ["floor", "ceil", "trunc", "rint", "nearbyint", "round"]
    got = evaluate(compiled, [f"{n}(x)" for n in names], x, out=np.float64)
    with np.errstate(all="ignore"):
        away = np.where(np.abs(x) < 2.0**52, np.copysign(np.floor(np.abs(x)), x), x)
        away = np.where(np.abs(x) - np.floor(np.abs(x)) >= 0.5, away + np.copysign(1, x), away)
    want = np.stack([np.floor(x), np.ceil(x), np.trunc(x), np.rint(x), np.rint(x), np.copysign(away, x)])
    assert np.array_equal(np.signbit(got[:, ~np.isnan(x)]), np.signbit(want[:, ~np.isnan(x)]))
    assert np.array_equal(got, want, equal_nan=True)


def test_min_and_max_prefer_numbers_and_order_zeros(compiled: Make) -> None:
    """A number wins over NaN on either side, NaN stays only against NaN, and -0 is less than +0."""
    for dtype, suffix, bits in ((np.float32, "f", np.uint32), (np.float64, "", np.uint64)):
        values = np.array([np.nan, 0.0, -0.0, 1.0, -1.0, np.inf, -np.inf], dtype)
        x, y = (a.ravel() for a in np.meshgrid(values, values))
        names = [f"fmin{suffix}(x, y)", "min(x, y)", "fmin(x, y)", f"fmax{suffix}(x, y)", "max(x, y)", "fmax(x, y)"]
        got = evaluate(compiled, names, x, y, out=dtype)
        low = np.where((x == 0) & (y == 0) & (np.signbit(x) | np.signbit(y)), dtype(-0.0), np.fmin(x, y))
        high = np.where((x == 0) & (y == 0) & ~(np.signbit(x) & np.signbit(y)), dtype(0.0), np.fmax(x, y))
        for row, want in zip(got, [low] * 3 + [high] * 3, strict=True):
            numbers = ~np.isnan(want)
            assert np.array_equal(row[numbers].view(bits), want[numbers].view(bits))
            assert np.isnan(row[~numbers]).all()


def test_integer_min_max_take_mixed_signs_as_unsigned(compiled: Make) -> None:
    """min(int, unsigned) compares as unsigned, as CUDA's overloads do."""
    x, y = np.array([-1, 5], np.int32), np.array([3, 7], np.uint32)
    got = evaluate(compiled, ["min(x, y)", "max(x, y)", "min(y, x)", "umax(x, y)"], x, y, out=np.uint32)
    assert got.tolist() == [[3, 5], [0xFFFFFFFF, 7], [3, 5], [0xFFFFFFFF, 7]]


def test_bit_intrinsics(compiled: Make) -> None:
    """__clz(0) is 32, __ffs(0) is 0, and counting, reversing and permuting agree with Python's integers."""
    x = np.array([0, 1, 2, 0x80000000, 0xFFFFFFFF, 0x12345678, 0x00F0], np.uint32)
    got = evaluate(compiled, ["__popc(x)", "__clz(x)", "__ffs(x)", "__brev(x)"], x, out=np.uint32)
    want = [
        [bin(v).count("1") for v in x.tolist()],
        [32 - v.bit_length() for v in x.tolist()],
        [(v & -v).bit_length() for v in x.tolist()],
        [int(f"{v:032b}"[::-1], 2) for v in x.tolist()],
    ]
    assert got.tolist() == want
    wide = np.array([0, 1, 1 << 63, (1 << 64) - 1, 0x123456789ABCDEF0], np.uint64)
    got = evaluate(compiled, ["__popcll(x)", "__clzll(x)", "__ffsll(x)", "__brevll(x)"], wide, out=np.uint64)
    assert got.tolist() == [
        [bin(v).count("1") for v in wide.tolist()],
        [64 - v.bit_length() for v in wide.tolist()],
        [(v & -v).bit_length() for v in wide.tolist()],
        [int(f"{v:064b}"[::-1], 2) for v in wide.tolist()],
    ]


def test_byte_perm_selects_and_replicates_signs(compiled: Make) -> None:
    """The low three bits of a selector nibble choose a byte, the fourth spreads its sign."""
    x = np.array([0x83020100] * 4, np.uint32)
    y = np.array([0x87060504] * 4, np.uint32)
    z = np.array([0x3210, 0x7654, 0x0000, 0xFB80], np.uint32)
    got = evaluate(compiled, ["__byte_perm(x, y, z)"], x, y, z, out=np.uint32)[0]
    assert [hex(v) for v in got.tolist()] == ["0x83020100", "0x87060504", "0x0", "0xffff0000"]


def test_funnel_shifts_wrap_or_clamp(compiled: Make) -> None:
    """_l and _r take the shift modulo 32, _lc and _rc at most 32."""
    shift = np.array([0, 1, 31, 32, 33, 100], np.uint32)
    x, y = np.full(6, 0x89ABCDEF, np.uint32), np.full(6, 0x12345678, np.uint32)
    names = ["__funnelshift_l", "__funnelshift_r", "__funnelshift_lc", "__funnelshift_rc"]
    got = evaluate(compiled, [f"{n}(x, y, z)" for n in names], x, y, shift, out=np.uint32)
    both = (0x12345678 << 32) | 0x89ABCDEF
    for i, s in enumerate(shift.tolist()):
        wrapped, clamped = s % 32, min(s, 32)
        assert got[:, i].tolist() == [
            (both << wrapped >> 32) & 0xFFFFFFFF,
            (both >> wrapped) & 0xFFFFFFFF,
            (both << clamped >> 32) & 0xFFFFFFFF,
            (both >> clamped) & 0xFFFFFFFF,
        ]


def test_multiplications_and_averages(compiled: Make) -> None:
    """High words, 24-bit products, averages and sums of absolute differences agree with Python's integers."""
    edges = [0, 1, -1, 2**31 - 1, -(2**31), 12345678, -87654321]
    x, y = (np.array(a, np.int32).ravel() for a in np.meshgrid(edges, edges))
    got = evaluate(
        compiled,
        ["__mulhi(x, y)", "__mul24(x, y)", "__hadd(x, y)", "__rhadd(x, y)", "(int)__sad(x, y, 7u)"],
        x, y, out=np.int32,
    )  # fmt: skip

    def signed(v: int, bits: int = 32) -> int:
        v &= (1 << bits) - 1
        return v - (1 << bits) if v >> (bits - 1) else v

    for i, (a, b) in enumerate(zip(x.tolist(), y.tolist(), strict=True)):
        assert got[:, i].tolist() == [
            a * b >> 32,
            signed(signed(a, 24) * signed(b, 24)),
            (a + b) >> 1,
            (a + b + 1) >> 1,
            signed(abs(a - b) + 7),
        ]
    wide = [0, 1, -1, 2**63 - 1, -(2**63), 1234567890123456789]
    p, q = (np.array(a, np.int64).ravel() for a in np.meshgrid(wide, wide))
    high = evaluate(compiled, ["__mul64hi(x, y)", "(long long)__umul64hi(x, y)"], p, q, out=np.int64)
    for i, (a, b) in enumerate(zip(p.tolist(), q.tolist(), strict=True)):
        assert high[:, i].tolist() == [a * b >> 64, signed((a % 2**64) * (b % 2**64) >> 64, 64)]


def test_dot_products_of_packed_integers(compiled: Make) -> None:
    """__dp4a and __dp2a multiply lanes with the signs of their overload and wrap."""
    random = np.random.default_rng(2)
    x, y = (random.integers(0, 2**32, 50, dtype=np.uint32) for _ in range(2))
    unsigned = evaluate(
        compiled, ["__dp4a(x, y, 5u)", "__dp2a_lo(x, y, 5u)", "__dp2a_hi(x, y, 5u)"], x, y, out=np.uint32
    )
    signed = evaluate(
        compiled, [f"{n}((int)x, (int)y, 5)" for n in ("__dp4a", "__dp2a_lo", "__dp2a_hi")], x, y, out=np.int32
    )
    for row, (byte, word), kind in (
        (unsigned, (np.uint8, np.uint16), np.uint32),
        (signed, (np.int8, np.int16), np.int32),
    ):
        a, b = x.view(byte).reshape(-1, 4).astype(np.int64), y.view(byte).reshape(-1, 4).astype(np.int64)
        w = x.view(word).reshape(-1, 2).astype(np.int64)
        want = [(a * b).sum(1) + 5, (w * b[:, :2]).sum(1) + 5, (w * b[:, 2:]).sum(1) + 5]
        assert np.array_equal(row, np.stack(want).astype(kind))


def test_fns_counts_set_bits_from_a_base(compiled: Make) -> None:
    """The n-th set bit upwards or downwards, all ones where there is none."""
    cases = [
        (0b10110, 0, 1, 1),
        (0b10110, 0, 3, 4),
        (0b10110, 4, -2, 2),
        (0b10110, 0, 4, 2**32 - 1),
        (0b10110, 2, 0, 2),
    ]
    mask, base, offset, want = (np.array(c, np.int64) for c in zip(*cases, strict=True))
    got = evaluate(
        compiled,
        ["__fns(x, y, z)"],
        mask.astype(np.uint32),
        base.astype(np.uint32),
        offset.astype(np.int32),
        out=np.uint32,
    )
    assert got[0].tolist() == want.tolist()


def clamp(value: int, bits: int, signed: bool) -> int:
    """The nearest value that an integer of so many bits can have."""
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    return max(low, min(high, value))


ROUND = {"rn": round, "rz": math.trunc, "rd": math.floor, "ru": math.ceil}


@pytest.mark.parametrize(("source", "edges"), [("float", EDGES32), ("double", EDGES64)])
def test_conversions_to_integers_saturate(compiled: Make, source: str, edges: np.ndarray) -> None:
    """Out of range gives the nearest end; NaN gives 0 from float to 32 bits, else the top bit alone."""
    for target, bits, signed in (("int", 32, True), ("uint", 32, False), ("ll", 64, True), ("ull", 64, False)):
        kind = np.dtype(f"{'' if signed else 'u'}int{bits}")
        got = evaluate(compiled, [f"__{source}2{target}_{m}(x)" for m in ROUND], edges, out=kind)
        not_a_number = 0 if source == "float" and bits == 32 else (-(1 << (bits - 1)) if signed else 1 << (bits - 1))
        for row, how in zip(got, ROUND.values(), strict=True):
            for value, result in zip(edges.tolist(), row.tolist(), strict=True):
                if math.isnan(value):
                    want = not_a_number
                elif math.isinf(value):
                    want = clamp(1 << 100 if value > 0 else -(1 << 100), bits, signed)
                else:
                    want = clamp(how(Fraction(value)), bits, signed)
                assert result == want, (source, target, how, value)


def directed(exact: Fraction, dtype: Any, mode: str) -> Any:
    """A fraction rounded once; overflow as IEEE 754 says for the direction."""
    info = np.finfo(dtype)
    if exact == 0:
        return None
    largest = Fraction(float(info.max))
    size = abs(exact)
    low_exponent = int(np.frexp(info.smallest_normal)[1]) - 1
    exponent = max(size.numerator.bit_length() - size.denominator.bit_length(), low_exponent)
    if Fraction(2) ** exponent > size and exponent > low_exponent:
        exponent -= 1
    unit = Fraction(2) ** (exponent - info.nmant)
    steps = ROUND[mode](exact / unit)
    value = steps * unit
    if abs(value) > largest:
        outward = mode == "rn" or (mode == "ru" and exact > 0) or (mode == "rd" and exact < 0)
        return dtype(math.copysign(math.inf if outward else float(largest), 1 if exact > 0 else -1))
    return dtype(float(value))


@pytest.mark.parametrize(("dtype", "prefix", "fma"), [(np.float32, "f", "__fmaf"), (np.float64, "d", "__fma")])
def test_directed_arithmetic_is_exact(compiled: Make, dtype: Any, prefix: str, fma: str) -> None:
    """Sum, difference, product, quotient and fused multiply-add in four directions, overflow and underflow too."""
    random = np.random.default_rng(3)
    info = np.finfo(dtype)
    edges = np.array([info.max, -info.max, info.smallest_subnormal, info.smallest_normal, 1.0, -1.0, 3.0, 1e-3], dtype)
    pairs = np.array(np.meshgrid(edges, edges)).reshape(2, -1)
    scale = np.exp2(random.integers(-20, 20, (2, 100)).astype(dtype))
    x, y = np.concatenate([pairs, (random.normal(size=(2, 100)) * scale).astype(dtype)], axis=1)
    z = np.roll(x, 7).astype(dtype)
    operations: list[tuple[str, Callable[[Fraction, Fraction, Fraction], Fraction]]] = [
        (f"__{prefix}add_{{}}(x, y)", lambda a, b, c: a + b),
        (f"__{prefix}sub_{{}}(x, y)", lambda a, b, c: a - b),
        (f"__{prefix}mul_{{}}(x, y)", lambda a, b, c: a * b),
        (f"__{prefix}div_{{}}(x, y)", lambda a, b, c: a / b),
        (f"__{prefix}rcp_{{}}(x)", lambda a, b, c: 1 / a),
        (f"{fma}_{{}}(x, y, z)", lambda a, b, c: a * b + c),
    ]
    expressions = [e.format(m) for e, _ in operations for m in ROUND]
    got = evaluate(compiled, expressions, x, y, z, out=dtype)
    row = 0
    for _, exact in operations:
        for mode in ROUND:
            for i in range(len(x)):
                want = directed(exact(Fraction(float(x[i])), Fraction(float(y[i])), Fraction(float(z[i]))), dtype, mode)
                if want is not None:
                    assert got[row, i] == want, (expressions[row], x[i], y[i], z[i])
            row += 1


def test_the_rounding_mode_does_not_leak(compiled: Make) -> None:
    """After a directed operation, ordinary arithmetic rounds to nearest again, on the device and in Python."""
    x = np.array([0.1], np.float64)
    got = evaluate(compiled, ["__dadd_ru(x, 0.2)", "x + 0.2"], x, out=np.float64)
    assert got[1, 0] == 0.1 + 0.2 == 0.30000000000000004
    assert np.float64(0.1) + np.float64(0.2) == 0.30000000000000004


def test_conversions_from_integers_round_as_asked(compiled: Make) -> None:
    """Integers with more digits than a float go to the neighbour that the suffix names."""
    x = np.array([0, 1, -1, 2**24 + 1, -(2**24) - 1, 2**24 + 3, 2**31 - 1, -(2**31)], np.int32)
    got = evaluate(compiled, [f"__int2float_{m}(x)" for m in ROUND], x, out=np.float32)
    wide = np.array([0, 2**53 + 1, -(2**53) - 1, 2**63 - 1, 12345678901234567], np.int64)
    double = evaluate(compiled, [f"__ll2double_{m}(x)" for m in ROUND], wide, out=np.float64)
    for rows, values, dtype in ((got, x, np.float32), (double, wide, np.float64)):
        for row, mode in zip(rows, ROUND, strict=True):
            for result, value in zip(row, values.tolist(), strict=True):
                assert result == (directed(Fraction(value), dtype, mode) or 0.0), (mode, value)


def test_products_marked_rn_are_not_fused(compiled: Make) -> None:
    """__fmul_rn followed by an addition keeps its own rounding, where a plain product is fused."""
    x = np.array([1 + 2**-12], np.float32)
    got = evaluate(compiled, ["__fmul_rn(x, x) - 1.0f", "__fmaf_rn(x, x, -1.0f)"], x, out=np.float32)
    assert got[0, 0] == np.float32(np.float32(x[0] * x[0]) - 1)
    assert got[1, 0] == np.float32(float(x[0]) ** 2 - 1) != got[0, 0]


def test_type_punning_keeps_bits(compiled: Make) -> None:
    """Reading a float's bits as an integer and back gives every bit, of NaN and of -0 too."""
    x = np.array([0x7FC00001, 0x80000000, 0x3F800000, 1], np.uint32)
    got = evaluate(
        compiled, ["__float_as_uint(__uint_as_float(x))", "__float_as_int(__int_as_float(x))"], x, out=np.uint32
    )
    assert np.array_equal(got, np.stack([x, x]))
    d = np.array([1.5, -2.25, 1e300], np.float64)
    got64 = evaluate(compiled, ["__hiloint2double(__double2hiint(x), __double2loint(x))"], d, out=np.float64)
    assert np.array_equal(got64[0], d)


def lanes(x: np.ndarray, dtype: Any) -> np.ndarray:
    """The words as lanes of a narrower type, widened."""
    return x.view(dtype).astype(np.int64)


@pytest.mark.parametrize(("count", "signed", "unsigned"), [(2, np.int16, np.uint16), (4, np.int8, np.uint8)])
def test_video_intrinsics(compiled: Make, count: int, signed: Any, unsigned: Any) -> None:
    """Each SIMD-in-a-word function does to every lane what NumPy does to an array of them."""
    random = np.random.default_rng(4)
    x, y = (random.integers(0, 2**32, 200, dtype=np.uint32) for _ in range(2))
    x[:3], y[:3] = [0x80808080, 0x80008000, 0x7FFF7FFF], [0x80808080, 0x80008000, 0x7FFF7FFF]
    s, u = np.iinfo(signed), np.iinfo(unsigned)
    a, b, p, q = lanes(x, signed), lanes(y, signed), lanes(x, unsigned), lanes(y, unsigned)
    want = {
        "vadd": p + q, "vsub": p - q, "vaddss": np.clip(a + b, s.min, s.max), "vaddus": np.clip(p + q, 0, u.max),
        "vsubss": np.clip(a - b, s.min, s.max), "vsubus": np.clip(p - q, 0, u.max), "vabsdiffs": np.abs(a - b),
        "vabsdiffu": np.abs(p - q), "vavgu": (p + q + 1) >> 1, "vhaddu": (p + q) >> 1, "vmaxs": np.maximum(a, b),
        "vmaxu": np.maximum(p, q), "vmins": np.minimum(a, b), "vminu": np.minimum(p, q),
        "vcmpeq": -(p == q).astype(int),
        "vcmpgts": -(a > b).astype(int), "vcmpleu": -(p <= q).astype(int), "vsetlts": (a < b).astype(int),
        "vsetne": (p != q).astype(int),
    }  # fmt: skip
    got = evaluate(compiled, [f"__{n}{count}(x, y)" for n in want], x, y, out=np.uint32)
    for row, (name, value) in zip(got, want.items(), strict=True):
        assert np.array_equal(row, value.astype(unsigned).view(np.uint32)), name
    single = {
        "vabs": np.abs(a),
        "vabsss": np.clip(np.abs(a), s.min, s.max),
        "vneg": -a,
        "vnegss": np.clip(-a, s.min, s.max),
    }
    got = evaluate(compiled, [f"__{n}{count}(x)" for n in single], x, out=np.uint32)
    for row, (name, value) in zip(got, single.items(), strict=True):
        assert np.array_equal(row, value.astype(unsigned).view(np.uint32)), name
    sums = evaluate(compiled, [f"__vsads{count}(x, y)", f"__vsadu{count}(x, y)"], x, y, out=np.uint32)
    assert np.array_equal(sums[0], np.abs(a - b).reshape(-1, count).sum(1))
    assert np.array_equal(sums[1], np.abs(p - q).reshape(-1, count).sum(1))


def test_results_through_pointers(compiled: Make) -> None:
    """frexp, modf, remquo, sincos and sincospi write what Python's math gives."""
    text = """
    __global__ void k(const double* x, double* out, int n) {
      for (int i = 0; i < n; ++i) {
        int e, q; double whole, s, c, sp, cp; float fs, fc;
        double* row = out + 12 * i;
        row[0] = frexp(x[i], &e); row[1] = e;
        row[2] = modf(x[i], &whole); row[3] = whole;
        row[4] = remquo(x[i], 0.75, &q); row[5] = q & 7;
        sincos(x[i], &s, &c); row[6] = s; row[7] = c;
        sincospi(x[i], &sp, &cp); row[8] = sp; row[9] = cp;
        sincosf((float)x[i], &fs, &fc); row[10] = fs; row[11] = fc;
      }
    }"""
    x = np.array([0.0, 1.0, -2.75, 3.5, 1e10 + 0.25, 5e-324])
    out = np.zeros((len(x), 12))
    compiled(text)(1, 1, x, out, np.int32(len(x)))
    for value, row in zip(x.tolist(), out, strict=True):
        fraction, exponent = math.frexp(value)
        assert row[:2].tolist() == [fraction, exponent]
        assert row[2:4].tolist() == list(math.modf(value))
        assert row[4] == math.remainder(value, 0.75)
        assert int(row[5]) & 7 == abs(round(Fraction(value) / Fraction(3, 4))) & 7 or value < 0
        assert row[6:8] == pytest.approx([math.sin(value), math.cos(value)], rel=1e-15, abs=0)
        turn = math.fmod(value, 2.0)
        assert row[8:10] == pytest.approx([math.sin(math.pi * turn), math.cos(math.pi * turn)], abs=1e-9)


def test_cached_loads_and_stores_move_values(compiled: Make) -> None:
    """Every cache hint reads and writes the plain value, of scalars and of vectors."""
    text = """
    __global__ void k(const float4* a, float4* b, const int* i, int* j) {
      __stcs(&b[0], __ldg(&a[0])); __stcg(&b[1], __ldcg(&a[1]));
      __stwb(&b[2], __ldcs(&a[2])); __stwt(&b[3], __ldlu(&a[3]));
      __stwb(j, __ldcv(i) + __ldca(i + 1));
    }"""
    a, b = np.arange(16, dtype=np.float32), np.zeros(16, np.float32)
    i, j = np.array([40, 2], np.int32), np.zeros(1, np.int32)
    compiled(text)(1, 1, a, b, i, j)
    assert np.array_equal(a, b)
    assert j[0] == 42


UNDEFINED = [
    "sqrt(2)",
    "exp(n)",
    "max(1, 1LL)",
    "max(1.0f, 1)",
    "abs(1u)",
    "isnan(1)",
    "__ldg((const bool*)0)",
    "std::sqrt(2.0)",
    "INFINITY",
    "INT_MAX",
    "uint32_t(1)",
    "tanpi(1.0f)",
    "memcmp(0, 0, 1)",
]


@pytest.mark.parametrize("call", UNDEFINED)
def test_what_nvrtc_finds_ambiguous_or_undefined_is_refused(compiled: Make, call: str) -> None:
    """The overload sets are NVRTC's: what it refuses does not compile here."""
    with pytest.raises(BuildError):
        compiled(f"__global__ void k(double* out, int n) {{ out[0] = {call}; }}")


@pytest.mark.parametrize("call", ["pow(1.0, 2.0f)", "fma(1.0f, 1.0, 1.0f)", "fmax(1.0f, n * 1.0)"])
def test_mixed_precision_is_ambiguous(compiled: Make, compiler: HostCompiler, call: str) -> None:
    """A call with float and double arguments is refused by clang; g++ only warns and takes the smaller conversion."""
    if compiler.family == "gcc":
        pytest.skip("g++ resolves what ISO C++ calls ambiguous, with a warning")
    with pytest.raises(BuildError):
        compiled(f"__global__ void k(double* out, int n) {{ out[0] = {call}; }}")


@pytest.mark.parametrize(
    ("call", "said"), [("malloc(4)", "no device heap"), ("(long long)__isShared(out)", "address spaces")]
)
def test_what_a_cpu_cannot_do_is_said_at_the_kernels_line(compiled: Make, call: str, said: str) -> None:
    """A refused function names the reason and the line that calls it."""
    with pytest.raises(BuildError) as error:
        compiled(f"__global__ void k(long long* out) {{\n  out[0] = 1;\n  out[1] = (long long){call};\n}}")
    assert any(said in f.message and f.line == 3 for f in error.value.findings), error.value.log
