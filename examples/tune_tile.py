"""A parameter left to measurement: which block and width double an array the fastest, here.

The kernel is in ``twice.cu.j2`` beside this file. On a GPU the first call measures by itself and later processes find
the winner in the cache; on the CPU backend ``tune`` has to be asked.

    python examples/tune_tile.py
"""

from __future__ import annotations

import argparse
import sys
from typing import Any, Literal

import numpy
from jaxtyping import Float32

from cuplate import Array, specialize, tune


@specialize("twice.cu.j2", tiles={"N": "block_x * width"}, block="block_x", require="block_x * width <= 256")
def twice(
    x: Float32[Array, " N"], *, block_x: Literal[64, 128] = tune(), width: Literal[1, 4] = tune()
) -> Float32[Array, " N"]:
    """Return ``2 * x``."""
    return x + x


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--n", type=int, default=1 << 16, help="elements")
    options = parser.parse_args()
    arrays = find_arrays()
    x = arrays.arange(options.n, dtype=arrays.float32)
    known = twice.tuning(x)
    print(known if known.origin == "stored" else twice.tune(x))
    right = bool((twice(x) == 2 * x).all())
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
