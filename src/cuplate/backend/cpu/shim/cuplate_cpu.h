// The language of CUDA C++ for a host compiler: forced into every kernel's source, before its first line.
//
// Includes no system header (kernels are compiled with -nostdinc, as NVRTC has none either), so that nothing compiles
// here by accident that NVRTC refuses. Signatures are those that NVRTC 13 accepts.
#ifndef CUPLATE_CPU_H
#define CUPLATE_CPU_H

#define __CUDA_CPU_SIM__ 1
#define __CUDACC__ 1
#define __CUDACC_RTC__ 1
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define CUDART_VERSION 13000
#ifndef __CUDA_ARCH__
#define __CUDA_ARCH__ 800
#endif

// ----------------------------------------------------------------------------------------------------- qualifiers

#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __grid_constant__
// One OS thread runs one block at a time, and what is thread_local in a function is static there by itself.
#define __shared__ thread_local
#define __forceinline__ inline __attribute__((always_inline))
#define __inline_hint__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __restrict __restrict__
#ifndef NULL
#define NULL 0
#endif

#include "vector_types.h"

// Built into CUDA's compilers: what a braced list is, and an assumption.
namespace std {
template <class E>
class initializer_list {
    const E* items;  // the compiler fills these two in, in this order
    size_t count;

public:
    using value_type = E;
    constexpr initializer_list() noexcept : items(nullptr), count(0) {}
    constexpr size_t size() const noexcept { return count; }
    constexpr const E* begin() const noexcept { return items; }
    constexpr const E* end() const noexcept { return items + count; }
};
}  // namespace std
#ifndef __clang__
#define __builtin_assume(condition) ((void)0)
#endif

#include "runtime.h"
#include "cuplate_converged.h"

typedef long clock_t;

// ------------------------------------------------------------------------------------------------ thread identity

namespace cuplate {
CUPLATE_SHIM const uint3& thread_index() {
    return self()->fibers[self()->current].tid;
}
CUPLATE_SHIM const uint3& block_index() {
    return self()->bid;
}
CUPLATE_SHIM const dim3& block_dimensions() {
    return self()->block_dim;
}
CUPLATE_SHIM const dim3& grid_dimensions() {
    return self()->grid_dim;
}
}  // namespace cuplate

#define threadIdx (::cuplate::thread_index())
#define blockIdx (::cuplate::block_index())
#define blockDim (::cuplate::block_dimensions())
#define gridDim (::cuplate::grid_dimensions())
static constexpr int warpSize = 32;

