"""Kernel against reference, on drawn sizes, parameters, dtypes and data: does a binding keep what its body says?

from cuplate.testing import check

check(saxpy)
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cuplate.arguments import Described, packed_strides, product
from cuplate.binding import Binding
from cuplate.dtypes import DTYPES
from cuplate.errors import ArgumentError, CuplateError, ExpressionError
from cuplate.expression import DEVICE_FACTS
from cuplate.inspection import Inspection
from cuplate.parameters import dtype_name
from cuplate.signature import ArrayArgument, Axis, Parameter, Signature

__all__ = ["CheckError", "Checked", "check"]

# What NumPy holds without another package, and every array library takes.
_DRAWABLE = {name for name in DTYPES if not name.startswith(("bfloat16", "float8"))}
# Sizes at which tiles, warps and blocks begin and end.
_EDGES = (15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257)
_STATIC = (1, 3, 8, 17, 32)  # a constant of the source: each value is a compile
_MOST_ELEMENTS = 2**18  # of one array: a reference in NumPy stays quick
_ATTEMPTS = 500
_GAP = 3  # elements between rows

Draw = Callable[[np.random.Generator, tuple[int, ...], str], Any]
"""Makes the data of one argument from a generator, a shape and a dtype's name."""


class CheckError(CuplateError, AssertionError):
    """A kernel and its reference disagree.

    Attributes
    ----------
    example, seed : int
        Repeat it with ``check(f, seed=seed, example=example)`` and the other arguments of the check.
    sizes, parameters : dict
        As drawn.
    array : str
        Name of the output or mutated array.
    index : tuple of int or None
        First element that differs; None when shape or dtype do.
    got, wanted : object
        There: the kernel's value, and the reference's.
    largest_error : float
        Over the whole array; NaN where one side is not finite.
    """


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check has run.

    Attributes
    ----------
    function : str
    examples : int
        How many ran, all of them right.
    seed : int
    largest_share : float
        Largest error, as a share of what was allowed: 1 is the limit.
    drawn : tuple of str
        The calls, one line each.
    """

    function: str
    examples: int
    seed: int
    largest_share: float
    drawn: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Example:
    """One drawn call, without its data.

    Attributes
    ----------
    number : int
        From 0.
    sizes : dict of str to int or tuple of int
        Axis sizes; a folded axis (``*batch``) has a tuple.
    parameters : dict of str to object
    shapes, dtypes, layouts : dict by array name
        Arguments that are given; the layout is ``"C"``, ``"F"`` or ``"gaps"``.
    outputs : dict of str to (tuple of int, str)
        Shape and dtype that the call has to return.
    """

    number: int
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


def check(
    f: Any,
    *,
    examples: int = 20,
    seed: int = 0,
    example: int | None = None,
    sizes: Mapping[str, Any] | None = None,
    minimum: int | Mapping[str, int] = 0,
    parameters: Mapping[str, Any] | None = None,
    data: Mapping[str, Draw] | None = None,
    arrays: Any = None,
    rtol: float | None = None,
    atol: float | None = None,
    launch: Callable[..., Any] | None = None,
) -> Checked:
    """Call a specialized function on drawn arguments and compare with its reference.

    The reference runs on NumPy copies in double precision (integers as int64), so it is the better of the two. Sizes
    are ragged, at the edges of tiles, now and then 1 and 0. Where the kernel reads an array's order or strides, arrays
    of such layouts are drawn too.

    Parameters
    ----------
    f : specialized function
        With a reference in its body.
    examples : int
        How many calls.
    seed : int, 0 or more
        Equal seeds draw equal examples, whatever `examples` is.
    example : int, optional
        Run only this one, to repeat a failure.
    sizes : mapping of str to int or sequence of int, optional
        Axis name to its size, or sizes to choose from; for a folded ``*batch`` a list of tuples.
    minimum : int or mapping of str to int
        Smallest size of every axis, or of those named; 1 keeps empty arrays out.
    parameters : mapping of str to object or sequence, optional
        Parameter to its value, or to a list of values to choose from. Without it ``Literal``, ``bool`` and ``Enum``
        parameters are drawn (as ``require=`` allows), and the others keep their default.
    data : mapping of str to callable, optional
        Argument name to ``draw(generator, shape, dtype)``; default standard normal floats and integers up to 100.
    arrays : str, module or callable, optional
        ``"cupy"`` (default), ``"torch"`` (on its GPU), ``"numpy"``, a module with ``asarray``, or a function from a
        NumPy array to one of the library's.
    rtol, atol : float, optional
        An element may be off by ``atol + rtol * |wanted|``. When neither is given, by
        ``4 * eps * (4 + sqrt(n)) * scale`` for floats of the output's dtype, where n bounds the terms of a sum (largest
        axis, or elements read for one written) and scale is the largest magnitude among inputs and result; 64 instead
        of 4 with ``fast_math``. Integers and bools must be equal.
    launch : callable, optional
        What is called instead of `f`, with the same arguments: another route to the same kernel.

    Returns
    -------
    Checked

    Raises
    ------
    CheckError
        A result differs; says where, by how much, and how to repeat it.
    ArgumentError
        `f` is no specialized function, has no reference, or its arguments cannot be drawn.

    Examples
    --------
    >>> check(saxpy, sizes={"N": range(1, 5000)}).examples  # doctest: +SKIP
    20
    """
    binding = _binding(f)
    drawer = _Drawer(binding, sizes or {}, minimum, parameters or {})
    runner = _Runner(binding, f.reference, launch or f, _library(arrays), data or {}, rtol, atol)
    numbers = range(examples) if example is None else [example]
    share, drawn = 0.0, []
    for number in numbers:
        one = drawer.draw(seed, number)
        drawn.append(str(one))
        share = max(share, runner.run(one, seed))
    return Checked(binding.signature.function, len(drawn), seed, share, tuple(drawn))


def _binding(f: Any) -> Binding:
    """The binding behind a specialized function."""
    inspection = getattr(getattr(f, "inspect", None), "__self__", None)
    if not isinstance(inspection, Inspection):
        raise ArgumentError(
            "check takes a specialized function.", given=f"{f!r:.60}", try_="check(f), @specialize over f"
        )
    binding = inspection.variants.binding
    if not binding.signature.arrays:
        raise ArgumentError("no array argument gives sizes to draw.", function=binding.signature.function)
    return binding


def _library(arrays: Any) -> Callable[[Any], Any]:
    """A function from a NumPy array to an array that the call takes."""
    if arrays is None or arrays == "cupy":
        import cupy

        return cupy.asarray  # type: ignore[no-any-return]
    if arrays == "torch":
        import torch

        return lambda host: torch.as_tensor(host, device="cuda")
    if arrays == "numpy":
        return np.array
    if hasattr(arrays, "asarray"):
        return arrays.asarray  # type: ignore[no-any-return]
    if callable(arrays):
        return arrays  # type: ignore[no-any-return]
    raise ArgumentError(
        "arrays= is no array library.",
        given=repr(arrays),
        allowed='"cupy", "torch", "numpy", a module with asarray, or a function from a NumPy array',
    )


# drawing --------------------------------------------------------------------------------------------------------------


class _Drawer:
    """Draws examples of one binding; the same for a seed and a number in every process."""

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
        self.choices = {p.name: self._choices(p, parameters) for p in self.signature.parameters}
        # What reads only a device is left to the call itself.
        self.conditions = [c for c in binding.require if not c.names & set(DEVICE_FACTS)]

    def _check_names(self, what: str, names: Iterable[str], known: Sequence[str]) -> None:
        for name in names:
            if name not in known:
                raise ArgumentError(
                    f"{what} names {name!r}, which is not there.", function=self.function, allowed=", ".join(known)
                )

    def draw(self, seed: int, number: int) -> Example:
        """Example `number` of `seed`.

        Raises
        ------
        ArgumentError
            Nothing was found that the axes and ``require=`` allow.
        """
        rng = np.random.default_rng([seed, number])
        for _ in range(_ATTEMPTS):
            example = self._attempt(rng, number)
            if example is not None:
                return example
        raise ArgumentError(
            "no sizes and parameters were found that its axes and require= allow.",
            function=self.function,
            given="; ".join(c.text for c in self.binding.require) or None,
            try_="sizes= and parameters= with values that go together",
        )

    def _attempt(self, rng: np.random.Generator, number: int) -> Example | None:
        parameters = {name: values[rng.integers(len(values))] for name, values in self.choices.items()}
        sizes = self._draw_sizes(rng, number)
        dtypes = self._draw_dtypes(rng, parameters)
        given = [a for a in self.signature.arrays if not a.optional or rng.random() < 0.5]
        shapes = self._shapes(given, sizes, parameters)
        results = self._shapes(self.signature.outputs, sizes, parameters)
        if shapes is None or results is None:
            return None
        layouts = {a.name: self._draw_layout(rng, a, len(shapes[a.name])) for a in given}
        outputs = {name: (shape, dtypes[name]) for name, shape in results.items()}
        example = Example(number, sizes, parameters, shapes, {n: dtypes[n] for n in shapes}, layouts, outputs)
        return example if self._allowed(example) else None

    # sizes

    def _draw_sizes(self, rng: np.random.Generator, number: int) -> dict[str, int | tuple[int, ...]]:
        sizes = {name: self._draw_size(rng, name) for name in self.signature.axes}
        free = [n for n in self.signature.axes if n not in self.sizes and n not in self.fixed]
        # One in eight examples has an axis of 1, one in eight an empty one; the others have neither.
        extreme = {3: 1, 5: 0}.get(number % 8)
        may = [n for n in free if extreme is not None and self._least(n) <= extreme]
        if may and extreme is not None:
            name = may[rng.integers(len(may))]
            sizes[name] = (extreme,) if name in self.signature.folded else extreme
        return self._shrunk(sizes, free)

    def _draw_size(self, rng: np.random.Generator, name: str) -> Any:
        if name in self.sizes:
            choices = self.sizes[name]
            return choices[rng.integers(len(choices))]
        if name in self.fixed:
            return self.fixed[name]
        if name in self.signature.folded:
            return tuple(int(n) for n in rng.integers(1, 5, size=rng.integers(0, 3)))
        size = int(rng.choice(_STATIC)) if name in self.binding.static else _ordinary_size(rng)
        return max(size, self._least(name))

    def _least(self, name: str) -> int:
        return self.minimum.get(name, 0) if isinstance(self.minimum, Mapping) else self.minimum

    def _shrunk(self, sizes: dict[str, int | tuple[int, ...]], free: Sequence[str]) -> dict[str, int | tuple[int, ...]]:
        """The sizes with the largest free ones halved until every array is small enough for a reference in NumPy."""
        while free and self._largest_array(sizes) > _MOST_ELEMENTS:
            name = max(free, key=lambda n: _count(sizes[n]))
            smaller = max(_count(sizes[name]) // 2, self._least(name))
            if smaller in (0, _count(sizes[name])):
                break
            sizes[name] = (smaller,) if name in self.signature.folded else smaller
        return sizes

    def _largest_array(self, sizes: Mapping[str, int | tuple[int, ...]]) -> int:
        """Elements, as far as named axes say."""
        return max(product(_count(sizes[axis.name]) for axis in a.axes if axis.name) for a in self._arrays())

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

    def _draw_dtypes(self, rng: np.random.Generator, parameters: Mapping[str, Any]) -> dict[str, str]:
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
            drawn = drawable[rng.integers(len(drawable))]
            dtypes[array.name] = families.setdefault(array.family, drawn) if array.family else drawn
        return dtypes

    def _dtype_of(self, value: Any) -> str:
        return dtype_name(value, lambda: ArgumentError(f"{value!r} is no dtype.", function=self.function))

    def _draw_layout(self, rng: np.random.Generator, array: ArrayArgument, ndim: int) -> str:
        """A layout that the kernel reads: half of the time another than row-major."""
        facts = [fact for fact in self.binding.facts if fact.array == array.name]
        read = {fact.value for fact in facts if fact.name == "stride"}
        layouts = ["F"] * (ndim == 2 and any(fact.name == "order" for fact in facts))
        if ndim and set(range(max(1, ndim - 1))) <= read and array.name not in self.binding.zeroed:
            layouts.append("gaps")
        return layouts[rng.integers(len(layouts))] if layouts and rng.random() < 0.5 else "C"

    def _choices(self, parameter: Parameter, given: Mapping[str, Any]) -> list[Any]:
        if parameter.name in given:
            return _listed(given[parameter.name])
        arrays = [a for a in self._arrays() if a.dtype_parameter == parameter.name]
        choices = list(parameter.allowed) or self._open_choices(parameter, arrays)
        if parameter.nullable and None not in choices:
            choices.append(None)
        if arrays:
            choices = [c for c in choices if self._dtype_of(c) in _DRAWABLE]
        if choices:
            return choices
        raise ArgumentError(
            f"nothing can be drawn for the parameter {parameter.name!r}: {parameter.annotation} without a default.",
            function=self.function,
            try_=f"parameters={{{parameter.name!r}: [...]}}",
        )

    def _open_choices(self, parameter: Parameter, arrays: Sequence[ArrayArgument]) -> list[Any]:
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


def _listed(value: Any) -> list[Any]:
    """A sequence as the values to choose from, anything else as the only one."""
    if isinstance(value, (list, tuple, range, set, frozenset)):
        return list(value)
    return [value]


def _ordinary_size(rng: np.random.Generator) -> int:
    """Half of the time small, a third of the time at an edge, else larger than any block's edge."""
    kind = rng.random()
    if kind < 0.5:
        return int(rng.integers(2, 40))
    return int(rng.choice(_EDGES)) if kind < 0.85 else int(rng.integers(258, 700))


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
    """Strides in elements that `_Runner` gives an array of a layout."""
    if layout == "F":
        return tuple(reversed(packed_strides(shape[::-1])))
    if layout == "gaps":
        return packed_strides(_with_gaps(shape)) if len(shape) > 1 else (2,)
    return packed_strides(shape)


