"""A kernel that widens an array of any dtype, so that one which is read as another shows; for tests on any backend."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float64, Shaped

from cuplate import Array, Inline, specialize

NUMPY = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "complex64", "complex128",
)  # fmt: skip
NARROW = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
"""What NumPy knows only with ml_dtypes, and torch by itself."""

NO_TYPE = ("int4", "uint4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e3m4")
"""Dtypes of ml_dtypes that no kernel can name."""


@specialize(
    Inline("""
{% if x.dtype == "float16" %}
#include <cuda_fp16.h>
{% elif x.dtype == "bfloat16" %}
#include <cuda_bf16.h>
{% elif x.dtype == "float8_e4m3fn" or x.dtype == "float8_e5m2" %}
#include <cuda_fp8.h>
{% endif %}
static_assert(sizeof({{ x.ctype }}) == {{ x.itemsize }}, "one element");
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const {{ index_t }} i = ({{ index_t }})blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N) return;
{% if x.dtype == "float16" %}
    out[i] = __half2float(x[i]);
{% elif x.dtype == "bfloat16" %}
    out[i] = __bfloat162float(x[i]);
{% elif x.dtype == "complex64" or x.dtype == "complex128" %}
    out[i] = x[i].x + 1000.0 * x[i].y;
{% elif x.dtype == "float8_e4m3fn" or x.dtype == "float8_e5m2" %}
    out[i] = (float)x[i];
{% else %}
    out[i] = (double)x[i];
{% endif %}
}
""")
)
def widen(x: Shaped[Array, " N"]) -> Float64[Array, " N"]:
    """As float64; of a complex number the real part and a thousand times the imaginary one."""
    raise NotImplementedError


VALUES = np.array([0.0, 1.0, 2.0, 3.0, 0.5, 1.5, 96.0, 0.25])
"""Exact in every dtype that has fractions."""


def values(dtype: str) -> Any:
    """Of a dtype of NumPy's, or float32 for others to narrow; negative ones where there are any."""
    kind = np.dtype(dtype) if dtype in NUMPY else np.dtype("float32")
    some = VALUES if kind.kind in "fc" else np.floor(VALUES)
    some = some if kind.kind in "ub" else some * np.array([1, -1] * 4)
    return (some + 2j * some if kind.kind == "c" else some).astype(kind)


def widened(host: Any) -> Any:
    """What `widen` gives."""
    if host.dtype.kind == "c":
        return host.real.astype(np.float64) + 1000.0 * host.imag.astype(np.float64)
    return host.astype(np.float64)
