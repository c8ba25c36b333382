// SIMD video intrinsics (two 16-bit or four 8-bit lanes in an unsigned int) and the DPX functions.
#ifndef CUPLATE_SIMD_H
#define CUPLATE_SIMD_H

namespace cuplate {

// One macro argument per lane type keeps the bodies readable: `x` and `y` are the lanes widened to int.
#define CUPLATE_LANES(NAME, BITS, LANE, EXPRESSION)                                                \
    CUPLATE_SHIM unsigned int NAME(unsigned int a, unsigned int b) {                               \
        unsigned int result = 0;                                                                   \
        for (int shift = 0; shift < 32; shift += BITS) {                                           \
            int x = (LANE)(a >> shift), y = (LANE)(b >> shift);                                    \
            (void)y;                                                                               \
            result |= ((unsigned int)(EXPRESSION) & ((1u << BITS) - 1u)) << shift;                 \
        }                                                                                          \
        return result;                                                                             \
    }
#define CUPLATE_SUM(NAME, BITS, LANE, EXPRESSION)                                                  \
    CUPLATE_SHIM unsigned int NAME(unsigned int a, unsigned int b) {                               \
        unsigned int result = 0;                                                                   \
        for (int shift = 0; shift < 32; shift += BITS) {                                           \
            int x = (LANE)(a >> shift), y = (LANE)(b >> shift);                                    \
            result += (unsigned int)(EXPRESSION);                                                  \
        }                                                                                          \
        return result;                                                                             \
    }
CUPLATE_SHIM int clamped(int x, int low, int high) { return x < low ? low : x > high ? high : x; }
CUPLATE_SHIM int magnitude(int x) { return x < 0 ? -x : x; }

}  // namespace cuplate

