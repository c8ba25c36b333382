"""Says why a launch stopped: the exceptions, and how they are read from what a worker noted."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypedDict

from cuplate.backend.cpu.arrays import ArrayArgument, Guard
from cuplate.backend.cpu.memory import GUARD_BYTES, PAGE, STACK_BYTES, Worker
from cuplate.backend.cpu.reports import Report
from cuplate.backend.cpu.structures import (
    ASSERT,
    DEADLOCK,
    DIVERGENCE,
    MAX_THREADS,
    OPERATIONS,
    SHARED_GUARD_BYTES,
    SIGNAL,
    TRAP,
)

__all__ = ["BudgetExceeded", "KernelFault", "Waiting", "read_fault"]


@dataclass(frozen=True, slots=True)
class Waiting:
    """Neighbouring threads of a block that wait at one place.

    Attributes
    ----------
    first, last : int
        Their indices in the block.
    operation : str
        ``"__syncthreads"``.
    mask : int
        Lanes of a warp operation.
    file : str
    line : int
    """

    first: int
    last: int
    operation: str
    mask: int
    file: str
    line: int


class KernelFault(Exception):
    """A kernel did what ends a launch.

    Attributes
    ----------
    kind : str
        ``"assertion"``, ``"trap"``, ``"deadlock"``, ``"divergence"``, ``"illegal access"``, ``"stack overflow"``,
        ``"division by zero"`` or ``"illegal instruction"``.
    detail : str
        What happened, a phrase: the assertion's text, the array and index of an access.
    thread, block : tuple of int or None
        The thread that did it (x, y, z).
    file : str
    line : int
        Where, 0 when not known.
    array : str
        Name of the array nearest to an illegal access, or ``""``.
    index : int or None
        Element of that array.
    address : int
    pc : int
        Address of the instruction, relative to the image; 0 when not known.
    waiting : tuple of Waiting
        Of a deadlock or divergence.
    reports : tuple of Report
        What the checker had found before.
    """

    def __init__(
        self,
        kind: str,
        detail: str,
        *,
        thread: tuple[int, int, int] | None = None,
        block: tuple[int, int, int] | None = None,
        file: str = "",
        line: int = 0,
        array: str = "",
        index: int | None = None,
        address: int = 0,
        pc: int = 0,
        waiting: tuple[Waiting, ...] = (),
    ) -> None:
        super().__init__(kind, detail)
        self.kind = kind
        self.detail = detail
        self.thread = thread
        self.block = block
        self.file = file
        self.line = line
        self.array = array
        self.index = index
        self.address = address
        self.pc = pc
        self.waiting = waiting
        self.reports: tuple[Report, ...] = ()

    def __str__(self) -> str:
        return self.text()

    def text(self, where: Callable[[str, int], str] | None = None) -> str:
        """The message.

        Parameters
        ----------
        where : callable, optional
            Takes a file and a line of the rendered text and returns how to name that place; default: ``file:line``.
        """
        place = where or (lambda file, line: f"line {line}" if not file else f"{file}:{line}")
        words = [f"{self.kind}: {self.detail}" if self.detail else self.kind]
        if self.thread is not None:
            words.append(f"by thread {self.thread} of block {self.block}")
        elif self.block is not None:
            words.append(f"in block {self.block}")
        if self.line:
            words.append(f"at {place(self.file, self.line)}")
        lines = [" ".join(words)]
        for w in self.waiting:
            who = f"thread {w.first}" if w.first == w.last else f"threads {w.first} to {w.last}"
            verb = "waits" if w.first == w.last else "wait"
            mask = "" if w.operation.startswith("__syncthreads") else f" with mask 0x{w.mask:08x}"
            lines.append(f"{who} {verb} in {w.operation}{mask} at {place(w.file, w.line)}")
        return "\n".join(lines)


class BudgetExceeded(Exception):
    """A launch did not end within its time.

    Attributes
    ----------
    blocks_done, blocks : int
    seconds : float
        The budget.
    reports : tuple of Report
        What the checker had found.
    """

    def __init__(self, blocks_done: int, blocks: int, seconds: float, reports: tuple[Report, ...] = ()) -> None:
        super().__init__(blocks_done, blocks, seconds, reports)
        self.blocks_done = blocks_done
        self.blocks = blocks
        self.seconds = seconds
        self.reports = reports

    def __str__(self) -> str:
        return f"the kernel was stopped after {self.seconds:g} s, with {self.blocks_done} of {self.blocks} blocks done"


_NO_ADDRESS = 3  # Fault.access: the processor refused the address without saying which
_NEAR_BYTES = 1 << 20  # an address further than this from an array has nothing to do with it


def read_fault(
    worker: Worker,
    values: Sequence[ArrayArgument | bytes],
    guards: Sequence[Guard],
    base: int,
    line: Callable[[int], tuple[str, int]],
) -> KernelFault:
    """The exception for what a worker noted.

    Parameters
    ----------
    worker : Worker
    values : sequence of ArrayArgument or bytes
        The arguments of the launch.
    guards : sequence of Guard
        The copies that the kernel was given.
    base : int
        Where the image begins.
    line : callable
        File and line of an offset in the image.
    """
    return _Reading(worker, values, guards, base, line).fault()


class _Where(TypedDict):
    thread: tuple[int, int, int]
    block: tuple[int, int, int]
    file: str
    line: int
    pc: int
    address: int


class _Reading:
    def __init__(
        self,
        worker: Worker,
        values: Sequence[ArrayArgument | bytes],
        guards: Sequence[Guard],
        base: int,
        line: Callable[[int], tuple[str, int]],
    ) -> None:
        self.worker, self.values, self.guards, self.base, self.line = worker, values, guards, base, line
        self.noted = worker.fault

    def fault(self) -> KernelFault:
        noted = self.noted
        text = noted.text.decode("utf-8", "replace")
        bx, by, _ = self.worker.block
        thread = (noted.thread % bx, noted.thread // bx % by, noted.thread // bx // by)
        block = tuple(noted.block)
        site = noted.site
        file, line = (site.file or b"").decode("utf-8", "replace"), site.line
        if noted.reason == SIGNAL:
            return self._signal(thread, block)
        if noted.reason == ASSERT:
            return KernelFault("assertion", f"`{text}` does not hold", thread=thread, block=block, file=file, line=line)
        if noted.reason == TRAP:
            return KernelFault("trap", "__trap() was reached", thread=thread, block=block, file=file, line=line)
        if noted.reason == DEADLOCK:
            detail = "no thread of the block can go on"
            return KernelFault("deadlock", detail, block=block, waiting=self._waiting())
        if noted.reason == DIVERGENCE:
            waiting = self._waiting()
            if waiting:
                what = "threads of one block meet in different barriers"
                if not waiting[0].operation.startswith("__syncthreads"):
                    what = "lanes of one warp meet in different operations"
                return KernelFault("divergence", what, block=block, waiting=waiting)
            detail = f"a warp operation {text}"
            if "lane that the block" in text or "has exited" in text:
                detail = f"a shuffle {text.replace('a lane', f'lane {noted.address}, a lane', 1)}"
            return KernelFault("divergence", detail, thread=thread, block=block, file=file, line=line)
        return KernelFault("unsupported", text, thread=thread, block=block, file=file, line=line)

    def _waiting(self) -> tuple[Waiting, ...]:
        return tuple(
            Waiting(
                w.first,
                w.last,
                OPERATIONS[w.operation],
                w.mask,
                (w.site.file or b"").decode("utf-8", "replace"),
                w.site.line,
            )
            for w in self.noted.waiting[: self.noted.waiting_count]
        )

    def _signal(self, thread: tuple[int, int, int], block: tuple[int, int, int]) -> KernelFault:
        noted = self.noted
        pc = noted.pc - self.base if self.base and noted.pc > self.base else 0
        file, line = self.line(pc) if pc else ("", 0)
        where = _Where(thread=thread, block=block, file=file, line=line, pc=pc, address=noted.address)
        if noted.signal == signal.SIGFPE:
            return KernelFault("division by zero", "of integers (or the least integer by -1)", **where)
        if noted.signal == signal.SIGILL:
            return KernelFault("illegal instruction", "", **where)
        memory = self.worker.memory
        stacks_end = memory.stacks + MAX_THREADS * memory.stack_stride
        for at in (noted.address, noted.stack_pointer):
            # A signal that finds no room on a full stack says nothing of an address; the stack pointer does.
            if memory.stacks <= at < stacks_end and (at - memory.stacks) % memory.stack_stride < PAGE + 16384:
                detail = f"local variables and recursion of a thread take more than {STACK_BYTES >> 10} KiB"
                return KernelFault("stack overflow", detail, **where)
        access = {1: "read", 2: "write"}.get(noted.access, "access")
        if noted.access == _NO_ADDRESS:
            return KernelFault("illegal access", "misaligned for its type, or at no address of this machine", **where)
        array, index, detail = self._place(noted.address)
        return KernelFault("illegal access", f"{access} {detail}", array=array, index=index, **where)

    def _place(self, address: int) -> tuple[str, int | None, str]:
        """Array, index and phrase for an address that nobody may touch."""
        noted, memory = self.noted, self.worker.memory
        if address < PAGE:
            return "", None, f"through a null pointer (address {address:#x})"
        found: list[tuple[int, int, ArrayArgument]] = []
        moved = {id(array): guard.moved for guard in self.guards for array in guard.arrays}
        for value in self.values:
            if isinstance(value, ArrayArgument):
                low = value.pointer + moved.get(id(value), 0)
                found.append((max(low - address, address - low - value.size_bytes + 1, 0), low, value))
        if noted.shared_low - SHARED_GUARD_BYTES <= address < noted.shared_high + SHARED_GUARD_BYTES:
            return "__shared__", None, "outside of the block's __shared__ variables"
        if memory.dynamic and self.worker.shared_begin - GUARD_BYTES <= address < self.worker.shared_end + GUARD_BYTES:
            offset = address - memory.dynamic
            return (
                "dynamic shared memory",
                offset,
                f"at byte {offset} of the {memory.dynamic_bytes} bytes of dynamic shared memory",
            )
        if found:
            distance, low, array = min(found, key=lambda entry: entry[0])
            if distance <= _NEAR_BYTES:
                index = (address - low) // array.itemsize
                count = array.size_bytes // array.itemsize
                shape = f", shape {array.shape}" if len(array.shape) != 1 else ""
                return array.name, index, f"at {array.name}[{index}] ({count} elements{shape})"
        return "", None, f"at address {address:#x}, which is near no array"
