"""Running sums."""

from __future__ import annotations

from typing import Any, Literal, cast

import numpy as np

from cuplate.kernels.families import RealOrInt32
from cuplate.specialize import specialize
from cuplate.typing import Array

__all__ = ["inclusive_scan", "inclusive_scan_large", "inclusive_scan_small"]


def _keywords(threads: str | int, items: str | int) -> Any:
    tiles = f"max(1, cdiv(N, {threads} * {items}))"
    return {
        "grid": f"min({tiles}, sm_count * (1024 // {threads} // (2 if {items} >= 32 else 1)))",
        "block": threads,
        "shared_bytes": f"{threads} * {items} * x.itemsize if arch >= 80 else 0",
        "scratch": {"state": ("uint64", f"1 + {tiles}")},
        "zeroed": "state",
    }


LARGE = "(32 if x.itemsize == 2 else 48 if 80 <= arch < 100 else 40)"  # as the template says


# Measured on an H200, see docs/decisions/0048: large tiles have fewer waits, small ones reach every multiprocessor.
@specialize("inclusive_scan_small.cu.j2", when="N < 2**19", **_keywords(256, 16))
def inclusive_scan_small(
    x: RealOrInt32[Array, " N"], *, out: RealOrInt32[Array, " N"] | None = None, stream: Any = None
) -> RealOrInt32[Array, " N"]:
    """Return what `inclusive_scan` does, by tiles of 4096 elements: the fastest below 2**19."""
    v: Any = x
    return cast("Array", np.cumsum(v))


@specialize("inclusive_scan_large.cu.j2", when="N >= 2**25", **_keywords(512, LARGE))
def inclusive_scan_large(
    x: RealOrInt32[Array, " N"], *, out: RealOrInt32[Array, " N"] | None = None, stream: Any = None
) -> RealOrInt32[Array, " N"]:
    """Return what `inclusive_scan` does, by tiles of 24,576 elements (in 16 bits 16,384): the fastest from 2**25 on."""
    v: Any = x
    return cast("Array", np.cumsum(v))


@specialize(
    "inclusive_scan.cu.j2",
    variants=(inclusive_scan_small, inclusive_scan_large),
    **_keywords("threads", "items"),
)
def inclusive_scan(
    x: RealOrInt32[Array, " N"],
    *,
    threads: Literal[128, 256, 512] = 512,
    items: Literal[8, 16, 32, 48] = 16,
    out: RealOrInt32[Array, " N"] | None = None,
    stream: Any = None,
) -> RealOrInt32[Array, " N"]:
    """Return the running sum: element i is ``x[0] + ... + x[i]``.

    Parameters
    ----------
    x : float32, float16, bfloat16 or int32, shape (N,)
    threads : {128, 256, 512}
        Threads of a block.
    items : {8, 16, 32, 48}
        Elements of a tile that a thread holds; a block takes tiles of ``threads * items`` elements. Where neither is
        given, short and long arrays run `inclusive_scan_small` and `inclusive_scan_large`.
    out : dtype of `x`, shape (N,), optional
        Where the result goes; allocated when None.
    stream : stream, optional
        Default the current stream of the library that owns the arrays.

    Returns
    -------
    array, dtype of `x`, shape (N,)

    Notes
    -----
    One launch reads and writes each element once (decoupled look-back); eight bytes a tile are scratch memory. Sums of
    floats run in float32, first within a tile and then over tiles, so their error grows slower than that of a loop; the
    order of additions over tiles depends on which blocks were done when, so the last bits may differ from run to run.
    Sums of int32 wrap around.
    """
    v: Any = x
    return cast("Array", np.cumsum(v))
