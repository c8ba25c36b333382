"""The contest itself, with times and results that a test says: no clock, no device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cuplate.autotune.agree import Tolerance
from cuplate.autotune.measure import Contender, Fault, Measured, measure
from cuplate.autotune.tuned import Tried
from cuplate.errors import KernelError, LaunchError


class Course:
    """Bench and workspace in one: a run leaves a number, and takes a time."""

    def __init__(self) -> None:
        self.dtypes = {"out": "float32"}
        self.left = 0.0
        self.took = 0.0
        self.fault: str | None = None
        self.log: list[str] = []

    def reset(self) -> None:
        self.log.append("reset")

    def restore(self) -> None:
        self.log.append("restore")

    def read(self) -> dict[str, Any]:
        return {"out": np.frombuffer(np.full(3, self.left, np.float32).tobytes(), np.uint8)}

    def once(self, run: Callable[[], object]) -> None:
        self.log.append("run")
        run()

    def sample(self, run: Callable[[], object]) -> float:
        self.log.append("run")
        run()
        return self.took

    def settle(self) -> str | None:
        return self.fault


def contest(
    *runners: Any,
    first: int = 0,
    judge: Any = lambda results: None,
    over: Callable[[], bool] = lambda: False,
    course: Course | None = None,
) -> tuple[Measured, Course]:
    """Runners are seconds, (seconds, result), an iterator of seconds, or an error."""
    course = course or Course()

    def contender(number: int, runner: Any) -> Contender:
        seconds, left = runner if isinstance(runner, tuple) else (runner, 1.0)

        def run() -> None:
            if isinstance(seconds, Exception):
                raise seconds
            course.left, course.took = left, next(seconds) if hasattr(seconds, "__next__") else seconds

        return Contender(Tried((("tile", number),)), lambda me: run)

    made: Any = measure(
        [contender(n, r) for n, r in enumerate(runners)],
        course,  # type: ignore[arg-type]
        course,  # type: ignore[arg-type]
        first=first,
        tolerance=Tolerance(),
        judge=judge,
        is_over=over,
    )
    return made, course


def states(outcome: Measured) -> list[str]:
    """Of every contender."""
    return [tried.state for tried in outcome.tried]


def test_the_fastest_wins_and_every_row_says_what_it_took() -> None:
    """Medians, runs and spread; what takes more than twice as long is given up after its first runs."""
    outcome, _ = contest(4e-3, 3e-3, 50e-3)
    assert outcome.winner == 1 and outcome.note == ""
    assert states(outcome) == ["measured", "measured", "slow"]
    assert [(t.median_s, t.spread) for t in outcome.tried] == [(4e-3, 0.0), (3e-3, 0.0), (50e-3, 0.0)]
    assert outcome.tried[2].samples == 2 < outcome.tried[0].samples


def test_a_median_decides_not_a_mean_or_a_lucky_run() -> None:
    """One run in three is disturbed, or lucky: neither helps nor harms."""

    def disturbed(usual: float, other: float) -> Any:
        yield usual
        while True:
            yield from (usual, usual, other)

    assert contest(2e-3, disturbed(1e-3, 1.0))[0].winner == 1
    assert contest(2e-3, disturbed(3e-3, 1e-9))[0].winner == 0


def failing(runs: int, error: Exception) -> Any:
    """A millisecond each, and after so many runs an error."""
    yield from [1e-3] * runs
    raise error


@pytest.mark.parametrize("runs", [1, 2, 10, 40])  # its result is right; then while it is timed, or among the finalists
def test_who_fails_while_it_is_timed_is_told_and_left_out(runs: int) -> None:
    """As who fails at once: no error of one candidate ends the call."""
    outcome, _ = contest(1.01e-3, failing(runs, KernelError("out of bounds")))
    assert outcome.winner == 0 and states(outcome) == ["measured", "kernel error"]
    assert outcome.tried[1].reason == "out of bounds" and outcome.tried[1].samples == 0
    assert contest(failing(min(runs, 10), LaunchError("refused")))[0].winner is None  # alone it meets no finalist


def test_a_fault_while_it_is_timed_names_the_candidate() -> None:
    """A driver says of it at the end of a run that is timed, by an error of its own."""
    course = Course()

    def faulty() -> Any:
        yield from [1e-3] * 3
        course.fault = "illegal address"
        raise RuntimeError("illegal address")

    with pytest.raises(Fault, match="illegal address") as caught:
        contest(2e-3, faulty(), course=course)
    assert str(caught.value.contender.tried) == "tile=1"


def test_a_tie_goes_to_the_default_and_so_to_the_same_one_each_time() -> None:
    """Within a hundredth, after those that are close have run again by turns."""
    outcome, course = contest(1.000e-3, 1.004e-3, 0.996e-3, first=1)
    assert outcome.winner == 1
    assert all(tried.samples > 50 for tried in outcome.tried)
    assert contest(1.000e-3, 1.03e-3, first=1)[0].winner == 0
    assert course.log.count("run") == sum(t.samples for t in outcome.tried) + 3  # one each for its result


def test_what_a_run_changes_is_put_back_before_each_run() -> None:
    """B58: the first run for its result finds the outputs poisoned, every timed one what the call would find."""
    _, course = contest(1e-3)
    assert course.log[:2] == ["reset", "run"]
    assert course.log[2:] == ["restore", "run"] * (len(course.log[2:]) // 2) and len(course.log) > 10


def test_errors_are_rows_and_the_others_go_on() -> None:
    """B60: each by its kind."""
    outcome, _ = contest(LaunchError("no room."), KernelError("a race."), 1e-3)
    assert outcome.winner == 2 and states(outcome) == ["launch error", "kernel error", "measured"]
    assert [t.reason for t in outcome.tried] == ["no room.", "a race.", ""]
    outcome, _ = contest(MemoryError("none left"))
    assert outcome.winner is None and outcome.tried[0].reason == "MemoryError: none left"


def test_a_fault_of_the_device_ends_the_contest() -> None:
    """Nothing runs after it, so its name is all there is to say."""
    course = Course()
    course.fault = "an illegal address"
    made = Contender(Tried((("tile", 7),)), lambda me: lambda: None)
    with pytest.raises(Fault, match="illegal address") as caught:
        measure(
            [made],
            course,
            course,
            first=0,
            tolerance=Tolerance(),
            judge=lambda r: None,
            is_over=lambda: False,  # type: ignore[arg-type]
        )
    assert str(caught.value.contender.tried) == "tile=7"


def test_a_wrong_result_never_wins_and_gives_nobody_up() -> None:
    """A kernel that does nothing is fast; what is right is compared with what is right alone."""
    outcome, _ = contest((1e-6, 7.0), (3e-3, 1.0), (2e-3, 1.0))
    assert outcome.winner == 2 and states(outcome) == ["wrong", "measured", "measured"]
    assert outcome.tried[0].reason == "out: element 0 is 7.0, not 1.0 (3 differ)"
    assert outcome.note == "results differ; right is what agrees with 2 of 3 candidates"


def test_the_reference_outvotes_the_majority() -> None:
    """Where it knows; else most candidates, else the default."""
    runners = ((1e-3, 7.0), (1e-3, 7.0), (2e-3, 1.0))

    def judge(results: Any) -> tuple[int, str]:
        assert [r["out"].view(np.float32)[0] for r in results] == [7.0, 1.0]
        return 1, "the reference"

    outcome, _ = contest(*runners, judge=judge)
    assert outcome.winner == 2 and states(outcome) == ["wrong", "wrong", "measured"]
    assert outcome.note == "results differ; right is what agrees with the reference"
    outcome, _ = contest((1e-3, 7.0), (1e-4, 1.0))
    assert outcome.winner == 0 and "the default" in outcome.note


def test_many_different_results_are_told_apart_from_the_right_one() -> None:
    """Only a few are kept; beyond these one is wrong all the same, unless it agrees."""
    outcome, _ = contest(*((1e-3, float(n)) for n in (1, 2, 3, 4, 5, 6, 1)))
    assert outcome.winner in (0, 6) and states(outcome).count("wrong") == 5


def test_the_end_of_the_time_leaves_the_best_so_far() -> None:
    """But never before one has been measured."""
    outcome, _ = contest(LaunchError("no."), 2e-3, 1e-3, over=lambda: True)
    assert outcome.winner == 1 and states(outcome) == ["launch error", "measured", "not measured"]
