"""Mathematical functions and fast intrinsics."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Generic, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Float64, Int32

from cuplate import Array, Inline, Options, i32, specialize
from tests.corpus.case import Case, normal, relative, ulps, uniform

LIBRARIES = "the device library of CUDA against the C library of the host: each within a few ulps of the true value"
APPROXIMATE = "an approximation by the GPU's own unit; the CPU gives the accurate value"


def sine_of_turns(x: np.ndarray) -> np.ndarray:
    """The sine of pi times x, for x from -1 to 1; exact where x is near -1 and 1."""
    return np.sin(np.pi * np.where(abs(x) > 0.5, np.copysign(1, x) - x, x))


# Functions of one argument, and what they are in NumPy or Python. Arguments lie between 0.1 and 3.
UNARY = {
    "exp": np.exp, "exp2": np.exp2, "exp10": lambda x: 10.0**x, "expm1": np.expm1, "log": np.log, "log2": np.log2,
    "log10": np.log10, "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "tan": np.tan, "asinh": np.arcsinh,
    "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "cbrt": np.cbrt, "rsqrt": lambda x: x**-0.5,
    "erf": np.vectorize(math.erf), "erfc": np.vectorize(math.erfc), "tgamma": np.vectorize(math.gamma),
    "rcbrt": lambda x: 1 / np.cbrt(x), "sinpi": lambda x: sine_of_turns(x - 2 * np.rint(x / 2)),
    "cospi": lambda x: sine_of_turns(0.5 - abs(x - 2 * np.rint(x / 2))),
    "normcdf": np.vectorize(lambda x: 0.5 * math.erfc(-x / math.sqrt(2))),
}  # fmt: skip
# Of an argument between -1 and 1.
INVERSE = {"asin": np.arcsin, "acos": np.arccos, "atanh": np.arctanh}
BINARY = {"pow": np.power, "atan2": np.arctan2, "hypot": np.hypot}


@specialize(
    Inline("""
{% set end = "f" if x.dtype == "float32" else "" %}
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N) return;
    using real = {{ x.ctype }};
    {% for name in unary %}
    out[{{ loop.index0 }} * N + i] = {{ name }}{{ end }}(x[i]);
    {% endfor %}
    real* more = out + {{ unary | length }} * N + i;
    {% for name in inverse %}
    more[{{ loop.index0 }} * N] = {{ name }}{{ end }}(x[i] / 3 - (real)0.01);
    {% endfor %}
    more += {{ inverse | length }} * N;
    {% for name in binary %}
    more[{{ loop.index0 }} * N] = {{ name }}{{ end }}(x[i], y[i]);
    {% endfor %}
    more += {{ binary | length }} * N;
    real s, c;
    sincos{{ end }}(y[i], &s, &c);
    more[0] = s + 2;
    more[N] = c + 2;
    more[2 * N] = lgamma{{ end }}(x[i] + 3);
    more[3 * N] = acosh{{ end }}(x[i] + 1);
    more[4 * N] = norm3d{{ end }}(x[i], y[i], (real)1);
}
"""),
    tiles={"N": 64},
    block=64,
)
def functions(
    x: Float[Array, " N"],
    y: Float[Array, " N"],
    *,
    unary: tuple[str, ...] = tuple(UNARY),
    inverse: tuple[str, ...] = tuple(INVERSE),
    binary: tuple[str, ...] = tuple(BINARY),
) -> Float[Array, "36 N"]:
    """The functions of the mathematical library, in single or double precision."""
    third = x / 3 - (np.float64(np.float32(0.01)) if x.dtype == "float32" else 0.01)
    rows = [UNARY[name](x) for name in unary]
    rows += [INVERSE[name](third) for name in inverse]
    rows += [BINARY[name](x, y) for name in binary]
    rows += [np.sin(y) + 2, np.cos(y) + 2, np.vectorize(math.lgamma)(x + 3), np.arccosh(x + 1)]
    return np.array([*rows, np.sqrt(x * x + y * y + 1)])


class Defined(NamedTuple, Generic[Array]):
    """Results that are defined to the bit."""

    floats: Float32[Array, "22 N"]
    words: Int32[Array, "8 N"]


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N) return;
    const float a = x[i], b = y[i];
    int exponent;
    float whole;
    const float mantissa = frexpf(a, &exponent), part = modff(a, &whole);
    const float results[] = {
        sqrtf(fabsf(a)), a / b, 1.0f / a, fmaf(a, b, 1.5f), floorf(a), ceilf(a), truncf(a), rintf(a), roundf(a),
        nearbyintf(a), fmodf(a, b), remainderf(a, b), copysignf(a, b), fmaxf(a, b), fminf(a, b), fdimf(a, b),
        ldexpf(a, 5), scalbnf(a, -3), nextafterf(a, b), mantissa, part, whole,
    };
    for (int k = 0; k < 22; ++k) floats[k * N + i] = results[k];
    words[i] = exponent;
    words[N + i] = ilogbf(a);
    words[2 * N + i] = (int)lrintf(a);
    words[3 * N + i] = (int)llroundf(a);
    words[4 * N + i] = isnan(a) + 2 * isinf(a / 0.0f) + 4 * isfinite(b) + 8 * (signbit(a) != 0);
    words[5 * N + i] = __saturatef(a) == fminf(fmaxf(a, 0.0f), 1.0f);
    words[6 * N + i] = (int)logbf(a);
    words[7 * N + i] = abs((int)a) + (fabs(a) > 1) + (max(a, b) == fmaxf(a, b)) + (min(a, 0.5f) <= 0.5f);
}
"""),
    tiles={"N": 64},
    block=64,
)
def exact_functions(x: Float32[Array, " N"], y: Float32[Array, " N"]) -> Defined[Array]:
    """Roots, quotients, roundings and remainders."""
    away = np.copysign(np.floor(abs(x) + 0.5), x)
    remainder = np.vectorize(math.remainder)(x, y)
    mantissa, exponent = np.frexp(x)
    part, whole = np.modf(x)
    after = np.nextafter(x.astype(np.float32), y.astype(np.float32))
    floats = [
        np.sqrt(abs(x)), x / y, 1 / x, x * y + 1.5, np.floor(x), np.ceil(x), np.trunc(x), np.rint(x), away,
        np.rint(x), np.fmod(x, y), remainder, np.copysign(x, y), np.maximum(x, y), np.minimum(x, y),
        np.maximum(x - y, 0), 32 * x, x / 8, after, mantissa, part, whole,
    ]  # fmt: skip
    words = [
        exponent, exponent - 1, np.rint(x), away, 2 + 4 + 8 * (x < 0), np.ones(len(x)), exponent - 1,
        abs(np.trunc(x)) + (abs(x) > 1) + 2,
    ]  # fmt: skip
    return Defined(np.array(floats), np.array(words).astype(np.int32))


