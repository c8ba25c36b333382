"""The simplest call that fails: hypothesis draws calls, and reduces the first that is wrong. Its only importer."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cuplate.draw import EDGES, LARGEST, Drawer, Example, nothing_allowed
from cuplate.errors import BudgetError, KernelError

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

__all__ = ["search"]

__tracebackhide__ = True  # pytest shows the line that asked, and the message

# An error of these kinds belongs to the drawn call, so that a simpler call may have it too. Any other (a compiler that
# is not there, a device in a broken state) would be the same for each call, and is not looked into.
_REDUCIBLE = (AssertionError, KernelError)
_REDUCE_S = 30.0  # longest search for a simpler call, seconds
_ATTEMPTS = 10  # at choices that axes and require= allow, in one draw
# What a size is drawn as: small half of the time, at an edge, or any. Whatever fits "any" is reduced as that.
_SIZES = ("any", "any", "small", "small", "small", "edge", "edge", "one")
_SMALL = 40


def search(drawer: Drawer, run: Callable[[Example], None], *, examples: int, seed: int) -> None:
    """Run drawn calls; when one fails, raise the error of the simplest call that fails.

    Parameters
    ----------
    drawer : Drawer
    run : callable
        Raises if a call is wrong.
    examples : int
        How many calls, as long as none fails.
    seed : int

    Raises
    ------
    ArgumentError
        No call was found that axes and ``require=`` allow.
    Exception
        Whatever `run` raises.
    """
    import hypothesis
    from hypothesis import Phase, errors

    # No database: its entries would be those of this function, whatever kernel it was called for.
    settings = hypothesis.settings(
        max_examples=examples, deadline=None, database=None, phases=(Phase.generate, Phase.shrink)
    )
    failures = _Failures(run)
    try:
        simplest = hypothesis.find(_examples(drawer), failures.fails, settings=settings, random=random.Random(seed))
    except errors.NoSuchExample:
        return
    except errors.Unsatisfiable:
        raise nothing_allowed(drawer.binding) from None
    raise failures.error(simplest)


class _Failures:
    """The calls that failed; none of them is run again, so that a race that comes and goes still is one answer."""

    def __init__(self, run: Callable[[Example], None]) -> None:
        self._run = run
        self._errors: dict[int | str, Exception] = {}
        self._end_s: float | None = None

    def fails(self, example: Example) -> bool:
        """Whether a call is wrong; nothing more is run once the search is over."""
        if example.name in self._errors:
            return True
        if self._end_s is not None and time.monotonic() > self._end_s:
            return False
        try:
            self._run(example)
        except Exception as error:
            self._errors[example.name] = error
            if not isinstance(error, _REDUCIBLE) or isinstance(error, BudgetError):
                self._end_s = 0.0
            elif self._end_s is None:
                self._end_s = time.monotonic() + _REDUCE_S
            return True
        return False

    def error(self, example: Example) -> Exception:
        """The error of a call that failed."""
        error = self._errors[example.name]
        if len(self._errors) > 1:
            error.add_note(f"the simplest of {len(self._errors)} calls that failed")
        return error


def _examples(drawer: Drawer) -> SearchStrategy[Example]:
    from hypothesis import reject, strategies

    @strategies.composite
    def attempt(draw: DrawFn) -> Example | None:
        return drawer.attempt(_Drawn(draw))

    @strategies.composite
    def examples(draw: DrawFn) -> Example:
        for _ in range(_ATTEMPTS):
            example = draw(attempt())
            if example is not None:
                return example
        reject()

    return examples()


class _Drawn:
    """Choices of hypothesis, written down so that they can be replayed."""

    extreme: int | None = None

    def __init__(self, draw: Any) -> None:
        self._draw = draw
        self._made: list[int] = []

    def index(self, count: int) -> int:
        return self._note(self._integer(0, count - 1))

    def size(self, least: int) -> int:
        from hypothesis import strategies

        kind = self._draw(strategies.sampled_from(_SIZES))
        size = self._integer(least, max(least, LARGEST))
        if kind == "small":
            size = least + (size - least) % _SMALL
        elif kind == "edge":
            size = max(least, min(EDGES, key=lambda edge: abs(edge - size)))
        elif kind == "one":
            size = max(least, 1)
        return self._note(size)

    def data(self) -> int:
        return self._note(self._integer(0, (1 << 32) - 1))

    def name(self) -> str:
        return ".".join(map(str, self._made))

    def _integer(self, low: int, high: int) -> int:
        from hypothesis import strategies

        return int(self._draw(strategies.integers(low, high)))

    def _note(self, value: int) -> int:
        self._made.append(value)
        return value
