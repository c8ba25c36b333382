"""Drawn calls of a binding: sizes, parameters, dtypes and layouts that its signature and ``require=`` allow.

Every decision is an integer from a `Choices`, so that a call can be drawn by a generator, by hypothesis, or once more
from the integers of an earlier draw.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from cuplate.arguments import Described, packed_strides, product
from cuplate.binding import Binding
from cuplate.dtypes import DTYPES
from cuplate.errors import ArgumentError, ExpressionError
from cuplate.expression import DEVICE_FACTS
from cuplate.parameters import dtype_name
from cuplate.signature import ArrayArgument, Axis, Parameter, Signature

__all__ = ["EDGES", "LARGEST", "Choices", "Drawer", "Example", "Random", "Replayed", "nothing_allowed", "with_gaps"]

T = TypeVar("T")

EDGES = (15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257)
"""Sizes at which tiles, warps and blocks begin and end."""

LARGEST = 699
"""Largest size of an axis that is drawn."""

# What NumPy holds without another package, and every array library takes.
_DRAWABLE = {name for name in DTYPES if not name.startswith(("bfloat16", "float8"))}
_STATIC = (1, 3, 8, 17, 32)  # a constant of the source: each value is a compile
_MOST_ELEMENTS = 2**18  # of one array: a reference in NumPy stays quick
# Of all axes multiplied, as a matrix product goes through them: a tenth of a second for the CPU backend, checked.
_MOST_WORK = 2**20
_ATTEMPTS = 500
_GAP = 3  # elements between rows


@dataclass(frozen=True, slots=True)
class Example:
    """One drawn call, without its data.

    Attributes
    ----------
    name : int or str
        What ``check(example=...)`` takes to repeat it.
    data : int
        Seed of its data, beside the check's own.
    sizes : dict of str to int or tuple of int
        Axis sizes; a folded axis (``*batch``) has a tuple.
    parameters : dict of str to object
    shapes, dtypes, layouts : dict by array name
        Arguments that are given; the layout is ``"C"``, ``"F"`` or ``"gaps"``.
    outputs : dict of str to (tuple of int, str)
        Shape and dtype that the call has to return.
    """

    name: int | str
    data: int
    sizes: dict[str, int | tuple[int, ...]]
    parameters: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]
    layouts: dict[str, str]
    outputs: dict[str, tuple[tuple[int, ...], str]]

    def __str__(self) -> str:
        said = {"C": "", "F": " column-major", "gaps": " with gaps"}
        arrays = [f"{n}={self.dtypes[n]}{list(s)}{said[self.layouts[n]]}" for n, s in self.shapes.items()]
        return ", ".join([*arrays, *(f"{n}={v!r}" for n, v in self.parameters.items())])


# where decisions come from --------------------------------------------------------------------------------------------


class Choices(Protocol):
    """Where the decisions of one draw come from; of each the lowest is the simplest."""

    extreme: int | None
    """The size that one axis gets in this draw, 0 or 1; None for no such axis."""

    def index(self, count: int) -> int:
        """One of 0 to count - 1."""
        ...

    def size(self, least: int) -> int:
        """The size of an axis."""
        ...

    def data(self) -> int:
        """A seed for the data; asked for last."""
        ...

    def name(self) -> int | str:
        """What was drawn so far, as `Example.name` has it."""
        ...


class Random:
    """Choices of a generator: for a seed and a number the same in every process.

    Parameters
    ----------
    seed, number : int, 0 or more
    """

    def __init__(self, seed: int, number: int) -> None:
        self._rng = np.random.default_rng([seed, number])
        self._number = number
        # One in eight examples has an axis of 1, one in eight an empty one; the others have neither.
        self.extreme = {3: 1, 5: 0}.get(number % 8)

    def index(self, count: int) -> int:  # noqa: D102 - see Choices
        return int(self._rng.integers(count))

    def size(self, least: int) -> int:
        """Half of the time small, a third of the time at an edge, else larger than any block's edge."""
        kind = self._rng.random()
        if kind < 0.5:
            size = int(self._rng.integers(2, 40))
        elif kind < 0.85:
            size = int(self._rng.choice(EDGES))
        else:
            size = int(self._rng.integers(EDGES[-1] + 1, LARGEST + 1))
        return max(size, least)

    def data(self) -> int:  # noqa: D102
        return self._number

    def name(self) -> int:  # noqa: D102
        return self._number


