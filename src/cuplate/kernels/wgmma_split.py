"""Matrix products of few tiles on Hopper's tensor cores: a cluster of blocks computes one tile over parts of K."""

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
    "matmul_wgmma_single",
    "matmul_wgmma_split",
    "matmul_wgmma_split_deep",
    "matmul_wgmma_split_tall",
    "matmul_wgmma_split_tuned",
]


MAPS = {
    "a": TensorMap(box=("min(tile_m, M)", 64), swizzle="128B", l2_promotion="256B"),
    "b": TensorMap(box=(64, "tile_n if b.order == 'F' else 64"), swizzle="128B", l2_promotion="256B"),
}
SHARED_BYTES = (  # the ring, its barriers, and what the other blocks have added up
    "stages * ((tile_m + (tile_n if b.order == 'F' else cdiv(tile_n, 64) * 64)) * 128 + 16)"
    " + (split - 1) * tile_m * tile_n // split * 4"
)
REQUIRE = (
    "on_gpu",
    "arch == 90",
    "cdiv(tile_m, 128) * tile_n <= 256",  # two floats of a thread's sums, in registers
    "tile_n % (8 * split) == 0",
    "N % 2 == 0",
    "out.aligned(4)",
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
    tile_m: Literal[64, 128, 256] = 64,
    tile_n: Literal[64, 96, 128, 160, 192, 256] = 64,
    stages: Literal[2, 3, 4, 5, 6, 7, 8] = 8,
    split: Literal[1, 2, 4, 8] = 2,
    out: ShortFloat[Array, "M N"] | None = None,
    stream: Any = None,
) -> ShortFloat[Array, "M N"]:
    """Return what `matmul_wgmma` does, for products of few tiles: a cluster computes one of them over parts of K.

    The arguments are those of `matmul_wgmma`, but that `out` and `residual` are without gaps, `out` aligned to 4 bytes,
    and N even. Parts of K are added up in float32, always in the same order.

    Parameters
    ----------
    tile_m, tile_n, stages, split
        As the template says. By their defaults there are four functions: `matmul_wgmma_split` (64 x 64 by two blocks),
        `matmul_wgmma_single` (by one), `matmul_wgmma_split_tall` (128 x 64 by two) and `matmul_wgmma_split_deep`
        (128 x 128 by four). Of `matmul_wgmma_split_tuned` they are left to `tune()`.
    """
    return finish(a @ b, bias, residual, row_scale, column_scale, epilogue, relu, expression, scale, low, high)


KEYWORDS: Any = {
    "options": Options(arch_specific=True),
    "grid": "split * cdiv(M, tile_m) * cdiv(N, tile_n)",
    "block": "min(tile_m, 128) * 2 + 32",
    "shared_bytes": SHARED_BYTES,
    "tensor_maps": MAPS,
    "require": REQUIRE,
}
TEMPLATE = "matmul_wgmma_split.cu.j2"
matmul_wgmma_split = specialize(TEMPLATE, when=fastest("matmul_wgmma_split", TIMES), **KEYWORDS)(
    named(_product, "matmul_wgmma_split")
)
matmul_wgmma_single = specialize(TEMPLATE, when=fastest("matmul_wgmma_single", TIMES), **KEYWORDS)(
    named(_product, "matmul_wgmma_single", stages=6, split=1)
)
matmul_wgmma_split_tall = specialize(TEMPLATE, when=fastest("matmul_wgmma_split_tall", TIMES), **KEYWORDS)(
    named(_product, "matmul_wgmma_split_tall", tile_m=128, stages=7)
)
matmul_wgmma_split_deep = specialize(TEMPLATE, when=fastest("matmul_wgmma_split_deep", TIMES), **KEYWORDS)(
    named(_product, "matmul_wgmma_split_deep", tile_m=128, tile_n=128, stages=5, split=4)
)

_NAMES = ("tile_m", "tile_n", "stages", "split")
_CONFIGS = (
    (64, 64, 8, 2),
    (64, 64, 6, 1),
    (64, 64, 6, 4),
    (64, 96, 8, 1),
    (64, 128, 7, 2),
    (64, 192, 5, 2),
    (64, 256, 4, 4),
    (128, 64, 7, 2),
    (128, 128, 5, 2),
    (128, 128, 5, 4),
)
_TUNED = tune(configs=[dict(zip(_NAMES, values, strict=True)) for values in _CONFIGS], key=TILES_AND_K)
matmul_wgmma_split_tuned = specialize(TEMPLATE, **KEYWORDS)(
    named(_product, "matmul_wgmma_split_tuned", **dict.fromkeys(_NAMES, _TUNED))
)
