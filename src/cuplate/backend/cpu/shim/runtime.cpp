// Runs the blocks of a grid: fibers, barriers, warp operations, and how a launch is stopped.
//
// A block's threads are fibers of one OS thread. A thread starts when the one before it waits or ends; one that ends
// without ever waiting leaves its stack to the next, so a kernel without barriers is a plain loop over its threads.
//
// How a launch ends early
// -----------------------
// There is one way out: leave(), which notes why and switches to the launcher's stack, abandoning every fiber. It is
// taken from the runtime (assert, trap, deadlock) and from one signal handler, which runs on its own stack:
//
// * a fault of the kernel (SIGSEGV, SIGBUS, SIGFPE, SIGILL) in a thread that runs fibers is noted and left by leave();
// * a tick (SIGURG, from a timer aimed at this very OS thread) looks at the clock and at Launch::stop. The budget is
//   that, so loops that never call the runtime end as well;
// * Ctrl-C (SIGINT) first runs the handler that was there, so that Python sees it, then sets Launch::stop of the
//   launches that the main thread waits for and ticks their threads.
//
// The handler touches nothing but the worker of its own thread, found in a table by the OS thread's id (no
// thread-local variable: its first use may allocate). Between launches the handlers that were there before are back.
//
// A thread of the block may spin on a value that another thread of the same block will write, which hardware allows and
// fibers do not: all are one OS thread. A tick that finds that one thread has run for 200 ms while others could,
// yields on its behalf. For that, ticks are delivered on the fiber's own stack, where the handler's frame can wait until
// the thread's turn comes again; faults have a stack of their own, since theirs may be the one that is full.
#define CUPLATE_RUNTIME 1
#include "platform.h"

// ---------------------------------------------------------------------------------------------------- stack switch

// Pushes the registers that a call preserves, stores the stack pointer at *save, and goes on where `to` left off.
extern "C" CUPLATE_HIDDEN void cuplate_switch(void** save, void* to) __asm__("cuplate_switch");

#if defined(__ELF__)
#define CUPLATE_SYMBOL ".local cuplate_switch\n.type cuplate_switch,%function\n"
#else
#define CUPLATE_SYMBOL ""
#endif

// On top of a stack that waits lie rbx, rbp and where it goes on, by a jump: of a return the processor takes it that
// it goes behind the last call. cuplate_switch() is called at few places, and ends by one: that may well be true.
#if defined(__x86_64__) && !defined(_WIN32)
#define CUPLATE_GO_ON      \
    "popq %rbx\n"          \
    "popq %rbp\n"          \
    "popq %rcx\n"          \
    "jmp *%rcx\n"
__asm__(".text\n" CUPLATE_SYMBOL
        "cuplate_switch:\n"
        "pushq %r12\n"
        "pushq %r13\n"
        "pushq %r14\n"
        "pushq %r15\n"
        "leaq 1f(%rip), %rax\n"
        "pushq %rax\n"
        "pushq %rbp\n"
        "pushq %rbx\n"
        "movq %rsp, (%rdi)\n"
        "movq %rsi, %rsp\n"
        CUPLATE_GO_ON
        "1:\n"
        "popq %r15\n"
        "popq %r14\n"
        "popq %r13\n"
        "popq %r12\n"
        "ret\n");
#elif defined(__aarch64__)
__asm__(".text\n" CUPLATE_SYMBOL
        "cuplate_switch:\n"
        "sub sp, sp, #176\n"
        "stp x19, x20, [sp, #0]\n"
        "stp x21, x22, [sp, #16]\n"
        "stp x23, x24, [sp, #32]\n"
        "stp x25, x26, [sp, #48]\n"
        "stp x27, x28, [sp, #64]\n"
        "stp x29, x30, [sp, #80]\n"
        "stp d8, d9, [sp, #96]\n"
        "stp d10, d11, [sp, #112]\n"
        "stp d12, d13, [sp, #128]\n"
        "stp d14, d15, [sp, #144]\n"
        "mov x9, sp\n"
        "str x9, [x0]\n"
        "mov sp, x1\n"
        "ldp x19, x20, [sp, #0]\n"
        "ldp x21, x22, [sp, #16]\n"
        "ldp x23, x24, [sp, #32]\n"
        "ldp x25, x26, [sp, #48]\n"
        "ldp x27, x28, [sp, #64]\n"
        "ldp x29, x30, [sp, #80]\n"
        "ldp d8, d9, [sp, #96]\n"
        "ldp d10, d11, [sp, #112]\n"
        "ldp d12, d13, [sp, #128]\n"
        "ldp d14, d15, [sp, #144]\n"
        "add sp, sp, #176\n"
        "ret\n");
#else
#error "cuplate's CPU backend runs on x86-64 and arm64"
#endif

