"""Raw memory and times of runs on the CPU backend, for trials of candidates."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

__all__ = ["Bench", "clock", "write"]

clock: Callable[[], float] = time.perf_counter
"""Seconds of any origin; tests put one here that counts work."""


class Bench:
    """See `cuplate.autotune.workspace.Bench`."""

    device_id = "cpu"

    def allocate(self, size_bytes: int) -> tuple[int, Any]:
        """Address of fresh memory, and what keeps it."""
        import numpy as np

        room = np.empty(size_bytes, np.uint8)
        return room.ctypes.data, room

    def copy(self, to: int, source: int, size_bytes: int) -> None:
        """Copy."""
        ctypes.memmove(to, source, size_bytes)

    def fill(self, to: int, byte: int, size_bytes: int) -> None:
        """Fill."""
        ctypes.memset(to, byte, size_bytes)

    def read(self, source: int, size_bytes: int) -> Any:
        """The bytes."""
        import numpy as np

        found = np.empty(size_bytes, np.uint8)
        ctypes.memmove(found.ctypes.data, source, size_bytes)
        return found

    def once(self, run: Callable[[], object]) -> None:
        """Run."""
        run()

    def sample(self, run: Callable[[], object]) -> float:
        """Seconds of one run."""
        start = clock()
        run()
        return clock() - start

    def settle(self) -> str | None:
        """A run has ended when it returns."""
        return None


def write(pointer: int, data: bytes) -> None:
    """Put bytes into memory."""
    ctypes.memmove(pointer, data, len(data))