class Rounded(NamedTuple, Generic[Array]):
    """In single and double precision."""

    single: Float32[Array, "9 N"]
    double_: Float64[Array, "7 N"]


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N) return;
    const float a = x[i], b = y[i];
    single[i] = __fadd_rn(a, b);
    single[N + i] = __fsub_rn(a, b);
    single[2 * N + i] = __fadd_rn(__fmul_rn(a, b), a);  // rounded twice: never fused
    single[3 * N + i] = __fmaf_rn(a, b, a);
    single[4 * N + i] = __fdiv_rn(a, b);
    single[5 * N + i] = __frcp_rn(a);
    single[6 * N + i] = __fsqrt_rn(fabsf(a));
    single[7 * N + i] = __saturatef(a);
    single[8 * N + i] = a * b + a;
    const double c = 1.1 * a, d = 1.3 * b;
    double_[i] = __dadd_rn(c, d);
    double_[N + i] = __dsub_rn(c, d);
    double_[2 * N + i] = __dadd_rn(__dmul_rn(c, d), c);
    double_[3 * N + i] = __fma_rn(c, d, c);
    double_[4 * N + i] = __ddiv_rn(c, d);
    double_[5 * N + i] = __dsqrt_rn(fabs(c));
    double_[6 * N + i] = __drcp_rn(d);
}
"""),
    tiles={"N": 64},
    block=64,
)
def rounded(x: Float32[Array, " N"], y: Float32[Array, " N"]) -> Rounded[Array]:
    """Arithmetic that rounds to nearest, fused or kept apart as the source says."""
    product = (x * y).astype(np.float32).astype(np.float64)
    single = [x + y, x - y, product + x, x * y + x, x / y, 1 / x, np.sqrt(abs(x)), np.clip(x, 0, 1), x * y + x]
    c, d = 1.1 * x, 1.3 * y
    fused = np.array([float(fma_exact(p, q, p)) for p, q in zip(c, d, strict=True)])
    return Rounded(np.array(single), np.array([c + d, c - d, c * d + c, fused, c / d, np.sqrt(abs(c)), 1 / d]))


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N) return;
    float held[24], sum = 0, chain = 1;
    for (int d = 0; d < 24; ++d) held[d] = x[i * 24 + d];
    for (int d = 0; d < 24; ++d) sum += held[d] * y[d];  // a compiler may unroll, and must not add products apart
    for (int d = 0; d < length; ++d) chain = chain * x[i * 24 + d] + y[d];
    out[3 * i] = sum;
    out[3 * i + 1] = chain;
    for (int d = i % 2; d < length; d += 7) out[3 * i + 2] = x[i * 24 + d] * y[d] - x[i * 24];
}
"""),
    tiles={"N": 64},
    block=64,
)
def fused(x: Float32[Array, "N 24"], y: Float32[Array, " 24"], length: i32) -> Float32[Array, "N 3"]:
    """A product and a sum in one expression are rounded once: unrolled, in a chain, and on their way to memory."""
    total, chain = np.zeros(len(x)), np.ones(len(x))
    for d in range(24):
        total = once(x[:, d] * y[d] + total)
    for d in range(length):
        chain = once(chain * x[:, d] + y[d])
    last = np.array([range(i % 2, length, 7)[-1] for i in range(len(x))])
    return np.stack([total, chain, x[np.arange(len(x)), last] * y[last] - x[:, 0]], axis=1)


