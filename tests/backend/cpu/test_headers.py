"""Every name of the device library compiles here and with NVRTC: the same calls, the same result types.

The lists are the library's contents. One kernel per header mentions each of its names once, so a name that drifts from
CUDA's (or that CUDA never had) fails by its own line.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cuplate.backend.cpu
from cuplate.backend.cpu.build import BuildError
from cuplate.errors import CompileError
from cuplate.options import Options
from tests.backend.cpu.test_halves import ACCEPTED, BFLOAT, HALF, REFUSED, statement
from tests.backend.cpu.test_math import UNDEFINED
from tests.doubles import rendered

Make = Callable[..., Any]
SHIM = Path(cuplate.backend.cpu.__file__).parent / "shim"

MODES = ("rn", "rz", "rd", "ru")


def words(text: str) -> list[str]:
    """The names in a text."""
    return text.split()


ONE = words(
    "acos acosh asin asinh atan atanh cbrt ceil cos cosh cospi cyl_bessel_i0 cyl_bessel_i1 erf erfc erfcinv erfcx "
    "erfinv exp exp10 exp2 expm1 fabs floor j0 j1 lgamma log log10 log1p log2 logb nearbyint normcdf normcdfinv rcbrt "
    "rint round rsqrt sin sinh sinpi sqrt tan tanh tgamma trunc y0 y1"
)
TWO = words("atan2 copysign fdim fmax fmin fmod hypot nextafter pow remainder")


def math() -> dict[str, str]:
    """Expressions of the math API with the type that each must have."""
    calls: dict[str, str] = {}
    for name in ONE:
        calls |= {f"{name}(d)": "double", f"{name}(f)": "float", f"{name}f(f)": "float"}
    for name in TWO:
        calls |= {f"{name}(d, d)": "double", f"{name}(f, f)": "float", f"{name}f(f, f)": "float"}
    for name in ("ldexp", "scalbn", "scalbln"):
        calls |= {f"{name}(d, n)": "double", f"{name}(f, n)": "float", f"{name}f(f, n)": "float"}
    for name in ("jn", "yn"):
        calls |= {f"{name}(n, d)": "double", f"{name}(n, f)": "float", f"{name}f(n, f)": "float"}
    for name, kind in (
        ("ilogb", "int"),
        ("lrint", "long"),
        ("lround", "long"),
        ("llrint", "long long"),
        ("llround", "long long"),
    ):
        calls |= {f"{name}(d)": kind, f"{name}(f)": kind, f"{name}f(f)": kind}
    for name in ("isnan", "isinf", "isfinite", "signbit"):
        calls |= {f"{name}(d)": "int", f"{name}(f)": "int"}
    for name, count in (("rhypot", 2), ("norm3d", 3), ("rnorm3d", 3), ("norm4d", 4), ("rnorm4d", 4)):
        calls |= {f"{name}({', '.join('d' * count)})": "double", f"{name}({', '.join('f' * count)})": "double"}
        calls |= {f"{name}f({', '.join('f' * count)})": "float"}
    calls |= {
        "fma(d, d, d)": "double",
        "fma(f, f, f)": "float",
        "fmaf(f, f, f)": "float",
        "norm(3, pd)": "double",
        "rnorm(3, pd)": "double",
        "normf(3, pf)": "float",
        "rnormf(3, pf)": "float",
        "pow(d, n)": "double",
        "pow(f, n)": "float",
        "fdividef(f, f)": "float",
        'nan("")': "double",
        'nanf("")': "float",
        "frexp(d, pn)": "double",
        "frexp(f, pn)": "float",
        "frexpf(f, pn)": "float",
        "modf(d, pd)": "double",
        "modf(f, pf)": "float",
        "modff(f, pf)": "float",
        "remquo(d, d, pn)": "double",
        "remquo(f, f, pn)": "float",
        "remquof(f, f, pn)": "float",
        "sincos(d, pd, pd)": "void",
        "sincos(f, pf, pf)": "void",
        "sincosf(f, pf, pf)": "void",
        "sincospi(d, pd, pd)": "void",
        "sincospi(f, pf, pf)": "void",
        "sincospif(f, pf, pf)": "void",
        "__sincosf(f, pf, pf)": "void",
        "abs(f)": "float",
        "abs(d)": "double",
        "abs(n)": "int",
        "abs(l)": "long long",
        "abs(1L)": "long",
        "labs(1L)": "long",
        "llabs(l)": "long long",
    }
    for name in (
        "expf",
        "exp10f",
        "logf",
        "log2f",
        "log10f",
        "sinf",
        "cosf",
        "tanf",
        "tanhf",
        "saturatef",
        "frsqrt_rn",
    ):
        calls[f"__{name}(f)"] = "float"
    calls |= {"__powf(f, f)": "float", "__fdividef(f, f)": "float"}
    for mode in MODES:
        for name, count in (("add", 2), ("sub", 2), ("mul", 2), ("div", 2), ("rcp", 1), ("sqrt", 1)):
            calls[f"__f{name}_{mode}({', '.join('f' * count)})"] = "float"
            calls[f"__d{name}_{mode}({', '.join('d' * count)})"] = "double"
        calls |= {
            f"__fmaf_{mode}(f, f, f)": "float",
            f"__fmaf_ieee_{mode}(f, f, f)": "float",
            f"__fma_{mode}(d, d, d)": "double",
        }
    return calls


def integers() -> dict[str, str]:
    """Expressions of integer intrinsics, min and max."""
    calls: dict[str, str] = {}
    for name in ("min", "max"):
        calls |= {
            f"{name}(n, n)": "int",
            f"{name}(u, u)": "unsigned",
            f"{name}(n, u)": "unsigned",
            f"{name}(u, n)": "unsigned",
            f"{name}(l, l)": "long long",
            f"{name}(q, q)": "unsigned long long",
            f"{name}(l, q)": "unsigned long long",
            f"{name}(q, l)": "unsigned long long",
            f"{name}(1L, 1L)": "long",
            f"{name}(1L, 1UL)": "unsigned long",
            f"{name}(f, f)": "float",
            f"{name}(d, d)": "double",
            f"{name}(f, d)": "double",
            f"{name}(d, f)": "double",
            f"u{name}(u, u)": "unsigned",
            f"ll{name}(l, l)": "long long",
            f"ull{name}(q, q)": "unsigned long long",
        }
    calls |= {
        "__popc(u)": "int",
        "__popcll(q)": "int",
        "__clz(n)": "int",
        "__clzll(l)": "int",
        "__ffs(n)": "int",
        "__ffsll(l)": "int",
        "__brev(u)": "unsigned",
        "__brevll(q)": "unsigned long long",
        "__byte_perm(u, u, u)": "unsigned",
        "__mulhi(n, n)": "int",
        "__umulhi(u, u)": "unsigned",
        "__mul64hi(l, l)": "long long",
        "__umul64hi(q, q)": "unsigned long long",
        "__mul24(n, n)": "int",
        "__umul24(u, u)": "unsigned",
        "__hadd(n, n)": "int",
        "__rhadd(n, n)": "int",
        "__uhadd(u, u)": "unsigned",
        "__urhadd(u, u)": "unsigned",
        "__sad(n, n, u)": "unsigned",
        "__usad(u, u, u)": "unsigned",
        "__fns(u, u, n)": "unsigned",
        "__dp4a(n, n, n)": "int",
        "__dp4a(u, u, u)": "unsigned",
        "__dp2a_lo(n, n, n)": "int",
        "__dp2a_hi(u, u, u)": "unsigned",
        "__dp4a(char4{}, char4{}, n)": "int",
        "__dp4a(uchar4{}, uchar4{}, u)": "unsigned",
        "__dp2a_lo(short2{}, char4{}, n)": "int",
        "__dp2a_hi(ushort2{}, uchar4{}, u)": "unsigned",
        "__nv_bswap16(1)": "unsigned short",
        "__nv_bswap32(u)": "unsigned",
        "__nv_bswap64(q)": "unsigned long long",
    }
    for name in ("l", "lc", "r", "rc"):
        calls[f"__funnelshift_{name}(u, u, u)"] = "unsigned"
    for lanes in (2, 4):
        for name in ("abs", "absss", "neg", "negss"):
            calls[f"__v{name}{lanes}(u)"] = "unsigned"
        names = words("add addss addus sub subss subus absdiffs absdiffu avgs avgu haddu maxs maxu mins minu sads sadu")
        names += [f"{kind}{how}" for kind in ("cmp", "set") for how in words("eq ne ges geu gts gtu les leu lts ltu")]
        for name in names:
            calls[f"__v{name}{lanes}(u, u)"] = "unsigned"
    for name in ("iaddmax", "iaddmin", "imax3", "imin3"):
        calls |= {
            f"__v{name}_s32(n, n, n)": "int",
            f"__v{name}_u32(u, u, u)": "unsigned",
            f"__v{name}_s32_relu(n, n, n)": "int",
        }
        calls |= {f"__v{name}_{s}(u, u, u)": "unsigned" for s in ("s16x2", "u16x2", "s16x2_relu")}
    for name in ("imax", "imin"):
        calls |= {f"__v{name}_s32_relu(n, n)": "int", f"__v{name}_s16x2_relu(u, u)": "unsigned"}
    for name in ("ibmax", "ibmin"):
        calls |= {f"__v{name}_s32(n, n, pb)": "int", f"__v{name}_u32(u, u, pb)": "unsigned"}
    return calls


def conversions() -> dict[str, str]:
    """Expressions that convert or read bits, and loads and stores with hints."""
    calls: dict[str, str] = {}
    kinds = {
        "int": ("int", "n"),
        "uint": ("unsigned", "u"),
        "ll": ("long long", "l"),
        "ull": ("unsigned long long", "q"),
    }
    for mode in MODES:
        for name, (kind, value) in kinds.items():
            calls |= {
                f"__float2{name}_{mode}(f)": kind,
                f"__double2{name}_{mode}(d)": kind,
                f"__{name}2float_{mode}({value})": "float",
            }
        calls |= {
            f"__ll2double_{mode}(l)": "double",
            f"__ull2double_{mode}(q)": "double",
            f"__double2float_{mode}(d)": "float",
        }
    calls |= {
        "__int2double_rn(n)": "double",
        "__uint2double_rn(u)": "double",
        "__float_as_int(f)": "int",
        "__float_as_uint(f)": "unsigned",
        "__int_as_float(n)": "float",
        "__uint_as_float(u)": "float",
        "__double_as_longlong(d)": "long long",
        "__longlong_as_double(l)": "double",
        "__double2hiint(d)": "int",
        "__double2loint(d)": "int",
        "__hiloint2double(n, n)": "double",
        "memcpy(pf, pf, 4)": "void*",
        "memset(pf, 0, 4)": "void*",
        "__cvta_generic_to_shared(pf)": "size_t",
        "__prof_trigger(1)": "void",
    }
    kinds_loaded = [
        f"{sign}{kind}" for sign in ("", "unsigned ") for kind in ("char", "short", "int", "long", "long long")
    ]
    kinds_loaded += words("float double char2 char4 uchar2 uchar4 short2 short4 ushort2 ushort4 int2 int4 uint2 uint4")
    kinds_loaded += ["signed char", "longlong2", "ulonglong2", "float2", "float4", "double2"]
    for kind in kinds_loaded:
        for name in ("ldg", "ldca", "ldcg", "ldcs", "ldlu", "ldcv"):
            calls[f"__{name}((const {kind}*)pv)"] = kind
        for name in ("stwb", "stcg", "stcs", "stwt"):
            calls[f"__{name}(({kind}*)pv, *({kind}*)pv)"] = "void"
    return calls


def vectors() -> dict[str, str]:
    """make_ functions of every vector type."""
    names = [
        "char",
        "uchar",
        "short",
        "ushort",
        "int",
        "uint",
        "long",
        "ulong",
        "longlong",
        "ulonglong",
        "float",
        "double",
    ]
    calls = {f"make_{n}{k}({', '.join('1' * k)})": f"{n}{k}" for n in names for k in (1, 2, 3)}
    calls |= {f"make_{n}4(1, 1, 1, 1)": f"{n}4" for n in ("char", "uchar", "short", "ushort", "int", "uint", "float")}
    wide = ("longlong", "ulonglong", "double")
    calls |= {f"make_{n}4_{a}a(1, 1, 1, 1)": f"{n}4_{a}a" for n in wide for a in (16, 32)}
    return calls | {"dim3(1, 2)": "dim3", "dim3()": "dim3", "dim3(uint3{1, 2, 3})": "dim3", "uint3(dim3(1))": "uint3"}


def narrow(word: str, pair: str, kind: str) -> dict[str, str]:
    """Expressions of one 16-bit type."""
    two = f"{kind}2"
    calls = {
        f"__float2{word}(f)": kind,
        f"__double2{word}(d)": kind,
        f"__{word}2float(h)": "float",
        f"__{word}_as_short(h)": "short",
        f"__{word}_as_ushort(h)": "unsigned short",
        f"__short_as_{word}(1)": kind,
        f"__ushort_as_{word}(1)": kind,
        f"make_{pair}(h, h)": two,
        f"__halves2{pair}(h, h)": two,
        f"__float2{pair}_rn(f)": two,
        f"__floats2{pair}_rn(f, f)": two,
        f"__float22{pair}_rn(float2())": two,
        f"__{pair}2float2(p)": "float2",
        "__low2float(p)": "float",
        "__high2float(p)": "float",
        f"__low2{word}(p)": kind,
        f"__high2{word}(p)": kind,
        f"__low2{pair}(p)": two,
        f"__high2{pair}(p)": two,
        f"__{word}2{pair}(h)": two,
        "__lowhigh2highlow(p)": two,
        f"__lows2{pair}(p, p)": two,
        f"__highs2{pair}(p, p)": two,
        "__hisinf(h)": "int",
        "__hisnan(h)": "bool",
        "__hisnan2(p)": two,
        "__hcmadd(p, p, p)": two,
        f"__{word}2char_rz(h)": "signed char",
        f"__{word}2uchar_rz(h)": "unsigned char",
    }
    kinds = {
        "short": "short",
        "ushort": "unsigned short",
        "int": "int",
        "uint": "unsigned",
        "ll": "long long",
        "ull": "unsigned long long",
    }
    for mode in MODES:
        calls[f"__float2{word}_{mode}(f)"] = kind
        for name, integer in kinds.items():
            calls |= {f"__{name}2{word}_{mode}(n)": kind, f"__{word}2{name}_{mode}(h)": integer}
    for name in ("add", "sub", "mul"):
        calls |= {f"__h{name}{s}(h, h)": kind for s in ("", "_rn", "_sat")} | {
            f"__h{name}2{s}(p, p)": two for s in ("", "_rn", "_sat")
        }
    for name in ("max", "min"):
        calls |= {f"__h{name}{s}(h, h)": kind for s in ("", "_nan")} | {
            f"__h{name}2{s}(p, p)": two for s in ("", "_nan")
        }
    calls |= {
        "__hdiv(h, h)": kind,
        "__h2div(p, p)": two,
        "__hneg(h)": kind,
        "__hneg2(p)": two,
        "__habs(h)": kind,
        "__habs2(p)": two,
    }
    for suffix in ("", "_sat", "_relu"):
        calls |= {f"__hfma{suffix}(h, h, h)": kind, f"__hfma2{suffix}(p, p, p)": two}
    for name in words("trunc ceil floor rint sqrt rsqrt rcp log log2 log10 exp exp2 exp10 sin cos tanh tanh_approx"):
        calls |= {f"h{name}(h)": kind, f"h2{name}(p)": two}
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        for u in ("", "u"):
            calls |= {f"__h{name}{u}(h, h)": "bool", f"__hb{name}{u}2(p, p)": "bool", f"__h{name}{u}2(p, p)": two}
            calls[f"__h{name}{u}2_mask(p, p)"] = "unsigned"
    for value, type_ in (("h", kind), ("p", two)):
        calls |= {f"{value} {op} {value}": type_ for op in "+-*/"} | {
            f"{value} {op}= {value}": f"{type_}&" for op in "+-*/"
        }
        calls |= {f"{value} {op} {value}": "bool" for op in ("==", "!=", "<", ">", "<=", ">=")}
        calls |= {f"-{value}": type_, f"+{value}": type_, f"++{value}": f"{type_}&", f"{value}--": type_}
        calls |= {f"__shfl_sync(u, {value}, n)": type_, f"__shfl_xor_sync(u, {value}, n, 16)": type_}
        calls |= {f"__shfl_up_sync(u, {value}, u)": type_, f"__shfl_down_sync(u, {value}, u)": type_}
        calls |= {f"atomicAdd(&{value}, {value})": type_}
        calls |= {f"__{ld}(&{value})": type_ for ld in ("ldg", "ldca", "ldcg", "ldcs", "ldlu", "ldcv")}
        calls |= {f"__{st}(&{value}, {value})": "void" for st in ("stwb", "stcg", "stcs", "stwt")}
    return calls


def groups() -> dict[str, str]:
    """Expressions of cooperative groups."""
    calls: dict[str, str] = {}
    for group in ("t", "t4", "c"):
        calls |= {
            f"{group}.thread_rank()": "",
            f"{group}.size()": "",
            f"{group}.num_threads()": "",
            f"{group}.meta_group_rank()": "",
            f"{group}.meta_group_size()": "",
            f"{group}.sync()": "void",
            f"{group}.shfl(f, 0)": "float",
            f"{group}.shfl_up(n, 1)": "int",
            f"{group}.shfl_down(d, 1)": "double",
            f"{group}.any(n)": "int",
            f"{group}.all(n)": "int",
            f"{group}.ballot(n)": "unsigned",
            f"{group}.match_any(n)": "unsigned",
            f"{group}.match_all(n, n)": "unsigned",
            f"cg::sync({group})": "void",
            f"cg::reduce({group}, n, cg::plus<int>())": "int",
            f"cg::reduce({group}, f, cg::less<float>())": "float",
            f"cg::reduce({group}, n, cg::greater<int>())": "int",
            f"cg::reduce({group}, u, cg::bit_and<unsigned>())": "unsigned",
            f"cg::reduce({group}, u, cg::bit_or<unsigned>())": "unsigned",
            f"cg::reduce({group}, u, cg::bit_xor<unsigned>())": "unsigned",
            f"cg::inclusive_scan({group}, n)": "int",
            f"cg::exclusive_scan({group}, n)": "int",
            f"cg::inclusive_scan({group}, n, cg::plus<int>())": "int",
            f"cg::labeled_partition({group}, n)": "cg::coalesced_group",
            f"cg::binary_partition({group}, true)": "cg::coalesced_group",
        }
    calls |= {"t.shfl_xor(n, 1)": "int", "t4.shfl_xor(n, 1)": "int"}
    for name in ("thread_rank", "size", "num_threads", "group_index", "thread_index", "dim_threads", "group_dim"):
        calls[f"b.{name}()"] = ""
    for name in (
        "thread_rank",
        "size",
        "num_threads",
        "num_blocks",
        "block_rank",
        "block_index",
        "dim_blocks",
        "is_valid",
    ):
        calls[f"g.{name}()"] = ""
    calls |= {
        "b.sync()": "void",
        "b.barrier_wait(b.barrier_arrive())": "void",
        "cg::thread_rank(b)": "",
        "cg::group_size(b)": "",
        "cg::thread_group(b).size()": "",
        "cg::tiled_partition(b, 8).sync()": "void",
        "cg::tiled_partition<2>(t)": "",
        "cg::memcpy_async(b, pf, pg, 16)": "void",
        "cg::memcpy_async(b, pf, 4, pg, 4)": "void",
        "cg::wait(b)": "void",
        "cg::wait_prior<1>(b)": "void",
        "uint32_t(1)": "unsigned",
        "uint64_t(1)": "unsigned long long",
    }
    return calls


SCALARS = (
    "float f = 1; double d = 1; int n = 1; unsigned u = 1; long long l = 1; unsigned long long q = 1; bool bb; "
    "bool* pb = &bb; float* pf = &f; double* pd = &d; int* pn = &n; void* pv = o; const float* pg = o; "
    "(void)pb; (void)pd; (void)pn; (void)pv; (void)pg; "
    "(void)l; (void)q;"
)
CONSTANTS = [
    f"CUDART_{n}{s}"
    for n in words(
        "INF NAN MIN_DENORM NEG_ZERO ZERO ONE SQRT_TWO SQRT_HALF THIRD PIO4 PIO2 3PIO4 2_OVER_PI PI L2E L2T LG2 "
        "LGE LN2 LNT LNPI"
    )
    for s in ("", "_F")
]
STD_INCLUDES = "".join(
    f"#include <cuda/std/{n}>\n"
    for n in ("cmath", "limits", "type_traits", "utility", "array", "cstdint", "cstddef", "cfloat", "climits")
)
STD = {
    "cuda::std::exp(f)": "float",
    "cuda::std::sqrt(d)": "double",
    "cuda::std::pow(f, f)": "float",
    "cuda::std::fmax(d, d)": "double",
    "cuda::std::abs(f)": "float",
    "cuda::std::isnan(f)": "bool",
    "INFINITY": "float",
    "NAN": "float",
    "INT_MAX": "int",
    "UINT32_MAX": "unsigned",
    "CHAR_BIT": "int",
    "SIZE_MAX": "unsigned long",
    "cuda::std::numeric_limits<float>::infinity()": "float",
    "cuda::std::numeric_limits<float>::lowest()": "float",
    "cuda::std::numeric_limits<int>::max()": "int",
    "cuda::std::numeric_limits<double>::epsilon()": "double",
    "cuda::std::is_same<int, int>::value": "const bool",
    "cuda::std::is_same_v<int, float>": "const bool",
    "cuda::std::conditional_t<true, int, float>(1)": "int",
    "cuda::std::is_integral_v<float>": "const bool",
    "cuda::std::make_unsigned_t<int>(1)": "unsigned",
    "cuda::std::remove_cvref_t<const int&>(1)": "int",
    "cuda::std::is_signed<int>::value": "const bool",
    "cuda::std::size_t(1)": "size_t",
    "cuda::std::int64_t(1)": "long long",
    "cuda::std::uint8_t(1)": "unsigned char",
    "cuda::std::array<int, 3>{}.size()": "size_t",
    "cuda::std::move(n)": "int&&",
    "cuda::std::uintptr_t(1)": "unsigned long long",
    "int8_t(1)": "signed char",
}

HEADERS: dict[str, tuple[str, str, dict[str, str]]] = {
    "without a header: math": ("", SCALARS, math()),
    "without a header: integers": ("", SCALARS, integers()),
    "without a header: conversions": ("", SCALARS, conversions()),
    "without a header: vectors": ("", SCALARS, vectors()),
    "cuda_fp16.h": (
        "#include <cuda_fp16.h>\n",
        SCALARS + " __half h = 1; __half2 p(h, h);",
        narrow("half", "half2", "__half"),
    ),
    "cuda_bf16.h": (
        "#include <cuda_bf16.h>\n",
        SCALARS + " __nv_bfloat16 h = 1; __nv_bfloat162 p(h, h);",
        narrow("bfloat16", "bfloat162", "__nv_bfloat16"),
    ),
    "cooperative_groups.h": (
        "#include <cooperative_groups.h>\n"
        "#include <cooperative_groups/reduce.h>\n#include <cooperative_groups/scan.h>\n"
        "#include <cooperative_groups/memcpy_async.h>\nnamespace cg = cooperative_groups;\n",
        SCALARS
        + " auto b = cg::this_thread_block(); auto t = cg::tiled_partition<32>(b); auto t4 = cg::tiled_partition<4>(t);"
        " auto c = cg::coalesced_threads(); auto g = cg::this_grid();",
        groups(),
    ),
    "cuda_pipeline_primitives.h": (
        "#include <cuda_pipeline_primitives.h>\n",
        SCALARS,
        {
            "__pipeline_memcpy_async(pf, pg, 4)": "void",
            "__pipeline_memcpy_async(pf, pg, 16, 4)": "void",
            "__pipeline_commit()": "void",
            "__pipeline_wait_prior(1)": "void",
        },
    ),
    "math_constants.h": (
        "#include <math_constants.h>\n",
        SCALARS,
        {n: "float" if n.endswith("_F") else "double" for n in CONSTANTS},
    ),
    "cuda/std": (STD_INCLUDES, SCALARS, STD),
    "stubs": (
        "".join(
            f"#include <{n}>\n"
            for n in (
                "cuda_runtime.h",
                "cuda_runtime_api.h",
                "device_launch_parameters.h",
                "vector_types.h",
                "vector_functions.h",
                "math_functions.h",
                "device_functions.h",
                "host_defines.h",
                "builtin_types.h",
                "driver_types.h",
                "cuda/std/cassert",
            )
        ),
        SCALARS,
        {"n + 1": "int"},
    ),
}


def source(includes: str, declarations: str, calls: dict[str, str]) -> str:
    """A kernel that makes each call on a line of its own and states its type; an empty type is not stated."""
    lines = []
    for call, kind in calls.items():
        checked = (
            f'static_assert(same<decltype({call}), {kind}>::yes, ""); ' if kind and not kind.startswith("const") else ""
        )
        lines.append(f"  {{ {checked}(void)({call}); }}")
    text = f"{includes}template <class A, class B> struct same {{ static constexpr bool yes = false; }};\n"
    text += "template <class A> struct same<A, A> { static constexpr bool yes = true; };\n"
    body = "\n".join(lines)
    return f'{text}extern "C" __global__ void k(float* o) {{\n  {declarations}\n{body}\n}}\n'


def at_line(text: str, line: int) -> str:
    """The text's line, for a message."""
    return text.splitlines()[line - 1].strip() if 0 < line <= len(text.splitlines()) else "?"


