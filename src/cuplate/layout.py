"""Where arrays lie: layouts, overlaps and devices that a kernel cannot take are refused before a launch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from cuplate.errors import (
    DeviceError,
    LayoutError,
)
from cuplate.signature import Axis
from cuplate.specialization import Fact

if TYPE_CHECKING:
    pass
from cuplate.arguments import Described, packed_strides

__all__ = ["check_aligned", "check_devices", "check_layout", "check_overlap", "check_writable"]


def check_layout(array: Described, facts: Collection[Fact], axes: Sequence[Axis], function: str) -> None:
    """Refuse a layout whose facts the kernel does not read.

    A kernel that reads neither ``order`` nor ``stride(i)`` takes row-major arrays only; one that reads ``order`` takes
    column-major ones too; one that reads the stride of every axis that is not packed takes those.

    Raises
    ------
    LayoutError
        With the strides, and what to read or pass instead.
    """
    if array.shape is None:
        return
    order = array.order
    folded = bool(axes) and axes[0].folded and len(axes) != len(array.shape)  # several axes as one: only if packed
    if order == "C":
        return
    read = {fact.name for fact in facts if fact.array == array.name}
    if order == "F" and "order" in read and not folded:
        return
    strided = {fact.value for fact in facts if fact.array == array.name and fact.name == "stride"}
    packed = packed_strides(array.shape)
    loose = [i for i, (n, s, p) in enumerate(zip(array.shape, array.strides, packed, strict=True)) if n != 1 and s != p]
    if loose and not folded and all(i in strided for i in loose):
        return
    raise LayoutError(
        f"array {array.name!r} is not row-major without gaps, and the kernel does not read its layout.",
        function=function,
        given=f"{array.name}: {array} with strides {list(array.strides)} (elements)",
        allowed=f"strides {list(packed)}",
        try_=f"a contiguous copy of {array.name}"
        + ("" if folded else ", or a template that reads " + " and ".join(f"{array.name}.stride({i})" for i in loose)),
    )


def check_aligned(array: Described, function: str) -> None:
    """Refuse an array whose elements do not lie at multiples of their size, where a GPU cannot load them.

    A view of bytes may start anywhere, and one of floats as complex numbers between two of them.

    Raises
    ------
    LayoutError
        With the address.
    """
    if array.device is not None and array.size and not array.aligned(array.itemsize):
        raise LayoutError(
            f"array {array.name!r} starts at an address that is no multiple of its element size.",
            function=function,
            given=f"{array.name}: {array} at {array.pointer:#x}",
            allowed=f"a multiple of {array.itemsize} bytes",
            try_=f"a copy of {array.name}",
        )


def check_writable(array: Described, function: str) -> None:
    """Refuse a read-only array, or one whose elements overlap themselves, where the kernel writes."""
    if array.readonly:
        raise LayoutError(f"array {array.name!r} is written by the kernel, but is read-only.", function=function)
    if array.shape and _overlaps_itself(array.shape, array.strides):
        raise LayoutError(
            f"array {array.name!r} is written by the kernel, but is a broadcast view: its elements share memory.",
            function=function,
            given=f"{array.name}: {array} with strides {list(array.strides)} (elements)",
            try_=f"a contiguous copy of {array.name}",
        )


def _overlaps_itself(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two indices may name one element: broadcast views, sliding windows.

    Exact for every view made by slicing and transposing; other stride tricks are refused too where their axes
    interleave.
    """
    if 0 in shape:
        return False
    reach = 0
    for stride, n in sorted((abs(s), n) for n, s in zip(shape, strides, strict=True) if n > 1):
        if stride <= reach:
            return True
        reach += stride * (n - 1)
    return False


def check_overlap(arrays: Sequence[Described], written: Collection[str], function: str) -> None:
    """Refuse a written array that shares memory with another one: a kernel's pointers are ``__restrict__``."""
    extents = [(a, *a.extent()) for a in arrays if a.device is not None and a.size]  # nothing overlaps an empty one
    for target, low, high in extents:
        if target.name not in written:
            continue
        for other, start, stop in extents:
            if other.name != target.name and low < stop and start < high:
                raise LayoutError(
                    f"{target.name!r} is written by the kernel and shares memory with {other.name!r}.",
                    function=function,
                    try_=f"a separate array for {target.name}, or mutates= for an in-place kernel",
                )


def check_devices(arrays: Sequence[Described], function: str) -> tuple[str, int] | None:
    """The one device that all arrays are on; None when all are `ArraySpec`.

    Raises
    ------
    DeviceError
        Names the arrays and their devices.
    """
    places: dict[tuple[str, int], list[str]] = {}
    for array in arrays:
        if array.device is not None:
            places.setdefault(array.device, []).append(array.name)
    if len(places) > 1:
        raise DeviceError(
            "the arrays are on different devices; nothing is copied behind your back.",
            function=function,
            given="; ".join(f"{', '.join(names)} on {kind} {number}" for (kind, number), names in places.items()),
            allowed="all arrays on one device",
        )
    return next(iter(places), None)
