// Asynchronous copies by a group. The copy is done at once and shared out among the threads in pieces of 16 bytes; wait
// is the group's barrier, without which the checker finds the race.
#ifndef CUPLATE_COOPERATIVE_GROUPS_MEMCPY_ASYNC_H
#define CUPLATE_COOPERATIVE_GROUPS_MEMCPY_ASYNC_H

#include "../cooperative_groups.h"
#include "../cuplate_copies.h"

namespace cooperative_groups {

namespace details {
template <class Group>
CUPLATE_SHIM void share_copy(const Group& group, void* to, const void* from, size_t bytes, ::cuplate::Site site) {
    size_t step = (size_t)group.size() * 16;
    for (size_t at = (size_t)group.thread_rank() * 16; at < bytes; at += step) {
        size_t piece = bytes - at < 16 ? bytes - at : 16;
        ::cuplate::copied((char*)to + at, (const char*)from + at, piece, 1u, site);
    }
}
}  // namespace details

// `layout` is a count of bytes.
template <class Group, class To, class From, class Layout>
CUPLATE_SHIM void memcpy_async(const Group& group, To* to, From* from, const Layout& layout, CUPLATE_SITE) {
    details::share_copy(group, to, from, (size_t)layout, site);
}
// Layouts are counts of elements; the smaller one is copied.
template <class Group, class T, class ToLayout, class FromLayout>
CUPLATE_SHIM void memcpy_async(const Group& group, T* to, const ToLayout& to_layout, const T* from,
                               const FromLayout& from_layout, CUPLATE_SITE) {
    size_t count = (size_t)to_layout < (size_t)from_layout ? (size_t)to_layout : (size_t)from_layout;
    details::share_copy(group, to, from, count * sizeof(T), site);
}

template <class Group>
CUPLATE_SHIM void wait(const Group& group, CUPLATE_SITE) {
    group.sync(site);
}
template <unsigned int Stages, class Group>
CUPLATE_SHIM void wait_prior(const Group& group, CUPLATE_SITE) {
    group.sync(site);
}

}  // namespace cooperative_groups
#endif