@pytest.mark.parametrize("header", HEADERS)
def test_every_name_compiles_here(compiled: Make, header: str) -> None:
    """Each call compiles for the CPU and has its type."""
    text = source(*HEADERS[header])
    try:
        compiled(text)
    except BuildError as error:
        pytest.fail(
            "\n".join(f"{at_line(text, f.line)}\n    {f.message}" for f in error.findings[:20]) or error.log[:2000]
        )


@pytest.mark.parametrize("header", HEADERS)
def test_every_name_compiles_with_nvrtc(header: str) -> None:
    """Each call compiles with NVRTC and has the same type there: the library offers nothing that CUDA has not."""
    nvrtc = pytest.importorskip("cuplate.backend.cuda.nvrtc")
    try:
        nvrtc.toolchain()
    except Exception as trouble:
        pytest.skip(f"no NVRTC here: {trouble}")
    includes, _, _ = HEADERS[header]
    if includes and not nvrtc.toolkit_directories():
        pytest.skip("no CUDA headers on this machine")
    text = source(*HEADERS[header])
    try:
        nvrtc.build(rendered(text, "k"), Options(), "sm_80", directories=nvrtc.toolkit_directories())
    except CompileError as error:
        pytest.fail(str(error.log)[:4000])


def test_nvrtc_refuses_what_is_refused_here() -> None:
    """The ambiguities that test_halves.py and test_math.py hold are NVRTC's."""
    nvrtc = pytest.importorskip("cuplate.backend.cuda.nvrtc")
    try:
        nvrtc.toolchain()
    except Exception as trouble:
        pytest.skip(f"no NVRTC here: {trouble}")
    for call in UNDEFINED:
        with pytest.raises(CompileError):
            text = f'extern "C" __global__ void k(double* out, int n) {{ out[0] = {call}; }}'
            nvrtc.build(rendered(text, "k"), Options(), "sm_80")
    if not nvrtc.toolkit_directories():
        pytest.skip("no CUDA headers on this machine")
    for fmt in (HALF, BFLOAT):
        directories = nvrtc.toolkit_directories()
        nvrtc.build(
            rendered(statement(fmt, " ".join(f"{{ {c}; }}" for c in ACCEPTED)), "k"),
            Options(),
            "sm_80",
            directories=directories,
        )
        for code in REFUSED:
            with pytest.raises(CompileError):
                nvrtc.build(rendered(statement(fmt, code), "k"), Options(), "sm_80", directories=directories)


