"""Loads what `build` made and launches its kernels.

Who runs what. The thread that calls `Module.launch` runs blocks itself: a launch of one block costs no hand-over. With
more than one worker the others are threads of a pool that lives as long as the process; ctypes gives up the interpreter
lock while they run. Each worker owns memory that is mapped once and reused: a stack per thread of a block, each above a
page that nobody may touch, the dynamic shared memory, which ends at such a page, a stack for signals and a buffer for
printf.

How a launch ends early is one mechanism for all causes, told at the top of ``shim/runtime.cpp``: a signal handler that
leaves the kernel for the launcher's stack. Faults of the kernel are signals by themselves. The budget is a timer that
signals each worker's own OS thread every 50 ms. Ctrl-C passes Python's handler first, then stops the launches that the
main thread waits for, so `KeyboardInterrupt` is raised where the launch was called. The handlers are in place only
while something runs (interrupts.py), and those before them are called for whatever is not ours.

A check mode other than "off" runs one worker, blocks in order, so that reports are the same in every run.
"""

from __future__ import annotations

import _ctypes
import ctypes as C
import functools
import itertools
import os
import struct
import threading
import time
import weakref
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any, TypeVar

from cuplate.backend.cpu.arrays import ArrayArgument, Guard, Guarded
from cuplate.backend.cpu.faults import BudgetExceeded, KernelFault, Waiting, read_fault
from cuplate.backend.cpu.interrupts import TICK_NS, answers_to_interrupts, signals
from cuplate.backend.cpu.loading import load
from cuplate.backend.cpu.memory import PAGE, Worker
from cuplate.backend.cpu.printed import show
from cuplate.backend.cpu.regions import Checker
from cuplate.backend.cpu.reports import Report
from cuplate.backend.cpu.structures import (
    ABI,
    BUDGET,
    CHECKS,
    INTERRUPT,
    LAUNCH,
    MAX_SHARED_BYTES,
    MAX_THREADS,
    NONE,
    REPORT,
    Info,
    Launch,
)
from cuplate.backend.cpu.symbols import Image
from cuplate.cache import fork
from cuplate.errors import ToolchainError

__all__ = ["ArrayArgument", "BudgetExceeded", "KernelFault", "Module", "Waiting"]

_SHIM = "cuplate/backend/cpu/shim/"  # in the names of files, wherever the image was built
_NEVER_NS = 2**61

T = TypeVar("T")

# Workers that no launch uses, by the layout of their memory.
_idle: dict[tuple[int, int, int], list[Worker]] = {}


class _Helper:
    """A thread that runs blocks for launches, one after another."""

    def __init__(self) -> None:
        self.tasks: SimpleQueue[Any] = SimpleQueue()
        threading.Thread(target=self._serve, name="cuplate-cpu", daemon=True).start()

    def _serve(self) -> None:
        while True:
            run, launch, worker, answers = self.tasks.get()
            run(launch, worker)
            _helpers.append(self)  # before the answer: the next launch finds it
            answers.put(None)
            del run, answers


_helpers: list[_Helper] = []


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_helpers.clear)  # a child has none of its parent's threads


def _taken(idle: list[T]) -> T | None:
    """One of those that wait, if another thread has not just taken the last."""
    try:
        return idle.pop()
    except IndexError:
        return None


