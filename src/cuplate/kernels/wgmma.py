"""Matrix products with a fused epilogue on Hopper's tensor cores, in bfloat16 and float16."""

from __future__ import annotations

from typing import Any, Literal, cast

from cuplate.kernels.activations import activate
from cuplate.kernels.families import ShortFloat
from cuplate.options import Options
from cuplate.specialize import specialize
from cuplate.tensor_map import TensorMap
from cuplate.typing import Array

__all__ = ["matmul_wgmma"]

# Clusters of blocks that are resident at once, and the fewest of them that need no more waves: multiprocessors that
# would only have waited leave their power to the others.
TILES = "cdiv(M, tile_m * cluster) * cdiv(N, tile_n)"
GRID = f"cluster * cdiv({TILES}, cdiv({TILES}, sm_count // cluster))"


@specialize(
    "matmul_wgmma.cu.j2",
    options=Options(arch_specific=True),
    grid=GRID,
    block=384,
    shared_bytes="stages * ((tile_m + tile_n) * 128 + 16) + 2 * (16384 + tile_n * 4)",
    tensor_maps={
        "a": TensorMap(box=("tile_m", 64), swizzle="128B", l2_promotion="256B"),
        "b": TensorMap(box=(64, "tile_n // cluster if b.order == 'F' else 64"), swizzle="128B", l2_promotion="256B"),
        "out": TensorMap(box=(64, 64), swizzle="128B"),
    },
    require=(
        "on_gpu",
        "arch == 90",
        # Sums of a thread, in registers: 64 rows times half a value a column, for each 64 rows that its group takes.
        "(tile_m if schedule == 'pingpong' else tile_m // 2) // 64 * (tile_n // 2) <= 192",
        "schedule == 'pingpong' and tile_m <= 128 or schedule == 'cooperative' and tile_m >= 128",
        "relu == None or epilogue == None or relu == (epilogue == 'relu')",
    ),
)
def matmul_wgmma(
    a: ShortFloat[Array, "M K"],
    b: ShortFloat[Array, "K N"],
    bias: ShortFloat[Array, " N"] | None = None,
    *,
    epilogue: Literal["identity", "relu", "gelu", "gelu_tanh", "silu"] | None = None,
    relu: bool | None = None,
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
    """Return ``clip(epilogue(a @ b + bias), low, high)`` in bfloat16 or float16, by wgmma and TMA.

    For sm_90 alone. This text has not been run on a GPU yet, and `matmul_epilogue` does not choose it.

    Parameters
    ----------
    a : float16 or bfloat16, shape (M, K)
        Rows without gaps inside; 16-byte aligned, as every row (K a multiple of 8, or padded rows). K is 1 or more.
    b : dtype of `a`, shape (K, N), row-major or column-major
        Aligned as `a`: N a multiple of 8 if row-major, K if column-major.
    bias : dtype of `a`, shape (N,), optional
    epilogue : {"identity", "relu", "gelu", "gelu_tanh", "silu"}, optional
        ``"gelu"`` is ``x * (1 + erf(x / sqrt(2))) / 2``, ``"gelu_tanh"`` its usual approximation; identity when neither
        this nor `relu` is given.
    relu : bool, optional
        Short spelling: True is ``epilogue="relu"``, False is ``epilogue="identity"``. Both at odds are an error.
    low, high : float, optional
        Limits of the result. Compile time: each value is a kernel of its own.
    tile_m, tile_n, stages, cluster, group_m, schedule
        As the template says. What was fastest of them in a prototype of this text on an H200: 128, 128, 6, 1 up to
        4096 squared, 128, 192, 4, 2 beyond, ping-pong; 64, 128, 8, 1 where there are few tiles.
    out : dtype of `a`, shape (M, N), row-major, 16-byte aligned, N a multiple of 8, optional
        Where the result goes; allocated when None.
    stream : stream, optional
        Default the current stream of the library that owns the arrays.

    Returns
    -------
    array, dtype of `a`, shape (M, N)
        Summed in float32 by the tensor cores, which round each sum towards zero; rounded to nearest once.
    """
    c: Any = a @ b
    c = activate(c if bias is None else c + bias, "relu" if relu else epilogue or "identity", low, high)
    return cast("Array", c)
