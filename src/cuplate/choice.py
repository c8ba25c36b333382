"""Which of several functions runs a call: the first variant that can and wants to, else the function itself.

Not to be confused with `cuplate.variants`, the renderings of one function.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from cuplate.arguments import describe_argument
from cuplate.binding import Binding
from cuplate.call import Call, check_layouts
from cuplate.errors import (
    DeclarationError,
    DeviceError,
    DtypeError,
    ExpressionError,
    LayoutError,
    ParameterError,
    ShapeError,
)
from cuplate.expression import Expression
from cuplate.grid import Limits
from cuplate.hints import by_reason
from cuplate.parameters import check_parameters, parameter_key
from cuplate.plan import Plan, check_maps, known_values, make_plan
from cuplate.signature import ArrayArgument, ScalarArgument, Signature
from cuplate.solve import Solved, solve
from cuplate.variants import Variants

__all__ = ["Choice", "Chosen"]

_EMPTY = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Chosen:
    """What runs one call.

    Attributes
    ----------
    variants : Variants
        Of the function that runs.
    parameters : tuple of (str, object)
        Its own.
    solved : Solved
        Sizes and dtypes, as its annotations bind them.
    against : tuple of (str, callable)
        The variants that stood before it; what was against each is said when it is asked for, as `passed_over`.
    candidates : tuple of tuple of (str, object)
        Where parameters of it are tuned and the caller gave none of them a value, or not all: every combination that
        ``require=`` allows, all parameters in each. `parameters` is one of them: what runs where nothing is measured.
    """

    variants: Variants
    parameters: tuple[tuple[str, Any], ...]
    solved: Solved
    against: tuple[tuple[str, Callable[[], str]], ...] = ()
    candidates: tuple[tuple[tuple[str, Any], ...], ...] = ()

    @property
    def name(self) -> str:
        """Of the function that runs."""
        return self.variants.name

    @property
    def passed_over(self) -> tuple[tuple[str, str], ...]:
        """The variants that stood before it, and what was against each."""
        return tuple((name, reason()) for name, reason in self.against)


_LACKS = "it has no parameter"


class _PassedOver(Exception):
    """A variant does not run this call; `reason` is the text that says why, or makes it."""

    def __init__(self, reason: str | Callable[[], str]) -> None:
        super().__init__()
        self.reason = reason if callable(reason) else reason.__str__


class Choice:
    """A function and its variants.

    Parameters
    ----------
    own : Variants
        Of the decorated function, which runs what no variant takes.
    others : sequence of Variants
        In the order in which they are tried.

    Attributes
    ----------
    facts : frozenset of Fact
        Layout facts on which the choice, or what is chosen, may depend.
    asked : frozenset of str
        Parameters that some variant lacks or tunes: whether the caller gave one decides.
    tuned : bool
        Whether a parameter of any of them is tuned.
    plain : Choice
        Of a debugged one what it was made of: the winners of a tuning are those of the plain kernels.

    Raises
    ------
    DeclarationError
        A variant takes other arguments, or could never run.
    """

    def __init__(self, own: Variants, others: Sequence[Variants] = ()) -> None:
        self.own = own
        self.others = tuple(others)
        self._debugged: Choice | None = None
        self.plain = self
        seen = {own.name}
        for other in self.others:
            if other.name in seen:
                raise _refused(own.name, f"two functions are called {other.name!r}.", try_="another name for one")
            seen.add(other.name)
            _check_variant(own.binding, other.binding)
        every = [v.binding for v in (own, *self.others)]
        self.facts = frozenset(fact for binding in every for fact in binding.facts)
        names = [{p.name for p in b.signature.parameters} for b in every]
        tuned = {name for b in every if b.space is not None for name in b.space.names}
        self.tuned = bool(tuned)
        self.asked = frozenset(n for n in names[0] if n in tuned or any(n not in other for other in names[1:]))

    def __len__(self) -> int:
        return sum(len(variants) for variants in (self.own, *self.others))

    @property
    def debug(self) -> bool:
        """Whether calls check themselves; see `debugged`."""
        return self.own.debug

    def debugged(self) -> Choice:
        """The same choice, compiled as `Variants.debugged` says."""
        if self._debugged is None:
            debugged = Choice(self.own.debugged(), [other.debugged() for other in self.others])
            debugged.plain, self._debugged = self, debugged
        return self._debugged

    def clear(self) -> None:
        """Forget what was rendered; stored cubins stay."""
        self._debugged = None
        for variants in (self.own, *self.others):
            variants.clear()

    def choose(self, call: Call, *, arch: str, limits: Limits) -> Chosen:
        """What runs `call`, of which everything but the layouts has been checked, on a device of `arch`.

        Raises
        ------
        LayoutError
            No variant takes the call, and the function itself does not read a layout of it.
        ExpressionError
            A condition cannot be computed for these sizes.
        """
        passed: list[tuple[str, Callable[[], str]]] = []
        for variants in self.others:
            try:
                fit = _fit(variants.binding, call, self.own.binding.signature, arch, limits)
            except _PassedOver as against:
                passed.append((variants.name, against.reason))
            else:
                return Chosen(variants, fit.parameters, fit.solved, tuple(passed), fit.candidates)
        if self.others:
            check_layouts(self.own.binding, call.arrays)
        parameters, candidates = _tuned(
            self.own.binding, call.parameters, call.given, call.solved, arch=arch, limits=limits
        )
        return Chosen(self.own, parameters, call.solved, tuple(passed), candidates)

    def plan(
        self,
        chosen: Chosen,
        variants: Variants,
        parameters: tuple[tuple[str, Any], ...],
        *,
        arch: str,
        limits: Limits,
        called_as: str,
    ) -> Plan:
        """The plan of what was chosen, by its function (`variants`, maybe debugged) with these parameters.

        Raises
        ------
        CuplateError
            As `make_plan`.
        """
        try:
            return make_plan(
                variants.binding,
                chosen.solved,
                parameters,
                arch=variants.binding.options.target(arch),
                limits=limits,
                called_as=called_as,
            )
        except ParameterError as error:
            raise self._refusal(chosen, error) from None

    def _refusal(self, chosen: Chosen, error: ParameterError) -> ParameterError:
        """What the function itself has against a call that no variant ran, with what was against these.

        A variant that lacks the parameter at issue is none that the caller meant, one that makes the same condition
        would refuse the call as well, and what was against all of them is said already.
        """
        condition: str | None = error.facts.get("_condition")
        conditions = {v.name: {c.text for c in v.binding.require} for v in self.others}
        told = "\n".join(
            by_reason(
                (name, reason)
                for name, reason in chosen.passed_over
                if not _is_told(reason, error.summary) and condition not in conditions[name]
            )
        )
        if not told:
            return error
        summary, facts = error.summary, {**error.facts, "passed_over": told}
        if condition and re.fullmatch(r"\w+ == None", condition):  # what is left to the variants
            summary, facts["given"] = f"no variant that takes {facts['given']} runs this call.", None
        return ParameterError(summary, function=error.function, **facts)


def _is_told(reason: str, summary: str) -> bool:
    if reason.startswith(_LACKS):
        return reason.split("'")[1] in summary
    return reason.removesuffix(" does not hold") in summary


# at a call ------------------------------------------------------------------------------------------------------------


_Parameters = tuple[tuple[str, Any], ...]


class _Fit(NamedTuple):
    """How a variant would run a call."""

    parameters: _Parameters
    solved: Solved
    candidates: tuple[_Parameters, ...]


def _fit(variant: Binding, call: Call, own: Signature, arch: str, limits: Limits) -> _Fit:
    """The parameters of `variant` for a call, and what its annotations bind.

    Raises
    ------
    _PassedOver
    """
    signature = variant.signature
    known = {p.name for p in signature.parameters}
    given = dict(call.parameters)
    for parameter in own.parameters:
        # None where that is the default asks for nothing: what a caller hands on that was not asked itself.
        nothing = parameter.default is None and given[parameter.name] is None
        if parameter.name in call.given and parameter.name not in known and not nothing:
            raise _PassedOver(f"{_LACKS} {parameter.name!r}, which was given")
    # A default of the function's is no word about what the variant tunes.
    free = set() if variant.space is None else set(variant.space.names) - call.given
    values = {p.name: p.default if p.name in free else given.get(p.name, p.default) for p in signature.parameters}
    try:
        parameters = check_parameters(signature, values)
        solved = solve(signature, call.arrays, dict(parameters), call.outputs)
        check_layouts(variant, call.arrays)
        if solved.output_shapes != call.solved.output_shapes or solved.dtypes != call.solved.dtypes:
            raise _PassedOver("its output would have another shape or dtype")
        parameters, candidates = _tuned(variant, parameters, call.given, solved, arch=arch, limits=limits)
        check_maps(variant, solved, parameters, arch=arch, limits=limits)
    except (ParameterError, DtypeError, ShapeError, LayoutError, DeviceError) as error:
        raise _PassedOver(error.summary.rstrip(".")) from None
    facts = known_values(variant, solved, parameters, arch=arch, limits=limits)
    for condition in (*variant.when, *variant.require):
        _hold(condition, facts, partial=solved.partial)
    return _Fit(parameters, solved, candidates)


def _tuned(
    binding: Binding,
    parameters: _Parameters,
    given: Collection[str],
    solved: Solved,
    *,
    arch: str,
    limits: Limits,
) -> tuple[_Parameters, tuple[_Parameters, ...]]:
    """What runs where nothing is measured, and every candidate; `parameters` and none where nothing is to be chosen.

    Where ``require=`` allows no candidate, or cannot be computed yet, it is for who plans the call to say so.
    """
    space = binding.space
    if space is None or not set(space.names) - set(given):
        return parameters, ()
    values = dict(parameters)
    fixed = {name: values[name] for name in space.names if name in given}
    facts = known_values(binding, solved, parameters, arch=arch, limits=limits)
    conditions = [condition for condition in binding.require if condition.names <= facts.keys()]
    found = []
    for combination in space.combinations(fixed):
        try:
            if all(condition.evaluate({**facts, **combination}) for condition in conditions):
                found.append(tuple((name, combination.get(name, value)) for name, value in parameters))
        except ExpressionError:
            if not solved.partial:
                raise
    if not found:
        return parameters, ()
    wanted = [parameter_key(v) for n, v in space.first if n not in fixed]
    free = [n for n, _ in space.first if n not in fixed]
    for candidate in found:
        chosen = dict(candidate)
        if [parameter_key(chosen[n]) for n in free] == wanted:
            return candidate, tuple(found)
    return found[0], tuple(found)


def _hold(condition: Expression, values: Mapping[str, object], *, partial: bool) -> None:
    missing = sorted(condition.names - values.keys())
    if missing:
        raise _PassedOver(f"{condition.text!r} needs {missing[0]}, which is not known here")
    try:
        holds = condition.evaluate(values)
    except ExpressionError as error:
        if not partial:  # the sizes are there: the condition itself is wrong
            raise
        raise _PassedOver(error.summary.rstrip(".")) from None
    if not holds:
        raise _PassedOver(lambda: condition.broken(values))


# at decoration --------------------------------------------------------------------------------------------------------


def _refused(function: str, summary: str, **facts: Any) -> DeclarationError:
    return DeclarationError(f"variants=: {summary}", function=function, **facts)


def _check_variant(own: Binding, variant: Binding) -> None:
    """Refuse a variant that takes other arguments than `own`, or that no call could reach."""
    mine, its = own.signature, variant.signature
    name, function = its.function, mine.function
    pairs = [(f"argument {i}", _shapes(mine.arguments, i), _shapes(its.arguments, i)) for i in _longer(mine, its)]
    pairs += [
        ("the outputs", _outputs(mine), _outputs(its)),
        ("mutates=", ", ".join(own.mutates), ", ".join(variant.mutates)),
    ]
    for what, wanted, found in pairs:
        if wanted != found:
            raise _refused(
                function,
                f"{what} of {name!r} differ{'s' if what[0] == 'a' else ''}.",
                given=found or "nothing",
                allowed=wanted or "nothing",
            )
    for array, other in zip((*mine.arrays, *mine.outputs), (*its.arrays, *its.outputs), strict=True):
        if not set(array.dtypes) & set(other.dtypes):
            raise _refused(
                function,
                f"{name!r} takes no dtype of {array.name!r} that {function!r} takes.",
                given=", ".join(other.dtypes),
                allowed=", ".join(array.dtypes),
            )
    known = {p.name for p in mine.parameters}
    for parameter in its.parameters:
        if parameter.name not in known and parameter.default is _EMPTY:
            raise _refused(
                function, f"{name!r} has a parameter {parameter.name!r} that no call can give.", try_="a default for it"
            )
    has = {p.name for p in its.parameters}
    for parameter in mine.parameters:
        if parameter.name not in has and parameter.default is _EMPTY:
            raise _refused(
                function,
                f"{name!r} would never run: it lacks {parameter.name!r}, which every call gives.",
                try_=f"a default for {parameter.name}, or the parameter in {name}",
            )


def _longer(mine: Signature, its: Signature) -> range:
    return range(max(len(mine.arguments), len(its.arguments)))


def _shapes(arguments: Sequence[ArrayArgument | ScalarArgument], i: int) -> str:
    """An argument without its dtype, which a variant may narrow; ``""`` where there is none."""
    if i >= len(arguments):
        return ""
    argument = arguments[i]
    if isinstance(argument, ScalarArgument):
        return f"{argument.name}: {describe_argument(argument)}"
    return f"{argument.name}: {_axes(argument)}{' | None' if argument.optional else ''}"


def _outputs(signature: Signature) -> str:
    listed = ", ".join(f"{o.name}: {_axes(o)}" for o in signature.outputs)
    return listed if signature.result_type is None else f"{signature.result_type.__name__}({listed})"


def _axes(array: ArrayArgument) -> str:
    return f'"{" ".join(axis.text for axis in array.axes)}"'
