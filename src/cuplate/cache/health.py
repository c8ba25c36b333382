"""How a store is doing in this process: troubles counted, said once a cause, and answered with a rest or an end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from cuplate.cache.faults import Fault, classify, tell

__all__ = ["Health"]

_FAILURES_UNTIL_OFF = 5
_SETTING = "CUPLATE_CACHE_DIR or CachePolicy(directory=...)"
_full: set[str] = set()
_COUNTED = ("bad", "busy", "errors", "quarantines", "evictions", "refused_large", "refused_full")


class Health:
    """Of one store.

    Parameters
    ----------
    directory : str
        For messages.
    cooldown_s : float
        How long to stay away after a full disk or an I/O error, seconds.
    on_error : str
        As in `cuplate.CachePolicy`.
    """

    def __init__(self, directory: str, *, cooldown_s: float, on_error: str = "warn") -> None:
        self.directory = directory
        self._cooldown_s, self.on_error = cooldown_s, on_error
        self._off: str | None = None
        self._read_only = False
        self._rest_until = self._write_rest_until = 0.0
        self._failures = 0
        self._lock = threading.Lock()
        self._counts: dict[str, int] = dict.fromkeys(_COUNTED, 0)

    def may_read(self, now: float | None = None) -> bool:
        """Neither off nor resting; `now` is ``time.monotonic()`` where the caller knows it."""
        return self._off is None and (time.monotonic() if now is None else now) >= self._rest_until

    def may_write(self) -> bool:
        """Nor read only, nor resting from writes."""
        return not self._read_only and self.may_read() and time.monotonic() >= self._write_rest_until

    def rest_from_writes(self, cause: str, what: str) -> None:
        """Write nothing for a while."""
        self._write_rest_until = time.monotonic() + self._cooldown_s
        self.warn(cause, f"{what}; nothing is stored for {self._cooldown_s:g} s")

    def state(self) -> str:
        """``"on"``, ``"resting"``, ``"read only"``, or ``"off: "`` and the reason."""
        if self._off is not None:
            return f"off: {self._off}"
        if time.monotonic() < max(self._rest_until, self._write_rest_until):
            return "resting"
        return "read only" if self._read_only else "on"

    def counters(self) -> Mapping[str, int]:
        """Troubles in this process, all threads."""
        with self._lock:
            return dict(self._counts)

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a counter."""
        with self._lock:
            self._counts[name] += amount

    def well(self) -> None:
        """An operation succeeded: errors count from zero again."""
        self._failures = 0

    def bad(self, reason: str = "") -> int:
        """An entry is damaged, or sealed with another secret; the number of errors to count."""
        self.count("bad")
        because = f" ({reason})" if reason else ""
        self._say(
            "bad entry",
            f"cuplate: an entry of the disk cache {self.directory} is damaged or sealed with another secret{because}; "
            f"it is compiled again and overwritten (setting: {_SETTING}).",
        )
        return 1

    def trouble(
        self,
        error: Exception,
        *,
        writing: bool = False,
        fault: Fault | None = None,
        answer: Callable[[], object] | None = None,
    ) -> int:
        """Do what an error asks for; the number of errors to count.

        Parameters
        ----------
        error : Exception
        writing : bool
            What was being done.
        fault : Fault, optional
            What the error means for this kind of store; default what it means for all.
        answer : callable, optional
            What this kind of store does about it, in place of what all do.

        Raises
        ------
        CacheError
            Only where the policy says ``on_error="raise"``.
        """
        fault = fault or classify(error)
        if fault is Fault.ABSENT and not writing:
            return 0
        from cuplate.errors import CacheError

        try:
            self._handle(fault, error, writing, answer)
        except CacheError as told:  # on_error="raise"
            raise told from error
        if self.on_error == "raise":
            raise CacheError(f"the disk cache failed: {error}", directory=self.directory) from error
        return 1

    def _handle(self, fault: Fault, error: Exception, writing: bool, answer: Callable[[], object] | None) -> None:
        self.count("busy" if fault is Fault.BUSY else "errors")
        if answer is not None:
            answer()
        elif fault is Fault.READ_ONLY and writing:
            self._read_only = True
            self.warn("read only", f"cannot be written ({error})")
        elif fault is Fault.REFUSED:
            self.turn_off(str(error))
        elif fault is Fault.FULL and writing:
            self.rest_from_writes("no room", f"has no room ({error})")
        elif fault is not Fault.BUSY:
            self.rest(error)

    def refuse_large(self, size: int, tag: str, limit_bytes: int) -> None:
        """An entry is above an eighth of the limit, which is no trouble."""
        self.count("refused_large")
        tell(
            "warn" if self.on_error == "raise" else self.on_error,
            self.directory,
            "large entry",
            f"cuplate: an entry of {size} bytes ({tag}) is above an eighth of the limit of the disk cache "
            f"{self.directory} ({limit_bytes} bytes) and is not stored; raise CUPLATE_DISK_BYTES or "
            "CachePolicy(disk_bytes=...).",
        )

    def refuse_full(self, size: int, tag: str, limit_bytes: int) -> None:
        """Nothing may be evicted for an entry."""
        self.count("refused_full")
        self._say_full(
            f"({limit_bytes} bytes) and its eviction is none: an entry of {size} bytes ({tag}) is not stored, more "
            "will follow (settings: CUPLATE_DISK_BYTES, CUPLATE_EVICTION)."
        )

    def evicted(self, number: int, limit_bytes: int) -> None:
        """So many entries had to go."""
        if number:
            self.count("evictions", number)
            self._say_full(
                f"({limit_bytes} bytes); {number} entries evicted, more will follow (setting: CUPLATE_DISK_BYTES)."
            )

    def _say_full(self, what: str) -> None:
        if self.directory not in _full:  # counted always, said once
            _full.add(self.directory)
            from cuplate import events

            events.say(f"cuplate: the disk cache {self.directory} is full {what}", level="info")

    def warn(self, cause: str, what: str) -> None:
        """One warning per cause."""
        self._say(
            cause,
            f"cuplate: the disk cache {self.directory} {what}. Kernels are compiled and kept in memory. "
            f"Setting: {_SETTING}; CUPLATE_CACHE_DIR=off for no disk cache.",
        )

    def forget_lock(self) -> None:
        """In a forked child: another thread may have held it."""
        self._lock = threading.Lock()

    def rest(self, error: Exception) -> None:
        """Stay away for a while; after some times in a row, for good."""
        self._failures += 1
        self._rest_until = time.monotonic() + self._cooldown_s
        if self._failures >= _FAILURES_UNTIL_OFF:
            self.turn_off(f"{self._failures} errors in a row, the last: {type(error).__name__}: {error}")
        else:
            name = type(error).__name__
            self.warn("error", f"failed ({name}: {error}) and is left alone for {self._cooldown_s:g} s")

    def turn_off(self, reason: str) -> None:
        """Use the store no more in this process."""
        self._off = reason
        self.warn("off", f"is off for this process: {reason}")

    def _say(self, cause: str, message: str) -> None:
        tell(self.on_error, self.directory, cause, message)
