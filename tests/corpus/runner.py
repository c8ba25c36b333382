"""Runs cases of the corpus, and measures how far outputs are from what they should be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.corpus.case import Arrays, Bound, Case

__all__ = ["Difference", "compare", "expected", "measure", "run_case"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One output beside what it should be.

    Attributes
    ----------
    output : str
    identical : bool
        Every bit, where NaN is NaN.
    ulps : float
        Largest distance, in numbers of the dtype between the two; of integers, their difference.
    relative : float
        Largest difference, as a share of the largest magnitude.
    bound : Bound
    """

    output: str
    identical: bool
    ulps: float
    relative: float
    bound: Bound

    @property
    def allowed(self) -> bool:
        """Whether the bound holds."""
        if self.identical:
            return True
        return {"exact": False, "ulps": self.ulps <= self.bound.limit, "relative": self.relative <= self.bound.limit}[
            self.bound.kind
        ]

    def __str__(self) -> str:
        if self.identical:
            return f"{self.output}: bit-equal"
        return f"{self.output}: off by {self.ulps:g} ulps, {self.relative:.2g} relative; allowed: {self.bound}"


def run_case(case: Case, *, arrays: str = "numpy") -> Arrays:
    """What the kernel makes of the case's inputs.

    Parameters
    ----------
    case : Case
    arrays : str
        ``"numpy"`` runs on the CPU, ``"cupy"`` on the GPU, from the same inputs.

    Returns
    -------
    dict of str to ndarray
        Outputs, and the arguments that the kernel writes.
    """
    library = __import__(arrays)
    given = {name: library.array(value) for name, value in case.inputs().items()}
    outputs = collect(case, case.f(**given, **case.given), given)
    # Only CuPy's arrays have get(): it waits for the kernel.
    return {name: value.get() if arrays == "cupy" else value for name, value in outputs.items()}


def collect(case: Case, result: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Outputs by name: what a call returned, and the arguments that it wrote."""
    binding = case.f.inspect.__self__.variants.binding
    names = [output.name for output in binding.signature.outputs]
    values = list(result) if isinstance(result, tuple) else [result] if names else []
    return {**dict(zip(names, values, strict=True)), **{name: given[name] for name in binding.mutates}}


def expected(case: Case) -> Arrays:
    """What the reference makes of the same inputs: floating arrays are given to it in double precision."""
    given = {name: widened(value) for name, value in case.inputs().items()}
    scalars = {s.name: s.dtype for s in case.f.inspect.__self__.variants.binding.signature.scalars}
    values = {n: np.dtype(scalars[n]).type(v).item() if n in scalars else v for n, v in case.given.items()}
    result = case.f.reference(**given, **values)
    return {name: np.asarray(value) for name, value in collect(case, result, given).items()}


def widened(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy, in double precision if it is of a floating or complex dtype."""
    if value.dtype.kind == "f":
        return value.astype(np.float64)
    return value.astype(np.complex128) if value.dtype.kind == "c" else value.copy()


def compare(case: Case, outputs: Arrays, wanted: Arrays | None = None) -> tuple[Difference, ...]:
    """Outputs against the reference, or against those of another device.

    Parameters
    ----------
    case : Case
    outputs : dict of str to ndarray
    wanted : dict of str to ndarray, optional
        Of another device; default: of the reference, brought to the dtypes of the outputs.
    """
    bound = case.near if wanted is None else case.agrees
    if wanted is None:
        with np.errstate(invalid="ignore", over="ignore"):
            wanted = {name: value.astype(outputs[name].dtype) for name, value in expected(case).items()}
    if case.settle is not None:
        outputs, wanted = case.settle(outputs), case.settle(wanted)
    return tuple(measure(name, value, wanted[name], bound) for name, value in outputs.items())


def measure(output: str, got: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any], bound: Bound) -> Difference:
    """How far two arrays of one dtype are apart."""
    assert got.dtype == wanted.dtype, (output, got.dtype, wanted.dtype)
    if got.shape != wanted.shape:
        return Difference(output, False, np.inf, np.inf, bound)
    if got.dtype.kind == "c":
        part = np.dtype(f"f{got.dtype.itemsize // 2}")
        got, wanted = np.ascontiguousarray(got).view(part), np.ascontiguousarray(wanted).view(part)
    if got.dtype.kind != "f":
        apart = max((abs(int(a) - int(b)) for a, b in zip(got.flat, wanted.flat, strict=True)), default=0)
        largest = max((abs(int(b)) for b in wanted.flat), default=0)
        return Difference(output, apart == 0, apart, apart / max(largest, 1), bound)
    both = ~(np.isnan(got) & np.isnan(wanted))
    got, wanted = np.atleast_1d(got)[np.atleast_1d(both)], np.atleast_1d(wanted)[np.atleast_1d(both)]
    if got.tobytes() == wanted.tobytes():
        return Difference(output, True, 0, 0, bound)
    steps = max(abs(a - b) for a, b in zip(ordered(got), ordered(wanted), strict=True))
    return Difference(output, False, float(steps), share(got, wanted), bound)


def ordered(values: np.ndarray[Any, Any]) -> Iterator[int]:
    """Integers in the order of the floats, neighbours one apart; infinities and NaNs are beyond all others."""
    sign = 1 << 8 * values.dtype.itemsize - 1
    for word in values.view(f"u{values.dtype.itemsize}"):
        yield int(word) if word < sign else sign - int(word)


def share(got: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> float:
    """The largest difference, as a share of the largest magnitude; infinite where only one side is finite."""
    finite = np.isfinite(got) & np.isfinite(wanted)
    if not (got[~finite] == wanted[~finite]).all():
        return np.inf
    difference = np.abs(got[finite].astype(np.float64) - wanted[finite].astype(np.float64)).max(initial=0)
    return float(difference / (np.abs(wanted[finite].astype(np.float64)).max(initial=0) or 1))
