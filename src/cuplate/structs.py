"""Structs that a kernel takes by value: their C definition, and what the compiler checks of one written by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cuplate.dtypes import DTYPES, SAME_SIZE

__all__ = ["Field", "Struct", "struct_of"]


@dataclass(frozen=True, slots=True)
class Field:
    """One member.

    Attributes
    ----------
    name : str
    dtype : str
        Key of ``DTYPES``.
    count : int or None
        Elements of a member that is an array; None for a single value.
    offset : int
        Bytes from the start of the struct.
    """

    name: str
    dtype: str
    count: int | None
    offset: int

    @property
    def declared(self) -> str:
        """As C declares it: ``"float gain[3]"``."""
        return f"{DTYPES[self.dtype].ctype} {self.name}" + ("" if self.count is None else f"[{self.count}]")

    @property
    def types(self) -> tuple[str, ...]:
        """C types that are right, in order of preference."""
        ctype = DTYPES[self.dtype].ctype
        extent = "" if self.count is None else f"[{self.count}]"
        return tuple(f"{t}{extent}" for t in (ctype, *SAME_SIZE.get(ctype, ())))


@dataclass(frozen=True, slots=True)
class Struct:
    """A struct argument.

    Attributes
    ----------
    name : str
        C name of the type.
    fields : tuple of Field
    itemsize : int
        Bytes, padding included.
    """

    name: str
    fields: tuple[Field, ...]
    itemsize: int

    def __str__(self) -> str:
        return f"struct {{{', '.join(f'{f.name}: {f.dtype}' for f in self.fields)}}}"

    @property
    def definition(self) -> str:
        """The C++ definition."""
        members = "".join(f"    {field.declared};\n" for field in self.fields)
        return f"struct {self.name} {{\n{members}}};"


def struct_of(name: str, dtype: Any) -> Struct:
    """The struct behind a NumPy dtype.

    Parameters
    ----------
    name : str
        C name of the type.
    dtype : numpy.dtype
        Structured, laid out as C lays it out: ``numpy.dtype([...], align=True)``.

    Raises
    ------
    ValueError
        C has no such struct; says why.
    """
    fields = []
    for field in dtype.names:
        kind, offset = dtype.fields[field][:2]
        element, shape = kind.subdtype or (kind, None)
        if element.name not in DTYPES or not element.isnative or (shape is not None and len(shape) != 1):
            raise ValueError(f"the member {field!r} is {kind}")
        if not (field.isidentifier() and field.isascii()):
            raise ValueError(f"the member {field!r} has no name in C")
        fields.append(Field(field, element.name, None if shape is None else shape[0], int(offset)))
    end, alignment = 0, 1
    for f in fields:
        size = DTYPES[f.dtype].itemsize  # of every element type here, CUDA's alignment is its size
        alignment = max(alignment, size)
        if f.offset != -(-end // size) * size:
            raise ValueError(f"the member {f.name!r} lies at byte {f.offset}, in C at {-(-end // size) * size}")
        end = f.offset + size * (1 if f.count is None else f.count)
    if dtype.itemsize != -(-end // alignment) * alignment:
        raise ValueError(f"it has {dtype.itemsize} bytes, in C {-(-end // alignment) * alignment}")
    return Struct(name, tuple(fields), dtype.itemsize)
