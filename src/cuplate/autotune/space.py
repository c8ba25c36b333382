"""The candidates of a function with tuned parameters: read once at decoration, counted out for each kind of call."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cuplate.autotune.tunable import UNSAID, Tunable
from cuplate.errors import DeclarationError, ParameterError
from cuplate.expression import DEVICE_FACTS, Expression, parse
from cuplate.parameters import check_parameters, parameter_key
from cuplate.signature import Signature

__all__ = ["MOST", "Space", "read_space"]

MOST = 1024
"""Candidates of one function, before ``require=``: each may be compiled."""

Option = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Space:
    """What may be chosen, and what a choice depends on.

    Attributes
    ----------
    names : tuple of str
        The tuned parameters.
    groups : tuple of tuple of Option
        Parameters that go together, each with the combinations that are candidates; groups are independent.
    first : tuple of (str, object)
        What runs where nothing is measured, as far as ``require=`` allows it.
    key : tuple of Expression
        What a winner depends on.
    exact : bool
        Whether an axis counts by its size rather than by the power of two above it.
    rtol, atol : float or None
        By how much results may differ.
    """

    names: tuple[str, ...]
    groups: tuple[tuple[Option, ...], ...]
    first: Option
    key: tuple[Expression, ...]
    exact: bool
    rtol: float | None
    atol: float | None

    def combinations(self, fixed: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Values of the tuned parameters, in order; those of `fixed` as they are given.

        A group of which a value is fixed keeps the options that have it. Where none has, its other parameters keep
        their default.
        """
        kept = []
        for options in self.groups:
            wanted = {name: parameter_key(fixed[name]) for name, _ in options[0] if name in fixed}
            fits = [o for o in options if all(parameter_key(v) == wanted.get(n, parameter_key(v)) for n, v in o)]
            default = tuple((n, v) for n, v in self.first if n in {name for name, _ in options[0]})
            kept.append(fits or [default])
        for chosen in itertools.product(*kept):
            yield {name: value for option in chosen for name, value in option} | {
                name: fixed[name] for name in self.names if name in fixed
            }


def read_space(signature: Signature, arrays: Collection[str]) -> Space:
    """The candidates of a signature with a tuned parameter.

    Parameters
    ----------
    signature : Signature
    arrays : collection of str
        Whose facts ``key=`` may read.

    Raises
    ------
    DeclarationError, ExpressionError
        Values outside the annotation, configs that name other parameters, an output that would depend on the choice.
    """
    tunables = {p.name: p.tunable for p in signature.parameters if p.tunable is not None}
    return _Reader(signature, tunables, arrays).read()


