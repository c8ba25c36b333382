"""Matrix products with a fused epilogue on Hopper's tensor cores, in bfloat16 and float16: one text, four tiles."""

from __future__ import annotations

from typing import Any, Literal

from jaxtyping import Float32

from cuplate.autotune.tunable import tune
from cuplate.kernels.epilogues import EPILOGUE_REQUIRE, WITHIN_INT, Activation, Expression, finish
from cuplate.kernels.families import ShortFloat
from cuplate.kernels.fastest import fastest
from cuplate.kernels.named import named
from cuplate.kernels.wgmma_times import TILES_AND_K, TIMES
from cuplate.options import Options
from cuplate.specialize import specialize
from cuplate.tensor_map import TensorMap
from cuplate.typing import Array

__all__ = [
    "matmul_wgmma",
    "matmul_wgmma_flat",
    "matmul_wgmma_small",
    "matmul_wgmma_tuned",
    "matmul_wgmma_wide",
]

TILES = "cdiv(M, tile_m * cluster) * cdiv(N, tile_n)"
MAPS = {
    "a": TensorMap(box=("min(tile_m, M)", 64), swizzle="128B", l2_promotion="256B"),
    "b": TensorMap(box=(64, "tile_n // cluster if b.order == 'F' else 64"), swizzle="128B", l2_promotion="256B"),
    "residual": TensorMap(box=(64, 64), swizzle="128B"),
    "out": TensorMap(box=(64, 64), swizzle="128B"),
}
# The ring and its barriers, two buffers a group on the way out, a row of each for columns, barriers for the residual.
SHARED_BYTES = (
    "stages * ((tile_m + tile_n) * 128 + 16) + 32768 + tile_n * 8 * ((1 if bias else 0) + (1 if column_scale else 0))"
    " + (32 if residual else 0)"
)
REQUIRE = (
    "on_gpu",
    "arch == 90",
    # Sums of a thread, in registers: 64 rows times half a value a column, for each 64 rows that its group takes.
    "(tile_m if schedule == 'pingpong' else tile_m // 2) // 64 * (tile_n // 2) <= 192",
    "schedule == 'pingpong' and tile_m <= 128 or schedule == 'cooperative' and tile_m >= 128",
    WITHIN_INT,
    *EPILOGUE_REQUIRE,
)


def _product(
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
    tile_n: Literal[64, 128, 192, 256] = 128,
    stages: Literal[2, 3, 4, 5, 6, 7, 8] = 6,
    cluster: Literal[1, 2] = 1,
    group_m: Literal[4, 8, 16] = 8,
    schedule: Literal["pingpong", "cooperative"] = "pingpong",
    out: ShortFloat[Array, "M N"] | None = None,
    stream: Any = None,
) -> ShortFloat[Array, "M N"]:
    """Return what `matmul_epilogue` does in bfloat16 or float16, by wgmma and TMA, on sm_90 alone.

    Parameters
    ----------
    a : float16 or bfloat16, shape (M, K)
        Rows without gaps inside, each 16-byte aligned (K a multiple of 8, or padded rows); K is 1 or more.
    b : dtype of `a`, shape (K, N), row-major or column-major
        Aligned as `a`: N a multiple of 8 if row-major, K if column-major.
    residual : dtype of `a`, shape (M, N), optional
        Aligned as `a`: N a multiple of 8, or padded rows.
    bias, row_scale, column_scale, epilogue, relu, expression, scale, low, high
        As for `matmul_epilogue`.
    tile_m, tile_n, stages, cluster, group_m, schedule
        As the template says. By their defaults there are four functions: `matmul_wgmma` (128 x 128),
        `matmul_wgmma_wide` (128 x 192), `matmul_wgmma_flat` (64 x 192) and `matmul_wgmma_small` (64 x 128). Of
        `matmul_wgmma_tuned` they are left to `tune()`, but for `group_m`.
    out : dtype of `a`, shape (M, N), row-major, 16-byte aligned, N a multiple of 8, optional
        Where the result goes; allocated when None.
    stream : stream, optional
        Default the current stream of the library that owns the arrays.

    Returns
    -------
    array, dtype of `a`, shape (M, N)
        Summed in float32 by the tensor cores, which round each sum towards zero; rounded to nearest once.
    """
    return finish(a @ b, bias, residual, row_scale, column_scale, epilogue, relu, expression, scale, low, high)


KEYWORDS: Any = {
    "options": Options(arch_specific=True),
    # The fewest clusters that need no more rounds: multiprocessors that would only have waited leave their power to the
    # others.
    "grid": f"cluster * cdiv({TILES}, cdiv({TILES}, sm_count // cluster))",
    "block": 384,
    "shared_bytes": SHARED_BYTES,
    "tensor_maps": MAPS,
    "require": REQUIRE,
}
TEMPLATE = "matmul_wgmma.cu.j2"
matmul_wgmma_wide = specialize(TEMPLATE, when=fastest("matmul_wgmma_wide", TIMES), **KEYWORDS)(
    named(_product, "matmul_wgmma_wide", tile_n=192, stages=4)
)
matmul_wgmma_flat = specialize(TEMPLATE, when=fastest("matmul_wgmma_flat", TIMES), **KEYWORDS)(
    named(_product, "matmul_wgmma_flat", tile_m=64, tile_n=192, stages=5)
)
matmul_wgmma_small = specialize(TEMPLATE, when=fastest("matmul_wgmma_small", TIMES), **KEYWORDS)(
    named(_product, "matmul_wgmma_small", tile_m=64, stages=8)
)
matmul_wgmma = specialize(TEMPLATE, **KEYWORDS)(named(_product, "matmul_wgmma"))

_NAMES = ("tile_m", "tile_n", "stages", "cluster", "schedule")
_CONFIGS = (
    (128, 128, 6, 1, "pingpong"),
    (128, 128, 6, 2, "pingpong"),
    (128, 192, 4, 1, "pingpong"),
    (128, 192, 4, 2, "pingpong"),
    (64, 128, 8, 1, "pingpong"),
    (64, 192, 5, 1, "pingpong"),
    (64, 256, 4, 1, "pingpong"),
    (128, 256, 4, 1, "cooperative"),
)
_TUNED = tune(configs=[dict(zip(_NAMES, values, strict=True)) for values in _CONFIGS], key=TILES_AND_K)
matmul_wgmma_tuned = specialize(TEMPLATE, **KEYWORDS)(
    named(_product, "matmul_wgmma_tuned", **dict.fromkeys(_NAMES, _TUNED))
)
