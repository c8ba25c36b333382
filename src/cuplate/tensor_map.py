"""Tensor maps: what ``tensor_maps=`` declares, and what the descriptor of one array of a call holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cuplate.arguments import Described, packed_strides
from cuplate.errors import DeclarationError, LayoutError, ParameterError
from cuplate.expression import Expression
from cuplate.hints import nearest_name

__all__ = ["ALIGNMENT", "CTYPE", "BoundMap", "MapLayout", "TensorMap", "lay_out", "padded_strides", "takes"]

CTYPE = "CUtensorMap"
"""The C type of a descriptor; a kernel defines it in one line, as NVRTC cannot read cuda.h."""

ALIGNMENT = 16  # bytes: of the first element, and of the distance of neighbours on every axis but the innermost

# Limits of cuTensorMapEncodeTiled; source: CUDA Driver API, "Tensor Map Object Management".
MOST_AXES = 5
MOST_IN_BOX = 256  # elements of the box on one axis
MOST_ELEMENTS = 2**32  # of the array on one axis
STRIDE_LIMIT_BYTES = 2**40

_LARGEST_ITEM = 8  # bytes
_SWIZZLES = {"none": 0, "32B": 32, "64B": 64, "128B": 128}
_PROMOTIONS = {"none": 0, "64B": 64, "128B": 128, "256B": 256}


@dataclass(frozen=True, slots=True)
class TensorMap:
    """An array that a kernel takes as a descriptor for the tensor memory accelerator (sm_90 and later).

    Parameters
    ----------
    box : tuple of expression, elements
        What one copy moves, one entry for each axis of the array: expressions as everywhere in `specialize`, 1 to 256.
    swizzle : {"none", "32B", "64B", "128B"}
        How 16-byte pieces are dealt over the banks of shared memory. The box may then be no longer than this on the
        array's innermost axis.
    l2_promotion : {"none", "64B", "128B", "256B"}
        Least size of what is fetched into the L2 cache.
    of : str, optional
        Name of a ``scratch=`` that is described, which the kernel then takes twice: by its pointer, to write, and by
        this descriptor under a name of its own, to read. An array is described under its own name instead.
    shape : tuple of expression, elements, optional
        With `of`: how the scratch is laid out, outermost axis first. Each row begins at the next multiple of 16 bytes.

    Notes
    -----
    The kernel's parameter is ``const __grid_constant__ CUtensorMap``. The descriptor's coordinates run from the
    innermost axis outwards: for a row-major array those are the array's axes from the last to the first, for a
    column-major one, which a template takes if it reads ``a.order``, from the first to the last. What a copy reads
    outside of the array is zero; what it would write there is not written.

    Examples
    --------
    >>> TensorMap(box=("tile_m", 64), swizzle="128B")
    TensorMap(box=('tile_m', 64), swizzle='128B', l2_promotion='none', of=None, shape=())
    """

    box: tuple[str | int, ...]
    swizzle: str = "none"
    l2_promotion: str = "none"
    of: str | None = None
    shape: tuple[str | int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("box", "shape"):
            given = getattr(self, name)
            object.__setattr__(self, name, (given,) if isinstance(given, (str, int)) else tuple(given))
        for name, allowed in (("swizzle", _SWIZZLES), ("l2_promotion", _PROMOTIONS)):
            value = getattr(self, name)
            if not isinstance(value, str) or value not in allowed:
                near = nearest_name(value, allowed)
                raise DeclarationError(
                    f"TensorMap: {name} is not known.",
                    given=f"{name}={value!r}",
                    allowed=", ".join(map(repr, allowed)),
                    try_=f"{name}={near!r}" if near else None,
                )


@dataclass(frozen=True, slots=True)
class BoundMap:
    """One entry of ``tensor_maps=``, parsed.

    Attributes
    ----------
    name : str
        Of the array, or the descriptor's own.
    box : tuple of Expression
    swizzle, l2_promotion : int, bytes
        0 for none.
    memory : str
        Name of the array or scratch that is described.
    shape : tuple of Expression
        Of scratch; empty for an array, which has its own.
    """

    name: str
    box: tuple[Expression, ...]
    swizzle: int
    l2_promotion: int
    memory: str
    shape: tuple[Expression, ...] = ()

    @classmethod
    def of(
        cls, name: str, declared: TensorMap, box: tuple[Expression, ...], shape: tuple[Expression, ...] = ()
    ) -> BoundMap:
        """The entry under a name, its expressions parsed."""
        swizzle, promotion = _SWIZZLES[declared.swizzle], _PROMOTIONS[declared.l2_promotion]
        return cls(name, box, swizzle, promotion, declared.of or name, shape)


@dataclass(frozen=True, slots=True)
class MapLayout:
    """All that a descriptor holds but the address, outermost axis first.

    Attributes
    ----------
    dtype : str
    shape, box : tuple of int, elements
    strides : tuple of int, bytes
    swizzle, l2_promotion : int, bytes
        0 for none.
    memory : str
        Name of the array or scratch whose address it takes.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    l2_promotion: int
    memory: str


