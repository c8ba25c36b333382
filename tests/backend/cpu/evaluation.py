"""Device expressions evaluated over arrays on the CPU backend, for tests of the device library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

CTYPE = {
    "float32": "float",
    "float64": "double",
    "int8": "signed char",
    "uint8": "unsigned char",
    "int16": "short",
    "uint16": "unsigned short",
    "int32": "int",
    "uint32": "unsigned int",
    "int64": "long long",
    "uint64": "unsigned long long",
}


def evaluate(
    compiled: Callable[..., Any],
    expressions: list[str],
    *columns: np.ndarray,
    out: Any,
    header: str = "",
    prepare: str = "",
) -> np.ndarray:
    """Each expression at every position of the columns, by one thread.

    Parameters
    ----------
    compiled : the fixture
    expressions : list of str
        Of ``x``, ``y``, ``z`` and ``w``, the columns' elements, and of what ``prepare`` declares.
    columns : arrays, shape (n,)
    out : dtype of the results
    header : str
        Before the kernel: includes.
    prepare : str
        Statements before the expressions.

    Returns
    -------
    numpy.ndarray, shape (expressions, n)
    """
    names = "xyzw"[: len(columns)]
    parameters = ", ".join(f"const {CTYPE[str(c.dtype)]}* p{n}" for n, c in zip(names, columns, strict=True))
    loads = " ".join(f"auto {n} = p{n}[i];" for n in names)
    stores = "\n".join(f"    out[{j} * n + i] = {e};" for j, e in enumerate(expressions))
    text = (
        f"{header}\n__global__ void k({CTYPE[np.dtype(out).name]}* out, int n, {parameters}) {{\n"
        f"  for (int i = 0; i < n; ++i) {{ {loads} {prepare}\n{stores}\n  }}\n}}\n"
    )
    result = np.zeros((len(expressions), len(columns[0])), out)
    compiled(text)(1, 1, result, np.int32(len(columns[0])), *[np.ascontiguousarray(c) for c in columns])
    return result


def ulps(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Distance in units of the last place of ``got``'s type; 0 or less than 1 where both are NaN or equal."""
    with np.errstate(all="ignore"):
        rounded = want.astype(got.dtype)
        spacing = np.maximum(np.spacing(np.abs(rounded)), np.finfo(got.dtype).smallest_subnormal).astype(np.longdouble)
        distance = np.abs(got.astype(np.longdouble) - want.astype(np.longdouble)) / spacing
    same = (np.isnan(got) & np.isnan(rounded)) | (got == rounded)
    return np.where(same, np.minimum(np.nan_to_num(distance), 1.0), np.nan_to_num(distance, nan=np.inf))
