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
    Lane& own = w->lanes[w->current];
    own.operation = OP_GATHERING;
    own.value = w->epoch;
    wait_at(w, site);
    for (int turn = 0;; ++turn) {
        if (own.operation == OP_GATHERED) break;
        cuplate_settle();
        unsigned together = 0, busy = 0;
        for (unsigned l = 0; l < WARP; ++l) {
            if (!((w->living[warp] >> l) & 1u)) continue;
            const Lane& other = w->lanes[first + l];
            bool gathers = other.operation == OP_GATHERING && other.value == own.value;
            if (gathers && w->fibers[first + l].line == site.line) {
                together |= 1u << l;
            } else if (!gathers && ((w->runnable[warp] >> l) & 1u)) {
                busy |= 1u << l;
            }
        }
        if (busy == 0 || turn == GATHERING_TURNS) {
            for (unsigned l = 0; l < WARP; ++l) {
                if (!((together >> l) & 1u)) continue;
                w->lanes[first + l].operation = OP_GATHERED;
                w->lanes[first + l].present = together;
            }
            break;
        }
        cuplate_yield();
    }
    own.operation = OP_BARRIER;
    return own.present;
}

}  // namespace cuplate
#endif