def padded_strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Strides, elements, of scratch whose rows begin at multiples of 16 bytes."""
    in_row = ALIGNMENT // itemsize
    return packed_strides((*shape[:-1], -(-shape[-1] // in_row) * in_row))


def takes(array: Described) -> bool:
    """Whether an array is row-major but for gaps between its rows, which a descriptor knows and a kernel need not."""
    return array.order == "strided" and array.strides[-1] == 1


def lay_out(array: Described, bound: BoundMap, box: Sequence[int], function: str) -> MapLayout:
    """The descriptor of one array, its address apart.

    Parameters
    ----------
    array : Described
        With a shape.
    bound : BoundMap
    box : sequence of int
        Values of its expressions for this call.
    function : str

    Raises
    ------
    LayoutError
        The array cannot be described.
    ParameterError
        The box is beyond a limit.
    """
    shape, strides = array.shape or (), array.strides
    if array.order == "F":
        shape, strides, box = shape[::-1], strides[::-1], box[::-1]
    in_bytes = [array.itemsize * s for s in strides]
    for i, n in enumerate(shape):
        if n == 1:  # what no index uses may be anything, and must be valid here
            step = array.itemsize * packed_strides(shape)[i]
            in_bytes[i] = step if i == len(shape) - 1 else -(-step // ALIGNMENT) * ALIGNMENT
    _check_array(array, shape, in_bytes, function)
    _check_box(array, bound, box, function)
    return MapLayout(
        array.dtype, tuple(shape), tuple(in_bytes), tuple(box), bound.swizzle, bound.l2_promotion, bound.memory
    )


def _check_array(array: Described, shape: Sequence[int], strides: Sequence[int], function: str) -> None:
    given = f"{array.name}: {array} with strides {list(array.strides)} (elements)"

    def refuse(summary: str, allowed: str, try_: str) -> LayoutError:
        return LayoutError(
            f"array {array.name!r} is read through a tensor map, {summary}.",
            function=function,
            given=given,
            allowed=allowed,
            try_=try_,
        )

    if 0 in shape:
        raise refuse("which cannot describe an array without elements", "1 element or more", "a call without it")
    if max(shape) > MOST_ELEMENTS:
        raise refuse("and an axis is too long for one", f"{MOST_ELEMENTS} elements on an axis", "several calls")
    if not array.aligned(ALIGNMENT):
        given = f"{array.name}: {array} at {array.pointer:#x}"
        raise refuse(
            "and starts at an address that is no multiple of 16",
            "a multiple of 16 bytes",
            f"a copy of {array.name}",
        )
    if strides[-1] != array.itemsize:
        raise refuse(
            "and its innermost axis has gaps", "neighbours without a gap", f"a contiguous copy of {array.name}"
        )
    if array.itemsize > _LARGEST_ITEM:
        raise refuse(f"and has elements of {array.itemsize} bytes", "up to 8 bytes", "a view of its halves")
    for stride in strides[:-1]:
        if stride <= 0:
            summary = f"and its rows are {stride} bytes apart"
            raise refuse(summary, "a positive multiple of 16 bytes", f"a contiguous copy of {array.name}")
        if stride % ALIGNMENT or stride >= STRIDE_LIMIT_BYTES:
            elements = ALIGNMENT // array.itemsize
            raise refuse(
                f"and its rows are {stride} bytes apart",
                "a multiple of 16 bytes",
                f"rows padded to a multiple of {elements} elements" if elements > 1 else "padded rows",
            )


def _check_box(array: Described, bound: BoundMap, box: Sequence[int], function: str) -> None:
    texts = ", ".join(e.text for e in bound.box)

    def refuse(summary: str, allowed: str) -> ParameterError:
        return ParameterError(
            f"the box of {array.name!r} {summary}.",
            function=function,
            given=f"box ({texts}), that is {tuple(box)} from the outermost axis inwards",
            allowed=allowed,
        )

    for n in box:
        if not 1 <= n <= MOST_IN_BOX:
            raise refuse(f"has {n} elements on an axis", f"1 to {MOST_IN_BOX}")
    row = box[-1] * array.itemsize
    if row % ALIGNMENT:
        raise refuse(f"has rows of {row} bytes", "a multiple of 16 bytes")
    if bound.swizzle and row > bound.swizzle:
        raise refuse(
            f"has rows of {row} bytes, and its swizzle is {bound.swizzle} bytes wide",
            f"{bound.swizzle // array.itemsize} elements on the innermost axis",
        )
