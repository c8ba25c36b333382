// Prefix sums over a tile or coalesced group, in order of rank.
#ifndef CUPLATE_COOPERATIVE_GROUPS_SCAN_H
#define CUPLATE_COOPERATIVE_GROUPS_SCAN_H

#include "reduce.h"

namespace cooperative_groups {

template <class Group, class T, class Combine>
CUPLATE_SHIM T inclusive_scan(const Group& group, T value, Combine combine, CUPLATE_SITE) {
    for (unsigned distance = 1; distance < group.num_threads(); distance *= 2) {
        T before = group.shfl_up(value, distance, site);
        if (group.thread_rank() >= distance) value = combine(before, value);
    }
    return value;
}
template <class Group, class T>
CUPLATE_SHIM T inclusive_scan(const Group& group, T value, CUPLATE_SITE) {
    return inclusive_scan(group, value, plus<T>(), site);
}
template <class Group, class T, class Combine>
CUPLATE_SHIM T exclusive_scan(const Group& group, T value, Combine combine, CUPLATE_SITE) {
    T before = group.shfl_up(inclusive_scan(group, value, combine, site), 1u, site);
    return group.thread_rank() == 0 ? T() : before;
}
template <class Group, class T>
CUPLATE_SHIM T exclusive_scan(const Group& group, T value, CUPLATE_SITE) {
    return exclusive_scan(group, value, plus<T>(), site);
}

}  // namespace cooperative_groups
#endif
