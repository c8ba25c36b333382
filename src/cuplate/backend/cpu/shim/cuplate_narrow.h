// 16-bit floating-point formats as bits: rounding a double to one in any direction, widening one to float, and the
// fused
// multiply-add rounded once. half has 5 exponent and 10 mantissa bits, bfloat16 8 and 7.
//
// The compiler's own 16-bit types are not used: clang 14 has none on x86-64, and g++ 12 rounds some operations twice.
#ifndef CUPLATE_NARROW_H
#define CUPLATE_NARROW_H

#define CUPLATE_SHIM_MEMBER static inline __attribute__((always_inline))

namespace cuplate {

typedef unsigned short bits16;
typedef unsigned long long bits64;

// Rounded once from the exact value; NaN becomes 0x7fff, as PTX cvt makes it.
template <int EXPONENT, int MANTISSA>
static inline bits16 narrowed(double value, Rounding mode) {
    constexpr int smallest = 2 - (1 << (EXPONENT - 1));
    constexpr unsigned infinity = ((1u << EXPONENT) - 1u) << MANTISSA;
    bits64 bits = punned<bits64>(value);
    unsigned sign = (unsigned)(bits >> 63);
    int biased = (int)(bits >> 52) & 0x7ff;
    bits64 fraction = bits & ((1ull << 52) - 1);
    unsigned top = sign << 15;
    if (biased == 0x7ff) return (bits16)(fraction ? 0x7fffu : top | infinity);
    if (biased == 0 && fraction == 0) return (bits16)top;
    int exponent = (biased ? biased : 1) - 1023;
    bits64 significand = biased ? fraction | (1ull << 52) : fraction;
    int shift = 52 - MANTISSA + (exponent < smallest ? smallest - exponent : 0);
    if (shift > 60) shift = 60;  // all of it is below the last place, and only that it is not zero matters
    bits64 kept = significand >> shift;
    bits64 rest = significand & ((1ull << shift) - 1);
    bits64 half = 1ull << (shift - 1);
    bool away = false;
    if (mode == nearest_even) away = rest > half || (rest == half && (kept & 1));
    if (mode == upward) away = rest != 0 && !sign;
    if (mode == downward) away = rest != 0 && sign;
    // A carry out of the mantissa moves into the exponent, which is what it should do.
    bits64 result = kept + (away ? 1 : 0);
    if (exponent >= smallest) result += (bits64)(exponent - smallest) << MANTISSA;
    if (result >= infinity) {
        bool to_infinity = mode == nearest_even || (mode == upward && !sign) || (mode == downward && sign);
        result = to_infinity ? infinity : infinity - 1;
    }
    return (bits16)(top | (unsigned)result);
}

// A number that rounds to any shorter format as the exact a*b + c would: the sum is cut, not rounded, and an
// inexact one
// gets an odd last bit (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008). The product has
// to be
// exact in `Floating`.
template <class Floating, class Bits>
CUPLATE_SHIM Floating fused_to_odd(Floating a, Floating b, Floating c) {
    Floating product = unfused(a * b);
    Floating sum = unfused(product + c);
    Floating shadow = unfused(sum - product);
    Floating error = (product - unfused(sum - shadow)) + (c - shadow);
    Bits bits = punned<Bits>(sum);
    // Without branches, which would be as good as random. Infinities and NaN have an error of NaN.
    bool inexact = (error > 0) | (error < 0);
    Bits step = (error > 0) == (sum > 0) ? (Bits)1 : (Bits)-1;
    bits += inexact & ((bits & 1) == 0) ? step : (Bits)0;
    return punned<Floating>(bits);
}

// Likewise a 64-bit integer, which may have more digits than a double.
template <class Integer>
static inline double integer_to_odd(Integer value) {
    bool negative = value < (Integer)0;
    bits64 magnitude = negative ? 0ull - (bits64)value : (bits64)value;
    if (magnitude >> 53) magnitude = (magnitude & ~0x7ffull) | ((magnitude & 0x7ff) ? 0x800ull : 0ull);
    double result = (double)magnitude;
    return negative ? -result : result;
}

// Formats: what cuplate_narrow_type.h asks of one.
struct HalfFormat {
    static constexpr unsigned infinity = 0x7c00u;
    // 22 digits, and no product of two halves leaves the range of float.
    CUPLATE_SHIM_MEMBER bits16 product(bits16 a, bits16 b) { return round(widen(a) * widen(b)); }
    CUPLATE_SHIM_MEMBER bits16 fused(bits16 a, bits16 b, bits16 c) {
        return round(fused_to_odd<float, unsigned>(widen(a), widen(b), widen(c)));
    }
    static inline bits16 round(double value, Rounding mode) { return narrowed<5, 10>(value, mode); }
#if defined(__F16C__)
    typedef float float4_register __attribute__((vector_size(16)));
    typedef short short8_register __attribute__((vector_size(16)));
    CUPLATE_SHIM_MEMBER bits16 round(float value) {
        float4_register lanes = {value, 0.0f, 0.0f, 0.0f};
        bits16 result = (bits16)__builtin_ia32_vcvtps2ph(lanes, 0)[0];
        return value == value ? result : (bits16)0x7fff;
    }
#if __has_builtin(__builtin_ia32_vcvtph2ps)
    CUPLATE_SHIM_MEMBER float widen(bits16 bits) {
        short8_register lanes = {(short)bits, 0, 0, 0, 0, 0, 0, 0};
        return __builtin_ia32_vcvtph2ps(lanes)[0];
    }
#else
    // Later versions of clang spell the instruction as a conversion.
    CUPLATE_SHIM_MEMBER float widen(bits16 bits) { return (float)punned<_Float16>(bits); }
#endif
#else
    static inline bits16 round(float value) { return narrowed<5, 10>((double)value, nearest_even); }
    static inline float widen(bits16 bits) {
        unsigned sign = (unsigned)(bits & 0x8000u) << 16;
        unsigned exponent = (bits >> 10) & 0x1fu, mantissa = bits & 0x3ffu;
        if (exponent == 0) {
            float magnitude = (float)mantissa * 5.9604644775390625e-08f;  // 2^-24, the smallest half
            return punned<float>(punned<unsigned>(magnitude) | sign);
        }
        unsigned wide = exponent == 0x1fu ? 0xffu : exponent + 112u;
        return punned<float>(sign | (wide << 23) | (mantissa << 13));
    }
#endif
};

struct BfloatFormat {
    static constexpr unsigned infinity = 0x7f80u;
    CUPLATE_SHIM_MEMBER bits16 product(bits16 a, bits16 b) {
        return round((double)widen(a) * (double)widen(b), nearest_even);
    }
    CUPLATE_SHIM_MEMBER bits16 fused(bits16 a, bits16 b, bits16 c) {
        return round(fused_to_odd<double, bits64>(widen(a), widen(b), widen(c)), nearest_even);
    }
    static inline bits16 round(double value, Rounding mode) { return narrowed<8, 7>(value, mode); }
    CUPLATE_SHIM_MEMBER bits16 round(float value) {
        unsigned bits = punned<unsigned>(value);
        unsigned rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
        return (bits16)(value == value ? rounded : 0x7fffu);
    }
    CUPLATE_SHIM_MEMBER float widen(bits16 bits) { return punned<float>((unsigned)bits << 16); }
};

// What the functions of a 16-bit type do, on bits: cuplate_narrow_type.h gives them their names. On bits, because the
// classes convert to and from a dozen types, and every copy of one would cost the compiler all of those overloads.
template <class Format>
struct Narrow {
    CUPLATE_SHIM_MEMBER double exact(bits16 a) { return (double)Format::widen(a); }
    CUPLATE_SHIM_MEMBER float wide(bits16 a) { return Format::widen(a); }
    CUPLATE_SHIM_MEMBER bits16 nearest(double value) { return Format::round(value, nearest_even); }

