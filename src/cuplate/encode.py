"""Run-time scalars as launch arguments: the exact bits, or an error."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cuplate.errors import (
    DtypeError,
    ScalarOverflowError,
)
from cuplate.parameters import shown
from cuplate.signature import ScalarArgument
from cuplate.structs import Struct, struct_of

if TYPE_CHECKING:
    pass

__all__ = ["encoder"]

_CODES = {
    "bool": "?", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint8": "B", "uint16": "H", "uint32": "I",
    "uint64": "Q", "float16": "e", "float32": "f", "float64": "d",
}  # fmt: skip
FLOAT64_BYTES = 8
_unpack_word = struct.Struct("<q").unpack


def encoder(argument: ScalarArgument, function: str) -> Callable[[Any], int | bytes]:
    """A function from a Python or NumPy scalar to the launch argument that carries its exact bits.

    The launcher passes every Python integer as eight bytes, little-endian, and a kernel reads as many of them as its
    parameter has. A scalar of up to eight bytes therefore travels as the integer with the same bytes: exact for every
    dtype, and the launcher's fastest path. A struct travels as its bytes.

    Raises
    ------
    DtypeError
        The scalar is of another kind (a float for an integer, a bool for a number, an array).
    ScalarOverflowError
        The value does not fit.
    """
    name, dtype = argument.name, argument.dtype
    if argument.struct is not None:
        return _struct_encoder(name, argument.struct, function)
    if dtype not in _CODES:
        raise DtypeError(f"scalar argument {name!r} cannot be {dtype}.", function=function, allowed=", ".join(_CODES))
    code = _CODES[dtype]
    pack = struct.Struct(f"<{code}{8 - struct.calcsize(code)}x").pack
    accept = {"?": _accept_bool, "e": _accept_narrow, "f": _accept_narrow, "d": _accept_float}.get(code, _accept_int)

    def encode(value: Any) -> int:
        try:
            plain = accept(value)
            word: int = 0 if plain is None else _unpack_word(pack(plain))[0]
        except (struct.error, OverflowError):
            raise ScalarOverflowError(
                f"scalar argument {name!r} = {shown(value)} does not fit {dtype}.", function=function
            ) from None
        if plain is None:
            raise DtypeError(
                f"scalar argument {name!r} is {dtype}; {shown(value)} ({type(value).__name__}) is of another kind.",
                function=function,
                try_=f"{dtype.strip('u0123456789')}(...)",
            )
        if code in "efd" and type(plain) is int:
            _check_exact(
                plain, struct.unpack(f"<{code}", pack(plain)[: struct.calcsize(code)])[0], name, dtype, function
            )
        return word

    return encode


def _struct_encoder(name: str, wanted: Struct, function: str) -> Callable[[Any], bytes]:
    """Of NumPy structured scalars; their members are NumPy's already, and are not looked at one by one."""

    def encode(value: Any) -> bytes:
        if _struct_like(value, wanted) != wanted:
            dtype = getattr(value, "dtype", None)
            raise DtypeError(
                f"scalar argument {name!r} is another kind of value than its struct.",
                function=function,
                given=f"{value!r:.60} ({type(value).__name__}" + (")" if dtype is None else f" of {dtype})"),
                allowed=f"a NumPy structured scalar, {wanted}",
                try_="numpy.array((...), dtype)[()]",
            )
        return bytes(value.tobytes())

    return encode


def _struct_like(value: Any, wanted: Struct) -> Struct | None:
    """The struct that a NumPy structured scalar is; None for anything else."""
    names = getattr(getattr(value, "dtype", None), "names", None)
    if type(value).__module__ != "numpy" or not names or not _is_scalar(value):
        return None
    try:
        return struct_of(wanted.name, value.dtype)
    except ValueError:
        return None


def _check_exact(value: int, passed: float, name: str, dtype: str, function: str) -> None:
    if value != passed:
        raise ScalarOverflowError(
            f"scalar argument {name!r} = {shown(value)} is an integer that {dtype} cannot hold exactly.",
            function=function,
            try_=f"float({shown(value)}) to accept the rounding",
        )


def _kind(value: Any) -> str | None:
    """NumPy's kind letter of a NumPy scalar; None for anything else. ml_dtypes scalars are of kind ``"V"``."""
    dtype = getattr(value, "dtype", None)
    return dtype.kind if dtype is not None and getattr(value, "shape", None) == () and hasattr(value, "item") else None


def _accept_bool(value: Any) -> bool | None:
    if value is True or value is False:
        return bool(value)
    return bool(value) if type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_") else None


def _accept_int(value: Any) -> int | None:
    if type(value) is int:
        return value
    if isinstance(value, bool):
        return None
    if isinstance(value, int) or (
        type(value).__module__ == "numpy" and _kind(value) in ("i", "u") and _is_scalar(value)
    ):
        return int(value)
    return None


def _accept_float(value: Any) -> float | int | None:
    if type(value) is float or type(value) is int:
        return value
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int):
        return int(value)
    if type(value).__module__ == "numpy" and _kind(value) == "f" and _is_scalar(value):
        plain = float(value)
        if math.isinf(plain) and value != plain:  # a long double beyond float64
            raise OverflowError
        return plain
    return None


def _accept_narrow(value: Any) -> float | int | None:
    """As `_accept_float`, for a dtype below float64: a long double is not rounded twice.

    It goes to the odd one of its neighbours in float64, which keeps what the next rounding has to know.
    """
    plain = _accept_float(value)
    if type(plain) is float and type(value).__module__ == "numpy" and value.dtype.itemsize > FLOAT64_BYTES:
        (bits,) = _unpack_word(struct.pack("<d", plain))
        if value != plain and math.isfinite(plain) and bits % 2 == 0:
            return math.nextafter(plain, math.inf if value > plain else -math.inf)
    return plain


def _is_scalar(value: Any) -> bool:
    return not hasattr(value, "__array_finalize__")  # arrays of no axes have it, scalars have not
