"""The epilogues of the matrix products and of the elementwise chain, for their references."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

__all__ = ["activate"]


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
