"""Matrix products with a fused epilogue."""

from __future__ import annotations

from typing import Any, Literal

from jaxtyping import Float32

from cuplate.kernels.simt import matmul_simt, matmul_simt_ragged
from cuplate.specialize import specialize
from cuplate.typing import Array

__all__ = ["matmul_epilogue"]


@specialize(
    "matmul_epilogue.cu.j2",
    tiles={"N": "tile", "M": "tile"},
    block=("tile", "tile"),
    require="relu == None or epilogue == None or relu == (epilogue == 'relu')",
    variants=(matmul_simt, matmul_simt_ragged),
)
def matmul_epilogue(
    a: Float32[Array, "M K"],
    b: Float32[Array, "K N"],
    bias: Float32[Array, " N"],
    *,
    tile: Literal[16, 32] = 16,
    epilogue: Literal["identity", "relu"] | None = None,
    relu: bool | None = None,
    out: Float32[Array, "M N"] | None = None,
    stream: Any = None,
) -> Float32[Array, "M N"]:
    """Return ``epilogue(a @ b + bias)`` in float32.

    Parameters
    ----------
    a : float32, shape (M, K), row-major
    b : float32, shape (K, N), row-major
    bias : float32, shape (N,)
    tile : {16, 32}
        Edge of the square tile that a block computes; `tile` squared threads a block. Given, it means the tiled kernel;
        left out, `matmul_simt` runs where it is faster, on a GPU from sm_80 on.
    epilogue : {"identity", "relu"}, optional
        What is applied to ``a @ b + bias``; identity when neither this nor `relu` is given.
    relu : bool, optional
        Short spelling: True is ``epilogue="relu"``, False is ``epilogue="identity"``. Both at odds are an error.
    out : float32, shape (M, N), row-major, optional
        Where the result goes; allocated when None.
    stream : stream, optional
        Default the current stream of the library that owns the arrays.

    Returns
    -------
    array, float32, shape (M, N)
        Of the arrays' own library. An empty product (K = 0) is `bias` and the epilogue alone.

    Notes
    -----
    Sums run in float32 in order of k; against float64 the error of ``c[i, j]`` is at most about
    ``K * 2**-24 * sum_k |a[i, k] * b[k, j]|``.
    """
    c = a @ b + bias
    return c.clip(0) if relu or epilogue == "relu" else c
