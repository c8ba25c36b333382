// One 16-bit floating-point type, its pair, and all their functions. Included once by cuda_fp16.h and once by
// cuda_bf16.h, each of which first defines
//
//   CUPLATE_N, CUPLATE_N_RAW      the class and its plain twin              __half, __half_raw
//   CUPLATE_N2, CUPLATE_N2_RAW    the pair and its plain twin               __half2, __half2_raw
//   CUPLATE_N_WORD                what stands for it in names               half
//   CUPLATE_N2_WORD               what stands for the pair in names         half2
//   CUPLATE_N_FORMAT              its format (cuplate_narrow.h)             ::cuplate::HalfFormat
//   CUPLATE_N_OTHER               the other 16-bit type, constructible by explicit conversion only
//
// Constructors, conversions and operators are exactly those of CUDA's class, so that what is ambiguous with NVRTC
// (h + 1.0f, max(h, h)) is ambiguous here. No include guard on purpose.

#define CUPLATE_PASTE_(A, B) A##B
#define CUPLATE_PASTE(A, B) CUPLATE_PASTE_(A, B)
#define CUPLATE_PASTE3(A, B, C) CUPLATE_PASTE(CUPLATE_PASTE(A, B), C)
// CUPLATE_N_TO(int_rn) is __half2int_rn, CUPLATE_N_FROM(int, _rn) is __int2half_rn.
#define CUPLATE_N_TO(WHAT) CUPLATE_PASTE3(__, CUPLATE_N_WORD, CUPLATE_PASTE(2, WHAT))
#define CUPLATE_N_FROM(WHAT, SUFFIX) CUPLATE_PASTE(CUPLATE_PASTE3(__, WHAT, 2), CUPLATE_PASTE(CUPLATE_N_WORD, SUFFIX))
#define CUPLATE_N_OPS ::cuplate::Narrow<CUPLATE_N_FORMAT>
#define CUPLATE_N_BITS(A) ::cuplate::punned<::cuplate::bits16>(A)
#define CUPLATE_N_OF(BITS) ::cuplate::punned<CUPLATE_N>((::cuplate::bits16)(BITS))
#define CUPLATE_N2_OF(LOW, HIGH) ::cuplate::punned<CUPLATE_N2>(::cuplate::both(LOW, HIGH))
#define CUPLATE_N_INLINE __attribute__((always_inline))

struct CUPLATE_N_OTHER;

struct CUPLATE_N_RAW {
    unsigned short x;
};
struct __attribute__((aligned(4))) CUPLATE_N2_RAW {
    unsigned short x;
    unsigned short y;
};

struct CUPLATE_N {
  protected:
    unsigned short __x;

