"""What people write in a kernel and NVRTC does not have, and what to write instead: it has no standard library."""

from __future__ import annotations

import posixpath

from cuplate.dtypes import DTYPES

__all__ = ["instead_of_header", "instead_of_name"]

_HEADER_OF = {
    **{d.ctype: d.header for d in DTYPES.values() if d.header},
    **dict.fromkeys(("half", "half2", "__half2", "__half_raw"), "cuda_fp16.h"),
    **dict.fromkeys(("nv_bfloat16", "nv_bfloat162", "__nv_bfloat162"), "cuda_bf16.h"),
    **dict.fromkeys((f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)), "cuda/std/cstdint"),
    **dict.fromkeys(
        ("uintptr_t", "intptr_t", "INT32_MAX", "INT64_MAX", "UINT32_MAX", "UINT64_MAX"), "cuda/std/cstdint"
    ),
    **dict.fromkeys(
        ("CHAR_BIT", "INT_MAX", "INT_MIN", "UINT_MAX", "LONG_MAX", "LONG_MIN", "LLONG_MAX", "LLONG_MIN", "ULLONG_MAX"),
        "cuda/std/climits",
    ),
    **dict.fromkeys(("nvcuda", "wmma"), "mma.h"),
    "cooperative_groups": "cooperative_groups.h",
}

_LIMITS = {"MAX": "max()", "MIN": "min()", "EPSILON": "epsilon()", "TRUE_MIN": "denorm_min()"}
_TENSOR_MAP = "struct alignas(64) CUtensorMap { unsigned long long opaque[16]; };"
_MASK = ", with a mask of the lanes in front: 0xffffffff for all"
_WORDS = {
    "CUtensorMap": _TENSOR_MAP,
    "INFINITY": "CUDART_INF_F, of #include <math_constants.h>",
    "HUGE_VAL": "CUDART_INF, of #include <math_constants.h>",
    "HUGE_VALF": "CUDART_INF_F, of #include <math_constants.h>",
    "NAN": "CUDART_NAN_F, of #include <math_constants.h>",
    "M_PI": "CUDART_PI (CUDART_PI_F for float), of #include <math_constants.h>",
    **{
        f"{short}_{name}": f"cuda::std::numeric_limits<{ctype}>::{member}, of #include <cuda/std/limits>"
        for short, ctype in (("FLT", "float"), ("DBL", "double"))
        for name, member in _LIMITS.items()
    },
    **{name: f"{name}_sync{_MASK}" for name in ("__shfl", "__shfl_up", "__shfl_down", "__shfl_xor")},
    **{name: f"{name}_sync{_MASK}" for name in ("__any", "__all", "__ballot")},
    **{f"u{ctype}": f"unsigned {ctype}" for ctype in ("char", "short", "int", "long")},
}

_CUDA_STD = ("array", "cassert", "climits", "cmath", "cstddef", "cstdint", "limits", "type_traits", "utility")
_MEMBERS = {
    "numeric_limits": "limits",
    **dict.fromkeys(("swap", "pair", "move", "forward"), "utility"),
    **dict.fromkeys(("is_same", "is_same_v", "conditional_t", "enable_if_t"), "type_traits"),
    "array": "array",
}
_MATH = "no header: sqrt, exp, fabsf and their kind are there; <cuda/std/cmath> for cuda::std::sqrt"
_FLOATS = "cuda::std::numeric_limits<float>::max() for FLT_MAX, of #include <cuda/std/limits>"
_HEADERS = {
    "cmath": _MATH,
    "math.h": _MATH,
    "cfloat": _FLOATS,
    "float.h": _FLOATS,
    "algorithm": "no header: min(a, b) and max(a, b) are there, without std::",
    **dict.fromkeys(("cstdio", "stdio.h", "iostream"), "no header: printf is there"),
    **dict.fromkeys(("cstring", "string.h"), "no header: memcpy and memset are there, without std::"),
    **dict.fromkeys(("cassert", "assert.h"), "no header: assert is there"),
    "stddef.h": "no header: size_t is there; <cuda/std/cstddef> for the rest",
    "stdint.h": "#include <cuda/std/cstdint>",
    "limits.h": "#include <cuda/std/climits>",
    "stdlib.h": f"no header: abs is there, scratch= is for memory; a tensor map needs no cuda.h, but {_TENSOR_MAP}",
    "cstdlib": "no header: abs is there, scratch= is for memory",
}


def instead_of_name(name: str, *, of_std: bool = False) -> str | None:
    """What to try where a name is not known; None where nothing is known of it either.

    Parameters
    ----------
    name : str
        As the compiler says it.
    of_std : bool
        Whether it was looked for in the namespace std.
    """
    if of_std:
        if header := _MEMBERS.get(name):
            return f"cuda::std::{name}, of #include <cuda/std/{header}>"
        return f"{name} without std::, which is there for math, min and max; else cuda::std::, of <cuda/std/...>"
    if header := _HEADER_OF.get(name):
        return f"#include <{header}>"
    return _WORDS.get(name)


def instead_of_header(name: str) -> str | None:
    """What to try where a header of the standard library is included; None for any other header."""
    name = posixpath.normpath(name)
    if name in _HEADERS:
        return _HEADERS[name]
    return f"#include <cuda/std/{name}>" if name in _CUDA_STD else None
