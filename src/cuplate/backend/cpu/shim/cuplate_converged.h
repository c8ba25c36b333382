// Which lanes of a warp are at one place together: __activemask and coalesced_threads.
#ifndef CUPLATE_CONVERGED_H
#define CUPLATE_CONVERGED_H

#include "runtime.h"

namespace cuplate {

// The lanes of the caller's warp that reach this line together, as far as a GPU would let them: each lane that comes
// here lets the others run until all of the warp wait here, wait elsewhere or have ended. A lane that spins does
// not stop
// the others for ever. The mark is kept among the fibers, where the checker does not look.
enum : int { OP_GATHERING = 100, OP_GATHERED = 101, GATHERING_TURNS = 4096 };
static inline unsigned converged(Site site) {
    Worker* w = self();
    unsigned warp = w->current / WARP, first = warp * WARP;
    Fiber& own = w->fibers[w->current];
    own.operation = OP_GATHERING;
    own.value = w->epoch;
    own.site = site;
    for (int turn = 0;; ++turn) {
        if (own.operation == OP_GATHERED) return own.present;
        unsigned together = 0, busy = 0;
        for (unsigned l = 0; l < WARP; ++l) {
            if (!((w->living[warp] >> l) & 1u)) continue;
            const Fiber& other = w->fibers[first + l];
            bool gathers = other.operation == OP_GATHERING && other.value == own.value;
            if (gathers && other.site.line == site.line) {
                together |= 1u << l;
            } else if (!gathers && ((w->runnable[warp] >> l) & 1u)) {
                busy |= 1u << l;
            }
        }
        if (busy == 0 || turn == GATHERING_TURNS) {
            for (unsigned l = 0; l < WARP; ++l) {
                if (!((together >> l) & 1u)) continue;
                w->fibers[first + l].operation = OP_GATHERED;
                w->fibers[first + l].present = together;
            }
            return together;
        }
        cuplate_yield();
    }
}

}  // namespace cuplate
#endif