  public:
    CUPLATE_N() = default;
    constexpr CUPLATE_N(const CUPLATE_N_RAW& raw) : __x(raw.x) {}
    explicit CUPLATE_N(const CUPLATE_N_OTHER other);
    CUPLATE_N_INLINE CUPLATE_N& operator=(const CUPLATE_N_RAW& raw) {
        __x = raw.x;
        return *this;
    }
    CUPLATE_N_INLINE volatile CUPLATE_N& operator=(const CUPLATE_N_RAW& raw) volatile {
        __x = raw.x;
        return *this;
    }
    CUPLATE_N_INLINE volatile CUPLATE_N& operator=(const volatile CUPLATE_N_RAW& raw) volatile {
        __x = raw.x;
        return *this;
    }
    CUPLATE_N_INLINE operator CUPLATE_N_RAW() const { return CUPLATE_N_RAW{__x}; }
    CUPLATE_N_INLINE operator CUPLATE_N_RAW() const volatile { return CUPLATE_N_RAW{__x}; }
    CUPLATE_N_INLINE operator float() const { return CUPLATE_N_FORMAT::widen(__x); }
    constexpr operator bool() const { return (__x & 0x7fffu) != 0u; }

#define CUPLATE_N_CONSTRUCT(FROM, ROUNDED)                                                         \
    CUPLATE_N_INLINE CUPLATE_N(const FROM value) : __x(ROUNDED) {}
#define CUPLATE_N_ASSIGN(FROM, ROUNDED)                                                            \
    CUPLATE_N_CONSTRUCT(FROM, ROUNDED)                                                             \
    CUPLATE_N_INLINE CUPLATE_N& operator=(const FROM value) {                                      \
        __x = ROUNDED;                                                                             \
        return *this;                                                                              \
    }
#define CUPLATE_N_CONVERT(TO)                                                                      \
    CUPLATE_N_INLINE operator TO() const {                                                         \
        return ::cuplate::saturated<TO>(CUPLATE_N_FORMAT::widen(__x), ::cuplate::toward_zero,      \
                                        ::cuplate::no_number<TO>());                               \
    }
    // An integer of 32 bits is exact in a double.
    CUPLATE_N_ASSIGN(float, CUPLATE_N_FORMAT::round(value))
    CUPLATE_N_ASSIGN(double, CUPLATE_N_OPS::nearest(value))
    CUPLATE_N_ASSIGN(short, CUPLATE_N_OPS::nearest((double)value))
    CUPLATE_N_ASSIGN(unsigned short, CUPLATE_N_OPS::nearest((double)value))
    CUPLATE_N_ASSIGN(int, CUPLATE_N_OPS::nearest((double)value))
    CUPLATE_N_ASSIGN(unsigned int, CUPLATE_N_OPS::nearest((double)value))
    CUPLATE_N_CONSTRUCT(long, CUPLATE_N_OPS::nearest(::cuplate::integer_to_odd(value)))
    CUPLATE_N_CONSTRUCT(unsigned long, CUPLATE_N_OPS::nearest(::cuplate::integer_to_odd(value)))
    CUPLATE_N_ASSIGN(long long, CUPLATE_N_OPS::nearest(::cuplate::integer_to_odd(value)))
    CUPLATE_N_ASSIGN(unsigned long long, CUPLATE_N_OPS::nearest(::cuplate::integer_to_odd(value)))
    CUPLATE_N_CONVERT(signed char)
    CUPLATE_N_CONVERT(unsigned char)
    CUPLATE_N_CONVERT(char)
    CUPLATE_N_CONVERT(short)
    CUPLATE_N_CONVERT(unsigned short)
    CUPLATE_N_CONVERT(int)
    CUPLATE_N_CONVERT(unsigned int)
    CUPLATE_N_CONVERT(long)
    CUPLATE_N_CONVERT(unsigned long)
    CUPLATE_N_CONVERT(long long)
    CUPLATE_N_CONVERT(unsigned long long)
#undef CUPLATE_N_CONSTRUCT
#undef CUPLATE_N_ASSIGN
#undef CUPLATE_N_CONVERT
};

struct __attribute__((aligned(4))) CUPLATE_N2 {
    CUPLATE_N x;
    CUPLATE_N y;
    CUPLATE_N2() = default;
    constexpr CUPLATE_N2(const CUPLATE_N& a, const CUPLATE_N& b) : x(a), y(b) {}
    CUPLATE_N_INLINE CUPLATE_N2(const CUPLATE_N2_RAW& raw) { __builtin_memcpy((void*)this, &raw, sizeof(raw)); }
    // A template, so that `pair = {a, b}` is not ambiguous: NVRTC takes it for the class, other compilers would not.
    template <class Raw, class = typename ::cuplate::only_if<::cuplate::is_same<Raw, CUPLATE_N2_RAW>::value, Raw>::type>
    CUPLATE_N_INLINE CUPLATE_N2& operator=(const Raw& raw) {
        __builtin_memcpy((void*)this, &raw, sizeof(raw));
        return *this;
    }
    CUPLATE_N_INLINE operator CUPLATE_N2_RAW() const { return ::cuplate::punned<CUPLATE_N2_RAW>(*this); }
};

namespace cuplate {
CUPLATE_CACHED(CUPLATE_N)
CUPLATE_CACHED(CUPLATE_N2)
}  // namespace cuplate
CUPLATE_SHUFFLES(CUPLATE_N)
CUPLATE_SHUFFLES(CUPLATE_N2)

