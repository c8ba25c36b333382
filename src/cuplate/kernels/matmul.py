"""Matrix products with a fused epilogue."""

from __future__ import annotations

from typing import Any, Literal

from jaxtyping import Float32

from cuplate.kernels.epilogues import EPILOGUE_REQUIRE, Activation, Expression, finish
from cuplate.kernels.families import Real
from cuplate.kernels.mma import matmul_mma, matmul_mma_ragged
from cuplate.kernels.simt import matmul_simt, matmul_simt_ragged
from cuplate.kernels.wgmma import matmul_wgmma, matmul_wgmma_small, matmul_wgmma_wide
from cuplate.specialize import specialize
from cuplate.typing import Array

__all__ = ["matmul_epilogue"]


@specialize(
    "matmul_epilogue.cu.j2",
    tiles={"N": "tile", "M": "tile"},
    block=("tile", "tile"),
    require=("a.itemsize == 4 or arch >= 80", *EPILOGUE_REQUIRE),
    variants=(
        matmul_simt,
        matmul_simt_ragged,
        matmul_wgmma_wide,
        matmul_wgmma_small,
        matmul_wgmma,
        matmul_mma,
        matmul_mma_ragged,
    ),
)
def matmul_epilogue(
    a: Real[Array, "M K"],
    b: Real[Array, "K N"],
    bias: Real[Array, " N"] | None = None,
    residual: Real[Array, "M N"] | None = None,
    row_scale: Float32[Array, " M"] | None = None,
    column_scale: Float32[Array, " N"] | None = None,
    *,
    tile: Literal[16, 32] = 16,
    epilogue: Activation | None = None,
    relu: bool | None = None,
    expression: Expression | None = None,
    scale: float | None = None,
    low: float | None = None,
    high: float | None = None,
    out: Real[Array, "M N"] | None = None,
    stream: Any = None,
) -> Real[Array, "M N"]:
    """Return ``epilogue(a @ b + bias)``, summed in float32.

    Parameters
    ----------
    a : float32, float16 or bfloat16, shape (M, K), row-major
    b : dtype of `a`, shape (K, N), row-major, or column-major where a variant takes it
    bias : dtype of `a`, shape (N,), optional
    tile : {16, 32}
        Edge of the square tile that a block computes; `tile` squared threads a block. Given, it means the tiled kernel;
        left out, a faster kernel runs on a GPU from sm_80 on: `matmul_simt` in float32, one on tensor cores otherwise.
    epilogue : {"identity", "relu", "gelu", "gelu_tanh", "silu"}, optional
        What is applied to ``a @ b + bias``; identity when neither this nor `relu` is given.
    relu : bool, optional
        Short spelling: True is ``epilogue="relu"``, False is ``epilogue="identity"``. Both at odds are an error.
    out : dtype of `a`, shape (M, N), row-major, optional
        Where the result goes; allocated when None.
    stream : stream, optional
        Default the current stream of the library that owns the arrays.

    Returns
    -------
    array, dtype of `a`, shape (M, N)
        Of the arrays' own library. An empty product (K = 0) is `bias` and the epilogue alone.

    Notes
    -----
    In float32 sums run in order of k; against float64 the error of ``c[i, j]`` is at most about
    ``K * 2**-24 * sum_k |a[i, k] * b[k, j]|``. Tensor cores round each sum towards zero;
    16-bit results are rounded once.
    """
    return finish(a @ b, bias, residual, row_scale, column_scale, epilogue, relu, expression, scale, low, high)
