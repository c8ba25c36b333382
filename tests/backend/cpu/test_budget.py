"""It ends: the budget, Ctrl-C and faults stop a kernel, and the process goes on."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from cuplate.backend.cpu.engine import BudgetExceeded, KernelFault

SPIN = """
extern "C" __global__ void k(volatile int* flag) {
    while (*flag == 0) { }
}
"""
HARMLESS = 'extern "C" __global__ void k(int* a) { a[threadIdx.x] = threadIdx.x; }'


def works(compiled) -> None:
    """The process still runs kernels."""
    a = np.zeros(64, np.int32)
    compiled(HARMLESS)(1, 64, a)
    assert a.tolist() == list(range(64))


@pytest.mark.parametrize("check", ["off", "full"])
def test_a_loop_on_a_volatile_read_ends_with_the_budget(compiled, check):
    """Nothing in the loop calls the runtime, and it is stopped all the same, with the count of blocks done."""
    kernel = compiled(SPIN, check=check)
    with pytest.raises(BudgetExceeded) as caught:
        kernel(3, 64, np.zeros(1, np.int32), check=check, budget_s=0.15)
    assert (caught.value.blocks_done, caught.value.blocks) == (0, 3)
    assert "0 of 3 blocks" in str(caught.value)
    works(compiled)


def test_blocks_done_before_the_budget_are_counted(compiled):
    """The first two blocks end, the third waits for ever."""
    text = 'extern "C" __global__ void k(volatile int* flag) { if (blockIdx.x == 2) while (*flag == 0) { } }'
    with pytest.raises(BudgetExceeded) as caught:
        compiled(text)(5, 32, np.zeros(1, np.int32), budget_s=0.15)
    assert caught.value.blocks_done == 2


def test_every_worker_ends_with_the_budget(compiled):
    """Each OS thread has its own timer, so those of the pool end too, and are there for the next launch."""
    for _ in range(2):
        with pytest.raises(BudgetExceeded):
            compiled(SPIN)(8, 32, np.zeros(1, np.int32), budget_s=0.15, workers=3)
    a = np.zeros(1, np.int32)
    compiled('extern "C" __global__ void k(int* a) { atomicAdd(a, 1); }')(64, 32, a, workers=3)
    assert a[0] == 2048


def test_a_spin_lock_that_nobody_frees_ends_with_the_budget(compiled):
    """A lost compare-and-swap lets other threads run, and still looks at the time."""
    text = 'extern "C" __global__ void k(int* lock) { while (atomicCAS(lock, 0, 1) != 0) { } }'
    with pytest.raises(BudgetExceeded):
        compiled(text)(1, 64, np.ones(1, np.int32), budget_s=0.15)


def test_a_spin_lock_within_a_block_works(compiled):
    """Threads of one block take a lock in turns, though all are one OS thread."""
    text = """
    extern "C" __global__ void k(int* lock, int* count) {
        while (atomicCAS(lock, 0, 1) != 0) { }
        __syncwarp(1u << (threadIdx.x % 32));
        *count = *count + 1;
        __threadfence();
        atomicExch(lock, 0);
    }
    """
    count = np.zeros(1, np.int32)
    compiled(text)(4, 64, np.zeros(1, np.int32), count)
    assert count[0] == 256


def test_a_thread_that_waits_for_another_of_its_block_by_a_volatile_read_goes_on(compiled):
    """Hardware runs both threads; here the waiting one is made to yield."""
    text = """
    extern "C" __global__ void k(volatile int* flag, int* out) {
        if (threadIdx.x == 0) { while (*flag == 0) { } out[0] = 7; }
        else if (threadIdx.x == 63) { *flag = 1; }
    }
    """
    out = np.zeros(1, np.int32)
    compiled(text)(1, 64, np.zeros(1, np.int32), out)
    assert out[0] == 7


@pytest.fixture
def interruptible():
    """Ctrl-C as Python has it; a shell starts what it puts into the background with the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_stops_a_kernel_of_the_main_thread(compiled, workers):
    """KeyboardInterrupt is raised where the launch was called, long before the budget."""
    kernel = compiled(SPIN)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        kernel(4, 32, np.zeros(1, np.int32), budget_s=60, workers=workers)
    assert time.monotonic() - began < 30
    works(compiled)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_leaves_a_kernel_of_another_thread_alone(compiled):
    """As in Python, the signal is the main thread's."""
    kernel = compiled(SPIN)
    flag = np.zeros(1, np.int32)
    outcome: list[BaseException] = []

    def launch() -> None:
        try:
            kernel(1, 32, flag, budget_s=0.6)
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=launch)
    thread.start()
    time.sleep(0.1)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
    thread.join()
    assert isinstance(outcome[0], BudgetExceeded)


