"""What an error of a store means for the store; the one place that reads SQLite's error codes and messages."""

from __future__ import annotations

import errno
import warnings
from enum import Enum

__all__ = ["Fault", "Refused", "classify", "tell", "warn_once"]


class Fault(Enum):
    """What to do about an error."""

    ABSENT = "there is no store yet, or another process is making it: a miss"
    BUSY = "somebody else holds the lock: this operation only"
    DAMAGED = "the file is no database: look again, then set it aside"
    READ_ONLY = "no permission to write: read only from now on"
    REFUSED = "not to be trusted: leave it alone"
    FULL = "no room: write nothing for a while, reads go on"
    BROKEN = "I/O error, anything else: stay away for a while"


class Refused(Exception):
    """The directory or a file in it is not what this process may use."""


_NAMES = {5: Fault.BUSY, 6: Fault.BUSY, 15: Fault.BUSY, 8: Fault.READ_ONLY, 3: Fault.READ_ONLY, 13: Fault.FULL}
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
_DAMAGE = {11, 26}  # SQLITE_CORRUPT, SQLITE_NOTADB
_ABSENT = "no such table"
_MESSAGES = (
    ("locked", Fault.BUSY),
    ("malformed", Fault.DAMAGED),
    ("not a database", Fault.DAMAGED),
    ("no such column", Fault.DAMAGED),
    ("has no column", Fault.DAMAGED),
    ("decode to utf-8", Fault.DAMAGED),
    ("readonly", Fault.READ_ONLY),
    ("is full", Fault.FULL),
)


def classify(error: BaseException) -> Fault:
    """What an error means.

    Parameters
    ----------
    error : Exception
        From SQLite, diskcache or the file system.

    Returns
    -------
    Fault
        BROKEN for everything unknown.
    """
    if isinstance(error, Refused):
        return Fault.REFUSED
    if isinstance(error, TimeoutError) or type(error).__name__ == "Timeout":  # diskcache.Timeout, not imported here
        return Fault.BUSY
    if isinstance(error, OSError):
        return _of_errno(error)
    if isinstance(error, UnicodeDecodeError):
        return Fault.DAMAGED
    return _of_sqlite(error)


def _of_errno(error: OSError) -> Fault:
    if isinstance(error, FileNotFoundError):
        return Fault.ABSENT
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return Fault.READ_ONLY
    return Fault.FULL if error.errno in _NO_ROOM else Fault.BROKEN


def _of_sqlite(error: BaseException) -> Fault:
    text = str(error).lower()
    if _ABSENT in text:
        return Fault.ABSENT
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _DAMAGE:
        return Fault.DAMAGED
    if code in _NAMES:
        return _NAMES[code]
    return next((fault for piece, fault in _MESSAGES if piece in text), Fault.BROKEN)


_said: set[tuple[str, str]] = set()


def warn_once(directory: str, cause: str, message: str) -> None:
    """One CacheWarning and one log line per directory and cause in this process.

    Parameters
    ----------
    directory : str
        Which store.
    cause : str
        What kind of trouble.
    message : str
        What to say. A warning filter of "error" does not make a call fail: the line is logged all the same.
    """
    if (directory, cause) in _said:
        return
    _said.add((directory, cause))
    from cuplate import events
    from cuplate.errors import CacheWarning

    try:
        events.say(message)
        warnings.warn(CacheWarning(message), stacklevel=events.caller_depth())
    except Exception:  # a filter "error", or a handler of the user's that fails: nothing of a cache leaves a call
        return


def tell(on_error: str, directory: str, cause: str, message: str) -> None:
    """Say what is wrong with a store, in the way the policy asks for.

    Parameters
    ----------
    on_error : str
        ``"warn"`` once a cause, ``"ignore"``, or ``"raise"`` at every time.
    directory, cause, message : str
        As for :func:`warn_once`.

    Raises
    ------
    CacheError
        With ``"raise"``.
    """
    if on_error == "raise":
        from cuplate.errors import CacheError

        raise CacheError(message.removeprefix("cuplate: "), directory=directory, cause=cause)
    if on_error == "warn":
        warn_once(directory, cause, message)
