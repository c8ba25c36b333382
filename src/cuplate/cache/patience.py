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
    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self.done = threading.Event()
        self.values: list[T] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.values.append(self._work())
        except BaseException as error:
            self.error = error
        self.done.set()


def within(seconds: float, work: Callable[[], T]) -> T:
    """What `work` returns.

    Parameters
    ----------
    seconds : float
        Longest wait.
    work : callable
        Runs in a thread of its own, which no end of the interpreter waits for. What it returns too late is dropped.

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
    errand = _Errand(work)
    try:
        threading.Thread(target=errand.run, name="cuplate-shared", daemon=True).start()
    except RuntimeError as error:
        raise NoThread(str(error)) from None
    if not errand.done.wait(max(0.0, seconds)):
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
