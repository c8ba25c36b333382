"""Who may drop loaded kernels: the gate that ``exclusive()`` shuts.

While one thread holds the gate, every other thread's ``clear()`` waits and no loaded kernel is evicted; the surplus is
trimmed when the gate opens.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cuplate.cache import fork

__all__ = ["Gate"]


class Gate:
    """One lock for the loaded kernels, and one holder who keeps them loaded.

    Attributes
    ----------
    mutex : threading.RLock
        Guards the tiers that stand behind this gate; held for moments only, never while user code runs.
    """

    def __init__(self) -> None:
        self.mutex = threading.RLock()
        self._opened = threading.Condition(self.mutex)
        self._holder: int | None = None
        self._depth = 0
        self._on_open: list[Callable[[], object]] = []
        fork.register(self)

    @property
    def shut(self) -> bool:
        """Whether any thread holds the gate; read it with the mutex held."""
        return self._holder is not None

    def on_open(self, callback: Callable[[], object]) -> None:
        """Call ``callback()`` each time the gate opens, in the thread that opens it.

        Parameters
        ----------
        callback : callable
            Trims what has piled up.
        """
        self._on_open.append(callback)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the gate; re-entrant in its thread, released however the block ends."""
        me = threading.get_ident()
        with self.mutex:
            self._opened.wait_for(lambda: self._holder in (None, me))
            self._holder = me
            self._depth += 1
        try:
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        with self.mutex:
            self._depth -= 1
            if self._depth:
                return
            self._holder = None
            self._opened.notify_all()
        for callback in self._on_open:
            callback()

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Wait until no other thread holds the gate, then hold the mutex: how a ``clear()`` comes in."""
        me = threading.get_ident()
        with self.mutex:
            self._opened.wait_for(lambda: self._holder in (None, me))
            yield

    def before_fork(self) -> None:
        """Take the mutex, so that no child inherits it locked."""
        self.mutex.acquire()

    def after_fork(self, *, child: bool) -> None:
        """Release the mutex; in the child, a holder that is not the forking thread is gone.

        Parameters
        ----------
        child : bool
            Whether this is the new process.
        """
        if child and self._holder != threading.get_ident():
            self._holder, self._depth = None, 0
        self.mutex.release()
