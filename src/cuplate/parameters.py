"""Compile-time values: enforced against their annotations, and told apart by type and bits."""

from __future__ import annotations

import enum
import inspect
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from cuplate.dtypes import DTYPES, SPELLINGS
from cuplate.errors import DeclarationError, ParameterError
from cuplate.hints import nearest_name
from cuplate.signature import ArrayArgument, Parameter, Signature

if TYPE_CHECKING:
    from cuplate.expression import Expression

__all__ = [
    "check_defaults",
    "check_parameters",
    "check_require",
    "dtype_name",
    "nearest_dtype",
    "no_dtype",
    "parameter_key",
    "shown",
]

_EMPTY = inspect.Parameter.empty


def check_parameters(
    signature: Signature, values: Mapping[str, Any], *, only: Collection[str] | None = None
) -> tuple[tuple[str, Any], ...]:
    """Compile-time values, enforced against their annotations and in one spelling each.

    Parameters
    ----------
    signature : Signature
    values : mapping
        By name.
    only : collection of str, optional
        Of these parameters alone; default of all.

    Returns
    -------
    tuple of (str, object)
        In signature order. NumPy scalars of an enforced ``int``, ``float`` or ``bool`` become Python's; lists become
        tuples.

    Raises
    ------
    ParameterError
        A value outside its annotation.
    """
    asked = [p for p in signature.parameters if only is None or p.name in only]
    return tuple((p.name, _check_printed(p, values[p.name], signature.function)) for p in asked)


def check_defaults(signature: Signature) -> None:
    """Refuse, at decoration, a default that every call would refuse.

    Raises
    ------
    DeclarationError
        Names the parameter, its default and its annotation.
    """
    for parameter in signature.parameters:
        if parameter.default is _EMPTY:
            continue
        try:
            _check_printed(parameter, parameter.default, signature.function)
        except ParameterError as error:
            hint = f"{parameter.annotation} | None" if parameter.default is None else error.facts.get("try_")
            raise DeclarationError(
                f"the default of parameter {parameter.name!r} is outside its annotation.",
                function=signature.function,
                given=f"{parameter.name}: {parameter.annotation} = {shown(parameter.default)}",
                allowed=error.facts.get("allowed"),
                try_=hint,
            ) from None


def _check_printed(parameter: Parameter, value: Any, function: str) -> Any:
    """A checked value that messages can print: no list within itself, no integer of thousands of digits."""
    try:
        checked = _check_parameter(parameter, value, function)
        repr(checked)
    except ParameterError:
        raise
    except RecursionError:
        raise _wrong(parameter, value, function, "a list that does not contain itself") from None
    except ValueError:  # Python prints no integer beyond sys.get_int_max_str_digits()
        raise _wrong(parameter, value, function, "a value that can be printed") from None
    return checked


def _check_parameter(parameter: Parameter, value: Any, function: str) -> Any:
    if value is None and parameter.nullable:
        return None
    kind = parameter.kind
    if kind == "literal":
        for allowed in parameter.allowed:
            if type(value) is type(allowed) and value == allowed:
                return value
        plain = _plain(value)
        for allowed in parameter.allowed:
            if type(plain) is type(allowed) and plain == allowed:
                return allowed
        texts = [a for a in parameter.allowed if isinstance(a, str)]
        near = nearest_name(value, texts) if isinstance(value, str) else None
        raise _wrong(parameter, value, function, ", ".join(map(repr, parameter.allowed)), near)
    if kind == "enum":
        if any(value is member for member in parameter.allowed):  # an IntEnum equals another one's member, too
            return value
        raise _wrong(parameter, value, function, ", ".join(str(a) for a in parameter.allowed))
    if kind == "list":
        if isinstance(value, (list, tuple)):
            frozen = _freeze(value, parameter, function)
            return tuple(_element(parameter, e, function) for e in frozen) if parameter.allowed else frozen
        raise _wrong(parameter, value, function, "a list or tuple")
    if kind == "dtype":
        allowed_here = "a dtype that a kernel can name"
        return dtype_name(value, lambda: _wrong(parameter, value, function, allowed_here, nearest_dtype(value)))
    if kind == "any":
        return _freeze(value, parameter, function)
    return _check_plain(parameter, value, function)


def _check_plain(parameter: Parameter, value: Any, function: str) -> Any:
    plain = _plain(value)
    kind = parameter.kind
    if kind == "float" and type(plain) is int:
        plain = _exact_float(parameter, plain, function)
    if type(plain).__name__ != kind or (isinstance(value, enum.Enum)):
        raise _wrong(parameter, value, function, parameter.annotation)
    return plain if parameter.text is None else parameter.text.check(str(plain), parameter.name, function)