// Conversions ------------------------------------------------------------------------------------------------------
CUPLATE_SHIM CUPLATE_N CUPLATE_N_FROM(float, )(float a) { return CUPLATE_N_OF(CUPLATE_N_FORMAT::round(a)); }
CUPLATE_SHIM CUPLATE_N CUPLATE_N_FROM(double, )(double a) { return CUPLATE_N_OF(CUPLATE_N_OPS::nearest(a)); }
CUPLATE_SHIM float CUPLATE_N_TO(float)(CUPLATE_N a) { return CUPLATE_N_OPS::wide(CUPLATE_N_BITS(a)); }
#define CUPLATE_N_FROM_MODE(WHAT, TYPE, EXACT, SUFFIX, MODE)                                       \
    CUPLATE_SHIM CUPLATE_N CUPLATE_N_FROM(WHAT, SUFFIX)(TYPE a) {                                  \
        return CUPLATE_N_OF(CUPLATE_N_FORMAT::round(EXACT(a), ::cuplate::MODE));                   \
    }
#define CUPLATE_N_FROM_MODES(WHAT, TYPE, EXACT)                                                    \
    CUPLATE_N_FROM_MODE(WHAT, TYPE, EXACT, _rn, nearest_even)                                      \
    CUPLATE_N_FROM_MODE(WHAT, TYPE, EXACT, _rz, toward_zero)                                       \
    CUPLATE_N_FROM_MODE(WHAT, TYPE, EXACT, _rd, downward)                                          \
    CUPLATE_N_FROM_MODE(WHAT, TYPE, EXACT, _ru, upward)
CUPLATE_N_FROM_MODES(float, float, double)
CUPLATE_N_FROM_MODES(short, short, double)
CUPLATE_N_FROM_MODES(ushort, unsigned short, double)
CUPLATE_N_FROM_MODES(int, int, double)
CUPLATE_N_FROM_MODES(uint, unsigned int, double)
CUPLATE_N_FROM_MODES(ll, long long, ::cuplate::integer_to_odd)
CUPLATE_N_FROM_MODES(ull, unsigned long long, ::cuplate::integer_to_odd)
#undef CUPLATE_N_FROM_MODES
#undef CUPLATE_N_FROM_MODE
#define CUPLATE_N_TO_MODE(NAME, TYPE, MODE)                                                        \
    CUPLATE_SHIM TYPE CUPLATE_N_TO(NAME)(CUPLATE_N a) {                                            \
        return ::cuplate::saturated<TYPE>(CUPLATE_N_OPS::exact(CUPLATE_N_BITS(a)), ::cuplate::MODE, \
                                          ::cuplate::no_number<TYPE>());                           \
    }
