"""Matrix products with a fused epilogue on the FMA units: the float32 variants of `matmul_epilogue`."""

from __future__ import annotations

from typing import Any, Literal

from jaxtyping import Float32

from cuplate.kernels.epilogues import EPILOGUE_REQUIRE, Activation, Expression, finish
from cuplate.specialize import specialize
from cuplate.typing import Array

__all__ = ["matmul_simt", "matmul_simt_balanced", "matmul_simt_ragged"]

# A tile of 128 x 256 costs as much where only a corner of it is needed, and fewer tiles than multiprocessors leave some
# of these idle. Both are in this comparison with the tiled kernel (16 x 16), which takes six times as long for the same
# number of products on a full device: 132 multiprocessors on an H200, and 128 of its tiles in one of these.
# Measured on an H200, see docs/decisions/0031.
PAYS = "128 * max(132, cdiv(M, tile_m) * cdiv(N, tile_n)) <= 6 * cdiv(M, 16) * cdiv(N, 16)"

THREADS = "tile_m // warp_m * (tile_n // warp_n) * 32"
TILES = "cdiv(M, tile_m) * cdiv(N, tile_n)"
REST = f"{TILES} % wave"
# Tiles that fill no whole wave, divided among all blocks: nobody waits for a last wave. It pays unless that is nearly
# full. A part is 256 of K at least; sums that pass through memory cost as much as 12,000 / K tiles do. Measured on an
# H200, see docs/decisions/0049.
DIVIDING = (
    "K >= 512",
    f"0 < {REST}",
    f"10 * ({REST}) <= 9 * wave",
    f"128 * (max({TILES}, cdiv(33792, max(1, K))) + cdiv(12000, max(1, K))) <= 6 * cdiv(M, 16) * cdiv(N, 16)",
)
KEYWORDS: Any = {"grid": TILES, "block": THREADS, "when": PAYS}
REQUIRE = (
    "on_gpu",  # inline PTX
    "arch >= 80",  # cp.async
    # Whole copy passes of all threads over the tiles of both, `tile_k` deep with `tile_n // vec` copies to a row of b.
    f"tile_m % ({THREADS} // tile_k) == 0 and tile_n % ({THREADS} // tile_k) == 0",
    f"{THREADS} % (tile_n // vec) == 0 and {THREADS} <= tile_k * (tile_n // vec)",
    *EPILOGUE_REQUIRE,
)
BY_FOUR: Any = {  # rows of b and out in whole 16 bytes
    "shared_bytes": "stages * tile_k * (tile_m + 4 + tile_n) * 4",
    "require": (*REQUIRE, "N % 4 == 0", "b.order == 'C'", "b.aligned(16)", "out.aligned(16)"),
}


@specialize("matmul_simt.cu.j2", **BY_FOUR, **KEYWORDS)
def matmul_simt(
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
    tile_m: Literal[64, 128] = 128,
    tile_n: Literal[128, 256] = 256,
    warp_m: Literal[32, 64] = 64,
    warp_n: Literal[32, 64] = 64,
    tile_k: Literal[8, 16] = 8,
    stages: Literal[2, 3, 4, 5] = 4,
    group_m: Literal[4, 8, 16] = 8,
    wave: Literal[0] = 0,
    vec: Literal[4] = 4,
    out: Float32[Array, "M N"] | None = None,
    stream: Any = None,
) -> Float32[Array, "M N"]:
    """Return what `matmul_epilogue` does in float32, register-blocked; `b` in rows of whole 16 bytes.

    Parameters
    ----------
    a : float32, shape (M, K), row-major
    b : float32, shape (K, N), row-major, 16-byte aligned, N a multiple of 4
    bias, residual, row_scale, column_scale, epilogue, relu, expression, scale, low, high
        As for `matmul_epilogue`.
    tile_m, tile_n, warp_m, warp_n, tile_k, stages, group_m, wave, vec
        As the template says; the defaults are the fastest that were measured on an H200.
    out, stream
        As for `matmul_epilogue`; `out` 16-byte aligned.

    Notes
    -----
    Products and sums are IEEE float32 on the FMA units, in order of k; never TF32. The error is bounded as that of
    `matmul_epilogue`.
    """
    return finish(a @ b, bias, residual, row_scale, column_scale, epilogue, relu, expression, scale, low, high)


@specialize(
    "matmul_simt.cu.j2",
    grid=f"{TILES} - {REST} + min(wave, {REST} * max(1, K // 256))",
    block=THREADS,
    scratch={"done": ("uint32", "1 + wave")},
    zeroed="done",
    when=DIVIDING,
    **BY_FOUR,
)
def matmul_simt_balanced(
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
    tile_m: Literal[64, 128] = 128,
    tile_n: Literal[128, 256] = 256,
    warp_m: Literal[32, 64] = 64,
    warp_n: Literal[32, 64] = 64,
    tile_k: Literal[8, 16] = 8,
    stages: Literal[2, 3, 4, 5] = 4,
    group_m: Literal[4, 8, 16] = 8,
    wave: Literal[132] = 132,
    vec: Literal[4] = 4,
    out: Float32[Array, "M N"] | None = None,
    stream: Any = None,
) -> Float32[Array, "M N"]:
    """Return what `matmul_simt` does, where its tiles would leave part of a last wave of blocks idle.

    The sums of those tiles are divided among all multiprocessors of an H200, in order of k, and are rounded a few times
    more for that. The result does not depend on which block was done when.
    """
    return finish(a @ b, bias, residual, row_scale, column_scale, epilogue, relu, expression, scale, low, high)


@specialize(
    "matmul_simt.cu.j2",
    shared_bytes="stages * tile_k * (tile_m + 4 + tile_n + (4 if b.order == 'F' else 0)) * 4",
    require=REQUIRE,
    **KEYWORDS,
)
def matmul_simt_ragged(
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
    tile_m: Literal[64, 128] = 128,
    tile_n: Literal[128, 256] = 256,
    warp_m: Literal[32, 64] = 64,
    warp_n: Literal[32, 64] = 64,
    tile_k: Literal[8, 16] = 8,
    stages: Literal[2, 3, 4, 5] = 4,
    group_m: Literal[4, 8, 16] = 8,
    wave: Literal[0] = 0,
    vec: Literal[1] = 1,
    out: Float32[Array, "M N"] | None = None,
    stream: Any = None,
) -> Float32[Array, "M N"]:
    """Return what `matmul_simt` does, for any N and alignment, and for `b` in row-major or column-major order."""
    return finish(a @ b, bias, residual, row_scale, column_scale, epilogue, relu, expression, scale, low, high)
