// Loads and stores with cache hints, and hints that have no meaning on a CPU.
//
// A hint changes where data is cached, never what is read, so each is the plain access. These are always inlined: the
// checker sees the access at the kernel's line. The set of types is the GPU's: no bool, no pointers.
#ifndef CUPLATE_LOADS_H
#define CUPLATE_LOADS_H

namespace cuplate {
template <class T>
struct is_cached {
    static constexpr bool value = false;
};
#define CUPLATE_CACHED(...)                                                                        \
    template <>                                                                                    \
    struct is_cached<__VA_ARGS__> {                                                                \
        static constexpr bool value = true;                                                        \
    };
CUPLATE_CACHED(char)
CUPLATE_CACHED(signed char)
CUPLATE_CACHED(unsigned char)
CUPLATE_CACHED(short)
CUPLATE_CACHED(unsigned short)
CUPLATE_CACHED(int)
CUPLATE_CACHED(unsigned int)
CUPLATE_CACHED(long)
CUPLATE_CACHED(unsigned long)
CUPLATE_CACHED(long long)
CUPLATE_CACHED(unsigned long long)
CUPLATE_CACHED(float)
CUPLATE_CACHED(double)
CUPLATE_CACHED(char2)
CUPLATE_CACHED(char4)
CUPLATE_CACHED(uchar2)
CUPLATE_CACHED(uchar4)
CUPLATE_CACHED(short2)
CUPLATE_CACHED(short4)
CUPLATE_CACHED(ushort2)
CUPLATE_CACHED(ushort4)
CUPLATE_CACHED(int2)
CUPLATE_CACHED(int4)
CUPLATE_CACHED(uint2)
CUPLATE_CACHED(uint4)
CUPLATE_CACHED(longlong2)
CUPLATE_CACHED(ulonglong2)
CUPLATE_CACHED(float2)
CUPLATE_CACHED(float4)
CUPLATE_CACHED(double2)

template <bool Condition, class T>
struct only_if {};
template <class T>
struct only_if<true, T> {
    typedef T type;
};
template <class A, class B>
struct is_same {
    static constexpr bool value = false;
};
template <class A>
struct is_same<A, A> {
    static constexpr bool value = true;
};
template <class T>
struct same {
    typedef T type;
};
}  // namespace cuplate

#define CUPLATE_LOAD(NAME)                                                                         \
    template <class T>                                                                             \
    CUPLATE_SHIM typename ::cuplate::only_if<::cuplate::is_cached<T>::value, T>::type NAME(const T* p) { \
        return *p;                                                                                 \
    }
#define CUPLATE_STORE(NAME)                                                                        \
    template <class T>                                                                             \
    CUPLATE_SHIM typename ::cuplate::only_if<::cuplate::is_cached<T>::value, void>::type NAME(     \
        T* p, typename ::cuplate::same<T>::type value) {                                           \
        *p = value;                                                                                \
    }
CUPLATE_LOAD(__ldg)
CUPLATE_LOAD(__ldca)
CUPLATE_LOAD(__ldcg)
CUPLATE_LOAD(__ldcs)
CUPLATE_LOAD(__ldlu)
CUPLATE_LOAD(__ldcv)
CUPLATE_STORE(__stwb)
CUPLATE_STORE(__stcg)
CUPLATE_STORE(__stcs)
CUPLATE_STORE(__stwt)
#undef CUPLATE_LOAD
#undef CUPLATE_STORE

CUPLATE_SHIM void __prof_trigger(int) {}
CUPLATE_SHIM void __pm0() {}
CUPLATE_SHIM void __pm1() {}
CUPLATE_SHIM void __pm2() {}
CUPLATE_SHIM void __pm3() {}

// A GPU tells its address spaces apart; here shared, local and global memory are one.
CUPLATE_SHIM size_t __cvta_generic_to_shared(const void* p) { return (size_t)p; }
CUPLATE_SHIM size_t __cvta_generic_to_global(const void* p) { return (size_t)p; }
CUPLATE_SHIM size_t __cvta_generic_to_local(const void* p) { return (size_t)p; }
CUPLATE_SHIM size_t __cvta_generic_to_constant(const void* p) { return (size_t)p; }
CUPLATE_SHIM void* __cvta_shared_to_generic(size_t p) { return (void*)p; }
CUPLATE_SHIM void* __cvta_global_to_generic(size_t p) { return (void*)p; }
CUPLATE_SHIM void* __cvta_local_to_generic(size_t p) { return (void*)p; }
CUPLATE_SHIM void* __cvta_constant_to_generic(size_t p) { return (void*)p; }
#define CUPLATE_NO_ADDRESS_SPACES "cannot tell address spaces apart: guard this with #ifndef __CUDA_CPU_SIM__"
CUPLATE_REFUSED(CUPLATE_NO_ADDRESS_SPACES) unsigned int __isGlobal(const void*);
CUPLATE_REFUSED(CUPLATE_NO_ADDRESS_SPACES) unsigned int __isShared(const void*);
CUPLATE_REFUSED(CUPLATE_NO_ADDRESS_SPACES) unsigned int __isLocal(const void*);
CUPLATE_REFUSED(CUPLATE_NO_ADDRESS_SPACES) unsigned int __isConstant(const void*);
CUPLATE_REFUSED(CUPLATE_NO_ADDRESS_SPACES) unsigned int __isGridConstant(const void*);

// The device's heap: memory that outlives its thread, which the checker could not follow.
#define CUPLATE_NO_HEAP "has no device heap (malloc, new): pass a work array as an argument"
CUPLATE_REFUSED(CUPLATE_NO_HEAP) void* malloc(size_t);
CUPLATE_REFUSED(CUPLATE_NO_HEAP) void free(void*);
#ifndef __clang__  // which declares operator new by itself, before an attribute could be given
CUPLATE_REFUSED(CUPLATE_NO_HEAP) void* operator new(size_t);
CUPLATE_REFUSED(CUPLATE_NO_HEAP) void* operator new[](size_t);
#endif
inline __attribute__((always_inline)) void* operator new(size_t, void* p) noexcept { return p; }
inline __attribute__((always_inline)) void* operator new[](size_t, void* p) noexcept { return p; }

#if defined(CUPLATE_CHECK) && !defined(CUPLATE_NO_CHECKER) && !defined(__clang__)
// Clang tells the checker of these; g++ sees a call, not the memory.
CUPLATE_SHIM void* memcpy(void* to, const void* from, size_t bytes, CUPLATE_SITE) {
    ::cuplate::chk_read(from, bytes, site.file, site.line);
    ::cuplate::chk_write(to, bytes, site.file, site.line);
    return __builtin_memcpy(to, from, bytes);
}
CUPLATE_SHIM void* memset(void* to, int value, size_t bytes, CUPLATE_SITE) {
    ::cuplate::chk_write(to, bytes, site.file, site.line);
    return __builtin_memset(to, value, bytes);
}
#else
CUPLATE_SHIM void* memcpy(void* to, const void* from, size_t bytes) { return __builtin_memcpy(to, from, bytes); }
CUPLATE_SHIM void* memset(void* to, int value, size_t bytes) { return __builtin_memset(to, value, bytes); }
#endif

#endif