class _Reader:
    def __init__(self, signature: Signature, tunables: Mapping[str, Tunable], arrays: Collection[str]) -> None:
        self.signature = signature
        self.tunables = tunables
        self.arrays = arrays

    def _fail(self, summary: str, **facts: Any) -> DeclarationError:
        return DeclarationError(summary, function=self.signature.function, **facts)

    def read(self) -> Space:
        self._check_independent()
        groups = self._groups()
        count = math.prod(map(len, groups))
        if count > MOST:
            raise self._fail(
                f"tune() has {count} candidates, and each may be compiled.",
                allowed=f"{MOST}",
                try_="tune(values=[...]) with fewer, or tune(configs=[...])",
            )
        first = tuple(pair for options in groups for pair in self._first(options))
        key = self._once("key")
        expressions = tuple(
            parse(
                text,
                names=[*self.signature.axes, *self._untuned(), *DEVICE_FACTS],
                arrays=self.arrays,
                function=self.signature.function,
                where=f"tune(key=...)[{i}]",
            )
            for i, text in enumerate(self.signature.axes if key is None else key)
        )
        return Space(
            tuple(self.tunables),
            groups,
            first,
            expressions,
            self._once("size_class") == "exact",
            self._once("rtol"),
            self._once("atol"),
        )

    def _untuned(self) -> list[str]:
        return [p.name for p in self.signature.parameters if p.name not in self.tunables]

    def _once(self, field: str) -> Any:
        """What one of the tune() says; one object may stand for several parameters."""
        said = {id(t): getattr(t, field) for t in self.tunables.values() if getattr(t, field) is not None}
        if len(said) > 1:
            raise self._fail(f"tune({field}=...) is given {len(said)} times.", allowed="once in a signature")
        return next(iter(said.values()), None)

    def _check_independent(self) -> None:
        """Results of candidates are compared, so none may decide what an array is."""
        for array in (*self.signature.arrays, *self.signature.outputs):
            used = {n for axis in array.axes if axis.expression for n in axis.expression.names}
            used |= {array.dtype_parameter} if array.dtype_parameter else set()
            for name in sorted(used & self.tunables.keys()):
                raise self._fail(
                    f"{array.name!r} depends on {name!r}, which is tuned: every candidate must give the same result.",
                    try_=f"scratch= for what depends on {name}, or a fixed {name}",
                )

    def _groups(self) -> tuple[tuple[Option, ...], ...]:
        groups: list[tuple[Option, ...]] = []
        taken: set[str] = set()
        for configs in {id(t): t.configs for t in self.tunables.values() if t.configs is not None}.values():
            groups.append(self._together(configs, taken))
        for parameter in self.signature.parameters:
            tunable = parameter.tunable
            if tunable is None or parameter.name in taken:
                continue
            if tunable.configs is not None:
                raise self._fail(
                    f"the configs of tune() do not name {parameter.name!r}, whose default it is.",
                    given=", ".join(tunable.configs[0]),
                    try_=f"{parameter.name} in each of them",
                )
            values = parameter.candidates
            if not values:
                raise self._fail(
                    f"{parameter.name}: {parameter.annotation} = tune() lists no values to choose from.",
                    allowed="Literal[...], bool, an Enum class, tune(values=[...]), tune(configs=[...])",
                    try_=f"{parameter.name}: {parameter.annotation} = tune(values=[...])",
                )
            groups.append(self._checked({parameter.name: value} for value in values))
        return tuple(groups)

    def _together(self, configs: tuple[Mapping[str, Any], ...], taken: set[str]) -> tuple[Option, ...]:
        names = [p.name for p in self.signature.parameters if p.name in configs[0]]
        for name in configs[0]:
            if name not in self.tunables:
                raise self._fail(
                    f"the configs of tune() name {name!r}, whose default is not tune().", try_=f"{name}: ... = tune()"
                )
            other = self.tunables[name]
            if name in taken or other.values is not None or (other.configs is not None and other.configs != configs):
                raise self._fail(f"two tune() say what {name!r} may be.", try_=f"{name}: ... = tune()")
        taken.update(names)
        return self._checked({name: config[name] for name in names} for config in configs)

    def _checked(self, options: Iterable[dict[str, Any]]) -> tuple[Option, ...]:
        """Values in one spelling each, no option twice."""
        found: dict[Any, Option] = {}
        for option in options:
            try:
                checked = check_parameters(self.signature, option, only=tuple(option))
            except ParameterError as error:
                raise self._fail(
                    "tune() lists a value outside its annotation: " + error.summary,
                    allowed=error.facts.get("allowed"),
                ) from None
            found.setdefault(tuple(parameter_key(value) for _, value in checked), checked)
        return tuple(found.values())

    def _first(self, options: tuple[Option, ...]) -> Option:
        names = [name for name, _ in options[0]]
        said = {id(t): t.default for n in names if (t := self.tunables[n]).default is not UNSAID}
        if not said:
            return options[0]
        wanted = next(iter(said.values()))
        if not isinstance(wanted, Mapping):
            wanted = {names[0]: wanted}
        for option in options:
            if {n: parameter_key(v) for n, v in option} == {n: parameter_key(v) for n, v in wanted.items()}:
                return option
        raise self._fail(
            "the default of tune() is none of its candidates.",
            given=f"{wanted!r:.60}",
            allowed=", ".join(f"{dict(option)!r}" for option in options[:8]),
        )
