"""Candidates run one after another on the same memory: their results compared, their times taken, the fastest found."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cuplate.autotune.agree import Tolerance, difference
from cuplate.autotune.tuned import Tried
from cuplate.autotune.workspace import Bench, Workspace
from cuplate.errors import CuplateError, KernelError

__all__ = ["Contender", "Fault", "Judge", "Measured", "measure"]

# How often a candidate runs, by the time that one run takes: a median of a few long runs, of many short ones.
_SAMPLES_S = 0.03
_FEWEST, _MOST = 5, 50
_HOPELESS = 2.0  # times the best median so far: given up after the first runs
_FIRST_RUNS = 2
_CLOSE = 1.05  # within this of the best, they run again by turns
_FINALISTS = 4
_TIE = 1.01  # within this of the best, the one that stands first wins, and so the same one the next time
_GROUPS = 4  # different results that are kept

Judge = Callable[[Sequence[Mapping[str, Any]]], "tuple[int, str] | None"]
"""Of several different results, which is right, and who says so; None where nobody knows."""


class Fault(Exception):
    """A candidate has left the device in a state in which nothing can run."""

    def __init__(self, contender: Contender, found: str) -> None:
        super().__init__(found)
        self.contender, self.found = contender, found


@dataclass(slots=True)
class Contender:
    """One candidate on its way through the trial.

    Attributes
    ----------
    tried : Tried
        What is known of it.
    start : callable
        Loads the kernel for this memory; gives what launches it once.
    kernel : object
        What `start` has made, for who wants the winner's.
    """

    tried: Tried
    start: Callable[[Contender], Callable[[], object]]
    kernel: Any = None
    run: Callable[[], object] | None = None
    samples: list[float] = field(default_factory=list)
    group: int | None = None

    @property
    def median_s(self) -> float:
        """Of the runs so far."""
        return statistics.median(self.samples)


@dataclass(frozen=True, slots=True)
class Measured:
    """The outcome.

    Attributes
    ----------
    winner : int or None
        Place of the fastest; None if none can run.
    tried : tuple of Tried
        In the order of the contenders.
    note : str
        About results that differ.
    """

    winner: int | None
    tried: tuple[Tried, ...]
    note: str = ""


def measure(
    contenders: Sequence[Contender],
    bench: Bench,
    workspace: Workspace,
    *,
    first: int,
    tolerance: Tolerance,
    judge: Judge,
    is_over: Callable[[], bool],
    tell: Callable[[Contender], object] = lambda contender: None,
) -> Measured:
    """Run every contender that is ready, and find the fastest of those whose results are right.

    Parameters
    ----------
    contenders : sequence of Contender
        In the order of the candidates.
    bench, workspace
        Where they run.
    first : int
        Place of the default, which runs first.
    tolerance : Tolerance
        By how much results may differ.
    judge : callable
        Asked where they differ.
    is_over : callable
        Whether the time is spent; asked before each contender, once one has been measured.
    tell : callable
        Called when a contender is through.

    Raises
    ------
    Fault
        The device is beyond use.
    NoRoom
        There is no memory for the results.
    """
    results: list[Mapping[str, Any]] = []
    best: dict[int, float] = {}  # by result: what is wrong may be fast
    order = sorted(range(len(contenders)), key=lambda place: place != first)
    for place in order:
        contender = contenders[place]
        if contender.tried.state == "not measured" and not contender.tried.reason and not (best and is_over()):
            _try(contender, bench, workspace, results, tolerance, best)
        tell(contender)
    note = _judge(contenders, results, first, judge, tolerance, workspace.dtypes)
    valid = _valid(contenders)
    if not valid:
        return Measured(None, tuple(c.tried for c in contenders), note)
    fastest = min(c.median_s for c in valid)
    finalists = sorted((c for c in valid if c.median_s <= _CLOSE * fastest), key=lambda c: c.median_s)[:_FINALISTS]
    if len(finalists) > 1 and not is_over():
        for _ in range(_runs(fastest)):
            for contender in _valid(finalists):
                _sample(contender, bench, workspace)
        finalists = _valid(finalists) or _valid(contenders)
        if not finalists:
            return Measured(None, tuple(c.tried for c in contenders), note)
    fastest = min(c.median_s for c in finalists)
    tied = [c for c in finalists if c.median_s <= _TIE * fastest]
    winner = min(tied, key=lambda c: order.index(contenders.index(c)))
    return Measured(contenders.index(winner), tuple(_row(c) for c in contenders), note)


def _try(
    contender: Contender,
    bench: Bench,
    workspace: Workspace,
    results: list[Mapping[str, Any]],
    tolerance: Tolerance,
    best: dict[int, float],
) -> None:
    """Run one: once for its result, then for its time."""
    try:
        contender.run = contender.start(contender)
        workspace.reset()
        bench.once(contender.run)
    except Exception as error:  # each library and the driver have errors of their own
        _fail(contender, error)
        return
    found = bench.settle()
    if found is not None:
        raise Fault(contender, found)
    group = contender.group = _group(workspace.read(), results, tolerance, workspace.dtypes)
    for _ in range(_FIRST_RUNS):
        if not _sample(contender, bench, workspace):
            return
    if min(contender.samples) > _HOPELESS * best.get(group, float("inf")):
        contender.tried = replace(contender.tried, state="slow", reason="given up")
        contender.run = contender.kernel = None
        return
    more = _runs(min(contender.samples)) - _FIRST_RUNS
    for _ in range(more):
        if not _sample(contender, bench, workspace):
            return
    best[group] = min(best.get(group, float("inf")), contender.median_s)
    contender.tried = replace(contender.tried, state="measured")


def _sample(contender: Contender, bench: Bench, workspace: Workspace) -> bool:
    """Time one run more; False where it failed, though the run before it did not."""
    assert contender.run is not None
    try:
        workspace.restore()
        contender.samples.append(bench.sample(contender.run))
    except Exception as error:
        found = bench.settle()
        if found is not None:
            raise Fault(contender, found) from error
        _fail(contender, error)
        return False
    return True


def _fail(contender: Contender, error: Exception) -> None:
    state = "kernel error" if isinstance(error, KernelError) else "launch error"
    reason = error.summary if isinstance(error, CuplateError) else f"{type(error).__name__}: {error}"
    contender.tried = replace(contender.tried, state=state, reason=reason)
    contender.run = contender.kernel = contender.group = None
    contender.samples.clear()


def _valid(contenders: Sequence[Contender]) -> list[Contender]:
    return [c for c in contenders if c.tried.state == "measured"]


def _runs(seconds: float) -> int:
    return _MOST if seconds <= 0 else max(_FEWEST, min(_MOST, int(_SAMPLES_S / seconds)))


def _row(contender: Contender) -> Tried:
    """What is known of a contender, its times put in."""
    samples = contender.samples
    if not samples:
        return contender.tried
    median = contender.median_s
    quartiles = statistics.quantiles(samples, n=4) if len(samples) > 1 else [median] * 3
    spread = (quartiles[2] - quartiles[0]) / median if median > 0 else 0.0
    return replace(contender.tried, median_s=median, spread=spread, samples=len(samples))


def _differs(
    got: Mapping[str, Any], wanted: Mapping[str, Any], tolerance: Tolerance, dtypes: Mapping[str, str]
) -> str | None:
    for name, theirs in wanted.items():
        found = difference(got[name], theirs, dtypes[name], tolerance)
        if found is not None:
            return f"{name}: {found}"
    return None


def _group(
    result: Mapping[str, Any], results: list[Mapping[str, Any]], tolerance: Tolerance, dtypes: Mapping[str, str]
) -> int:
    """Number of the result that this one agrees with; beyond a few different ones they count as one more."""
    for number, known in enumerate(results):
        if _differs(result, known, tolerance, dtypes) is None:
            return number
    if len(results) < _GROUPS:
        results.append(result)
        return len(results) - 1
    return _GROUPS


def _judge(
    contenders: Sequence[Contender],
    results: Sequence[Mapping[str, Any]],
    first: int,
    judge: Judge,
    tolerance: Tolerance,
    dtypes: Mapping[str, str],
) -> str:
    """Mark those whose result is wrong: the reference says which, else most of them, else the default does."""
    if len(results) < 2:
        return ""
    sizes = [sum(c.group == number for c in contenders) for number in range(len(results))]
    asked = judge(results)
    if asked is not None:
        right, by = asked
    elif sizes.count(max(sizes)) == 1:
        right, by = (
            sizes.index(max(sizes)),
            f"{max(sizes)} of {sum(c.group is not None for c in contenders)} candidates",
        )
    else:
        own = contenders[first].group
        right = own if own is not None and own < len(results) else 0
        by = "the default, as many candidates agreed with each other"
    for contender in contenders:
        if contender.group is None or contender.group == right:
            continue
        told = "another result again"
        if contender.group < len(results) and 0 <= right < len(results):
            told = _differs(results[contender.group], results[right], tolerance, dtypes) or told
        contender.tried = replace(contender.tried, state="wrong", reason=told)
    return f"results differ; right is what agrees with {by}"
