"""Counts of integers."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from jaxtyping import Int64, Integer

from cuplate.specialize import specialize
from cuplate.typing import Array

__all__ = ["histogram"]


@specialize(
    "histogram.cu.j2",
    grid="max(1, min(cdiv(N * x.itemsize, 64 * threads), 2048 // threads * sm_count))",
    block="threads",
    zeroed="out",
    require=("bins >= 1", "threads % 32 == 0", "32 <= threads", "threads <= 1024"),
)
def histogram(
    x: Integer[Array, " N"],
    *,
    bins: int = 256,
    threads: int = 512,
    out: Int64[Array, " (bins)"] | None = None,
    stream: Any = None,
) -> Int64[Array, " (bins)"]:
    """Return how often each of 0 to ``bins - 1`` occurs; other values are not counted.

    Parameters
    ----------
    x : any integer dtype, shape (N,)
    bins : int, 1 or more
        Compile time. Up to 8192 are counted in shared memory, more in global memory.
    threads : int, multiple of 32, up to 1024
        Threads of a block.
    out : int64, shape (bins,), optional
        Where the result goes; overwritten; allocated when None.
    stream : stream, optional
        Default the current stream of the library that owns the arrays.

    Returns
    -------
    array, int64, shape (bins,)

    Notes
    -----
    Up to 256 bins each lane of a warp has counts of its own, in a bank of its own: equal values, which make other
    histograms slow, cost no more than others.
    """
    v: Any = x
    return cast("Array", np.bincount(v[(v >= 0) & (v < bins)].astype(np.int64), minlength=bins))
