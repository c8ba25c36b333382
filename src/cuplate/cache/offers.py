"""What is to be stored elsewhere, by a thread in the background: a bounded queue, flushed with a bound at the end.

A compile never waits for a server. What finds the queue full is dropped, and so is what the process has no time for at
its end; the caller counts it.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from cuplate.cache import fork

__all__ = ["FLUSH_S", "Offers"]

FLUSH_S = 2.0
"""What the end of a process waits for all queues together, seconds."""

_MOST, _MOST_BYTES = 256, 64 << 20


class Offers:
    """Work for one server, done in order, one at a time. The thread lives as long as there is some.

    Parameters
    ----------
    dropped : callable
        Called with the number of those that will not be done.
    """

    def __init__(self, dropped: Callable[[int], object]) -> None:
        self._dropped = dropped
        self._changed = threading.Condition(threading.RLock())
        self._queue: deque[tuple[int, Callable[[], object]]] = deque()
        self._bytes = 0
        self._writer: threading.Thread | None = None
        self._forking = False
        fork.register(self)
        _all.add(self)
        fork.at_exit(_flush_all)

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, size: int, work: Callable[[], object]) -> bool:
        """Have something done soon; False when it was dropped.

        Parameters
        ----------
        size : int
            What it holds in memory, bytes.
        work : callable
            Does not raise, and does not wait without bound.
        """
        with self._changed:
            full = len(self._queue) >= _MOST or self._bytes + size > _MOST_BYTES
            if not full:
                self._queue.append((size, work))
                self._bytes += size
                if self._writer is None and not self._start():
                    self._queue.pop()
                    self._bytes -= size
                    full = True
        if full:
            self._dropped(1)
        return not full

    def _start(self) -> bool:
        writer = threading.Thread(target=self._write, name="cuplate-offers", daemon=True)
        try:
            writer.start()
        except RuntimeError:  # at the end of the interpreter, or where a process has all the threads it may have
            return False
        self._writer = writer
        return True

    def _write(self) -> None:
        while True:
            with self._changed:
                if not self._queue:
                    self._writer = None
                    self._changed.notify_all()
                    return
                size, work = self._queue.popleft()
                self._bytes -= size
            with suppress(BaseException):  # or else what follows would wait for a thread that is gone
                work()

    def flush(self, wait_s: float = FLUSH_S) -> bool:
        """Wait until all is done.

        Parameters
        ----------
        wait_s : float
            Longest wait, seconds.

        Returns
        -------
        bool
            False when something is left.
        """
        until = time.monotonic() + wait_s
        with self._changed:
            return self._changed.wait_for(lambda: self._writer is None, max(0.0, until - time.monotonic()))

    def end(self, until: float) -> None:
        """At the end of the process: flush until then, and drop what is left."""
        if self.flush(until - time.monotonic()):
            return
        with self._changed:
            left = len(self._queue)
            self._queue.clear()
            self._bytes = 0
        if left:
            self._dropped(left)

    # ---- fork ----------------------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Let the queue be whole."""
        self._forking = self._changed.acquire(timeout=fork.WAIT_S)

    def after_fork(self, *, child: bool) -> None:
        """Go on; what is in the queue is the parent's, and so is the thread.

        Parameters
        ----------
        child : bool
            Whether this is the new process.
        """
        taken, self._forking = self._forking, False
        if child:
            self._changed = threading.Condition(threading.RLock())
            self._queue.clear()
            self._bytes, self._writer = 0, None
        elif taken:
            self._changed.release()


_all: weakref.WeakSet[Offers] = weakref.WeakSet()


def _flush_all() -> None:
    until = time.monotonic() + FLUSH_S
    with suppress(RuntimeError):  # a thread that still runs may add one
        for offers in tuple(_all):
            offers.end(until)
