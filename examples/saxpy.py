"""A template of your own, bound in five lines: the kernel is in ``saxpy.cu.j2`` beside this file.

python examples/saxpy.py
"""

from __future__ import annotations

import sys
from typing import Any

import numpy
from jaxtyping import Float32

from cuplate import Array, f32, specialize


@specialize("saxpy.cu.j2")
def saxpy(alpha: f32, x: Float32[Array, " N"], y: Float32[Array, " N"]) -> Float32[Array, " N"]:
    """Return ``alpha * x + y``."""
    return alpha * x + y


def main() -> int:
    arrays = find_arrays()
    x, y = arrays.arange(1_000_000, dtype=arrays.float32), arrays.ones(1_000_000, dtype=arrays.float32)
    largest = float(abs(saxpy(0.5, x, y) - saxpy.reference(0.5, x, y)).max())
    print(saxpy.inspect(0.5, x, y))
    print(f"largest difference from the reference {largest:.3g}: {'PASSED' if largest == 0 else 'FAILED'}")
    return 0 if largest == 0 else 1  # these halves are exact in float32


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
