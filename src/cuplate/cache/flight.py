"""One compile per key on a node: the process that misses first holds the key's lock, the others wait for its entry.

The lock is an ``flock`` on a file of the key's own, so the system frees it with its holder, and a thread of the holder
touches the file while it compiles. Whoever waits looks in the store again and again, and so needs no message:

* the entry appears: it is the answer;
* the file is gone, no entry: the holder ended and could store nothing; everybody compiles, side by side;
* the lock comes free, the file is still there: the holder was killed; the one that gets the lock compiles;
* the file is no longer touched for ``max(2 s, 3 x the longest compile seen)``: the holder is frozen; the waiters move
  on to the key's next lock, so that one of them compiles;
* the cap is reached: compile.

``flock`` and not a lock of SQLite or of ``fcntl``'s records: those are lost when any descriptor of the file is closed.
"""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Any, TypeVar

from cuplate import events
from cuplate.cache import fork
from cuplate.cache.directory import check_trust, make_private

fcntl: Any
try:
    import fcntl

    _LOCKS = True
except ImportError:  # Windows
    fcntl, _LOCKS = None, False

__all__ = ["NodeFlights"]

T = TypeVar("T")

_LEAST_PATIENCE_S = 2.0
_PATIENCE_COMPILES = 3.0
_BEAT_S = 0.25
_FIRST_POLL_S, _LONGEST_POLL_S, _POLL_SHARE = 0.001, 0.02, 0.05
_SAY_AFTER_S = 1.0
_SLOTS = 4
_LOOKS_AT_THE_END, _LOOK_PAUSE_S = 3, 0.01
_KEPT_S = 86400.0
_LOCK_NAME = re.compile(r"[0-9a-f]+\.\d")
_SWEPT_FILES = 256
_UNSUPPORTED = {errno.EROFS, errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}
_FAILURES_UNTIL_OFF = 3

_longest_s = 0.0


class _Turn(Enum):
    """How a look at a lock, or the whole wait for it, ended."""

    MINE = "this process holds it"
    ENDED = "its holder has ended"
    FROZEN = "its holder no longer touches its file"
    ALONE = "it cannot be had: compile without it"


class _Held:
    """A lock that this process holds or waits for, and the thread that touches its file."""

    __slots__ = ("beating", "descriptor", "locked", "owner", "path", "stop")

    def __init__(self, descriptor: int, path: str) -> None:
        self.descriptor, self.path = descriptor, path
        self.owner, self.locked = threading.get_ident(), False
        self.stop = threading.Event()
        self.beating: threading.Thread | None = None

    def beat(self) -> None:
        """Touch the file until told to stop."""
        thread = threading.Thread(target=self._touch, args=(self.descriptor,), name="cuplate-flight", daemon=True)
        thread.start()  # fails at the end of the interpreter, or where a process has all the threads it may have
        self.beating = thread

    def _touch(self, descriptor: int) -> None:
        while not self.stop.wait(_BEAT_S):
            try:
                os.utime(descriptor)
            except OSError:
                return

    def still(self) -> None:
        """Touch it no more; before it is closed, because its number may be another file's the moment after."""
        self.stop.set()
        if self.beating is not None:
            self.beating.join()

    def close(self, *, ended: bool = True) -> None:
        """Free the lock.

        Parameters
        ----------
        ended : bool
            If the lock is held, remove the file first, which tells the waiters that all is done.
        """
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor < 0:
            return
        try:
            with suppress(OSError):
                if ended and self.locked and _names(self.path, descriptor):
                    os.unlink(self.path)
        finally:
            with suppress(OSError):
                os.close(descriptor)


