"""One call, checked: names, parameters, arrays, sizes, layouts and devices, before anything is compiled or launched."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cuplate.arguments import ArraySpec, Described, bind
from cuplate.autotune.tunable import Tunable
from cuplate.backend import owners
from cuplate.backend.owners import Owner
from cuplate.binding import Binding
from cuplate.errors import ArgumentError, LayoutError
from cuplate.layout import check_aligned, check_devices, check_layout, check_overlap, check_writable
from cuplate.parameters import check_parameters, dtype_name, no_dtype
from cuplate.signature import ArrayArgument
from cuplate.solve import Solved, solve
from cuplate.tensor_map import takes

__all__ = ["Call", "check_call", "check_layouts"]


@dataclass(frozen=True, slots=True)
class Call:
    """One call that passed every check which needs no compiler.

    Attributes
    ----------
    values : mapping
        Arguments, parameters, ``out`` and ``stream`` as given, defaults filled in.
    parameters : tuple of (str, object)
        Checked, in one spelling each.
    arrays : dict of str to Described or None
        Arguments and given outputs; None for an absent optional.
    owner : Owner or None
        Library of the first array: allocates the outputs.
    owners : tuple of Owner
        Every library among the arrays.
    device : tuple of (str, int) or None
        Where the arrays are; None when all are `ArraySpec`.
    outputs : dict of str to array
        Those given as ``out=``.
    solved : Solved
        Sizes and dtypes.
    given : frozenset of str
        Names that the caller gave, as opposed to defaults filled in.
    """

    values: Mapping[str, Any]
    parameters: tuple[tuple[str, Any], ...]
    arrays: dict[str, Described | None]
    owner: Owner | None
    owners: tuple[Owner, ...]
    device: tuple[str, int] | None
    outputs: dict[str, Any]
    solved: Solved
    given: frozenset[str] = frozenset()

    def called_as(self, function: str, *, without: Collection[str] = ()) -> str:
        """The call in one line, for messages; parameters of `without` are left out."""
        arrays = [f"{n}={a}" for n, a in self.arrays.items() if a is not None]
        parameters = [f"{n}={v!r}" for n, v in self.parameters if n not in without]
        return f"{function}({', '.join([*arrays, *parameters])})"


def check_call(
    binding: Binding,
    given: Mapping[str, Any],
    more: Sequence[Any],
    unknown: Mapping[str, Any],
    *,
    partial: bool = False,
    layouts: bool = True,
) -> Call:
    """Check one call.

    Parameters
    ----------
    binding : Binding
    given : mapping
        Values under known names.
    more, unknown : sequence, mapping
        What fits no name.
    partial : bool
        True for `inspect` and its kind: arrays may be `ArraySpec`, a dtype's name, or left out where it is fixed.
    layouts : bool
        False leaves `check_layouts` to the caller: which layouts are read depends on the variant.

    Raises
    ------
    ArgumentError, ParameterError, DtypeError, ShapeError, LayoutError, DeviceError
    """
    return _Checker(binding, partial, layouts=layouts).check(given, more, unknown)


def check_layouts(binding: Binding, arrays: Mapping[str, Described | None]) -> None:
    """Refuse arrays whose layout this kernel does not read.

    Raises
    ------
    LayoutError
    """
    function = binding.signature.function
    for argument in (*binding.signature.arrays, *binding.signature.outputs):
        array = arrays.get(argument.name)
        if array is not None and not (_is_mapped(binding, argument.name) and takes(array)):
            check_layout(array, binding.kernel_facts, argument.axes, function)


def _is_mapped(binding: Binding, name: str) -> bool:
    """Whether the kernel reaches an array through a descriptor, which holds its strides."""
    return any(bound.name == name for bound in binding.maps)


class _Checker:
    def __init__(self, binding: Binding, partial: bool, *, layouts: bool) -> None:
        self.binding = binding
        self.signature = binding.signature
        self.function = binding.signature.function
        self.partial = partial
        self.layouts = layouts
        self.owners: list[Owner] = []
        self.arrays: dict[str, Described | None] = {}

    def check(self, given: Mapping[str, Any], more: Sequence[Any], unknown: Mapping[str, Any]) -> Call:
        if self.binding.space is not None:  # who binds by inspect.signature() passes on every default, tune() too
            given = {name: value for name, value in given.items() if not isinstance(value, Tunable)}
        values = bind(self.signature, given, more, unknown, partial=self.partial)
        parameters = check_parameters(self.signature, values)
        for argument in self.signature.arrays:
            value = self._spec(argument, values) if self.partial else values[argument.name]
            if value is None and argument.optional:
                self.arrays[argument.name] = None
            else:
                self._describe(argument.name, value)
        outputs = self._given_outputs(values.get("out"))
        for name, value in outputs.items():
            self._describe(name, value)
        present = [a for a in self.arrays.values() if a is not None]
        device = check_devices(present, self.function)
        solved = solve(self.signature, self.arrays, dict(parameters), outputs)
        self._check_memory()
        first = self.owners[0] if self.owners else None
        told = frozenset(given)
        return Call(values, parameters, self.arrays, first, tuple(self.owners), device, outputs, solved, told)

    def _describe(self, name: str, value: Any) -> None:
        owner = owners.find_owner(name, value, self.function)
        if owner not in self.owners:
            self.owners.append(owner)
        self.arrays[name] = owner.describe(name, value, self.function).settled()

    def _spec(self, argument: ArrayArgument, values: Mapping[str, Any]) -> Any:
        """An array of `inspect`: real, an `ArraySpec`, a dtype's name, or left out where its dtype is known."""
        value = values.get(argument.name)
        if isinstance(value, str):
            return ArraySpec(None, value)
        if argument.name not in values:
            if argument.family is not None:
                for other in self.signature.arrays:
                    known = self.arrays.get(other.name)
                    if other.family == argument.family and known is not None:
                        return ArraySpec(None, known.dtype)  # one dtype a call
                raise ArgumentError(
                    f"argument {argument.name!r} is needed: its dtype is open.",
                    function=self.function,
                    allowed=", ".join(argument.dtypes),
                    try_=f'{argument.name}="{argument.dtypes[-1]}"',
                )
            return ArraySpec(None, self._only_dtype(argument, values))
        return value

    def _only_dtype(self, argument: ArrayArgument, values: Mapping[str, Any]) -> str:
        if argument.dtype_parameter is None:
            return argument.dtypes[0]
        value = values[argument.dtype_parameter]
        return dtype_name(value, lambda: no_dtype(argument, value, self.function))

    def _given_outputs(self, out: Any) -> dict[str, Any]:
        names = [o.name for o in self.signature.outputs]
        if out is None:
            return {}
        if not names:
            raise ArgumentError("the function has no output, so out= has no meaning.", function=self.function)
        if self.signature.result_type is None:
            return {names[0]: out}
        values = tuple(out) if isinstance(out, (tuple, list)) else (out,)
        if len(values) != len(names):
            raise ArgumentError(f"out= holds {len(values)} arrays.", function=self.function, allowed=", ".join(names))
        return dict(zip(names, values, strict=True))

    def _check_memory(self) -> None:
        written = self.binding.written
        for argument in (*self.signature.arrays, *self.signature.outputs):
            array = self.arrays.get(argument.name)
            if array is None:
                continue
            if argument.name in written:
                check_writable(array, self.function)
                self._check_zeroed(array)
            check_aligned(array, self.function)
        if self.layouts:
            check_layouts(self.binding, self.arrays)
        check_overlap([a for a in self.arrays.values() if a is not None], written, self.function)

    def _check_zeroed(self, array: Described) -> None:
        if array.name in self.binding.zeroed and array.order == "strided":
            raise LayoutError(
                f"{array.name!r} is zeroed before the launch, and has gaps that must not be.",
                function=self.function,
                given=f"{array.name}: {array.dtype}{list(array.shape or ())} with strides {list(array.strides)}",
                try_=f"a contiguous {array.name}",
            )
