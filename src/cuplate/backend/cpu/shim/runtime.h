// What the shim, the runtime and the checker share: the state of one worker, and the calls into the runtime.
//
// A worker is one OS thread that runs one block at a time; the threads of the block are fibers of that OS thread. So
// thread_local storage is storage per block, which is how __shared__ variables are made, and no two threads of a block
// ever run at the same moment. Includes no system header: kernels compile where there are none.
#ifndef CUPLATE_RUNTIME_H
#define CUPLATE_RUNTIME_H

#include "vector_types.h"

#define CUPLATE_EXPORT extern "C" __attribute__((visibility("default")))
#define CUPLATE_HIDDEN __attribute__((visibility("hidden")))

// Bumped whenever a structure below changes: engine.py refuses an image of another layout.
#define CUPLATE_ABI 9

namespace cuplate {

typedef __UINTPTR_TYPE__ address_t;
typedef unsigned long long u64;
typedef long long s64;

enum : unsigned { WARP = 32, MAX_THREADS = 1024, MAX_WARPS = MAX_THREADS / WARP };
enum : unsigned { AHEAD = 2 };                 // how many turns before its own a thread's stack is fetched
enum : unsigned { GUARD_BYTES = 16384 };        // of the pages around the __shared__ variables
enum : unsigned { MAX_SHARED_BYTES = 232448 }; // of a block on the largest GPU of today (compute capability 9.0)

// Why a launch stopped before its last block; engine.py has the same numbers.
enum Reason : int {
    REASON_NONE = 0,
    REASON_BUDGET = 1,      // time was up
    REASON_INTERRUPT = 2,   // Ctrl-C
    REASON_SIGNAL = 3,      // illegal access, division by zero, illegal instruction
    REASON_ASSERT = 4,
    REASON_TRAP = 5,
    REASON_DEADLOCK = 6,    // no thread of the block can go on
    REASON_DIVERGENCE = 7,  // a barrier or warp operation that not all who should meet in it
    REASON_REPORT = 8,      // the checker saw something after which going on makes no sense
    REASON_UNSUPPORTED = 9,
};

// What a lane waits for, or what lanes meet in; engine.py names them.
enum Operation : int {
    OP_BARRIER = 0,
    OP_SYNCWARP = 1,
    OP_SHFL = 2,
    OP_SHFL_UP = 3,
    OP_SHFL_DOWN = 4,
    OP_SHFL_XOR = 5,
    OP_BALLOT = 6,
    OP_ANY = 7,
    OP_ALL = 8,
    OP_MATCH_ANY = 9,
    OP_MATCH_ALL = 10,
    OP_REDUCE = 11,
    OP_COLLECTIVE = 12,     // of a header built on rendezvous(): cooperative groups, wmma
    OP_BARRIER_COUNT = 13,
    OP_BARRIER_AND = 14,
    OP_BARRIER_OR = 15,
};

// A place in the source. As the default argument of a shim function it is the line of the kernel that calls it.
struct Site {
    const char* file;
    int line;
    static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
        return Site{file, line};
    }
};
#define CUPLATE_SITE ::cuplate::Site site = ::cuplate::Site::here()

// One thread of the block while another runs. Neighbours take turns, so what a turn needs lies together.
struct Fiber {
    void* stack;         // where it goes on
    const char* file;    // of the barrier or warp operation that it waits at
    int line;
    uint3 tid;
};

// What else belongs to a thread, most of it for warp operations.
struct Lane {
    u64 value;           // what it brings to a warp operation
    unsigned mask;       // of that warp operation
    unsigned present;    // lanes that took part in its last one
    int operation;       // that it waits at; OP_BARRIER when it comes from another, which settle() counts on
    unsigned short slot; // which stack it runs on
    unsigned short meeting; // of Worker::meetings, where its last warp operation left what was brought
    unsigned short warp_epoch;
};

struct Launch {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z;
    u64 blocks;          // of the grid
    u64 next;            // block to hand out, atomic
    u64 done;            // blocks finished, atomic
    int stop;            // a Reason, atomic: no worker starts another block
    unsigned chunk;      // blocks handed out at a time
    unsigned checked;    // 0 off, 1 bounds, 2 full
    unsigned order;      // bit 0: blocks from the last; bit 1: threads from the last
    unsigned interruptible; // Ctrl-C stops it
    unsigned ticking;    // set by a worker that could not make a timer: the caller must tick
    void (*entry)(void**);
    void** arguments;
    char* (*dynamic)();  // where a kernel declares dynamic shared memory outside of functions; else null
    s64 deadline_ns;     // CLOCK_MONOTONIC
    s64 tick_ns;         // how often the running thread looks at the clock
    s64 budget_ns;       // for the message
    struct Slot* slots;  // of the process: which OS thread is which worker
};

