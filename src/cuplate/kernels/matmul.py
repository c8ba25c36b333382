"""Matrix products with a fused epilogue."""

from __future__ import annotations

from typing import Any, Literal

from jaxtyping import Float32

from cuplate.kernels.epilogues import EPILOGUE_REQUIRE, Activation, Expression, finish
from cuplate.kernels.families import Real
from cuplate.kernels.mma import matmul_mma, matmul_mma_ragged, matmul_mma_tma
from cuplate.kernels.simt import (
    matmul_simt,
    matmul_simt_balanced,
    matmul_simt_medium,
    matmul_simt_ragged,
    matmul_simt_ragged_medium,
    matmul_simt_ragged_small,
    matmul_simt_ragged_split,
    matmul_simt_ragged_split_small,
    matmul_simt_small,
    matmul_simt_split,
    matmul_simt_split_small,
)
from cuplate.kernels.split import matmul_split, matmul_split_small, matmul_split_wide
from cuplate.kernels.wgmma import matmul_wgmma, matmul_wgmma_flat, matmul_wgmma_small, matmul_wgmma_wide
from cuplate.kernels.wgmma_split import (
    matmul_wgmma_single,
    matmul_wgmma_split,
    matmul_wgmma_split_deep,
    matmul_wgmma_split_tall,
)
from cuplate.specialize import specialize
from cuplate.typing import Array

__all__ = ["matmul_epilogue"]


@specialize(
    "matmul_epilogue.cu.j2",
    tiles={"N": "tile", "M": "tile"},
    block=("tile", "tile"),
    require=("precision == None", "a.itemsize == 4 or arch >= 80", *EPILOGUE_REQUIRE),
    variants=(
        matmul_simt_balanced,
        matmul_simt_medium,
        matmul_simt_small,
        matmul_simt_split,
        matmul_simt_split_small,
        matmul_simt,
        matmul_simt_ragged_medium,
        matmul_simt_ragged_small,
        matmul_simt_ragged_split,
        matmul_simt_ragged_split_small,
        matmul_simt_ragged,
        matmul_wgmma_wide,
        matmul_wgmma_flat,
        matmul_wgmma_small,
        matmul_wgmma_single,
        matmul_wgmma_split,
        matmul_wgmma_split_tall,
        matmul_wgmma_split_deep,
        matmul_wgmma,
        matmul_mma_tma,
        matmul_mma,
        matmul_mma_ragged,
        matmul_split_wide,
        matmul_split_small,
        matmul_split,
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
    precision: Literal["bf16x3", "bf16x6"] | None = None,
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
    """Return ``clip(f(scale * row_scale * column_scale * (a @ b) + bias) + residual, low, high)``.

    What is not given is not in the kernel. On a GPU from sm_80 on the kernel is chosen by dtype, sizes, alignment and
    architecture; ``matmul_epilogue.inspect(a, b)`` says which one it is, and why.

    Parameters
    ----------
    a : float32, float16 or bfloat16, shape (M, K), row-major
    b : dtype of `a`, shape (K, N), row-major or column-major
    bias : dtype of `a`, shape (N,), optional
    residual : dtype of `a`, shape (M, N), row-major, optional
        Not in the memory of `out`.
    row_scale, column_scale : float32, shape (M,) and (N,), optional
        One factor for each row and column, also of 16-bit products: what a quantised array is multiplied by.
    precision : {"bf16x3", "bf16x6"}, optional
        float32 by three or six products of bfloat16, on sm_90 and as `matmul_split` says: relative errors below 8e-6
        and 2e-6. Never unless asked for; refused where it cannot be had.
    tile : {16, 32}
        Edge of the square tile that a block computes; `tile` squared threads a block. Given, it means the tiled kernel.
    epilogue : {"identity", "relu", "gelu", "gelu_tanh", "silu"}, optional
        The function f: ``"gelu"`` is ``x * (1 + erf(x / sqrt(2))) / 2``, ``"gelu_tanh"`` its usual approximation;
        identity when neither this, `relu` nor `expression` is given.
    relu : bool, optional
        Short spelling: True is ``epilogue="relu"``, False, alone, the identity. Beside `epilogue`, True with another
        than ``"relu"`` is an error, and so is False with ``"relu"``.
    expression : str, optional
        The function f as C++ of a float ``x``: ``"x / (1 + fabsf(x))"``. It may name ``row`` and ``column``, which are
        integers, and ``residual``, which is then not added. See docs/kernels.md for its grammar.
    scale, low, high : float, optional
        A factor and limits. Compile time: each value is a kernel of its own.
    out : dtype of `a`, shape (M, N), row-major, optional
        Where the result goes; allocated when None.
    stream : stream, optional
        Default the current stream of the library that owns the arrays.

    Returns
    -------
    array, dtype of `a`, shape (M, N)
        Of the arrays' own library. An empty product (K = 0) is zero before its epilogue.

    Notes
    -----
    All is computed in float32, and a 16-bit result is rounded once. In float32 sums run in order of k, and never in
    TF32; against float64 the error of ``c[i, j]`` is at most about ``K * 2**-24 * sum_k |a[i, k] * b[k, j]|``. Tensor
    cores round each sum towards zero. Into 16 bits ``"gelu"`` is a polynomial and an exponential, within 2**-14
    of it or 2**-22. ReLU and limits keep NaN.
    """
    return finish(a @ b, bias, residual, row_scale, column_scale, epilogue, relu, expression, scale, low, high)