// source.py turns `extern __shared__ T name[];` into one of these, on the same line: in a function a pointer, so that the
// memory can end at a guard page; elsewhere, where a pointer would be initialised once, an array of the image's own.
#define CUPLATE_DYNAMIC_SHARED(name, ...) CUPLATE_DYNAMIC_ALIGNED(, name, __VA_ARGS__)
#define CUPLATE_DYNAMIC_ALIGNED(attributes, name, ...)                                                          \
    struct attributes cuplate_alignment_of_##name { ::cuplate::type_of<__VA_ARGS__>* pointer; };                \
    __attribute__((unused)) ::cuplate::type_of<__VA_ARGS__>* const name = (::cuplate::type_of<__VA_ARGS__>*)(   \
        ::cuplate::dynamic_memory<alignof(::cuplate::type_of<__VA_ARGS__>), alignof(cuplate_alignment_of_##name)>())

#define CUPLATE_DYNAMIC_OUTSIDE(name, ...)                        \
    extern __attribute__((visibility("hidden"))) __thread ::cuplate::type_of<__VA_ARGS__> \
        name[] __asm__("cuplate_dynamic_memory")
#define CUPLATE_DYNAMIC_MEMORY                                                                          \
    extern "C" {                                                                                        \
    CUPLATE_HIDDEN __thread char cuplate_dynamic_memory[::cuplate::MAX_SHARED_BYTES] __attribute__((aligned(4096))); \
    CUPLATE_EXPORT char* cuplate_dynamic() {                                                            \
        return cuplate_dynamic_memory;                                                                  \
    }                                                                                                   \
    }

namespace cuplate {
template <class T>
struct type_identity {
    typedef T type;
};
template <class T>
using type_of = typename type_identity<T>::type;

// Where dynamic shared memory begins is settled before a launch: what the image's kernels want of it is noted when it is
// loaded, by a function for each alignment that a declaration names.
template <size_t N>
struct Alignment {
    __attribute__((constructor, no_sanitize("thread"))) static void note() { cuplate_align_dynamic(N); }
};
template <size_t OF_TYPE, size_t DECLARED>
CUPLATE_SHIM char* dynamic_memory() {
    (void)&Alignment<(OF_TYPE > DECLARED ? OF_TYPE : DECLARED)>::note;
    return self()->dynamic;
}
}  // namespace cuplate

// ------------------------------------------------------------------------------------------- barriers and fences

CUPLATE_SHIM void __syncthreads(CUPLATE_SITE) {
    ::cuplate::sync(site);
}
CUPLATE_SHIM int __syncthreads_count(int predicate, CUPLATE_SITE) {
    return (int)::cuplate::cuplate_barrier(predicate != 0, ::cuplate::OP_BARRIER_COUNT, site);
}
CUPLATE_SHIM int __syncthreads_or(int predicate, CUPLATE_SITE) {
    return ::cuplate::cuplate_barrier(predicate != 0, ::cuplate::OP_BARRIER_OR, site) != 0;
}
CUPLATE_SHIM int __syncthreads_and(int predicate, CUPLATE_SITE) {
    return ::cuplate::cuplate_barrier(predicate == 0, ::cuplate::OP_BARRIER_AND, site) == 0;
}
CUPLATE_SHIM void __syncwarp(unsigned mask = 0xffffffffu, CUPLATE_SITE) {
    ::cuplate::cuplate_rendezvous(mask, 0, ::cuplate::OP_SYNCWARP, site);
}

namespace cuplate {
enum FenceScope { FENCE_BLOCK = 0, FENCE_DEVICE = 1, FENCE_SYSTEM = 2 };
CUPLATE_SHIM void fence(int scope) {
#if defined(CUPLATE_CHECK) && !defined(CUPLATE_NO_CHECKER)
    chk_fence(self(), scope);
#endif
    if (scope == FENCE_BLOCK) {
        __atomic_signal_fence(__ATOMIC_SEQ_CST);  // all threads of a block are one OS thread
    } else {
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
    }
}
}  // namespace cuplate
CUPLATE_SHIM void __threadfence() {
    ::cuplate::fence(::cuplate::FENCE_DEVICE);
}
CUPLATE_SHIM void __threadfence_block() {
    ::cuplate::fence(::cuplate::FENCE_BLOCK);
}
CUPLATE_SHIM void __threadfence_system() {
    ::cuplate::fence(::cuplate::FENCE_SYSTEM);
}

// ------------------------------------------------------------------------------------------------ warp operations

// Overloads on exact types, as NVRTC has them: another type does not compile. Each is a template with nothing to
// deduce, so that those that a kernel does not use cost no compile time.
#define CUPLATE_LAZY template <class Lazy = void>

namespace cuplate {

// What travels through a warp operation: at most 8 bytes. A header that adds a type (half, bf16) needs no more than
// CUPLATE_SHUFFLES(type).
template <class T>
CUPLATE_SHIM u64 pack(T value) {
    static_assert(sizeof(T) <= 8, "a warp operation moves at most 8 bytes");
    u64 bits = 0;
    __builtin_memcpy(&bits, &value, sizeof(T));
    return bits;
}
template <class T>
CUPLATE_SHIM T unpack(u64 bits) {
    T value;
    __builtin_memcpy(&value, &bits, sizeof(T));
    return value;
}

// The lanes that took part in this thread's last warp operation.
CUPLATE_SHIM unsigned present() {
    return self()->lanes[self()->current].present;
}

// Which lane a shuffle reads. A segment is `width` lanes, a power of two; of an offset the hardware takes 5 bits.
// Source: PTX ISA, shfl.sync.
CUPLATE_SHIM unsigned source_index(int source, int width) {
    return (lane() & ~(unsigned)(width - 1)) | ((unsigned)source & (unsigned)(width - 1));
}
CUPLATE_SHIM unsigned source_up(unsigned delta, int width) {
    unsigned l = lane(), d = delta & 31;
    return (l & (unsigned)(width - 1)) < d ? l : l - d;
}
CUPLATE_SHIM unsigned source_down(unsigned delta, int width) {
    unsigned l = lane(), d = delta & 31;
    return (l & (unsigned)(width - 1)) + d >= (unsigned)width ? l : l + d;
}
CUPLATE_SHIM unsigned source_xor(int lanes, int width) {
    unsigned l = lane(), s = l ^ ((unsigned)lanes & 31);
    return s > (l | (unsigned)(width - 1)) ? l : s;
}

}  // namespace cuplate

#define CUPLATE_SHUFFLES(T)                                                                                     \
    CUPLATE_LAZY CUPLATE_SHIM T __shfl_sync(unsigned mask, T value, int source, int width = 32, CUPLATE_SITE) {              \
        return ::cuplate::unpack<T>(::cuplate::cuplate_shuffle(mask, ::cuplate::pack<T>(value),                 \
            ::cuplate::source_index(source, width), ::cuplate::OP_SHFL, site));                                 \
    }                                                                                                           \
    CUPLATE_LAZY CUPLATE_SHIM T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, CUPLATE_SITE) {       \
        return ::cuplate::unpack<T>(::cuplate::cuplate_shuffle(mask, ::cuplate::pack<T>(value),                 \
            ::cuplate::source_up(delta, width), ::cuplate::OP_SHFL_UP, site));                                  \
    }                                                                                                           \
    CUPLATE_LAZY CUPLATE_SHIM T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, CUPLATE_SITE) {     \
        return ::cuplate::unpack<T>(::cuplate::cuplate_shuffle(mask, ::cuplate::pack<T>(value),                 \
            ::cuplate::source_down(delta, width), ::cuplate::OP_SHFL_DOWN, site));                              \
    }                                                                                                           \
    CUPLATE_LAZY CUPLATE_SHIM T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, CUPLATE_SITE) {           \
        return ::cuplate::unpack<T>(::cuplate::cuplate_shuffle(mask, ::cuplate::pack<T>(value),                 \
            ::cuplate::source_xor(lanes, width), ::cuplate::OP_SHFL_XOR, site));                                \
    }
