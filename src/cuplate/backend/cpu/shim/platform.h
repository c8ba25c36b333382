// The few functions and structures of the C library and the kernel that the runtime needs, declared here because
// kernels and runtime are compiled where there may be no system headers.
//
// Source: the System V and AArch64 ABIs of Linux (struct sigaction as glibc and musl have it, siginfo, ucontext,
// sigevent), and Apple's <sys/signal.h> and <sys/ucontext.h>.
#ifndef CUPLATE_PLATFORM_H
#define CUPLATE_PLATFORM_H

#include "runtime.h"

#if (defined(__linux__) || defined(__APPLE__)) && (defined(__x86_64__) || defined(__aarch64__))
#define CUPLATE_SIGNALS 1
#endif

#ifdef CUPLATE_SIGNALS

extern "C" {
struct cuplate_timespec {
    long seconds, nanoseconds;
};
int clock_gettime(int clock, cuplate_timespec*);
int sigaction(int signal, const void* set, void* old);
int sigaltstack(const void* set, void* old);
int raise(int signal);
int mprotect(void* address, size_t bytes, int protection);
#ifdef __linux__
int madvise(void* address, size_t bytes, int advice);
unsigned long getauxval(unsigned long type);
#endif
}

namespace cuplate {

// How the processor rounds and what it does with subnormal numbers. A kernel is to run as on a GPU whatever the process
// has set for itself (torch.set_flush_denormal, fesetround), in every thread alike. And a signal resets it: a launch that
// is left from a handler would leave the process without what it had set.
struct FloatingPoint {
#ifdef __x86_64__
    unsigned mxcsr;
    unsigned short x87;
#else
    u64 fpcr;
#endif
};
static inline FloatingPoint get_floating_point() {
    FloatingPoint state;
#ifdef __x86_64__
    __asm__ volatile("stmxcsr %0\n\tfnstcw %1" : "=m"(state.mxcsr), "=m"(state.x87));
#else
    __asm__ volatile("mrs %0, fpcr" : "=r"(state.fpcr));
#endif
    return state;
}
static inline void set_floating_point(FloatingPoint state) {
#ifdef __x86_64__
    __asm__ volatile("ldmxcsr %0\n\tfldcw %1" : : "m"(state.mxcsr), "m"(state.x87) : "memory");
#else
    __asm__ volatile("msr fpcr, %0" : : "r"(state.fpcr) : "memory");
#endif
}
static inline FloatingPoint default_floating_point() {
#ifdef __x86_64__
    return FloatingPoint{0x1f80, 0x37f};  // to nearest, nothing flushed, no exception traps
#else
    return FloatingPoint{0};
#endif
}

typedef void (*SignalHandler)(int, void* info, void* context);

#ifdef __linux__
extern "C" long syscall(long number, ...);

enum {
    SIG_INT = 2, SIG_ILL = 4, SIG_BUS = 7, SIG_FPE = 8, SIG_SEGV = 11,
    SIG_TICK = 23,  // SIGURG: ignored by default, so that a late one does no harm
    FLAG_SIGINFO = 4, FLAG_ONSTACK = 0x08000000, FLAG_RESTART = 0x10000000, FLAG_NODEFER = 0x40000000,
    CLOCK_MONOTONIC_ = 1,
};
#ifdef __x86_64__
enum { CALL_GETPID = 39, CALL_GETTID = 186, CALL_TGKILL = 234, CALL_TIMER_CREATE = 222, CALL_TIMER_SETTIME = 223, CALL_TIMER_DELETE = 226 };
#else
enum { CALL_GETPID = 172, CALL_GETTID = 178, CALL_TGKILL = 131, CALL_TIMER_CREATE = 107, CALL_TIMER_SETTIME = 110, CALL_TIMER_DELETE = 111 };
#endif

struct SignalAction {
    SignalHandler handler;
    unsigned long mask[16];
    int flags;
    void (*restorer)();
};
struct SignalStack {
    void* base;
    int flags;
    size_t bytes;
};
// What timer_create(2) reads of a struct sigevent: notify this very thread.
struct TimerEvent {
    u64 value;
    int signal, notify, thread;
    int padding[11];
};
struct TimerTimes {
    cuplate_timespec interval, first;
};

static inline int thread_id() {
    return (int)syscall(CALL_GETTID);
}
static inline void kick(int thread) {
    syscall(CALL_TGKILL, syscall(CALL_GETPID), (long)thread, (long)SIG_TICK);
}
static inline address_t fault_address(void* info) {
    return *(address_t*)((char*)info + 16);
}
static inline address_t context_register(void* context, bool program_counter) {
#ifdef __x86_64__
    // ucontext: flags, link, stack (3 words), then gregs; 15 is rsp, 16 rip
    return ((address_t*)context)[5 + (program_counter ? 16 : 15)];
#else
    // ucontext: flags, link, stack (3 words), mask (16 words), then fault address, 31 registers, sp, pc; 16-aligned
    return ((address_t*)context)[22 + 1 + 31 + (program_counter ? 1 : 0)];
#endif
}

#else  // Apple

extern "C" int pthread_threadid_np(void* thread, u64* id);
extern "C" void* pthread_self();
extern "C" int pthread_kill(void* thread, int signal);

enum {
    SIG_INT = 2, SIG_ILL = 4, SIG_FPE = 8, SIG_BUS = 10, SIG_SEGV = 11,
    SIG_TICK = 16,
    FLAG_SIGINFO = 0x40, FLAG_ONSTACK = 1, FLAG_RESTART = 2, FLAG_NODEFER = 0x10,
    CLOCK_MONOTONIC_ = 6,
};
struct SignalAction {
    SignalHandler handler;
    unsigned mask;
    int flags;
};
struct SignalStack {
    void* base;
    size_t bytes;
    int flags;
};
static inline int thread_id() {
    u64 id = 0;
    pthread_threadid_np(nullptr, &id);
    return (int)id;
}
static inline address_t fault_address(void* info) {
    return *(address_t*)((char*)info + 24);
}
static inline address_t context_register(void*, bool) {
    return 0;
}
#endif

// 1 for a read, 2 for a write, 0 where the context does not say; 3 where the fault is of no address: one that is not
// aligned as the instruction asks, or not one of this processor's.
static inline int fault_access(void* info, void* context) {
#if defined(__linux__) && defined(__x86_64__)
    enum { SI_KERNEL_ = 0x80 };
    if (((int*)info)[2] == SI_KERNEL_) return 3;
    return ((address_t*)context)[5 + 19] & 2 ? 2 : 1;  // the page fault's error code
#else
    (void)info, (void)context;
    return 0;
#endif
}

// Makes whole pages untouchable or gives them back (their content is lost). Linux 6.13 can do it without splitting the
// mapping that they lie in.
static inline void guard_pages(void* address, size_t bytes, bool on) {
#ifdef __linux__
    enum { GUARD_INSTALL = 102, GUARD_REMOVE = 103 };
    if (madvise(address, bytes, on ? GUARD_INSTALL : GUARD_REMOVE) == 0) return;
#endif
    mprotect(address, bytes, on ? 0 : 3);
}

#ifdef CUPLATE_SEGMENT
// The base of the gs segment: by an instruction where the kernel allows it (since Linux 5.9), else by a system call.
enum { CALL_ARCH_PRCTL = 158, ARCH_SET_GS = 0x1001, ARCH_GET_GS = 0x1004 };
static inline bool segment_instructions() {
    enum { AT_HWCAP2 = 26, FSGSBASE = 2 };
    return getauxval(AT_HWCAP2) & FSGSBASE;
}
static inline address_t get_segment() {
    address_t base = 0;
    if (segment_instructions()) {
        __asm__ volatile(".byte 0xf3, 0x48, 0x0f, 0xae, 0xc8" : "=a"(base));  // rdgsbase %rax
    } else {
        syscall(CALL_ARCH_PRCTL, (long)ARCH_GET_GS, &base);
    }
    return base;
}
static inline bool set_segment(address_t base) {
    if (segment_instructions()) {
        __asm__ volatile(".byte 0xf3, 0x48, 0x0f, 0xae, 0xd8" : : "a"(base) : "memory");  // wrgsbase %rax
        return true;
    }
    return syscall(CALL_ARCH_PRCTL, (long)ARCH_SET_GS, base) == 0;
}
#endif

static inline s64 now_ns() {
    cuplate_timespec t;
    clock_gettime(CLOCK_MONOTONIC_, &t);
    return (s64)t.seconds * 1000000000 + t.nanoseconds;
}

}  // namespace cuplate

#else

namespace cuplate {
// No signals here: a launch can only be stopped where the kernel calls the runtime, and a fault ends the process.
static inline s64 now_ns() {
    return 0;
}
}  // namespace cuplate

#endif
#endif
