"""The seeded kernels: how each is launched, and what the checker has to say about it.

``seeded/NAME.cu`` is a faulty kernel; compiled with ``SOUND`` defined it is the corrected one. Comments ``// fault``
and ``// other`` at the end of a line mark what a message has to name. `table` gives the figures for the docs::

    PYTHONPATH=src:. python -c "from tests.backend.cpu.seeds import *; print(table(['g++', 'zig']))"
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cuplate.backend.cpu import reports
from cuplate.backend.cpu.build import build, runtime_object
from cuplate.backend.cpu.compilers import HostCompiler, find_compiler
from cuplate.backend.cpu.engine import ArrayArgument, KernelFault, Module
from cuplate.options import Options

SEEDED = Path(__file__).parent / "seeded"

Triple = tuple[int, int, int]


@dataclass(frozen=True)
class Case:
    """A seeded kernel: how it is launched, and what has to be said about it."""

    name: str
    kind: str
    message: str  # {fault} and {other} are the marked lines; of a KernelFault these are parts, with ... between
    arguments: Callable[[], Sequence[object]]
    grid: Triple = (1, 1, 1)
    block: Triple = (64, 1, 1)
    shared_bytes: int = 0
    fault: bool = False  # the runtime stops the launch: KernelFault, not a report


@dataclass(frozen=True)
class Array:
    """An array argument."""

    name: str
    data: np.ndarray
    written: bool = False
    fresh: bool = False


def given(name: str, shape: int | tuple[int, ...], dtype: str = "float32") -> Array:
    """An input with something in it."""
    count = int(np.prod(shape))
    return Array(name, (np.arange(count) % 100 + 1).astype(dtype).reshape(shape))


def output(name: str, shape: int | tuple[int, ...], dtype: str = "float32") -> Array:
    """A fresh output, every element of which has to be written."""
    return Array(name, np.zeros(shape, dtype), written=True, fresh=True)


def zeros(name: str, shape: int | tuple[int, ...], dtype: str = "int32") -> Array:
    """Zeros that the kernel may change."""
    return Array(name, np.zeros(shape, dtype), written=True)


def aligned(array: Array) -> Array:
    """The same at an address that is a multiple of 64."""
    raw = np.empty(array.data.nbytes + 64, np.uint8)
    begin = -raw.ctypes.data % 64
    data = raw[begin : begin + array.data.nbytes].view(array.data.dtype).reshape(array.data.shape)
    data[...] = array.data
    return Array(array.name, data, array.written, array.fresh)


BOUNDS, RACE, UNSET, SKEW = "out of bounds", "data race", "uninitialised read", "misaligned"
CONST, MISSING, INDEX = "write to const", "never written", "index out of range"

CASES = [
    # ------------------------------------------------------------------------------------------ out of bounds: arrays
    Case(
        "read_past_end",
        BOUNDS,
        "read of 4 bytes at a[60] (60 elements) by thread (28,0,0) of block (1,0,0), case.cu line {fault}",
        lambda: [given("a", 60), output("out", 60), 60],
        grid=(2, 1, 1),
        block=(32, 1, 1),
    ),
    Case(
        "write_past_end",
        BOUNDS,
        "write of 4 bytes at out[60] (60 elements, shape (20, 3)) by thread (28,0,0) of block (1,0,0), case.cu "
        "line {fault}",
        lambda: [given("a", 60), output("out", (20, 3)), 60],
        grid=(2, 1, 1),
        block=(32, 1, 1),
    ),
    Case(
        "read_before_start",
        BOUNDS,
        "read of 4 bytes at a[-1] (64 elements) by thread (0,0,0) of block (0,0,0), case.cu line {fault}",
        lambda: [given("a", 64), output("out", 64), 64],
    ),
    Case(
        "swapped_extents",
        BOUNDS,
        "read of 4 bytes at a[24] (24 elements, shape (4, 6)) by thread (0,3,0) of block (0,0,0), case.cu line {fault}",
        lambda: [given("a", (4, 6)), output("out", (4, 6)), 8, 6],
        block=(6, 4, 1),
    ),
    Case(
        "vector_past_end",
        BOUNDS,
        "read of 4 bytes at a[30] (30 elements) by thread (7,0,0) of block (0,0,0), case.cu line {fault}",
        lambda: [aligned(given("a", 30)), zeros("out", 8, "float32"), 30],
    ),
    Case(
        "atomic_past_end",
        BOUNDS,
        "atomic operation of 4 bytes at bins[16] (16 elements) by thread (15,0,0) of block (0,0,0), case.cu line "
        "{fault}",
        lambda: [given("a", 32, "int32"), zeros("bins", 16), 16],
        block=(32, 1, 1),
    ),
    Case(
        "null_pointer",
        BOUNDS,
        "read of 4 bytes through a null pointer (address 0x0) by thread (0,0,0) of block (0,0,0), case.cu line {fault}",
        lambda: [None, output("out", 64)],
    ),
    Case(
        "byte_past_end",
        BOUNDS,
        "read of 1 byte at a[30] (30 elements) by thread (7,0,0) of block (0,0,0), case.cu line {fault}",
        lambda: [given("a", 30, "uint8"), output("out", 30, "uint8"), 30],
        block=(8, 1, 1),
    ),
    # ------------------------------------------------------------------------------------------ out of bounds: shared
    Case(
        "shared_inner_extent",
        INDEX,
        "index 8 is outside the extent 8 of tile[8][8] by thread (7,7,0) of block (0,0,0), case.cu line {fault}",
        lambda: [given("a", 64), output("out", 64)],
        block=(8, 8, 1),
    ),
    Case(
        "shared_past_end",
        BOUNDS,
        "read of 4 bytes at line[64] (64 elements of shared memory) by thread (63,0,0) of block (0,0,0), case.cu "
        "line {fault}",
        lambda: [given("a", 64), output("out", 64), 64],
    ),
    Case(
        "shared_in_template",
        BOUNDS,
        "write of 4 bytes at box[16] (16 elements of shared memory) by thread (16,0,0) of block (0,0,0), case.cu "
        "line {fault}",
        lambda: [given("a", 32), output("out", 1)],
        block=(32, 1, 1),
    ),
    Case(
        "dynamic_shared_too_small",
        BOUNDS,
        "write of 4 bytes at dynamic shared memory[32] (32 elements of shared memory) by thread (32,0,0) of "
        "block (0,0,0), "
        "case.cu line {fault}",
        lambda: [given("a", 64), output("out", 64)],
        shared_bytes=128,
    ),
    Case(
        "dynamic_shared_partition",
        BOUNDS,
        "write of 4 bytes at dynamic shared memory[128] (128 elements of shared memory) by thread (63,0,0) of "
        "block (0,0,0), "
        "case.cu line {fault}",
        lambda: [given("a", 64, "int32"), output("out", 64, "int32"), 64],
        shared_bytes=512,
    ),
    Case(
        "local_array_index",
        INDEX,
        "index 4 is outside the extent 4 of acc[4] by thread (0,0,0) of block (0,0,0), case.cu line {fault}",
        lambda: [given("a", 64), output("out", 64), 5],
    ),
    Case(
        "device_variable_past_end",
        BOUNDS,
        "read of 4 bytes at table[8] (8 elements) by thread (8,0,0) of block (0,0,0), case.cu line {fault}",
        lambda: [given("a", 32), output("out", 32)],
        block=(32, 1, 1),
    ),
    Case(
        "copy_past_end",
        BOUNDS,
        "write of 256 bytes at line[0] (32 elements of shared memory) by thread (0,0,0) of block (0,0,0), "
        "case.cu line {fault}",
        lambda: [given("a", 64, "int32"), output("out", 32, "int32"), 64],
        block=(32, 1, 1),
    ),
    # --------------------------------------------------------------------------------------- races in shared memory
    Case(
        "race_between_warps",
        RACE,
        "dynamic shared memory[63]: read by thread (31,0,0) at case.cu line {fault} and write by thread "
        "(63,0,0) at case.cu line {other} of block (0,0,0), no barrier between (64 times)",
        lambda: [given("a", 64), output("out", 64)],
        shared_bytes=256,
    ),
    Case(
        "race_copy_of_neighbour",
        RACE,
        "line[0]: write by thread (0,0,0) at case.cu line {other} and read by thread (63,0,0) at case.cu "
        "line {fault} of block (0,0,0), no barrier between (63 times)",
        lambda: [given("a", 64, "int32"), output("out", 64, "int32")],
    ),
    Case(
        "race_missing_barrier",
        RACE,
        "line[0]: write by thread (0,0,0) at case.cu line {other} and read by thread (1,0,0) at case.cu line {fault} "
        "of block (0,0,0), no __syncwarp or barrier between (63 times)",
        lambda: [given("a", 64), output("out", 64)],
    ),
    Case(
        "race_loop_reuse",
        RACE,
        "tile[63]: write by thread (63,0,0) at case.cu line {fault} and read by thread (0,0,0) at case.cu line {other} "
        "of block (0,0,0), no barrier between (192 times)",
        lambda: [given("a", 256), output("out", 64), 4],
    ),
    Case(
        "race_plain_sum",
        RACE,
        "sum: write by thread (63,0,0) at case.cu line {fault} and read by thread (0,0,0) at case.cu line {fault} "
        "of block (0,0,0), no barrier between (126 times)",
        lambda: [given("a", 64), output("out", 1)],
    ),
    Case(
        "race_within_warp",
        RACE,
        "part[1]: read by thread (0,0,0) at case.cu line 9 and write by thread (1,0,0) at case.cu line "
        "{fault} of block (0,0,0), no __syncwarp or barrier between (26 times)",
        lambda: [given("a", 32), output("out", 1)],
        block=(32, 1, 1),
    ),
    Case(
        "race_half_mask",
        RACE,
        "part[16]: read by thread (15,0,0) at case.cu line {fault} and write by thread (16,0,0) at case.cu "
        "line {other} of block (0,0,0), no __syncwarp or barrier between (32 times)",
        lambda: [given("a", 32, "int32"), output("out", 32, "int32")],
        block=(32, 1, 1),
    ),
    Case(
        "race_volatile_warp",
        RACE,
        "part[1]: volatile read by thread (0,0,0) at case.cu line {fault} and volatile write by thread "
        "(1,0,0) at case.cu line {other} of block (0,0,0), no __syncwarp or barrier between",
        lambda: [given("a", 64), output("out", 1)],
        block=(32, 1, 1),
    ),
    Case(
        "race_bytes",
        RACE,
        "line[1]: read by thread (0,0,0) at case.cu line {fault} and write by thread (1,0,0) at case.cu line "
        "{other} of block (0,0,0), no __syncwarp or barrier between (64 times)",
        lambda: [given("a", 64, "uint8"), output("out", 64, "uint8")],
    ),
    Case(
        "race_halfwords",
        RACE,
        "a[1]: write by thread (0,0,0) at case.cu line {fault} and read by thread (1,0,0) at case.cu line "
        "{other} of block (0,0,0), no __syncwarp or barrier between (64 times)",
        lambda: [Array("a", np.arange(64, dtype=np.uint16), written=True)],
    ),
    Case(
        "race_shuffle_orders_nothing",
        RACE,
        "part[30]: write by thread (30,0,0) at case.cu line {other} and read by thread (31,0,0) at case.cu "
        "line {fault} of block (0,0,0), no __syncwarp or barrier between (32 times)",
        lambda: [given("a", 32, "int32"), output("out", 32, "int32")],
        block=(32, 1, 1),
    ),
    Case(
        "race_shared_in_function",
        RACE,
        "part[63]: write by thread (63,0,0) at case.cu line {fault} and read by thread (0,0,0) at case.cu "
        "line {other} of block (0,0,0), no barrier between (2079 times)",
        lambda: [given("a", 64), output("out", 64)],
    ),
    Case(
        "race_plain_and_atomic",
        RACE,
        "count: write by thread (0,0,0) at case.cu line {other} and atomic operation by thread (1,0,0) at "
        "case.cu line {fault} of block (0,0,0), no __syncwarp or barrier between",
        lambda: [given("a", 64, "int32"), output("out", 1, "int32")],
    ),
    Case(
        "race_result_too_early",
        RACE,
        "sum: read by thread (63,0,0) at case.cu line {fault} and atomic operation by thread (0,0,0) at "
        "case.cu line {other} of block (0,0,0), no barrier between (125 times)",
        lambda: [given("a", 64, "int32"), output("out", 64, "int32")],
    ),
    # --------------------------------------------------------------------------------------- races in global memory
    Case(
        "race_in_place_stencil",
        RACE,
        "a[0]: write by thread (0,0,0) at case.cu line {other} and read by thread (1,0,0) at case.cu line "
        "{fault} of block (0,0,0), no __syncwarp or barrier between (63 times)",
        lambda: [Array("a", np.arange(64, dtype=np.float32), written=True), 64],
    ),
    Case(
        "race_between_blocks",
        RACE,
        "b[31]: write by thread (31,0,0) of block (0,0,0) at case.cu line {other} and read by thread (0,0,0) of "
        "block (1,0,0) "
        "at case.cu line {fault}, nothing orders the blocks",
        lambda: [given("a", 64), output("b", 64), output("out", 64), 64],
        grid=(2, 1, 1),
        block=(32, 1, 1),
    ),
    Case(
        "race_global_sum",
        RACE,
        "sum[0]: write by thread (0,0,0) of block (0,0,0) at case.cu line {fault} and read by thread (0,0,0) "
        "of block (1,0,0) at case.cu line {fault}, nothing orders the blocks (14 times)",
        lambda: [given("a", 8), zeros("sum", 1, "float32")],
        grid=(8, 1, 1),
        block=(32, 1, 1),
    ),
    Case(
        "race_missing_fence",
        RACE,
        "parts[0]: write by thread (0,0,0) of block (0,0,0) at case.cu line {other} and read by thread (0,0,0) "
        "of block (3,0,0) at case.cu line {fault}, nothing orders the blocks (3 times)",
        lambda: [given("a", 4), output("parts", 4), zeros("tickets", 1), output("out", 1)],
        grid=(4, 1, 1),
        block=(32, 1, 1),
    ),
    Case(
        "race_ticket_before_barrier",
        RACE,
        "parts[31]: write by thread (31,0,0) of block (0,0,0) at case.cu line {other} and read by thread (31,0,0) "
        "of block (3,0,0) at case.cu line {fault}, nothing orders the blocks (93 times)",
        lambda: [given("a", 128), output("parts", 128), zeros("tickets", 1), output("out", 32)],
        grid=(4, 1, 1),
        block=(32, 1, 1),
    ),
    Case(
        "race_lock_without_fence",
        RACE,
        "sum[0]: write by thread (0,0,0) of block (0,0,0) at case.cu line {fault} and read by thread (0,0,0) "
        "of block (1,0,0) at case.cu line {fault}, nothing orders the blocks (14 times)",
        lambda: [given("a", 8, "int32"), zeros("lock", 1), zeros("sum", 1)],
        grid=(8, 1, 1),
        block=(32, 1, 1),
    ),
    Case(
        "race_flag_without_fence",
        RACE,
        "carry[0]: write by thread (0,0,0) of block (0,0,0) at case.cu line {other} and read by thread "
        "(0,0,0) of block (1,0,0) at case.cu line {fault}, nothing orders the blocks (7 times)",
        lambda: [given("a", 8, "int32"), output("carry", 8, "int32"), zeros("flags", 8), output("out", 8, "int32")],
        grid=(8, 1, 1),
        block=(32, 1, 1),
    ),
    # ----------------------------------------------------------------------------------------------- not initialised
    Case(
        "uninitialised_sum",
        UNSET,
        "read of line[0], shared memory that nothing has written yet by thread (0,0,0) of block (0,0,0), "
        "case.cu line {fault} (64 times)",
        lambda: [given("a", 64), output("out", 64)],
    ),
    Case(
        "uninitialised_halo",
        UNSET,
        "read of tile[65], shared memory that nothing has written yet by thread (63,0,0) of block (0,0,0), "
        "case.cu line {fault} "
        "(2 times)",
        lambda: [given("a", 64), output("out", 64)],
    ),
    Case(
        "uninitialised_dynamic",
        UNSET,
        "read of dynamic shared memory[63], shared memory that nothing has written yet by thread (63,0,0) of "
        "block (0,0,0), "
        "case.cu line {fault} (32 times)",
        lambda: [given("a", 64, "uint8"), output("out", 64, "uint8")],
        shared_bytes=64,
    ),
    Case(
        "uninitialised_counter",
        UNSET,
        "atomic operation of count, shared memory that nothing has written yet by thread (0,0,0) of block (0,0,0), "
        "case.cu line {fault}",
        lambda: [given("a", 64, "int32"), output("out", 1, "int32")],
    ),
    Case(
        "uninitialised_next_block",
        UNSET,
        "read of scale, shared memory that nothing has written yet by thread (31,0,0) of block (1,0,0), case.cu "
        "line {fault} "
        "(32 times)",
        lambda: [given("a", 64), output("out", 64)],
        grid=(2, 1, 1),
        block=(32, 1, 1),
    ),
    Case(
        "uninitialised_output",
        UNSET,
        "read of out[0], the output that nothing has written yet by thread (0,0,0) of block (0,0,0), case.cu "
        "line {fault} "
        "(64 times)",
        lambda: [given("a", 64), output("out", 64)],
    ),
    # ---------------------------------------------------------------------------------------------------- divergence
    Case(
        "barrier_in_branch",
        "divergence",
        "thread 0 waits in __syncthreads at case.cu:{other} ... thread 63 waits in __syncthreads at "
        "case.cu:{fault} ... (0, 0, 0)",
        lambda: [given("a", 64), output("out", 64)],
        fault=True,
    ),
    Case(
        "barrier_and_shuffle",
        "deadlock",
        "threads 0 to 15 wait in __shfl_down_sync with mask 0xffffffff at case.cu:{fault} ... threads 16 to "
        "31 wait in __syncthreads at case.cu:{other}",
        lambda: [given("a", 32, "int32"), output("out", 32, "int32")],
        block=(32, 1, 1),
        fault=True,
    ),
    Case(
        "different_operations",
        "divergence",
        "thread 0 waits in __shfl_xor_sync with mask 0xffffffff at case.cu:{other} ... thread 16 waits in "
        "__ballot_sync with mask 0xffffffff at case.cu:{fault}",
        lambda: [given("a", 32, "int32"), output("out", 32, "int32")],
        block=(32, 1, 1),
        fault=True,
    ),
    Case(
        "mask_without_caller",
        "divergence",
        "its mask leaves out the lane that calls it ... (16, 0, 0) of block (0, 0, 0) at case.cu:{fault}",
        lambda: [given("a", 32, "int32"), output("out", 32, "int32")],
        block=(32, 1, 1),
        fault=True,
    ),
    Case(
        "shuffle_from_absent_lane",
        "divergence",
        "reads lane 12, a lane that the block does not have ... (39, 0, 0) of block (0, 0, 0) at case.cu:{fault}",
        lambda: [given("a", 40, "int32"), output("out", 40, "int32")],
        block=(40, 1, 1),
        fault=True,
    ),
    Case(
        "shuffle_from_exited_lane",
        "divergence",
        "reads lane 16, a lane that has exited ... (8, 0, 0) of block (0, 0, 0) at case.cu:{fault}",
        lambda: [given("a", 32, "int32"), zeros("out", 32)],
        block=(32, 1, 1),
        fault=True,
    ),
    # ----------------------------------------------------------------------------------------------------- alignment
    Case(
        "misaligned_vector",
        SKEW,
        "misaligned float4 at a[5], 4 bytes past a multiple of 16 by thread (0,0,0) of block (0,0,0), "
        "case.cu line {fault}",
        lambda: [aligned(given("a", 64)), zeros("out", 64, "float32"), 5],
    ),
    Case(
        "misaligned_store",
        SKEW,
        "misaligned float2 at out[5], 4 bytes past a multiple of 8 by thread (0,0,0) of block (0,0,0), "
        "case.cu line {fault}",
        lambda: [aligned(given("a", 64)), aligned(zeros("out", 64, "float32")), 5],
        block=(1, 1, 1),
    ),
    Case(
        "misaligned_copy",
        SKEW,
        "misaligned int4 at a[6], 8 bytes past a multiple of 16 by thread (0,0,0) of block (0,0,0), case.cu "
        "line {fault}",
        lambda: [aligned(given("a", 64)), aligned(zeros("out", 64, "float32")), 6],
        block=(1, 1, 1),
    ),
    Case(
        "misaligned_word",
        SKEW,
        "misaligned unsigned int at a[6], 2 bytes past a multiple of 4 by thread (0,0,0) of block (0,0,0), "
        "case.cu line {fault}",
        lambda: [aligned(given("a", 64, "uint8")), output("out", 64, "uint32"), 6],
    ),
    Case(
        "misaligned_member",
        SKEW,
        "misaligned float4 at a[2], 8 bytes past a multiple of 16 by thread (0,0,0) of block (0,0,0), "
        "case.cu line {fault}",
        lambda: [aligned(given("a", 64)), output("out", 64), 2],
    ),
    Case(
        "misaligned_atomic",
        SKEW,
        "misaligned atomic operation of 4 bytes at a[6], 2 bytes past a multiple of 4 by thread (0,0,0) of "
        "block (0,0,0), case.cu line {fault}",
        lambda: [aligned(Array("a", np.zeros(64, np.uint8), True)), 6],
    ),
    # ---------------------------------------------------------------------------------------------------------- const
    Case(
        "write_to_const",
        CONST,
        "write of 4 bytes to a[0], which the kernel takes as const by thread (0,0,0) of block (0,0,0), case.cu "
        "line {fault}",
        lambda: [given("a", 64), output("out", 64)],
    ),
    Case(
        "atomic_to_const",
        CONST,
        "write of 4 bytes to a[0], which the kernel takes as const by thread (0,0,0) of block (0,0,0), case.cu "
        "line {fault}",
        lambda: [given("a", 64, "int32"), zeros("out", 1)],
    ),
    # -------------------------------------------------------------------------------------------------- never written
    Case(
        "grid_too_small",
        MISSING,
        "36 of 100 elements of the output out never written, the first is out[64]",
        lambda: [given("a", 100), output("out", 100), 100],
    ),
    Case(
        "last_row_unwritten",
        MISSING,
        "8 of 32 elements, shape (4, 8) of the output out never written, the first is out[24]",
        lambda: [given("a", (4, 8)), output("out", (4, 8)), 4, 8],
        block=(8, 1, 1),
    ),
    Case(
        "every_second_byte_unwritten",
        MISSING,
        "32 of 64 elements of the output out never written, the first is out[1]",
        lambda: [given("a", 64, "uint8"), output("out", 64, "uint8")],
    ),
    Case(
        "division_by_zero",
        "division by zero",
        "division by zero of type int by thread (0,0,0) of block (0,0,0), case.cu line {fault}",
        lambda: [given("a", 64, "int32"), output("out", 64, "int32"), 0],
    ),
]


def pack(values: Sequence[object]) -> list[ArrayArgument | bytes]:
    """Values as a launch takes them: None is a null pointer, an int an int."""
    packed: list[ArrayArgument | bytes] = []
    for value in values:
        if isinstance(value, Array):
            d = value.data
            packed.append(
                ArrayArgument(
                    value.name, d.ctypes.data, d.nbytes, d.itemsize, d.shape, str(d.dtype), value.written, value.fresh
                )
            )
        elif value is None:
            packed.append(bytes(8))
        else:
            packed.append(struct.pack("<i", value))
    return packed


@functools.cache
def _runtime(compiler: HostCompiler) -> bytes:
    return runtime_object(compiler, "full")


def compiled(compiler: HostCompiler, source: str, *, sound: bool = False, entry: str = "kernel") -> Module:
    """A checked build of a source, its name in messages ``case.cu``."""
    options = Options(define=(("SOUND", None),)) if sound else Options()
    image = build(
        source,
        [entry],
        name="case.cu",
        compiler=compiler,
        options=options,
        check="full",
        arch=800,
        directories=[],
        runtime=_runtime(compiler),
    )
    return Module(image)


def launch(
    module: Module, case: Case, values: Sequence[object], *, check: str = "full"
) -> tuple[tuple[reports.Report, ...], KernelFault | None]:
    """Reports of a launch, and the fault that ended it."""
    try:
        found = module.launch(
            case.grid, case.block, case.shared_bytes, pack(values), check=check, budget_s=20.0, workers=1
        )
    except KernelFault as fault:
        return (), fault
    return found, None


def marked(source: str, word: str) -> int:
    """Number of the line that ends with a comment of this word; 0 if none does."""
    for number, line in enumerate(source.splitlines(), 1):
        if re.search(r"// (fault|other|fault other)$", line) and word in line.rpartition("//")[2]:
            return number
    return 0


def examined(compiler: HostCompiler, case: Case) -> list[str]:
    """What is said about the faulty kernel, the kind before each message."""
    module = compiled(compiler, (SEEDED / f"{case.name}.cu").read_text())
    try:
        found, fault = launch(module, case, case.arguments())
        said = [f"{report.kind}: {reports.text(report)}" for report in found]
        return said + ([f"{fault.kind}: {fault.text()}"] if fault else [])
    finally:
        module.close()


def found_in(said: Sequence[str], case: Case) -> bool:
    """Whether one of the messages is the one that the case asks for, word for word."""
    source = (SEEDED / f"{case.name}.cu").read_text()
    lines = {word: str(marked(source, word)) for word in ("fault", "other")}
    wanted = case.message
    for word, number in lines.items():
        wanted = wanted.replace(f"{{{word}}}", number)
    of_kind = [text.removeprefix(f"{case.kind}: ") for text in said if text.startswith(f"{case.kind}: ")]
    if not case.fault:
        return wanted in of_kind
    return any(all(part in text for part in wanted.split(" ... ")) for text in of_kind)


def table(names: Sequence[str]) -> str:
    """Found of seeded, for each class and compiler, as a table for the docs."""
    compilers = [find_compiler(name) for name in names]
    rows = [["class", "seeded", *(f"{c.family} {c.version}" for c in compilers)], ["---"] * (2 + len(compilers))]
    sums = [0] * len(compilers)
    for kind in dict.fromkeys(case.kind for case in CASES):
        cases = [case for case in CASES if case.kind == kind]
        found = [sum(found_in(examined(c, case), case) for case in cases) for c in compilers]
        sums = [a + b for a, b in zip(sums, found, strict=True)]
        rows.append([kind, str(len(cases)), *map(str, found)])
    rows.append(["**all**", f"**{len(CASES)}**", *(f"**{n}**" for n in sums)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
