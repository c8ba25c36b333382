// Linked before (with CUPLATE_FRONT) and behind a kernel: a page on either side of its __shared__ variables, and marks
// around its code.
#include "runtime.h"

#ifdef CUPLATE_FRONT
#define GUARD_NAME cuplate_guard_before
#define MARK "cuplate_text_begin"
#else
#define GUARD_NAME cuplate_guard_behind
#define MARK "cuplate_text_end"
#endif

extern "C" {
CUPLATE_HIDDEN __thread char GUARD_NAME[cuplate::GUARD_BYTES] __attribute__((aligned(4096)));
}

#ifdef __ELF__
__asm__(".text\n.globl " MARK "\n.hidden " MARK "\n" MARK ":\n");
#endif
