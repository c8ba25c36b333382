"""Two image filters, shipped with their kernels compiled: the bundle beside this file is mounted by one line."""

from __future__ import annotations

from typing import Literal

import numpy as np
from jaxtyping import Float, Float32

import cuplate
from cuplate import Array, f32, specialize

__all__ = ["mean", "shifted"]

cuplate.mount(__package__)


@specialize("mean.cu.j2", tiles={"W": 32, "H": 8}, block=(32, 8))
def mean(x: Float32[Array, "H W"], *, radius: Literal[1, 2, 3] = 1) -> Float32[Array, "H W"]:
    """Mean of the square around each cell, as far as it lies in the image."""
    padded = np.pad(x, radius, constant_values=np.nan)
    side = range(2 * radius + 1)
    parts = [padded[i : i + x.shape[0], j : j + x.shape[1]] for i in side for j in side]
    result: Array = np.nanmean(np.stack(parts), axis=0)
    return result


@specialize("shifted.cu.j2")
def shifted(x: Float[Array, "H W"], by: f32) -> Float[Array, "H W"]:
    """Each cell plus a number."""
    return x + np.asarray(by, x.dtype)