class NodeFlights:
    """Work that is done once for all processes of this node that want it at the same time, by key.

    It can only help: where lock files cannot be made or locked, every process does its own work.

    Parameters
    ----------
    directory : str
        Of the lock files; created, for this user only, at the first use. On a local file system.
    cap_s : float
        Longest wait for others, seconds, whatever they do.
    keyed : bool
        True where others may write the directory, see :func:`cuplate.cache.directory.check_trust`.
    useful : callable, optional
        Whether what this process makes can be stored; if not, nobody is made to wait for it.
    """

    def __init__(
        self, directory: str, *, cap_s: float = 60.0, keyed: bool = False, useful: Callable[[], bool] | None = None
    ) -> None:
        self.directory = directory
        self.cap_s = cap_s
        self._keyed, self._useful = keyed, useful
        self._trusted = False
        self._off = not _LOCKS
        self._failures = 0
        self._swept = False
        self._lock = threading.Lock()  # from the opening of a file to its entry in _held: a fork must not come between
        self._open: set[_Held] = set()
        self._counts: dict[str, int] = dict.fromkeys(("led", "joined", "overtaken", "alone", "errors"), 0)
        fork.register(self)

    def __repr__(self) -> str:
        return f"NodeFlights({self.directory!r}, cap_s={self.cap_s:g}, {'off' if self._off else 'on'})"

    def counters(self) -> dict[str, int]:
        """In this process: led, joined (found while waiting), overtaken (a frozen holder), alone (no lock), errors."""
        return dict(self._counts)

    def run(self, key: bytes, look: Callable[[], T | None], work: Callable[[], T]) -> T:
        """What ``look`` finds, or else the value of ``work``.

        Parameters
        ----------
        key : bytes
            What the work is for.
        look : callable
            Looks in the store; called with the lock held, and again and again while another process holds it.
        work : callable
            Called at most once; it stores its value before it returns.

        Returns
        -------
        object
            Never waits longer than the cap.

        Raises
        ------
        Exception
            What ``look`` or ``work`` raised, and nothing of its own.
        """
        global _longest_s
        mine: list[_Held] = []  # wherever an interrupt hits, what was opened is closed again
        try:
            found = self._board(key, look, mine)
            if found is not None:
                return found
            start = time.monotonic()
            value = work()
            _longest_s = max(_longest_s, time.monotonic() - start)
            return value
        finally:
            for held in mine:
                self._let_go(held)

    def patience_s(self) -> float:
        """How long a holder may be still before it counts as frozen, seconds."""
        return min(self.cap_s, max(_LEAST_PATIENCE_S, _PATIENCE_COMPILES * _longest_s))

    # ---- waiting -------------------------------------------------------------------------------------------------

    def _board(self, key: bytes, look: Callable[[], T | None], mine: list[_Held]) -> T | None:
        """The entry; None when the work is to be done, with the lock or without one."""
        if self._off or (self._useful is not None and not self._useful()):
            return look()
        until = time.monotonic() + self.cap_s
        got: _Turn | T = _Turn.ALONE
        for slot in range(_SLOTS):
            path = os.path.join(self.directory, f"{key.hex()[:128]}.{slot}")
            held = None if self._is_mine(path) else self._try_to_open(path, mine)
            got = _Turn.ALONE if held is None else self._wait(held, key, look, until)
            if got is not _Turn.FROZEN:
                break
            self._counts["overtaken"] += 1
        found = look() if isinstance(got, _Turn) else got
        self._counts["joined" if found is not None else "led" if got is _Turn.MINE else "alone"] += 1
        return found

    def _is_mine(self, path: str) -> bool:
        """Whether this thread is at that work already: it must not wait for itself."""
        me = threading.get_ident()
        with self._lock:
            return any(held.path == path and held.locked and held.owner == me for held in self._open)

    def _wait(self, held: _Held, key: bytes, look: Callable[[], T | None], until: float) -> _Turn | T:
        start = beat_at = time.monotonic()
        beat: object = None
        said = False
        while True:
            state = self._try_to_lock(held)
            if state is _Turn.MINE or state is _Turn.ALONE:
                return state
            if state is _Turn.ENDED:
                return self._look_after_the_end(look)
            if (found := look()) is not None:
                return found
            now = time.monotonic()
            if state != beat:
                beat, beat_at = state, now
            if now >= until:
                return _Turn.ALONE
            if now - beat_at > self.patience_s():
                events.say(f"cuplate: {_holder(held)} compiles key {key.hex()[:16]} and is frozen; not waiting for it")
                return _Turn.FROZEN
            if not said and now - start > _SAY_AFTER_S:
                said = True
                events.say(f"cuplate: waiting for {_holder(held)} to compile key {key.hex()[:16]}", level="info")
            time.sleep(min(_LONGEST_POLL_S, max(_FIRST_POLL_S, (now - start) * _POLL_SHARE)))

    def _look_after_the_end(self, look: Callable[[], T | None]) -> T | _Turn:
        """The entry of a holder that has ended; it may have been unable to store one."""
        for number in range(_LOOKS_AT_THE_END):
            if number:
                time.sleep(_LOOK_PAUSE_S)
            if (found := look()) is not None:
                return found
        return _Turn.ALONE

    # ---- files ---------------------------------------------------------------------------------------------------

    def _try_to_open(self, path: str, mine: list[_Held]) -> _Held | None:
        try:
            try:
                return self._open_file(path, mine)
            except FileNotFoundError:
                make_private(self.directory)
                return self._open_file(path, mine)
        except Exception as error:
            self._trouble(error)
            return None

    def _open_file(self, path: str, mine: list[_Held]) -> _Held:
        if not self._trusted:
            check_trust(os.path.dirname(self.directory), self.directory, keyed=self._keyed)
            self._trusted = True
        with self._lock:
            held = _Held(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600), path)
            mine.append(held)
            self._open.add(held)
        return held

    def _try_to_lock(self, held: _Held) -> _Turn | int:
        """How it stands; if another process holds the lock, when that last touched the file."""
        try:
            status = os.fstat(held.descriptor)
            if not status.st_nlink:
                return _Turn.ENDED
            try:
                fcntl.flock(held.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return status.st_mtime_ns
            if not _names(held.path, held.descriptor):
                return _Turn.ENDED
            held.locked = True
            with suppress(OSError):  # a full disk: nobody needs to know who it is
                os.pwrite(held.descriptor, b"%-20d" % os.getpid(), 0)
            held.beat()
            self._failures = 0
            self._sweep(held.path)
            return _Turn.MINE
        except Exception as error:
            self._trouble(error)
            return _Turn.ALONE

    def _sweep(self, mine: str) -> None:
        """Remove, once a process, what killed holders have left long ago."""
        if self._swept:
            return
        self._swept = True
        oldest = time.time() - _KEPT_S
        with suppress(OSError), os.scandir(self.directory) as found:
            for number, entry in enumerate(found):
                if number >= _SWEPT_FILES:
                    break
                ours = entry.path != mine and _LOCK_NAME.fullmatch(entry.name)
                if ours and entry.stat(follow_symlinks=False).st_mtime < oldest:
                    _remove_if_free(entry.path)

    def _trouble(self, error: Exception) -> None:
        self._counts["errors"] += 1
        self._failures += 1
        if getattr(error, "errno", None) in _UNSUPPORTED or self._failures >= _FAILURES_UNTIL_OFF:
            self._off = True
            events.say(f"cuplate: no lock around compiles: {type(error).__name__}: {error}", level="info")

    def _let_go(self, held: _Held) -> None:
        try:
            held.still()
        finally:  # a second Ctrl-C during the wait for the thread
            with self._lock:
                held.close()
                self._open.discard(held)

    # ---- fork ----------------------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Let no file be half opened."""
        self._lock.acquire()

    def after_fork(self, *, child: bool) -> None:
        """Go on; a child closes its copies: a lock lives as long as any of them.

        Parameters
        ----------
        child : bool
            Whether this is the new process.
        """
        if child:
            for held in self._open:
                held.beating = None
                held.close(ended=False)
            self._open.clear()
        self._lock.release()


def _names(path: str, descriptor: int) -> bool:
    """Whether a path still leads to an open file."""
    try:
        named, opened = os.lstat(path), os.fstat(descriptor)
    except FileNotFoundError:
        return False
    return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)


def _holder(held: _Held) -> str:
    try:
        text = os.pread(held.descriptor, 20, 0).strip()
    except OSError:
        text = b""
    return f"process {int(text)}" if text.isdigit() else "another process"


def _remove_if_free(path: str) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _names(path, descriptor):
            os.unlink(path)
    except OSError:
        return
    finally:
        os.close(descriptor)
