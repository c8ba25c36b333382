"""Work that is waited for no longer than a bound, whatever it does: in a thread, which is left behind when it is late.

For what knows no bound of its own: the resolution of a name, and code of the user's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["NoThread", "within"]

T = TypeVar("T")


class NoThread(RuntimeError):
    """The interpreter ends, or the process has all the threads that it may have."""


class _Errand(Generic[T]):
    def __init__(self, work: Callable[[], T], discard: Callable[[T], object] | None) -> None:
        self._work, self._discard = work, discard
        self._lock = threading.Lock()
        self._finished = self._left = False
        self.done = threading.Event()
        self.values: list[T] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.values.append(self._work())
        except BaseException as error:
            self.error = error
        with self._lock:
            self._finished, left = True, self._left
        if left:
            self._throw_away()
        self.done.set()

    def leave(self) -> bool:
        """Wait no more; whether it had not finished."""
        with self._lock:
            self._left = True
            return not self._finished

    def _throw_away(self) -> None:
        while self.values and self._discard is not None:
            self._discard(self.values.pop())

    def abandon(self) -> None:
        """Nobody wants it any more, finished or not."""
        if not self.leave():
            self._throw_away()


def within(seconds: float, work: Callable[[], T], *, discard: Callable[[T], object] | None = None) -> T:
    """What `work` returns.

    Parameters
    ----------
    seconds : float
        Longest wait.
    work : callable
        Runs in a thread of its own, which no end of the interpreter waits for.
    discard : callable, optional
        Gets what comes too late; does not raise.

    Raises
    ------
    TimeoutError
        It took longer.
    NoThread
        It was not begun.
    RuntimeError
        `work` ended its thread.
    Exception
        Whatever `work` raised.
    """
    errand = _Errand(work, discard)
    try:
        threading.Thread(target=errand.run, name="cuplate-shared", daemon=True).start()
    except RuntimeError as error:
        raise NoThread(str(error)) from None
    try:
        late = not errand.done.wait(max(0.0, seconds)) and errand.leave()
        if not late:
            errand.done.wait()
    except BaseException:  # Ctrl-C
        errand.abandon()
        raise
    if late:
        raise TimeoutError(f"no answer within {seconds:.3g} s")
    failure, errand.error = errand.error, None
    if failure is None:
        return errand.values.pop()
    try:
        if isinstance(failure, Exception):
            raise failure
        raise RuntimeError(f"{type(failure).__name__} in a thread")
    finally:
        del failure  # else it and this frame hold each other
