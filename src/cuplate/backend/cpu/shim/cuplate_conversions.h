// Conversions between float, double and the integers in a stated rounding, and reading the bits of one as the other.
//
// An integer conversion saturates, as PTX cvt does. NaN becomes 0 when the source is float and the result has 32 bits,
// else only the top bit is set (PTX ISA, "cvt").
#ifndef CUPLATE_CONVERSIONS_H
#define CUPLATE_CONVERSIONS_H

namespace cuplate {

CUPLATE_SHIM double to_integral(double x, Rounding mode) {
    switch (mode) {
        case downward:
            return __builtin_floor(x);
        case upward:
            return __builtin_ceil(x);
        case toward_zero:
            return __builtin_trunc(x);
        default:
            return __builtin_rint(x);
    }
}

// `limit` is one past the largest value, a power of two, so exact.
template <class Integer>
CUPLATE_SHIM Integer saturated(double x, Rounding mode, Integer not_a_number) {
    constexpr bool is_signed = (Integer)-1 < (Integer)0;
    constexpr int bits = 8 * (int)sizeof(Integer) - (is_signed ? 1 : 0);
    constexpr double limit = 2.0 * (double)(1ull << (bits - 1));
    constexpr Integer largest = (Integer)(~0ull >> (64 - bits));
    if (x != x) return not_a_number;
    double whole = to_integral(x, mode);
    if (whole >= limit) return largest;
    if (whole < (is_signed ? -limit : 0.0)) return is_signed ? (Integer)(-largest - 1) : (Integer)0;
    return (Integer)whole;
}

// What NaN becomes from float or a 16-bit format.
template <class Integer>
CUPLATE_SHIM Integer no_number() {
    return sizeof(Integer) == 8 ? (Integer)(1ull << 63) : (Integer)0;
}

}  // namespace cuplate

#define CUPLATE_TO_INTEGER(NAME, FLOATING, INTEGER, NOT_A_NUMBER)                                  \
    CUPLATE_SHIM INTEGER NAME##_rn(FLOATING x) {                                                   \
        return ::cuplate::saturated<INTEGER>(x, ::cuplate::nearest_even, NOT_A_NUMBER);            \
    }                                                                                              \
    CUPLATE_SHIM INTEGER NAME##_rz(FLOATING x) {                                                   \
        return ::cuplate::saturated<INTEGER>(x, ::cuplate::toward_zero, NOT_A_NUMBER);             \
    }                                                                                              \
    CUPLATE_SHIM INTEGER NAME##_rd(FLOATING x) {                                                   \
        return ::cuplate::saturated<INTEGER>(x, ::cuplate::downward, NOT_A_NUMBER);                \
    }                                                                                              \
    CUPLATE_SHIM INTEGER NAME##_ru(FLOATING x) {                                                   \
        return ::cuplate::saturated<INTEGER>(x, ::cuplate::upward, NOT_A_NUMBER);                  \
    }
#define CUPLATE_TOP32 (1u << 31)
#define CUPLATE_TOP64 (1ull << 63)
CUPLATE_TO_INTEGER(__float2int, float, int, 0)
CUPLATE_TO_INTEGER(__float2uint, float, unsigned int, 0u)
CUPLATE_TO_INTEGER(__float2ll, float, long long, (long long)CUPLATE_TOP64)
CUPLATE_TO_INTEGER(__float2ull, float, unsigned long long, CUPLATE_TOP64)
CUPLATE_TO_INTEGER(__double2int, double, int, (int)CUPLATE_TOP32)
CUPLATE_TO_INTEGER(__double2uint, double, unsigned int, CUPLATE_TOP32)
CUPLATE_TO_INTEGER(__double2ll, double, long long, (long long)CUPLATE_TOP64)
CUPLATE_TO_INTEGER(__double2ull, double, unsigned long long, CUPLATE_TOP64)
#undef CUPLATE_TO_INTEGER

