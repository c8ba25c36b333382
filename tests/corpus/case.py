"""One kernel of the corpus: its binding, its inputs, and how near to what its outputs have to be."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["EXACT", "Bound", "Case", "integers", "normal", "relative", "ulps", "uniform"]

Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True)
class Bound:
    """How far two values of an output may be apart.

    Attributes
    ----------
    kind : str
        ``"exact"``: the same bits, where NaN is NaN whatever its bits. ``"ulps"``: steps between neighbouring numbers
        of the output's dtype. ``"relative"``: as a share of the output's largest magnitude.
    limit : float
    why : str
        Why the outputs may differ at all; empty for exact ones.
    """

    kind: str
    limit: float = 0
    why: str = ""

    def __str__(self) -> str:
        return self.kind if self.kind == "exact" else f"{self.kind} {self.limit:g}"


EXACT = Bound("exact")


def ulps(limit: float, why: str) -> Bound:
    """At most `limit` numbers of the dtype apart."""
    return Bound("ulps", limit, why)


def relative(limit: float, why: str) -> Bound:
    """At most `limit` times the largest magnitude of the output apart."""
    return Bound("relative", limit, why)


@dataclass(frozen=True, slots=True)
class Case:
    """One call of one kernel.

    Attributes
    ----------
    f : specialized function
        Its body is the reference: it gets floating arrays in double precision, and the others as they are.
    draw : callable
        The array arguments by name, as NumPy arrays, from a generator; the same in every process.
    given : mapping
        Scalars and parameters.
    near : Bound
        Between the kernel and its reference, on any device.
    agrees : Bound
        Between two devices on the same inputs.
    settle : callable or None
        Brings outputs, by name, into an order where the kernel leaves one open.
    label : str
        Tells two cases of one kernel apart.
    """

    f: Any
    draw: Callable[[np.random.Generator], Arrays]
    given: Mapping[str, Any] = field(default_factory=dict)
    near: Bound = EXACT
    agrees: Bound = EXACT
    settle: Callable[[Arrays], Arrays] | None = None
    label: str = ""

    @property
    def name(self) -> str:
        """``"kernel"`` or ``"kernel-label"``; no two cases share one."""
        return "-".join(filter(None, [self.f.__name__, self.label]))

    def __str__(self) -> str:
        return self.name

    def inputs(self) -> Arrays:
        """Fresh array arguments; equal in every process."""
        return self.draw(np.random.default_rng(zlib.crc32(self.name.encode())))


def normal(rng: np.random.Generator, *shape: int, dtype: str = "float32") -> np.ndarray[Any, Any]:
    """Standard normal numbers."""
    return rng.standard_normal(shape).astype(dtype)


def uniform(
    rng: np.random.Generator, low: float, high: float, *shape: int, dtype: str = "float32"
) -> np.ndarray[Any, Any]:
    """Numbers from `low` to `high`."""
    return rng.uniform(low, high, shape).astype(dtype)


def integers(rng: np.random.Generator, low: int, high: int, *shape: int, dtype: str = "int32") -> np.ndarray[Any, Any]:
    """Integers from `low` to `high` - 1, in any dtype."""
    return rng.integers(low, high, shape, dtype=np.uint64 if high > 2**62 else np.int64).astype(dtype)
