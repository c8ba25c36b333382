// Integer intrinsics, and the min, max and abs overload sets.
#ifndef CUPLATE_INTEGERS_H
#define CUPLATE_INTEGERS_H

#define CUPLATE_MIN_MAX(RESULT, LEFT, RIGHT)                                                       \
    CUPLATE_SHIM RESULT min(LEFT a, RIGHT b) { return (RESULT)a < (RESULT)b ? (RESULT)a : (RESULT)b; } \
    CUPLATE_SHIM RESULT max(LEFT a, RIGHT b) { return (RESULT)a > (RESULT)b ? (RESULT)a : (RESULT)b; }
#define CUPLATE_MIN_MAX_SIGNS(SIGNED, UNSIGNED)                                                    \
    CUPLATE_MIN_MAX(SIGNED, SIGNED, SIGNED)                                                        \
    CUPLATE_MIN_MAX(UNSIGNED, UNSIGNED, UNSIGNED)                                                  \
    CUPLATE_MIN_MAX(UNSIGNED, SIGNED, UNSIGNED)                                                    \
    CUPLATE_MIN_MAX(UNSIGNED, UNSIGNED, SIGNED)
CUPLATE_MIN_MAX_SIGNS(int, unsigned int)
CUPLATE_MIN_MAX_SIGNS(long, unsigned long)
CUPLATE_MIN_MAX_SIGNS(long long, unsigned long long)
#undef CUPLATE_MIN_MAX_SIGNS
#undef CUPLATE_MIN_MAX

CUPLATE_SHIM float min(float a, float b) { return fminf(a, b); }
CUPLATE_SHIM float max(float a, float b) { return fmaxf(a, b); }
CUPLATE_SHIM double min(double a, double b) { return fmin(a, b); }
CUPLATE_SHIM double max(double a, double b) { return fmax(a, b); }
CUPLATE_SHIM double min(float a, double b) { return fmin((double)a, b); }
CUPLATE_SHIM double max(float a, double b) { return fmax((double)a, b); }
CUPLATE_SHIM double min(double a, float b) { return fmin(a, (double)b); }
CUPLATE_SHIM double max(double a, float b) { return fmax(a, (double)b); }

CUPLATE_SHIM unsigned int umin(unsigned int a, unsigned int b) { return a < b ? a : b; }
CUPLATE_SHIM unsigned int umax(unsigned int a, unsigned int b) { return a > b ? a : b; }
CUPLATE_SHIM long long llmin(long long a, long long b) { return a < b ? a : b; }
CUPLATE_SHIM long long llmax(long long a, long long b) { return a > b ? a : b; }
CUPLATE_SHIM unsigned long long ullmin(unsigned long long a, unsigned long long b) { return a < b ? a : b; }
CUPLATE_SHIM unsigned long long ullmax(unsigned long long a, unsigned long long b) { return a > b ? a : b; }

// The most negative number is its own absolute value on a GPU; unsigned arithmetic keeps that defined here.
CUPLATE_SHIM int abs(int a) { return a < 0 ? (int)(0u - (unsigned int)a) : a; }
CUPLATE_SHIM long long llabs(long long a) { return a < 0 ? (long long)(0ull - (unsigned long long)a) : a; }
CUPLATE_SHIM long labs(long a) { return (long)llabs((long long)a); }
CUPLATE_SHIM long abs(long a) { return (long)llabs((long long)a); }
CUPLATE_SHIM long long abs(long long a) { return llabs(a); }

CUPLATE_SHIM int __popc(unsigned int x) { return __builtin_popcount(x); }
CUPLATE_SHIM int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
CUPLATE_SHIM int __clz(int x) { return x ? __builtin_clz((unsigned int)x) : 32; }
CUPLATE_SHIM int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
CUPLATE_SHIM int __ffs(int x) { return x ? __builtin_ctz((unsigned int)x) + 1 : 0; }
CUPLATE_SHIM int __ffsll(long long x) { return x ? __builtin_ctzll((unsigned long long)x) + 1 : 0; }

