"""The checker: what it must not report, how it counts, and what it leaves alone."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import pytest

from cuplate.backend.cpu import regions, reports
from cuplate.backend.cpu.compilers import HostCompiler
from cuplate.backend.cpu.reports import Report
from tests.backend.cpu.seeds import Array, Case, compiled, given, launch, output, pack, zeros

Triple = tuple[int, int, int]


def seen(
    compiler: HostCompiler,
    source: str,
    arguments: Sequence[object],
    *,
    grid: Triple = (1, 1, 1),
    block: Triple = (64, 1, 1),
    shared_bytes: int = 0,
    check: str = "full",
    entry: str = "kernel",
) -> tuple[Report, ...]:
    """The reports of one launch."""
    module = compiled(compiler, source, entry=entry)
    try:
        case = Case("case", "", "", lambda: arguments, grid, block, shared_bytes)
        found, fault = launch(module, case, arguments, check=check)
        if fault is not None:
            raise fault
        return found
    finally:
        module.close()


# ------------------------------------------------------------------------------------------------ no false alarms

LAST_BLOCK = """
__global__ void kernel(const float* a, volatile float* parts, unsigned* tickets, float* out, int n)
{
    __shared__ float line[64];
    __shared__ bool last;
    float sum = 0.0f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += a[i];
    line[threadIdx.x] = sum;
    __syncthreads();
    for (int step = 32; step > 0; step /= 2) {
        if (threadIdx.x < step) line[threadIdx.x] += line[threadIdx.x + step];
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = line[0];
        __threadfence();
        last = atomicInc(tickets, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        float total = 0.0f;
        for (unsigned k = 0; k < gridDim.x; ++k) total += parts[k];
        out[0] = total;
    }
}
"""

EVERY_THREAD_FENCES = """
__global__ void kernel(const float* a, float* parts, unsigned* tickets, float* out)
{
    __shared__ bool last;
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    parts[i] = a[i];
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(tickets, 1) == gridDim.x - 1;
    __syncthreads();
    if (!last) return;
    float total = 0.0f;
    for (unsigned k = threadIdx.x; k < gridDim.x * blockDim.x; k += blockDim.x) total += parts[k];
    out[threadIdx.x] = total;
}
"""

WARP_THEN_FENCE = """
__global__ void kernel(const float* a, float* parts, unsigned* tickets, float* out)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    parts[i] = a[i];
    __syncwarp();
    unsigned ticket = 0;
    if (threadIdx.x % 32 == 0) {
        __threadfence();
        ticket = atomicAdd(tickets, 1);
    }
    ticket = __shfl_sync(0xffffffffu, ticket, 0);
    __syncwarp();
    if (ticket == gridDim.x * 2 - 1) {
        float total = 0.0f;
        for (unsigned k = threadIdx.x % 32; k < gridDim.x * 64; k += 32) total += parts[k];
        out[threadIdx.x % 32] = total;
    }
}
"""

SPIN_LOCK = """
__device__ int lock;
__global__ void kernel(int* sum, float* log)
{
    if (threadIdx.x % 8 == 0) {
        bool done = false;
        while (!done) {
            if (atomicCAS(&lock, 0, 1) == 0) {
                __threadfence();
                const int k = *sum;
                log[k] = k;
                *sum = k + 1;
                __threadfence();
                atomicExch(&lock, 0);
                done = true;
            }
        }
    }
}
"""

VOLATILE_LOCK = """
__device__ volatile int turn;
__global__ void kernel(int* sum)
{
    if (threadIdx.x == 0) {
        while (turn != blockIdx.x) {
        }
        __threadfence();
        *sum += blockIdx.x;
        __threadfence();
        turn = blockIdx.x + 1;
    }
}
"""

LOOK_BACK = """
struct State { int flag; int value; };
__global__ void kernel(const int* a, int* out, volatile int* flags, int* totals, int* prefixes, int* order)
{
    __shared__ int tile;
    __shared__ int before;
    __shared__ int line[64];
    if (threadIdx.x == 0) tile = atomicAdd(order, 1);
    __syncthreads();
    const int i = tile * 64 + threadIdx.x;
    line[threadIdx.x] = a[i];
    __syncthreads();
    if (threadIdx.x == 0) {
        int total = 0;
        for (int k = 0; k < 64; ++k) {
            const int x = line[k];
            line[k] = total;
            total += x;
        }
        totals[tile] = total;
        __threadfence();
        flags[tile] = 1;
        int sum = 0;
        for (int t = tile - 1; t >= 0; --t) {
            int flag;
            while ((flag = flags[t]) == 0) {
            }
            __threadfence();
            if (flag == 2) {
                sum += prefixes[t];
                break;
            }
            sum += totals[t];
        }
        prefixes[tile] = sum + total;
        __threadfence();
        flags[tile] = 2;
        before = sum;
    }
    __syncthreads();
    out[i] = before + line[threadIdx.x];
}
"""

PLAIN_FIRST_READ = """
__device__ float atomicMaximum(float* address, float value)
{
    int* bits = (int*)address;
    int old = *bits, assumed;
    do {
        assumed = old;
        if (__int_as_float(assumed) >= value) break;
        old = atomicCAS(bits, assumed, __float_as_int(value));
    } while (old != assumed);
    return __int_as_float(old);
}
__global__ void kernel(const float* a, float* most, int* best)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicMaximum(most, a[i]);
    if ((int)a[i] > *best) atomicMax(best, (int)a[i]);
}
"""

POLLED_FLAG = """
__global__ void kernel(const int* a, int* out)
{
    __shared__ volatile int ready;
    __shared__ int value;
    if (threadIdx.x == 0) ready = 0;
    __syncthreads();
    if (threadIdx.x == 63) {
        value = a[5];
        __threadfence_block();
        ready = 1;
    }
    if (threadIdx.x == 0) {
        while (!ready) {
        }
        __threadfence_block();
        out[0] = value;
    }
}
"""

ATOMIC_FLAG = """
__global__ void kernel(const int* a, int* out)
{
    __shared__ int ready;
    __shared__ int value[32];
    if (threadIdx.x == 0) ready = 0;
    __syncthreads();
    if (threadIdx.x >= 32) {
        value[threadIdx.x - 32] = a[threadIdx.x];
        __syncwarp();
        if (threadIdx.x == 32) {
            __threadfence_block();
            atomicExch(&ready, 1);
        }
    } else {
        if (threadIdx.x == 0) {
            while (atomicAdd(&ready, 0) == 0) {
            }
            __threadfence_block();
        }
        __syncwarp();
        out[threadIdx.x] = value[31 - threadIdx.x];
    }
}
"""

SAME_VALUE = """
__global__ void kernel(const int* a, int* found)
{
    __shared__ int any;
    if (threadIdx.x == 0) any = 0;
    __syncthreads();
    if (a[threadIdx.x] > 10) any = 1;
    if (a[threadIdx.x] > 20) found[0] = 1;
    __syncthreads();
    if (threadIdx.x == 0) found[1] = any;
}
"""

FOUND_FLAG = """
__global__ void kernel(const int* a, int* out, int wanted)
{
    __shared__ volatile int found;
    if (threadIdx.x == 0) found = 0;
    __syncthreads();
    for (int k = 0; k < 8 && !found; ++k) {
        if (a[threadIdx.x * 8 + k] == wanted) {
            found = 1;
            out[0] = threadIdx.x * 8 + k;
        }
    }
}
"""

PADDING = """
struct Item { char tag; int value; };
struct Wide { int tag; double value; };
__global__ void kernel(const int* a, int* out)
{
    __shared__ Item items[64];
    __shared__ Wide wides[64];
    items[threadIdx.x].tag = 1;
    items[threadIdx.x].value = a[threadIdx.x];
    wides[threadIdx.x].tag = 2;
    wides[threadIdx.x].value = 3.0;
    __syncthreads();
    const Item item = items[63 - threadIdx.x];
    const Wide wide = wides[63 - threadIdx.x];
    out[threadIdx.x] = item.value + item.tag + wide.tag + (int)wide.value;
}
"""

PARTIAL_WARPS = """
__global__ void kernel(const int* a, int* out)
{
    __shared__ int part[64];
    const int i = threadIdx.x;
    const unsigned mask = i % 32 < 16 ? 0x0000ffffu : 0xffff0000u;
    part[i] = a[i];
    __syncwarp(mask);
    int x = part[i ^ 1] + part[i ^ 8];
    __syncwarp(mask);
    part[i] = x;
    __syncwarp();
    x = part[i ^ 16];
    __syncwarp(0xffffffffu);
    part[i] = x;
    __syncthreads();
    out[i] = part[63 - i];
}
"""

HALVES_OF_WORDS = """
__global__ void kernel(const unsigned char* a, unsigned char* bytes, unsigned short* words)
{
    extern __shared__ unsigned char both[];
    unsigned short* wide = reinterpret_cast<unsigned short*>(both + 64);
    both[threadIdx.x] = a[threadIdx.x];
    wide[threadIdx.x] = a[threadIdx.x];
    bytes[threadIdx.x] = both[threadIdx.x] + 1;
    words[threadIdx.x] = wide[threadIdx.x] + 1;
}
"""

EARLY_EXIT = """
__global__ void kernel(const int* a, int* out, int n)
{
    __shared__ int line[64];
    const int i = threadIdx.x;
    line[i] = 0;
    if (i >= n) return;
    __syncthreads();
    line[i] = a[i];
    __syncthreads();
    out[i] = line[n - 1 - i];
}
"""

RESET_BY_LAST = """
__global__ void kernel(const float* a, float* parts, unsigned* tickets, float* out)
{
    __shared__ bool last;
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = a[blockIdx.x];
        __threadfence();
        last = atomicAdd(tickets, 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;
    if (threadIdx.x < gridDim.x) out[threadIdx.x] = parts[threadIdx.x];
    if (threadIdx.x == 1) *tickets = 0;
}
"""

RING = """
__global__ void kernel(const int* a, int* out, int n)
{
    __shared__ int slots[2][32];
    __shared__ volatile int full[2];
    const int lane = threadIdx.x % 32;
    if (threadIdx.x < 2) full[threadIdx.x] = 0;
    __syncthreads();
    if (threadIdx.x < 32) {
        for (int k = 0; k < n; ++k) {
            if (lane == 0) {
                while (full[k % 2]) {
                }
                __threadfence_block();
            }
            __syncwarp();
            slots[k % 2][lane] = a[k * 32 + lane];
            __syncwarp();
            if (lane == 0) {
                __threadfence_block();
                full[k % 2] = 1;
            }
        }
    } else {
        int sum = 0;
        for (int k = 0; k < n; ++k) {
            if (lane == 0) {
                while (!full[k % 2]) {
                }
                __threadfence_block();
            }
            __syncwarp();
            sum += slots[k % 2][31 - lane];
            __syncwarp();
            if (lane == 0) {
                __threadfence_block();
                full[k % 2] = 0;
            }
        }
        out[lane] = sum;
    }
}
"""

DOUBLE_BUFFER = """
__global__ void kernel(const float* a, float* out, int tiles)
{
    __shared__ float tile[2][64];
    float sum = 0.0f;
    tile[0][threadIdx.x] = a[threadIdx.x];
    for (int t = 0; t < tiles; ++t) {
        __syncthreads();
        if (t + 1 < tiles) tile[(t + 1) % 2][threadIdx.x] = a[(t + 1) * 64 + threadIdx.x];
        sum += tile[t % 2][63 - threadIdx.x];
    }
    out[threadIdx.x] = sum;
}
"""

HASH_TABLE = """
__global__ void kernel(const int* keys, int* table, int* values, int* found, int capacity)
{
    const int key = keys[blockIdx.x * blockDim.x + threadIdx.x];
    int slot = key * 7 % capacity;
    while (true) {
        int seen = table[slot];
        if (seen == 0) seen = atomicCAS(&table[slot], 0, key);
        if (seen == 0 || seen == key) break;
        slot = (slot + 1) % capacity;
    }
    atomicAdd(&values[slot], 1);
    atomicMax(found, slot);
}
"""

FLAG_RESET = """
__global__ void kernel(const int* a, int* flag, int* carry, int* out)
{
    if (blockIdx.x > 0) {
        if (threadIdx.x == 0) {
            while (*(volatile int*)flag == 0) {
            }
            __threadfence();
        }
        __syncthreads();
        out[threadIdx.x] = *carry + threadIdx.x;
        if (threadIdx.x == 40) *flag = 0;
    } else if (threadIdx.x == 0) {
        *carry = a[0];
        __threadfence();
        atomicExch(flag, 1);
    }
}
"""

COUNTER_WITHOUT_FENCE = """
__global__ void kernel(int* count, int* out, int total)
{
    if (atomicAdd(count, 1) == total - 1) *count = 0;
    if (threadIdx.x == 0) out[blockIdx.x] = 1;
}
"""

SOUND = {
    "reset_by_last": (
        RESET_BY_LAST,
        lambda: [given("a", 4), output("parts", 4), zeros("tickets", 1), output("out", 4)],
        (4, 1, 1),
        (64, 1, 1),
        0,
    ),
    "ring": (RING, lambda: [given("a", 320, "int32"), output("out", 32, "int32"), 10], (2, 1, 1), (64, 1, 1), 0),
    "double_buffer": (DOUBLE_BUFFER, lambda: [given("a", 512), output("out", 64), 8], (1, 1, 1), (64, 1, 1), 0),
    "hash_table": (
        HASH_TABLE,
        lambda: [given("keys", 128, "int32"), zeros("table", 256), zeros("values", 256), zeros("found", 1), 256],
        (2, 1, 1),
        (64, 1, 1),
        0,
    ),
    "flag_reset": (
        FLAG_RESET,
        lambda: [given("a", 1, "int32"), zeros("flag", 1), output("carry", 1, "int32"), output("out", 64, "int32")],
        (2, 1, 1),
        (64, 1, 1),
        0,
    ),
    "counter_without_fence": (
        COUNTER_WITHOUT_FENCE,
        lambda: [zeros("count", 1), output("out", 4, "int32"), 256],
        (4, 1, 1),
        (64, 1, 1),
        0,
    ),
    "last_block": (
        LAST_BLOCK,
        lambda: [given("a", 512), output("parts", 4), zeros("tickets", 1), output("out", 1), 512],
        (4, 1, 1),
        (64, 1, 1),
        0,
    ),
    "every_thread_fences": (
        EVERY_THREAD_FENCES,
        lambda: [given("a", 256), output("parts", 256), zeros("tickets", 1), output("out", 64)],
        (4, 1, 1),
        (64, 1, 1),
        0,
    ),
    "warp_then_fence": (
        WARP_THEN_FENCE,
        lambda: [given("a", 256), output("parts", 256), zeros("tickets", 1), output("out", 32)],
        (4, 1, 1),
        (64, 1, 1),
        0,
    ),
    "spin_lock": (SPIN_LOCK, lambda: [zeros("sum", 1), output("log", 32)], (4, 1, 1), (64, 1, 1), 0),
    "volatile_lock": (VOLATILE_LOCK, lambda: [zeros("sum", 1)], (4, 1, 1), (32, 1, 1), 0),
    "look_back": (
        LOOK_BACK,
        lambda: [
            given("a", 256, "int32"),
            output("out", 256, "int32"),
            zeros("flags", 4),
            output("totals", 4, "int32"),
            output("prefixes", 4, "int32"),
            zeros("order", 1),
        ],
        (4, 1, 1),
        (64, 1, 1),
        0,
    ),
    "plain_first_read": (
        PLAIN_FIRST_READ,
        lambda: [given("a", 128), zeros("most", 1, "float32"), zeros("best", 1)],
        (2, 1, 1),
        (64, 1, 1),
        0,
    ),
    "polled_flag": (POLLED_FLAG, lambda: [given("a", 8, "int32"), output("out", 1, "int32")], (2, 1, 1), (64, 1, 1), 0),
    "atomic_flag": (
        ATOMIC_FLAG,
        lambda: [given("a", 64, "int32"), Array("out", np.zeros(32, np.int32), True)],
        (1, 1, 1),
        (64, 1, 1),
        0,
    ),
    "same_value": (
        SAME_VALUE,
        lambda: [given("a", 64, "int32"), output("found", 2, "int32")],
        (1, 1, 1),
        (64, 1, 1),
        0,
    ),
    "found_flag": (
        FOUND_FLAG,
        lambda: [Array("a", np.arange(512, dtype=np.int32)), output("out", 1, "int32"), 100],
        (1, 1, 1),
        (64, 1, 1),
        0,
    ),
    "padding": (PADDING, lambda: [given("a", 64, "int32"), output("out", 64, "int32")], (2, 1, 1), (64, 1, 1), 0),
    "partial_warps": (
        PARTIAL_WARPS,
        lambda: [given("a", 64, "int32"), output("out", 64, "int32")],
        (1, 1, 1),
        (64, 1, 1),
        0,
    ),
    "halves_of_words": (
        HALVES_OF_WORDS,
        lambda: [given("a", 64, "uint8"), output("bytes", 64, "uint8"), output("words", 64, "uint16")],
        (1, 1, 1),
        (64, 1, 1),
        192,
    ),
    "early_exit": (
        EARLY_EXIT,
        lambda: [given("a", 64, "int32"), output("out", 50, "int32"), 50],
        (1, 1, 1),
        (64, 1, 1),
        0,
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_kernels_are_silent(compiler: HostCompiler, name: str) -> None:
    """Correct kernels, most of them lock-free, give no report."""
    source, arguments, grid, block, shared_bytes = SOUND[name]
    found = seen(compiler, source, arguments(), grid=grid, block=block, shared_bytes=shared_bytes)
    assert not found, reports.listing(found)


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize(
    "name", ["last_block", "every_thread_fences", "spin_lock", "atomic_flag", "plain_first_read", "ring"]
)
def test_sound_in_any_order(compiler: HostCompiler, name: str, order: int) -> None:
    """Nor do they when blocks or threads run in another order."""
    source, arguments, grid, block, shared_bytes = SOUND[name]
    module = compiled(compiler, source)
    values = arguments()
    found = module.launch(grid, block, shared_bytes, pack(values), check="full", budget_s=20.0, workers=1, order=order)
    module.close()
    assert not found, reports.listing(found)


# ------------------------------------------------------------------------------------------------ counting

RACE = """
__global__ void kernel(const float* a, float* out)
{
    __shared__ float line[64];
    const int i = threadIdx.x;
    line[i] = a[i];
    out[blockIdx.x * 64 + i] = line[63 - i] + line[i ^ 1];
}
"""


def test_one_report_for_a_pair_of_lines(compiler: HostCompiler) -> None:
    """Many races of one pair of lines are one report with a count, the same in every launch."""
    module = compiled(compiler, RACE)
    values = [given("a", 64), output("out", 192)]
    first, again = (
        module.launch((3, 1, 1), (64, 1, 1), 0, pack(values), check="full", budget_s=20.0, workers=1) for _ in range(2)
    )
    module.close()
    races = [report for report in first if report.kind == "data race" and report.array == "line"]
    assert len(races) == 1
    assert races[0].count == 3 * (64 + 64)
    assert [reports.text(report) for report in first] == [reports.text(report) for report in again]


def test_bounds_mode_tells_no_races(compiler: HostCompiler) -> None:
    """Mode "bounds" reports neither races nor what is not written, and still stops what is out of bounds."""
    assert seen(compiler, RACE, [given("a", 64), output("out", 65)], check="bounds") == ()
    found = seen(compiler, RACE, [given("a", 64), output("out", 60)], check="bounds")
    assert [report.kind for report in found] == ["out of bounds"]
    assert found[0].index == 60


def test_access_out_of_bounds_does_not_reach_memory(compiler: HostCompiler) -> None:
    """The launch stops before memory next to an array changes."""
    both = np.zeros(128, np.float32)
    inner = Array("out", both[32:96], written=True)
    source = "__global__ void kernel(float* out) { out[(int)threadIdx.x - 1] = 1.0f; }"
    found = seen(compiler, source, [inner])
    assert [report.kind for report in found] == ["out of bounds"]
    assert found[0].index == -1
    assert not both.any()


def test_listing_is_bounded() -> None:
    """Behind the limit only the number of further reports is told, dropped ones included."""
    one = Report("out of bounds", "read", 4, "a", 9, (3, 3), 9, (0, 0, 0), (0, 0, 0), "k.cu", 3)
    dropped = Report("more", "", 0, "", None, (), 0, None, None, "", 0, count=7)
    said = reports.listing([one] * 5 + [dropped], limit=2).splitlines()
    assert len(said) == 3
    assert said[-1] == "and 10 more"


def test_many_kinds_are_dropped_not_lost(compiler: HostCompiler) -> None:
    """More different races than the table holds are counted as "more"."""
    lines = "\n".join(f"    line[(i + {k}) % 64] = i + {k};" for k in range(300))
    source = (
        f"__global__ void kernel(int* out)\n{{\n    __shared__ int line[64];\n    const int i = threadIdx.x;\n{lines}\n"
    )
    source += "    out[i] = line[i];\n}\n"
    found = seen(compiler, source, [output("out", 64, "int32")])
    assert len(found) <= 257
    assert found[-1].kind == "more"
    assert found[-1].count > 0


# ------------------------------------------------------------------------------------------------ arrays


def test_overlapping_arguments(compiler: HostCompiler) -> None:
    """Where an input and an output overlap, each access that one of them allows is allowed."""
    data = np.arange(64, dtype=np.float32)
    source = "__global__ void kernel(const float* a, float* out) { out[threadIdx.x] = 2.0f * a[threadIdx.x]; }"
    assert seen(compiler, source, [Array("a", data), Array("out", data[:64], written=True)]) == ()
    np.testing.assert_array_equal(data, 2.0 * np.arange(64, dtype=np.float32))


def test_nearest_array_is_named_by_the_place(compiler: HostCompiler) -> None:
    """The array that a line went over is the one it used before, however near another lies."""
    pool = np.zeros(64 + 4 + 64, np.float32)
    a, b = Array("a", pool[:64]), Array("b", pool[68:])
    source = """
    __global__ void kernel(const float* a, const float* b, float* out)
    {
        for (int i = 0; i < 67; ++i) out[0] = a[i] + b[0];
    }
    """
    found = seen(compiler, source, [a, b, zeros("out", 1, "float32")], block=(1, 1, 1))
    assert [(report.array, report.index) for report in found] == [("a", 64)]


def test_wild_pointer_is_near_no_array(compiler: HostCompiler) -> None:
    """An address far from every array is told as an address."""
    source = "__global__ void kernel(float* out, int n) { out[(long long)n << 20] = 1.0f; }"
    (report,) = seen(compiler, source, [zeros("out", 4, "float32"), 1 << 20], block=(1, 1, 1))
    assert "in no array of this call" in reports.text(report)


def test_races_of_double_elements(compiler: HostCompiler) -> None:
    """Elements of eight bytes are judged whole, and by halves where a kernel touches halves."""
    source = """
    __global__ void kernel(double* a)
    {
        unsigned* halves = reinterpret_cast<unsigned*>(a);
        halves[threadIdx.x] = threadIdx.x;
        FAULT
    }
    """
    values = [zeros("a", 32, "float64")]
    assert seen(compiler, source.replace("FAULT", ""), values) == ()
    (report,) = seen(compiler, source.replace("FAULT", "a[threadIdx.x / 2] = 1.0;"), values)
    assert (report.kind, report.array, report.index) == ("data race", "a", 0)


@pytest.mark.parametrize(
    ("unit", "size"),
    [*(("unsigned char", n) for n in (1, 2, 3, 5, 7, 8, 12, 16, 17, 33, 64)), *(("int", n) for n in (3, 5, 16, 33))],
)
def test_structs_of_every_size_are_seen(compiler: HostCompiler, size: int, unit: str) -> None:
    """However a compiler copies a struct, it misses no write: all are told as written, and the one past is found."""
    width = 4 if unit == "int" else 1
    source = f"""
    struct S {{ {unit} items[{size}]; }};
    __global__ void kernel(const S* a, S* out, S* constants, int n)
    {{
        __shared__ S line[8];
        line[threadIdx.x] = a[threadIdx.x];
        __syncthreads();
        S one = line[7 - threadIdx.x];
        one.items[0] += 1;
        for (int i = threadIdx.x; i < n; i += 8) out[i] = one;
        for (int k = 0; k < {size}; ++k) constants[threadIdx.x].items[k] = k;
    }}
    """
    dtype = "int32" if width == 4 else "uint8"
    arguments = [given("a", 8 * size, dtype), output("out", 16 * size, dtype), output("constants", 8 * size, dtype)]
    assert seen(compiler, source, [*arguments, 16], block=(8, 1, 1)) == ()
    (report,) = seen(compiler, source, [*arguments, 17], block=(8, 1, 1))
    assert (report.kind, report.array, report.index) == ("out of bounds", "out", 16 * size)


def test_runs_of_stores_are_seen(compiler: HostCompiler) -> None:
    """Neighbouring stores that a compiler could merge into a wide one are seen."""
    source = """
    __global__ void kernel(const float* a, float* out, int* numbers)
    {
        for (int k = 0; k < 32; ++k) out[k] = a[k] * 2.0f;
    #define TEN(n) numbers[n] = n; numbers[n + 1] = n; numbers[n + 2] = 3; numbers[n + 3] = 4; numbers[n + 4] = 5;
        TEN(0) TEN(5) TEN(10) TEN(15) TEN(20) TEN(25)
    }
    """
    arguments = [given("a", 32), output("out", 32), output("numbers", 30, "int32")]
    assert seen(compiler, source, arguments, block=(1, 1, 1)) == ()


def test_memory_is_given_back(compiler: HostCompiler) -> None:
    """Shadow memory of a large launch is not kept, and the clock goes on."""
    source = (
        "__global__ void kernel(float* out, int n) { for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = i; }"
    )
    large = 1 << 22
    assert seen(compiler, source, [output("out", large), large]) == ()
    (shadow,) = regions._idle[-1:]
    assert shadow.cells.size <= 64 << 20
    before = shadow.now
    assert seen(compiler, source, [output("out", 64), 64]) == ()
    assert shadow.now > before


def test_clock_starts_over(compiler: HostCompiler) -> None:
    """Before the clock ends, memory and clock are made anew."""
    source = "__global__ void kernel(float* out) { out[threadIdx.x] = 1.0f; }"
    assert seen(compiler, source, [output("out", 64)]) == ()
    regions._idle[-1].now = 0xC0000001
    assert seen(compiler, source, [output("out", 64)]) == ()
    assert seen(compiler, source, [output("out", 64)]) == ()
    assert all(shadow.now < 0xC0000000 for shadow in regions._idle)


def test_old_notes_are_old(compiler: HostCompiler) -> None:
    """What an earlier launch wrote is undefined again in a fresh output of a later one."""
    source = "__global__ void kernel(float* out, int n) { if (threadIdx.x < n) out[threadIdx.x] = 1.0f; }"
    module = compiled(compiler, source)
    data = output("out", 64)
    case = Case("case", "", "", lambda: [])
    assert launch(module, case, [data, 64]) == ((), None)
    ((report,), _) = launch(module, case, [data, 60])
    module.close()
    assert (report.kind, report.index, report.count) == ("never written", 60, 4)


def test_struct_arguments_are_no_arrays(compiler: HostCompiler) -> None:
    """A kernel's own arguments are read without a report."""
    source = """
    struct Sizes { int rows, columns; float scale[6]; };
    __global__ void kernel(float* out, const Sizes sizes)
    {
        out[threadIdx.x] = sizes.scale[threadIdx.x % 6] * sizes.rows * sizes.columns;
    }
    """
    module = compiled(compiler, source)
    out = output("out", 64)
    values = [*pack([out]), struct.pack("<2i6f", 2, 3, *range(6))]
    assert module.launch((1, 1, 1), (64, 1, 1), 0, values, check="full", budget_s=20.0, workers=1) == ()
    module.close()
    assert out.data[5] == 30.0