class Module:
    """A loaded image and one of its kernels.

    Parameters
    ----------
    image : bytes
        From `build`.
    entry_index : int
        Which of the ``entries`` that it was built with.

    Attributes
    ----------
    argument_bytes : tuple of int
        Size of each argument of the kernel.
    argument_constness : tuple of bool
        Whether it is a pointer to const.
    static_shared_bytes : int
        Of the image's ``__shared__`` variables.
    max_threads : int
        Threads of a block, at most.

    Raises
    ------
    ToolchainError
        The image is not one of this version, or cannot be loaded.
    """

    def __init__(self, image: bytes, entry_index: int = 0) -> None:
        self._lib: C.CDLL | None = load(image)
        lib = self._lib
        info = Info()
        lib.cuplate_info(C.byref(info))
        if (info.abi, info.launch_bytes) != (ABI, C.sizeof(Launch)):
            raise ToolchainError("a kernel built for the CPU is of another version of cuplate")
        self.image = image
        self.base = int(info.base or 0)
        self.checked = bool(info.checked)
        self._layout = (int(info.worker_bytes), int(info.fault_offset), int(info.memory_offset))
        self._run = lib.cuplate_run
        self._run.argtypes = (C.c_void_p, C.c_void_p)
        self._entry = C.cast(getattr(lib, f"cuplate_entry_{entry_index}"), C.c_void_p).value
        describe = getattr(lib, f"cuplate_arguments_{entry_index}")
        describe.restype = C.POINTER(C.c_uint)
        sizes = list(itertools.takewhile(bool, describe()))
        self.argument_bytes = tuple(size & 0x7FFFFFFF for size in sizes)
        self.argument_constness = tuple(bool(size >> 31) for size in sizes)
        bounds = getattr(lib, f"cuplate_bounds_{entry_index}", None)
        self.max_threads = min(MAX_THREADS, int(bounds())) if bounds is not None else MAX_THREADS
        dynamic = getattr(lib, "cuplate_dynamic", None)
        self._dynamic = None if dynamic is None else C.cast(dynamic, C.c_void_p).value
        self._alignment = min(PAGE, int(info.dynamic_alignment))
        self._recipe = _ArgumentRecipe(self.argument_bytes)
        self._idle = _idle.setdefault(self._layout, [])
        self._checker = Checker(image, lib) if self.checked else None
        self._index = entry_index
        self._lock = threading.RLock()  # a handler of a signal may launch while we hold it
        self._running: list[int] = []  # the thread of each launch
        fork.register(self)
        # A module that is dropped is unloaded; one that is closed, at once. Not at exit: a helper may still run.
        self._unload = weakref.finalize(self, _unload, lib)
        self._unload.atexit = False

    @functools.cached_property
    def static_shared_bytes(self) -> int:
        """From the first to the last byte of the image's ``__shared__`` variables."""
        found = [v for v in Image(self.image).variables if v.shared]
        if not found:
            return 0
        return max(v.offset + v.size_bytes for v in found) - min(v.offset for v in found)

    def line(self, pc: int) -> tuple[str, int]:
        """File and line of the instruction at an offset in the image; ``("", 0)`` where it does not say."""
        try:
            return Image(self.image).line(pc, _SHIM)
        except (ValueError, IndexError, struct.error):
            return "", 0

    def close(self) -> None:
        """Unloads the image, when its last launch is over. The module must not be used again."""
        with self._lock:
            self._lib = None
            if not self._running:
                self._unload()

    def before_fork(self) -> None:
        """Nothing: a launch of another thread may take long."""

    def after_fork(self, *, child: bool) -> None:
        """In a child the launches of other threads will never end."""
        if child:
            self._lock = threading.RLock()
            self._running = [thread for thread in self._running if thread == threading.get_ident()]

    def launch(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        values: Sequence[ArrayArgument | bytes],
        *,
        check: str,
        budget_s: float,
        workers: int,
        order: int = 0,
    ) -> tuple[Report, ...]:
        """Runs the kernel to its end and returns what the checker saw.

        Parameters
        ----------
        grid, block : tuple of int, (x, y, z)
        shared_bytes : int
            Dynamic shared memory of a block.
        values : sequence of ArrayArgument or bytes
            One for each argument of the kernel.
        check : str
            ``"full"``, ``"bounds"`` or ``"off"``; another than "off" needs an image built with checks.
        budget_s : float, seconds
        workers : int
            OS threads, at most; one where the image is checked.
        order : int
            1: blocks from the last to the first; 2: so the threads of a block; 3: both.

        Raises
        ------
        KernelFault
            The kernel did what ends a launch.
        BudgetExceeded
            It did not end in time.
        KeyboardInterrupt
            Ctrl-C, when called from the main thread.
        """
        blocks = grid[0] * grid[1] * grid[2]
        threads = block[0] * block[1] * block[2]
        if not (0 < threads <= MAX_THREADS and blocks > 0 and 0 <= shared_bytes <= MAX_SHARED_BYTES):
            raise ValueError(f"no launch of grid {grid}, block {block} and {shared_bytes} bytes of shared memory")
        if self._checker is not None and self._checker.interrupted:
            # The handler of a signal launches what it interrupts, whose checker is in use: another copy of the image.
            copy = Module(self.image, self._index)
            try:
                return copy.launch(
                    grid, block, shared_bytes, values, check=check, budget_s=budget_s, workers=workers, order=order
                )
            finally:
                copy.close()
        count = 1 if self.checked else max(1, min(workers, blocks))
        crew: list[Worker] = []
        with self._lock:
            lib = self._lib
            if lib is None:
                raise ToolchainError("the module is closed")
            self._running.append(threading.get_ident())
        signals.enter(lib)
        try:
            while len(crew) < count:
                crew.append(_taken(self._idle) or Worker(*self._layout))
                crew[-1].prepare(block, shared_bytes, self._alignment)
            budget_ns = _NEVER_NS if budget_s > 1e9 else int(budget_s * 1e9)
            first = crew[0]
            LAUNCH.pack_into(
                first.launch_bytes, 0, *grid, *block, blocks, 0, 0, NONE, max(1, min(16, blocks // (count * 8))),
                CHECKS.index(check), order, answers_to_interrupts(), 0, self._entry, first.arguments_address,
                self._dynamic or 0, time.monotonic_ns() + budget_ns, TICK_NS, budget_ns, signals.slots,
            )  # fmt: skip
            return self._watched(crew, values) if self.checked else self._guarded(crew, values)
        finally:
            signals.leave()
            self._idle.extend(crew)
            with self._lock:
                self._running.remove(threading.get_ident())
                if self._lib is None and not self._running:
                    self._unload()

    def _guarded(self, crew: list[Worker], values: Sequence[ArrayArgument | bytes]) -> tuple[Report, ...]:
        """Unchecked: arrays are copies that end at a page nobody may touch."""
        guarded = Guarded(values)
        try:
            self._recipe.pack(crew[0], guarded.given)
            self._run_all(crew)
            if crew[0].launch.stop == NONE:
                guarded.copy_back()
        finally:
            guarded.release()
        return self._outcome(crew, values, guarded.guards, ())

    def _watched(self, crew: list[Worker], values: Sequence[ArrayArgument | bytes]) -> tuple[Report, ...]:
        """Under the checker's eyes, on the caller's arrays."""
        assert self._checker is not None
        worker = crew[0]
        self._recipe.pack(worker, [v if isinstance(v, bytes) else v.pointer + v.offset_bytes for v in values])
        launch = worker.launch
        x, y, z = launch.grid
        arrays = [value for value in values if isinstance(value, ArrayArgument)]
        private = ((worker.arguments_address, self._recipe.total),)
        full = launch.checked == CHECKS.index("full")
        with self._checker.watch(
            (x, y, z), worker.block, worker.memory.dynamic_bytes, arrays, full=full, private=private
        ) as watch:
            self._run_all(crew)
        return self._outcome(crew, values, (), watch.reports)

    def _run_all(self, crew: list[Worker]) -> None:
        first = crew[0]
        at = first.launch_address
        if len(crew) == 1:
            self._run(at, first.address)
            return
        answers: SimpleQueue[None] = SimpleQueue()
        asked = 0
        try:
            for worker in crew[1:]:
                helper = _taken(_helpers) or _Helper()
                helper.tasks.put((self._run, at, worker.address, answers))
                asked += 1
            self._run(at, first.address)
        finally:
            # Whatever is raised here: nobody may go on while a worker still uses the launch's memory.
            while asked:
                try:
                    answers.get()
                    asked -= 1
                except KeyboardInterrupt:
                    first.launch.stop = INTERRUPT  # which is raised when all have stopped

    def _outcome(
        self,
        crew: list[Worker],
        values: Sequence[ArrayArgument | bytes],
        guards: Sequence[Guard],
        reports: tuple[Report, ...],
    ) -> tuple[Report, ...]:
        """What the launch comes to: printed text, then reports or the exception that tells why it stopped."""
        launch = crew[0].launch
        if any([worker.memory.print_used or worker.memory.print_dropped for worker in crew]):
            show(crew)
        reason = launch.stop
        if reason in (NONE, REPORT):
            return reports
        if reason == INTERRUPT:
            raise KeyboardInterrupt
        if reason == BUDGET:
            raise BudgetExceeded(launch.done, launch.blocks, launch.budget_ns / 1e9, reports)
        worker = next((w for w in crew if w.fault.reason not in (NONE, BUDGET, INTERRUPT)), crew[0])
        fault = read_fault(worker, values, guards, self.base, self.line)
        fault.reports = reports
        raise fault


def _unload(lib: C.CDLL) -> None:
    if lib is not signals.keeper:
        _ctypes.dlclose(lib._handle)


class _ArgumentRecipe:
    """Where each argument lies in the memory that a kernel is called with: pointers to all of them, then they."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes = sizes
        self.offsets = []
        at = -(-8 * len(sizes) // 64) * 64
        for size in sizes:
            align = 64 if size > 16 else 16
            at = -(-at // align) * align
            self.offsets.append(at)
            at += size
        self.total = -(-at // 64) * 64
        self._formats: dict[tuple[bool, ...], struct.Struct] = {}

    def pack(self, worker: Worker, values: Sequence[int | bytes]) -> None:
        """Lays the arguments out in a worker's memory; an integer is a pointer."""
        sizes = self.sizes
        if len(values) != len(sizes):
            raise ValueError(f"the kernel takes {len(sizes)} arguments, {len(values)} were given")
        for number, value in enumerate(values):
            size = 8 if isinstance(value, int) else len(value)
            if size != sizes[number]:
                raise ValueError(f"argument {number} of the kernel has {sizes[number]} bytes, {size} were given")
        base = worker.arguments_address
        self._format(values).pack_into(worker.arguments, 0, *[base + offset for offset in self.offsets], *values)

    def _format(self, values: Sequence[int | bytes]) -> struct.Struct:
        kinds = tuple([isinstance(value, int) for value in values])
        known = self._formats.get(kinds)
        if known is None:
            text = f"={len(kinds)}Q"
            at = 8 * len(kinds)
            for pointer, size, offset in zip(kinds, self.sizes, self.offsets, strict=True):
                text += f"{offset - at}x" + ("Q" if pointer else f"{size}s")
                at = offset + size
            known = self._formats[kinds] = struct.Struct(text)
        return known