def _with_gaps(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the memory behind an array with gaps: longer rows, or every other element of a single one."""
    *rows, length = shape
    return (*rows, length + _GAP) if rows else (2 * length,)


# running --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Runner:
    binding: Binding
    reference: Callable[..., Any]
    launch: Callable[..., Any]
    put: Callable[[Any], Any]
    data: Mapping[str, Draw]
    rtol: float | None
    atol: float | None

    @property
    def signature(self) -> Signature:
        return self.binding.signature

    def run(self, example: Example, seed: int) -> float:
        """Run one example; the largest error as a share of what is allowed.

        Raises
        ------
        CheckError
        """
        try:
            host = self._make_data(example, seed)
            wanted = self._call_reference(host, example)
            got = self._call(host, example)
        except Exception as error:
            error.add_note(f"in cuplate.testing.check, {self._repeat(example, seed)}: {example}")
            raise
        return max([self._compare(name, got[name], wanted[name], host, example, seed) for name in wanted], default=0.0)

    def _repeat(self, example: Example, seed: int) -> str:
        return f"check({self.signature.function}, seed={seed}, example={example.number})"

    def _make_data(self, example: Example, seed: int) -> dict[str, Any]:
        """Host arrays and scalars by argument name; None for an absent optional array."""
        rng = np.random.default_rng([seed, example.number, 1])
        host: dict[str, Any] = {}
        for argument in self.signature.arguments:
            name = argument.name
            if isinstance(argument, ArrayArgument):
                shape = example.shapes.get(name)
                host[name] = None if shape is None else self._draw(rng, name, shape, example.dtypes[name])
            else:
                host[name] = self._draw(rng, name, (), argument.dtype).item()
        return host

    def _draw(self, rng: np.random.Generator, name: str, shape: tuple[int, ...], dtype: str) -> Any:
        drawn = self.data[name](rng, shape, dtype) if name in self.data else _random(rng, shape, dtype)
        array = np.asarray(drawn, dtype=dtype)
        if array.shape != shape:
            raise ArgumentError(
                f"data[{name!r}] made an array of shape {array.shape}, not {shape}.", function=self.signature.function
            )
        return array

    def _call_reference(self, host: Mapping[str, Any], example: Example) -> dict[str, Any]:
        values = {name: _wide(v) if isinstance(v, np.ndarray) else v for name, v in host.items()}
        try:
            result = self.reference(*values.values(), **example.parameters)
        except NotImplementedError as error:
            raise ArgumentError(
                "there is no reference to compare with.",
                function=self.signature.function,
                try_="a body that says the same with arrays: return alpha * x + y",
            ) from error
        return {n: np.asarray(v) for n, v in (self._outputs(result) | self._mutated(values)).items()}

    def _call(self, host: Mapping[str, Any], example: Example) -> dict[str, Any]:
        values = {
            name: self._placed(v, example.layouts[name]) if isinstance(v, np.ndarray) else v for name, v in host.items()
        }
        result = self.launch(*values.values(), **example.parameters)
        return {n: _to_host(v) for n, v in (self._outputs(result) | self._mutated(values)).items()}

    def _outputs(self, result: Any) -> dict[str, Any]:
        outputs = self.signature.outputs
        if self.signature.result_type is None:
            return {outputs[0].name: result} if outputs else {}
        return {o.name: value for o, value in zip(outputs, result, strict=True)}

    def _mutated(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: values[name] for name in self.binding.mutates if values[name] is not None}

    def _placed(self, host: Any, layout: str) -> Any:
        """The library's own copy of an array, in a layout."""
        if layout == "F":
            return self.put(host.T.copy()).T
        if layout == "C":
            return self.put(host.copy())
        index = tuple(slice(n) for n in host.shape) if host.ndim > 1 else (slice(None, None, 2),)
        base = np.full(_with_gaps(host.shape), 77, host.dtype)  # what a kernel must not read
        base[index] = host
        return self.put(base)[index]

    def _compare(self, name: str, got: Any, wanted: Any, host: Mapping[str, Any], example: Example, seed: int) -> float:
        shape, dtype = (
            example.outputs[name] if name in example.outputs else (example.shapes[name], example.dtypes[name])
        )
        if (got.shape, got.dtype.name) != (shape, dtype) or wanted.shape != shape:
            raise self._error(
                f"{name} is {got.dtype.name}{list(got.shape)} from the kernel, {wanted.dtype.name}{list(wanted.shape)} "
                f"from the reference, and {dtype}{list(shape)} by the annotation.",
                example, seed, _array=name, _index=None, _got=got.shape, _wanted=wanted.shape, _largest_error=math.nan,
            )  # fmt: skip
        errors = _errors(got, wanted)
        allowed = self._allowed(got, wanted, host)
        wrong = ~(errors <= allowed)  # NaN is wrong
        if wrong.any():
            raise self._mismatch(name, got, wanted, errors, allowed, wrong, example, seed)
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.where(errors == 0, 0.0, errors / allowed)
        return float(shares.max(initial=0.0))

    def _allowed(self, got: Any, wanted: Any, host: Mapping[str, Any]) -> Any:
        """Largest error of each element."""
        if got.dtype.kind not in "fc":
            return np.zeros(got.shape)
        size = np.abs(np.where(np.isfinite(wanted), wanted, 0)).astype(np.float64)
        if self.rtol is not None or self.atol is not None:
            return (self.atol or 0.0) + (self.rtol or 0.0) * size
        inputs = [v for v in host.values() if isinstance(v, np.ndarray)]
        finite = [np.abs(np.where(np.isfinite(v), v, 0)).max(initial=0) for v in inputs if v.dtype.kind != "b"]
        scale = max([float(size.max(initial=0)), *map(float, finite)])
        terms = max([1, *(n for v in inputs for n in v.shape), *(v.size // max(1, got.size) for v in inputs)])
        factor = 64 if self.binding.options.fast_math else 4
        return np.full(got.shape, factor * float(np.finfo(got.dtype).eps) * (4 + math.sqrt(terms)) * scale)

    def _mismatch(
        self, name: str, got: Any, wanted: Any, errors: Any, allowed: Any, wrong: Any, example: Example, seed: int
    ) -> CheckError:
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        place = f"{name}[{', '.join(map(str, index))}]" if index else name
        worst = tuple(int(i) for i in np.unravel_index(np.argmax(np.where(wrong, errors, -1)), got.shape))
        largest = float(errors[worst]) if np.isfinite(errors).all() else math.nan
        return self._error(
            f"{place} is {got[index].item()!r}, the reference says {wanted[index].item()!r}.",
            example,
            seed,
            mismatches=f"{int(wrong.sum())} of {got.size} elements, largest error {largest:.3g} at {list(worst)}, "
            f"allowed {float(allowed[worst]):.3g}",
            _array=name,
            _index=index,
            _got=got[index].item(),
            _wanted=wanted[index].item(),
            _largest_error=largest,
        )

    def _error(self, summary: str, example: Example, seed: int, **facts: Any) -> CheckError:
        sizes = ", ".join(f"{n} = {s}" for n, s in example.sizes.items())
        return CheckError(
            summary,
            function=self.signature.function,
            given=str(example),
            axes=sizes or None,
            repeat=self._repeat(example, seed),
            _example=example.number,
            _seed=seed,
            _sizes=dict(example.sizes),
            _parameters=dict(example.parameters),
            **facts,
        )


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Any:
    kind = np.dtype(dtype).kind
    if kind == "b":
        return rng.random(shape) < 0.5
    if kind in "iu":
        return rng.integers(0 if kind == "u" else -100, 101, size=shape)
    if kind == "c":
        return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
    return rng.standard_normal(shape)


def _wide(array: Any) -> Any:
    """A copy in the widest dtype of its kind; uint64 stays, as int64 cannot hold it."""
    if array.dtype.kind in "iu" and array.dtype != np.uint64:
        return array.astype(np.int64)
    wide = {"f": np.float64, "c": np.complex128}.get(array.dtype.kind, array.dtype)
    return array.astype(wide)


def _to_host(array: Any) -> Any:
    """A NumPy array of what a call returned: CuPy's, torch's or any other library's."""
    if hasattr(array, "get"):
        return array.get()
    if hasattr(array, "detach"):
        return array.detach().cpu().numpy()
    return np.asarray(array)


def _errors(got: Any, wanted: Any) -> Any:
    """Distance of each element, 0 where both are the same infinity or NaN, else NaN where one is not finite."""
    exact = got.dtype.kind not in "fc"
    if exact:
        return np.where(got == wanted, 0.0, np.abs(got.astype(np.float64) - wanted))
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = wanted.astype(got.dtype)
        wanted = np.where(np.isinf(rounded), rounded, wanted)  # past the dtype's largest value
        wide = got.astype(np.complex128 if got.dtype.kind == "c" else np.float64)
        same = (wide == wanted) | (np.isnan(wide) & np.isnan(wanted))
        distance = np.abs(wide - wanted)
    return np.where(same, 0.0, np.where(np.isfinite(distance), distance, np.nan))
