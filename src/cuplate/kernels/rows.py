"""What is computed along the last axis: softmax, normalisations, reductions."""

from __future__ import annotations

from typing import Any, Literal, cast

import numpy as np
from jaxtyping import Int64

from cuplate.kernels.families import Real
from cuplate.specialize import specialize
from cuplate.typing import Array

__all__ = ["layer_norm", "rms_norm", "row_argmax", "row_reduce", "softmax"]


def _warps(items: str) -> str:
    """How many hold a row, from eight on a multiple of four, so that there are not too many kernels."""
    return f"(cdiv(C, 32 * {items}) if C <= 256 * {items} else 4 * cdiv(C, 128 * {items}))"


# Up to a warp, a power of two of threads for each row, eight elements a thread, in blocks of 128 threads. Then as many
# warps as hold the row at `items` elements a thread. More than 16 warps leave no room for a second block to load while
# the first one stores: threads hold 32 elements, or twice `items`, before there are more; of 16-bit floats earlier, as
# they are half as many bytes under way. Where 28 warps do not hold a row, each pass reads it. The second number of the
# block says which of these it is: templates/rows.cuh.j2.
_SHORT = " ".join(f"{lanes} if C <= {8 * lanes} else" for lanes in (1, 2, 4, 8, 16))
_ONCE = "C <= (896 if items == 32 else 512 if x.itemsize == 4 else 128) * items"
_TWICE = "items < 32 and C <= 1792 * items"
_LANES = f"({_SHORT} 32 * {_warps('items')} if {_ONCE} else 16 * {_warps('2 * items')} if {_TWICE} else 256)"
_ROWS = f"(128 // {_LANES} if {_LANES} <= 32 else 1)"
_TILES = {"rows": _ROWS}
_BLOCK = (_LANES, f"{_ROWS} if {_LANES} <= 32 else 1 if {_ONCE} else 2 if {_TWICE} else 4")


@specialize("softmax.cu.j2", tiles=_TILES, block=_BLOCK)
def softmax(
    x: Real[Array, "*rows C"],
    *,
    items: Literal[8, 16, 32] = 16,
    out: Real[Array, "*rows C"] | None = None,
    stream: Any = None,
) -> Real[Array, "*rows C"]:
    """Return ``exp(x)`` along the last axis, scaled so that it sums to 1.

    Parameters
    ----------
    x : float32, float16 or bfloat16, shape (..., C), row-major
    items : {16, 8, 32}
        Elements of a row that a thread keeps in registers; twice as many where a row has more than ``512 * items`` of
        them (16-bit floats: ``128 * items``). Rows of up to ``1792 * items`` (28,672 with 32) are read once.
    out : dtype of `x`, shape (..., C), row-major, optional
        Where the result goes; allocated when None.
    stream : stream, optional
        Default the current stream of the library that owns the arrays.

    Returns
    -------
    array, dtype and shape of `x`
        A row that holds a NaN or +inf, or nothing but -inf, is NaN.

    Notes
    -----
    In float32, within about ``2**-21`` of each result; 16-bit results are rounded once.
    """
    v: Any = x
    with np.errstate(invalid="ignore"):
        e: Any = np.exp(v - np.max(v, axis=-1, keepdims=True, initial=-np.inf))
        return cast("Array", e / e.sum(axis=-1, keepdims=True))


@specialize("layer_norm.cu.j2", tiles=_TILES, block=_BLOCK)
def layer_norm(
    x: Real[Array, "*rows C"],
    weight: Real[Array, " C"] | None = None,
    bias: Real[Array, " C"] | None = None,
    *,
    eps: float = 1e-5,
    items: Literal[8, 16, 32] = 16,
    out: Real[Array, "*rows C"] | None = None,
    stream: Any = None,
) -> Real[Array, "*rows C"]:
    """Return ``(x - mean) / sqrt(variance + eps) * weight + bias``, mean and variance along the last axis.

    Parameters
    ----------
    x : float32, float16 or bfloat16, shape (..., C), row-major
    weight, bias : dtype of `x`, shape (C,), optional
    eps : float
        Compile time: each value is a kernel of its own.
    items : {16, 8, 32}
        Elements of a row that a thread keeps in registers; twice as many where a row has more than ``512 * items`` of
        them (16-bit floats: ``128 * items``). Rows of up to ``1792 * items`` (28,672 with 32) are read once.
    out : dtype of `x`, shape (..., C), row-major, optional
        Where the result goes; allocated when None.
    stream : stream, optional
        Default the current stream of the library that owns the arrays.

    Returns
    -------
    array, dtype and shape of `x`

    Notes
    -----
    In float32. The variance is summed from differences to the mean, so a large mean costs no digits of it.
    """
    v: Any = x
    v = v - v.sum(axis=-1, keepdims=True) / max(1, v.shape[-1])
    v = v / np.sqrt((v * v).sum(axis=-1, keepdims=True) / max(1, v.shape[-1]) + eps)
    v = v if weight is None else v * weight
    return cast("Array", v if bias is None else v + bias)


