// The CUDA math API in single and double precision, and the fast intrinsics.
//
// Most functions are the process's libm through compiler builtins. What libm lacks is computed here: single precision
// in double arithmetic, double precision by the formula named beside it. A fast intrinsic (__expf, __sinf, ...) is
// the
// accurate function: on a GPU its error is larger, and no program may count on an error.
#ifndef CUPLATE_MATH_H
#define CUPLATE_MATH_H

// fmin and fmax: a number wins over NaN, and -0 counts as less than +0 (PTX ISA, "min", "max"); libm leaves the
// zeros open.
namespace cuplate {
template <class Bits, class Floating>
CUPLATE_SHIM Floating smaller(Floating a, Floating b) {
    Bits x, y;
    __builtin_memcpy(&x, &a, sizeof(x));
    __builtin_memcpy(&y, &b, sizeof(y));
    Bits both = x | y;
    Floating zero;
    __builtin_memcpy(&zero, &both, sizeof(zero));
    Floating least = a < b ? a : b;
    least = a == b ? zero : least;
    return b != b ? a : least;
}
template <class Bits, class Floating>
CUPLATE_SHIM Floating larger(Floating a, Floating b) {
    Bits x, y;
    __builtin_memcpy(&x, &a, sizeof(x));
    __builtin_memcpy(&y, &b, sizeof(y));
    Bits both = x & y;
    Floating zero;
    __builtin_memcpy(&zero, &both, sizeof(zero));
    Floating most = a > b ? a : b;
    most = a == b ? zero : most;
    return b != b ? a : most;
}
}  // namespace cuplate
CUPLATE_SHIM float fminf(float a, float b) { return ::cuplate::smaller<unsigned int>(a, b); }
CUPLATE_SHIM float fmaxf(float a, float b) { return ::cuplate::larger<unsigned int>(a, b); }
CUPLATE_SHIM double fmin(double a, double b) { return ::cuplate::smaller<unsigned long long>(a, b); }
CUPLATE_SHIM double fmax(double a, double b) { return ::cuplate::larger<unsigned long long>(a, b); }
CUPLATE_SHIM float fmin(float a, float b) { return fminf(a, b); }
CUPLATE_SHIM float fmax(float a, float b) { return fmaxf(a, b); }

