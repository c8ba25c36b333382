// __nv_bfloat16 and __nv_bfloat162.
#ifndef CUPLATE_CUDA_BF16_H
#define CUPLATE_CUDA_BF16_H

#include "cuda_fp16.h"

#define CUPLATE_N __nv_bfloat16
#define CUPLATE_N_RAW __nv_bfloat16_raw
#define CUPLATE_N2 __nv_bfloat162
#define CUPLATE_N2_RAW __nv_bfloat162_raw
#define CUPLATE_N_WORD bfloat16
#define CUPLATE_N2_WORD bfloat162
#define CUPLATE_N_FORMAT ::cuplate::BfloatFormat
#define CUPLATE_N_OTHER __half
#include "cuplate_narrow_type.h"

typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

inline __attribute__((always_inline)) __half::__half(const __nv_bfloat16 other) : __half((float)other) {}
inline __attribute__((always_inline)) __nv_bfloat16::__nv_bfloat16(const __half other) : __nv_bfloat16((float)other) {}

#endif
