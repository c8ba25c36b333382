// cp.async through its primitives. A copy is done at once, so waiting has nothing to wait for; the barrier that a
// kernel
// needs before other threads read the data is still the kernel's, and still checked.
#ifndef CUPLATE_CUDA_PIPELINE_PRIMITIVES_H
#define CUPLATE_CUDA_PIPELINE_PRIMITIVES_H

#include "cuplate_copies.h"

// 4, 8 or 16 bytes, of which the last `zeroed` are written as zeros and not read.
CUPLATE_SHIM void __pipeline_memcpy_async(void* to, const void* from, size_t bytes, size_t zeroed = 0, CUPLATE_SITE) {
    if (bytes != 4 && bytes != 8 && bytes != 16) {
        ::cuplate::cuplate_fail(::cuplate::REASON_ASSERT, "__pipeline_memcpy_async copies 4, 8 or 16 bytes", site);
    }
    if (zeroed > bytes) {
        ::cuplate::cuplate_fail(::cuplate::REASON_ASSERT, "__pipeline_memcpy_async zeroes more than it copies", site);
    }
    size_t read = bytes - zeroed;
    if (zeroed == 0) {
        ::cuplate::copied(to, from, bytes, (unsigned)bytes, site);
        return;
    }
    if (read > 0) ::cuplate::copied(to, from, read, 1u, site);
    ::cuplate::cleared((char*)to + read, zeroed, site);
}
CUPLATE_SHIM void __pipeline_commit() {}
CUPLATE_SHIM void __pipeline_wait_prior(size_t) {}

#endif