CUPLATE_SHUFFLES(int)
CUPLATE_SHUFFLES(unsigned)
CUPLATE_SHUFFLES(long)
CUPLATE_SHUFFLES(unsigned long)
CUPLATE_SHUFFLES(long long)
CUPLATE_SHUFFLES(unsigned long long)
CUPLATE_SHUFFLES(float)
CUPLATE_SHUFFLES(double)

CUPLATE_SHIM unsigned __ballot_sync(unsigned mask, int predicate, CUPLATE_SITE) {
    return ::cuplate::cuplate_ballot(mask, predicate != 0, ::cuplate::OP_BALLOT, site);
}
CUPLATE_SHIM int __any_sync(unsigned mask, int predicate, CUPLATE_SITE) {
    return ::cuplate::cuplate_ballot(mask, predicate != 0, ::cuplate::OP_ANY, site) != 0;
}
CUPLATE_SHIM int __all_sync(unsigned mask, int predicate, CUPLATE_SITE) {
    return ::cuplate::cuplate_ballot(mask, predicate == 0, ::cuplate::OP_ALL, site) == 0;
}
CUPLATE_SHIM unsigned __activemask(CUPLATE_SITE) {
    return ::cuplate::converged(site);
}

#define CUPLATE_MATCHES(T)                                                                                      \
    CUPLATE_LAZY CUPLATE_SHIM unsigned __match_any_sync(unsigned mask, T value, CUPLATE_SITE) {                              \
        return ::cuplate::cuplate_match(mask, ::cuplate::pack<T>(value), ::cuplate::OP_MATCH_ANY, site);        \
    }                                                                                                           \
    CUPLATE_LAZY CUPLATE_SHIM unsigned __match_all_sync(unsigned mask, T value, int* all, CUPLATE_SITE) {                    \
        unsigned same = ::cuplate::cuplate_match(mask, ::cuplate::pack<T>(value), ::cuplate::OP_MATCH_ALL, site); \
        bool every = same == ::cuplate::present();                                                           \
        *all = every;                                                                                           \
        return every ? same : 0;                                                                                \
    }
