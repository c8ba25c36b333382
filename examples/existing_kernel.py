"""An existing CUDA file, used as it is: ``args=`` puts our names into its own argument order.

The compiler checks the types: a list that does not fit the kernel is an error before anything is launched.

python examples/existing_kernel.py
"""

from __future__ import annotations

import sys
from typing import Any

import numpy
from jaxtyping import Float32

from cuplate import Array, f32, specialize


@specialize(
    "sgemm.cu",
    args="M N K alpha a a.stride(0) b b.stride(0) out N",  # m n k alpha A lda B ldb C ldc
    tiles={"N": 16, "M": 16},
    block=(16, 16),
)
def sgemm(a: Float32[Array, "M K"], b: Float32[Array, "K N"], alpha: f32) -> Float32[Array, "M N"]:
    """Return ``alpha * a @ b``."""
    return alpha * (a @ b)


def main() -> int:
    arrays = find_arrays()
    draw = arrays.random.default_rng(0).standard_normal
    a, b = draw((120, 90), dtype=arrays.float32), draw((90, 50), dtype=arrays.float32)
    wide = draw((120, 128), dtype=arrays.float32)
    wide[:, :90] = a
    want = 2 * (a.astype("float64") @ b.astype("float64"))
    largest = max(float(abs(sgemm(x, b, 2.0) - want).max()) for x in (a, wide[:, :90]))  # packed, then a view
    print(sgemm.inspect(a, b, 2.0))
    print(f"largest difference from float64 {largest:.3g}: {'PASSED' if largest <= 1e-3 else 'FAILED'}")
    return 0 if largest <= 1e-3 else 1


def find_arrays() -> Any:
    """CuPy where a GPU is; else NumPy, whose arrays run on the CPU backend."""
    try:
        import cupy

        cupy.zeros(1)
        return cupy
    except Exception as error:  # no CuPy, no driver or no device
        print(f"on the CPU backend: {error}")
        return numpy


if __name__ == "__main__":
    sys.exit(main())