FAULTS = {
    "null": ("int* p = (int*)(long long)a[0]; *p = 1;", "illegal access", "null pointer"),
    "wild": (
        "*(volatile int*)0x123456789000 = 1;",
        "illegal access",
        "write at address 0x123456789000, which is near no array",
    ),
    "behind": ("b[n] = 1;", "illegal access", "write at a1[64] (64 elements)"),
    "read behind": ("b[0] = a[n + threadIdx.x];", "illegal access", "read at a0[67] (64 elements)"),
    "before": ("b[-5000] = 1;", "illegal access", "write at a1[-5000]"),
    "division": ("b[0] = n / a[0];", "division by zero", "of integers"),
    "recursion": ("b[0] = deep(n);", "stack overflow", "256 KiB"),
    "large": (
        "volatile char big[1 << 20]; for (int i = 0; i < n; ++i) big[i * 5] = i; b[0] = big[n];",
        "stack overflow",
        "",
    ),
    "misaligned": (
        "typedef float V __attribute__((vector_size(16))); *(volatile V*)(b + 1) = V{};",
        "illegal access",
        "misaligned",
    ),
    "jump": ("((void (*)())(long long)(n))();", "illegal access", "null pointer"),
    "trap": ("__trap();", "trap", "__trap()"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_an_error_that_names_it(compiled, name):
    """Unchecked: the process lives, the error has kind, thread and block, and the next launch is right."""
    statement, kind, detail = FAULTS[name]
    text = """
    __device__ __noinline__ int deep(int n) { volatile int x[64]; x[n % 64] = n; return deep(n + 1) + x[3]; }
    extern "C" __global__ void k(const int* a, int* b, int n) {
        __syncthreads();
        if (blockIdx.x == 1 && threadIdx.x == 3 && threadIdx.y == 1) { STATEMENT }
    }
    """
    kernel = compiled(text.replace("STATEMENT", statement))
    with pytest.raises(KernelFault) as caught:
        kernel(2, (4, 2), np.zeros(64, np.int32), np.zeros(64, np.int32), np.int32(64))
    fault = caught.value
    assert fault.kind == kind
    assert detail in fault.detail
    if name != "large":  # clang makes room in the function's first instruction, which every thread runs
        assert (fault.thread, fault.block) == ((3, 1, 0), (1, 0, 0))
        assert "thread (3, 1, 0) of block (1, 0, 0)" in str(fault)
    works(compiled)


def test_the_thread_of_a_fault_is_named_in_three_dimensions(compiled):
    """The linear index of a fiber is turned into x, y and z."""
    text = 'extern "C" __global__ void k(int* a) { if (threadIdx.y == 1 && threadIdx.z == 2) *(volatile int*)8 = 1; }'
    with pytest.raises(KernelFault) as caught:
        compiled(text)(1, (4, 2, 3), np.zeros(1, np.int32))
    assert caught.value.thread == (0, 1, 2)
    assert caught.value.line == 1
    assert caught.value.file == "kernel.cu"


@pytest.mark.parametrize("step", [0, 4096, 65536])
def test_static_shared_memory_ends_at_a_guard_page(compiled, step):
    """A write behind a block's variables cannot reach the process's heap."""
    text = """
    extern "C" __global__ void k(int* a, int n) {
        __shared__ int part[64];
        for (int i = 0; i < n; ++i) part[i] = i;
        __syncthreads();
        a[threadIdx.x] = part[threadIdx.x];
    }
    """
    kernel = compiled(text)
    assert kernel.module.static_shared_bytes == 256
    with pytest.raises(KernelFault, match="outside of the block's __shared__ variables"):
        kernel(1, 64, np.zeros(64, np.int32), np.int32(64 + 4096 + step))
    a = np.zeros(64, np.int32)
    kernel(1, 64, a, np.int32(64))
    assert a.tolist() == list(range(64))


def test_dynamic_shared_memory_ends_at_a_guard_page(compiled):
    """The first byte behind it, rounded up to 16, is a fault that names it."""
    text = """
    extern "C" __global__ void k(int* a, int n) {
        extern __shared__ int part[];
        part[n] = 1;
        a[0] = part[n];
    }
    """
    kernel = compiled(text)
    kernel(1, 1, np.zeros(1, np.int32), np.int32(63), shared_bytes=256)
    with pytest.raises(KernelFault, match="byte 256 of the 256 bytes of dynamic shared memory"):
        kernel(1, 1, np.zeros(1, np.int32), np.int32(64), shared_bytes=256)


def test_what_a_kernel_wrote_before_it_was_stopped_is_not_copied_back(compiled):
    """Unchecked, arrays are copies: a launch that fails leaves the caller's as they were."""
    a = np.zeros(64, np.int32)
    with pytest.raises(KernelFault):
        compiled('extern "C" __global__ void k(int* a) { a[3] = 1; a[threadIdx.x + 64] = 1; }')(1, 64, a)
    assert not a.any()


def test_handlers_of_before_are_back_after_a_launch(compiled):
    """Whoever had the signals before has them again, and has them for what is not a kernel's."""
    seen = []
    before = signal.signal(signal.SIGSEGV, lambda *_: seen.append(1))
    try:
        works(compiled)
        with pytest.raises(KernelFault):
            compiled('extern "C" __global__ void k(int* a) { *(volatile int*)8 = 1; }')(1, 1, np.zeros(1, np.int32))
        os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(0.01)
        assert seen == [1]
    finally:
        signal.signal(signal.SIGSEGV, before)


def in_child(code: str) -> subprocess.CompletedProcess[str]:
    """Runs the code in a process of its own."""
    head = f"""
    import sys, os, signal, threading, time, faulthandler
    sys.path.insert(0, {str(Path(__file__).parent)!r})
    import numpy as np
    from conftest import *
    from conftest import _three
    def compiled(text, check="off"):
        return Kernel(Module(image(find_compiler("g++"), text, ("k",), check, Options(), ())))
    SPIN = {SPIN!r}
    """
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(head) + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.skipif(sys.platform != "linux" or os.uname().machine != "x86_64", reason="the number of a rounding mode")
@pytest.mark.parametrize("check", ["off", "full"])
def test_how_the_process_rounds_is_neither_the_kernels_nor_lost(compiled, check):
    """A kernel rounds to nearest whatever the process has set, which is there again after a launch that was stopped."""
    divide = compiled(
        'extern "C" __global__ void k(const float* a, float* b) { b[threadIdx.x] = a[threadIdx.x] / 3.0f; }',
        check=check,
    )
    endless = compiled(SPIN, check=check)
    a, b = np.ones(1, np.float32), np.zeros(1, np.float32)
    library = ctypes.CDLL(None)
    toward_zero = 0xC00
    try:
        library.fesetround(toward_zero)
        divide(1, 1, a, b, check=check)
        with contextlib.suppress(BudgetExceeded):
            endless(1, 1, np.zeros(1, np.int32), check=check, budget_s=0.1)
        outside = (a / np.float32(3)).view(np.uint32)[0]
        mode = library.fegetround()
    finally:
        library.fesetround(0)
    assert b.view(np.uint32)[0] == 0x3EAAAAAB
    assert outside == 0x3EAAAAAA
    assert mode == toward_zero


def test_faulthandler_still_reports_a_crash_that_is_not_a_kernels():
    """In another thread while a kernel runs, and afterwards, a real crash is faulthandler's."""
    code = """
    faulthandler.enable()
    import ctypes
    kernel = compiled(SPIN)
    flag = np.zeros(1, np.int32)
    threading.Timer(0.2, lambda: ctypes.string_at(8)).start()
    kernel(1, 32, flag, budget_s=20)
    """
    done = in_child(code)
    assert done.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in done.stderr
    assert "string_at" in done.stderr


def test_a_child_of_fork_can_launch():
    """The child has none of its parent's threads, and makes its own."""
    code = """
    kernel = compiled('extern "C" __global__ void k(int* a) { atomicAdd(a, 1); }')
    a = np.zeros(1, np.int32)
    kernel(64, 32, a, workers=2)
    child = os.fork()
    if child == 0:
        b = np.zeros(1, np.int32)
        kernel(64, 32, b, workers=2)
        os._exit(0 if b[0] == 2048 else 3)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status
    kernel(64, 32, a, workers=2)
    assert a[0] == 4096
    """
    done = in_child(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("check", ["off", "full"])
def test_a_child_can_launch_what_another_thread_was_launching(check):
    """At the fork that thread is within the kernel; what it holds is free in the child."""
    code = f"""
    kernel = compiled(SPIN, check={check!r})
    def spin():
        try:
            kernel(1, 1, np.zeros(1, np.int32), check={check!r}, budget_s=3)
        except BudgetExceeded:
            pass
    from cuplate.backend.cpu.engine import BudgetExceeded
    kernel(1, 1, np.ones(1, np.int32), check={check!r})
    thread = threading.Thread(target=spin)
    thread.start()
    while not kernel.module._running:
        time.sleep(0.01)
    time.sleep(0.2)
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        for _ in range(3):
            kernel(1, 1, np.ones(1, np.int32), check={check!r})
        assert not kernel.module._running
        kernel.module.close()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status
    thread.join()
    kernel(1, 1, np.ones(1, np.int32), check={check!r})
    """
    done = in_child(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("check", ["off", "full"])
def test_a_handler_of_a_signal_may_launch_what_it_interrupts(check):
    """It runs when the kernel has returned and the launch is not yet over; then both are."""
    code = f"""
    from cuplate.backend.cpu.engine import BudgetExceeded
    from cuplate.backend.cpu.interrupts import signals
    faulthandler.dump_traceback_later(60, exit=True)
    kernel = compiled(SPIN, check={check!r})
    handled = []
    def handler(*_):
        kernel(1, 1, np.ones(1, np.int32), check={check!r})
        handled.append(len(kernel.module._running))
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        kernel(1, 1, np.zeros(1, np.int32), check={check!r}, budget_s=1)
    except BudgetExceeded:
        handled.append("budget")
    assert handled == [1, "budget"], handled
    with kernel.module._lock, signals.lock:  # or while one of the short locks is held
        kernel(1, 1, np.ones(1, np.int32), check={check!r})
    assert not kernel.module._running and not signals.running
    try:
        kernel(1, 1, np.zeros(1, np.int32), check={check!r}, budget_s=0.1)
    except BudgetExceeded:
        handled.append("budget")  # the handlers of the runtime are still put in place
    assert len(handled) == 3
    """
    done = in_child(code)
    assert done.returncode == 0, done.stderr


def test_memory_stays_flat_over_a_thousand_launches(compiled):
    """Workers, stacks, guarded copies and argument buffers are used again."""
    kernel = compiled(
        """extern "C" __global__ void k(int* a) {
        __shared__ int s[64];
        s[threadIdx.x] = a[threadIdx.x];
        __syncthreads();
        a[threadIdx.x] = s[63 - threadIdx.x];
        if (a[0] > 1000000) printf("%d", a[0]);
    }"""
    )
    a = np.arange(64, dtype=np.int32)

    def mapped() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1])

    for _ in range(50):
        kernel(4, 64, a, workers=2)
    before = mapped()
    for _ in range(1000):
        kernel(4, 64, a, workers=2)
    assert mapped() - before < 256  # pages


def test_threads_may_launch_at_the_same_time(compiled):
    """Each launch has its own workers; one that is stopped does not stop another."""
    good = compiled('extern "C" __global__ void k(int* a, int n) { for (int i = 0; i < n; ++i) atomicAdd(a, 1); }')
    bad = compiled(SPIN)
    failures: list[str] = []

    def run(number: int) -> None:
        a = np.zeros(1, np.int32)
        if number % 3 == 0:
            with contextlib.suppress(BudgetExceeded):
                bad(1, 32, a, budget_s=0.2)
                failures.append("the loop ended")
            return
        for _ in range(20):
            a[0] = 0
            good(8, 32, a, np.int32(10), workers=2)
            if a[0] != 2560:
                failures.append(f"{a[0]}")

    threads = [threading.Thread(target=run, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
