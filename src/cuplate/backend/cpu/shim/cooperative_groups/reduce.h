// Reductions over a group.
#ifndef CUPLATE_COOPERATIVE_GROUPS_REDUCE_H
#define CUPLATE_COOPERATIVE_GROUPS_REDUCE_H

#include "../cooperative_groups.h"

namespace cooperative_groups {

#define CUPLATE_REDUCER(NAME, EXPRESSION)                                                          \
    template <class T>                                                                             \
    struct NAME {                                                                                  \
        T operator()(T a, T b) const { return EXPRESSION; }                                        \
    };
CUPLATE_REDUCER(plus, a + b)
CUPLATE_REDUCER(less, b < a ? b : a)
CUPLATE_REDUCER(greater, a < b ? b : a)
CUPLATE_REDUCER(bit_and, a& b)
CUPLATE_REDUCER(bit_or, a | b)
CUPLATE_REDUCER(bit_xor, a ^ b)
#undef CUPLATE_REDUCER

// In a tile by exchange with the lane whose rank differs in one bit, highest bit first: the order of additions that
// CUDA's header has, so that sums of floats agree.
template <unsigned int Size, class Parent, class T, class Combine>
CUPLATE_SHIM T reduce(const thread_block_tile<Size, Parent>& group, T value, Combine combine, CUPLATE_SITE) {
    for (unsigned lanes = Size / 2; lanes > 0; lanes /= 2) value = combine(value, group.shfl_xor(value, lanes, site));
    return value;
}
// Other groups in order of rank; every thread gets the result.
template <class T, class Combine>
CUPLATE_SHIM T reduce(const coalesced_group& group, T value, Combine combine, CUPLATE_SITE) {
    T result = group.shfl(value, 0, site);
    for (unsigned rank = 1; rank < group.num_threads(); ++rank) {
        result = combine(result, group.shfl(value, (int)rank, site));
    }
    return result;
}

}  // namespace cooperative_groups
#endif
