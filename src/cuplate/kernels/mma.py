"""Matrix products with a fused epilogue on tensor cores from sm_80 on, in bfloat16 and float16."""

from __future__ import annotations

from typing import Any, Literal

from jaxtyping import Float32

from cuplate.kernels.epilogues import EPILOGUE_REQUIRE, WITHIN_INT, Activation, Expression, finish
from cuplate.kernels.families import ShortFloat
from cuplate.specialize import specialize
from cuplate.tensor_map import TensorMap
from cuplate.typing import Array

__all__ = ["matmul_mma", "matmul_mma_ragged", "matmul_mma_tma"]

THREADS = "tile_m // warp_m * (tile_n // warp_n) * 32"
KEYWORDS: Any = {
    "grid": "cdiv(M, tile_m) * cdiv(N, tile_n)",
    "block": THREADS,
    "shared_bytes": "stages * (tile_m + tile_n) * tile_k * 2",
}
REQUIRE = (
    "on_gpu",  # inline PTX
    "arch >= 80",
    # Whole copy passes of all threads over the tiles of both; the swizzle of b by rows repeats after 8 rows.
    f"tile_m % ({THREADS} // (tile_k // 8)) == 0 and tile_n % ({THREADS} // (tile_k // 8)) == 0",
    f"{THREADS} % (tile_n // 8) == 0 and tile_k % ({THREADS} // (tile_n // 8)) == 0",
    f"{THREADS} <= 1024",
    # Sums of a thread and what it multiplies next, in registers.
    "warp_m * warp_n <= 64 * 64",
    *EPILOGUE_REQUIRE,
)


@specialize(
    "matmul_mma.cu.j2",
    require=(
        *REQUIRE,
        "K % 8 == 0 and N % (2 if b.order == 'F' else 8) == 0",
        "a.aligned(16)",
        "b.aligned(16)",
        "out.aligned(4)",
    ),
    **KEYWORDS,
)
def matmul_mma(
    a: ShortFloat[Array, "M K"],
    b: ShortFloat[Array, "K N"],
    bias: ShortFloat[Array, " N"] | None = None,
    residual: ShortFloat[Array, "M N"] | None = None,
    row_scale: Float32[Array, " M"] | None = None,
    column_scale: Float32[Array, " N"] | None = None,
    *,
    epilogue: Activation | None = None,
    relu: bool | None = None,
    expression: Expression | None = None,
    scale: float | None = None,
    low: float | None = None,
    high: float | None = None,
    tile_m: Literal[64, 128, 256] = 128,
    tile_n: Literal[64, 128, 256] = 128,
    tile_k: Literal[32, 64] = 32,
    warp_m: Literal[32, 64] = 64,
    warp_n: Literal[32, 64] = 64,
    stages: Literal[2, 3, 4, 5] = 4,
    group_m: Literal[4, 8, 16] = 8,
    vec: Literal[8] = 8,
    out: ShortFloat[Array, "M N"] | None = None,
    stream: Any = None,
) -> ShortFloat[Array, "M N"]:
    """Return what `matmul_epilogue` does in bfloat16 or float16, by mma.sync and cp.async.

    Parameters
    ----------
    a : float16 or bfloat16, shape (M, K), row-major, 16-byte aligned, K a multiple of 8
    b : dtype of `a`, shape (K, N), row-major (N a multiple of 8) or column-major (of 2), 16-byte aligned
    bias, residual, row_scale, column_scale, epilogue, relu, expression, scale, low, high
        As for `matmul_epilogue`.
    tile_m, tile_n, tile_k, warp_m, warp_n, stages, group_m, vec
        As the template says; the defaults were the fastest of a prototype of this text on an H200.
    out : dtype of `a`, shape (M, N), row-major, 4-byte aligned, optional
        Where the result goes; allocated when None.
    stream : stream, optional
        Default the current stream of the library that owns the arrays.

    Returns
    -------
    array, dtype of `a`, shape (M, N)
        Summed in float32 by the tensor cores, which round each sum towards zero; rounded to nearest once.
    """
    return finish(a @ b, bias, residual, row_scale, column_scale, epilogue, relu, expression, scale, low, high)


