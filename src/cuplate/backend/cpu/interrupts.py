"""Puts the runtime's signal handlers in place while a launch runs, and back what was there before."""

from __future__ import annotations

import ctypes as C
import os
import sys
import threading
import time

# Not the module around it, which makes an enumeration of every answer.
from _signal import SIGINT, getsignal  # type: ignore[import-not-found]

__all__ = ["answers_to_interrupts", "signals"]

TICK_NS = 50_000_000


class _Signals:
    """The signal handlers, in place while any launch of the process runs.

    They live in one image, the first that was launched, which is never unloaded.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.running: list[int] = []  # the thread of each launch
        self.on = False
        self.keeper: C.CDLL | None = None
        self.slots: int = 0
        self.ticker: threading.Thread | None = None
        self.wants_ticker = sys.platform != "linux"

    def enter(self, lib: C.CDLL) -> None:
        with self.lock:
            if self.keeper is None:
                self.keeper = lib
                if hasattr(lib, "cuplate_slots"):
                    lib.cuplate_slots.restype = C.c_void_p
                    self.slots = lib.cuplate_slots()
            self.running.append(threading.get_ident())
            if not self.on and self.slots:
                # In this order: a handler of a signal that launches between any two lines finds them in place as well.
                self.keeper.cuplate_signals_on()
                self.on = True
                if self.wants_ticker and (self.ticker is None or not self.ticker.is_alive()):
                    self.ticker = threading.Thread(target=self._tick, name="cuplate-ticker", daemon=True)
                    self.ticker.start()

    def leave(self) -> None:
        with self.lock:
            self.running.remove(threading.get_ident())
            if not self.running and self.slots and self.keeper is not None:
                self.on = False
                self.keeper.cuplate_signals_off()

    def _tick(self) -> None:
        """Where no timer can signal one thread."""
        while self.keeper is not None:
            time.sleep(TICK_NS / 1e9)
            with self.lock:
                if self.running:
                    self.keeper.cuplate_tick_all()

    def after_fork(self) -> None:
        """In the child: the threads that ran launches are gone."""
        self.running = [thread for thread in self.running if thread == threading.get_ident()]
        self.lock = threading.RLock()
        self.ticker = None
        if self.keeper is not None and self.slots:
            self.keeper.cuplate_forget()
            if self.on and not self.running:
                self.on = False
                self.keeper.cuplate_signals_off()


signals = _Signals()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=signals.after_fork)


def answers_to_interrupts() -> int:
    """Whether Ctrl-C is to stop a launch of the calling thread: as Python does, the main thread's only."""
    if threading.get_ident() != threading.main_thread().ident:
        return 0
    return int(callable(getsignal(SIGINT)))