def _element(parameter: Parameter, value: Any, function: str) -> Any:
    """One element of a list whose element types are plain."""
    plain = _plain(value)
    if type(plain) in parameter.allowed and not isinstance(value, enum.Enum):
        return plain
    if type(plain) is int and float in parameter.allowed:
        return _exact_float(parameter, plain, function)
    raise _wrong(parameter, value, function, parameter.annotation)


def _exact_float(parameter: Parameter, value: int, function: str) -> float:
    try:
        if float(value) == value:
            return float(value)
    except OverflowError:
        pass
    raise _wrong(parameter, value, function, "an integer that float holds exactly")


def _plain(value: Any) -> Any:
    """A NumPy scalar as the Python value it stands for; anything else as it is."""
    if type(value).__module__ == "numpy" and hasattr(value, "item") and getattr(value, "shape", None) == ():
        return value.item()
    return value


def _freeze(value: Any, parameter: Parameter, function: str) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_freeze(v, parameter, function) for v in value)
    try:
        hash((value, parameter_key(value)))
    except TypeError:
        raise _wrong(parameter, value, function, "a hashable value, or a list of such") from None
    by_identity: Any = object.__hash__
    if type(value).__hash__ is by_identity and not (value is None or isinstance(value, type)):
        # Equal to itself alone, whatever its attributes say: a change of them would go unseen.
        raise _wrong(
            parameter, value, function, "a value with an equality of its own: a number, an Enum, a frozen dataclass"
        )
    return value


def _wrong(parameter: Parameter, value: Any, function: str, allowed: str, try_: Any = None) -> ParameterError:
    return ParameterError(
        f"{parameter.name} = {shown(value)} ({type(value).__name__}) is not allowed.",
        function=function,
        allowed=allowed,
        try_=f"{parameter.name}={try_!r}" if try_ is not None else None,
    )


def shown(value: Any) -> str:
    """A value for a message: short, and possible for integers of any length."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    try:
        return f"{value!r:.60}"
    except ValueError:  # it holds such an integer
        return f"a {type(value).__name__}"


def dtype_name(value: Any, error: Callable[[], Exception]) -> str:
    """The name in ``DTYPES`` of a dtype given as name, NumPy dtype or scalar class."""
    name = value if isinstance(value, str) else str(getattr(value, "name", None) or getattr(value, "__name__", ""))
    name = {"bool_": "bool"}.get(name, name)
    if name not in DTYPES or not getattr(value, "isnative", True):
        raise error()
    return name


def nearest_dtype(value: Any) -> str | None:
    """The dtype that was probably meant by a name that is none, for ``try_=``."""
    return SPELLINGS.get(value.lower()) or nearest_name(value, DTYPES) if isinstance(value, str) else None


def no_dtype(argument: ArrayArgument, value: Any, function: str) -> ParameterError:
    """The error for a parameter of ``dtypes=`` whose value is no dtype."""
    return ParameterError(
        f"{argument.dtype_parameter} = {shown(value)} is no dtype that a kernel can name.",
        function=function,
        allowed=", ".join(argument.dtypes),
        try_=nearest_dtype(value),
    )


def parameter_key(value: Any) -> Any:
    """A hashable that keeps ``1``, ``True``, ``1.0``, ``-0.0`` and NaN apart: values by type, floats by their bits."""
    if isinstance(value, (tuple, list)):  # a list parameter may be given as either
        return (tuple, *(parameter_key(v) for v in value))
    if isinstance(value, float):
        return type(value), struct.pack("<d", value)
    if type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
        return type(value), value.tobytes()
    if hasattr(value, "__dataclass_fields__") and not isinstance(
        value, type
    ):  # its own equality takes True for 1, and leaves out compare=False
        return type(value), value, *(parameter_key(getattr(value, f.name)) for f in fields(value))
    return type(value), value


def check_require(
    conditions: Sequence[Expression], values: Mapping[str, object], function: str, called_as: str
) -> None:
    """Refuse parameters that break a condition of ``require=``.

    Raises
    ------
    ParameterError
        Names the condition and the values it read.
    """
    for condition in conditions:
        if not condition.evaluate(values):
            read = ", ".join(f"{n} = {values[n]!r}" for n in sorted(condition.names) if n in values)
            on_host = "on_gpu" in condition.names and values.get("on_gpu") is False
            raise ParameterError(
                f"the condition {condition.broken(values)}.",
                function=function,
                given=read,
                _condition=condition.text,
                called_as=called_as,
                try_="arrays on a GPU: this kernel is not for the CPU backend" if on_host else None,
            )
