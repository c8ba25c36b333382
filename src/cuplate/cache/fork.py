"""What must hold still while the process forks, and what is to be done at its end: one hook for all of the cache.

A fork while another thread is inside SQLite, or holds a lock, leaves a child that hangs. So the forking thread first
takes every member's locks, closes its connections, forks, and releases in parent and child. The wait is bounded: a
member that does not come free in time is replaced in the child. The same for a module of ours that another thread is
importing: its lock would stay taken in the child, whose own import of it would wait for ever.

The children of multiprocessing end without `atexit`, and forget at their start what was to be done at their end.
"""

from __future__ import annotations

import _imp
import atexit
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

__all__ = ["WAIT_S", "ForkSafe", "at_exit", "register"]


class ForkSafe(Protocol):
    """Something with a lock that a child must not inherit in use."""

    def before_fork(self) -> None:
        """Take the locks, close what a child must not share."""

    def after_fork(self, *, child: bool) -> None:
        """Release, or replace what could not be taken; the child does no other work."""


WAIT_S = 5.0
"""How long a fork waits for a lock of a member, seconds."""

_IMPORT_WAIT_S = 2.0
_POLL_S = 0.001
_OURS = __name__.partition(".")[0]
_stopped: list[bool] = []  # whether this fork holds back imports
_members: weakref.WeakSet[ForkSafe] = weakref.WeakSet()
_adding = threading.RLock()
_forking = threading.RLock()  # one fork at a time: of two, each would wait for members that the other holds
_held: list[ForkSafe] = []


def register(member: ForkSafe) -> None:
    """Take a member into every fork from now on, as long as it lives.

    Parameters
    ----------
    member : ForkSafe
        Held weakly.
    """
    with _adding:
        _members.add(member)


def _before() -> None:
    _forking.acquire()
    # Imports last, and asked for again: whoever holds a lock of ours may be about to import, and a module of ours may
    # register a member as it is imported.
    until = time.monotonic() + _IMPORT_WAIT_S
    while True:
        with _adding:
            fresh = [member for member in _members if member not in _held]
        for member in fresh:
            _held.append(member)
            member.before_fork()
        late = time.monotonic() > until
        if _stop_imports() or late:
            _adding.acquire()
            if late or all(member in _held for member in _members):
                return
            _adding.release()
            _go_on_importing()
        time.sleep(_POLL_S)


def _stop_imports() -> bool:
    """Hold back imports until `_go_on_importing`; False, and none held back, while a thread is inside one of ours."""
    _imp.acquire_lock()
    locks = getattr(sys.modules["_frozen_importlib"], "_module_locks", {})  # name -> weak reference to its lock
    me = threading.get_ident()
    for name, reference in tuple(locks.items()):
        if name.partition(".")[0] == _OURS and getattr(reference(), "owner", None) not in (None, me):
            _imp.release_lock()
            return False
    _stopped.append(True)
    return True


def _go_on_importing() -> None:
    if _stopped:
        _stopped.clear()
        _imp.release_lock()


def _after(child: bool) -> None:
    _go_on_importing()
    for member in reversed(_held):
        with suppress(RuntimeError):  # an interrupt came before it had its locks
            member.after_fork(child=child)
    _held.clear()
    for lock in (_adding, _forking):
        with suppress(RuntimeError):
            lock.release()
    processes = sys.modules.get("multiprocessing.util")
    if child and _endings and processes is not None:
        processes.register_after_fork(_end, lambda _: _arrange())


_endings: list[Callable[[], object]] = []


def at_exit(work: Callable[[], object]) -> None:
    """Have something done at the end of this process, and of every child that it forks from now on.

    Parameters
    ----------
    work : callable
        Does not raise; may be called twice. Given again, it is done once.
    """
    if work not in _endings:
        _endings.append(work)
        _arrange()


def _arrange() -> None:
    atexit.unregister(_end)
    atexit.register(_end)
    processes = sys.modules.get("multiprocessing.util")
    if processes is not None:
        processes.Finalize(None, _end, exitpriority=0)


def _end() -> None:
    for work in reversed(_endings):
        work()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(
        before=_before,
        after_in_parent=lambda: _after(child=False),
        after_in_child=lambda: _after(child=True),
    )