// A group of neighbouring threads that wait at one place, for the message of a deadlock.
struct Waiting {
    unsigned first, last;
    int operation;
    unsigned mask;
    Site site;
};

struct Fault {
    int reason;
    int signal;
    address_t address;   // of an illegal access
    address_t pc, stack_pointer;
    int access;          // 1 read, 2 write, 0 unknown, 3 no address
    unsigned thread;     // index in the block
    unsigned waiting_count;
    uint3 block;
    Site site;
    address_t shared_low, shared_high; // where the block's __shared__ variables are
    char text[256];
    Waiting waiting[8];
};

struct Worker {
    Worker* worker;      // itself: what the segment register leads to
    unsigned current;    // index in the block of the thread that runs now
    // Threads run_first to run_last could all go on when the first of them did. Those of them before the current one
    // wait at a __syncthreads() since: settle() says so where it matters.
    unsigned run_last, run_first;
    Fiber fibers[MAX_THREADS + AHEAD] __attribute__((aligned(64)));
    uint3 bid;
    dim3 block_dim, grid_dim;
    unsigned threads, warps;
    unsigned started;    // threads of this block that have begun
    unsigned alive;      // threads of this block that have not ended
    unsigned barrier_count, barrier_sum, barrier_result, barrier_alive;
    unsigned epoch;      // rises at every block-wide barrier and every new block, never falls within a launch
    unsigned free_slots;
    u64 first_thread;    // index in the grid of the block's thread 0
    u64 block_index;
    void* launcher;      // stack of run()
    Launch* launch;
    char* stacks;        // MAX_THREADS stacks, each above a guard page
    address_t stack_bytes, stack_stride;
    char* dynamic;       // dynamic shared memory
    u64 dynamic_bytes;
    char* print_buffer;  // records of printf(), of which print_used bytes are whole ones
    u64 print_capacity, print_used, print_dropped;
    char* signal_stack;
    u64 signal_stack_bytes;
    volatile int inside; // fibers run
    // Of the image that runs. The signal handler is another image's, whose code and thread-local variables are not ours.
    void (*on_tick)(Worker*, address_t stack_pointer, address_t pc);
    unsigned spins;
    unsigned switches;   // counts changes of the running thread, those within a run aside
    unsigned last_switches, last_current, still_ticks; // how many ticks it has not changed
    u64 print_at;        // where the record that is being written ends so far
    volatile address_t follows; // the kernel's call for which the runtime follows a pointer: a fault there is the call's
    unsigned checked;
    unsigned reversed;
    unsigned runnable[MAX_WARPS], at_barrier[MAX_WARPS], living[MAX_WARPS], arrived[MAX_WARPS];
    // What each lane brought to a warp operation. Lanes read it when they run next, and by then others of the warp may
    // have met again under another mask: each meeting has a row of its own until its lanes have come to their next one.
    u64 meetings[MAX_WARPS][WARP + 1][WARP];
    unsigned readers[MAX_WARPS][WARP + 1]; // lanes whose last meeting that was
    unsigned short free_slot[MAX_THREADS];
    void* slot_stack[MAX_THREADS];
    Lane lanes[MAX_THREADS];
    Fault fault;
};

struct Slot {
    int thread;          // OS thread id, 0 when free, atomic
    Worker* worker;
};

extern "C" __attribute__((const)) CUPLATE_HIDDEN Worker* cuplate_self();

// The worker that this OS thread runs. On x86-64 Linux the gs segment, which nothing else uses there, begins with its
// address while a launch runs: a load, where a thread-local variable of a loaded library is a call.
extern __thread Worker* current_worker CUPLATE_HIDDEN;
#if defined(__x86_64__) && defined(__linux__)
#define CUPLATE_SEGMENT 1
#endif