CUPLATE_SHIM unsigned int __brev(unsigned int x) {
    x = ((x >> 1) & 0x55555555u) | ((x & 0x55555555u) << 1);
    x = ((x >> 2) & 0x33333333u) | ((x & 0x33333333u) << 2);
    x = ((x >> 4) & 0x0f0f0f0fu) | ((x & 0x0f0f0f0fu) << 4);
    return __builtin_bswap32(x);
}
CUPLATE_SHIM unsigned long long __brevll(unsigned long long x) {
    return ((unsigned long long)__brev((unsigned int)x) << 32) | __brev((unsigned int)(x >> 32));
}

// Each selector nibble names one of eight bytes; its top bit replicates that byte's sign, as PTX prmt does.
CUPLATE_SHIM unsigned int __byte_perm(unsigned int x, unsigned int y, unsigned int s) {
    unsigned long long bytes = ((unsigned long long)y << 32) | x;
    unsigned int result = 0;
    for (int i = 0; i < 4; ++i) {
        unsigned int selector = (s >> (4 * i)) & 0xfu;
        unsigned int byte = (unsigned int)(bytes >> (8 * (selector & 7u))) & 0xffu;
        if (selector & 8u) byte = byte & 0x80u ? 0xffu : 0u;
        result |= byte << (8 * i);
    }
    return result;
}

// The wrapping forms take the shift modulo 32, the clamping ones (c) at most 32.
CUPLATE_SHIM unsigned int __funnelshift_l(unsigned int lo, unsigned int hi, unsigned int shift) {
    unsigned long long both = ((unsigned long long)hi << 32) | lo;
    return (unsigned int)((both << (shift & 31u)) >> 32);
}
CUPLATE_SHIM unsigned int __funnelshift_r(unsigned int lo, unsigned int hi, unsigned int shift) {
    unsigned long long both = ((unsigned long long)hi << 32) | lo;
    return (unsigned int)(both >> (shift & 31u));
}
CUPLATE_SHIM unsigned int __funnelshift_lc(unsigned int lo, unsigned int hi, unsigned int shift) {
    return shift >= 32u ? lo : __funnelshift_l(lo, hi, shift);
}
CUPLATE_SHIM unsigned int __funnelshift_rc(unsigned int lo, unsigned int hi, unsigned int shift) {
    return shift >= 32u ? hi : __funnelshift_r(lo, hi, shift);
}

CUPLATE_SHIM int __mulhi(int a, int b) { return (int)(((long long)a * b) >> 32); }
CUPLATE_SHIM unsigned int __umulhi(unsigned int a, unsigned int b) {
    return (unsigned int)(((unsigned long long)a * b) >> 32);
}
CUPLATE_SHIM long long __mul64hi(long long a, long long b) { return (long long)(((__int128)a * b) >> 64); }
CUPLATE_SHIM unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}
CUPLATE_SHIM unsigned int __umul24(unsigned int a, unsigned int b) { return (a & 0xffffffu) * (b & 0xffffffu); }
CUPLATE_SHIM int __mul24(int a, int b) {
    int low_a = (int)((unsigned int)a << 8) >> 8;
    int low_b = (int)((unsigned int)b << 8) >> 8;
    return (int)((unsigned int)low_a * (unsigned int)low_b);
}
CUPLATE_SHIM int __hadd(int a, int b) { return (int)(((long long)a + b) >> 1); }
CUPLATE_SHIM int __rhadd(int a, int b) { return (int)(((long long)a + b + 1) >> 1); }
CUPLATE_SHIM unsigned int __uhadd(unsigned int a, unsigned int b) {
    return (unsigned int)(((unsigned long long)a + b) >> 1);
}
CUPLATE_SHIM unsigned int __urhadd(unsigned int a, unsigned int b) {
    return (unsigned int)(((unsigned long long)a + b + 1) >> 1);
}
CUPLATE_SHIM unsigned int __sad(int a, int b, unsigned int c) {
    return (a < b ? (unsigned int)b - (unsigned int)a : (unsigned int)a - (unsigned int)b) + c;
}
CUPLATE_SHIM unsigned int __usad(unsigned int a, unsigned int b, unsigned int c) {
    return (a < b ? b - a : a - b) + c;
}
CUPLATE_SHIM unsigned short __nv_bswap16(unsigned short x) { return __builtin_bswap16(x); }
CUPLATE_SHIM unsigned int __nv_bswap32(unsigned int x) { return __builtin_bswap32(x); }
CUPLATE_SHIM unsigned long long __nv_bswap64(unsigned long long x) { return __builtin_bswap64(x); }