#define CUPLATE_VIDEO(N, BITS, SIGNED, UNSIGNED, LOW, HIGH, TOP)                                   \
    CUPLATE_LANES(cuplate_vabs##N, BITS, SIGNED, ::cuplate::magnitude(x))                          \
    CUPLATE_LANES(cuplate_vabsss##N, BITS, SIGNED, ::cuplate::clamped(::cuplate::magnitude(x), LOW, HIGH)) \
    CUPLATE_LANES(cuplate_vneg##N, BITS, SIGNED, -x)                                               \
    CUPLATE_LANES(cuplate_vnegss##N, BITS, SIGNED, ::cuplate::clamped(-x, LOW, HIGH))              \
    CUPLATE_SHIM unsigned int __vabs##N(unsigned int a) { return cuplate_vabs##N(a, 0u); }         \
    CUPLATE_SHIM unsigned int __vabsss##N(unsigned int a) { return cuplate_vabsss##N(a, 0u); }     \
    CUPLATE_SHIM unsigned int __vneg##N(unsigned int a) { return cuplate_vneg##N(a, 0u); }         \
    CUPLATE_SHIM unsigned int __vnegss##N(unsigned int a) { return cuplate_vnegss##N(a, 0u); }     \
    CUPLATE_LANES(__vadd##N, BITS, UNSIGNED, x + y)                                                \
    CUPLATE_LANES(__vaddss##N, BITS, SIGNED, ::cuplate::clamped(x + y, LOW, HIGH))                 \
    CUPLATE_LANES(__vaddus##N, BITS, UNSIGNED, ::cuplate::clamped(x + y, 0, TOP))                  \
    CUPLATE_LANES(__vsub##N, BITS, UNSIGNED, x - y)                                                \
    CUPLATE_LANES(__vsubss##N, BITS, SIGNED, ::cuplate::clamped(x - y, LOW, HIGH))                 \
    CUPLATE_LANES(__vsubus##N, BITS, UNSIGNED, ::cuplate::clamped(x - y, 0, TOP))                  \
    CUPLATE_LANES(__vabsdiffs##N, BITS, SIGNED, ::cuplate::magnitude(x - y))                       \
    CUPLATE_LANES(__vabsdiffu##N, BITS, UNSIGNED, ::cuplate::magnitude(x - y))                     \
    CUPLATE_LANES(__vavgs##N, BITS, SIGNED, (x + y + (x + y >= 0)) >> 1)                           \
    CUPLATE_LANES(__vavgu##N, BITS, UNSIGNED, (x + y + 1) >> 1)                                    \
    CUPLATE_LANES(__vhaddu##N, BITS, UNSIGNED, (x + y) >> 1)                                       \
    CUPLATE_LANES(__vmaxs##N, BITS, SIGNED, x > y ? x : y)                                         \
    CUPLATE_LANES(__vmaxu##N, BITS, UNSIGNED, x > y ? x : y)                                       \
    CUPLATE_LANES(__vmins##N, BITS, SIGNED, x < y ? x : y)                                         \
    CUPLATE_LANES(__vminu##N, BITS, UNSIGNED, x < y ? x : y)                                       \
    CUPLATE_SUM(__vsads##N, BITS, SIGNED, ::cuplate::magnitude(x - y))                             \
    CUPLATE_SUM(__vsadu##N, BITS, UNSIGNED, ::cuplate::magnitude(x - y))                           \
    CUPLATE_COMPARE(N, BITS, eq, UNSIGNED, ==)                                                     \
    CUPLATE_COMPARE(N, BITS, ne, UNSIGNED, !=)                                                     \
    CUPLATE_COMPARE(N, BITS, ges, SIGNED, >=)                                                      \
    CUPLATE_COMPARE(N, BITS, geu, UNSIGNED, >=)                                                    \
    CUPLATE_COMPARE(N, BITS, gts, SIGNED, >)                                                       \
    CUPLATE_COMPARE(N, BITS, gtu, UNSIGNED, >)                                                     \
    CUPLATE_COMPARE(N, BITS, les, SIGNED, <=)                                                      \
    CUPLATE_COMPARE(N, BITS, leu, UNSIGNED, <=)                                                    \
    CUPLATE_COMPARE(N, BITS, lts, SIGNED, <)                                                       \
    CUPLATE_COMPARE(N, BITS, ltu, UNSIGNED, <)
// cmp sets all bits of a lane, set its lowest.
#define CUPLATE_COMPARE(N, BITS, HOW, LANE, OPERATOR)                                              \
    CUPLATE_LANES(__vcmp##HOW##N, BITS, LANE, x OPERATOR y ? -1 : 0)                               \
    CUPLATE_LANES(__vset##HOW##N, BITS, LANE, x OPERATOR y ? 1 : 0)
CUPLATE_VIDEO(2, 16, short, unsigned short, -32768, 32767, 65535)
CUPLATE_VIDEO(4, 8, signed char, unsigned char, -128, 127, 255)
#undef CUPLATE_VIDEO
#undef CUPLATE_COMPARE
#undef CUPLATE_SUM

// DPX: sums wrap; relu is the larger of the result and 0. Suffix _s32 and _u32 on words, _s16x2 and _u16x2 on lanes.
#define CUPLATE_DPX_WORD(TYPE, S)                                                                  \
    CUPLATE_SHIM TYPE __viaddmax_##S(TYPE a, TYPE b, TYPE c) {                                     \
        return max((TYPE)((unsigned int)a + (unsigned int)b), c);                                  \
    }                                                                                              \
    CUPLATE_SHIM TYPE __viaddmin_##S(TYPE a, TYPE b, TYPE c) {                                     \
        return min((TYPE)((unsigned int)a + (unsigned int)b), c);                                  \
    }                                                                                              \
    CUPLATE_SHIM TYPE __vimax3_##S(TYPE a, TYPE b, TYPE c) { return max(max(a, b), c); }           \
    CUPLATE_SHIM TYPE __vimin3_##S(TYPE a, TYPE b, TYPE c) { return min(min(a, b), c); }           \
    CUPLATE_SHIM TYPE __vibmax_##S(TYPE a, TYPE b, bool* first) {                                  \
        *first = a >= b;                                                                           \
        return max(a, b);                                                                          \
    }                                                                                              \
    CUPLATE_SHIM TYPE __vibmin_##S(TYPE a, TYPE b, bool* first) {                                  \
        *first = a <= b;                                                                           \
        return min(a, b);                                                                          \
    }
CUPLATE_DPX_WORD(int, s32)
CUPLATE_DPX_WORD(unsigned int, u32)
#undef CUPLATE_DPX_WORD
CUPLATE_SHIM int __vimax_s32_relu(int a, int b) { return max(max(a, b), 0); }
CUPLATE_SHIM int __vimin_s32_relu(int a, int b) { return max(min(a, b), 0); }
CUPLATE_SHIM int __vimax3_s32_relu(int a, int b, int c) { return max(__vimax3_s32(a, b, c), 0); }
CUPLATE_SHIM int __vimin3_s32_relu(int a, int b, int c) { return max(__vimin3_s32(a, b, c), 0); }
CUPLATE_SHIM int __viaddmax_s32_relu(int a, int b, int c) { return max(__viaddmax_s32(a, b, c), 0); }
CUPLATE_SHIM int __viaddmin_s32_relu(int a, int b, int c) { return max(__viaddmin_s32(a, b, c), 0); }

#define CUPLATE_DPX_LANES(S, MAX, MIN)                                                             \
    CUPLATE_SHIM unsigned int __viaddmax_##S(unsigned int a, unsigned int b, unsigned int c) {     \
        return MAX(__vadd2(a, b), c);                                                              \
    }                                                                                              \
    CUPLATE_SHIM unsigned int __viaddmin_##S(unsigned int a, unsigned int b, unsigned int c) {     \
        return MIN(__vadd2(a, b), c);                                                              \
    }                                                                                              \
    CUPLATE_SHIM unsigned int __vimax3_##S(unsigned int a, unsigned int b, unsigned int c) {       \
        return MAX(MAX(a, b), c);                                                                  \
    }                                                                                              \
    CUPLATE_SHIM unsigned int __vimin3_##S(unsigned int a, unsigned int b, unsigned int c) {       \
        return MIN(MIN(a, b), c);                                                                  \
    }
CUPLATE_DPX_LANES(s16x2, __vmaxs2, __vmins2)
CUPLATE_DPX_LANES(u16x2, __vmaxu2, __vminu2)
#undef CUPLATE_DPX_LANES
#define CUPLATE_RELU2(NAME, PARAMETERS, EXPRESSION)                                                \
    CUPLATE_SHIM unsigned int NAME PARAMETERS { return __vmaxs2(EXPRESSION, 0u); }
CUPLATE_RELU2(__vimax_s16x2_relu, (unsigned int a, unsigned int b), __vmaxs2(a, b))
CUPLATE_RELU2(__vimin_s16x2_relu, (unsigned int a, unsigned int b), __vmins2(a, b))
CUPLATE_RELU2(__vimax3_s16x2_relu, (unsigned int a, unsigned int b, unsigned int c), __vimax3_s16x2(a, b, c))
CUPLATE_RELU2(__vimin3_s16x2_relu, (unsigned int a, unsigned int b, unsigned int c), __vimin3_s16x2(a, b, c))
CUPLATE_RELU2(__viaddmax_s16x2_relu, (unsigned int a, unsigned int b, unsigned int c), __viaddmax_s16x2(a, b, c))
CUPLATE_RELU2(__viaddmin_s16x2_relu, (unsigned int a, unsigned int b, unsigned int c), __viaddmin_s16x2(a, b, c))
#undef CUPLATE_RELU2
#undef CUPLATE_LANES

#endif