    // A float has more than twice the digits, so a sum or difference rounded to float and then again is as if rounded
    // once. Products and quotients of bfloat16 may lie below the normal floats, so those go through double.
    CUPLATE_SHIM_MEMBER bits16 add(bits16 a, bits16 b) { return Format::round(wide(a) + wide(b)); }
    CUPLATE_SHIM_MEMBER bits16 sub(bits16 a, bits16 b) { return Format::round(wide(a) - wide(b)); }
    CUPLATE_SHIM_MEMBER bits16 mul(bits16 a, bits16 b) { return Format::product(a, b); }
    CUPLATE_SHIM_MEMBER bits16 div(bits16 a, bits16 b) { return nearest(exact(a) / exact(b)); }
    CUPLATE_SHIM_MEMBER bits16 fma(bits16 a, bits16 b, bits16 c) {
        return Format::fused(a, b, c);
    }
    CUPLATE_SHIM_MEMBER bits16 neg(bits16 a) { return (bits16)(a ^ 0x8000u); }
    CUPLATE_SHIM_MEMBER bits16 abs(bits16 a) { return (bits16)(a & 0x7fffu); }
    CUPLATE_SHIM_MEMBER bits16 one() { return Format::round(1.0f); }
    CUPLATE_SHIM_MEMBER bool is_nan(bits16 a) { return (a & 0x7fffu) > Format::infinity; }
    CUPLATE_SHIM_MEMBER int is_inf(bits16 a) { return (a & 0x7fffu) != Format::infinity ? 0 : a & 0x8000u ? -1 : 1; }

