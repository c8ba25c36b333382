"""Launch-time arguments: bound to their names, and arrays as every library looks from here."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cuplate.dtypes import DTYPES
from cuplate.errors import ArgumentError, ExpressionError
from cuplate.hints import nearest_name
from cuplate.signature import ArrayArgument, ScalarArgument, Signature

if TYPE_CHECKING:
    pass

__all__ = ["ArraySpec", "Described", "bind", "describe_argument", "is_packed", "packed_strides", "product"]

_EMPTY = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """An array that is only described: stands in for a real one in `inspect`, `compile` and `explain`.

    Parameters
    ----------
    shape : tuple of int or None
        None where no size matters (nothing can then be said about the grid).
    dtype : str
        Name, for example ``"float32"``, ``"bfloat16"``.
    strides : tuple of int, optional
        In elements; row-major when None.
    alignment : int, bytes
        Of the first element; fresh device memory has 256.
    """

    shape: tuple[int, ...] | None = None
    dtype: str = "float32"
    strides: tuple[int, ...] | None = None
    alignment: int = 256


@dataclass(frozen=True, slots=True)
class Described:
    """One array argument as every library looks from here.

    Attributes
    ----------
    name : str
        Argument name.
    pointer : int
        Address of the first element; for an `ArraySpec` its alignment.
    dtype : str
        Key of ``DTYPES``.
    shape : tuple of int or None
        None only for an `ArraySpec` without a shape.
    strides : tuple of int
        In elements.
    device : tuple of (str, int) or None
        ``("cuda", 0)``, ``("cpu", 0)``; None for an `ArraySpec`.
    readonly : bool
        True when the library forbids writing.
    stream : int or None
        Pointer of the stream that the array itself announces its data on; None when its library has a current stream.
    view : object or None
        What the array was read through, where it was exported by DLPack: keeps the memory, and is ordered by streams.
    """

    name: str
    pointer: int
    dtype: str
    shape: tuple[int, ...] | None
    strides: tuple[int, ...]
    device: tuple[str, int] | None
    readonly: bool = False
    stream: int | None = None
    view: Any = None

    def __str__(self) -> str:
        return self.dtype if self.shape is None else f"{self.dtype}{list(self.shape)}"

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return DTYPES[self.dtype].itemsize

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape or ())

    @property
    def size(self) -> int:
        """Number of elements."""
        return product(self.shape or ())

    @property
    def order(self) -> str:
        """``"C"``, ``"F"`` or ``"strided"``; arrays of one element a row are ``"C"``."""
        if self.shape is None or is_packed(self.shape, self.strides):
            return "C"
        if is_packed(self.shape[::-1], self.strides[::-1]):
            return "F"
        return "strided"

    def settled(self) -> Described:
        """The same array; where it is packed, the strides that no index ever uses (of axes of one element) are too.

        A library may leave anything in them, and what a template reads of them must not make another variant.
        """
        if self.shape is None or self.order != "C":
            return self
        packed = packed_strides(self.shape)
        return self if packed == self.strides else replace(self, strides=packed)

    def aligned(self, size_bytes: int) -> bool:
        """Whether the first element stands at a multiple of `size_bytes`."""
        return self.pointer % size_bytes == 0

    def stride(self, axis: int) -> int:
        """Elements from one index to the next on `axis`."""
        if self.shape is None:
            raise ExpressionError(f"the stride of {self.name!r} is unknown: its ArraySpec has no shape.")
        return self.strides[axis]

    def extent(self) -> tuple[int, int]:
        """First and one-past-last byte that indexing can touch; empty arrays give an empty range."""
        low = high = 0
        for n, stride in zip(self.shape or (), self.strides, strict=True):
            if n == 0:
                return self.pointer, self.pointer
            low += min(0, stride * (n - 1))
            high += max(0, stride * (n - 1))
        return self.pointer + low * self.itemsize, self.pointer + (high + 1) * self.itemsize


def product(values: Iterable[int]) -> int:
    """Product of integers; 1 for none."""
    result = 1
    for value in values:
        result *= value
    return result


def packed_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def is_packed(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the array is row-major without gaps; axes of one element and empty arrays do not matter."""
    if 0 in shape:
        return True
    return all(n == 1 or s == p for n, s, p in zip(shape, strides, packed_strides(shape), strict=True))


def bind(
    signature: Signature,
    given: Mapping[str, Any],
    more: Sequence[Any] = (),
    unknown: Mapping[str, Any] | None = None,
    *,
    partial: bool = False,
) -> dict[str, Any]:
    """Values by name, defaults filled in, as Python would bind them.

    Parameters
    ----------
    signature : Signature
    given : mapping
        What the caller gave under known names.
    more, unknown : sequence, mapping
        Positional arguments too many, and keywords that name nothing; both are errors.
    partial : bool
        True lets arguments be missing (`inspect` and its kind need only what decides the text).

    Raises
    ------
    ArgumentError
        Missing, superfluous or unknown names.
    """
    names = [a.name for a in signature.arguments]
    function = signature.function
    if more:
        first = signature.parameters[0].name if signature.parameters else None
        raise ArgumentError(
            f"{len(names) + len(more)} positional arguments given, {len(names)} taken.",
            function=function,
            allowed=", ".join(names) or "none",
            try_=f"parameters are given by name, for example {first}=..." if first else None,
        )
    known = [*names, *(p.name for p in signature.parameters), "out", "stream", *(["arch"] if partial else [])]
    for name in unknown or ():
        near = nearest_name(name, known)
        raise ArgumentError(
            f"there is no argument or parameter {name!r}.",
            function=function,
            allowed=", ".join(known),
            try_=f"{near}=" if near else None,
        )
    values = dict(given)
    for argument in signature.arguments:
        if argument.name in values:
            continue
        if isinstance(argument, ArrayArgument) and argument.optional:
            values[argument.name] = None
        elif not partial:
            raise ArgumentError(
                f"argument {argument.name!r} is missing.", function=function, allowed=describe_argument(argument)
            )
    for parameter in signature.parameters:
        if parameter.name not in values:
            if parameter.default is _EMPTY:
                raise ArgumentError(
                    f"parameter {parameter.name!r} is missing.", function=function, allowed=parameter.annotation
                )
            values[parameter.name] = parameter.default
    return values


def describe_argument(argument: ArrayArgument | ScalarArgument) -> str:
    """The annotation of an argument, for messages."""
    return argument.annotation if isinstance(argument, ArrayArgument) else f"scalar {argument.dtype}"
