"""The structures and numbers of ``shim/runtime.h``, for ctypes."""

from __future__ import annotations

import ctypes as C
import struct

__all__ = ["LAUNCH", "Fault", "Info", "Launch", "Memory"]

ABI = 9  # CUPLATE_ABI
MAX_THREADS = 1024
MAX_SHARED_BYTES = 232448  # what the largest GPU of today lends to a block (compute capability 9.0: 227 KiB)
SHARED_GUARD_BYTES = 16384  # GUARD_BYTES

CHECKS = ("off", "bounds", "full")
NONE, BUDGET, INTERRUPT, SIGNAL, ASSERT, TRAP, DEADLOCK, DIVERGENCE, REPORT, UNSUPPORTED = range(10)

OPERATIONS = (
    "__syncthreads",
    "__syncwarp",
    "__shfl_sync",
    "__shfl_up_sync",
    "__shfl_down_sync",
    "__shfl_xor_sync",
    "__ballot_sync",
    "__any_sync",
    "__all_sync",
    "__match_any_sync",
    "__match_all_sync",
    "a __reduce_sync operation",
    "a collective operation of the warp",
    "__syncthreads_count",
    "__syncthreads_and",
    "__syncthreads_or",
)


class Launch(C.Structure):
    """What a launch is, and how far it is."""

    _fields_ = (
        ("grid", C.c_uint * 3),
        ("block", C.c_uint * 3),
        ("blocks", C.c_uint64),
        ("next", C.c_uint64),
        ("done", C.c_uint64),
        ("stop", C.c_int),
        ("chunk", C.c_uint),
        ("checked", C.c_uint),
        ("order", C.c_uint),
        ("interruptible", C.c_uint),
        ("ticking", C.c_uint),
        ("entry", C.c_void_p),
        ("arguments", C.c_void_p),
        ("dynamic", C.c_void_p),
        ("deadline_ns", C.c_int64),
        ("tick_ns", C.c_int64),
        ("budget_ns", C.c_int64),
        ("slots", C.c_void_p),
    )


LAUNCH = struct.Struct("=6I3Qi5I3Q3qQ")
"""All of a `Launch` at once, in the order of its fields."""
assert LAUNCH.size == C.sizeof(Launch)


class Site(C.Structure):
    _fields_ = (("file", C.c_char_p), ("line", C.c_int))


class _Waiting(C.Structure):
    _fields_ = (
        ("first", C.c_uint),
        ("last", C.c_uint),
        ("operation", C.c_int),
        ("mask", C.c_uint),
        ("site", Site),
    )


class Fault(C.Structure):
    """Why a worker stopped."""

    _fields_ = (
        ("reason", C.c_int),
        ("signal", C.c_int),
        ("address", C.c_size_t),
        ("pc", C.c_size_t),
        ("stack_pointer", C.c_size_t),
        ("access", C.c_int),
        ("thread", C.c_uint),
        ("waiting_count", C.c_uint),
        ("block", C.c_uint * 3),
        ("site", Site),
        ("shared_low", C.c_size_t),
        ("shared_high", C.c_size_t),
        ("text", C.c_char * 256),
        ("waiting", _Waiting * 8),
    )


class Memory(C.Structure):
    """The part of a Worker that the launcher fills: in the order of shim/runtime.h."""

    _fields_ = (
        ("stacks", C.c_size_t),
        ("stack_bytes", C.c_size_t),
        ("stack_stride", C.c_size_t),
        ("dynamic", C.c_size_t),
        ("dynamic_bytes", C.c_uint64),
        ("print_buffer", C.c_size_t),
        ("print_capacity", C.c_uint64),
        ("print_used", C.c_uint64),
        ("print_dropped", C.c_uint64),
        ("signal_stack", C.c_size_t),
        ("signal_stack_bytes", C.c_uint64),
    )


class Info(C.Structure):
    """What an image says of itself."""

    _fields_ = (
        ("abi", C.c_uint),
        ("worker_bytes", C.c_uint),
        ("launch_bytes", C.c_uint),
        ("fault_offset", C.c_uint),
        ("memory_offset", C.c_uint),
        ("checked", C.c_uint),
        ("base", C.c_void_p),
        ("dynamic_alignment", C.c_uint64),
    )
