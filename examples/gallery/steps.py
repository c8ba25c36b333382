"""A matrix product in eight steps, one idea each, from one thread an element to Hopper's tensor cores.

The templates lie beside this file; the last three steps are the kernels that ship. docs/gallery.md explains them, and
benchmarks/gallery.py measures them. This checks each one that can run here:

    python examples/gallery/steps.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy
from jaxtyping import Float32

from cuplate import Array, specialize
from cuplate.errors import DeviceError, ParameterError
from cuplate.kernels import matmul_mma, matmul_simt, matmul_wgmma

TILES = {"N": 128, "M": 128}
WHOLE = "M % 128 == 0 and N % 128 == 0 and K % 8 == 0"


@specialize("naive.cu.j2", tiles={"N": 32, "M": 8}, block=(32, 8))
def naive(a: Float32[Array, "M K"], b: Float32[Array, "K N"]) -> Float32[Array, "M N"]:
    """Return ``a @ b``."""
    return a @ b


@specialize("shared_tile.cu.j2", tiles={"N": 32, "M": 32}, block=(32, 32))
def shared_tile(a: Float32[Array, "M K"], b: Float32[Array, "K N"]) -> Float32[Array, "M N"]:
    """Return ``a @ b``."""
    return a @ b


@specialize("register_tile.cu.j2", tiles=TILES, block=(16, 16), require=WHOLE)
def register_tile(a: Float32[Array, "M K"], b: Float32[Array, "K N"]) -> Float32[Array, "M N"]:
    """Return ``a @ b`` for whole tiles."""
    return a @ b


ALIGNED = (WHOLE, "a.aligned(16)", "b.aligned(16)", "out.aligned(16)")


@specialize("wide_copies.cu.j2", tiles=TILES, block=(16, 16), require=ALIGNED)
def wide_copies(a: Float32[Array, "M K"], b: Float32[Array, "K N"]) -> Float32[Array, "M N"]:
    """Return ``a @ b`` for whole tiles at multiples of 16 bytes."""
    return a @ b


@specialize("warp_tile.cu.j2", tiles=TILES, block=256, require=ALIGNED)
def warp_tile(a: Float32[Array, "M K"], b: Float32[Array, "K N"]) -> Float32[Array, "M N"]:
    """Return ``a @ b`` for whole tiles at multiples of 16 bytes."""
    return a @ b


class Step(NamedTuple):
    """One step: what it adds, the function, and the dtype of its arrays."""

    idea: str
    function: Callable[..., Any]
    dtype: str


STEPS = (
    Step("one thread an element", naive, "float32"),
    Step("tiles in shared memory", shared_tile, "float32"),
    Step("8 x 8 elements a thread", register_tile, "float32"),
    Step("16 bytes a load", wide_copies, "float32"),
    Step("warp tiles", warp_tile, "float32"),
    Step("a ring of tiles by cp.async", matmul_simt, "float32"),
    Step("tensor cores by mma.sync", matmul_mma, "bfloat16"),
    Step("wgmma, fed by TMA", matmul_wgmma, "bfloat16"),
)


def main() -> int:
    arrays = find_arrays()
    right = True
    for step in STEPS:
        dtype = arrays.float32 if step.dtype == "float32" else arrays.float16  # neither library has bfloat16
        rng = arrays.random.default_rng(0)
        a, b = (rng.standard_normal(shape, dtype=arrays.float32).astype(dtype) for shape in ((128, 24), (24, 256)))
        try:
            c = step.function(a, b).astype(arrays.float64)
        except (DeviceError, ParameterError):  # its instructions are not for this device, or not for the CPU backend
            print(f"{step.function.__name__:<14} {step.idea:<28} not for this device")
            continue
        a, b = a.astype(arrays.float64), b.astype(arrays.float64)
        rounding = 2.0**-24 if step.dtype == "float32" else 2.0**-11
        good = bool((abs(c - a @ b) <= 26 * rounding * (abs(a) @ abs(b))).all())
        print(f"{step.function.__name__:<14} {step.idea:<28} {'right' if good else 'WRONG'}")
        right &= good
    print("PASSED" if right else "FAILED")
    return 0 if right else 1


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