@specialize(
    "matmul_mma_tma.cu.j2",
    grid="cdiv(M, tile_m) * cdiv(N, tile_n)",
    block=THREADS,
    shared_bytes="stages * ((tile_m + tile_n) * 128 + 8)",
    tensor_maps={
        "a": TensorMap(box=("min(tile_m, M)", 64), swizzle="128B", l2_promotion="256B"),
        "b": TensorMap(box=(64, "tile_n if b.order == 'F' else 64"), swizzle="128B", l2_promotion="256B"),
    },
    require=(
        "tile_m % warp_m == 0 and tile_n % warp_n == 0",
        "warp_m * warp_n <= 64 * 64",  # sums of a thread and what it multiplies next, in registers
        "N % 2 == 0",
        "out.aligned(4)",
        WITHIN_INT,
        *EPILOGUE_REQUIRE,
    ),
)
def matmul_mma_tma(
    a: ShortFloat[Array, "M K"],
    b: ShortFloat[Array, "K N"],
    bias: ShortFloat[Array, " N"] | None = None,
    residual: ShortFloat[Array, "M N"] | None = None,
    row_scale: Float32[Array, " M"] | None = None,
    column_scale: Float32[Array, " N"] | None = None,
    *,
    epilogue: Activation | None = None,
    relu: bool | None = None,
    expression: Expression | None = None,
    scale: float | None = None,
    low: float | None = None,
    high: float | None = None,
    tile_m: Literal[64, 128, 256] = 128,
    tile_n: Literal[64, 128, 256] = 128,
    warp_m: Literal[32, 64] = 64,
    warp_n: Literal[64] = 64,
    stages: Literal[2, 3, 4] = 3,
    group_m: Literal[4, 8, 16] = 8,
    out: ShortFloat[Array, "M N"] | None = None,
    stream: Any = None,
) -> ShortFloat[Array, "M N"]:
    """Return what `matmul_mma` does, with tiles that come by tensor map, from sm_90 on.

    Parameters
    ----------
    a : float16 or bfloat16, shape (M, K)
        Rows without gaps inside, each 16-byte aligned (K a multiple of 8, or padded rows); K is 1 or more.
    b : dtype of `a`, shape (K, N), row-major or column-major
        Aligned as `a`: N a multiple of 8 if row-major, K if column-major.
    bias, residual, row_scale, column_scale, epilogue, relu, expression, scale, low, high
        As for `matmul_epilogue`.
    tile_m, tile_n, warp_m, warp_n, stages, group_m
        As the template says.
    out : dtype of `a`, shape (M, N), row-major, 4-byte aligned, N even, optional
        Where the result goes; allocated when None.
    stream : stream, optional
        Default the current stream of the library that owns the arrays.

    Returns
    -------
    array, dtype of `a`, shape (M, N)
        Summed in float32 by the tensor cores, which round each sum towards zero; rounded to nearest once.
    """
    return finish(a @ b, bias, residual, row_scale, column_scale, epilogue, relu, expression, scale, low, high)


@specialize("matmul_mma.cu.j2", require=REQUIRE, **KEYWORDS)
def matmul_mma_ragged(
    a: ShortFloat[Array, "M K"],
    b: ShortFloat[Array, "K N"],
    bias: ShortFloat[Array, " N"] | None = None,
    residual: ShortFloat[Array, "M N"] | None = None,
    row_scale: Float32[Array, " M"] | None = None,
    column_scale: Float32[Array, " N"] | None = None,
    *,
    epilogue: Activation | None = None,
    relu: bool | None = None,
    expression: Expression | None = None,
    scale: float | None = None,
    low: float | None = None,
    high: float | None = None,
    tile_m: Literal[64, 128, 256] = 128,
    tile_n: Literal[64, 128, 256] = 128,
    tile_k: Literal[32, 64] = 32,
    warp_m: Literal[32, 64] = 64,
    warp_n: Literal[32, 64] = 32,
    stages: Literal[2, 3, 4, 5] = 2,
    group_m: Literal[4, 8, 16] = 8,
    vec: Literal[1] = 1,
    out: ShortFloat[Array, "M N"] | None = None,
    stream: Any = None,
) -> ShortFloat[Array, "M N"]:
    """Return what `matmul_mma` does, for any K, N and alignment: one element is read after the other."""
    return finish(a @ b, bias, residual, row_scale, column_scale, epilogue, relu, expression, scale, low, high)