    CUPLATE_SHIM_MEMBER bits16 max(bits16 a, bits16 b) { return Format::round(fmaxf(wide(a), wide(b))); }
    CUPLATE_SHIM_MEMBER bits16 min(bits16 a, bits16 b) { return Format::round(fminf(wide(a), wide(b))); }
    CUPLATE_SHIM_MEMBER bits16 max_nan(bits16 a, bits16 b) { return is_nan(a) || is_nan(b) ? 0x7fff : max(a, b); }
    CUPLATE_SHIM_MEMBER bits16 min_nan(bits16 a, bits16 b) { return is_nan(a) || is_nan(b) ? 0x7fff : min(a, b); }

    // To [0, 1], NaN to 0; and negative numbers to 0, NaN kept.
    CUPLATE_SHIM_MEMBER bits16 saturate(bits16 a) {
        float value = wide(a);
        return Format::round(value > 0.0f ? (value < 1.0f ? value : 1.0f) : 0.0f);
    }
    CUPLATE_SHIM_MEMBER bits16 rectify(bits16 a) {
        float value = wide(a);
        return Format::round(value > 0.0f || value != value ? value : 0.0f);
    }
    CUPLATE_SHIM_MEMBER bits16 add_sat(bits16 a, bits16 b) { return saturate(add(a, b)); }
    CUPLATE_SHIM_MEMBER bits16 sub_sat(bits16 a, bits16 b) { return saturate(sub(a, b)); }
    CUPLATE_SHIM_MEMBER bits16 mul_sat(bits16 a, bits16 b) { return saturate(mul(a, b)); }
    CUPLATE_SHIM_MEMBER bits16 fma_sat(bits16 a, bits16 b, bits16 c) { return saturate(fma(a, b, c)); }
    CUPLATE_SHIM_MEMBER bits16 fma_relu(bits16 a, bits16 b, bits16 c) { return rectify(fma(a, b, c)); }

