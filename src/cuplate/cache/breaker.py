"""When a server is left alone: after one failure for 30 s, then for twice as long each time, up to ten minutes."""

from __future__ import annotations

__all__ = ["FIRST_S", "MOST_S", "Breaker"]

FIRST_S, MOST_S = 30.0, 600.0


class Breaker:
    """Closed, open, or half open: when a rest is over, one asks, and the others are refused until that has ended.

    Whoever may ask gets the number of a turn, and says how it ended. Turns from before the last change count no more,
    so that of 64 threads that wait for a frozen server only the first opens it. A prober that never comes back is
    followed by another when its rest would be over. The caller has a lock, and a clock that is never set back.
    """

    __slots__ = ("_open", "_rest_s", "_turn", "_until")

    def __init__(self) -> None:
        self._open = False
        self._rest_s, self._until = FIRST_S, 0.0
        self._turn = 0

    def ask(self, now: float) -> int | None:
        """A turn; None: not now.

        Parameters
        ----------
        now : float
            Seconds.
        """
        if not self._open:
            return self._turn
        if now < self._until:
            return None
        self._until = now + self._rest_s
        self._turn += 1
        return self._turn

    def well(self, turn: int) -> None:
        """It worked."""
        if turn == self._turn and self._open:
            self._open, self._rest_s = False, FIRST_S

    def fail(self, turn: int, now: float) -> float | None:
        """It did not work: the seconds of rest that begin, or None if others have seen it already."""
        if turn != self._turn:
            return None
        if self._open:
            self._rest_s = min(MOST_S, 2 * self._rest_s)
        self._open = True
        self._turn += 1
        self._until = now + self._rest_s
        return self._rest_s

    def left_s(self, now: float) -> float:
        """Seconds of rest that are left; 0 where it may be asked."""
        return max(0.0, self._until - now) if self._open else 0.0
