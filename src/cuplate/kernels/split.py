"""Matrix products of float32 by sums of bfloat16 on Hopper's tensor cores: the `precision` of `matmul_epilogue`."""

from __future__ import annotations

from typing import Any, Literal

from jaxtyping import Float32

from cuplate.kernels.epilogues import EPILOGUE_REQUIRE, WITHIN_INT, Activation, Expression, finish
from cuplate.kernels.named import named
from cuplate.options import Options
from cuplate.specialize import specialize
from cuplate.tensor_map import TensorMap
from cuplate.typing import Array

__all__ = ["matmul_split", "matmul_split_small", "matmul_split_wide"]

PLANES = "(3 if precision == 'bf16x6' else 2)"
# Rows and columns of a plane, as `a` and `b` lie in memory. No plane is without elements, as no tensor map may be.
A = ("M", "max(K, 1)")
B = ("(N if b.order == 'F' else max(K, 1))", "(max(K, 1) if b.order == 'F' else N)")


def _planes(rows: str, columns: str) -> tuple[str, str]:
    """Scratch for the planes of a matrix, whose rows are padded to 16 bytes."""
    return "int16", f"{PLANES} * {rows} * cdiv({columns}, 8) * 8"


def _map(name: str, shape: tuple[str, str], box: int | str) -> TensorMap:
    """What copies a box of one of these planes."""
    return TensorMap((1, box, 64), swizzle="128B", l2_promotion="256B", of=name, shape=(PLANES, *shape))


def _time(tile_n: int, percent: str | int) -> str:
    """What a product takes with a tile of so many columns, as an expression: rounds of 132 blocks times cost of area.

    As for `matmul_wgmma`; the costs were measured on an H200.
    """
    return f"cdiv(cdiv(M, 128) * cdiv(N, {tile_n}), 132) * {tile_n} * {percent}"


# Three planes of the widest tile leave room for less than two steps in the ring.
WIDE, MIDDLE, SMALL = _time(192, "(107 if precision == 'bf16x6' else 100)"), _time(128, 102), _time(64, 113)


def _product(
    a: Float32[Array, "M K"],
    b: Float32[Array, "K N"],
    bias: Float32[Array, " N"] | None = None,
    residual: Float32[Array, "M N"] | None = None,
    row_scale: Float32[Array, " M"] | None = None,
    column_scale: Float32[Array, " N"] | None = None,
    *,
    precision: Literal["bf16x3", "bf16x6"],
    epilogue: Activation | None = None,
    relu: bool | None = None,
    expression: Expression | None = None,
    scale: float | None = None,
    low: float | None = None,
    high: float | None = None,
    tile_n: Literal[64, 128, 192] = 128,
    stages: Literal[3, 4, 5, 6, 7] = 7,
    group_m: Literal[4, 8, 16] = 8,
    promote: Literal[1, 2, 4, 8] = 2,
    out: Float32[Array, "M N"] | None = None,
    stream: Any = None,
) -> Float32[Array, "M N"]:
    """Return what `matmul_epilogue` does in float32, by products of bfloat16 on tensor cores.

    For sm_90 alone. Each element is split into two or three bfloat16, its planes, in scratch memory.

    Parameters
    ----------
    a : float32, shape (M, K), row-major
        Of any size and alignment, as all arrays here.
    b : float32, shape (K, N), row-major or column-major
    bias, residual, row_scale, column_scale, epilogue, relu, expression, scale, low, high
        As for `matmul_epilogue`.
    precision : {"bf16x3", "bf16x6"}
        Two planes and three products, or three and six. The relative error against float64 (Frobenius norm) is below
        8e-6 and 2e-6. On an H200, with normal data and K from 64 to 16384, it was 4.5e-6 and 1e-7 to 7e-7; that of
        cuBLAS in float32 was 1e-7 to 1.2e-6.
    tile_n, stages, group_m, promote
        As the template says. By their defaults there are three functions: `matmul_split` (tiles of 128 x 128),
        `matmul_split_wide` (128 x 192) and `matmul_split_small` (128 x 64).
    out, stream
        As for `matmul_epilogue`.

    Notes
    -----
    Scratch is 4 bytes (three planes: 6) for each element of `a` and `b`, their rows padded to multiples of 8.

    The error of ``c[i, j]`` is at most ``2**-15 + (40 + K / 256) * 2**-23`` times ``sum_k |a[i, k] * b[k, j]|``, with
    six products ``2**-22`` in place of ``2**-15``; the rest is what tensor cores lose of sums, which they round towards
    zero. Of an element below 2**-110 up to 2**-134 is lost. NaN, infinities and what overflows are as in float32: these
    elements are computed again, in float32 and slowly.
    """
    return finish(a @ b, bias, residual, row_scale, column_scale, epilogue, relu, expression, scale, low, high)


KEYWORDS: Any = {
    "options": Options(arch_specific=True),
    "grid": "sm_count",
    "block": 384,
    "cooperative": True,
    "shared_bytes": "stages * ((128 + tile_n) * 128 + 16)",
    "scratch": {
        "a_planes": _planes(*A),
        "b_planes": _planes(*B),
        "arrived": ("uint32", "cdiv(M, 128 * group_m)"),
    },
    "zeroed": "arrived",
    "tensor_maps": {
        "a_map": _map("a_planes", A, 128),
        "b_map": _map("b_planes", B, "tile_n if b.order == 'F' else 64"),
    },
    "require": (
        "on_gpu",
        "arch == 90",
        # The last plane of a step is let go after the next step, all of whose planes are waited for, has begun.
        "stages > 3 or precision == 'bf16x3'",
        "stages * (128 + tile_n) <= 7 * 256",  # shared memory
        WITHIN_INT,
        *EPILOGUE_REQUIRE,
    ),
}
TEMPLATE = "matmul_split.cu.j2"
matmul_split_wide = specialize(TEMPLATE, when=f"{WIDE} <= min({MIDDLE}, {SMALL})", **KEYWORDS)(
    named(_product, "matmul_split_wide", tile_n=192, stages=5)
)
matmul_split_small = specialize(TEMPLATE, when=f"{SMALL} < min({WIDE}, {MIDDLE})", **KEYWORDS)(
    named(_product, "matmul_split_small", tile_n=64)
)
matmul_split = specialize(TEMPLATE, **KEYWORDS)(named(_product, "matmul_split"))
