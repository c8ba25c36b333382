"""The C++ spelling of a Python or NumPy value: exact, typed, and never Python's own words."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from typing import Any

import numpy as np

from cuplate.dtypes import DTYPES
from cuplate.errors import TemplateError

__all__ = ["LiteralError", "cpp", "cstr"]

_ALLOWED = "bool, int, float, str, Enum, NumPy scalar, NumPy dtype, or a list of these"

_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


class LiteralError(TemplateError, TypeError):
    """A value has no C++ spelling."""


def cpp(value: object) -> str:
    """Return the C++ literal of a value.

    Parameters
    ----------
    value : object
        - ``bool``: ``true`` or ``false``.
        - ``int``: ``5``, ``(-5)``; beyond 32 bits with ``LL``, beyond ``long long`` with ``ULL`` (up to 2**64 - 1).
        - ``float``: a ``double`` that reads back to the same bits: ``0.1``, ``(-0.0)``, ``(1.0/0.0)``, ``(0.0/0.0)``.
        - NumPy scalars keep their type: ``np.float32(0.1)`` is ``0.1f``, ``np.uint64(5)`` is ``5ULL``,
          ``np.int8(5)`` is ``((signed char)5)``. Floating types narrower than 32 bits (``float16``, ``bfloat16``, the
          8-bit ones) are written as ``float`` literals, which hold every one of their values exactly.
        - ``Enum``: the literal of its value. ``np.dtype`` or a NumPy scalar class: the C type, ``float``.
        - ``str``: itself, for it is C++ text already. ``list``: a braced list, ``{1, 2}``.
        - An object with a method ``__cpp__``: what that returns.

    Returns
    -------
    str
        Text that can stand anywhere an expression can; negative numbers are in parentheses.

    Raises
    ------
    LiteralError
        For everything else: None, tuples, complex numbers, bytes, dictionaries, sets, functions, arrays.

    Examples
    --------
    >>> cpp(True), cpp(-3), cpp([1.0, float("-inf")])
    ('true', '(-3)', '{1.0, (-1.0/0.0)}')
    """
    spell = _EXACT.get(type(value))
    return spell(value) if spell is not None else _cpp_other(value)


def cstr(value: object) -> str:
    """Return a quoted C string literal; anything but a string is spelled by `cpp` first.

    Control characters and bytes beyond ASCII (as UTF-8) are written as three octal digits, so that neither the
    encoding of the source nor a digit that follows can change them.
    """
    text = value if isinstance(value, str) else cpp(value)
    return '"' + "".join(map(_escape, str(text))) + '"'


def _escape(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if " " <= char <= "~":
        return char
    try:
        return "".join(f"\\{byte:03o}" for byte in char.encode())
    except UnicodeEncodeError:
        raise LiteralError("a lone surrogate has no place in a C string", given=repr(char)) from None


def _cpp_other(value: object) -> str:
    # An Enum first: IntEnum and StrEnum are an int and a str as well.
    if isinstance(value, Enum):
        return cpp(value.value)
    spell = getattr(type(value), "__cpp__", None)
    if spell is not None:
        return str(spell(value))
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return _ctype(value)
    if isinstance(value, np.generic) and not isinstance(value, (np.str_, np.bytes_)):
        return _numpy_scalar(value)
    for base in (bool, int, float, str, list):
        if isinstance(value, base):
            return _EXACT[base](value)
    raise _refused(value)


def _bool(value: Any) -> str:
    return "true" if value else "false"


def _int(value: Any) -> str:
    value = int(value)
    if -(2**31) <= value < 2**31:
        return _signed(value, "")
    if -(2**63) <= value < 2**63:
        return _signed(value, "LL")
    if 0 <= value < 2**64:
        return f"{value}ULL"
    raise LiteralError("an integer beyond 64 bits has no C++ literal", given=value, allowed="-2**63 to 2**64 - 1")


def _signed(value: int, suffix: str) -> str:
    if value >= 0:
        return f"{value}{suffix}"
    # C++ has no negative literals: -2147483648 is minus 2147483648, which is not an int.
    if value == (-(2**63) if suffix else -(2**31)):
        return f"(-{-(value + 1)}{suffix} - 1)"
    return f"(-{-value}{suffix})"


def _float(value: Any) -> str:
    return _finish(float(value), float.__repr__(float(value)), "")


def _finish(value: float, text: str, suffix: str) -> str:
    # The compiler's constants for infinity and NaN differ between NVRTC and the host; a division is both a constant
    # expression and accepted everywhere.
    if math.isnan(value):
        return f"(0.0{suffix}/0.0{suffix})"
    if math.isinf(value):
        return f"({'-' if value < 0 else ''}1.0{suffix}/0.0{suffix})"
    if "." not in text and "e" not in text:
        text += ".0"
    text += suffix
    return f"({text})" if text.startswith("-") else text


def _float32(value: float) -> str:
    if not math.isfinite(value):
        return _finish(value, "", "f")
    single = np.float32(value)
    positional = value == 0 or 1e-4 <= abs(value) < 1e9
    shortest = (np.format_float_positional if positional else np.format_float_scientific)(single, trim="0")
    # A compiler may read the decimal as a double first; where rounding twice would hit a neighbour, write all digits.
    exact = bool(np.float32(float(shortest)) == single)
    return _finish(value, shortest if exact else float.__repr__(value), "f")


def _numpy_scalar(value: np.generic) -> str:
    dtype = DTYPES.get(value.dtype.name)
    if dtype is None or dtype.name.startswith("complex"):
        raise _refused(value)
    if dtype.name == "bool":
        return _bool(value)
    if dtype.name == "float64":
        return _float(value)
    if "float" in dtype.name:
        return _float32(float(value))
    number = int(value)
    if dtype.itemsize < 4:
        return f"(({dtype.ctype}){_signed(number, '')})"
    suffix = {"int32": "", "int64": "LL", "uint32": "u", "uint64": "ULL"}[dtype.name]
    return f"{number}{suffix}" if dtype.name.startswith("u") else _signed(number, suffix)


def _ctype(value: Any) -> str:
    dtype = np.dtype(value)
    known = DTYPES.get(dtype.name)
    if known is None or not dtype.isnative:
        raise LiteralError("this dtype has no C type", given=repr(value), allowed=", ".join(DTYPES))
    return known.ctype


def _str(value: Any) -> str:
    return str.__str__(value)


def _list(value: Any) -> str:
    return "{" + ", ".join(map(cpp, value)) + "}"


def _refused(value: object) -> LiteralError:
    kind = type(value).__name__
    hint = None
    if isinstance(value, tuple):
        # Jinja reads {{1,2}} as a tuple, and would print (1, 2), which is C++ for 2.
        kind += " (Jinja makes one of {{1,2}}, too)"
        hint = "{{ [1, 2] }} for the list {1, 2}; braces of C++ with spaces between: { {1, 2} }"
    elif value is None:
        hint = 'the C++ text as a string, "nullptr", or test for it: {% if x is none %}'
    elif hasattr(value, "tolist"):
        hint = "a list: value.tolist()"
    elif hasattr(value, "__next__"):
        kind += " (a filter that yields, without `| list`)"
        hint = "{{ ... | list }}"
    elif callable(value):
        hint = "a call, {{ name() }}, where a call was meant"
    shown = repr(value) if isinstance(value, (tuple, complex, bytes, type(None))) else None
    return LiteralError(f"no C++ literal for a {kind}", given=shown, allowed=_ALLOWED, try_=hint)


_EXACT: dict[type, Callable[[Any], str]] = {bool: _bool, int: _int, float: _float, str: _str, list: _list}