@specialize("rms_norm.cu.j2", tiles=_TILES, block=_BLOCK)
def rms_norm(
    x: Real[Array, "*rows C"],
    weight: Real[Array, " C"] | None = None,
    *,
    eps: float = 1e-6,
    items: Literal[8, 16, 32] = 16,
    out: Real[Array, "*rows C"] | None = None,
    stream: Any = None,
) -> Real[Array, "*rows C"]:
    """Return ``x / sqrt(mean(x * x) + eps) * weight``, the mean along the last axis.

    Parameters
    ----------
    x : float32, float16 or bfloat16, shape (..., C), row-major
    weight : dtype of `x`, shape (C,), optional
    eps : float
        Compile time: each value is a kernel of its own.
    items : {16, 8, 32}
        Elements of a row that a thread keeps in registers; twice as many where a row has more than ``512 * items`` of
        them (16-bit floats: ``128 * items``). Rows of up to ``1792 * items`` (28,672 with 32) are read once.
    out : dtype of `x`, shape (..., C), row-major, optional
        Where the result goes; allocated when None.
    stream : stream, optional
        Default the current stream of the library that owns the arrays.

    Returns
    -------
    array, dtype and shape of `x`
    """
    v: Any = x
    v = v / np.sqrt((v * v).sum(axis=-1, keepdims=True) / max(1, v.shape[-1]) + eps)
    return cast("Array", v if weight is None else v * weight)


@specialize("row_reduce.cu.j2", tiles=_TILES, block=_BLOCK)
def row_reduce(
    x: Real[Array, "*rows C"],
    *,
    op: Literal["sum", "mean", "max", "logsumexp"] = "sum",
    items: Literal[8, 16, 32] = 16,
    out: Real[Array, "*rows"] | None = None,
    stream: Any = None,
) -> Real[Array, "*rows"]:
    """Return the sum, mean, largest element or logarithm of the sum of exponentials along the last axis.

    Parameters
    ----------
    x : float32, float16 or bfloat16, shape (..., C), row-major
    op : {"sum", "mean", "max", "logsumexp"}
    items : {16, 8, 32}
        Elements of a row that a thread keeps in registers; twice as many where a row has more than ``512 * items`` of
        them (16-bit floats: ``128 * items``). Rows of more than ``1792 * items`` (28,672 with 32) are read once as
        well, by ``"logsumexp"`` twice.
    out : dtype of `x`, shape (...), optional
        Where the result goes; allocated when None.
    stream : stream, optional
        Default the current stream of the library that owns the arrays.

    Returns
    -------
    array, dtype of `x`, shape (...)
        Of rows without elements 0, NaN, -inf and -inf. A NaN in a row is its result.

    Notes
    -----
    One block a row, however long: a few very long rows do not fill a GPU.
    """
    v: Any = x
    with np.errstate(divide="ignore", invalid="ignore"):
        peak: Any = np.max(v, axis=-1, initial=-np.inf)
        if op == "max":
            return cast("Array", peak)
        if op == "logsumexp":
            base: Any = np.where(np.isfinite(peak), peak, 0)
            return cast("Array", base + np.log(np.exp(v - base[..., None]).sum(axis=-1)))
        return cast("Array", v.sum(axis=-1) / np.float64(v.shape[-1] if op == "mean" else 1))


@specialize("row_argmax.cu.j2", tiles=_TILES, block=_BLOCK)
def row_argmax(
    x: Real[Array, "*rows C"],
    *,
    items: Literal[8, 16, 32] = 16,
    out: Int64[Array, "*rows"] | None = None,
    stream: Any = None,
) -> Int64[Array, "*rows"]:
    """Return the first place of the largest element along the last axis; a NaN counts as the largest, as in NumPy.

    Parameters
    ----------
    x : float32, float16 or bfloat16, shape (..., C), row-major
    items : {16, 8, 32}
        Elements of a row that a thread keeps in registers; twice as many where a row has more than ``512 * items`` of
        them (16-bit floats: ``128 * items``). Rows of up to ``1792 * items`` (28,672 with 32) are read once.
    out : int64, shape (...), optional
        Where the result goes; allocated when None.
    stream : stream, optional
        Default the current stream of the library that owns the arrays.

    Returns
    -------
    array, int64, shape (...)
        -1 for rows without elements.
    """
    v: Any = x
    return cast("Array", v.argmax(axis=-1) if v.shape[-1] else np.full(v.shape[:-1], -1))
