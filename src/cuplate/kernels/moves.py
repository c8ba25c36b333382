"""The transpose of a matrix."""

from __future__ import annotations

from typing import Any, Literal, cast

from jaxtyping import Shaped

from cuplate.specialize import specialize
from cuplate.typing import Array

__all__ = ["transpose"]

_EDGE = "128 if a.itemsize <= 2 else 64 if a.itemsize <= 8 else 32"


@specialize("transpose.cu.j2", tiles={"N": _EDGE, "M": _EDGE}, block="threads")
def transpose(
    a: Shaped[Array, "M N"],
    *,
    threads: Literal[64, 128, 256] = 256,
    out: Shaped[Array, "N M"] | None = None,
    stream: Any = None,
) -> Shaped[Array, "N M"]:
    """Return the transpose of a matrix as a row-major copy.

    Parameters
    ----------
    a : any dtype, shape (M, N), row-major
    threads : {256, 128, 64}
        Threads of a block, which moves a tile of 64 x 64 elements (128 x 128 of one or two bytes, 32 x 32 of 16).
    out : dtype of `a`, shape (N, M), row-major, optional
        Where the result goes; allocated when None.
    stream : stream, optional
        Default the current stream of the library that owns the arrays.

    Returns
    -------
    array, dtype of `a`, shape (N, M)
        Bit for bit.

    Notes
    -----
    Sixteen bytes at a time where both arrays lie at multiples of 16 bytes and so do all their rows.
    """
    matrix: Any = a
    return cast("Array", matrix.T)
