"""One measurement at a time on a device, for all processes of this node; it can only help, and never waits for long."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

__all__ = ["turn"]

_POLL_S = 0.02


@contextmanager
def turn(device: str, until: float) -> Iterator[bool]:
    """Hold the device's lock, which the system frees with its holder.

    Parameters
    ----------
    device : str
        What tells devices apart: a GPU's UUID.
    until : float
        Of ``time.monotonic()``: no later does the block begin, with the lock or without it.

    Yields
    ------
    bool
        Whether the lock is held.
    """
    descriptor = _open(device)
    held = False
    try:
        held = descriptor >= 0 and _lock(descriptor, until)
        yield held
    finally:
        if held:  # closing alone leaves it to a child that was forked meanwhile, as long as that lives
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        if descriptor >= 0:
            os.close(descriptor)


def _open(device: str) -> int:
    if fcntl is None:
        return -1
    name = f"cuplate-{os.getuid()}-{re.sub('[^0-9A-Za-z]+', '-', device)[:64]}.turn"
    path = os.path.join(tempfile.gettempdir(), name)
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:  # somebody else's file, or no place for one
        return -1


def _lock(descriptor: int, until: float) -> bool:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(_POLL_S)
        except OSError:  # a file system without locks
            return False