def test_the_lists_are_as_long_as_they_were() -> None:
    """Names do not fall out of the lists unseen."""
    counts = {header: len(calls) for header, (_, _, calls) in HEADERS.items()}
    assert counts["without a header: math"] >= 330
    assert counts["without a header: integers"] >= 180
    assert counts["without a header: conversions"] >= 370
    assert counts["cuda_fp16.h"] >= 260
    assert counts["cuda_bf16.h"] >= 260
    assert sum(counts.values()) >= 1650


def test_every_header_of_the_shim_is_in_a_list() -> None:
    """A header that a kernel can include appears in a test here or in test_wmma.py, or says why it is refused."""
    included = (
        "".join(includes for includes, _, _ in HEADERS.values()) + "#include <mma.h> <cuda_fp8.h> <cuda/std/cassert>"
    )
    internal = ("cuplate_", "checker.h", "runtime.h", "platform.h")
    for path in SHIM.rglob("*"):
        name = path.relative_to(SHIM).as_posix()
        if path.is_file() and path.suffix in (".h", "") and not name.startswith(internal):
            assert f"<{name}>" in included, name


def test_eight_bit_floats_are_refused(compiled: Make) -> None:
    """cuda_fp8.h says that it is not there and what to do."""
    with pytest.raises(BuildError) as error:
        compiled("#include <cuda_fp8.h>\n__global__ void k(float* o) { o[0] = 1; }")
    assert "8-bit floating point" in error.value.log
