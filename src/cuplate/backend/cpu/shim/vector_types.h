// The built-in vector types of CUDA C++ (char1 .. double4), their make_ functions, and dim3.
//
// Alignments are those of the CUDA C++ Programming Guide, "Built-in Vector Types": a 2- or 4-vector is aligned to its
// size, up to 16 bytes; a 1- or 3-vector to its element. They decide the layout of structs that the host packs, and
// which addresses the checker calls misaligned. Nothing here needs the runtime.
#ifndef CUPLATE_VECTOR_TYPES_H
#define CUPLATE_VECTOR_TYPES_H

// Shim functions are inlined always: an access to memory inside one then belongs to the kernel's line that called it.
#define CUPLATE_SHIM static inline __attribute__((always_inline, unused))

typedef decltype(sizeof(0)) size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;

// Clang copies a struct of a trivial type without asking whether its address is aligned, even with
// -fsanitize=alignment. One empty member whose copy is not trivial makes the copy a call by reference, and those are
// checked. It takes no room, and a vector is still an aggregate.
#if defined(__clang__) && defined(CUPLATE_CHECK)
namespace cuplate {
struct copied {
    constexpr copied() = default;
    constexpr copied(const copied&) {}
    constexpr copied& operator=(const copied&) {
        return *this;
    }
};
}  // namespace cuplate
#define CUPLATE_COPIED [[no_unique_address]] ::cuplate::copied cuplate_copied;
#else
#define CUPLATE_COPIED
#endif

#define CUPLATE_VECTOR(SCALAR, NAME, ALIGN1, ALIGN2, ALIGN3, ALIGN4)                               \
    struct __attribute__((aligned(ALIGN1))) NAME##1 {                                              \
        SCALAR x; CUPLATE_COPIED                                                                   \
    };                                                                                             \
    struct __attribute__((aligned(ALIGN2))) NAME##2 {                                              \
        SCALAR x, y; CUPLATE_COPIED                                                                \
    };                                                                                             \
    struct __attribute__((aligned(ALIGN3))) NAME##3 {                                              \
        SCALAR x, y, z; CUPLATE_COPIED                                                             \
    };                                                                                             \
    struct __attribute__((aligned(ALIGN4))) NAME##4 {                                              \
        SCALAR x, y, z, w; CUPLATE_COPIED                                                          \
    };                                                                                             \
    CUPLATE_SHIM NAME##1 make_##NAME##1(SCALAR x) {                                                \
        return NAME##1{x};                                                                         \
    }                                                                                              \
    CUPLATE_SHIM NAME##2 make_##NAME##2(SCALAR x, SCALAR y) {                                      \
        return NAME##2{x, y};                                                                      \
    }                                                                                              \
    CUPLATE_SHIM NAME##3 make_##NAME##3(SCALAR x, SCALAR y, SCALAR z) {                            \
        return NAME##3{x, y, z};                                                                   \
    }                                                                                              \
    CUPLATE_SHIM NAME##4 make_##NAME##4(SCALAR x, SCALAR y, SCALAR z, SCALAR w) {                  \
        return NAME##4{x, y, z, w};                                                                \
    }

CUPLATE_VECTOR(signed char, char, 1, 2, 1, 4)
CUPLATE_VECTOR(unsigned char, uchar, 1, 2, 1, 4)
CUPLATE_VECTOR(short, short, 2, 4, 2, 8)
CUPLATE_VECTOR(unsigned short, ushort, 2, 4, 2, 8)
CUPLATE_VECTOR(int, int, 4, 8, 4, 16)
CUPLATE_VECTOR(unsigned int, uint, 4, 8, 4, 16)
CUPLATE_VECTOR(long, long, sizeof(long), 2 * sizeof(long), sizeof(long), 16)
CUPLATE_VECTOR(unsigned long, ulong, sizeof(long), 2 * sizeof(long), sizeof(long), 16)
CUPLATE_VECTOR(long long, longlong, 8, 16, 8, 16)
CUPLATE_VECTOR(unsigned long long, ulonglong, 8, 16, 8, 16)
CUPLATE_VECTOR(float, float, 4, 8, 4, 16)
CUPLATE_VECTOR(double, double, 8, 16, 8, 16)
#undef CUPLATE_VECTOR

// CUDA 13 gave the 8-byte 4-vectors two spellings, one for each alignment. Those of long have no make_ functions
// in NVRTC.
#define CUPLATE_VECTOR4(SCALAR, NAME, ALIGN)                                                       \
    struct __attribute__((aligned(ALIGN))) NAME##4_##ALIGN##a {                                    \
        SCALAR x, y, z, w; CUPLATE_COPIED                                                          \
    };
#define CUPLATE_MAKE4(SCALAR, TYPE)                                                                \
    CUPLATE_SHIM TYPE make_##TYPE(SCALAR x, SCALAR y, SCALAR z, SCALAR w) {                        \
        return TYPE{x, y, z, w};                                                                   \
    }
CUPLATE_VECTOR4(long, long, 16)
CUPLATE_VECTOR4(long, long, 32)
CUPLATE_VECTOR4(unsigned long, ulong, 16)
CUPLATE_VECTOR4(unsigned long, ulong, 32)
CUPLATE_VECTOR4(long long, longlong, 16)
CUPLATE_VECTOR4(long long, longlong, 32)
CUPLATE_VECTOR4(unsigned long long, ulonglong, 16)
CUPLATE_VECTOR4(unsigned long long, ulonglong, 32)
CUPLATE_VECTOR4(double, double, 16)
CUPLATE_VECTOR4(double, double, 32)
CUPLATE_MAKE4(long long, longlong4_16a)
CUPLATE_MAKE4(long long, longlong4_32a)
CUPLATE_MAKE4(unsigned long long, ulonglong4_16a)
CUPLATE_MAKE4(unsigned long long, ulonglong4_32a)
CUPLATE_MAKE4(double, double4_16a)
CUPLATE_MAKE4(double, double4_32a)
#undef CUPLATE_MAKE4
#undef CUPLATE_VECTOR4

struct dim3 {
    unsigned int x, y, z;
    constexpr dim3(unsigned int vx = 1, unsigned int vy = 1, unsigned int vz = 1) : x(vx), y(vy), z(vz) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    constexpr operator uint3() const { return uint3{x, y, z}; }
};

#endif