CUPLATE_SHIM Worker* self() {
#if !defined(CUPLATE_RUNTIME)
    // A function without side effects, whose one result a compiler keeps for the whole kernel; assembly it would not.
    return cuplate_self();
#elif defined(CUPLATE_SEGMENT)
    Worker* worker;
    __asm__("movq %%gs:%c1, %0" : "=r"(worker) : "i"(0));
    return worker;
#else
    return current_worker;
#endif
}

CUPLATE_SHIM void wait_at(Worker* w, Site site) {
    w->fibers[w->current].file = site.file;
    w->fibers[w->current].line = site.line;
}

CUPLATE_SHIM unsigned lane() {
    return self()->current & (WARP - 1);
}

// What each lane brought to the caller's last warp operation.
CUPLATE_SHIM const u64* brought() {
    Worker* w = self();
    return w->meetings[w->current / WARP][w->lanes[w->current].meeting];
}

extern "C" {
#pragma GCC visibility push(hidden)
// Block-wide barrier; returns how many of the block's threads brought a predicate that is not 0.
unsigned cuplate_barrier(int predicate, int operation, Site site);
// Makes Worker's masks say which threads wait at a barrier.
void cuplate_settle();
// Lanes of `mask` that have not exited meet; returns which were there. Afterwards brought()[lane] is what each brought,
// until the caller's next operation.
unsigned cuplate_rendezvous(unsigned mask, u64 value, int operation, Site site);
// A rendezvous after which the caller gets what lane `source` brought (its own value if that lane was not there).
u64 cuplate_shuffle(unsigned mask, u64 value, unsigned source, int operation, Site site);
// A rendezvous of votes: lanes that brought 1.
unsigned cuplate_ballot(unsigned mask, unsigned vote, int operation, Site site);
// A rendezvous of values: lanes that brought the same as the caller.
unsigned cuplate_match(unsigned mask, u64 value, int operation, Site site);
// Ends the launch.
__attribute__((noreturn)) void cuplate_fail(int reason, const char* text, Site site);
// Lets another thread of the block run.
void cuplate_yield();
u64 cuplate_clock();
// One record of printf: begin, then one call per argument, then end.
void cuplate_print_begin(const char* format);
void cuplate_print_integer(u64 value);
void cuplate_print_real(double value);
void cuplate_print_text(const char* text);
void cuplate_print_end();
// While the image is loaded: a declaration of dynamic shared memory wants this alignment.
void cuplate_align_dynamic(size_t bytes);
// Copies that the checker does not see.
void cuplate_copy(volatile void* to, const volatile void* from, unsigned bytes);
#pragma GCC visibility pop
}

// Every register that a compiler for x86-64 may keep something in, less rbx and rbp, from which it may reach the frame.
#if defined(CUPLATE_SEGMENT) && !defined(CUPLATE_CHECK)
#ifdef __AVX512F__
#define CUPLATE_AVX512_REGISTERS                                                                                       \
    , "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27",      \
        "xmm28", "xmm29", "xmm30", "xmm31", "k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7"
#else
#define CUPLATE_AVX512_REGISTERS
#endif
#ifdef __APX_F__
#define CUPLATE_APX_REGISTERS                                                                                          \
    , "r16", "r17", "r18", "r19", "r20", "r21", "r22", "r23", "r24", "r25", "r26", "r27", "r28", "r29", "r30", "r31"
#else
#define CUPLATE_APX_REGISTERS
#endif
#define CUPLATE_REGISTERS                                                                                              \
    "rax", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", \
        "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "st", "st(1)",   \
        "st(2)", "st(3)", "st(4)", "st(5)", "st(6)", "st(7)" CUPLATE_AVX512_REGISTERS CUPLATE_APX_REGISTERS
#endif

// Block-wide barrier.
CUPLATE_SHIM void sync(Site site) {
#if defined(CUPLATE_SEGMENT) && !defined(CUPLATE_CHECK)
    // A call after which nothing is in a register: what the thread still needs the compiler has put into its frame, once
    // for all barriers if it does not change. A called function would have to save and restore what it preserves.
    const char* file = site.file;
    int line = site.line;
    __asm__ volatile("call cuplate_sync" : "+D"(file), "+S"(line) : : CUPLATE_REGISTERS, "cc", "memory");
#else
    cuplate_barrier(0, OP_BARRIER, site);
#endif
}

}  // namespace cuplate

#ifdef CUPLATE_CHECK
#if defined(__has_include) && __has_include("checker.h")
#include "checker.h"
#else
#define CUPLATE_NO_CHECKER 1
#endif
#endif

#endif