def once(value: np.ndarray) -> np.ndarray:
    """Rounded to single precision; the product of two of its numbers is exact in double."""
    return value.astype(np.float32).astype(np.float64)


def fma_exact(a: float, b: float, c: float) -> Fraction:
    """a * b + c without rounding."""
    return Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N) return;
    const float a = x[i], b = y[i];
    single[i] = __fadd_rd(a, b), single[N + i] = __fadd_ru(a, b), single[2 * N + i] = __fadd_rz(a, b);
    single[3 * N + i] = __fmul_rd(a, b), single[4 * N + i] = __fmul_ru(a, b), single[5 * N + i] = __fmul_rz(a, b);
    single[6 * N + i] = __fdiv_rd(a, b), single[7 * N + i] = __frcp_ru(a), single[8 * N + i] = __fmaf_rz(a, b, a);
    double_[i] = __dadd_rd(a, b / 3.0), double_[N + i] = __dadd_ru(a, b / 3.0);
    double_[2 * N + i] = __dmul_rz(a, b / 3.0), double_[3 * N + i] = __ddiv_ru(a, (double)b);
    double_[4 * N + i] = __fma_rd(a, b / 3.0, 1.0), double_[5 * N + i] = __dsqrt_ru(fabs((double)a));
    double_[6 * N + i] = __drcp_rd((double)a);
}
"""),
    tiles={"N": 64},
    block=64,
)
def directed_rounding(x: Float32[Array, " N"], y: Float32[Array, " N"]) -> Rounded[Array]:
    """Arithmetic that rounds down, up and towards zero."""
    single, double = [[] for _ in range(9)], [[] for _ in range(7)]
    for a, b in zip(map(float, x), map(float, y), strict=True):
        p, q, third = Fraction(a), Fraction(b), b / 3.0
        total, product = p + q, p * q
        for row, value, way in zip(
            single,
            (total, total, total, product, product, product, p / q, 1 / p, product + p),
            ("down", "up", "zero", "down", "up", "zero", "down", "up", "zero"),
            strict=True,
        ):
            row.append(round_to(value, np.float32, way))
        r = Fraction(third)
        root = math.sqrt(abs(a))
        root = np.nextafter(root, np.inf) if Fraction(root) ** 2 < abs(p) else root
        for row, value, way in zip(
            double,
            (p + r, p + r, p * r, p / q, p * r + 1, Fraction(root), 1 / p),
            ("down", "up", "zero", "up", "down", "up", "down"),
            strict=True,
        ):
            row.append(round_to(value, np.float64, way))
    return Rounded(np.array(single), np.array(double))


def round_to(value: Fraction, dtype: type, way: str) -> np.floating:
    """`value` as `dtype`, rounded ``"down"``, ``"up"`` or to ``"zero"``."""
    nearest = dtype(float(value))
    if way == "zero":
        way = "down" if value > 0 else "up"
    if way == "down" and Fraction(float(nearest)) > value:
        return np.nextafter(nearest, dtype(-np.inf))
    if way == "up" and Fraction(float(nearest)) < value:
        return np.nextafter(nearest, dtype(np.inf))
    return nearest


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N) return;
    float s, c;
    __sincosf(x[i], &s, &c);
    const float results[] = {
        __expf(x[i]), __exp10f(x[i] * 0.25f), __logf(x[i] + 1.5f), __log2f(x[i] + 1.5f), __log10f(x[i] + 1.5f) + 1,
        __sinf(x[i]), __cosf(x[i]), __tanf(x[i] * 0.3f), s, c, __powf(x[i], 1.5f), __fdividef(1.0f, x[i]),
        __frsqrt_rn(x[i]),
    };
    for (int k = 0; k < 13; ++k) out[k * N + i] = results[k];
}
"""),
    tiles={"N": 64},
    block=64,
)
def fast_intrinsics(x: Float32[Array, " N"]) -> Float32[Array, "13 N"]:
    """Intrinsics that trade accuracy for speed."""
    return np.array([
        np.exp(x), 10 ** (x / 4), np.log(x + 1.5), np.log2(x + 1.5), np.log10(x + 1.5) + 1, np.sin(x), np.cos(x),
        np.tan(np.float32(0.3) * x), np.sin(x), np.cos(x), x**1.5, 1 / x, x**-0.5,
    ])  # fmt: skip


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N) return;
    {% if form == "erf" %}
    out[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678f));
    {% else %}
    const float inner = 0.79788456f * (x[i] + 0.044715f * x[i] * x[i] * x[i]);
    out[i] = 0.5f * x[i] * (1.0f + tanhf(inner));
    {% endif %}
}
""")
)
def gelu(x: Float32[Array, " N"], *, form: Literal["erf", "tanh"] = "erf") -> Float32[Array, " N"]:
    """The Gaussian error linear unit, in both of its forms."""
    if form == "erf":
        return 0.5 * x * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) out[i] = sqrtf(expf(x[i]) / (1.0f + expf(-y[i]))) + sinf(x[i]) * logf(y[i] + 2.0f);
}
"""),
    options=Options(fast_math=True),
)
def fast_math(x: Float32[Array, " N"], y: Float32[Array, " N"]) -> Float32[Array, " N"]:
    """An expression that the compiler may approximate."""
    return np.sqrt(np.exp(x) / (1 + np.exp(-y))) + np.sin(x) * np.log(y + 2)


