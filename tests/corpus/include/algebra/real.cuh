// Found beside the header that includes it.
#pragma once

#ifndef STEPS
#error "STEPS comes from the options"
#endif

namespace real {

__device__ __forceinline__ double product(double a, double b) { return __dmul_rn(a, b); }
__device__ __forceinline__ double madd(double a, double b, double c) { return fma(a, b, c); }

}  // namespace real
