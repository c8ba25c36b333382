"""Matrix products with a fused epilogue on the FMA units: the float32 variants of `matmul_epilogue`, of one text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from jaxtyping import Float32

from cuplate.kernels.epilogues import EPILOGUE_REQUIRE, Activation, Expression, finish
from cuplate.kernels.fastest import fastest
from cuplate.kernels.named import named
from cuplate.kernels.simt_times import RAGGED, WHOLE, divided, parts, rest
from cuplate.specialize import specialize
from cuplate.typing import Array, Specialized

__all__ = [
    "matmul_simt",
    "matmul_simt_balanced",
    "matmul_simt_medium",
    "matmul_simt_ragged",
    "matmul_simt_ragged_medium",
    "matmul_simt_ragged_small",
    "matmul_simt_ragged_split",
    "matmul_simt_ragged_split_small",
    "matmul_simt_small",
    "matmul_simt_split",
    "matmul_simt_split_small",
]


def _product(
    a: Float32[Array, "M K"],
    b: Float32[Array, "K N"],
    bias: Float32[Array, " N"] | None = None,
    residual: Float32[Array, "M N"] | None = None,
    row_scale: Float32[Array, " M"] | None = None,
    column_scale: Float32[Array, " N"] | None = None,
    *,
    epilogue: Activation | None = None,
    relu: bool | None = None,
    expression: Expression | None = None,
    scale: float | None = None,
    low: float | None = None,
    high: float | None = None,
    tile_m: Literal[32, 64, 128] = 128,
    tile_n: Literal[32, 64, 128, 256] = 256,
    warp_m: Literal[32, 64] = 64,
    warp_n: Literal[16, 32, 64] = 64,
    tile_k: Literal[8, 16] = 8,
    stages: Literal[2, 3, 4, 5] = 4,
    group_m: Literal[4, 8, 16] = 8,
    split: Literal[0, 132, 264, 396, 528] = 0,
    wave: Literal[0, 132] = 0,
    vec: Literal[1, 4] = 4,
    out: Float32[Array, "M N"] | None = None,
    stream: Any = None,
) -> Float32[Array, "M N"]:
    """Return what `matmul_epilogue` does in float32, register-blocked, on any GPU from sm_80 on.

    Parameters
    ----------
    a : float32, shape (M, K), row-major
    b : float32, shape (K, N)
        Row-major, 16-byte aligned, N a multiple of 4; with `vec` 1 row-major or column-major, of any N and alignment.
    bias, residual, row_scale, column_scale, epilogue, relu, expression, scale, low, high
        As for `matmul_epilogue`.
    tile_m, tile_n, warp_m, warp_n, tile_k, stages, group_m, split, wave, vec
        As the template says. By their defaults there are eleven functions. Rows of `b` in whole 16 bytes have
        `matmul_simt` (tiles of 128 x 256), `matmul_simt_balanced` (a last wave of them is divided among blocks),
        `matmul_simt_medium` (64 x 128), `matmul_simt_small` (32 x 64), `matmul_simt_split` (64 x 128, K divided among
        blocks) and `matmul_simt_split_small` (32 x 32). Any `b` has `matmul_simt_ragged`, and with the same endings
        `_medium` (64 x 128), `_small` (32 x 32), `_split` (64 x 64) and `_split_small` (32 x 32).
    out, stream
        As for `matmul_epilogue`; with `vec` 4 `out` is 16-byte aligned.

    Notes
    -----
    Products and sums are IEEE float32 on the FMA units, never TF32. They are in order of k, with `split` and `wave` in
    parts, which are added in order of k: the result does not depend on which block was done when. The error is bounded
    as that of `matmul_epilogue`. With `split`, sums of parts are scratch memory: as many bytes as `out` for each part.
    """
    return finish(a @ b, bias, residual, row_scale, column_scale, epilogue, relu, expression, scale, low, high)


TEMPLATE = "matmul_simt.cu.j2"
THREADS = "tile_m // warp_m * (tile_n // warp_n) * 32"
TILES = "cdiv(M, tile_m) * cdiv(N, tile_n)"
PARTS = parts(TILES, "split")
REST = rest(TILES, "wave")
REQUIRE = (
    "on_gpu",  # inline PTX
    "arch >= 80",  # cp.async
    # Whole copy passes of all threads over the tiles of both, `tile_k` deep with `tile_n // vec` copies to a row of b.
    f"tile_m % ({THREADS} // tile_k) == 0 and tile_n % ({THREADS} // tile_k) == 0",
    f"{THREADS} % (tile_n // vec) == 0 and {THREADS} <= tile_k * (tile_n // vec)",
    *EPILOGUE_REQUIRE,
)
# Rows of b and out in whole 16 bytes.
BY_FOUR = ("vec == 4", "N % 4 == 0", "b.order == 'C'", "b.aligned(16)", "out.aligned(16)")
# A block a tile; all tiles, and K, divided among blocks; what fills no whole wave divided.
PLAIN: Any = {"grid": TILES, "require": ("split == 0 and wave == 0",)}
SPLIT: Any = {
    "grid": f"{TILES} * {PARTS}",
    "scratch": {
        "sums": ("float32", f"{TILES} * {PARTS} * tile_m * tile_n if {PARTS} > 1 else 0"),
        "done": ("uint32", TILES),
    },
    "zeroed": "done",
    "require": ("split > 0 and wave == 0",),
}
WAVES: Any = {
    "grid": f"{TILES} - {REST} + {divided(TILES, 'wave')}",
    "scratch": {"done": ("uint32", "1 + wave")},
    "zeroed": "done",
    "require": ("wave > 0 and split == 0",),
}
# Where a tile is wider than b is, all of its blocks copy the same few elements of each row again and again.
WIDE_ENOUGH = "N >= 64"
RAGGED_WIDE_ENOUGH = "N > 8 or b.order == 'F' or M < 4096"
MEDIUM: dict[str, Any] = {"tile_m": 64, "tile_n": 128, "warp_m": 64, "warp_n": 32}
SQUARE: dict[str, Any] = {"tile_m": 64, "tile_n": 64, "warp_m": 64, "warp_n": 16, "tile_k": 16, "stages": 3}
SMALL: dict[str, Any] = {"tile_m": 32, "tile_n": 64, "warp_m": 32, "warp_n": 16, "tile_k": 16}
SMALLEST = SMALL | {"tile_n": 32}


_Product = TypeVar("_Product", bound=Callable[..., Any])


def _chosen(product: _Product, mode: Any = PLAIN) -> Specialized[_Product]:
    """The product of that name, chosen where it is modelled to be the fastest."""
    name = product.__name__
    ragged = name in RAGGED
    require = (*REQUIRE, *(("vec == 1",) if ragged else BY_FOUR), *mode["require"])
    return specialize(
        TEMPLATE,
        block=THREADS,
        shared_bytes="stages * tile_k * (tile_m + 4 + tile_n + (4 if b.order == 'F' else 0)) * 4",
        when=(RAGGED_WIDE_ENOUGH, fastest(name, RAGGED)) if ragged else (WIDE_ENOUGH, fastest(name, WHOLE)),
        **mode | {"require": require},
    )(product)


matmul_simt_balanced = _chosen(named(_product, "matmul_simt_balanced", wave=132), WAVES)
matmul_simt_medium = _chosen(named(_product, "matmul_simt_medium", **MEDIUM))
matmul_simt_small = _chosen(named(_product, "matmul_simt_small", **SMALL))
matmul_simt_split = _chosen(named(_product, "matmul_simt_split", split=396, **MEDIUM), SPLIT)
matmul_simt_split_small = _chosen(named(_product, "matmul_simt_split_small", split=264, **SMALLEST), SPLIT)
matmul_simt = _chosen(named(_product, "matmul_simt"))
matmul_simt_ragged_medium = _chosen(named(_product, "matmul_simt_ragged_medium", vec=1, **MEDIUM, tile_k=16, stages=3))
matmul_simt_ragged_small = _chosen(named(_product, "matmul_simt_ragged_small", vec=1, **SMALLEST))
matmul_simt_ragged_split = _chosen(named(_product, "matmul_simt_ragged_split", vec=1, split=396, **SQUARE), SPLIT)
matmul_simt_ragged_split_small = _chosen(
    named(_product, "matmul_simt_ragged_split_small", vec=1, split=264, **SMALLEST), SPLIT
)
matmul_simt_ragged = _chosen(named(_product, "matmul_simt_ragged", vec=1))
