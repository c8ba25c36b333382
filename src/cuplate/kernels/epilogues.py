"""The epilogues of the matrix products and of the elementwise chain: what they take, and their references."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, TypeVar, cast

import numpy as np

from cuplate.device_text import DeviceText

__all__ = ["EPILOGUE_REQUIRE", "LIMITS_REQUIRE", "WITHIN_INT", "Activation", "Expression", "activate", "finish"]

Activation = Literal["identity", "relu", "gelu", "gelu_tanh", "silu"]
_TEXT = DeviceText("x", "residual", integers=("row", "column"))
Expression = Annotated[str, _TEXT]
T = TypeVar("T")

LIMITS_REQUIRE = ("low == None or low == low", "high == None or high == high")
"""A limit that is NaN, which comparisons ignore and ``max.NaN`` does not, is refused."""

EPILOGUE_REQUIRE = (
    *LIMITS_REQUIRE,
    "relu == None or epilogue == None or epilogue == ('relu' if relu else 'identity')",
    "expression == None or epilogue == None and relu == None",
    "expression == None or residual or 'residual' not in expression",
)
"""Conditions of every product that includes ``epilogue.cuh.j2``."""

WITHIN_INT = f"max(M, N, K) <= {2**31 - 2**12}"
"""Condition of every product that counts rows and columns in ints, as the coordinates of TMA are."""


def activate(x: Any, activation: str, low: float | None = None, high: float | None = None) -> Any:
    """The activation by its name, then the limits, of an array of NumPy's or CuPy's."""
    if activation == "relu":
        x = np.maximum(x, 0)
    elif activation == "gelu":
        x = x * (1 + np.vectorize(math.erf, otypes=[np.float64])(x / math.sqrt(2))) / 2
    elif activation == "gelu_tanh":
        x = x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
    elif activation == "silu":
        x = x / (1 + np.exp(-x))
    x = x if low is None else np.maximum(x, low)
    return x if high is None else np.minimum(x, high)


def finish(
    product: T,
    bias: Any,
    residual: Any,
    row_scale: Any,
    column_scale: Any,
    epilogue: str | None,
    relu: bool | None,
    expression: str | None,
    scale: float | None,
    low: float | None,
    high: float | None,
) -> T:
    """``clip(f(scale * row_scale * column_scale * product + bias) + residual, low, high)`` of arrays of NumPy's.

    With an expression that names the residual, that is ``clip(f(..., residual), low, high)``.
    """
    x: Any = product
    x = x if scale is None else x * scale
    x = x if row_scale is None else x * row_scale[:, None]
    x = x if column_scale is None else x * column_scale
    x = x if bias is None else x + bias
    if expression is None:
        x = activate(x, "relu" if relu else epilogue or "identity")
    else:
        row, column = np.ogrid[: x.shape[0], : x.shape[1]]
        names = {"x": x, "residual": residual, "row": row, "column": column}
        x = _TEXT.evaluate(expression, names) + np.zeros_like(x)  # of a constant, an array
    if residual is not None and (expression is None or "residual" not in expression):
        x = x + residual
    return cast("T", activate(x, "identity", low, high))
