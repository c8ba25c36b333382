"""Writes down which specializations a program uses, for ``cuplate build`` and `cuplate.warmup`.

Not to be confused with `cuplate.cache.record`, which writes down every look-up of the cache, with times.

A plan that is made tells of itself, on the way of a call that the hot path does not take, which knows of nothing. What
was planned before a recording began is taken from the plans in memory.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

from cuplate.cache import fork
from cuplate.cache.faults import warn_once
from cuplate.errors import ManifestError
from cuplate.manifest import Manifest, add_to_file
from cuplate.walk import Walk, live_walks, recorders
from cuplate.wanted import Used, Wanted, importable, reduced, rendering, told_by_one

if TYPE_CHECKING:
    from cuplate.specialization import Specialization

__all__ = ["Recording", "follow", "record"]

_SHARE = 20  # of the time that the last write took, until the next: so that a long manifest costs 5 % at most


class Recording:
    """Specializations being written down, until :meth:`close` or the end of a ``with`` block.

    Parameters
    ----------
    path : str or None
        Manifest to add to; None keeps them in memory.

    Raises
    ------
    ManifestError
        The file is something else, or cannot be written.
    """

    def __init__(self, path: str | None) -> None:
        self.path = None if path is None else os.path.realpath(path)
        self._lock = threading.RLock()
        self._forking = False
        self._open = True
        self._seen: set[Any] = set()
        self._wanted: dict[Wanted, Wanted] = {}
        self._unwritten: list[Wanted] = []
        self._due = 0.0
        if self.path is not None:
            try:
                add_to_file(self.path, ())
            except OSError as error:
                raise ManifestError("a manifest cannot be written.", file=path, reason=error.strerror) from None
        fork.register(self)
        recorders.append(self._note)
        _recordings.add(self)
        fork.at_exit(_close_all)
        for walk in live_walks():
            for use, specialization in walk.in_use():
                self._note(walk, use, specialization)

    def __repr__(self) -> str:
        return f"Recording({self.path or 'in memory'!r}, {len(self._wanted)} specializations)"

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def manifest(self) -> Manifest:
        """What this process has used so far; in a forked child, with what its parent had."""
        with self._lock:
            return Manifest(self._wanted.values())

    def close(self) -> None:
        """Write what is left, and stop; a second time does nothing."""
        with self._lock:
            if self._open:
                self._open = False
                recorders.remove(self._note)
                self._write()

    def _note(self, walk: Walk, use: Used, specialization: Specialization) -> None:
        """One plan was made; no fault of this gets to the call."""
        try:
            same = (walk.reference, use.arch, rendering(specialization))
            if told_by_one(walk.choice):  # of ten thousand sizes of one kernel one is looked at
                if same in self._seen:
                    return
                self._seen.add(same)
            if (reference := _importable(walk)) is None:
                return
            entry = reduced(walk.choice, use, reference)
            with self._lock:
                known = self._wanted.get(entry)
                merged = entry if known is None else known.with_variants(entry)
                if known is not None and known.variants == merged.variants:
                    return
                self._wanted[entry] = merged
                self._unwritten.append(merged)
                if time.monotonic() >= self._due:
                    self._write()
        except ManifestError as error:
            warn_once(walk.reference, "record", f"cuplate: {walk.name} is not recorded: {error}")
        except Exception as error:
            self._fail(error)

    def _write(self) -> None:
        if self.path is None or not self._unwritten:
            return
        start = time.monotonic()
        try:
            add_to_file(self.path, self._unwritten)
        except (ManifestError, OSError) as error:
            self._fail(error)
        else:
            self._unwritten.clear()
        now = time.monotonic()
        self._due = now + _SHARE * (now - start)

    def _fail(self, error: Exception) -> None:
        self._open = False
        if self._note in recorders:
            recorders.remove(self._note)
        reason = f"{type(error).__name__}: {error}"
        warn_once(self.path or "", "record", f"cuplate: the recording {self.path or 'in memory'} ends here ({reason}).")

    def before_fork(self) -> None:
        """Let nothing be half noted."""
        self._forking = self._lock.acquire(timeout=fork.WAIT_S)

    def after_fork(self, *, child: bool) -> None:
        """Go on; a child writes what it has noted itself.

        Parameters
        ----------
        child : bool
            Whether this is the new process.
        """
        taken, self._forking = self._forking, False
        if child and not taken:
            self._lock = threading.RLock()
        elif taken:
            self._lock.release()


def record(path: str | os.PathLike[str] | None = None) -> Recording:
    """Write down which specializations are used, those of the plans in memory first.

    Parameters
    ----------
    path : path, optional
        Manifest to add to, made if need be; several processes may share one. Default: keep it in memory.

    Returns
    -------
    Recording
        Close it, or use it in ``with``, to stop; its ``manifest`` is what there is so far. Otherwise it goes on to the
        end of the process, and of children that it forks.

    Raises
    ------
    ManifestError
        The file is something else, or cannot be written.

    Examples
    --------
    >>> import cuplate, numpy as np
    >>> from cuplate.kernels import transpose
    >>> with cuplate.record() as recording:
    ...     _ = transpose(np.ones((3, 5), np.float32))
    >>> transpose.wanted(a="float32") in recording.manifest
    True
    """
    return Recording(None if path is None else os.fspath(path))


_recordings: weakref.WeakSet[Recording] = weakref.WeakSet()


def _close_all() -> None:
    for recording in list(_recordings):
        recording.close()


_followed: list[str] = []


def follow(path: str) -> None:
    """Begin the recording that ``CUPLATE_RECORD`` asks for, once a process; trouble is a warning."""
    if path in _followed:
        return
    _followed.append(path)
    try:
        record(path)
    except ManifestError as error:
        warn_once(path, "record", f"cuplate: {error}")


def _importable(walk: Walk) -> str | None:
    """The reference by which another process finds the function; None, and one warning, where none does.

    Of the program that is being run, under the name by which it can be imported.
    """
    module, _, name = walk.reference.partition(":")
    found: Any = sys.modules.get(module)  # which is loaded, or being loaded: nothing is imported in a call
    for part in name.split("."):
        found = getattr(found, part, None)
    reference = importable(walk.reference)
    if reference is not None and getattr(getattr(found, "reload", None), "__self__", None) is walk:
        return reference
    warn_once(
        walk.reference,
        "record",
        f"cuplate: {walk.reference} is not recorded: no other process finds it under that name. Define it at the top "
        "of a module.",
    )
    return None
