"""What is rendered: one choice of parameters, dtypes and facts, without the sizes. The value from plan to render."""

from __future__ import annotations

from dataclasses import dataclass

from cuplate.structs import Struct

__all__ = ["ArrayFacts", "AxisFacts", "Fact", "Slot", "Specialization"]


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing a template reads of an array: ``a.stride(0)`` is ``Fact("a", "stride", 0)``.

    Attributes
    ----------
    array : str
        The array's name in the signature.
    name : str
        ``"aligned"``, ``"order"`` or ``"stride"``; dtype and rank are always known and need no fact.
    value : int or None
        Bytes for ``aligned``, axis for ``stride``, None for ``order``.
    """

    array: str
    name: str
    value: int | None = None


@dataclass(frozen=True, slots=True)
class ArrayFacts:
    """One array as the template may see it.

    Attributes
    ----------
    name : str
        Name in the signature, and in C.
    dtype : str
        Key of ``cuplate.dtypes.DTYPES``; ``""`` when absent.
    ndim : int
        Axes after folding a leading ``*name``.
    mutable : bool
        True for outputs, scratch and ``mutates=`` arrays: passed as ``T*``, the others as ``const T*``.
    present : bool
        False for an optional array that was not given.
    order : str or None
        ``"C"``, ``"F"`` or ``"strided"``; None unless the template reads it.
    strides : tuple of (int, int)
        (axis, elements), only for axes whose stride the template reads.
    aligned : tuple of (int, bool)
        (bytes, answer), only for what the template asks.
    mapped : bool
        True for an array that the kernel takes as a tensor map.
    """

    name: str
    dtype: str
    ndim: int
    mutable: bool
    present: bool = True
    order: str | None = None
    strides: tuple[tuple[int, int], ...] = ()
    aligned: tuple[tuple[int, bool], ...] = ()
    mapped: bool = False


@dataclass(frozen=True, slots=True)
class AxisFacts:
    """One axis size as the template may see it.

    Attributes
    ----------
    name : str
        Name in the signature, and in C.
    size : int or None
        The constant, for ``static=`` axes; None for a run-time size.
    tile_index : str or None
        C expression of this block's tile on the axis; None when ``tiles=`` does not cover it by its bare name.
    """

    name: str
    size: int | None = None
    tile_index: str | None = None


@dataclass(frozen=True, slots=True)
class Slot:
    """One entry of the kernel's parameter list.

    Attributes
    ----------
    name : str
        Name in the signature; for a stride ``a.stride(0)``.
    kind : str
        ``"array"``, ``"map"``, ``"scalar"``, ``"axis"``, ``"stride"``, or ``"null"`` for an absent array.
    declared : str
        As printed by ``{{ args }}``: ``"const float* __restrict__ a"``.
    ctypes : tuple of str
        C types that the compiler may find at this place, in order of preference; for integers any of several widths.
    struct : Struct or None
        Of a scalar that is one: the compiler compares its members instead of a type's name.
    """

    name: str
    kind: str
    declared: str
    ctypes: tuple[str, ...]
    struct: Struct | None = None


@dataclass(frozen=True, slots=True)
class Specialization:
    """Everything a template can see, and nothing else: equal specializations render to equal text.

    Attributes
    ----------
    function : str
        Name of the specialized function, for messages.
    entry : str
        Jinja source of the kernel's name in the rendered text: ``"saxpy"``, or ``"sgemm<{{ tile }}>"``.
    parameters : tuple of (str, object)
        Compile-time values in signature order; lists arrive as tuples.
    arrays : tuple of ArrayFacts
        Arguments, outputs and scratch.
    scalars : tuple of (str, str or Struct)
        (name, dtype) of run-time scalars.
    axes : tuple of AxisFacts
        In order of first appearance.
    index_type : str
        ``"int"`` or ``"long long"``.
    arch : str
        ``"sm_90"``, ``"sm_90a"``.
    block : tuple of int
        Threads in x, y, z.
    slots : tuple of Slot or None
        The parameter list; None when the kernel writes its own and it is to be matched by name.
    """

    function: str
    entry: str
    parameters: tuple[tuple[str, object], ...]
    arrays: tuple[ArrayFacts, ...]
    scalars: tuple[tuple[str, str | Struct], ...]
    axes: tuple[AxisFacts, ...]
    index_type: str
    arch: str
    block: tuple[int, int, int]
    slots: tuple[Slot, ...] | None
