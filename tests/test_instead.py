"""What to write instead of what NVRTC does not have: each suggestion names its header, and both compilers take it."""

from __future__ import annotations

import re

import numpy as np
import pytest
from jaxtyping import Float32

from cuplate import Array, Inline, specialize
from cuplate.instead import instead_of_header, instead_of_name

NAMES = (
    *("INFINITY", "HUGE_VAL", "HUGE_VALF", "NAN", "M_PI", "uint", "ushort"),
    *(f"{kind}_{name}" for kind in ("FLT", "DBL") for name in ("MAX", "MIN", "EPSILON", "TRUE_MIN")),
)
CONSTANTS = ("CHAR_BIT", "INT_MAX", "INT_MIN", "UINT_MAX", "LLONG_MAX", "INT32_MAX", "UINT64_MAX")
TYPES = ("int8_t", "int16_t", "int32_t", "int64_t", "uint8_t", "uint16_t", "uint32_t", "uint64_t", "uintptr_t")
HEADERS = ("array", "cassert", "climits", "cmath", "cstddef", "cstdint", "limits", "type_traits", "utility")


def suggested() -> Inline:
    """A kernel of all that is suggested."""
    includes = {instead_of_name(name) for name in (*CONSTANTS, *TYPES)}
    includes |= {f"#include <cuda/std/{name}>" for name in HEADERS}
    lines = [f"sum += {name} != 0;" for name in CONSTANTS] + [f"sum += sizeof({name});" for name in TYPES]
    for name in NAMES:
        text, _, include = str(instead_of_name(name)).partition(", of ")
        includes.add(include)
        lines.append(f"sum += {re.sub(r' [(].*', '', text)} != 0;" if include else f"sum += ({text})1;")
    head = "\n".join(sorted(filter(None, map(str, includes))))
    body = "\n    ".join(lines)
    return Inline(f"""{head}
extern "C" __global__ void {{{{ kernel }}}}({{{{ args }}}})
{{
    float sum = 0;
    {body}
    out[0] = min(sum, x[0]) + sqrt(4.0f) + fabsf(-1.0f);
    assert(sum > 0);
    memset(out + 1, 0, 4);
    assert(abs(-3) == 3);
}}
""")


@specialize(suggested(), block=1, grid=1)
def kernel(x: Float32[Array, "2"]) -> Float32[Array, "2"]:
    """The smaller one, and 3 more."""
    raise NotImplementedError


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_what_is_suggested_compiles(arch: str) -> None:
    """By NVRTC, with the header that the suggestion names."""
    pytest.importorskip("cuda.core")
    assert kernel.compile(arch=arch).code


def test_what_is_suggested_runs_on_the_cpu_backend() -> None:
    """All of it, the headers too."""
    assert kernel(np.array([5, 5], np.float32)).tolist() == [8, 0]


@pytest.mark.parametrize("name", [*NAMES, *CONSTANTS, *TYPES])
def test_each_name_has_a_suggestion(name: str) -> None:
    """A header, or a text that stands for it."""
    assert instead_of_name(name)


def test_a_name_of_std_is_told_without_it() -> None:
    """min and the mathematics are there; else cuda::std."""
    assert str(instead_of_name("min", of_std=True)).startswith("min without std::")
    assert instead_of_name("swap", of_std=True) == "cuda::std::swap, of #include <cuda/std/utility>"


@pytest.mark.parametrize("name", ["cfloat", "float.h", "cmath", "math.h", "algorithm", "stdint.h", "stdio.h", *HEADERS])
def test_a_header_of_the_standard_library_has_a_suggestion(name: str) -> None:
    """None of them suggests an include directory, and none itself."""
    told = instead_of_header(name)
    assert told and "Options" not in told and f"<{name}>" not in told


@pytest.mark.parametrize("name", ["vector", "x.cuh", "my/math.h"])
def test_of_other_headers_nothing_is_known(name: str) -> None:
    """A user's own file may have any name."""
    assert instead_of_header(name) is None
    assert instead_of_name("xyz") is None


def test_old_shuffles_and_votes_have_a_mask_in_front() -> None:
    """Volta took the others away; cuda.h, which would define a tensor map, asks for a header that is not there."""
    assert str(instead_of_name("__shfl_down")).startswith("__shfl_down_sync, with a mask")
    assert "struct alignas(64) CUtensorMap" in str(instead_of_header("stdlib.h"))
    assert "cuda.h" not in str(instead_of_name("CUtensorMap"))