#define CUPLATE_MATH1(NAME)                                                                        \
    CUPLATE_SHIM float NAME##f(float x) { return __builtin_##NAME##f(x); }                         \
    CUPLATE_SHIM float NAME(float x) { return __builtin_##NAME##f(x); }                            \
    CUPLATE_SHIM double NAME(double x) { return __builtin_##NAME(x); }
#define CUPLATE_MATH2(NAME)                                                                        \
    CUPLATE_SHIM float NAME##f(float x, float y) { return __builtin_##NAME##f(x, y); }             \
    CUPLATE_SHIM float NAME(float x, float y) { return __builtin_##NAME##f(x, y); }                \
    CUPLATE_SHIM double NAME(double x, double y) { return __builtin_##NAME(x, y); }
CUPLATE_MATH1(exp)
CUPLATE_MATH1(exp2)
CUPLATE_MATH1(expm1)
CUPLATE_MATH1(log)
CUPLATE_MATH1(log2)
CUPLATE_MATH1(log10)
CUPLATE_MATH1(log1p)
CUPLATE_MATH1(logb)
CUPLATE_MATH1(sqrt)
CUPLATE_MATH1(sin)
CUPLATE_MATH1(cos)
CUPLATE_MATH1(tan)
CUPLATE_MATH1(asin)
CUPLATE_MATH1(acos)
CUPLATE_MATH1(atan)
CUPLATE_MATH1(sinh)
CUPLATE_MATH1(cosh)
CUPLATE_MATH1(tanh)
CUPLATE_MATH1(asinh)
CUPLATE_MATH1(acosh)
CUPLATE_MATH1(atanh)
CUPLATE_MATH1(erf)
CUPLATE_MATH1(erfc)
CUPLATE_MATH1(lgamma)
CUPLATE_MATH1(tgamma)
CUPLATE_MATH1(floor)
CUPLATE_MATH1(ceil)
CUPLATE_MATH1(trunc)
CUPLATE_MATH1(round)
CUPLATE_MATH1(rint)
CUPLATE_MATH1(nearbyint)
CUPLATE_MATH1(fabs)
CUPLATE_MATH2(atan2)
CUPLATE_MATH2(fmod)
CUPLATE_MATH2(remainder)
CUPLATE_MATH2(hypot)
CUPLATE_MATH2(copysign)
CUPLATE_MATH2(nextafter)
CUPLATE_MATH2(fdim)
CUPLATE_MATH2(pow)
#undef CUPLATE_MATH1
#undef CUPLATE_MATH2

// Some C libraries are 4 ulps off, a GPU is one: Newton's step with an exact residue gives the missing digits.
namespace cuplate {
static inline double cube_root(double x) {
    double root = __builtin_cbrt(x);
    double magnitude = __builtin_fabs(x);
    if (!(magnitude > 1e-280 && magnitude < 1e300)) return root;  // where cubing leaves the range
    double square = root * root;
    double error = __builtin_fma(root, root, -square);
    double residue = __builtin_fma(square, root, -x) + error * root;
    return root - residue / (3.0 * square);
}
}  // namespace cuplate
CUPLATE_SHIM double cbrt(double x) { return ::cuplate::cube_root(x); }
CUPLATE_SHIM float cbrtf(float x) { return (float)__builtin_cbrt((double)x); }
CUPLATE_SHIM float cbrt(float x) { return cbrtf(x); }

CUPLATE_SHIM float abs(float x) { return __builtin_fabsf(x); }
CUPLATE_SHIM double abs(double x) { return __builtin_fabs(x); }
CUPLATE_SHIM float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
CUPLATE_SHIM float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
CUPLATE_SHIM double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
CUPLATE_SHIM float pow(float x, int n) { return (float)__builtin_pow((double)x, (double)n); }
CUPLATE_SHIM double pow(double x, int n) { return __builtin_pow(x, (double)n); }
CUPLATE_SHIM float fdividef(float a, float b) { return a / b; }

CUPLATE_SHIM float ldexpf(float x, int n) { return __builtin_ldexpf(x, n); }
CUPLATE_SHIM float ldexp(float x, int n) { return __builtin_ldexpf(x, n); }
CUPLATE_SHIM double ldexp(double x, int n) { return __builtin_ldexp(x, n); }
CUPLATE_SHIM float scalbnf(float x, int n) { return __builtin_scalbnf(x, n); }
CUPLATE_SHIM float scalbn(float x, int n) { return __builtin_scalbnf(x, n); }
CUPLATE_SHIM double scalbn(double x, int n) { return __builtin_scalbn(x, n); }
CUPLATE_SHIM float scalblnf(float x, long n) { return __builtin_scalblnf(x, n); }
CUPLATE_SHIM float scalbln(float x, long n) { return __builtin_scalblnf(x, n); }
CUPLATE_SHIM double scalbln(double x, long n) { return __builtin_scalbln(x, n); }

// ilogb of zero and of NaN is the smallest int on a GPU; C libraries differ.
namespace cuplate {
CUPLATE_SHIM int binary_exponent(double x) {
    if (x == 0.0 || x != x) return -0x7fffffff - 1;
    if (__builtin_isinf(x)) return 0x7fffffff;
    return __builtin_ilogb(x);
}
}  // namespace cuplate
CUPLATE_SHIM int ilogb(double x) { return ::cuplate::binary_exponent(x); }
CUPLATE_SHIM int ilogb(float x) { return ::cuplate::binary_exponent(x); }
CUPLATE_SHIM int ilogbf(float x) { return ::cuplate::binary_exponent(x); }

#define CUPLATE_CLASS(NAME)                                                                        \
    CUPLATE_SHIM int NAME(float x) { return __builtin_##NAME(x) != 0; }                            \
    CUPLATE_SHIM int NAME(double x) { return __builtin_##NAME(x) != 0; }                           \
    CUPLATE_SHIM int NAME(long double x) { return __builtin_##NAME(x) != 0; }
CUPLATE_CLASS(isnan)
CUPLATE_CLASS(isinf)
CUPLATE_CLASS(isfinite)
CUPLATE_CLASS(signbit)
#undef CUPLATE_CLASS

CUPLATE_SHIM float nanf(const char*) { return __builtin_nanf(""); }
CUPLATE_SHIM double nan(const char*) { return __builtin_nan(""); }

// Results through pointers ---------------------------------------------------------------------------------------
CUPLATE_SHIM float frexpf(float x, int* exponent) {
    int e = 0;
    float fraction = __builtin_frexpf(x, &e);
    *exponent = x != x || __builtin_isinf(x) ? 0 : e;
    return fraction;
}
CUPLATE_SHIM float frexp(float x, int* exponent) { return frexpf(x, exponent); }
CUPLATE_SHIM double frexp(double x, int* exponent) {
    int e = 0;
    double fraction = __builtin_frexp(x, &e);
    *exponent = x != x || __builtin_isinf(x) ? 0 : e;
    return fraction;
}
CUPLATE_SHIM float modff(float x, float* whole) {
    *whole = __builtin_truncf(x);
    return __builtin_copysignf(__builtin_isinf(x) ? 0.0f : x - __builtin_truncf(x), x);
}
CUPLATE_SHIM float modf(float x, float* whole) { return modff(x, whole); }
CUPLATE_SHIM double modf(double x, double* whole) {
    *whole = __builtin_trunc(x);
    return __builtin_copysign(__builtin_isinf(x) ? 0.0 : x - __builtin_trunc(x), x);
}
CUPLATE_SHIM float remquof(float x, float y, int* quotient) {
    int q = 0;
    float rest = __builtin_remquof(x, y, &q);
    *quotient = q;
    return rest;
}
CUPLATE_SHIM float remquo(float x, float y, int* quotient) { return remquof(x, y, quotient); }
CUPLATE_SHIM double remquo(double x, double y, int* quotient) {
    int q = 0;
    double rest = __builtin_remquo(x, y, &q);
    *quotient = q;
    return rest;
}
CUPLATE_SHIM void sincosf(float x, float* sine, float* cosine) {
    *sine = __builtin_sinf(x);
    *cosine = __builtin_cosf(x);
}
CUPLATE_SHIM void sincos(float x, float* sine, float* cosine) { sincosf(x, sine, cosine); }
CUPLATE_SHIM void sincos(double x, double* sine, double* cosine) {
    *sine = __builtin_sin(x);
    *cosine = __builtin_cos(x);
}

// Reciprocals, powers of ten, lengths ----------------------------------------------------------------------------
CUPLATE_SHIM double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
CUPLATE_SHIM float rsqrtf(float x) { return (float)(1.0 / __builtin_sqrt((double)x)); }
CUPLATE_SHIM float rsqrt(float x) { return rsqrtf(x); }
CUPLATE_SHIM double rcbrt(double x) { return 1.0 / ::cuplate::cube_root(x); }
CUPLATE_SHIM float rcbrtf(float x) { return (float)(1.0 / __builtin_cbrt((double)x)); }
CUPLATE_SHIM float rcbrt(float x) { return rcbrtf(x); }
// pow is accurate to an ulp, and exact at whole exponents, where exp10 of some C libraries is missing.
CUPLATE_SHIM double exp10(double x) { return __builtin_pow(10.0, x); }
CUPLATE_SHIM float exp10f(float x) { return (float)__builtin_pow(10.0, (double)x); }
CUPLATE_SHIM float exp10(float x) { return exp10f(x); }

namespace cuplate {
// Scaling by the largest component keeps the squares in range; an infinite component wins over NaN.
static inline double length(const double* values, int count, bool inverse) {
    double largest = 0.0;
    bool infinite = false, invalid = false;
    for (int i = 0; i < count; ++i) {
        double magnitude = __builtin_fabs(values[i]);
        infinite = infinite || __builtin_isinf(magnitude);
        invalid = invalid || magnitude != magnitude;
        largest = magnitude > largest ? magnitude : largest;
    }
    if (infinite) return inverse ? 0.0 : __builtin_inf();
    if (invalid) return __builtin_nan("");
    if (largest == 0.0) return inverse ? __builtin_inf() : 0.0;
    int exponent = __builtin_ilogb(largest);
    double sum = 0.0;
    for (int i = 0; i < count; ++i) {
        double scaled = __builtin_scalbn(values[i], -exponent);
        sum = __builtin_fma(scaled, scaled, sum);
    }
    double root = __builtin_sqrt(sum);
    return inverse ? __builtin_scalbn(1.0 / root, -exponent) : __builtin_scalbn(root, exponent);
}
}  // namespace cuplate
#define CUPLATE_LENGTH(NAME, COUNT, INVERSE, DOUBLES, FLOATS, ...)                                 \
    CUPLATE_SHIM double NAME DOUBLES {                                                             \
        double values[COUNT] = {__VA_ARGS__};                                                      \
        return ::cuplate::length(values, COUNT, INVERSE);                                          \
    }                                                                                              \
    CUPLATE_SHIM float NAME##f FLOATS {                                                            \
        double values[COUNT] = {__VA_ARGS__};                                                      \
        return (float)::cuplate::length(values, COUNT, INVERSE);                                   \
    }
CUPLATE_LENGTH(rhypot, 2, true, (double a, double b), (float a, float b), a, b)
CUPLATE_LENGTH(norm3d, 3, false, (double a, double b, double c), (float a, float b, float c), a, b, c)
CUPLATE_LENGTH(rnorm3d, 3, true, (double a, double b, double c), (float a, float b, float c), a, b, c)
CUPLATE_LENGTH(norm4d, 4, false, (double a, double b, double c, double d), (float a, float b, float c, float d), a,
               b, c, d)
CUPLATE_LENGTH(rnorm4d, 4, true, (double a, double b, double c, double d), (float a, float b, float c, float d), a,
               b, c, d)
#undef CUPLATE_LENGTH

namespace cuplate {
template <class Floating>
CUPLATE_SHIM double length_of_array(int count, const Floating* values, bool inverse) {
    double length_so_far = 0.0;
    for (int i = 0; i < count; ++i) {
        double pair[2] = {length_so_far, (double)values[i]};
        length_so_far = length(pair, 2, false);
    }
    return inverse ? 1.0 / length_so_far : length_so_far;
}
}  // namespace cuplate
CUPLATE_SHIM double norm(int count, const double* values) { return ::cuplate::length_of_array(count, values, false); }
CUPLATE_SHIM double rnorm(int count, const double* values) { return ::cuplate::length_of_array(count, values, true); }
CUPLATE_SHIM float normf(int count, const float* values) {
    return (float)::cuplate::length_of_array(count, values, false);
}
CUPLATE_SHIM float rnormf(int count, const float* values) {
    return (float)::cuplate::length_of_array(count, values, true);
}

// Functions of pi times the argument -----------------------------------------------------------------------------
namespace cuplate {
// The argument is first reduced exactly: to a quarter turn count and a rest of at most an eighth of a turn.
static inline double sine_of_pi(double x, bool cosine) {
    if (x != x || __builtin_isinf(x)) return __builtin_nan("");
    double halves = __builtin_rint(2.0 * x);
    double rest = __builtin_fma(halves, -0.5, x);
    // Beyond 2^53 the count is even anyway; fmod keeps the conversion to int in range.
    int quadrant = (int)__builtin_fmod(halves, 4.0) + (cosine ? 1 : 0);
    double angle = rest * 3.14159265358979323846;
    switch (quadrant & 3) {
        case 0:
            return __builtin_sin(angle);
        case 1:
            return __builtin_cos(angle);
        case 2:
            return -__builtin_sin(angle);
        default:
            return -__builtin_cos(angle);
    }
}
// The zeros of sinpi carry the sign of the argument, those of cospi are positive.
static inline double sinpi(double x) {
    double result = sine_of_pi(x, false);
    return result == 0.0 ? __builtin_copysign(0.0, x) : result;
}
static inline double cospi(double x) { return sine_of_pi(x, true) + 0.0; }
}  // namespace cuplate
CUPLATE_SHIM double sinpi(double x) { return ::cuplate::sinpi(x); }
CUPLATE_SHIM double cospi(double x) { return ::cuplate::cospi(x); }
CUPLATE_SHIM float sinpif(float x) { return (float)::cuplate::sinpi(x); }
CUPLATE_SHIM float cospif(float x) { return (float)::cuplate::cospi(x); }
CUPLATE_SHIM float sinpi(float x) { return sinpif(x); }
CUPLATE_SHIM float cospi(float x) { return cospif(x); }
CUPLATE_SHIM void sincospif(float x, float* sine, float* cosine) {
    *sine = sinpif(x);
    *cosine = cospif(x);
}
CUPLATE_SHIM void sincospi(float x, float* sine, float* cosine) { sincospif(x, sine, cosine); }
CUPLATE_SHIM void sincospi(double x, double* sine, double* cosine) {
    *sine = ::cuplate::sinpi(x);
    *cosine = ::cuplate::cospi(x);
}

// Error functions and the normal distribution --------------------------------------------------------------------
namespace cuplate {
// x*x as a sum of two doubles: the rounding error of the square would grow to x*x ulps in the exponential.
static inline double exp_of_square(double x, double sign) {
    double square = x * x;
    double error = __builtin_fma(x, x, -square);
    double scale = __builtin_exp(sign * square);
    return __builtin_isinf(scale) ? scale : __builtin_fma(scale, sign * error, scale);
}
// exp(x*x) * erfc(x): the product while erfc is a normal number, then the asymptotic series
// 1/(x sqrt(pi)) * sum of (-1)^k (2k-1)!! / (2 x*x)^k  (Abramowitz and Stegun 7.1.23).
static inline double scaled_erfc(double x) {
    if (x < 25.0) return exp_of_square(x, 1.0) * __builtin_erfc(x);
    double step = 0.5 / (x * x);
    double sum = 1.0;
    for (double odd = 15.0; odd >= 1.0; odd -= 2.0) sum = 1.0 - odd * step * sum;
    return 0.56418958354775628695 / x * sum;
}
// The inverse of erfc on (0, 2): a start from the logarithm, then Newton's steps on log erfc where erfc is small and
// on erf where it is not. Each step doubles the digits; six are enough from any start below.
static inline double inverse_erfc(double y) {
    if (!(y >= 0.0 && y <= 2.0)) return __builtin_nan("");
    if (y == 0.0) return __builtin_inf();
    if (y == 2.0) return -__builtin_inf();
    if (y > 1.0) return -inverse_erfc(2.0 - y);
    double x;
    if (y > 0.5) {
        double erf_of_x = 1.0 - y;
        x = 0.88622692545275801365 * erf_of_x;
        for (int i = 0; i < 7; ++i) {
            double slope = 1.12837916709551257390 * exp_of_square(x, -1.0);
            double distance = (__builtin_erf(x) - erf_of_x) / slope;
            x -= distance / (1.0 + x * distance);
        }
        return x;
    }
    double logarithm = __builtin_log(y);
    x = __builtin_sqrt(-logarithm - 0.5 * __builtin_log(-3.0 * logarithm));
    for (int i = 0; i < 7; ++i) {
        // log erfc(x) = log erfcx(x) - x*x, and its slope is -2 / (sqrt(pi) erfcx(x)).
        double scaled = scaled_erfc(x);
        double rest = __builtin_log(scaled) - logarithm;
        double distance = __builtin_fma(-x, x, rest);
        x += distance * scaled * 0.88622692545275801365;
    }
    return x;
}
static inline double inverse_erf(double y) {
    if (!(y >= -1.0 && y <= 1.0)) return __builtin_nan("");
    double magnitude = __builtin_fabs(y);
    double x;
    if (magnitude > 0.5) {
        x = inverse_erfc(1.0 - magnitude);
    } else {
        x = 0.88622692545275801365 * magnitude;
        for (int i = 0; i < 5 && magnitude > 1e-9; ++i) {
            double slope = 1.12837916709551257390 * exp_of_square(x, -1.0);
            double distance = (__builtin_erf(x) - magnitude) / slope;
            x -= distance / (1.0 + x * distance);
        }
    }
    return __builtin_copysign(x, y);
}
// erfc(-x / sqrt(2)) / 2, with the quotient's rounding error carried by the derivative of erfc.
static inline double normal_distribution(double x) {
    if (x < -38.6) return 0.0;
    if (x > 8.4) return 1.0;
    double high = x * -0.70710678118654752440;
    double low = __builtin_fma(x, -0.70710678118654752440, -high) + x * 4.83364665672645672553e-17;
    double slope = -1.12837916709551257390 * exp_of_square(high, -1.0);
    return 0.5 * __builtin_fma(slope, low, __builtin_erfc(high));
}
static inline double inverse_normal_distribution(double p) {
    return -1.41421356237309504880 * inverse_erfc(2.0 * p);
}
// I_n, n = 0 or 1: the power series (all terms positive), beyond 30 the asymptotic series (A. and S. 9.6.10, 9.7.1).
static inline double modified_bessel(int order, double x) {
    double magnitude = __builtin_fabs(x);
    double sum = 1.0, term = 1.0;
    if (x != x) return x;
    if (magnitude < 30.0) {
        double quarter = 0.25 * x * x;
        for (int k = 1; k < 80; ++k) {
            term *= quarter / ((double)k * (double)(k + order));
            sum += term;
        }
        return order ? 0.5 * x * sum : sum;
    }
    double mu = 4.0 * order;
    for (int k = 1; k < 30; ++k) {
        double odd = 2.0 * k - 1.0;
        term *= -(mu - odd * odd) / (8.0 * k * magnitude);
        sum += term;
    }
    double half_exp = __builtin_exp(0.5 * magnitude);
    double result = half_exp / __builtin_sqrt(6.28318530717958647692 * magnitude) * half_exp * sum;
    return order ? __builtin_copysign(result, x) : result;
}
}  // namespace cuplate

#define CUPLATE_OWN1(NAME, FUNCTION)                                                               \
    CUPLATE_SHIM double NAME(double x) { return ::cuplate::FUNCTION(x); }                          \
    CUPLATE_SHIM float NAME##f(float x) { return (float)::cuplate::FUNCTION((double)x); }          \
    CUPLATE_SHIM float NAME(float x) { return (float)::cuplate::FUNCTION((double)x); }
CUPLATE_OWN1(erfcx, scaled_erfc)
CUPLATE_OWN1(erfinv, inverse_erf)
CUPLATE_OWN1(erfcinv, inverse_erfc)
CUPLATE_OWN1(normcdf, normal_distribution)
CUPLATE_OWN1(normcdfinv, inverse_normal_distribution)
#undef CUPLATE_OWN1

// Not builtins of every compiler; under other names, because overloads of j0 and its kind are declared below.
#define CUPLATE_LABEL_TEXT(X) #X
#define CUPLATE_LABEL(PREFIX, NAME) CUPLATE_LABEL_TEXT(PREFIX) NAME
#define CUPLATE_LIBM(NAME) __asm__(CUPLATE_LABEL(__USER_LABEL_PREFIX__, NAME))
extern "C" {
double cuplate_j0(double) CUPLATE_LIBM("j0");
double cuplate_j1(double) CUPLATE_LIBM("j1");
double cuplate_y0(double) CUPLATE_LIBM("y0");
double cuplate_y1(double) CUPLATE_LIBM("y1");
double cuplate_jn(int, double) CUPLATE_LIBM("jn");
double cuplate_yn(int, double) CUPLATE_LIBM("yn");
}
#define CUPLATE_BESSEL(NAME, EXPRESSION)                                                           \
    CUPLATE_SHIM double NAME(double x) { return EXPRESSION; }                                      \
    CUPLATE_SHIM float NAME##f(float v) {                                                          \
        double x = v;                                                                              \
        return (float)(EXPRESSION);                                                                \
    }                                                                                              \
    CUPLATE_SHIM float NAME(float v) { return NAME##f(v); }
CUPLATE_BESSEL(j0, cuplate_j0(x))
CUPLATE_BESSEL(j1, cuplate_j1(x))
CUPLATE_BESSEL(y0, cuplate_y0(x))
CUPLATE_BESSEL(y1, cuplate_y1(x))
CUPLATE_BESSEL(cyl_bessel_i0, ::cuplate::modified_bessel(0, x))
CUPLATE_BESSEL(cyl_bessel_i1, ::cuplate::modified_bessel(1, x))
#undef CUPLATE_BESSEL
CUPLATE_SHIM double jn(int n, double x) { return cuplate_jn(n, x); }
CUPLATE_SHIM double yn(int n, double x) { return cuplate_yn(n, x); }
CUPLATE_SHIM float jnf(int n, float x) { return (float)cuplate_jn(n, (double)x); }
CUPLATE_SHIM float ynf(int n, float x) { return (float)cuplate_yn(n, (double)x); }
CUPLATE_SHIM float jn(int n, float x) { return jnf(n, x); }
CUPLATE_SHIM float yn(int n, float x) { return ynf(n, x); }

// Fast intrinsics ------------------------------------------------------------------------------------------------
#define CUPLATE_FAST(NAME, EXPRESSION)                                                             \
    CUPLATE_SHIM float NAME(float x) { return EXPRESSION; }
CUPLATE_FAST(__expf, __builtin_expf(x))
CUPLATE_FAST(__exp10f, exp10f(x))
CUPLATE_FAST(__logf, __builtin_logf(x))
CUPLATE_FAST(__log2f, __builtin_log2f(x))
CUPLATE_FAST(__log10f, __builtin_log10f(x))
CUPLATE_FAST(__sinf, __builtin_sinf(x))
CUPLATE_FAST(__cosf, __builtin_cosf(x))
CUPLATE_FAST(__tanf, __builtin_tanf(x))
CUPLATE_FAST(__tanhf, __builtin_tanhf(x))
// NaN becomes 0.
CUPLATE_FAST(__saturatef, x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f)
#undef CUPLATE_FAST
CUPLATE_SHIM float __powf(float x, float y) { return __builtin_powf(x, y); }
CUPLATE_SHIM float __fdividef(float x, float y) { return x / y; }
CUPLATE_SHIM void __sincosf(float x, float* sine, float* cosine) { sincosf(x, sine, cosine); }

#endif
