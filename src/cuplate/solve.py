"""The sizes and dtypes of one call: what the annotations bind, and what follows for the outputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cuplate.errors import (
    DtypeError,
    ParameterError,
    ShapeError,
)
from cuplate.signature import ArrayArgument, Axis, Signature

if TYPE_CHECKING:
    pass
from cuplate.arguments import Described, product
from cuplate.parameters import dtype_name, no_dtype

__all__ = ["Solved", "solve"]


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
            if len(expected) != 1:
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