namespace cuplate {

__thread Worker* current_worker = nullptr;

#define OUT_OF_LINE __attribute__((noinline))

static inline unsigned bit(unsigned thread) {
    return 1u << (thread % WARP);
}

extern "C" Worker* cuplate_self() {
    return self();
}

// ------------------------------------------------------------------------------------------------------ leaving

static OUT_OF_LINE __attribute__((noreturn)) void leave(Worker* w, int reason) {
    w->fault.reason = reason;
    int none = REASON_NONE;
    __atomic_compare_exchange_n(&w->launch->stop, &none, reason, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    void* abandoned;
    cuplate_switch(&abandoned, w->launcher);
    __builtin_unreachable();
}

static void note(Worker* w, Site site, const char* text) {
    Fault& f = w->fault;
    f.thread = w->current;
    f.block = w->bid;
    f.site = site;
    f.waiting_count = 0;
    unsigned n = 0;
    while (text[n] && n + 1 < sizeof f.text) {
        f.text[n] = text[n];
        ++n;
    }
    f.text[n] = 0;
}

extern "C" void cuplate_fail(int reason, const char* text, Site site) {
    Worker* w = self();
    note(w, site, text);
    leave(w, reason);
}

// ---------------------------------------------------------------------------------------------------- scheduling

static inline void become(Worker* w, unsigned thread) {
    w->current = w->run_first = w->run_last = thread;
    w->switches++;
}

// The next thread that can run, in cyclic order after (or, reversed, before) the current one; -1 if none can.
static inline int pick(Worker* w) {
    unsigned c = w->current, q = c / WARP;
    if (w->reversed) {
        unsigned m = w->runnable[q] & (bit(c) - 1);
        for (unsigned k = 0; k <= w->warps; ++k) {
            if (m) return (int)(q * WARP + WARP - 1 - (unsigned)__builtin_clz(m));
            q = q ? q - 1 : w->warps - 1;
            m = w->runnable[q];
        }
        return -1;
    }
    unsigned m = w->runnable[q] & ~((bit(c) << 1) - 1);
    for (unsigned k = 0; k <= w->warps; ++k) {
        if (m) return (int)(q * WARP + (unsigned)__builtin_ctz(m));
        if (++q == w->warps) q = 0;
        m = w->runnable[q];
    }
    return -1;
}

#if defined(CUPLATE_SEGMENT) && !defined(CUPLATE_CHECK)
#define CUPLATE_RUNS 1
#endif

// How far the threads behind the current one can follow each other without asking.
static inline void begin_run(Worker* w) {
#ifdef CUPLATE_RUNS
    w->run_last = w->current;
    if (w->reversed || w->started < w->threads) return;
    for (unsigned next = w->current + 1; next < w->threads;) {
        unsigned follow = w->runnable[next / WARP] >> next % WARP;
        unsigned count = ~follow ? (unsigned)__builtin_ctz(~follow) : WARP;
        next += count;
        w->run_last = next - 1;
        if (count == 0 || next % WARP) return;
    }
#else
    (void)w;
#endif
}

// The threads that went past cuplate_sync() since this run began: what the masks do not say yet.
static inline void settle(Worker* w) {
    while (w->run_first < w->current) {
        unsigned q = w->run_first / WARP, end = (q + 1) * WARP < w->current ? (q + 1) * WARP : w->current;
        unsigned waiting = (~0u >> (WARP - (end - w->run_first))) << w->run_first % WARP;
        w->runnable[q] &= ~waiting;
        w->at_barrier[q] |= waiting;
        w->barrier_count += end - w->run_first;
        w->run_first = end;
    }
}

extern "C" void cuplate_settle() {
    settle(self());
}

static bool barrier_operation(int operation) {
    return operation == OP_BARRIER || operation >= OP_BARRIER_COUNT;
}

static Site site_of(Worker* w, unsigned thread) {
    return Site{w->fibers[thread].file, w->fibers[thread].line};
}

static OUT_OF_LINE __attribute__((noreturn)) void deadlock(Worker* w) {
    note(w, Site{nullptr, 0}, "");
    Fault& f = w->fault;
    for (unsigned i = 0; i < w->threads && f.waiting_count < sizeof f.waiting / sizeof f.waiting[0];) {
        if (!(w->living[i / WARP] & bit(i))) {
            ++i;
            continue;
        }
        const Lane& a = w->lanes[i];
        const Site site = site_of(w, i);
        unsigned j = i;
        while (j + 1 < w->threads && (w->living[(j + 1) / WARP] & bit(j + 1))) {
            const Lane& b = w->lanes[j + 1];
            if (w->fibers[j + 1].line != site.line || w->fibers[j + 1].file != site.file || b.operation != a.operation) break;
            if (!barrier_operation(a.operation) && b.mask != a.mask) break;
            ++j;
        }
        f.waiting[f.waiting_count++] = Waiting{i, j, a.operation, barrier_operation(a.operation) ? ~0u : a.mask, site};
        i = j + 1;
    }
    leave(w, REASON_DEADLOCK);
}

static void fiber_main();

static void* new_stack(Worker* w, unsigned slot) {
    // Tops differ by cache lines: frames of many fibers at one distance apart would share a few cache sets.
    char* top = w->stacks + (slot + 1) * w->stack_stride - (slot * 5 % 32) * 64 - 64;
    void** s = (void**)((address_t)top & ~(address_t)15);
#if defined(__x86_64__)
    s[-1] = nullptr;                  // where fiber_main would return to; keeps the stack aligned as after a call
    s[-2] = (void*)&fiber_main;
    s[-3] = s[-4] = nullptr;          // rbp, rbx
    return s - 4;
#else
    s -= 22;
    for (int i = 0; i < 22; ++i) s[i] = nullptr;
    s[11] = (void*)&fiber_main;       // x30
    return s;
#endif
}

static inline unsigned next_to_start(Worker* w) {
    unsigned c = w->started++;
    return w->reversed ? w->threads - 1 - c : c;
}

static inline void start_next(Worker* w, void** save) {
    unsigned c = next_to_start(w);
    become(w, c);
    unsigned slot = w->free_slot[--w->free_slots];
    w->lanes[c].slot = (unsigned short)slot;
    void* stack = w->slot_stack[slot];
    cuplate_switch(save, stack ? stack : new_stack(w, slot));
}

static inline void switch_to(Worker* w, unsigned c, unsigned next, bool at_barrier) {
    // Stacks are pages apart: the one that is likely to come some turns after the next is on its way meanwhile.
    const char* ahead = (const char*)w->fibers[next + AHEAD].stack;
    __builtin_prefetch(ahead);
    __builtin_prefetch(ahead + 64);
    __builtin_prefetch(ahead + 128);
    become(w, next);
    if (at_barrier) begin_run(w);
    cuplate_switch(&w->fibers[c].stack, w->fibers[next].stack);
}

// The current thread cannot go on (or lets others go first): run another one.
static OUT_OF_LINE void suspend(Worker* w, bool at_barrier = false) {
    unsigned c = w->current;
    settle(w);
    if (w->started < w->threads) {
        start_next(w, &w->fibers[c].stack);
        return;
    }
    int next = pick(w);
    if (next < 0) deadlock(w);
    if ((unsigned)next != c) switch_to(w, c, (unsigned)next, at_barrier);
}

extern "C" void cuplate_yield() {
    Worker* w = self();
    if (__atomic_load_n(&w->launch->stop, __ATOMIC_RELAXED)) leave(w, w->launch->stop);
    suspend(w);
}

// ------------------------------------------------------------------------------------------------------- barriers

static OUT_OF_LINE void release(Worker* w) {
    for (unsigned q = 0; q < w->warps; ++q) {
        w->runnable[q] |= w->at_barrier[q];
        w->at_barrier[q] = 0;
    }
    w->barrier_result = w->barrier_sum;
    w->barrier_alive = w->alive;
    w->barrier_sum = 0;
    w->barrier_count = 0;
    w->epoch++;
#ifdef CUPLATE_CHECK
    chk_barrier(w);
#endif
}

// Checked: barriers at different lines meet in hardware by accident only.
static void same_site(Worker* w, int operation, Site site) {
    for (unsigned i = 0; i < w->threads; ++i) {
        if (!(w->at_barrier[i / WARP] & bit(i))) continue;
        const Lane& f = w->lanes[i];
        if (w->fibers[i].line == site.line && f.operation == operation) continue;
        note(w, site, "");
        w->fault.waiting[0] = Waiting{i, i, f.operation, ~0u, site_of(w, i)};
        w->fault.waiting[1] = Waiting{w->current, w->current, operation, ~0u, site};
        w->fault.waiting_count = 2;
        leave(w, REASON_DIVERGENCE);
    }
}

extern "C" unsigned cuplate_barrier(int predicate, int operation, Site site) {
    Worker* w = self();
    settle(w);
    if (operation != OP_BARRIER) w->barrier_sum += predicate != 0;
    if (++w->barrier_count == w->alive) {
        if (w->checked) same_site(w, operation, site);
        release(w);
        begin_run(w);
        return w->barrier_result;
    }
    unsigned c = w->current, q = c / WARP;
    wait_at(w, site);
    w->lanes[c].operation = operation;
    w->at_barrier[q] |= bit(c);
    w->runnable[q] &= ~bit(c);
    suspend(w, true);
    w->lanes[c].operation = OP_BARRIER;
    return w->barrier_result;
}

#ifdef CUPLATE_RUNS
// The way of nearly every __syncthreads() where nothing is checked: the next thread of the block is still on its way
// there, and nothing has to be known but where its stack is. Called by sync() alone, which keeps nothing in registers but
// rbx and rbp. What it leaves undone, settle() does.
static_assert(__builtin_offsetof(Worker, current) == 8 && __builtin_offsetof(Worker, run_last) == 12, "as below");
static_assert(__builtin_offsetof(Worker, fibers) == 64 && sizeof(Fiber) == 32, "as below");
static_assert(__builtin_offsetof(Fiber, file) == 8 && __builtin_offsetof(Fiber, line) == 16 && AHEAD == 2, "as below");
__asm__(".text\n.globl cuplate_sync\n.hidden cuplate_sync\n.type cuplate_sync,@function\n"
        "cuplate_sync:\n"                         // rdi: file, esi: line
        "movl %gs:8, %eax\n"
        "cmpl %gs:12, %eax\n"
        "jae 1f\n"
        "leal 1(%rax), %ecx\n"
        "movl %ecx, %gs:8\n"
        "shlq $5, %rax\n"
        "movq %gs:64+3*32(%rax), %rdx\n"
        "movq %rdi, %gs:64+8(%rax)\n"
        "movl %esi, %gs:64+16(%rax)\n"
        "pushq %rbp\n"
        "pushq %rbx\n"
        "movq %rsp, %gs:64(%rax)\n"
        "movq %gs:64+32(%rax), %rsp\n"
        "prefetcht0 (%rdx)\n"
        "prefetcht0 64(%rdx)\n"
        "prefetcht0 128(%rdx)\n"
        CUPLATE_GO_ON
        "1:\n"
        "pushq %rbp\n"
        "pushq %rbx\n"
        "movq %rsp, %rbp\n"
        "andq $-16, %rsp\n"
        "call cuplate_sync_slowly\n"
        "movq %rbp, %rsp\n"
        CUPLATE_GO_ON);

extern "C" __attribute__((used)) CUPLATE_HIDDEN void cuplate_sync_slowly(Site site) {
    cuplate_barrier(0, OP_BARRIER, site);
}
#endif

// ------------------------------------------------------------------------------------------------ warp operations

static OUT_OF_LINE __attribute__((noreturn)) void different_operations(Worker* w, unsigned a, unsigned b) {
    note(w, site_of(w, b), "");
    w->fault.thread = b;
    unsigned both[2] = {a, b};
    for (unsigned i = 0; i < 2; ++i) {
        const Lane& f = w->lanes[both[i]];
        w->fault.waiting[i] = Waiting{both[i], both[i], f.operation, f.mask, site_of(w, both[i])};
    }
    w->fault.waiting_count = 2;
    leave(w, REASON_DIVERGENCE);
}

// Lets the lanes of `mask` go on if all that are alive have arrived with this mask.
static bool complete(Worker* w, unsigned q, unsigned mask) {
    unsigned need = mask & w->living[q];
    if ((w->arrived[q] & need) != need) return false;
    Lane* lanes = &w->lanes[q * WARP];
    int first = -1;
    for (unsigned m = need; m; m &= m - 1) {
        int l = __builtin_ctz(m);
        if (lanes[l].mask != mask) return false;
        if (first < 0) first = l;
        if (w->checked && lanes[l].operation != lanes[first].operation) {
            different_operations(w, q * WARP + (unsigned)first, q * WARP + (unsigned)l);
        }
    }
    unsigned* readers = w->readers[q];
    for (unsigned m = need; m; m &= m - 1) {
        int l = __builtin_ctz(m);
        readers[lanes[l].meeting] &= ~(1u << l);
    }
    unsigned meeting = 0;
    while (readers[meeting]) ++meeting; // of 33, 32 lanes leave one free
    readers[meeting] = need;
    for (unsigned m = need; m; m &= m - 1) {
        int l = __builtin_ctz(m);
        w->meetings[q][meeting][l] = lanes[l].value;
        lanes[l].meeting = (unsigned short)meeting;
        lanes[l].present = need;
        lanes[l].warp_epoch++;
    }
    w->arrived[q] &= ~need;
    w->runnable[q] |= need;
#ifdef CUPLATE_CHECK
    // Shuffles and votes exchange values; they do not order memory.
    if (lanes[first < 0 ? 0 : first].operation == OP_SYNCWARP || lanes[first < 0 ? 0 : first].operation == OP_COLLECTIVE) chk_warp(w, q, need);
#endif
    return true;
}

extern "C" unsigned cuplate_rendezvous(unsigned mask, u64 value, int operation, Site site) {
    Worker* w = self();
    unsigned c = w->current, q = c / WARP;
    if (!(mask & bit(c))) cuplate_fail(REASON_DIVERGENCE, "its mask leaves out the lane that calls it", site);
    settle(w);
    wait_at(w, site);
    Lane& f = w->lanes[c];
    f.value = value;
    f.mask = mask;
    f.operation = operation;
    w->arrived[q] |= bit(c);
    if (!complete(w, q, mask)) {
        w->runnable[q] &= ~bit(c);
        suspend(w);
    }
    f.operation = OP_BARRIER;
    return f.present;
}

extern "C" u64 cuplate_shuffle(unsigned mask, u64 value, unsigned source, int operation, Site site) {
    unsigned present = cuplate_rendezvous(mask, value, operation, site);
    Worker* w = self();
    if (present >> source & 1) return brought()[source];
    // What comes from a lane that the mask leaves out is undefined, and sound code shuffles first and asks for the lane
    // afterwards. So it is no fault; but who uses it gets all bits set, which is NaN, or -1.
    if (!(mask >> source & 1)) return ~(u64)0;
    if (w->checked) {
        unsigned absent = w->current / WARP * WARP + source;
        w->fault.address = source;
        cuplate_fail(
            REASON_DIVERGENCE,
            absent >= w->threads ? "reads a lane that the block does not have" : "reads a lane that has exited",
            site
        );
    }
    return value;
}

extern "C" unsigned cuplate_ballot(unsigned mask, unsigned vote, int operation, Site site) {
    unsigned present = cuplate_rendezvous(mask, vote, operation, site);
    const u64* brought = ::cuplate::brought();
    unsigned result = 0;
    for (unsigned l = 0; l < WARP; ++l) result |= (present >> l & (unsigned)brought[l] & 1u) << l;
    return result;
}

extern "C" unsigned cuplate_match(unsigned mask, u64 value, int operation, Site site) {
    unsigned present = cuplate_rendezvous(mask, value, operation, site);
    const u64* brought = ::cuplate::brought();
    unsigned result = 0;
    for (unsigned l = 0; l < WARP; ++l) result |= (present >> l & (brought[l] == value)) << l;
    return result;
}

// --------------------------------------------------------------------------------------------------------- fibers

static void thread_ended(Worker* w) {
    settle(w);
    unsigned c = w->current, q = c / WARP;
    w->runnable[q] &= ~bit(c);
    w->living[q] &= ~bit(c);
    w->alive--;
    if (w->alive && w->barrier_count == w->alive) release(w);
    // Those who wait for this lane wait for it no more.
    for (unsigned waiting = w->arrived[q]; waiting;) {
        unsigned mask = w->lanes[q * WARP + (unsigned)__builtin_ctz(waiting)].mask;
        complete(w, q, mask);
        waiting &= ~mask;
    }
}

static void fiber_main() {
    Worker* w = self();
    for (;;) {
        unsigned slot = w->lanes[w->current].slot;
        w->launch->entry(w->launch->arguments);
        thread_ended(w);
        if (w->started < w->threads) {
            unsigned c = next_to_start(w);
            become(w, c);
            w->lanes[c].slot = (unsigned short)slot;
            continue;
        }
        w->free_slot[w->free_slots++] = (unsigned short)slot;
        if (!w->alive) {
            cuplate_switch(&w->slot_stack[slot], w->launcher);
            continue;
        }
        int next = pick(w);
        if (next < 0) deadlock(w);
        become(w, (unsigned)next);
        cuplate_switch(&w->slot_stack[slot], w->fibers[next].stack);
    }
}

// --------------------------------------------------------------------------------------------------------- printf
//
// A record is its length, block and arguments; printed.py formats it when the launch is over, as the driver does. It is
// written behind print_used, which cuplate_print_end() alone moves on: a launch may be left anywhere, and what was printed
// is whole records all the same.

static void put(Worker* w, const void* bytes, u64 count) {
    if (w->print_at + count > w->print_capacity) {
        w->print_at = w->print_capacity + 1;  // nothing more fits: the record is dropped by print_end()
        return;
    }
    __builtin_memcpy(w->print_buffer + w->print_at, bytes, count);
    w->print_at += count;
}

static void put_text(Worker* w, char kind, const char* text, void* caller) {
    w->follows = (address_t)caller - 1;
    unsigned n = 0;
    while (text && text[n] && n < 4096) ++n;
    put(w, &kind, 1);
    put(w, &n, sizeof n);
    put(w, text, n);
    w->follows = 0;
}

// Whether the current thread is within a printf(): another one must not begin a record there.
static inline bool printing(Worker* w) {
    return w->print_at != w->print_used;
}

extern "C" void cuplate_print_begin(const char* format) {
    Worker* w = self();
    unsigned length = 0;
    put(w, &length, sizeof length);
    put(w, &w->block_index, sizeof w->block_index);
    put_text(w, 's', format, __builtin_return_address(0));
}

extern "C" void cuplate_print_integer(u64 value) {
    char kind = 'i';
    put(self(), &kind, 1);
    put(self(), &value, sizeof value);
}

extern "C" void cuplate_print_real(double value) {
    char kind = 'f';
    put(self(), &kind, 1);
    put(self(), &value, sizeof value);
}

extern "C" void cuplate_print_text(const char* text) {
    put_text(self(), 's', text, __builtin_return_address(0));
}

extern "C" void cuplate_print_end() {
    Worker* w = self();
    if (w->print_at > w->print_capacity) {
        w->print_at = w->print_used;
        w->print_dropped++;
        return;
    }
    unsigned length = (unsigned)(w->print_at - w->print_used);
    __builtin_memcpy(w->print_buffer + w->print_used, &length, sizeof length);
    __atomic_store_n(&w->print_used, w->print_at, __ATOMIC_RELEASE);
}

extern "C" u64 cuplate_clock() {
    return (u64)now_ns();
}

extern "C" void cuplate_copy(volatile void* to, const volatile void* from, unsigned bytes) {
    switch (bytes) {
        case 2: *(volatile unsigned short*)to = *(const volatile unsigned short*)from; return;
        case 4: *(volatile unsigned*)to = *(const volatile unsigned*)from; return;
        case 8: *(volatile u64*)to = *(const volatile u64*)from; return;
        default:
            for (unsigned i = 0; i < bytes; ++i) ((volatile char*)to)[i] = ((const volatile char*)from)[i];
    }
}

// -------------------------------------------------------------------------------------------------------- signals

#ifdef CUPLATE_SIGNALS

enum { SLOTS = 4096, SIGNALS = 6 };
static const int handled[SIGNALS] = {SIG_SEGV, SIG_BUS, SIG_FPE, SIG_ILL, SIG_TICK, SIG_INT};
static SignalAction before[SIGNALS];
static Slot slots[SLOTS];

static Worker* worker_of(int thread) {
    for (unsigned i = 0, at = (unsigned)thread; i < SLOTS; ++i, ++at) {
        Slot& s = slots[at % SLOTS];
        if (__atomic_load_n(&s.thread, __ATOMIC_ACQUIRE) == thread) return s.worker;
    }
    return nullptr;
}

static Slot* claim_slot(Slot* table, Worker* w) {
    int thread = thread_id();
    for (unsigned i = 0, at = (unsigned)thread; i < SLOTS; ++i, ++at) {
        Slot& s = table[at % SLOTS];
        int free = 0;
        if (__atomic_load_n(&s.thread, __ATOMIC_RELAXED)) continue;
        if (!__atomic_compare_exchange_n(&s.thread, &free, -1, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) continue;
        s.worker = w;
        __atomic_store_n(&s.thread, thread, __ATOMIC_RELEASE);
        return &s;
    }
    return nullptr;
}

static bool on_fiber(Worker* w, address_t stack_pointer) {
    if (!stack_pointer) return true;  // unknown on this platform
    return stack_pointer - (address_t)w->stacks < w->threads * w->stack_stride;
}

#if defined(__ELF__)
extern "C" char cuplate_text_begin[] CUPLATE_HIDDEN, cuplate_text_end[] CUPLATE_HIDDEN;  // guard.cpp

// Whether the kernel's own code runs: the scheduler and the checker must not be left half way and then called again.
static bool in_kernel(address_t pc) {
    return pc >= (address_t)cuplate_text_begin && pc < (address_t)cuplate_text_end;
}
#else
static bool in_kernel(address_t) {
    return false;
}
#endif

enum { STILL_TICKS = 4 };

static void tick(Worker* w, address_t stack_pointer, address_t pc) {
    Launch* launch = w->launch;
    int stop = __atomic_load_n(&launch->stop, __ATOMIC_RELAXED);
    if (!stop && now_ns() >= launch->deadline_ns) {
        stop = REASON_BUDGET;
        __atomic_store_n(&launch->stop, stop, __ATOMIC_RELAXED);
    }
    if (!on_fiber(w, stack_pointer)) return;  // between blocks: the loop over them sees launch->stop
    if (stop) {
        note(w, Site{nullptr, 0}, "");
        leave(w, stop);
    }
    if (w->switches != w->last_switches || w->current != w->last_current) {
        w->last_switches = w->switches;
        w->last_current = w->current;
        w->still_ticks = 0;
        return;
    }
    if (++w->still_ticks < STILL_TICKS || !in_kernel(pc) || printing(w)) return;
    w->still_ticks = 0;
    suspend(w);
}

// Ctrl-C: stop what the main thread waits for. Python's own handler has run and will raise.
static void interrupt() {
    int self = thread_id();
    for (unsigned i = 0; i < SLOTS; ++i) {
        int thread = __atomic_load_n(&slots[i].thread, __ATOMIC_ACQUIRE);
        if (thread <= 0 || !slots[i].worker->launch->interruptible) continue;
        int none = REASON_NONE;
        __atomic_compare_exchange_n(&slots[i].worker->launch->stop, &none, REASON_INTERRUPT, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
        if (thread != self) kick(thread);
    }
}

static void pass_on(int signal, void* info, void* context) {
    for (int i = 0; i < SIGNALS; ++i) {
        if (handled[i] != signal) continue;
        SignalAction& old = before[i];
        if (old.handler == nullptr && signal == SIG_TICK) return;
        if (old.handler == (SignalHandler)1) return;
        if (old.handler == nullptr) {
            // The default: back in place, and what caused it happens again on return.
            sigaction(signal, &old, nullptr);
            if (signal == SIG_INT) raise(signal);
            return;
        }
        old.handler(signal, info, context);  // a one-argument handler ignores the rest
        return;
    }
}

static void on_signal(int signal, void* info, void* context) {
    Worker* w = worker_of(thread_id());
    address_t stack_pointer = context_register(context, false);
    if (signal == SIG_INT) {
        pass_on(signal, info, context);
        interrupt();
        if (w && w->inside) w->on_tick(w, stack_pointer, 0);
        return;
    }
    if (!w || !w->inside) {
        pass_on(signal, info, context);
        return;
    }
    if (signal == SIG_TICK) {
        w->on_tick(w, stack_pointer, context_register(context, true));
        return;
    }
    note(w, Site{nullptr, 0}, "");
    w->fault.access = signal == SIG_SEGV || signal == SIG_BUS ? fault_access(info, context) : 0;
    w->fault.signal = signal;
    w->fault.address = fault_address(info);
    w->fault.pc = w->follows ? w->follows : context_register(context, true);
    w->fault.stack_pointer = stack_pointer;
    leave(w, REASON_SIGNAL);
}

CUPLATE_EXPORT Slot* cuplate_slots() {
    return slots;
}

CUPLATE_EXPORT void cuplate_signals_on() {
    for (int i = 0; i < SIGNALS; ++i) {
        SignalAction action, now;
        sigaction(handled[i], nullptr, &now);
        if (now.handler == on_signal) continue;  // else `before` would lead to ourselves
        __builtin_memset(&action, 0, sizeof action);
        action.handler = on_signal;
        // NODEFER: leave() never returns from the handler, so nobody would unblock the signal.
        action.flags = FLAG_SIGINFO | FLAG_NODEFER;
        if (handled[i] != SIG_TICK) action.flags |= FLAG_ONSTACK;
        if (handled[i] == SIG_INT) {
            // Whether Ctrl-C interrupts a system call of the main thread is for the handler that was there to say.
            sigaction(SIG_INT, nullptr, &before[i]);
            action.flags |= before[i].flags & FLAG_RESTART;
        } else {
            action.flags |= FLAG_RESTART;
        }
        sigaction(handled[i], &action, &before[i]);
    }
}

CUPLATE_EXPORT void cuplate_signals_off() {
    for (int i = 0; i < SIGNALS; ++i) {
        SignalAction now;
        sigaction(handled[i], &before[i], &now);
        if (now.handler != on_signal) sigaction(handled[i], &now, nullptr);  // someone has taken it since
    }
}

// In a child of fork(): only this thread is left, and it runs nothing.
CUPLATE_EXPORT void cuplate_forget() {
    for (int i = 0; i < SLOTS; ++i) slots[i].thread = 0;
}

CUPLATE_EXPORT void cuplate_tick_all() {
    for (unsigned i = 0; i < SLOTS; ++i) {
        int thread = __atomic_load_n(&slots[i].thread, __ATOMIC_ACQUIRE);
        if (thread > 0) kick(thread);
    }
}

#ifdef __linux__
static bool start_ticking(Launch* launch, int* timer) {
    TimerEvent event;
    __builtin_memset(&event, 0, sizeof event);
    event.signal = SIG_TICK;
    event.notify = 4;  // SIGEV_THREAD_ID
    event.thread = thread_id();
    if (syscall(CALL_TIMER_CREATE, (long)CLOCK_MONOTONIC_, &event, timer)) return false;
    s64 left = launch->deadline_ns - now_ns();
    s64 first = left < launch->tick_ns ? left : launch->tick_ns;
    if (first < 1000) first = 1000;
    TimerTimes times;
    times.first = cuplate_timespec{(long)(first / 1000000000), (long)(first % 1000000000)};
    times.interval = cuplate_timespec{(long)(launch->tick_ns / 1000000000), (long)(launch->tick_ns % 1000000000)};
    return syscall(CALL_TIMER_SETTIME, (long)*timer, 0L, &times, nullptr) == 0;
}
static void stop_ticking(int timer) {
    syscall(CALL_TIMER_DELETE, (long)timer);
}
#else
static bool start_ticking(Launch*, int*) {
    return false;
}
static void stop_ticking(int) {}
#endif

#endif  // CUPLATE_SIGNALS

// --------------------------------------------------------------------------------------------------------- blocks

static void prepare(Worker* w, Launch* launch) {
    w->launch = launch;
#ifdef CUPLATE_SIGNALS
    w->on_tick = tick;
#endif
    w->checked = launch->checked;
    w->reversed = launch->order >> 1 & 1;
    w->block_dim = dim3(launch->block_x, launch->block_y, launch->block_z);
    w->grid_dim = dim3(launch->grid_x, launch->grid_y, launch->grid_z);
    w->threads = launch->block_x * launch->block_y * launch->block_z;
    w->warps = (w->threads + WARP - 1) / WARP;
    w->epoch = 0;
    w->switches = w->last_switches = w->last_current = w->still_ticks = 0;
    w->current = w->run_first = w->run_last = 0;
    w->follows = 0;
    w->print_used = w->print_at = 0;
    w->print_dropped = 0;
    __builtin_memset(&w->fault, 0, __builtin_offsetof(Fault, text) + 1);
    unsigned i = 0;
    for (unsigned z = 0; z < launch->block_z; ++z) {
        for (unsigned y = 0; y < launch->block_y; ++y) {
            for (unsigned x = 0; x < launch->block_x; ++x) w->fibers[i++].tid = uint3{x, y, z};
        }
    }
    w->free_slots = w->threads;
    for (i = 0; i < w->threads; ++i) {
        w->free_slot[i] = (unsigned short)(w->threads - 1 - i);
        w->slot_stack[i] = nullptr;
        w->lanes[i].warp_epoch = 0;
        w->lanes[i].operation = OP_BARRIER;
    }
}

static void run_block(Worker* w, u64 index) {
    Launch* launch = w->launch;
    w->bid.x = (unsigned)(index % launch->grid_x);
    w->bid.y = (unsigned)(index / launch->grid_x % launch->grid_y);
    w->bid.z = (unsigned)(index / launch->grid_x / launch->grid_y);
    w->block_index = index;
    w->first_thread = index * w->threads;
    w->alive = w->threads;
    w->started = 0;
    w->barrier_count = 0;
    w->barrier_sum = 0;
    w->epoch++;
    for (unsigned q = 0; q < w->warps; ++q) {
        unsigned rest = w->threads - q * WARP;
        w->runnable[q] = w->living[q] = rest >= WARP ? ~0u : (1u << rest) - 1;
        for (unsigned& readers : w->readers[q]) readers = 0;
        w->at_barrier[q] = w->arrived[q] = 0;
    }
#ifdef CUPLATE_CHECK
    chk_block_begin(w);
#endif
    w->inside = 1;
    start_next(w, &w->launcher);
    w->inside = 0;
}

static OUT_OF_LINE void run_blocks(Worker* w, Launch* launch) {
    for (;;) {
        u64 begin = __atomic_fetch_add(&launch->next, launch->chunk, __ATOMIC_RELAXED);
        if (begin >= launch->blocks) return;
        u64 end = begin + launch->chunk < launch->blocks ? begin + launch->chunk : launch->blocks;
        for (u64 b = begin; b < end; ++b) {
            if (__atomic_load_n(&launch->stop, __ATOMIC_RELAXED)) return;
            run_block(w, launch->order & 1 ? launch->blocks - 1 - b : b);
            if (w->fault.reason) return;
            __atomic_fetch_add(&launch->done, 1, __ATOMIC_RELAXED);
        }
    }
}

#ifdef __linux__
extern "C" {
extern CUPLATE_HIDDEN __thread char cuplate_guard_before[GUARD_BYTES], cuplate_guard_behind[GUARD_BYTES];
}

// The kernel's __shared__ variables are thread-local and lie between two pages of the image's thread-local block, which
// the C library took from the heap: untouchable while the launch runs, for it will be given back to the heap.
static void guard_shared(Worker* w, bool on) {
    char *low = cuplate_guard_before + GUARD_BYTES, *high = cuplate_guard_behind;
    w->fault.shared_low = (address_t)low;
    w->fault.shared_high = (address_t)high;
    if (high - low == 0) return;
    guard_pages(cuplate_guard_before, GUARD_BYTES, on);
    guard_pages(cuplate_guard_behind, GUARD_BYTES, on);
}
#else
static void guard_shared(Worker*, bool) {}
#endif

// Whatever still asks for the heap: `new` where no compiler lets us refuse it, and the destructor of a class with a
// virtual one, which names `delete` and never calls it.
extern "C" {
#define CUPLATE_NO_HEAP_HERE cuplate_fail(REASON_UNSUPPORTED, "the CPU backend has no device heap (new, delete)", Site{nullptr, 0})
CUPLATE_HIDDEN void* _Znwm(__SIZE_TYPE__) { CUPLATE_NO_HEAP_HERE; }
CUPLATE_HIDDEN void* _Znam(__SIZE_TYPE__) { CUPLATE_NO_HEAP_HERE; }
CUPLATE_HIDDEN void _ZdlPv(void*) { CUPLATE_NO_HEAP_HERE; }
CUPLATE_HIDDEN void _ZdaPv(void*) { CUPLATE_NO_HEAP_HERE; }
CUPLATE_HIDDEN void _ZdlPvm(void*, __SIZE_TYPE__) { CUPLATE_NO_HEAP_HERE; }
CUPLATE_HIDDEN void _ZdaPvm(void*, __SIZE_TYPE__) { CUPLATE_NO_HEAP_HERE; }
#undef CUPLATE_NO_HEAP_HERE
}

// Takes blocks until none is left; returns a Reason, details in Worker::fault.
CUPLATE_EXPORT int cuplate_run(Launch* launch, Worker* w) {
    current_worker = w->worker = w;
    prepare(w, launch);
#ifdef CUPLATE_SEGMENT
    address_t segment = get_segment();
    if (!set_segment((address_t)w)) {
        note(w, Site{nullptr, 0}, "this system does not let a thread set its gs segment");
        launch->stop = w->fault.reason = REASON_UNSUPPORTED;
        return REASON_UNSUPPORTED;
    }
#endif
    if (launch->dynamic) w->dynamic = launch->dynamic();
    guard_shared(w, true);
#ifdef CUPLATE_SIGNALS
    SignalStack own = {}, before_us;
    own.base = w->signal_stack;
    own.bytes = w->signal_stack_bytes;
    sigaltstack(&own, &before_us);
    Slot* slot = claim_slot(launch->slots, w);
    int timer = 0;
    bool ticking = start_ticking(launch, &timer);
    if (!ticking) __atomic_store_n(&launch->ticking, 1, __ATOMIC_RELAXED);
    FloatingPoint process = get_floating_point();
    set_floating_point(default_floating_point());
#endif
#ifdef CUPLATE_CHECK
    chk_launch_begin(w);
#endif
    run_blocks(w, launch);
#ifdef CUPLATE_CHECK
    chk_launch_end(w);
#endif
#ifdef CUPLATE_SIGNALS
    set_floating_point(process);
    if (ticking) stop_ticking(timer);
    if (slot) __atomic_store_n(&slot->thread, 0, __ATOMIC_RELEASE);
    sigaltstack(&before_us, nullptr);
#endif
    guard_shared(w, false);
#ifdef CUPLATE_SEGMENT
    set_segment(segment);
#endif
    current_worker = nullptr;
    return w->fault.reason ? w->fault.reason : __atomic_load_n(&launch->stop, __ATOMIC_RELAXED);
}

extern "C" {
extern CUPLATE_HIDDEN __attribute__((weak)) char __ehdr_start[];  // made by the linker: where the image begins
}

struct Info {
    unsigned abi, worker_bytes, launch_bytes, fault_offset, memory_offset, checked;
    void* base;
    u64 dynamic_alignment;
};

static u64 dynamic_alignment = 16;

extern "C" void cuplate_align_dynamic(size_t bytes) {
    if (bytes > dynamic_alignment) dynamic_alignment = bytes;
}

CUPLATE_EXPORT void cuplate_info(Info* info) {
#ifdef CUPLATE_CHECK
    const unsigned checked = 1;
#else
    const unsigned checked = 0;
#endif
    *info = Info{CUPLATE_ABI, sizeof(Worker), sizeof(Launch), __builtin_offsetof(Worker, fault),
                 __builtin_offsetof(Worker, stacks), checked, __ehdr_start, dynamic_alignment};
}

}  // namespace cuplate

#ifdef CUPLATE_CHECK
#if __has_include("checker.cpp")
#include "checker.cpp"
#else
void cuplate::chk_launch_begin(Worker*) {}
void cuplate::chk_launch_end(Worker*) {}
void cuplate::chk_block_begin(Worker*) {}
void cuplate::chk_atomic(const volatile void*, unsigned, int, const char*, int) {}
void cuplate::chk_fence(Worker*, int) {}
void cuplate::chk_barrier(Worker*) {}
void cuplate::chk_warp(Worker*, unsigned, unsigned) {}
#endif
#endif
