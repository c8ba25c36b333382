"""Running sums."""

from __future__ import annotations

from typing import Any, Literal, cast

import numpy as np

from cuplate.kernels.families import RealOrInt32
from cuplate.specialize import specialize
from cuplate.typing import Array

__all__ = ["inclusive_scan"]

_TILES = "max(1, cdiv(N * x.itemsize, 16 * packs * threads))"


@specialize(
    "inclusive_scan.cu.j2",
    grid=f"min({_TILES}, sm_count * max(1, min(2048 // threads // 2, 200_000 // (16 * packs * threads * stages))))",
    block="threads",
    shared_bytes="16 * packs * threads * stages",
    require="packs * threads * stages <= 6144",  # 96 kB, which all but sm_75 have
    scratch={"state": ("uint64", f"1 + {_TILES}")},
    zeroed="state",
)
def inclusive_scan(
    x: RealOrInt32[Array, " N"],
    *,
    threads: Literal[128, 256, 512, 1024] = 256,
    packs: Literal[1, 2, 4, 8] = 4,
    stages: Literal[2, 3, 4, 6] = 3,
    out: RealOrInt32[Array, " N"] | None = None,
    stream: Any = None,
) -> RealOrInt32[Array, " N"]:
    """Return the running sum: element i is ``x[0] + ... + x[i]``.

    Parameters
    ----------
    x : float32, float16, bfloat16 or int32, shape (N,)
    threads : {512, 128, 256, 1024}
        Threads of a block.
    packs : {8, 1, 2, 4}
        Packs of 16 bytes a thread; a block's tile is ``16 * packs * threads`` bytes.
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
