"""A chain of elementwise operations in one pass."""

from __future__ import annotations

from typing import Any, Literal, cast

import numpy as np

from cuplate.kernels.epilogues import LIMITS_REQUIRE, activate
from cuplate.kernels.families import Real
from cuplate.specialize import specialize
from cuplate.typing import Array

__all__ = ["fused_elementwise"]


@specialize(
    "fused_elementwise.cu.j2",
    grid="max(1, cdiv(rows * C * x.itemsize, 16 * packs * threads))",
    block="threads",
    require=LIMITS_REQUIRE,
)
def fused_elementwise(
    x: Real[Array, "*rows C"],
    scale: Real[Array, " C"] | None = None,
    shift: Real[Array, " C"] | None = None,
    residual: Real[Array, "*rows C"] | None = None,
    *,
    activation: Literal["identity", "relu", "gelu", "gelu_tanh", "silu"] = "gelu",
    low: float | None = None,
    high: float | None = None,
    threads: Literal[128, 256, 512] = 512,
    packs: Literal[1, 2, 4] = 2,
    out: Real[Array, "*rows C"] | None = None,
    stream: Any = None,
) -> Real[Array, "*rows C"]:
    """Return ``clip(activation(x * scale + shift) + residual, low, high)``, read once and written once.

    Parameters
    ----------
    x : float32, float16 or bfloat16, shape (..., C), row-major
    scale, shift : dtype of `x`, shape (C,), optional
        One factor and one term for each column; what is not given is left out of the kernel.
    residual : dtype of `x`, shape (..., C), row-major, optional
    activation : {"gelu", "gelu_tanh", "silu", "relu", "identity"}
        ``"gelu"`` is ``x * (1 + erf(x / sqrt(2))) / 2``, ``"gelu_tanh"`` its usual approximation.
    low, high : float, optional
        Limits of the result. Compile time: each value is a kernel of its own.
    threads : {512, 128, 256}
        Threads of a block.
    packs : {2, 1, 4}
        Packs of 16 bytes of `x` a thread.
    out : dtype of `x`, shape (..., C), row-major, optional
        Where the result goes; allocated when None.
    stream : stream, optional
        Default the current stream of the library that owns the arrays.

    Returns
    -------
    array, dtype and shape of `x`
        Computed in float32 and rounded once.
    """
    v: Any = x
    v = v if scale is None else v * scale
    v = v if shift is None else v + shift
    v = activate(v, activation)
    v = v if residual is None else v + residual
    v = v if low is None else np.maximum(v, low)
    return cast("Array", v if high is None else np.minimum(v, high))