    // The u forms are true when either is NaN.
    CUPLATE_SHIM_MEMBER bool unordered(bits16 a, bits16 b) { return is_nan(a) || is_nan(b); }
    CUPLATE_SHIM_MEMBER bool eq(bits16 a, bits16 b) { return wide(a) == wide(b); }
    CUPLATE_SHIM_MEMBER bool ne(bits16 a, bits16 b) { return !unordered(a, b) && wide(a) != wide(b); }
    CUPLATE_SHIM_MEMBER bool le(bits16 a, bits16 b) { return wide(a) <= wide(b); }
    CUPLATE_SHIM_MEMBER bool ge(bits16 a, bits16 b) { return wide(a) >= wide(b); }
    CUPLATE_SHIM_MEMBER bool lt(bits16 a, bits16 b) { return wide(a) < wide(b); }
    CUPLATE_SHIM_MEMBER bool gt(bits16 a, bits16 b) { return wide(a) > wide(b); }
    CUPLATE_SHIM_MEMBER bool equ(bits16 a, bits16 b) { return unordered(a, b) || eq(a, b); }
    CUPLATE_SHIM_MEMBER bool neu(bits16 a, bits16 b) { return !eq(a, b); }
    CUPLATE_SHIM_MEMBER bool leu(bits16 a, bits16 b) { return unordered(a, b) || le(a, b); }
    CUPLATE_SHIM_MEMBER bool geu(bits16 a, bits16 b) { return unordered(a, b) || ge(a, b); }
    CUPLATE_SHIM_MEMBER bool ltu(bits16 a, bits16 b) { return unordered(a, b) || lt(a, b); }
    CUPLATE_SHIM_MEMBER bool gtu(bits16 a, bits16 b) { return unordered(a, b) || gt(a, b); }

// Math is computed in float and rounded.
#define CUPLATE_NARROW_MATH(NAME, EXPRESSION)                                                      \
    CUPLATE_SHIM_MEMBER bits16 NAME(bits16 a) {                                                    \
        float x = wide(a);                                                                         \
        return Format::round((float)(EXPRESSION));                                                 \
    }
    CUPLATE_NARROW_MATH(trunc, __builtin_truncf(x))
    CUPLATE_NARROW_MATH(ceil, __builtin_ceilf(x))
    CUPLATE_NARROW_MATH(floor, __builtin_floorf(x))
    CUPLATE_NARROW_MATH(rint, __builtin_rintf(x))
    CUPLATE_NARROW_MATH(sqrt, __builtin_sqrtf(x))
    CUPLATE_NARROW_MATH(rsqrt, 1.0 / __builtin_sqrt((double)x))
    CUPLATE_NARROW_MATH(rcp, 1.0f / x)
    CUPLATE_NARROW_MATH(log, __builtin_logf(x))
    CUPLATE_NARROW_MATH(log2, __builtin_log2f(x))
    CUPLATE_NARROW_MATH(log10, __builtin_log10f(x))
    CUPLATE_NARROW_MATH(exp, __builtin_expf(x))
    CUPLATE_NARROW_MATH(exp2, __builtin_exp2f(x))
    CUPLATE_NARROW_MATH(exp10, __builtin_pow(10.0, (double)x))
    CUPLATE_NARROW_MATH(sin, __builtin_sinf(x))
    CUPLATE_NARROW_MATH(cos, __builtin_cosf(x))
    CUPLATE_NARROW_MATH(tanh, __builtin_tanhf(x))
#undef CUPLATE_NARROW_MATH
};

// The two halves of a pair, and a pair of two.
template <class Pair>
CUPLATE_SHIM bits16 low_bits(const Pair& pair) { return (bits16)punned<unsigned>(pair); }
template <class Pair>
CUPLATE_SHIM bits16 high_bits(const Pair& pair) { return (bits16)(punned<unsigned>(pair) >> 16); }
template <class T>
CUPLATE_SHIM T& put(T& to, const T& value) {
    __builtin_memcpy((void*)&to, &value, sizeof(T));
    return to;
}
CUPLATE_SHIM unsigned both(bits16 low, bits16 high) { return (unsigned)high << 16 | low; }

}  // namespace cuplate
#endif