class Replayed:
    """Choices of an earlier draw, by its name.

    Parameters
    ----------
    name : str
        As `Example.name` had it: ``"0.257.1"``.

    Raises
    ------
    ValueError
        Here, or out of a choice: the name is none, or of a draw with other choices.
    """

    extreme: int | None = None

    def __init__(self, name: str) -> None:
        self._name = name
        self._left = [int(part) for part in name.split(".")]

    def index(self, count: int) -> int:  # noqa: D102
        return self._next(0, count)

    def size(self, least: int) -> int:  # noqa: D102
        return self._next(least, max(least, LARGEST) + 1)

    def data(self) -> int:  # noqa: D102
        seed = self._next(0, 1 << 32)
        if self._left:
            raise ValueError("more choices than are asked for")
        return seed

    def name(self) -> str:  # noqa: D102
        return self._name

    def _next(self, low: int, high: int) -> int:
        value = self._left.pop(0) if self._left else -1
        if not low <= value < high:
            raise ValueError(f"no choice from {low} to {high - 1}")
        return value


# drawing --------------------------------------------------------------------------------------------------------------


class Drawer:
    """Draws examples of one binding.

    Parameters
    ----------
    binding : Binding
    sizes, minimum, parameters
        As for `cuplate.testing.check`.

    Raises
    ------
    ArgumentError
        A name is not there, or a parameter has no values.
    """

    def __init__(
        self,
        binding: Binding,
        sizes: Mapping[str, Any],
        minimum: int | Mapping[str, int],
        parameters: Mapping[str, Any],
    ) -> None:
        self.binding = binding
        self.signature = binding.signature
        self.function = binding.signature.function
        self.sizes = {name: _listed(value) for name, value in sizes.items()}
        self.minimum = minimum
        self.fixed = _fixed_sizes(self.signature)
        self._check_names("sizes=", sizes, self.signature.axes)
        self._check_names("minimum=", minimum if isinstance(minimum, Mapping) else (), self.signature.axes)
        self._check_names("parameters=", parameters, [p.name for p in self.signature.parameters])
        self.choices = {p.name: self._values(p, parameters) for p in self.signature.parameters}
        # Of tuned parameters that go together, only what a call might choose.
        groups = binding.space.groups if binding.space is not None else ()
        self.together = [options for options in groups if not {n for n, _ in options[0]} & parameters.keys()]
        for name in {name for options in self.together for name, _ in options[0]}:
            del self.choices[name]
        # What reads only a device is left to the call itself.
        self.conditions = [c for c in binding.require if not c.names & set(DEVICE_FACTS)]

    def _check_names(self, what: str, names: Iterable[str], known: Sequence[str]) -> None:
        for name in names:
            if name not in known:
                raise ArgumentError(
                    f"{what} names {name!r}, which is not there.", function=self.function, allowed=", ".join(known)
                )

    def draw(self, choose: Choices) -> Example:
        """An example, drawn until the axes and ``require=`` allow one.

        Raises
        ------
        ArgumentError
            None was found.
        """
        for _ in range(_ATTEMPTS):
            example = self.attempt(choose)
            if example is not None:
                return example
        raise nothing_allowed(self.binding)

    def attempt(self, choose: Choices) -> Example | None:
        """An example, or None for choices that the axes or ``require=`` do not allow."""
        parameters = {name: _pick(choose, values) for name, values in self.choices.items()}
        for options in self.together:
            parameters.update(_pick(choose, options))
        sizes = self._draw_sizes(choose)
        dtypes = self._draw_dtypes(choose, parameters)
        given = [a for a in self.signature.arrays if not a.optional or choose.index(2)]
        shapes = self._shapes(given, sizes, parameters)
        results = self._shapes(self.signature.outputs, sizes, parameters)
        if shapes is None or results is None:
            return None
        layouts = {a.name: self._draw_layout(choose, a, len(shapes[a.name])) for a in given}
        outputs = {name: (shape, dtypes[name]) for name, shape in results.items()}
        drawn = {n: dtypes[n] for n in shapes}
        data = choose.data()
        example = Example(choose.name(), data, sizes, parameters, shapes, drawn, layouts, outputs)
        return example if self._allowed(example) else None

    # sizes

    def _draw_sizes(self, choose: Choices) -> dict[str, int | tuple[int, ...]]:
        sizes = {name: self._draw_size(choose, name) for name in self.signature.axes}
        free = [n for n in self.signature.axes if n not in self.sizes and n not in self.fixed]
        may = [n for n in free if choose.extreme is not None and self._least(n) <= choose.extreme]
        if may and choose.extreme is not None:
            name = may[choose.index(len(may))]
            sizes[name] = (choose.extreme,) if name in self.signature.folded else choose.extreme
        return self._bounded(sizes, free)

    def _draw_size(self, choose: Choices, name: str) -> Any:
        if name in self.sizes:
            return _pick(choose, self.sizes[name])
        if name in self.fixed:
            return self.fixed[name]
        if name in self.signature.folded:
            return tuple(1 + choose.index(4) for _ in range(choose.index(3)))
        if name in self.binding.static:
            return max(_pick(choose, _STATIC), self._least(name))
        return choose.size(self._least(name))

    def _least(self, name: str) -> int:
        return self.minimum.get(name, 0) if isinstance(self.minimum, Mapping) else self.minimum

    def _bounded(self, sizes: dict[str, int | tuple[int, ...]], free: Sequence[str]) -> dict[str, Any]:
        """The sizes with the largest free ones halved until a reference and a checked call on the CPU are quick."""
        while free and (self._largest_array(sizes) > _MOST_ELEMENTS or self._work(sizes) > _MOST_WORK):
            name = max(free, key=lambda n: _count(sizes[n]))
            smaller = max(_count(sizes[name]) // 2, self._least(name))
            if smaller in (0, _count(sizes[name])):
                break
            sizes[name] = (smaller,) if name in self.signature.folded else smaller
        return sizes

    def _largest_array(self, sizes: Mapping[str, int | tuple[int, ...]]) -> int:
        """Elements, as far as named axes say."""
        return max(product(_count(sizes[axis.name]) for axis in a.axes if axis.name) for a in self._arrays())

    def _work(self, sizes: Mapping[str, int | tuple[int, ...]]) -> int:
        return product(map(_count, sizes.values()))

    def _arrays(self) -> tuple[ArrayArgument, ...]:
        return (*self.signature.arrays, *self.signature.outputs)

    def _shapes(
        self,
        arrays: Iterable[ArrayArgument],
        sizes: Mapping[str, int | tuple[int, ...]],
        parameters: Mapping[str, Any],
    ) -> dict[str, tuple[int, ...]] | None:
        """Shape of each array; None when an axis would be negative."""
        values = {**parameters, **{n: _count(s) for n, s in sizes.items()}}
        shapes = {}
        for array in arrays:
            shape = [n for axis in array.axes for n in _axis_sizes(axis, sizes, values)]
            if any(n < 0 for n in shape):
                return None
            shapes[array.name] = tuple(shape)
        return shapes

    # dtypes, layouts, parameters

    def _draw_dtypes(self, choose: Choices, parameters: Mapping[str, Any]) -> dict[str, str]:
        families: dict[tuple[str, ...], str] = {}
        dtypes = {}
        for array in self._arrays():
            if array.dtype_parameter is not None:
                dtypes[array.name] = self._dtype_of(parameters[array.dtype_parameter])
                continue
            drawable = [d for d in array.dtypes if d in _DRAWABLE]
            if not drawable:
                raise ArgumentError(
                    f"array {array.name!r} is {', '.join(array.dtypes)}, which cannot be drawn.",
                    function=self.function,
                    allowed=", ".join(sorted(_DRAWABLE)),
                )
            drawn = _pick(choose, drawable)
            dtypes[array.name] = families.setdefault(array.family, drawn) if array.family else drawn
        return dtypes

    def _dtype_of(self, value: Any) -> str:
        return dtype_name(value, lambda: ArgumentError(f"{value!r} is no dtype.", function=self.function))

    def _draw_layout(self, choose: Choices, array: ArrayArgument, ndim: int) -> str:
        """A layout that the kernel reads: half of the time another than row-major."""
        facts = [fact for fact in self.binding.facts if fact.array == array.name]
        read = {fact.value for fact in facts if fact.name == "stride"}
        others = ["F"] * (ndim == 2 and any(fact.name == "order" for fact in facts))
        if ndim and set(range(max(1, ndim - 1))) <= read and array.name not in self.binding.zeroed:
            others.append("gaps")
        return _pick(choose, ["C"] * len(others) + others) if others else "C"

    def _values(self, parameter: Parameter, given: Mapping[str, Any]) -> list[Any]:
        if parameter.name in given:
            return _listed(given[parameter.name])
        arrays = [a for a in self._arrays() if a.dtype_parameter == parameter.name]
        values = list(parameter.allowed) or self._open_values(parameter, arrays)
        if parameter.nullable and None not in values:
            values.append(None)
        if arrays:
            values = [v for v in values if self._dtype_of(v) in _DRAWABLE]
        if values:
            return values
        raise ArgumentError(
            f"nothing can be drawn for the parameter {parameter.name!r}: {parameter.annotation} without a default.",
            function=self.function,
            try_=f"parameters={{{parameter.name!r}: [...]}}",
        )

    def _open_values(self, parameter: Parameter, arrays: Sequence[ArrayArgument]) -> list[Any]:
        if parameter.kind == "bool":
            return [False, True]
        if arrays:
            return [name for name in arrays[0].dtypes if name in _DRAWABLE]
        return [] if parameter.default is inspect.Parameter.empty else [parameter.default]

    def _allowed(self, example: Example) -> bool:
        values: dict[str, object] = {**example.parameters, **{n: _count(s) for n, s in example.sizes.items()}}
        for array in self.signature.arrays:
            shape = example.shapes.get(array.name)
            values[array.name] = None
            if shape is not None:
                strides = _strides(shape, example.layouts[array.name])
                values[array.name] = Described(array.name, 256, example.dtypes[array.name], shape, strides, None)
        for name, (shape, dtype) in example.outputs.items():
            values[name] = Described(name, 256, dtype, shape, packed_strides(shape), None)
        try:
            return all(condition.evaluate(values) for condition in self.conditions)
        except ExpressionError:  # for these values it has no answer
            return False


def nothing_allowed(binding: Binding) -> ArgumentError:
    """The error of a binding for which nothing was found that it allows."""
    return ArgumentError(
        "no sizes and parameters were found that its axes and require= allow.",
        function=binding.signature.function,
        given="; ".join(c.text for c in binding.require) or None,
        try_="sizes= and parameters= with values that go together",
    )


def with_gaps(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the memory behind an array with gaps: longer rows, or every other element of a single one."""
    *rows, length = shape
    return (*rows, length + _GAP) if rows else (2 * length,)


def _pick(choose: Choices, values: Sequence[T]) -> T:
    return values[choose.index(len(values))] if len(values) > 1 else values[0]


def _listed(value: Any) -> list[Any]:
    """A sequence as the values to choose from, anything else as the only one."""
    if isinstance(value, (list, tuple, range, set, frozenset)):
        return list(value)
    return [value]


def _count(size: int | tuple[int, ...]) -> int:
    return product(size) if isinstance(size, tuple) else size


def _fixed_sizes(signature: Signature) -> dict[str, int]:
    """Sizes that annotations fix: ``name=3``."""
    axes = [axis for array in (*signature.arrays, *signature.outputs) for axis in array.axes]
    return {axis.name: axis.size for axis in axes if axis.name is not None and axis.size is not None}


def _axis_sizes(axis: Axis, sizes: Mapping[str, int | tuple[int, ...]], values: Mapping[str, Any]) -> tuple[int, ...]:
    if axis.size is not None:
        return (axis.size,)
    if axis.expression is not None:
        return (axis.expression.integer(values),)
    size = sizes[axis.name or ""]
    return size if isinstance(size, tuple) else (size,)


def _strides(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Strides in elements of an array of a layout."""
    if layout == "F":
        return tuple(reversed(packed_strides(shape[::-1])))
    if layout == "gaps":
        return packed_strides(with_gaps(shape)) if len(shape) > 1 else (2,)
    return packed_strides(shape)