#define CUPLATE_N_TO_MODES(WHAT, TYPE)                                                             \
    CUPLATE_N_TO_MODE(WHAT##_rn, TYPE, nearest_even)                                               \
    CUPLATE_N_TO_MODE(WHAT##_rz, TYPE, toward_zero)                                                \
    CUPLATE_N_TO_MODE(WHAT##_rd, TYPE, downward)                                                   \
    CUPLATE_N_TO_MODE(WHAT##_ru, TYPE, upward)
CUPLATE_N_TO_MODES(short, short)
CUPLATE_N_TO_MODES(ushort, unsigned short)
CUPLATE_N_TO_MODES(int, int)
CUPLATE_N_TO_MODES(uint, unsigned int)
CUPLATE_N_TO_MODES(ll, long long)
CUPLATE_N_TO_MODES(ull, unsigned long long)
CUPLATE_N_TO_MODE(char_rz, signed char, toward_zero)
CUPLATE_N_TO_MODE(uchar_rz, unsigned char, toward_zero)
#undef CUPLATE_N_TO_MODES
#undef CUPLATE_N_TO_MODE

CUPLATE_SHIM short CUPLATE_PASTE3(__, CUPLATE_N_WORD, _as_short)(CUPLATE_N a) { return (short)CUPLATE_N_BITS(a); }
CUPLATE_SHIM unsigned short CUPLATE_PASTE3(__, CUPLATE_N_WORD, _as_ushort)(CUPLATE_N a) { return CUPLATE_N_BITS(a); }
CUPLATE_SHIM CUPLATE_N CUPLATE_PASTE(__short_as_, CUPLATE_N_WORD)(short a) { return CUPLATE_N_OF(a); }
CUPLATE_SHIM CUPLATE_N CUPLATE_PASTE(__ushort_as_, CUPLATE_N_WORD)(unsigned short a) { return CUPLATE_N_OF(a); }

// Pairs ------------------------------------------------------------------------------------------------------------
CUPLATE_SHIM CUPLATE_N2 CUPLATE_PASTE(make_, CUPLATE_N2_WORD)(CUPLATE_N x, CUPLATE_N y) {
    return CUPLATE_N2_OF(CUPLATE_N_BITS(x), CUPLATE_N_BITS(y));
}
CUPLATE_SHIM CUPLATE_N2 CUPLATE_PASTE(__halves2, CUPLATE_N2_WORD)(CUPLATE_N x, CUPLATE_N y) {
    return CUPLATE_N2_OF(CUPLATE_N_BITS(x), CUPLATE_N_BITS(y));
}
CUPLATE_SHIM CUPLATE_N2 CUPLATE_N_TO(CUPLATE_N2_WORD)(CUPLATE_N a) {
    return CUPLATE_N2_OF(CUPLATE_N_BITS(a), CUPLATE_N_BITS(a));
}
CUPLATE_SHIM CUPLATE_N2 CUPLATE_PASTE3(__float2, CUPLATE_N2_WORD, _rn)(float a) {
    return CUPLATE_N2_OF(CUPLATE_N_FORMAT::round(a), CUPLATE_N_FORMAT::round(a));
}
CUPLATE_SHIM CUPLATE_N2 CUPLATE_PASTE3(__floats2, CUPLATE_N2_WORD, _rn)(float a, float b) {
    return CUPLATE_N2_OF(CUPLATE_N_FORMAT::round(a), CUPLATE_N_FORMAT::round(b));
}
CUPLATE_SHIM CUPLATE_N2 CUPLATE_PASTE3(__float22, CUPLATE_N2_WORD, _rn)(float2 a) {
    return CUPLATE_N2_OF(CUPLATE_N_FORMAT::round(a.x), CUPLATE_N_FORMAT::round(a.y));
}
CUPLATE_SHIM float __low2float(CUPLATE_N2 a) { return CUPLATE_N_OPS::wide(::cuplate::low_bits(a)); }
CUPLATE_SHIM float __high2float(CUPLATE_N2 a) { return CUPLATE_N_OPS::wide(::cuplate::high_bits(a)); }
CUPLATE_SHIM float2 CUPLATE_PASTE3(__, CUPLATE_N2_WORD, 2float2)(CUPLATE_N2 a) {
    return float2{CUPLATE_N_OPS::wide(::cuplate::low_bits(a)), CUPLATE_N_OPS::wide(::cuplate::high_bits(a))};
}
CUPLATE_SHIM CUPLATE_N CUPLATE_PASTE(__low2, CUPLATE_N_WORD)(CUPLATE_N2 a) {
    return CUPLATE_N_OF(::cuplate::low_bits(a));
}
CUPLATE_SHIM CUPLATE_N CUPLATE_PASTE(__high2, CUPLATE_N_WORD)(CUPLATE_N2 a) {
    return CUPLATE_N_OF(::cuplate::high_bits(a));
}
#define CUPLATE_N2_PICK(NAME, PARAMETERS, LOW, HIGH)                                               \
    CUPLATE_SHIM CUPLATE_N2 NAME PARAMETERS { return CUPLATE_N2_OF(::cuplate::LOW, ::cuplate::HIGH); }
CUPLATE_N2_PICK(CUPLATE_PASTE(__low2, CUPLATE_N2_WORD), (CUPLATE_N2 a), low_bits(a), low_bits(a))
CUPLATE_N2_PICK(CUPLATE_PASTE(__high2, CUPLATE_N2_WORD), (CUPLATE_N2 a), high_bits(a), high_bits(a))
CUPLATE_N2_PICK(__lowhigh2highlow, (CUPLATE_N2 a), high_bits(a), low_bits(a))
CUPLATE_N2_PICK(CUPLATE_PASTE(__lows2, CUPLATE_N2_WORD), (CUPLATE_N2 a, CUPLATE_N2 b), low_bits(a), low_bits(b))
CUPLATE_N2_PICK(CUPLATE_PASTE(__highs2, CUPLATE_N2_WORD), (CUPLATE_N2 a, CUPLATE_N2 b), high_bits(a), high_bits(b))
#undef CUPLATE_N2_PICK

// Functions of one and of two lanes --------------------------------------------------------------------------------
#define CUPLATE_N_ONE(SINGLE, PAIR, OPERATION)                                                     \
    CUPLATE_SHIM CUPLATE_N SINGLE(CUPLATE_N a) {                                                   \
        return CUPLATE_N_OF(CUPLATE_N_OPS::OPERATION(CUPLATE_N_BITS(a)));                          \
    }                                                                                              \
    CUPLATE_SHIM CUPLATE_N2 PAIR(CUPLATE_N2 a) {                                                   \
        return CUPLATE_N2_OF(CUPLATE_N_OPS::OPERATION(::cuplate::low_bits(a)),                     \
                             CUPLATE_N_OPS::OPERATION(::cuplate::high_bits(a)));                   \
    }
#define CUPLATE_N_TWO(SINGLE, PAIR, OPERATION)                                                     \
    CUPLATE_SHIM CUPLATE_N SINGLE(CUPLATE_N a, CUPLATE_N b) {                                      \
        return CUPLATE_N_OF(CUPLATE_N_OPS::OPERATION(CUPLATE_N_BITS(a), CUPLATE_N_BITS(b)));       \
    }                                                                                              \
    CUPLATE_SHIM CUPLATE_N2 PAIR(CUPLATE_N2 a, CUPLATE_N2 b) {                                     \
        return CUPLATE_N2_OF(CUPLATE_N_OPS::OPERATION(::cuplate::low_bits(a), ::cuplate::low_bits(b)), \
                             CUPLATE_N_OPS::OPERATION(::cuplate::high_bits(a), ::cuplate::high_bits(b))); \
    }
#define CUPLATE_N_THREE(SINGLE, PAIR, OPERATION)                                                   \
    CUPLATE_SHIM CUPLATE_N SINGLE(CUPLATE_N a, CUPLATE_N b, CUPLATE_N c) {                         \
        return CUPLATE_N_OF(                                                                       \
            CUPLATE_N_OPS::OPERATION(CUPLATE_N_BITS(a), CUPLATE_N_BITS(b), CUPLATE_N_BITS(c)));    \
    }                                                                                              \
    CUPLATE_SHIM CUPLATE_N2 PAIR(CUPLATE_N2 a, CUPLATE_N2 b, CUPLATE_N2 c) {                       \
        return CUPLATE_N2_OF(                                                                      \
            CUPLATE_N_OPS::OPERATION(::cuplate::low_bits(a), ::cuplate::low_bits(b), ::cuplate::low_bits(c)), \
            CUPLATE_N_OPS::OPERATION(::cuplate::high_bits(a), ::cuplate::high_bits(b), ::cuplate::high_bits(c))); \
    }
CUPLATE_N_TWO(__hadd, __hadd2, add)
CUPLATE_N_TWO(__hsub, __hsub2, sub)
CUPLATE_N_TWO(__hmul, __hmul2, mul)
CUPLATE_N_TWO(__hadd_rn, __hadd2_rn, add)
CUPLATE_N_TWO(__hsub_rn, __hsub2_rn, sub)
CUPLATE_N_TWO(__hmul_rn, __hmul2_rn, mul)
CUPLATE_N_TWO(__hdiv, __h2div, div)
CUPLATE_N_TWO(__hadd_sat, __hadd2_sat, add_sat)
CUPLATE_N_TWO(__hsub_sat, __hsub2_sat, sub_sat)
CUPLATE_N_TWO(__hmul_sat, __hmul2_sat, mul_sat)
CUPLATE_N_TWO(__hmax, __hmax2, max)
CUPLATE_N_TWO(__hmin, __hmin2, min)
CUPLATE_N_TWO(__hmax_nan, __hmax2_nan, max_nan)
CUPLATE_N_TWO(__hmin_nan, __hmin2_nan, min_nan)
CUPLATE_N_THREE(__hfma, __hfma2, fma)
CUPLATE_N_THREE(__hfma_sat, __hfma2_sat, fma_sat)
CUPLATE_N_THREE(__hfma_relu, __hfma2_relu, fma_relu)
CUPLATE_N_ONE(__hneg, __hneg2, neg)
CUPLATE_N_ONE(__habs, __habs2, abs)
CUPLATE_N_ONE(htrunc, h2trunc, trunc)
CUPLATE_N_ONE(hceil, h2ceil, ceil)
CUPLATE_N_ONE(hfloor, h2floor, floor)
CUPLATE_N_ONE(hrint, h2rint, rint)
CUPLATE_N_ONE(hsqrt, h2sqrt, sqrt)
CUPLATE_N_ONE(hrsqrt, h2rsqrt, rsqrt)
CUPLATE_N_ONE(hrcp, h2rcp, rcp)
CUPLATE_N_ONE(hlog, h2log, log)
CUPLATE_N_ONE(hlog2, h2log2, log2)
CUPLATE_N_ONE(hlog10, h2log10, log10)
CUPLATE_N_ONE(hexp, h2exp, exp)
CUPLATE_N_ONE(hexp2, h2exp2, exp2)
CUPLATE_N_ONE(hexp10, h2exp10, exp10)
CUPLATE_N_ONE(hsin, h2sin, sin)
CUPLATE_N_ONE(hcos, h2cos, cos)
CUPLATE_N_ONE(htanh, h2tanh, tanh)
CUPLATE_N_ONE(htanh_approx, h2tanh_approx, tanh)
#undef CUPLATE_N_ONE
#undef CUPLATE_N_TWO
#undef CUPLATE_N_THREE

// Complex a*b + c, in the order of operations of the CUDA math API.
CUPLATE_SHIM CUPLATE_N2 __hcmadd(CUPLATE_N2 a, CUPLATE_N2 b, CUPLATE_N2 c) {
    typedef CUPLATE_N_OPS ops;
    ::cuplate::bits16 ax = ::cuplate::low_bits(a), ay = ::cuplate::high_bits(a);
    ::cuplate::bits16 bx = ::cuplate::low_bits(b), by = ::cuplate::high_bits(b);
    ::cuplate::bits16 real = ops::fma(ops::neg(ay), by, ops::fma(ax, bx, ::cuplate::low_bits(c)));
    ::cuplate::bits16 imaginary = ops::fma(ay, bx, ops::fma(ax, by, ::cuplate::high_bits(c)));
    return CUPLATE_N2_OF(real, imaginary);
}

CUPLATE_SHIM bool __hisnan(CUPLATE_N a) { return CUPLATE_N_OPS::is_nan(CUPLATE_N_BITS(a)); }
CUPLATE_SHIM int __hisinf(CUPLATE_N a) { return CUPLATE_N_OPS::is_inf(CUPLATE_N_BITS(a)); }
CUPLATE_SHIM CUPLATE_N2 __hisnan2(CUPLATE_N2 a) {
    ::cuplate::bits16 yes = CUPLATE_N_OPS::one(), no = 0;
    return CUPLATE_N2_OF(CUPLATE_N_OPS::is_nan(::cuplate::low_bits(a)) ? yes : no,
                         CUPLATE_N_OPS::is_nan(::cuplate::high_bits(a)) ? yes : no);
}

// Each comparison of one lane, of two as numbers and as a mask, and of two at once.
#define CUPLATE_N_COMPARE(HOW)                                                                     \
    CUPLATE_SHIM bool __h##HOW(CUPLATE_N a, CUPLATE_N b) {                                         \
        return CUPLATE_N_OPS::HOW(CUPLATE_N_BITS(a), CUPLATE_N_BITS(b));                           \
    }                                                                                              \
    CUPLATE_SHIM unsigned int __h##HOW##2_mask(CUPLATE_N2 a, CUPLATE_N2 b) {                       \
        return (CUPLATE_N_OPS::HOW(::cuplate::low_bits(a), ::cuplate::low_bits(b)) ? 0xffffu : 0u) | \
               (CUPLATE_N_OPS::HOW(::cuplate::high_bits(a), ::cuplate::high_bits(b)) ? 0xffff0000u : 0u); \
    }                                                                                              \
    CUPLATE_SHIM CUPLATE_N2 __h##HOW##2(CUPLATE_N2 a, CUPLATE_N2 b) {                              \
        unsigned int ones = ::cuplate::both(CUPLATE_N_OPS::one(), CUPLATE_N_OPS::one());           \
        return ::cuplate::punned<CUPLATE_N2>(__h##HOW##2_mask(a, b) & ones);                       \
    }                                                                                              \
    CUPLATE_SHIM bool __hb##HOW##2(CUPLATE_N2 a, CUPLATE_N2 b) {                                   \
        return __h##HOW##2_mask(a, b) == 0xffffffffu;                                              \
    }
CUPLATE_N_COMPARE(eq)
CUPLATE_N_COMPARE(ne)
CUPLATE_N_COMPARE(le)
CUPLATE_N_COMPARE(ge)
CUPLATE_N_COMPARE(lt)
CUPLATE_N_COMPARE(gt)
CUPLATE_N_COMPARE(equ)
CUPLATE_N_COMPARE(neu)
CUPLATE_N_COMPARE(leu)
CUPLATE_N_COMPARE(geu)
CUPLATE_N_COMPARE(ltu)
CUPLATE_N_COMPARE(gtu)
#undef CUPLATE_N_COMPARE

// Operators --------------------------------------------------------------------------------------------------------
// These do not call the functions above: resolving their overloads is what would cost the compiler most.
#define CUPLATE_N_SINGLE(OPERATION, A, B) CUPLATE_N_OF(CUPLATE_N_OPS::OPERATION(CUPLATE_N_BITS(A), CUPLATE_N_BITS(B)))
#define CUPLATE_N_PAIR(OPERATION, A, B)                                                            \
    CUPLATE_N2_OF(CUPLATE_N_OPS::OPERATION(::cuplate::low_bits(A), ::cuplate::low_bits(B)),        \
                  CUPLATE_N_OPS::OPERATION(::cuplate::high_bits(A), ::cuplate::high_bits(B)))
#define CUPLATE_N_ARITHMETIC(TYPE, LANES, SYMBOL, OPERATION)                                       \
    CUPLATE_SHIM TYPE operator SYMBOL(const TYPE& a, const TYPE& b) { return LANES(OPERATION, a, b); } \
    CUPLATE_SHIM TYPE& operator SYMBOL##=(TYPE& a, const TYPE& b) {                                \
        return ::cuplate::put(a, LANES(OPERATION, a, b));                                          \
    }