// The n-th set bit from `base` on, upwards for a positive offset and downwards for a negative one, 1 being the first;
// an offset of 0 asks for the bit at `base` itself. None: all ones.
CUPLATE_SHIM unsigned int __fns(unsigned int mask, unsigned int base, int offset) {
    if (base > 31u) return 0xffffffffu;
    if (offset == 0) return (mask >> base) & 1u ? base : 0xffffffffu;
    int step = offset > 0 ? 1 : -1;
    long long left = offset > 0 ? offset : -(long long)offset;
    for (int bit = (int)base; bit >= 0 && bit < 32; bit += step) {
        if (((mask >> bit) & 1u) && --left == 0) return (unsigned int)bit;
    }
    return 0xffffffffu;
}

// Dot products of packed bytes and half words, accumulated modulo 2^32.
namespace cuplate {
CUPLATE_SHIM int signed_byte(unsigned int x, int i) { return (signed char)(x >> (8 * i)); }
CUPLATE_SHIM unsigned int byte_of(unsigned int x, int i) { return (x >> (8 * i)) & 0xffu; }
CUPLATE_SHIM int signed_word(unsigned int x, int i) { return (short)(x >> (16 * i)); }
CUPLATE_SHIM unsigned int word_of(unsigned int x, int i) { return (x >> (16 * i)) & 0xffffu; }
template <class To, class From>
CUPLATE_SHIM To punned(const From& value) {
    static_assert(sizeof(To) == sizeof(From), "the bits of one type are read as another of the same size");
    To result;
    __builtin_memcpy((void*)&result, &value, sizeof(To));
    return result;
}
}  // namespace cuplate

CUPLATE_SHIM int __dp4a(int a, int b, int c) {
    unsigned int sum = (unsigned int)c;
    for (int i = 0; i < 4; ++i) {
        sum += (unsigned int)(::cuplate::signed_byte((unsigned int)a, i) * ::cuplate::signed_byte((unsigned int)b, i));
    }
    return (int)sum;
}
CUPLATE_SHIM unsigned int __dp4a(unsigned int a, unsigned int b, unsigned int c) {
    for (int i = 0; i < 4; ++i) c += ::cuplate::byte_of(a, i) * ::cuplate::byte_of(b, i);
    return c;
}
CUPLATE_SHIM int __dp2a_lo(int a, int b, int c) {
    unsigned int sum = (unsigned int)c;
    for (int i = 0; i < 2; ++i) {
        sum += (unsigned int)(::cuplate::signed_word((unsigned int)a, i) * ::cuplate::signed_byte((unsigned int)b, i));
    }
    return (int)sum;
}
CUPLATE_SHIM unsigned int __dp2a_lo(unsigned int a, unsigned int b, unsigned int c) {
    for (int i = 0; i < 2; ++i) c += ::cuplate::word_of(a, i) * ::cuplate::byte_of(b, i);
    return c;
}
CUPLATE_SHIM int __dp2a_hi(int a, int b, int c) { return __dp2a_lo(a, (int)((unsigned int)b >> 16), c); }
CUPLATE_SHIM unsigned int __dp2a_hi(unsigned int a, unsigned int b, unsigned int c) {
    return __dp2a_lo(a, b >> 16, c);
}
CUPLATE_SHIM int __dp4a(char4 a, char4 b, int c) {
    return __dp4a(::cuplate::punned<int>(a), ::cuplate::punned<int>(b), c);
}
CUPLATE_SHIM unsigned int __dp4a(uchar4 a, uchar4 b, unsigned int c) {
    return __dp4a(::cuplate::punned<unsigned int>(a), ::cuplate::punned<unsigned int>(b), c);
}
#define CUPLATE_DP2A(NAME)                                                                         \
    CUPLATE_SHIM int NAME(short2 a, char4 b, int c) {                                              \
        return NAME(::cuplate::punned<int>(a), ::cuplate::punned<int>(b), c);                      \
    }                                                                                              \
    CUPLATE_SHIM unsigned int NAME(ushort2 a, uchar4 b, unsigned int c) {                          \
        return NAME(::cuplate::punned<unsigned int>(a), ::cuplate::punned<unsigned int>(b), c);    \
    }
CUPLATE_DP2A(__dp2a_lo)
CUPLATE_DP2A(__dp2a_hi)
#undef CUPLATE_DP2A

#endif