CASES = (
    Case(
        functions,
        lambda rng: {"x": uniform(rng, 0.1, 3, 120), "y": uniform(rng, -3, 3, 120)},
        near=ulps(9, LIBRARIES),
        agrees=ulps(9, LIBRARIES),
        label="float",
    ),
    Case(
        functions,
        lambda rng: {
            "x": uniform(rng, 0.1, 3, 120, dtype="float64"),
            "y": uniform(rng, -3, 3, 120, dtype="float64"),
        },
        near=ulps(20, LIBRARIES),
        agrees=ulps(20, LIBRARIES),
        label="double",
    ),
    Case(exact_functions, lambda rng: {"x": 5 * normal(rng, 150), "y": 2 * normal(rng, 150)}),
    Case(rounded, lambda rng: {"x": normal(rng, 150), "y": normal(rng, 150)}),
    Case(fused, lambda rng: {"x": normal(rng, 100, 24), "y": normal(rng, 24)}, {"length": 23}),
    Case(directed_rounding, lambda rng: {"x": normal(rng, 150), "y": normal(rng, 150)}),
    Case(
        fast_intrinsics,
        lambda rng: {"x": uniform(rng, 0.2, 3, 150)},
        near=relative(2e-6, APPROXIMATE),
        agrees=relative(2e-6, APPROXIMATE),
    ),
    Case(
        gelu,
        lambda rng: {"x": 2 * normal(rng, 500)},
        near=relative(3e-7, LIBRARIES),
        agrees=relative(3e-7, LIBRARIES),
        label="erf",
    ),
    Case(
        gelu,
        lambda rng: {"x": 2 * normal(rng, 500)},
        {"form": "tanh"},
        near=relative(3e-7, LIBRARIES),
        agrees=relative(3e-7, LIBRARIES),
        label="tanh",
    ),
    Case(
        fast_math,
        lambda rng: {"x": uniform(rng, -3, 3, 300), "y": uniform(rng, 0, 3, 300)},
        near=relative(3e-6, APPROXIMATE),
        agrees=relative(3e-6, APPROXIMATE),
    ),
)
