"""The dtypes a kernel can name: one table from dtype name to C type, size and header."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DTYPES", "SAME_SIZE", "SPELLINGS", "Dtype"]


@dataclass(frozen=True, slots=True)
class Dtype:
    """One element type.

    Attributes
    ----------
    name : str
        NumPy's or ml_dtypes' name, for example ``"bfloat16"``.
    ctype : str
        C++ spelling; complex types are CUDA's two-component vector types, which have the same layout.
    itemsize : int
        Bytes of one element.
    header : str or None
        CUDA header that defines ``ctype``; None for what the compiler knows by itself.
    """

    name: str
    ctype: str
    itemsize: int
    header: str | None = None


DTYPES: dict[str, Dtype] = {
    d.name: d
    for d in (
        Dtype("bool", "bool", 1),
        Dtype("int8", "signed char", 1),
        Dtype("int16", "short", 2),
        Dtype("int32", "int", 4),
        Dtype("int64", "long long", 8),
        Dtype("uint8", "unsigned char", 1),
        Dtype("uint16", "unsigned short", 2),
        Dtype("uint32", "unsigned int", 4),
        Dtype("uint64", "unsigned long long", 8),
        Dtype("float16", "__half", 2, "cuda_fp16.h"),
        Dtype("bfloat16", "__nv_bfloat16", 2, "cuda_bf16.h"),
        Dtype("float8_e4m3fn", "__nv_fp8_e4m3", 1, "cuda_fp8.h"),
        Dtype("float8_e5m2", "__nv_fp8_e5m2", 1, "cuda_fp8.h"),
        Dtype("float32", "float", 4),
        Dtype("float64", "double", 8),
        Dtype("complex64", "float2", 8),
        Dtype("complex128", "double2", 16),
    )
}

SPELLINGS = {
    "bf16": "bfloat16",
    "half": "float16",
    **{f"{prefix}{bits}": f"float{bits}" for prefix in ("f", "fp") for bits in (16, 32, 64)},
    "float": "float32",
    "single": "float32",
    "double": "float64",
}
"""What elsewhere is the name of a dtype, and here is none: for hints."""

SAME_SIZE = {
    "long long": ("long",),
    "unsigned long long": ("unsigned long",),
    "signed char": ("char",),
}
"""Other C types that a kernel of its own may have in the place of one of ours."""
