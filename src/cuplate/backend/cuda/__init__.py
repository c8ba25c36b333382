"""The CUDA backend; its modules are the only importers of ``cuda.core`` and ``cuda.bindings``."""

from __future__ import annotations

import threading

__all__ = ["importing"]

importing = threading.RLock()
"""Held while anything of ``cuda`` is imported: its modules import each other in a circle, and a second thread that
comes in meanwhile would be handed one that is half made."""
