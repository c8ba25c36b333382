"""Fifteen bindings, each small; annotations are strings here (``from __future__ import annotations``)."""

from __future__ import annotations

from typing import Generic, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Int32, UInt32

from cuplate import Array, f32, specialize


@specialize("saxpy.cu.j2")
def saxpy(alpha: f32, x: Float32[Array, " N"], y: Float32[Array, " N"]) -> Float32[Array, " N"]:
    """alpha * x + y, with an alpha that may change from call to call."""
    return alpha * x + y


@specialize("softmax.cu.j2", tiles={"R": 1}, block="threads")
def softmax(x: Float32[Array, "R C"], *, threads: Literal[32, 64, 256] = 64) -> Float32[Array, "R C"]:
    """exp(x) along each row, scaled so that a row sums to 1."""
    e = np.exp(x - np.max(x, axis=1, keepdims=True, initial=-np.inf))
    return e / e.sum(axis=1, keepdims=True)


@specialize("total.cu.j2", grid="min(cdiv(N, threads), 512)", block="threads", zeroed="out")
def total(x: Float32[Array, " N"], *, threads: Literal[64, 256] = 256) -> Float32[Array, ""]:
    """The sum of x; 0 for no elements."""
    return x.sum()


@specialize("transpose.cu.j2", tiles={"N": "tile", "M": "tile"}, block=("tile", "rows"), require="tile % rows == 0")
def transpose(
    a: Float32[Array, "M N"], *, tile: Literal[16, 32] = 32, rows: Literal[4, 8, 32] = 8
) -> Float32[Array, "N M"]:
    """The transpose of a row-major or column-major matrix."""
    return a.T


@specialize("histogram.cu.j2", grid="min(cdiv(N, 256), 512)", zeroed="out")
def histogram(x: Int32[Array, " N"], *, bins: int = 16) -> UInt32[Array, " (bins)"]:
    """How often each value from 0 to bins - 1 occurs in x; others are not counted."""
    return np.bincount(x[(x >= 0) & (x < bins)], minlength=bins)


@specialize("batched_matmul.cu.j2", tiles={"N": "tile", "M": "tile", "batch": 1}, block=("tile", "tile"))
def batched_matmul(
    a: Float32[Array, "*batch M K"], b: Float32[Array, "*batch K N"], *, tile: Literal[8, 16] = 16
) -> Float32[Array, "*batch M N"]:
    """a @ b for each matrix of the batch, which may have any number of axes."""
    return a @ b


@specialize("stencil.cu.j2", tiles={"W": "tile", "H": "tile"}, block=("tile", "tile"))
def stencil(x: Float32[Array, "H W"], *, tile: Literal[8, 16] = 16) -> Float32[Array, "H W"]:
    """Mean of each cell and its four neighbours; outside is 0."""
    p = np.pad(x, 1)
    return 0.2 * (p[1:-1, 1:-1] + p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:])


class Extreme(NamedTuple, Generic[Array]):
    """Two outputs of different dtypes."""

    value: Float32[Array, " R"]
    place: Int32[Array, " R"]


@specialize("row_max.cu.j2", tiles={"R": "rows"}, block=(32, "rows"))
def row_max(x: Float32[Array, "R C"], *, rows: Literal[1, 4] = 4) -> Extreme[Array]:
    """Largest element of each row and its first place; -inf and -1 where a row has no element."""
    places = x.argmax(axis=1) if x.shape[1] else np.full(x.shape[0], -1)
    return Extreme(np.max(x, axis=1, initial=-np.inf), places)


@specialize("scale.cu.j2", mutates="x")
def scale(x: Float32[Array, " N"], factor: f32) -> None:
    """x times factor, in place."""
    x *= factor


@specialize("convolve.cu.j2")
def convolve(x: Float32[Array, " N"], w: Float32[Array, " K"]) -> Float32[Array, " N-K+1"]:
    """The convolution of x and w where they overlap fully."""
    windows = np.arange(len(x) - len(w) + 1)[:, None] + np.arange(len(w))
    return x[windows] @ w[::-1]


@specialize(
    "sgemm.cu",
    entry="sgemm_nn",
    args="M N K alpha a a.stride(0) b b.stride(0) out out.stride(0)",
    tiles={"N": 16, "M": 16},
    block=(16, 16),
)
def sgemm(alpha: f32, a: Float32[Array, "M K"], b: Float32[Array, "K N"]) -> Float32[Array, "M N"]:
    """alpha * a @ b, by an existing kernel that takes leading dimensions; rows may have gaps between them."""
    return alpha * (a @ b)


@specialize("cumsum.cu.j2", tiles={"R": 1}, shared_bytes="tile * x.itemsize", require="tile % 256 == 0")
def cumsum(x: Float32[Array, "R C"], *, tile: int = 1024) -> Float32[Array, "R C"]:
    """Running sum along each row, `tile` elements at a time in dynamic shared memory."""
    return np.cumsum(x, axis=1)


@specialize("cast.cu.j2", dtypes={"out": "out_dtype"})
def cast(
    x: Float32[Array, " N"], *, out_dtype: Literal["float16", "float32", "float64"] = "float16"
) -> Float[Array, " N"]:
    """x in another dtype."""
    return x.astype(out_dtype)


@specialize("linear.cu.j2", tiles={"N": "tile", "M": "tile"}, block=("tile", "tile"))
def linear(
    x: Float32[Array, "M K"],
    w: Float32[Array, "K N"],
    bias: Float32[Array, " N"] | None = None,
    *,
    tile: Literal[8, 16] = 16,
) -> Float32[Array, "M N"]:
    """x @ w, plus a bias if there is one."""
    return x @ w if bias is None else x @ w + bias


@specialize("sgemm_template.cu", entry="sgemm<{{ tile }}>", tiles={"N": "tile", "M": "tile"}, block=("tile", "tile"))
def matmul(
    a: Float32[Array, "M K"], b: Float32[Array, "K N"], *, tile: Literal[8, 16, 32] = 16
) -> Float32[Array, "M N"]:
    """a @ b, by an instance of a C++ function template whose parameters are matched by name."""
    return a @ b


FIFTEEN = (
    saxpy,
    softmax,
    total,
    transpose,
    histogram,
    batched_matmul,
    stencil,
    row_max,
    scale,
    convolve,
    sgemm,
    cumsum,
    cast,
    linear,
    matmul,
)
