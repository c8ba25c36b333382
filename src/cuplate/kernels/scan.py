"""Running sums."""

from __future__ import annotations

from typing import Any, Literal, cast

import numpy as np

from cuplate.kernels.families import RealOrInt32
from cuplate.specialize import specialize
from cuplate.typing import Array

__all__ = ["inclusive_scan"]

_TILES = "max(1, cdiv(N, threads * items))"


@specialize(
    "inclusive_scan.cu.j2",
    grid=f"min({_TILES}, sm_count * (1024 // threads // (2 if items == 32 else 1)))",
    block="threads",
    shared_bytes="threads * items * x.itemsize if arch >= 80 else 0",
    scratch={"state": ("uint64", f"1 + {_TILES}")},
    zeroed="state",
)
def inclusive_scan(
    x: RealOrInt32[Array, " N"],
    *,
    threads: Literal[128, 256, 512] = 512,
    items: Literal[8, 16, 32] = 32,
    out: RealOrInt32[Array, " N"] | None = None,
    stream: Any = None,
) -> RealOrInt32[Array, " N"]:
    """Return the running sum: element i is ``x[0] + ... + x[i]``.

    Parameters
    ----------
    x : float32, float16, bfloat16 or int32, shape (N,)
    threads : {512, 128, 256}
        Threads of a block.
    items : {32, 8, 16}
        Elements of a tile that a thread holds; a block takes tiles of ``threads * items`` elements.
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
