"""Arrays and scalars made launchable: every check of a call that needs no compiler and no device."""

from __future__ import annotations

import difflib
import enum
import inspect
import math
import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cuplate.dtypes import DTYPES
from cuplate.errors import (
    ArgumentError,
    DeclarationError,
    DeviceError,
    DtypeError,
    ExpressionError,
    LayoutError,
    ParameterError,
    ScalarOverflowError,
    ShapeError,
)
from cuplate.signature import ArrayArgument, Axis, Parameter, ScalarArgument, Signature
from cuplate.specialization import Fact

if TYPE_CHECKING:
    from cuplate.expression import Expression

__all__ = ["ArraySpec", "Described", "Solved", "bind", "check_defaults", "check_parameters", "encoder", "solve"]

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
    """

    name: str
    pointer: int
    dtype: str
    shape: tuple[int, ...] | None
    strides: tuple[int, ...]
    device: tuple[str, int] | None
    readonly: bool = False
    stream: int | None = None

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
        return replace(self, strides=packed_strides(self.shape))

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


# binding -------------------------------------------------------------------------------------------------------------


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
    known = [*names, *(p.name for p in signature.parameters), "out", "stream"]
    for name in unknown or ():
        near = difflib.get_close_matches(name, known, 1)
        raise ArgumentError(
            f"there is no argument or parameter {name!r}.",
            function=function,
            allowed=", ".join(known),
            try_=f"{near[0]}=" if near else None,
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


# parameters ----------------------------------------------------------------------------------------------------------


def check_parameters(signature: Signature, values: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Compile-time values, enforced against their annotations and in one spelling each.

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
    return tuple((p.name, _check_parameter(p, values[p.name], signature.function)) for p in signature.parameters)


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
            _check_parameter(parameter, parameter.default, signature.function)
        except ParameterError as error:
            hint = f"{parameter.annotation} | None" if parameter.default is None else error.facts.get("try_")
            raise DeclarationError(
                f"the default of parameter {parameter.name!r} is outside its annotation.",
                function=signature.function,
                given=f"{parameter.name}: {parameter.annotation} = {_shown(parameter.default)}",
                allowed=error.facts.get("allowed"),
                try_=hint,
            ) from None


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
        near = (
            difflib.get_close_matches(value, [a for a in parameter.allowed if isinstance(a, str)], 1)
            if isinstance(value, str)
            else []
        )
        raise _wrong(parameter, value, function, ", ".join(map(repr, parameter.allowed)), near[0] if near else None)
    if kind == "enum":
        if isinstance(value, enum.Enum) and value in parameter.allowed:
            return value
        raise _wrong(parameter, value, function, ", ".join(str(a) for a in parameter.allowed))
    if kind == "list":
        if isinstance(value, (list, tuple)):
            return _freeze(value, parameter, function)
        raise _wrong(parameter, value, function, "a list or tuple")
    if kind == "dtype":
        return dtype_name(value, lambda: _wrong(parameter, value, function, "a dtype that a kernel can name"))
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
    return plain


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
        hash(value)
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
        f"{parameter.name} = {_shown(value)} ({type(value).__name__}) is not allowed.",
        function=function,
        allowed=allowed,
        try_=f"{parameter.name}={try_!r}" if try_ is not None else None,
    )


def dtype_name(value: Any, error: Callable[[], Exception]) -> str:
    """The name in ``DTYPES`` of a dtype given as name, NumPy dtype or scalar class."""
    name = value if isinstance(value, str) else str(getattr(value, "name", None) or getattr(value, "__name__", ""))
    name = {"bool_": "bool"}.get(name, name)
    if name not in DTYPES:
        raise error()
    return name


def no_dtype(argument: ArrayArgument, value: Any, function: str) -> ParameterError:
    """The error for a parameter of ``dtypes=`` whose value is no dtype."""
    return ParameterError(
        f"{argument.dtype_parameter} = {_shown(value)} is no dtype that a kernel can name.",
        function=function,
        allowed=", ".join(argument.dtypes),
    )


def parameter_key(value: Any) -> Any:
    """A hashable that keeps ``1``, ``True``, ``1.0``, ``-0.0`` and NaN apart: values by type, floats by their bits."""
    if isinstance(value, (tuple, list)):  # a list parameter may be given as either
        return (tuple, *(parameter_key(v) for v in value))
    if isinstance(value, float):
        return type(value), struct.pack("<d", value)
    if type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
        return type(value), value.tobytes()
    return type(value), value


# arrays --------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Solved:
    """One call with every size and dtype known.

    Attributes
    ----------
    arrays : dict of str to Described or None
        Arguments, given outputs included; None for an absent optional.
    sizes : dict of str to int
        Axis sizes; folded axes as one size. Empty when `partial`.
    folded : dict of str to tuple of int
        The axes behind each folded name.
    dtypes : dict of str to str
        Every array, outputs included.
    output_shapes : dict of str to tuple of int
        As the caller sees them.
    partial : bool
        True when an `ArraySpec` without shape left sizes unknown.
    """

    arrays: dict[str, Described | None]
    sizes: dict[str, int] = field(default_factory=dict)
    folded: dict[str, tuple[int, ...]] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    output_shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    partial: bool = False


def solve(
    signature: Signature,
    arrays: dict[str, Described | None],
    parameters: Mapping[str, Any],
    given_outputs: Collection[str],
) -> Solved:
    """Bind axis names and dtypes, and compute the outputs' shapes.

    Raises
    ------
    DtypeError, ShapeError
        An array disagrees with its annotation or with another array.
    """
    solved = Solved(arrays)
    solver = _Solver(signature, solved, parameters)
    for argument in signature.arrays:
        described = arrays[argument.name]
        if described is not None:
            solver.dtype(argument, described)
            solver.shape(argument, described)
    for output in signature.outputs:
        given = arrays.get(output.name) if output.name in given_outputs else None
        if given is not None:
            solver.dtype(output, given)
            if not signature.arrays:
                solver.shape(output, given)
        solver.output(output, given)
    solver.check_expressions()
    return solved


class _Solver:
    def __init__(self, signature: Signature, solved: Solved, parameters: Mapping[str, Any]) -> None:
        self.signature = signature
        self.solved = solved
        self.parameters = parameters
        self.families: dict[tuple[str, ...], str] = {}
        self.sources: dict[str, str] = {}
        self.later: list[tuple[ArrayArgument, Axis, int]] = []

    def dtype(self, argument: ArrayArgument, array: Described) -> None:
        expected = self.expected_dtype(argument)
        if array.dtype not in expected:
            family = argument.family
            other = self.sources.get(f"dtype {family}") if family and len(expected) == 1 else None
            raise DtypeError(
                f"array {argument.name!r} is {array.dtype}"
                + (f", but {other!r} is {expected[0]}: one dtype a call." if other else "."),
                function=self.signature.function,
                given=f"{argument.name}: {array}",
                allowed=", ".join(expected),
                try_=f"{argument.name}.astype({expected[0]!r})" if len(expected) == 1 else None,
            )
        self.solved.dtypes[argument.name] = array.dtype
        if argument.family:
            self.families.setdefault(argument.family, array.dtype)
            self.sources.setdefault(f"dtype {argument.family}", argument.name)

    def expected_dtype(self, argument: ArrayArgument) -> tuple[str, ...]:
        if argument.dtype_parameter is not None:
            value = self.parameters[argument.dtype_parameter]
            name = dtype_name(value, lambda: no_dtype(argument, value, self.signature.function))
            if name not in argument.dtypes:
                raise ParameterError(
                    f"{argument.dtype_parameter} = {name!r} is outside the annotation of {argument.name!r}.",
                    function=self.signature.function,
                    allowed=", ".join(argument.dtypes),
                )
            return (name,)
        if argument.family and argument.family in self.families:
            return (self.families[argument.family],)
        return argument.dtypes

    def shape(self, argument: ArrayArgument, array: Described) -> None:
        if array.shape is None:
            self.solved.partial = True
            return
        axes, shape = argument.axes, array.shape
        if axes and axes[0].folded:
            lead = len(shape) - len(axes) + 1
            if lead < 0:
                raise self._rank(argument, array, f"at least {len(axes) - 1}")
            self._fold(argument, array, axes[0], shape[:lead])
            axes, shape = axes[1:], shape[lead:]
        elif len(axes) != len(shape):
            raise self._rank(argument, array, str(len(axes)))
        offset = len(array.shape) - len(shape)
        for i, (axis, size) in enumerate(zip(axes, shape, strict=True)):
            self._axis(argument, array, axis, i + offset, size)

    def _fold(self, argument: ArrayArgument, array: Described, axis: Axis, shape: tuple[int, ...]) -> None:
        assert axis.name is not None
        known = self.solved.folded.setdefault(axis.name, shape)
        if known != shape:
            raise self._mismatch(argument, array, axis, shape, known)
        self.sources.setdefault(axis.name, f"{argument.name}{list(array.shape or ())}")
        self.solved.sizes[axis.name] = product(shape)

    def _axis(self, argument: ArrayArgument, array: Described, axis: Axis, position: int, size: int) -> None:
        if axis.size is not None and axis.size != size:
            raise self._mismatch(argument, array, axis, size, axis.size)
        if axis.expression is not None:
            self.later.append((argument, axis, position))
        if axis.name is not None:
            known = self.solved.sizes.setdefault(axis.name, size)
            if known != size:
                raise self._mismatch(argument, array, axis, size, known)
            self.sources.setdefault(axis.name, f"{argument.name}{list(array.shape or ())}")

    def _rank(self, argument: ArrayArgument, array: Described, wanted: str) -> ShapeError:
        return ShapeError(
            f"array {argument.name!r} has {array.ndim} axes, not {wanted}.",
            function=self.signature.function,
            given=f"{argument.name}: {array}",
            allowed=argument.annotation,
        )

    def _mismatch(self, argument: ArrayArgument, array: Described, axis: Axis, size: Any, known: Any) -> ShapeError:
        source = self.sources.get(axis.name or "")
        return ShapeError(
            f"axis {axis.text} of {argument.name!r} is {size}, not {known}.",
            function=self.signature.function,
            given=f"{argument.name}: {array}" + (f", {source}" if source else ""),
            allowed=f"{argument.annotation} with {axis.text} = {known}",
        )

    def values(self) -> dict[str, object]:
        return {**self.parameters, **self.solved.sizes}

    def output(self, output: ArrayArgument, given: Described | None) -> None:
        if output.name not in self.solved.dtypes:
            expected = self.expected_dtype(output)
            if len(expected) > 1:
                raise DtypeError(
                    f"the dtype of output {output.name!r} is not known in this call.",
                    function=self.signature.function,
                    allowed=", ".join(expected),
                )
            self.solved.dtypes[output.name] = expected[0]
        if self.solved.partial or (not self.signature.arrays and given is None):
            self.solved.partial = True
            return
        shape = self._output_shape(output)
        self.solved.output_shapes[output.name] = shape
        if given is not None and given.shape is not None and given.shape != shape:
            raise ShapeError(
                f"out{'' if output.name == 'out' else '.' + output.name} has shape {given.shape}, not {shape}.",
                function=self.signature.function,
                given=f"{output.name}: {given}",
                allowed=f"{output.annotation} = {list(shape)}",
            )

    def _output_shape(self, output: ArrayArgument) -> tuple[int, ...]:
        shape: list[int] = []
        for axis in output.axes:
            if axis.folded:
                shape.extend(self.solved.folded[axis.name or ""])
            elif axis.size is not None:
                if axis.name and self.solved.sizes.setdefault(axis.name, axis.size) != axis.size:
                    raise self._fixed(output, axis)
                shape.append(axis.size)
            elif axis.expression is not None:
                shape.append(self._expression_size(output, axis))
            else:
                shape.append(self.solved.sizes[axis.name or ""])
        return tuple(shape)

    def _fixed(self, output: ArrayArgument, axis: Axis) -> ShapeError:
        known = self.solved.sizes[axis.name or ""]
        return ShapeError(
            f"axis {axis.name} is {known}, and {output.name!r} needs {axis.text}.",
            function=self.signature.function,
            given=self.sources.get(axis.name or ""),
            allowed=output.annotation,
        )

    def _expression_size(self, argument: ArrayArgument, axis: Axis) -> int:
        assert axis.expression is not None
        size = axis.expression.integer(self.values())
        if size < 0:
            raise ShapeError(
                f"axis {axis.text} of {argument.name!r} would be {size}.",
                function=self.signature.function,
                given=", ".join(f"{k} = {v}" for k, v in self.solved.sizes.items()),
                allowed="0 or more",
            )
        return size

    def check_expressions(self) -> None:
        for argument, axis, position in () if self.solved.partial else self.later:
            array = self.solved.arrays[argument.name]
            assert array is not None and array.shape is not None
            wanted = self._expression_size(argument, axis)
            if array.shape[position] != wanted:
                raise self._mismatch(argument, array, axis, array.shape[position], wanted)


# layout --------------------------------------------------------------------------------------------------------------


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


# scalars -------------------------------------------------------------------------------------------------------------

_CODES = {
    "bool": "?", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint8": "B", "uint16": "H", "uint32": "I",
    "uint64": "Q", "float16": "e", "float32": "f", "float64": "d",
}  # fmt: skip
_unpack_word = struct.Struct("<q").unpack


def encoder(argument: ScalarArgument, function: str) -> Callable[[Any], int]:
    """A function from a Python or NumPy scalar to the launch argument that carries its exact bits.

    The launcher passes every Python integer as eight bytes, little-endian, and a kernel reads as many of them as its
    parameter has. A scalar of up to eight bytes therefore travels as the integer with the same bytes: exact for every
    dtype, and the launcher's fastest path.

    Raises
    ------
    DtypeError
        The scalar is of another kind (a float for an integer, a bool for a number, an array).
    ScalarOverflowError
        The value does not fit.
    """
    name, dtype = argument.name, argument.dtype
    if dtype not in _CODES:
        raise DtypeError(f"scalar argument {name!r} cannot be {dtype}.", function=function, allowed=", ".join(_CODES))
    code = _CODES[dtype]
    pack = struct.Struct(f"<{code}{8 - struct.calcsize(code)}x").pack
    accept = {"?": _accept_bool, "e": _accept_float, "f": _accept_float, "d": _accept_float}.get(code, _accept_int)

    def encode(value: Any) -> int:
        try:
            plain = accept(value)
            word: int = 0 if plain is None else _unpack_word(pack(plain))[0]
        except (struct.error, OverflowError):
            raise ScalarOverflowError(
                f"scalar argument {name!r} = {_shown(value)} does not fit {dtype}.", function=function
            ) from None
        if plain is None:
            raise DtypeError(
                f"scalar argument {name!r} is {dtype}; {_shown(value)} ({type(value).__name__}) is of another kind.",
                function=function,
                try_=f"{dtype.strip('u0123456789')}(...)",
            )
        if code in "efd" and type(plain) is int:
            _check_exact(
                plain, struct.unpack(f"<{code}", pack(plain)[: struct.calcsize(code)])[0], name, dtype, function
            )
        return word

    return encode


def _shown(value: Any) -> str:
    """A value for a message: short, and possible for integers of any length."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    return f"{value!r:.60}"


def _check_exact(value: int, passed: float, name: str, dtype: str, function: str) -> None:
    if value != passed:
        raise ScalarOverflowError(
            f"scalar argument {name!r} = {_shown(value)} is an integer that {dtype} cannot hold exactly.",
            function=function,
            try_=f"float({_shown(value)}) to accept the rounding",
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


def _is_scalar(value: Any) -> bool:
    return not hasattr(value, "__array_finalize__")  # arrays of no axes have it, scalars have not


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
            raise ParameterError(
                f"the condition {condition.text!r} does not hold.", function=function, given=read, called_as=called_as
            )
