// Arithmetic that is rounded once, in a stated direction: __fadd_rd, __dmul_rz, __fmaf_ru, __frcp_rn and their kin.
//
// The operation runs between two changes of the processor's rounding mode, so overflow, underflow and signed zeros
// come out as IEEE 754 says, with no case analysis. The _rn forms must not be fused with a neighbouring operation,
// which is what programs use them for; an empty assembly statement hides their operands and result.
#ifndef CUPLATE_ROUNDING_H
#define CUPLATE_ROUNDING_H

namespace cuplate {

enum Rounding { nearest_even = 0, downward = 1, upward = 2, toward_zero = 3 };

#if defined(__x86_64__)
CUPLATE_SHIM float opaque(float x) {
    __asm__ volatile("" : "+x"(x));
    return x;
}
CUPLATE_SHIM double opaque(double x) {
    __asm__ volatile("" : "+x"(x));
    return x;
}
// Keeps a product from being fused with the sum that follows, and lets the compiler move it.
CUPLATE_SHIM float unfused(float x) {
    __asm__("" : "+x"(x));
    return x;
}
CUPLATE_SHIM double unfused(double x) {
    __asm__("" : "+x"(x));
    return x;
}
// MXCSR bits 13 and 14 hold the direction, numbered as Rounding is.
CUPLATE_SHIM unsigned set_rounding(Rounding mode) {
    unsigned saved = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr((saved & ~0x6000u) | ((unsigned)mode << 13));
    return saved;
}
CUPLATE_SHIM void restore_rounding(unsigned saved) { __builtin_ia32_ldmxcsr(saved); }
#elif defined(__aarch64__)
CUPLATE_SHIM float opaque(float x) {
    __asm__ volatile("" : "+w"(x));
    return x;
}
CUPLATE_SHIM double opaque(double x) {
    __asm__ volatile("" : "+w"(x));
    return x;
}
// Keeps a product from being fused with the sum that follows, and lets the compiler move it.
CUPLATE_SHIM float unfused(float x) {
    __asm__("" : "+w"(x));
    return x;
}
CUPLATE_SHIM double unfused(double x) {
    __asm__("" : "+w"(x));
    return x;
}
// FPCR bits 22 and 23: 0 nearest, 1 up, 2 down, 3 to zero.
CUPLATE_SHIM unsigned long set_rounding(Rounding mode) {
    unsigned long saved;
    unsigned long field = mode == downward ? 2 : mode == upward ? 1 : (unsigned long)mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved));
    __asm__ volatile("msr fpcr, %0" : : "r"((saved & ~0xc00000ul) | (field << 22)));
    return saved;
}
CUPLATE_SHIM void restore_rounding(unsigned long saved) { __asm__ volatile("msr fpcr, %0" : : "r"(saved)); }
#else
#error "the CPU backend runs on x86-64 and arm64"
#endif

CUPLATE_SHIM float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
CUPLATE_SHIM double fused(double a, double b, double c) { return __builtin_fma(a, b, c); }
CUPLATE_SHIM float square_root(float a) { return __builtin_sqrtf(a); }
CUPLATE_SHIM double square_root(double a) { return __builtin_sqrt(a); }

}  // namespace cuplate

// Both kinds hide their operands after the mode was set and their result before it is restored: volatile statements
// keep their order, and the operation depends on one and feeds the other.
#define CUPLATE_ROUNDED(NAME, TYPE, PARAMETERS, HIDE, EXPRESSION, MODE)                            \
    CUPLATE_SHIM TYPE NAME PARAMETERS {                                                            \
        auto saved = ::cuplate::set_rounding(::cuplate::MODE);                                     \
        HIDE;                                                                                      \
        TYPE result = ::cuplate::opaque(EXPRESSION);                                               \
        ::cuplate::restore_rounding(saved);                                                        \
        return result;                                                                             \
    }
#define CUPLATE_NEAREST(NAME, TYPE, PARAMETERS, HIDE, EXPRESSION)                                  \
    CUPLATE_SHIM TYPE NAME PARAMETERS {                                                            \
        HIDE;                                                                                      \
        return ::cuplate::opaque(EXPRESSION);                                                      \
    }
#define CUPLATE_FOUR_ROUNDINGS(NAME, TYPE, PARAMETERS, HIDE, EXPRESSION)                           \
    CUPLATE_NEAREST(NAME##_rn, TYPE, PARAMETERS, HIDE, EXPRESSION)                                 \
    CUPLATE_ROUNDED(NAME##_rd, TYPE, PARAMETERS, HIDE, EXPRESSION, downward)                       \
    CUPLATE_ROUNDED(NAME##_ru, TYPE, PARAMETERS, HIDE, EXPRESSION, upward)                         \
    CUPLATE_ROUNDED(NAME##_rz, TYPE, PARAMETERS, HIDE, EXPRESSION, toward_zero)
#define CUPLATE_HIDE1 a = ::cuplate::opaque(a)
#define CUPLATE_HIDE2 CUPLATE_HIDE1; b = ::cuplate::opaque(b)
#define CUPLATE_HIDE3 CUPLATE_HIDE2; c = ::cuplate::opaque(c)

CUPLATE_FOUR_ROUNDINGS(__fadd, float, (float a, float b), CUPLATE_HIDE2, a + b)
CUPLATE_FOUR_ROUNDINGS(__fsub, float, (float a, float b), CUPLATE_HIDE2, a - b)
CUPLATE_FOUR_ROUNDINGS(__fmul, float, (float a, float b), CUPLATE_HIDE2, a* b)
CUPLATE_FOUR_ROUNDINGS(__fdiv, float, (float a, float b), CUPLATE_HIDE2, a / b)
CUPLATE_FOUR_ROUNDINGS(__frcp, float, (float a), CUPLATE_HIDE1, 1.0f / a)
CUPLATE_FOUR_ROUNDINGS(__fsqrt, float, (float a), CUPLATE_HIDE1, ::cuplate::square_root(a))
CUPLATE_FOUR_ROUNDINGS(__fmaf, float, (float a, float b, float c), CUPLATE_HIDE3, ::cuplate::fused(a, b, c))
CUPLATE_FOUR_ROUNDINGS(__fmaf_ieee, float, (float a, float b, float c), CUPLATE_HIDE3, ::cuplate::fused(a, b, c))
CUPLATE_FOUR_ROUNDINGS(__dadd, double, (double a, double b), CUPLATE_HIDE2, a + b)
CUPLATE_FOUR_ROUNDINGS(__dsub, double, (double a, double b), CUPLATE_HIDE2, a - b)
CUPLATE_FOUR_ROUNDINGS(__dmul, double, (double a, double b), CUPLATE_HIDE2, a* b)
CUPLATE_FOUR_ROUNDINGS(__ddiv, double, (double a, double b), CUPLATE_HIDE2, a / b)
CUPLATE_FOUR_ROUNDINGS(__drcp, double, (double a), CUPLATE_HIDE1, 1.0 / a)
CUPLATE_FOUR_ROUNDINGS(__dsqrt, double, (double a), CUPLATE_HIDE1, ::cuplate::square_root(a))
CUPLATE_FOUR_ROUNDINGS(__fma, double, (double a, double b, double c), CUPLATE_HIDE3, ::cuplate::fused(a, b, c))

CUPLATE_SHIM float __frsqrt_rn(float a) {
    return (float)(1.0 / __builtin_sqrt((double)::cuplate::opaque(a)));
}

#endif