CUPLATE_MATCHES(int)
CUPLATE_MATCHES(unsigned)
CUPLATE_MATCHES(long)
CUPLATE_MATCHES(unsigned long)
CUPLATE_MATCHES(long long)
CUPLATE_MATCHES(unsigned long long)
CUPLATE_MATCHES(float)
CUPLATE_MATCHES(double)

#define CUPLATE_REDUCE(NAME, T, INITIAL, COMBINE)                                                               \
    CUPLATE_LAZY CUPLATE_SHIM T NAME(unsigned mask, T value, CUPLATE_SITE) {                                                 \
        unsigned present = ::cuplate::cuplate_rendezvous(mask, ::cuplate::pack<T>(value), ::cuplate::OP_REDUCE, site); \
        const ::cuplate::u64* brought = ::cuplate::brought();                                                   \
        T a = INITIAL;                                                                                          \
        for (unsigned l = 0; l < 32; ++l) {                                                                     \
            if (!(present >> l & 1)) continue;                                                                  \
            T b = ::cuplate::unpack<T>(brought[l]);                                                             \
            a = COMBINE;                                                                                        \
        }                                                                                                       \
        return a;                                                                                               \
    }
CUPLATE_REDUCE(__reduce_add_sync, unsigned, 0, a + b)
CUPLATE_REDUCE(__reduce_add_sync, int, 0, (int)((unsigned)a + (unsigned)b))
CUPLATE_REDUCE(__reduce_min_sync, unsigned, ~0u, a < b ? a : b)
CUPLATE_REDUCE(__reduce_min_sync, int, 0x7fffffff, a < b ? a : b)
CUPLATE_REDUCE(__reduce_max_sync, unsigned, 0, a > b ? a : b)
CUPLATE_REDUCE(__reduce_max_sync, int, -0x7fffffff - 1, a > b ? a : b)
CUPLATE_REDUCE(__reduce_and_sync, unsigned, ~0u, a & b)
CUPLATE_REDUCE(__reduce_or_sync, unsigned, 0, a | b)
CUPLATE_REDUCE(__reduce_xor_sync, unsigned, 0, a ^ b)
#undef CUPLATE_REDUCE

// -------------------------------------------------------------------------------------------------------- atomics

