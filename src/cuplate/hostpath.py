"""Calls on the CPU backend that have come before in kind: packed NumPy arrays of known dtypes and shapes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cuplate.backend.owners import numpy_address
from cuplate.call import Call
from cuplate.choice import Choice
from cuplate.dispatch import MISSING
from cuplate.parameters import parameter_key

if TYPE_CHECKING:
    from cuplate.backend.cpu.device import ArrayArgument, Target

__all__ = ["HostPath"]

PLANS = 1024  # dropped whole at the limit


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is left to do for a call of this kind.

    Attributes
    ----------
    ready : Ready
        Of the walk.
    slots : tuple
        For each kernel argument an `ArrayArgument` without its pointer, the name of a scalar, or an integer.
    outputs : tuple of (str, tuple of int, str)
        To be allocated: name, shape, dtype.
    owner : Owner
        Of NumPy's arrays.
    """

    ready: Any
    slots: tuple[Any, ...]
    outputs: tuple[tuple[str, tuple[int, ...], str], ...]
    owner: Any


class HostPath:
    """The plans of one function; the generated hot path of a GPU's calls has its counterpart here.

    Parameters
    ----------
    choice : Choice
        The function's binding, and the variants among which a plan has chosen.
    encoders : mapping
        Of the run-time scalars.
    """

    def __init__(self, choice: Choice, encoders: Mapping[str, Callable[[Any], int | bytes]]) -> None:
        binding = choice.own.binding
        self.binding = binding
        self._asked = choice.asked
        self.signature = binding.signature
        self.encoders = encoders
        self.plans: dict[Any, _Plan] = {}
        self._arrays = (*(a.name for a in self.signature.arrays), "out")
        self._parameters = tuple(p.name for p in self.signature.parameters)
        self._count = len(self.signature.arguments) + len(self.signature.parameters) + 2
        self._aligned = tuple((f.array, f.value) for f in choice.facts if f.name == "aligned" and f.value)
        names = {a.name for a in self.signature.arrays}
        self._plain = all(name in names for name, _ in self._aligned) and self.signature.result_type is None

    def key(self, values: Mapping[str, Any], target: Target) -> Any:
        """What tells a call's kind; None for one that has to take the whole walk."""
        numpy = sys.modules.get("numpy")
        if numpy is None or not self._plain or values.get("stream") is not None:
            return None
        parts: list[Any] = [target]
        for name in self._arrays:
            array = values.get(name)
            if array is None:
                parts.append(None)
            elif type(array) is not numpy.ndarray or not array.flags.c_contiguous or not array.size:
                return None
            else:
                parts += (array.dtype, array.shape, array.flags.writeable)
        if len(values) + sum(name not in values for name in self._asked) != self._count:
            return None  # an argument is missing
        parts += [parameter_key(values.get(name, MISSING)) for name in self._parameters]
        parts += [numpy_address(values[name]) % size == 0 for name, size in self._aligned if values[name] is not None]
        return tuple(parts)

    def find(self, key: Any) -> _Plan | None:
        """The plan of a call's kind, if there is one."""
        try:
            return self.plans.get(key)
        except TypeError:  # a parameter that cannot be hashed
            return None

    def offer(self, key: Any, call: Call, ready: Any, values: list[Any]) -> None:
        """Remember a call that has just run.

        Parameters
        ----------
        key : tuple
        call : Call
        ready : Ready
        values : list of ArrayArgument or int
            What the kernel was given.
        """
        if ready.plan.zeroed or ready.plan.scratch or any(getattr(v, "offset_bytes", 0) for v in values):
            return
        slots = tuple(
            recipe.name if recipe.kind == "scalar" else value
            for recipe, value in zip(ready.recipes, values, strict=True)
        )
        solved = call.solved
        outputs = tuple(
            (o.name, solved.output_shapes[o.name], solved.dtypes[o.name])
            for o in self.signature.outputs
            if o.name not in call.outputs
        )
        if len(self.plans) >= PLANS:
            self.plans.clear()
        try:
            self.plans[key] = _Plan(ready, slots, outputs, call.owner)
        except TypeError:
            return

    def forget(self, entry: Any) -> None:
        """Drop every plan that leads to `entry`."""
        for key, plan in list(self.plans.items()):
            if plan.ready.entry is entry:
                self.plans.pop(key, None)

    def arguments(self, plan: _Plan, arrays: Mapping[str, Any], values: Mapping[str, Any]) -> list[Any] | None:
        """What the kernel is given by a call of this kind; None if a written array shares memory with another.

        None, too, for an array whose address is no multiple of its element size.
        """
        given: list[Any] = []
        used: list[ArrayArgument] = []
        for slot in plan.slots:
            if isinstance(slot, str):
                given.append(self.encoders[slot](values[slot]))
            elif isinstance(slot, int):
                given.append(slot)
            else:
                address = numpy_address(arrays[slot.name])
                if address % slot.itemsize:
                    return None
                used.append(slot.at(address))
                given.append(used[-1])
        for written in used:
            if written.written:
                low, high = written.pointer, written.pointer + written.size_bytes
                for other in used:
                    if other is not written and other.pointer < high and low < other.pointer + other.size_bytes:
                        return None
        return given
