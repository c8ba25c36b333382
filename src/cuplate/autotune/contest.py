"""A contest of candidates for one call: compiled side by side, then run one after another on copies."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from cuplate.autotune.agree import Tolerance
from cuplate.autotune.job import Job, Parameters, render
from cuplate.autotune.judge import Reference
from cuplate.autotune.measure import Contender, Fault, Measured, measure
from cuplate.autotune.stage import Stage
from cuplate.autotune.tuned import Tried
from cuplate.autotune.turn import turn
from cuplate.autotune.workspace import Workspace
from cuplate.call import Call
from cuplate.content import Content
from cuplate.cubin import Cubin
from cuplate.errors import ArgumentError, CuplateError, LaunchError, ParameterError, TuneError
from cuplate.plan import Plan

__all__ = ["Contest", "hold"]

_COMPILING_SHARE = 0.7  # of the time, at most: what has compiled until then is measured
_THREADS = 8


@dataclass(frozen=True, slots=True)
class Contest:
    """How one ended.

    Attributes
    ----------
    outcome : Measured
    content : Content or None
        Of the winner.
    kernel : object
        The winner, loaded.
    """

    outcome: Measured
    content: Content | None = None
    kernel: Any = None


def hold(
    job: Job,
    stage: Stage,
    reference: Callable[..., Any],
    *,
    places: Sequence[int],
    seconds: float,
    tell: Callable[[str], object] = lambda text: None,
) -> Contest:
    """Let some of the candidates run against each other.

    Parameters
    ----------
    job, stage
        Of the call.
    reference : callable
        The decorated function, asked where results differ.
    places : sequence of int
        Which candidates.
    seconds : float
        After which no further one begins, once one has been measured.
    tell : callable
        Told of each step: two a candidate.

    Returns
    -------
    Contest
        Places of its outcome are those in `places`.

    Raises
    ------
    NoRoom
        There is no memory for copies.
    TuneError
        A candidate has left the device in a state in which nothing can run.
    """
    until = time.monotonic() + seconds
    made = [_Made(job, stage, job.chosen.candidates[place]) for place in places]
    first = list(places).index(job.first) if job.first in places else 0
    _compile(made, first, until - seconds * (1 - _COMPILING_SHARE), tell)
    bench = stage.bench()
    outputs = {n: (s, job.chosen.solved.dtypes[n]) for n, s in job.chosen.solved.output_shapes.items()}
    workspace = Workspace(bench, job.call, job.binding.written, outputs)
    for one in made:
        one.call = workspace.call
    largest = max((n for a in job.call.arrays.values() if a is not None for n in a.shape or ()), default=1)
    tolerance = Tolerance(job.space.rtol, job.space.atol, largest)
    try:
        with turn(bench.device_id, until):
            outcome = measure(
                [one.contender for one in made],
                bench,
                workspace,
                first=first,
                tolerance=tolerance,
                judge=Reference(reference, job.call, job.binding, job.chosen.solved, bench, workspace, tolerance),
                is_over=lambda: time.monotonic() > until,
                tell=lambda contender: tell(f"measure {contender.tried}"),
            )
    except Fault as fault:
        raise TuneError(
            f"a candidate has left the GPU in a state in which nothing can run: {fault.found}",
            function=job.function,
            given=str(fault.contender.tried),
            called_as=job.called_as,
            try_="NumPy arrays: the CPU backend checks every access of such a kernel\n"
            "CUPLATE_TUNE=off, which runs the default",
        ) from None
    if outcome.winner is None:
        return Contest(outcome)
    return Contest(outcome, made[outcome.winner].content, made[outcome.winner].contender.kernel)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A kernel where a plan looks for an entry of the memory tier; nobody is told of its uses."""

    value: Any


class _Made:
    """One candidate, from its parameters to what launches it."""

    def __init__(self, job: Job, stage: Stage, candidate: Parameters) -> None:
        self.job, self.stage, self.candidate = job, stage, candidate
        self.contender = Contender(Tried(job.free(candidate), reason="out of time before it was compiled"), self._start)
        self.plan: Plan | None = None
        self.content: Content | None = None
        self.cubin: Cubin | None = None
        self.call: Call | None = None

    def compile(self) -> None:
        """Render and compile; in any thread."""
        start = time.perf_counter()
        state, reason, stored = "not measured", "", False
        try:
            self.plan, self.content = render(self.job, self.candidate, trial=True)
            obtained = self.job.chosen.variants.obtain(self.content)
            self.cubin, stored = obtained.cubin, obtained.origin == "disk"
        except CuplateError as error:
            state = (
                "launch error" if isinstance(error, LaunchError | ParameterError | ArgumentError) else "compile error"
            )
            reason = error.summary
        took = 0.0 if stored else time.perf_counter() - start
        self.contender.tried = replace(self.contender.tried, state=state, compile_s=took, reason=reason)

    def _start(self, contender: Contender) -> Callable[[], object]:
        assert self.plan is not None and self.content is not None and self.cubin is not None and self.call is not None
        contender.kernel = self.stage.load(self.cubin)
        ready = self.stage.finish(self.plan, self.content, _Loaded(contender.kernel))
        return self.stage.launcher(self.call, ready)


def _compile(made: Sequence[_Made], first: int, until: float, tell: Callable[[str], object]) -> None:
    """Compile side by side, the default first; what has not begun in time is left out."""
    order = sorted(range(len(made)), key=lambda place: place != first)
    workers = min(len(made), _THREADS, os.cpu_count() or 1)
    pool = ThreadPoolExecutor(workers, thread_name_prefix="cuplate-tune")
    try:
        futures = [pool.submit(made[place].compile) for place in order]
        for number, future in enumerate(futures):
            future.result()
            tell(f"compile {made[order[number]].contender.tried}")
            if time.monotonic() > until:
                break
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