namespace cuplate {

template <unsigned Bytes>
struct word;
template <>
struct word<2> {
    typedef unsigned short type;
};
template <>
struct word<4> {
    typedef unsigned type;
};
template <>
struct word<8> {
    typedef u64 type;
};

// The checker's words for kinds of atomics, also where there is no checker.
enum AtomicKind : int { KIND_ADD = 0, KIND_COMPARE = 1 };

// Replaces *target by change(*target) in one step and returns what was there. For any trivially copyable type of 2, 4
// or 8 bytes; headers with further types (half, bf16) build on it.
template <class T, class Change>
CUPLATE_SHIM T atomic_update(T* target, Change change, int kind, Site site) {
    (void)kind;
#ifdef CUPLATE_CHECK
#ifndef CUPLATE_NO_CHECKER
    chk_atomic(target, sizeof(T), kind, site.file, site.line);
#endif
    // Checked launches have one worker, whose fibers change only where the kernel calls the runtime.
    T old;
    cuplate_copy(&old, target, sizeof(T));
    T value = change(old);
    cuplate_copy(target, &value, sizeof(T));
    return old;
#else
    (void)site;
    typedef typename word<sizeof(T)>::type W;
    W* cell = (W*)target;
    W seen = __atomic_load_n(cell, __ATOMIC_RELAXED);
    for (;;) {
        T old = unpack<T>(seen);
        W wanted = (W)pack<T>(change(old));
        if (__atomic_compare_exchange_n(cell, &seen, wanted, true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) return old;
    }
#endif
}

// An atomic that a spin lock may be waiting with: now and then another thread of the block runs.
CUPLATE_SHIM void spun() {
    if ((++self()->spins & 15) == 0) cuplate_yield();
}

}  // namespace cuplate

#define CUPLATE_ATOMIC_SCOPES(X, NAME, KIND, T, VALUE) \
    X(NAME, KIND, T, VALUE) X(NAME##_block, KIND, T, VALUE) X(NAME##_system, KIND, T, VALUE)
#define CUPLATE_ATOMIC_ONE(NAME, KIND, T, VALUE)                                                                \
    CUPLATE_LAZY CUPLATE_SHIM T NAME(T* address, T operand, CUPLATE_SITE) {                                     \
        return ::cuplate::atomic_update(address, [=](T old) -> T { return VALUE; }, ::cuplate::KIND, site);     \
    }
#define CUPLATE_ATOMIC(NAME, T, VALUE) CUPLATE_ATOMIC_SCOPES(CUPLATE_ATOMIC_ONE, NAME, KIND_COMPARE, T, VALUE)
#define CUPLATE_ATOMIC_SUM(NAME, T, VALUE) CUPLATE_ATOMIC_SCOPES(CUPLATE_ATOMIC_ONE, NAME, KIND_ADD, T, VALUE)

CUPLATE_ATOMIC_SUM(atomicAdd, int, (int)((unsigned)old + (unsigned)operand))
CUPLATE_ATOMIC_SUM(atomicAdd, unsigned, old + operand)
CUPLATE_ATOMIC_SUM(atomicAdd, unsigned long long, old + operand)
CUPLATE_ATOMIC_SUM(atomicAdd, float, old + operand)
CUPLATE_ATOMIC_SUM(atomicAdd, double, old + operand)
CUPLATE_ATOMIC_SUM(atomicSub, int, (int)((unsigned)old - (unsigned)operand))
CUPLATE_ATOMIC_SUM(atomicSub, unsigned, old - operand)
#define CUPLATE_ATOMIC_ORDERED(T)                              \
    CUPLATE_ATOMIC(atomicMin, T, old < operand ? old : operand) \
    CUPLATE_ATOMIC(atomicMax, T, old > operand ? old : operand) \
    CUPLATE_ATOMIC(atomicAnd, T, old & operand)                \
    CUPLATE_ATOMIC(atomicOr, T, old | operand)                 \
    CUPLATE_ATOMIC(atomicXor, T, old ^ operand)
CUPLATE_ATOMIC_ORDERED(int)
CUPLATE_ATOMIC_ORDERED(unsigned)
CUPLATE_ATOMIC_ORDERED(long long)
CUPLATE_ATOMIC_ORDERED(unsigned long long)
#undef CUPLATE_ATOMIC_ORDERED
CUPLATE_ATOMIC_SUM(atomicInc, unsigned, old >= operand ? 0 : old + 1)
CUPLATE_ATOMIC_SUM(atomicDec, unsigned, old == 0 || old > operand ? operand : old - 1)

#define CUPLATE_ATOMIC_EXCHANGE(NAME, KIND, T, VALUE)                                                           \
    CUPLATE_LAZY CUPLATE_SHIM T NAME(T* address, T operand, CUPLATE_SITE) {                                     \
        T old = ::cuplate::atomic_update(address, [=](T) -> T { return operand; }, ::cuplate::KIND, site);      \
        ::cuplate::spun();                                                                                      \
        return old;                                                                                             \
    }
CUPLATE_ATOMIC_SCOPES(CUPLATE_ATOMIC_EXCHANGE, atomicExch, KIND_COMPARE, int, 0)
CUPLATE_ATOMIC_SCOPES(CUPLATE_ATOMIC_EXCHANGE, atomicExch, KIND_COMPARE, unsigned, 0)
CUPLATE_ATOMIC_SCOPES(CUPLATE_ATOMIC_EXCHANGE, atomicExch, KIND_COMPARE, unsigned long long, 0)
CUPLATE_ATOMIC_SCOPES(CUPLATE_ATOMIC_EXCHANGE, atomicExch, KIND_COMPARE, float, 0)

#define CUPLATE_ATOMIC_CAS(NAME, KIND, T, VALUE)                                                                \
    CUPLATE_LAZY CUPLATE_SHIM T NAME(T* address, T compare, T value, CUPLATE_SITE) {                            \
        T found = ::cuplate::atomic_update(                                                                     \
            address, [=](T old) -> T { return old == compare ? value : old; }, ::cuplate::KIND, site);          \
        if (found != compare) ::cuplate::spun();                                                                \
        return found;                                                                                           \
    }
CUPLATE_ATOMIC_SCOPES(CUPLATE_ATOMIC_CAS, atomicCAS, KIND_COMPARE, int, 0)
CUPLATE_ATOMIC_SCOPES(CUPLATE_ATOMIC_CAS, atomicCAS, KIND_COMPARE, unsigned, 0)
CUPLATE_ATOMIC_SCOPES(CUPLATE_ATOMIC_CAS, atomicCAS, KIND_COMPARE, unsigned long long, 0)
CUPLATE_ATOMIC_SCOPES(CUPLATE_ATOMIC_CAS, atomicCAS, KIND_COMPARE, unsigned short, 0)

// --------------------------------------------------------------------------------- printf, assert, trap and clock

namespace cuplate {
CUPLATE_SHIM void print_argument(double value) {
    cuplate_print_real(value);
}
CUPLATE_SHIM void print_argument(float value) {
    cuplate_print_real(value);
}
CUPLATE_SHIM void print_argument(const char* text) {
    cuplate_print_text(text);
}
CUPLATE_SHIM void print_argument(char* text) {
    cuplate_print_text(text);
}
template <class T>
CUPLATE_SHIM void print_argument(T* pointer) {
    cuplate_print_integer((address_t)pointer);
}
template <class T>
CUPLATE_SHIM void print_argument(T value) {
    cuplate_print_integer((u64)(s64)value);
}
}  // namespace cuplate

template <class... Arguments>
CUPLATE_SHIM int printf(const char* format, Arguments... arguments) {
    ::cuplate::cuplate_print_begin(format);
    int each[] = {0, (::cuplate::print_argument(arguments), 0)...};
    (void)each;
    ::cuplate::cuplate_print_end();
    return (int)sizeof...(Arguments);
}

#ifdef NDEBUG
#define assert(...) ((void)0)
#else
#define assert(...) \
    ((__VA_ARGS__) ? (void)0 : ::cuplate::cuplate_fail(::cuplate::REASON_ASSERT, #__VA_ARGS__, ::cuplate::Site{__FILE__, __LINE__}))
#endif

CUPLATE_SHIM void __trap(CUPLATE_SITE) {
    ::cuplate::cuplate_fail(::cuplate::REASON_TRAP, "", site);
}
CUPLATE_SHIM void __brkpt() {}
CUPLATE_SHIM void __nanosleep(unsigned) {
    ::cuplate::cuplate_yield();
}
CUPLATE_SHIM long long clock64() {
    return (long long)::cuplate::cuplate_clock();
}
CUPLATE_SHIM clock_t clock() {
    return (clock_t)::cuplate::cuplate_clock();
}

#include "device_functions.h"

// --------------------------------------------------------------------------------------------------------- entry

namespace cuplate {

template <int... I>
struct indices {};
template <int N, int... I>
struct make_indices : make_indices<N - 1, N - 1, I...> {};
template <int... I>
struct make_indices<0, I...> {
    typedef indices<I...> type;
};
template <class T>
struct without_const {
    typedef T type;
};
template <class T>
struct without_const<const T> {
    typedef T type;
};
template <class T>
struct points_to_const {
    static constexpr unsigned value = 0;
};
template <class T>
struct points_to_const<const T*> {
    static constexpr unsigned value = 1u << 31;
};

template <class... A, int... I>
CUPLATE_SHIM void call(void (*kernel)(A...), void** arguments, indices<I...>) {
    kernel(*(typename without_const<A>::type*)arguments[I]...);
}
// Calls a kernel with what cuLaunchKernel would take: a pointer to each argument.
template <class... A>
CUPLATE_SHIM void call(void (*kernel)(A...), void** arguments) {
    call(kernel, arguments, typename make_indices<sizeof...(A)>::type());
}
// Sizes of the arguments in bytes, the top bit set where it is a pointer to const; ends at 0.
template <class... A>
CUPLATE_SHIM const unsigned* describe(void (*)(A...)) {
    static const unsigned table[] = {(unsigned)sizeof(A) | points_to_const<typename without_const<A>::type>::value..., 0};
    return table;
}

}  // namespace cuplate

#define CUPLATE_ENTRY(NUMBER, ...)                                                                              \
    CUPLATE_EXPORT void cuplate_entry_##NUMBER(void** arguments) {                                              \
        ::cuplate::call(__VA_ARGS__, arguments);                                                                \
    }                                                                                                           \
    CUPLATE_EXPORT const unsigned* cuplate_arguments_##NUMBER() {                                               \
        return ::cuplate::describe(__VA_ARGS__);                                                                \
    }
#define CUPLATE_BOUNDS(NUMBER, ...)                                                                             \
    CUPLATE_EXPORT unsigned cuplate_bounds_##NUMBER() {                                                         \
        return (unsigned)(__VA_ARGS__);                                                                         \
    }

// ------------------------------------------------------------------------------------------------------- refusals
//
// source.py puts these before what they are about, on the line that has it. A branch that is not compiled stays silent.

#define CUPLATE_REFUSE(TEXT) _Pragma(TEXT)
#define CUPLATE_NO_PTX \
    CUPLATE_REFUSE("GCC error \"the CPU backend cannot run inline PTX (asm): guard it with #ifndef __CUDA_CPU_SIM__ and give a C++ alternative\"")
#define CUPLATE_NO_LAUNCH \
    CUPLATE_REFUSE("GCC error \"the CPU backend cannot launch a kernel from a kernel (dynamic parallelism): call a __device__ function, or launch twice from Python\"")
#define CUPLATE_NO_TEXTURES \
    CUPLATE_REFUSE("GCC error \"the CPU backend has no textures and surfaces: guard them with #ifndef __CUDA_CPU_SIM__ and read an array\"")
#define CUPLATE_NO_CLUSTERS \
    CUPLATE_REFUSE("GCC error \"the CPU backend has no thread block clusters: guard this with #ifndef __CUDA_CPU_SIM__\"")
#define CUPLATE_NO_INITIALIZER \
    CUPLATE_REFUSE("GCC error \"a __shared__ variable has no initializer in CUDA: assign to it in one thread, then __syncthreads()\"")
#define CUPLATE_NO_THREAD_LOCAL \
    CUPLATE_REFUSE("GCC error \"thread_local does not exist in CUDA: a local variable is each thread's own\"")

#endif
