// What a kernel may call without including anything: math, intrinsics, conversions, loads with cache hints.
//
// Overload sets follow NVRTC's, not <cmath>'s: a call that NVRTC finds ambiguous (sqrt(2), max(1, 1LL), pow(1.0, 2.0f))
// is ambiguous here too, and nothing lives in namespace std. tests/backend/cpu/test_headers.py compiles every name
// with both.
#ifndef CUPLATE_DEVICE_FUNCTIONS_H
#define CUPLATE_DEVICE_FUNCTIONS_H

#include "vector_types.h"

// A function that cannot run on a CPU: the error stands at the kernel's own line, and only if the call is reachable.
#define CUPLATE_REFUSED(WHY) __attribute__((error("the CPU backend " WHY)))

#include "cuplate_rounding.h"
#include "cuplate_math.h"
#include "cuplate_integers.h"
#include "cuplate_conversions.h"
#include "cuplate_simd.h"
#include "cuplate_loads.h"

#endif
