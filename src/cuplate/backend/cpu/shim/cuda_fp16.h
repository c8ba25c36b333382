// half and half2.
#ifndef CUPLATE_CUDA_FP16_H
#define CUPLATE_CUDA_FP16_H

#include "cuplate_narrow.h"

#define CUPLATE_N __half
#define CUPLATE_N_RAW __half_raw
#define CUPLATE_N2 __half2
#define CUPLATE_N2_RAW __half2_raw
#define CUPLATE_N_WORD half
#define CUPLATE_N2_WORD half2
#define CUPLATE_N_FORMAT ::cuplate::HalfFormat
#define CUPLATE_N_OTHER __nv_bfloat16
#include "cuplate_narrow_type.h"

typedef __half half;
typedef __half2 half2;
typedef __half nv_half;
typedef __half2 nv_half2;
typedef __half __nv_half;
typedef __half2 __nv_half2;
typedef __half_raw __nv_half_raw;
typedef __half2_raw __nv_half2_raw;

#endif
