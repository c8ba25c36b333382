"""Maps the memory of workers: once, for the life of the process."""

from __future__ import annotations

import ctypes as C
import functools
import mmap
import sys

from cuplate.backend.cpu.structures import MAX_SHARED_BYTES, MAX_THREADS, Fault, Launch, Memory

__all__ = ["Worker", "forbid", "guard", "libc", "map_memory", "pages"]

PAGE = mmap.PAGESIZE
STACK_BYTES = 256 * 1024
_SIGNAL_STACK_BYTES = 128 * 1024  # a frame with AVX-512 and AMX state takes 11 KiB
_PRINT_BYTES = 1024 * 1024  # as the driver's buffer
_ARGUMENT_BYTES = 64 * 1024  # the driver takes 32764


@functools.lru_cache(maxsize=1)
def libc() -> C.CDLL:
    """The C library, with the types of what is called here."""
    libc = C.CDLL(None, use_errno=True)
    libc.mmap.restype = C.c_void_p
    libc.mmap.argtypes = (C.c_void_p, C.c_size_t, C.c_int, C.c_int, C.c_int, C.c_long)
    for name in ("munmap", "mprotect", "madvise"):
        function = getattr(libc, name)
        function.argtypes = (C.c_void_p, C.c_size_t) if name == "munmap" else (C.c_void_p, C.c_size_t, C.c_int)
    libc.memcpy.argtypes = (C.c_void_p, C.c_void_p, C.c_size_t)
    libc.memcpy.restype = C.c_void_p
    return libc


GUARD_BYTES = 1 << 20  # on either side of arrays and of dynamic shared memory: addresses, no memory


def map_memory(size: int) -> int:
    """Address of fresh zeroed memory; pages that are never touched cost nothing."""
    flags = (
        mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
    )
    address = libc().mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if address is None or address == C.c_void_p(-1).value:
        raise MemoryError(f"cannot map {size} bytes for the CPU backend")
    return int(address)


_MADV_GUARD_INSTALL = 102  # Linux 6.13: a guard page that does not split the mapping


def guard(address: int, size: int = PAGE) -> None:
    """No access to these pages from now on."""
    if sys.platform == "linux" and libc().madvise(address, size, _MADV_GUARD_INSTALL) == 0:
        return
    libc().mprotect(address, size, 0)  # out of mappings: the launch goes on, less guarded


def forbid(address: int, size: int) -> None:
    """No access to this range, in one piece, from now on."""
    libc().mprotect(address, size, 0)


def pages(size: int) -> int:
    """The size rounded up to whole pages."""
    return -(-size // PAGE) * PAGE


class Worker:
    """Memory of one worker: mapped once, reused for the life of the process.

    Attributes
    ----------
    address, launch_address, arguments_address : int
    launch : Launch
    launch_bytes : array of char
        The same, to be filled at once.
    fault : Fault
    memory : Memory
    arguments : array of char
        Where the arguments of a kernel are laid out.
    shared_begin, shared_end : int
        Of dynamic shared memory; what a launch needs of it lies at the end.
    block : tuple of int
        Of the launch that it runs, or ran last.
    """

    def __init__(self, worker_bytes: int, fault_offset: int, memory_offset: int) -> None:
        head = pages(worker_bytes)
        launch = pages(C.sizeof(Launch))
        stride = STACK_BYTES + PAGE
        shared = pages(MAX_SHARED_BYTES)
        total = head + launch + _ARGUMENT_BYTES + _SIGNAL_STACK_BYTES + _PRINT_BYTES
        total += 2 * GUARD_BYTES + shared + MAX_THREADS * stride + PAGE
        self.address = at = map_memory(total)
        self.launch_address = at = at + head
        self.launch = Launch.from_address(at)
        self.launch_bytes = (C.c_char * C.sizeof(Launch)).from_address(at)
        self.fault = Fault.from_address(self.address + fault_offset)
        self.memory = memory = Memory.from_address(self.address + memory_offset)
        at += launch
        self.arguments_address = at
        self.arguments = (C.c_char * _ARGUMENT_BYTES).from_address(at)
        at += _ARGUMENT_BYTES
        memory.signal_stack, memory.signal_stack_bytes = at, _SIGNAL_STACK_BYTES
        at += _SIGNAL_STACK_BYTES
        memory.print_buffer, memory.print_capacity = at, _PRINT_BYTES
        at += _PRINT_BYTES
        forbid(at, GUARD_BYTES)
        self.shared_begin = at + GUARD_BYTES
        self.shared_end = self.shared_begin + shared
        forbid(self.shared_end, GUARD_BYTES)
        memory.stacks = self.shared_end + GUARD_BYTES
        memory.stack_bytes, memory.stack_stride = STACK_BYTES, stride
        assert memory.stacks + MAX_THREADS * stride + PAGE <= self.address + total
        self.guarded = 0
        self.block = (1, 1, 1)

    def prepare(self, block: tuple[int, int, int], shared_bytes: int, alignment: int = 16) -> None:
        """Guards the stacks of a block's threads and lets the dynamic shared memory end at its guard page."""
        memory = self.memory
        self.block = block
        threads = block[0] * block[1] * block[2]
        while self.guarded < threads:
            guard(memory.stacks + self.guarded * memory.stack_stride)
            self.guarded += 1
        memory.dynamic = self.shared_end - -(-shared_bytes // alignment) * alignment
        memory.dynamic_bytes = shared_bytes
