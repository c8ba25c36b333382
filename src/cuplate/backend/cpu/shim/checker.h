// The checker: what the runtime and the device headers tell it. Included by runtime.h when CUPLATE_CHECK is
// defined.
//
// A checked kernel is compiled with -fsanitize=thread, bounds and alignment, but without those sanitizers'
// libraries: checker.cpp answers the compilers' call-backs (__tsan_read4, __ubsan_handle_out_of_bounds,
// ...). Every access to memory in the kernel's translation unit so arrives there, with the return address
// as its place in the source. The functions below tell what the call-backs cannot: what orders threads, and
// accesses that no call-back sees.
//
// Code of the shim that is inlined into kernel lines is instrumented too. The runtime's own state (Worker,
// stacks, argument buffer) lies in address ranges that the checker leaves alone; memory of the kernel that
// shim code touches is reported at the line of the kernel that called it (reports.py finds it through the
// inlined call sites).
#ifndef CUPLATE_CHECKER_H
#define CUPLATE_CHECKER_H

namespace cuplate {

// What an atomic operation is to the checker.
enum Atomic : int {
    ATOMIC_ADD = 0,      // add, sub, inc, dec: reads and writes
    ATOMIC_COMPARE = 1,  // cas, min, max, and, or, xor, exch: what may follow a plain first look at the same element
    ATOMIC_LOAD = 2,     // __nv_atomic_load_n and its kind: reads
    ATOMIC_STORE = 3     // __nv_atomic_store_n and its kind: writes
};

extern "C" {
#pragma GCC visibility push(hidden)

// Once for a launch, on the worker's thread, before its first block: Worker's stacks, dynamic memory,
// launch are set.
void chk_launch_begin(Worker* w);
// After the last block, also of a launch that was stopped.
void chk_launch_end(Worker* w);
// Before a block's first thread runs: block_index, bid, threads, dynamic_bytes are set.
void chk_block_begin(Worker* w);

// Every thread of the block that has not exited has arrived; called once, before any of them goes on.
void chk_barrier(Worker* w);
// The lanes in `mask` of warp number `warp` have met in __syncwarp; called once, before any of them goes
// on. NOT for shuffles, votes and the like: those do not order memory.
void chk_warp(Worker* w, unsigned warp, unsigned mask);
// __threadfence_block, __threadfence, __threadfence_system (scope 0, 1, 2) of the current thread.
void chk_fence(Worker* w, int scope);
// Before an atomic operation (enum Atomic) of the current thread. The operation itself must then run in
// code that is not instrumented: the runtime's object, or on copies made by cuplate_copy.
void chk_atomic(const volatile void* address, unsigned bytes, int kind, const char* file, int line);

// An access that shim code makes for the kernel's line `line`, where the compiler's call-backs do not see
// it (memcpy with g++, asynchronous copies, matrix fragments). Any count of bytes, no alignment asked.
// Returns if it is allowed.
void chk_read(const volatile void* address, unsigned long bytes, const char* file, int line);
void chk_write(const volatile void* address, unsigned long bytes, const char* file, int line);
// The same where the address has to be a multiple of `alignment`, a power of two; `writes`: 0 reads, 1
// writes.
void chk_aligned(const volatile void* address, unsigned alignment, unsigned long bytes, int writes, const char* file,
                 int line);

#pragma GCC visibility pop
}

}  // namespace cuplate
#endif
