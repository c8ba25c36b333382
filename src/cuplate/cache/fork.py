"""What must hold still while the process forks, and what is to be done at its end: one hook for all of the cache.

A fork while another thread is inside SQLite, or holds a lock, leaves a child that hangs. So the forking thread first
takes every member's locks, closes its connections, forks, and releases in parent and child. The wait is bounded: a
member that does not come free in time is replaced in the child.

The children of multiprocessing end without `atexit`, and forget at their start what was to be done at their end.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Protocol

__all__ = ["ForkSafe", "at_exit", "register"]


class ForkSafe(Protocol):
    """Something with a lock that a child must not inherit in use."""

    def before_fork(self) -> None:
        """Take the locks, close what a child must not share."""

    def after_fork(self, *, child: bool) -> None:
        """Release, or replace what could not be taken; the child does no other work."""


_members: weakref.WeakSet[ForkSafe] = weakref.WeakSet()
_adding = threading.RLock()
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
    _adding.acquire()
    _held[:] = _members
    for member in _held:
        member.before_fork()


def _after(child: bool) -> None:
    for member in reversed(_held):
        member.after_fork(child=child)
    _held.clear()
    _adding.release()
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