// The integer is hidden from the compiler, which would otherwise convert a constant while the mode is nearest.
#define CUPLATE_FROM_INTEGER(NAME, FLOATING, INTEGER)                                              \
    CUPLATE_NEAREST(NAME##_rn, FLOATING, (INTEGER a), __asm__ volatile("" : "+r"(a)), (FLOATING)a) \
    CUPLATE_ROUNDED(NAME##_rd, FLOATING, (INTEGER a), __asm__ volatile("" : "+r"(a)), (FLOATING)a, downward) \
    CUPLATE_ROUNDED(NAME##_ru, FLOATING, (INTEGER a), __asm__ volatile("" : "+r"(a)), (FLOATING)a, upward) \
    CUPLATE_ROUNDED(NAME##_rz, FLOATING, (INTEGER a), __asm__ volatile("" : "+r"(a)), (FLOATING)a, toward_zero)
CUPLATE_FROM_INTEGER(__int2float, float, int)
CUPLATE_FROM_INTEGER(__uint2float, float, unsigned int)
CUPLATE_FROM_INTEGER(__ll2float, float, long long)
CUPLATE_FROM_INTEGER(__ull2float, float, unsigned long long)
CUPLATE_FROM_INTEGER(__ll2double, double, long long)
CUPLATE_FROM_INTEGER(__ull2double, double, unsigned long long)
#undef CUPLATE_FROM_INTEGER
CUPLATE_SHIM double __int2double_rn(int a) { return (double)a; }
CUPLATE_SHIM double __uint2double_rn(unsigned int a) { return (double)a; }
CUPLATE_FOUR_ROUNDINGS(__double2float, float, (double a), CUPLATE_HIDE1, (float)a)

// Rounding to an integer saturates as a conversion does; the round family takes halves away from zero.
#define CUPLATE_ROUND_TO(NAME, INTEGER, WHOLE, NOT_A_NUMBER)                                       \
    CUPLATE_SHIM INTEGER NAME(double x) {                                                          \
        return ::cuplate::saturated<INTEGER>(WHOLE(x), ::cuplate::toward_zero, NOT_A_NUMBER);      \
    }                                                                                              \
    CUPLATE_SHIM INTEGER NAME(float x) { return NAME((double)x); }                                 \
    CUPLATE_SHIM INTEGER NAME##f(float x) { return NAME((double)x); }
CUPLATE_ROUND_TO(lrint, long, __builtin_rint, (long)(1ul << (8 * sizeof(long) - 1)))
CUPLATE_ROUND_TO(lround, long, __builtin_round, (long)(1ul << (8 * sizeof(long) - 1)))
CUPLATE_ROUND_TO(llrint, long long, __builtin_rint, (long long)CUPLATE_TOP64)
CUPLATE_ROUND_TO(llround, long long, __builtin_round, (long long)CUPLATE_TOP64)
#undef CUPLATE_ROUND_TO

CUPLATE_SHIM int __float_as_int(float x) { return ::cuplate::punned<int>(x); }
CUPLATE_SHIM unsigned int __float_as_uint(float x) { return ::cuplate::punned<unsigned int>(x); }
CUPLATE_SHIM float __int_as_float(int x) { return ::cuplate::punned<float>(x); }
CUPLATE_SHIM float __uint_as_float(unsigned int x) { return ::cuplate::punned<float>(x); }
CUPLATE_SHIM long long __double_as_longlong(double x) { return ::cuplate::punned<long long>(x); }
CUPLATE_SHIM double __longlong_as_double(long long x) { return ::cuplate::punned<double>(x); }
CUPLATE_SHIM int __double2hiint(double x) { return (int)(::cuplate::punned<unsigned long long>(x) >> 32); }
CUPLATE_SHIM int __double2loint(double x) { return (int)::cuplate::punned<unsigned long long>(x); }
CUPLATE_SHIM double __hiloint2double(int hi, int lo) {
    return ::cuplate::punned<double>(((unsigned long long)(unsigned int)hi << 32) | (unsigned int)lo);
}

#endif
