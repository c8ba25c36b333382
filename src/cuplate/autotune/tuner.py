"""The tuning of one function: a stored winner, or a contest of the candidates, or the default."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from cuplate import config, events
from cuplate.autotune.job import Job, Parameters, render
from cuplate.autotune.tuned import Tried, Tuned, made_of
from cuplate.backend.protocol import NOWHERE
from cuplate.cache.store import TUNING
from cuplate.compile import Flights
from cuplate.content import Content
from cuplate.errors import CuplateError, ExpressionError, TuneError, TuneWarning
from cuplate.key import fold

if TYPE_CHECKING:
    from cuplate.autotune.stage import Stage
    from cuplate.autotune.workspace import NoRoom

__all__ = ["Part", "Resolved", "Tuner", "none_can_run"]


@dataclass(frozen=True, slots=True)
class Part:
    """What a worker has found out about some of the candidates.

    Attributes
    ----------
    device : str
        Where it measured, as `Job.device` says it.
    tried : tuple of Tried
        In the order in which it was asked.
    """

    device: str
    tried: tuple[Tried, ...]


class Resolved(NamedTuple):
    """With which parameters a call runs.

    Attributes
    ----------
    parameters : tuple of (str, object)
        All of the function's.
    kept : bool
        False where the next call is to ask again: nothing could be measured just now.
    tuned : Tuned
        Why.
    entry : Entry or None
        The winner, loaded, where it has been measured just now.
    """

    parameters: Parameters
    kept: bool
    tuned: Tuned
    entry: tuple[Content, Any] | None = None


class Tuner:
    """What one function knows of its winners.

    Parameters
    ----------
    reference : function
        The decorated function, which may say who is right.
    """

    def __init__(self, reference: Callable[..., Any]) -> None:
        self._reference = reference
        self._known: dict[bytes, Tuned] = {}
        self._asked_far: set[bytes] = set()  # keys of which the shared tier has been asked: once a process
        self._flights: Flights[Resolved] = Flights()

    def clear(self) -> None:
        """Forget the winners; stored ones stay."""
        self._known.clear()
        self._asked_far.clear()

    # which parameters -------------------------------------------------------------------------------------------------

    def resolve(self, job: Job, stage: Stage, *, forbidden: Callable[[], str | None]) -> Resolved:
        """The parameters of a call, measured if need be.

        Parameters
        ----------
        job : Job
        stage : Stage
        forbidden : callable
            Why nothing may be measured just now; None where it may.

        Raises
        ------
        TuneError
            No candidate can run.
        """
        if len(job.chosen.candidates) == 1:
            return Resolved(job.chosen.parameters, True, _default(job))
        policy = job.chosen.variants.cache_policy()
        mode = policy.tune
        if mode == "off":
            return Resolved(job.chosen.parameters, True, _default(job))
        if mode == "auto":
            mode = "on" if job.target is None else "cached"
        ingredients = job.ingredients()
        key = fold(ingredients)
        found = self.find(job, key)
        if found is None and (mode == "cached" or policy.frozen):
            found = self._look_far(job, key)
        if found is not None:
            return Resolved(job.chosen.candidates[found.winner], True, found)
        if mode == "cached" or policy.frozen:
            return Resolved(job.chosen.parameters, True, _default(job))
        reason = forbidden()
        if reason is not None:
            return Resolved(job.chosen.parameters, False, _default(job, reason))

        def work() -> Resolved:
            found = self.find(job, key)  # another thread has landed since this one looked
            if found is not None:
                return Resolved(job.chosen.candidates[found.winner], True, found)
            return self._once_a_node(job, stage, key, policy.tune_s)

        return self._flights.run(key, work)[0]

    def find(self, job: Job, key: bytes | None = None) -> Tuned | None:
        """The winner of this kind of call that this process or the store knows; nothing is measured."""
        key = fold(job.ingredients()) if key is None else key
        known = self._known.get(key)
        return self._look(job, key) if known is None else known

    def known(self, job: Job) -> Tuned:
        """What would run a call, measured or not, without measuring."""
        away = job.facts.name == NOWHERE or job.chosen.variants.cache_policy().tune == "off"
        found = None if away or job.chosen.solved.partial or len(job.chosen.candidates) == 1 else self.find(job)
        return _default(job) if found is None else found

    def measured(self, job: Job, stage: Stage) -> Tuned:
        """Measure, whatever is known already, and keep the winner.

        Raises
        ------
        TuneError
            No candidate can run.
        """
        key = fold(job.ingredients())
        return self._measure(job, stage, key, job.chosen.variants.cache_policy().tune_s).tuned

    def final(self, job: Job, stage: Stage, places: Sequence[int], rows: Sequence[Tried]) -> Tuned:
        """Measure some of the candidates, and keep the winner beside what is known of the others.

        Parameters
        ----------
        job, stage
            Of the call.
        places : sequence of int
            Of those that run.
        rows : sequence of Tried
            Of all.
        """
        key = fold(job.ingredients())
        return self._measure(job, stage, key, job.chosen.variants.cache_policy().tune_s, places, rows).tuned

    def part(self, job: Job, stage: Stage, places: Sequence[int]) -> Part:
        """Measure some of the candidates, for who collects the outcomes."""
        from cuplate.autotune.contest import hold

        found = hold(job, stage, self._reference, places=places, seconds=job.chosen.variants.cache_policy().tune_s)
        return Part(job.device, found.outcome.tried)

    def _once_a_node(self, job: Job, stage: Stage, key: bytes, seconds: float) -> Resolved:
        def look() -> Resolved | None:
            found = self._look(job, key)
            return None if found is None else Resolved(job.chosen.candidates[found.winner], True, found)

        def work() -> Resolved:
            found = self._look_far(job, key)
            if found is not None:
                return Resolved(job.chosen.candidates[found.winner], True, found)
            return self._measure(job, stage, key, seconds)

        flights = job.chosen.variants.store().flights
        return work() if flights is None else flights.run(key, look, work)

    # the store --------------------------------------------------------------------------------------------------------

    def _look(self, job: Job, key: bytes) -> Tuned | None:
        record = job.chosen.variants.store().get(key, again=True)
        return None if record is None else self._read(job, key, record)

    def _look_far(self, job: Job, key: bytes) -> Tuned | None:
        """The winner that the shared tier knows; it is kept on the disk."""
        variants = job.chosen.variants
        away = None if key in self._asked_far else variants.distant()
        if away is None:
            return None
        self._asked_far.add(key)
        record = away.get(key)
        found = None if record is None else self._read(job, key, record)
        if record is not None and found is not None:
            variants.store().put(key, record, tag=TUNING + variants.name)
        return found

    def _read(self, job: Job, key: bytes, record: bytes) -> Tuned | None:
        """A record that is about this call, and was made by the compiler that would make its winner now."""
        variants = job.chosen.variants
        candidates = [job.free(candidate) for candidate in job.chosen.candidates]
        try:
            found = Tuned.decode(record, candidates, key.hex())
        except ValueError as error:
            events.say(f"cuplate: {variants.name}: a stored tuning is not readable and counts as none: {error}")
            return None
        try:
            content = render(job, job.chosen.candidates[found.winner])[1]
        except CuplateError:  # what is wrong with it is said by the contest, or by the call
            return None
        if found.made_of != made_of(content.key.ingredients, text=job.binding.template.dynamic):
            return None
        self._known[key] = found
        return found

    def _keep(self, job: Job, key: bytes, tuned: Tuned) -> None:
        self._known[key] = tuned
        variants, record = job.chosen.variants, tuned.encode()
        variants.store().put(key, record, tag=TUNING + tuned.function)
        if (away := variants.distant()) is not None:
            away.offer(key, record, replace=True)

    # the contest ------------------------------------------------------------------------------------------------------

    def _measure(
        self,
        job: Job,
        stage: Stage,
        key: bytes,
        seconds: float,
        places: Sequence[int] | None = None,
        rows: Sequence[Tried] = (),
    ) -> Resolved:
        from cuplate.autotune.contest import hold  # only where something is measured: it takes time to load
        from cuplate.autotune.workspace import NoRoom

        start = time.monotonic()
        variants = job.chosen.variants
        asked = range(len(job.chosen.candidates)) if places is None else places
        with _progress(variants.name, len(asked)) as tell:
            try:
                held = hold(job, stage, self._reference, places=asked, seconds=seconds, tell=tell)
            except NoRoom as error:
                return _no_room(job, error)
        took = time.monotonic() - start
        tried = list(rows or held.outcome.tried)
        for place, row in zip(asked, held.outcome.tried, strict=True):
            tried[place] = row
        if held.outcome.winner is None or held.content is None:
            raise none_can_run(job, tried)
        winner = asked[held.outcome.winner]
        tuned = Tuned(
            variants.name, "measured", winner, tuple(tried), job.device, job.sizes(), key.hex(), took,
            _note(tried, held.outcome.note),
            made_of(held.content.key.ingredients, text=job.binding.template.dynamic),
        )  # fmt: skip
        self._keep(job, key, tuned)
        _say(job, tuned)
        return Resolved(job.chosen.candidates[winner], True, tuned, (held.content, held.kernel))


def _default(job: Job, note: str = "") -> Tuned:
    tried = tuple(Tried(job.free(candidate)) for candidate in job.chosen.candidates)
    try:
        sizes = () if job.chosen.solved.partial else job.sizes()
    except ExpressionError:  # it asks for what only a device says, and there is none
        sizes = ()
    return Tuned(job.chosen.variants.name, "default", job.first, tried, job.device, sizes, note=note)


# what is said ---------------------------------------------------------------------------------------------------------


def _say(job: Job, tuned: Tuned) -> None:
    """Tell listeners, warn of wrong results, and leave a line for who asked for explanations."""
    winner, number = tuned.tried[tuned.winner], len(tuned.tried)
    events.emit(
        "tune",
        job.function,
        key=tuned.key,
        seconds=tuned.seconds,
        variant=tuned.function,
        winner=str(winner),
        candidates=number,
        tuned=tuned,
    )
    if wrong := [tried for tried in tuned.tried if tried.state == "wrong"]:
        _warn(
            f"cuplate: {tuned.function}: {len(wrong)} of {number} candidates gave another result, and never win; first "
            f"{wrong[0]}: {wrong[0].reason}" + (f"; {tuned.note}" if tuned.note else "")
        )
    line = f"cuplate: {tuned.function}: {winner} won over {number} candidates in {tuned.seconds:.1f} s"
    if config.settings("explain").explain:
        print(line, file=sys.stderr)
    else:
        events.say(line, level="info")


def _note(tried: Sequence[Tried], said: str) -> str:
    left = sum(row.state == "not measured" for row in tried)
    parts = [said] if said else []
    parts += [f"{left} candidates were not measured"] if left else []
    return "; ".join(parts)


def _no_room(job: Job, error: NoRoom) -> Resolved:
    note = f"not enough memory for copies of what the call writes: {error}"
    _warn(f"cuplate: {job.chosen.variants.name} runs untuned, with its default: {note}")
    return Resolved(job.chosen.parameters, True, _default(job, note))


def none_can_run(job: Job, tried: Sequence[Tried]) -> TuneError:
    """The error for candidates of which each has something against it."""
    return TuneError(
        f"none of {len(tried)} candidates can run this call.",
        function=job.function,
        given="\n".join(f"{one}: {one.state}: {one.reason}" for one in tried),
        called_as=job.called_as,
        try_="other values in tune(), or a condition in require= that leaves out what cannot run",
        _tried=tuple(tried),
    )


def _warn(message: str) -> None:
    warnings.warn(message, TuneWarning, stacklevel=events.caller_depth())


def _progress(function: str, candidates: int) -> AbstractContextManager[Callable[[str], object]]:
    """A bar on a terminal where rich is installed; else nothing."""
    stream = sys.stderr
    if stream is None or not stream.isatty():
        return nullcontext(lambda text: None)
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError:
        return nullcontext(lambda text: None)
    return _Bar(
        Progress(
            TextColumn("{task.fields[function]}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("{task.description}"), console=Console(stderr=True), transient=True,
        ),
        function,
        2 * candidates,
    )  # fmt: skip


class _Bar:
    """Each candidate is two steps: a compile, and a measurement."""

    def __init__(self, progress: Any, function: str, steps: int) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=steps, function=function)

    def __enter__(self) -> Callable[[str], object]:
        try:
            self._progress.start()
        except Exception:  # the program draws something of its own
            return lambda text: None
        return lambda text: self._progress.update(self._task, advance=1, description=text)

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