#define CUPLATE_N_COUNTING(TYPE, LANES, SYMBOL, OPERATION, ONE)                                           \
    CUPLATE_SHIM TYPE& operator SYMBOL(TYPE& a) { return ::cuplate::put(a, LANES(OPERATION, a, ONE)); } \
    CUPLATE_SHIM TYPE operator SYMBOL(TYPE& a, int) {                                              \
        TYPE before = a;                                                                           \
        ::cuplate::put(a, LANES(OPERATION, a, ONE));                                   \
        return before;                                                                             \
    }
#define CUPLATE_N_RELATION(SYMBOL, HOW)                                                            \
    CUPLATE_SHIM bool operator SYMBOL(const CUPLATE_N& a, const CUPLATE_N& b) {                    \
        return CUPLATE_N_OPS::HOW(CUPLATE_N_BITS(a), CUPLATE_N_BITS(b));                           \
    }                                                                                              \
    CUPLATE_SHIM bool operator SYMBOL(const CUPLATE_N2& a, const CUPLATE_N2& b) { return __hb##HOW##2(a, b); }
CUPLATE_N_ARITHMETIC(CUPLATE_N, CUPLATE_N_SINGLE, +, add)
CUPLATE_N_ARITHMETIC(CUPLATE_N, CUPLATE_N_SINGLE, -, sub)
CUPLATE_N_ARITHMETIC(CUPLATE_N, CUPLATE_N_SINGLE, *, mul)
CUPLATE_N_ARITHMETIC(CUPLATE_N, CUPLATE_N_SINGLE, /, div)
CUPLATE_N_ARITHMETIC(CUPLATE_N2, CUPLATE_N_PAIR, +, add)
CUPLATE_N_ARITHMETIC(CUPLATE_N2, CUPLATE_N_PAIR, -, sub)
CUPLATE_N_ARITHMETIC(CUPLATE_N2, CUPLATE_N_PAIR, *, mul)
CUPLATE_N_ARITHMETIC(CUPLATE_N2, CUPLATE_N_PAIR, /, div)
CUPLATE_N_COUNTING(CUPLATE_N, CUPLATE_N_SINGLE, ++, add, CUPLATE_N_OF(CUPLATE_N_OPS::one()))
CUPLATE_N_COUNTING(CUPLATE_N, CUPLATE_N_SINGLE, --, sub, CUPLATE_N_OF(CUPLATE_N_OPS::one()))
CUPLATE_N_COUNTING(CUPLATE_N2, CUPLATE_N_PAIR, ++, add, CUPLATE_N2_OF(CUPLATE_N_OPS::one(), CUPLATE_N_OPS::one()))
CUPLATE_N_COUNTING(CUPLATE_N2, CUPLATE_N_PAIR, --, sub, CUPLATE_N2_OF(CUPLATE_N_OPS::one(), CUPLATE_N_OPS::one()))
CUPLATE_N_RELATION(==, eq)
CUPLATE_N_RELATION(!=, neu)
CUPLATE_N_RELATION(<, lt)
CUPLATE_N_RELATION(>, gt)
CUPLATE_N_RELATION(<=, le)
CUPLATE_N_RELATION(>=, ge)
CUPLATE_SHIM CUPLATE_N operator+(const CUPLATE_N& a) { return CUPLATE_N_OF(CUPLATE_N_BITS(a)); }
CUPLATE_SHIM CUPLATE_N operator-(const CUPLATE_N& a) { return CUPLATE_N_OF(CUPLATE_N_OPS::neg(CUPLATE_N_BITS(a))); }
CUPLATE_SHIM CUPLATE_N2 operator+(const CUPLATE_N2& a) { return a; }
CUPLATE_SHIM CUPLATE_N2 operator-(const CUPLATE_N2& a) { return __hneg2(a); }
#undef CUPLATE_N_SINGLE
#undef CUPLATE_N_PAIR
#undef CUPLATE_N_ARITHMETIC
#undef CUPLATE_N_COUNTING
#undef CUPLATE_N_RELATION

// Atomics ----------------------------------------------------------------------------------------------------------
CUPLATE_SHIM CUPLATE_N atomicAdd(CUPLATE_N* address, CUPLATE_N operand, CUPLATE_SITE) {
    ::cuplate::bits16 addend = CUPLATE_N_BITS(operand);
    auto sum = [=](::cuplate::bits16 old) -> ::cuplate::bits16 { return CUPLATE_N_OPS::add(old, addend); };
    return CUPLATE_N_OF(::cuplate::atomic_update((::cuplate::bits16*)address, sum, ::cuplate::KIND_ADD, site));
}
CUPLATE_SHIM CUPLATE_N2 atomicAdd(CUPLATE_N2* address, CUPLATE_N2 operand, CUPLATE_SITE) {
    auto sum = [=](CUPLATE_N2 old) -> CUPLATE_N2 { return __hadd2(old, operand); };
    return ::cuplate::atomic_update(address, sum, ::cuplate::KIND_ADD, site);
}

#undef CUPLATE_N
#undef CUPLATE_N_RAW
#undef CUPLATE_N2
#undef CUPLATE_N2_RAW
#undef CUPLATE_N_WORD
#undef CUPLATE_N2_WORD
#undef CUPLATE_N_FORMAT
#undef CUPLATE_N_OTHER
#undef CUPLATE_N_OPS
#undef CUPLATE_N_BITS
#undef CUPLATE_N_OF
#undef CUPLATE_N2_OF
#undef CUPLATE_N_TO
#undef CUPLATE_N_FROM
#undef CUPLATE_N_INLINE
