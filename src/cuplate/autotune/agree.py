"""Whether two results of one call are the same but for rounding: bytes as a device left them, compared as numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from cuplate.dtypes import DTYPES

__all__ = ["Tolerance", "as_numbers", "difference"]

_CHUNK = 1 << 22  # elements at a time: what is compared as float64 takes 32 MiB
_ROUNDINGS = 4.0
_SUMS = 2.0**-23  # what is narrower than float32 is taken to be summed in it
# Bits of mantissa, for the dtypes that NumPy has no name for.
_BITS = {"bfloat16": 7, "float8_e4m3fn": 3, "float8_e5m2": 2}


@dataclass(frozen=True, slots=True)
class Tolerance:
    """By how much two floats may differ.

    Attributes
    ----------
    rtol, atol : float or None
        ``atol + rtol * |value|`` where one of them is given; else ``4 * (eps + min(eps, 2**-23) * sqrt(terms))`` times
        the largest magnitude in the array.
    terms : int
        A bound for what one element sums up: the largest axis of the call.
    """

    rtol: float | None = None
    atol: float | None = None
    terms: int = 1

    def allowed(self, wanted: Any, dtype: str, scale: float) -> Any:
        """Largest difference of each element."""
        import numpy as np

        if self.rtol is not None or self.atol is not None:
            size = np.abs(np.where(np.isfinite(wanted), wanted, 0.0))
            return (self.atol or 0.0) + (self.rtol or 0.0) * size
        bits = _BITS.get(dtype)
        eps = 2.0**-bits if bits is not None else float(np.finfo(_numpy(dtype)).eps)
        return _ROUNDINGS * (eps + min(eps, _SUMS) * math.sqrt(self.terms)) * scale


def difference(got: Any, wanted: Any, dtype: str, tolerance: Tolerance) -> str | None:
    """Where and by how much two results differ, one line; None where they agree.

    Parameters
    ----------
    got, wanted : array of uint8
        The bytes of equally many elements.
    dtype : str
        Key of ``DTYPES``.
    tolerance : Tolerance
        For floats; integers and bools are equal or not.

    Returns
    -------
    str or None
        The first element that differs, and how many do.
    """
    import numpy as np

    if np.array_equal(got, wanted):
        return None
    itemsize = DTYPES[dtype].itemsize
    step = _CHUNK * itemsize
    exact = dtype.startswith(("bool", "int", "uint"))
    scale = 0.0
    if not exact:
        for at in range(0, wanted.size, step):
            part = as_numbers(wanted[at : at + step], dtype)
            scale = max(scale, float(np.abs(np.where(np.isfinite(part), part, 0.0)).max(initial=0.0)))
    count, first = 0, ""
    for at in range(0, wanted.size, step):
        mine, theirs = (as_numbers(bytes_[at : at + step], dtype) for bytes_ in (got, wanted))
        if exact:
            wrong = mine != theirs
        else:
            with np.errstate(invalid="ignore", over="ignore"):
                same = (mine == theirs) | (np.isnan(mine) & np.isnan(theirs))
                wrong = ~(same | (np.abs(mine - theirs) <= tolerance.allowed(theirs, dtype, scale)))
        if not first and wrong.any():
            place = int(np.argmax(wrong))
            index = at // itemsize + (place // 2 if dtype.startswith("complex") else place)
            first = f"element {index} is {mine[place].item()!r}, not {theirs[place].item()!r}"
        count += int(wrong.sum())
    return f"{first} ({count} differ)" if count else None


def as_numbers(data: Any, dtype: str) -> Any:
    """Bytes as numbers that NumPy computes with: floats as float64, complex ones as pairs, the others as they are."""
    import numpy as np

    if dtype == "bfloat16":
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if dtype == "float8_e5m2":
        return (data.astype(np.uint16) << 8).view(np.float16).astype(np.float64)
    if dtype == "float8_e4m3fn":
        return _e4m3()[data]
    plain = _numpy(dtype)
    if plain.kind == "c":
        return data.view(np.float32 if plain.itemsize == 8 else np.float64).astype(np.float64)
    found = data.view(np.uint8 if plain.kind == "b" else plain)
    return found.astype(np.float64) if plain.kind == "f" else found


def _numpy(dtype: str) -> Any:
    import numpy as np

    return np.dtype(dtype)


def _e4m3() -> Any:
    """The 256 values of float8_e4m3fn: bias 7, no infinity, one NaN a sign."""
    import numpy as np

    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, (code & 7) / 8.0
    size = np.where(exponent == 0, mantissa * 2.0**-6, (1 + mantissa) * 2.0 ** (exponent - 7.0))
    size = np.where(code & 127 == 127, np.nan, size)
    return np.where(code & 128, -size, size)
