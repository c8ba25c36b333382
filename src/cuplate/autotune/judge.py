"""Who is right where candidates differ: the reference, on copies of the call's arrays in double precision."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cuplate.arguments import product
from cuplate.autotune.agree import Tolerance, as_numbers
from cuplate.autotune.workspace import Bench, Workspace
from cuplate.binding import Binding
from cuplate.call import Call
from cuplate.solve import Solved

__all__ = ["Reference"]

_LARGEST = 1 << 22  # elements of an array: beyond that the reference may take longer than the tuning


class Reference:
    """A function's body, asked which of several results is right.

    Parameters
    ----------
    reference : callable
    call : Call
        With the arrays as the caller gave them.
    binding : Binding
    solved : Solved
    bench, workspace
        Where the candidates ran.
    tolerance : Tolerance
    """

    def __init__(
        self,
        reference: Callable[..., Any],
        call: Call,
        binding: Binding,
        solved: Solved,
        bench: Bench,
        workspace: Workspace,
        tolerance: Tolerance,
    ) -> None:
        self._reference, self._call, self._binding, self._solved = reference, call, binding, solved
        self._bench, self._workspace, self._tolerance = bench, workspace, tolerance

    def __call__(self, results: Sequence[Mapping[str, Any]]) -> tuple[int, str] | None:
        """Which result agrees with the reference; None where there is none, where it fails, or agrees with none."""
        arrays = [a for a in self._call.arrays.values() if a is not None]
        shapes = self._solved.output_shapes.values()
        if max([*(a.size for a in arrays), *map(product, shapes)], default=0) > _LARGEST:
            return None
        import numpy as np

        try:
            with np.errstate(all="ignore"):
                wanted = self._wanted()
                for number, result in enumerate(results):
                    if all(self._agrees(name, result[name], values) for name, values in wanted.items()):
                        return number, "the reference"
        except Exception:  # NotImplementedError where there is none; what runs there, and comes of it, is the user's
            pass
        return None

    def _wanted(self) -> dict[str, Any]:
        import numpy as np

        call, binding = self._call, self._binding
        written = set(binding.mutates)
        originals = self._workspace.originals()
        values: list[Any] = []
        mutated: dict[str, Any] = {}
        for argument in binding.signature.arguments:
            array = call.arrays.get(argument.name)
            if argument.name not in call.arrays:
                values.append(call.values.get(argument.name))
            elif array is None:
                values.append(None)
            else:
                low, high = array.extent()
                data = originals.get(argument.name)
                data = self._bench.read(low, high - low) if data is None else data
                numbers = as_numbers(data, array.dtype)
                if array.dtype.startswith("complex"):
                    numbers = numbers.view(np.complex128)
                if numbers.dtype.kind == "u" and array.dtype == "bool":
                    numbers = numbers.astype(bool)
                steps = tuple(stride * numbers.itemsize for stride in array.strides)
                start = (array.pointer - low) // array.itemsize * numbers.itemsize
                view = np.ndarray(array.shape or (), numbers.dtype, numbers, start, steps)
                values.append(view)
                if argument.name in written:
                    mutated[argument.name] = numbers
        result = self._reference(*values, **dict(call.parameters))
        outputs = binding.signature.outputs
        several = binding.signature.result_type is not None
        found = list(result) if several else [result] * len(outputs)
        return {o.name: np.asarray(v) for o, v in zip(outputs, found, strict=True)} | mutated

    def _agrees(self, name: str, got: Any, wanted: Any) -> bool:
        import numpy as np

        dtype = self._workspace.dtypes[name]
        numbers = as_numbers(got, dtype)
        if dtype.startswith("complex"):
            wanted = np.ascontiguousarray(wanted, np.complex128).view(np.float64)
        wanted = np.ravel(wanted)
        if numbers.size != wanted.size:
            return False
        if dtype.startswith(("bool", "int", "uint")):
            return bool(np.array_equal(numbers, wanted.astype(numbers.dtype)))
        finite = np.abs(np.where(np.isfinite(wanted), wanted, 0.0)).astype(np.float64)
        allowed = self._tolerance.allowed(wanted, dtype, float(finite.max(initial=0.0)))
        same = (numbers == wanted) | (np.isnan(numbers) & np.isnan(wanted))
        return bool((same | (np.abs(numbers - wanted) <= allowed)).all())
