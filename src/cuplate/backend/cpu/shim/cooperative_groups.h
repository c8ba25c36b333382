// Cooperative groups: the block, tiles of it, coalesced threads, and what of the grid needs no other block to run.
//
// A group within a warp is a lane mask, and each of its operations is one meeting of those lanes in the runtime.
// Names
// and signatures are those of CUDA's header; a group larger than a warp, a cluster, and grid.sync() are refused.
#ifndef CUPLATE_COOPERATIVE_GROUPS_H
#define CUPLATE_COOPERATIVE_GROUPS_H

#include "cuda/std/cstdint"

namespace cuplate {

CUPLATE_SHIM unsigned bits_below(unsigned mask, unsigned index) { return mask & ((1u << index) - 1u); }

// A value of any size travels in pieces of 8 bytes. `source` is a lane of the warp.
template <class T>
CUPLATE_SHIM T shuffled(unsigned mask, const T& value, unsigned source, int operation, Site site) {
    T result = value;
    for (unsigned at = 0; at < sizeof(T); at += 8) {
        unsigned bytes = sizeof(T) - at < 8 ? (unsigned)sizeof(T) - at : 8u;
        u64 piece = 0;
        __builtin_memcpy(&piece, (const char*)&value + at, bytes);
        piece = cuplate_shuffle(mask, piece, source, operation, site);
        __builtin_memcpy((char*)&result + at, &piece, bytes);
    }
    return result;
}

}  // namespace cuplate

namespace cooperative_groups {

namespace details {

enum Kind : unsigned { coalesced_kind, tile_kind, block_kind };

}  // namespace details

class thread_group;
class thread_block;
class grid_group;
CUPLATE_SHIM thread_block this_thread_block();
CUPLATE_SHIM grid_group this_grid();
CUPLATE_SHIM thread_group tiled_partition(const thread_group& parent, unsigned int size);

// Any group, its kind found at run time.
class thread_group {
  protected:
    details::Kind kind_;
    unsigned mask_;
    unsigned meta_rank_, meta_size_;
    thread_group(details::Kind kind, unsigned mask, unsigned meta_rank, unsigned meta_size)
        : kind_(kind), mask_(mask), meta_rank_(meta_rank), meta_size_(meta_size) {}
    friend thread_group tiled_partition(const thread_group& parent, unsigned size);

  public:
    thread_group() = default;
    unsigned long long num_threads() const {
        return kind_ == details::block_kind ? ::cuplate::self()->threads : (unsigned)__popc(mask_);
    }
    unsigned long long size() const { return num_threads(); }
    unsigned long long thread_rank() const {
        if (kind_ == details::block_kind) return ::cuplate::self()->current;
        return (unsigned)__popc(::cuplate::bits_below(mask_, ::cuplate::lane()));
    }
    void sync(CUPLATE_SITE) const {
        if (kind_ == details::block_kind) {
            ::cuplate::sync(site);
        } else {
            ::cuplate::cuplate_rendezvous(mask_, 0, ::cuplate::OP_SYNCWARP, site);
        }
    }
};

class thread_block : public thread_group {
    thread_block() : thread_group(details::block_kind, 0u, 0u, 1u) {}
    friend thread_block this_thread_block();

  public:
    class arrival_token {};
    static void sync(CUPLATE_SITE) { ::cuplate::sync(site); }
    // To arrive and to wait are one barrier here, at the wait: later than it need be, never earlier.
    static arrival_token barrier_arrive() { return arrival_token(); }
    static void barrier_wait(arrival_token&&, CUPLATE_SITE) {
        ::cuplate::sync(site);
    }
    static unsigned int thread_rank() { return ::cuplate::self()->current; }
    static unsigned int num_threads() { return ::cuplate::self()->threads; }
    static unsigned int size() { return ::cuplate::self()->threads; }
    static dim3 group_index() { return dim3(blockIdx); }
    static dim3 thread_index() { return dim3(threadIdx); }
    static dim3 group_dim() { return blockDim; }
    static dim3 dim_threads() { return blockDim; }
};
CUPLATE_SHIM thread_block this_thread_block() { return thread_block(); }

class grid_group {
    grid_group() = default;
    friend grid_group this_grid();

  public:
    static bool is_valid() { return false; }
    CUPLATE_REFUSED("runs the blocks of a grid one after another, so grid.sync() cannot work: split the kernel")
    void sync() const;
    static unsigned long long num_blocks() {
        return (unsigned long long)gridDim.x * gridDim.y * gridDim.z;
    }
    static unsigned long long block_rank() {
        return ((unsigned long long)blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    }
    static unsigned long long num_threads() { return num_blocks() * ::cuplate::self()->threads; }
    static unsigned long long size() { return num_threads(); }
    static unsigned long long thread_rank() {
        return block_rank() * ::cuplate::self()->threads + ::cuplate::self()->current;
    }
    static dim3 dim_blocks() { return gridDim; }
    static dim3 group_dim() { return gridDim; }
    static dim3 block_index() { return dim3(blockIdx); }
};
CUPLATE_SHIM grid_group this_grid() { return grid_group(); }

// Operations of the lanes of one warp. Derived gives mask().
namespace details {

template <class Derived>
class warp_operations {
    unsigned mask() const { return static_cast<const Derived*>(this)->lane_mask(); }
    unsigned ranks(unsigned lane_bits) const {
        unsigned packed = 0, group = mask(), rank = 0;
        for (unsigned lane = 0; lane < 32; ++lane) {
            if (!((group >> lane) & 1u)) continue;
            packed |= ((lane_bits >> lane) & 1u) << rank++;
        }
        return packed;
    }

  public:
    void sync(CUPLATE_SITE) const { ::cuplate::cuplate_rendezvous(mask(), 0, ::cuplate::OP_SYNCWARP, site); }
    int any(int predicate, CUPLATE_SITE) const {
        return ::cuplate::cuplate_ballot(mask(), predicate != 0, ::cuplate::OP_ANY, site) != 0;
    }
    int all(int predicate, CUPLATE_SITE) const {
        return ::cuplate::cuplate_ballot(mask(), predicate == 0, ::cuplate::OP_ALL, site) == 0;
    }
    // Bit i is the thread of rank i.
    unsigned int ballot(int predicate, CUPLATE_SITE) const {
        return ranks(::cuplate::cuplate_ballot(mask(), predicate != 0, ::cuplate::OP_BALLOT, site));
    }
    template <class T>
    unsigned int match_any(T value, CUPLATE_SITE) const {
        return ranks(::cuplate::cuplate_match(mask(), ::cuplate::pack<T>(value), ::cuplate::OP_MATCH_ANY, site));
    }
    template <class T>
    unsigned int match_all(T value, int& all_same, CUPLATE_SITE) const {
        unsigned same = ::cuplate::cuplate_match(mask(), ::cuplate::pack<T>(value), ::cuplate::OP_MATCH_ALL, site);
        all_same = same == ::cuplate::present();
        return all_same ? ranks(same) : 0u;
    }
};

template <unsigned int Size>
struct meta_of_tile {
    static unsigned int rank() { return ::cuplate::self()->current / Size; }
    static unsigned int size() { return (::cuplate::self()->threads + Size - 1) / Size; }
};

}  // namespace details

template <unsigned int Size, class Parent = void>
class thread_block_tile;

// Numbers of a tile; the parent decides among how many tiles it is counted.
template <unsigned int Size>
class thread_block_tile<Size, void> : public thread_group,
                                      public details::warp_operations<thread_block_tile<Size, void>> {
    static_assert(Size != 0 && (Size & (Size - 1)) == 0 && Size <= 32,
                  "the CPU backend has tiles of 1, 2, 4, 8, 16 and 32 threads");

  public:
    thread_block_tile(unsigned mask, unsigned meta_rank, unsigned meta_size)
        : thread_group(details::tile_kind, mask, meta_rank, meta_size) {}
    using details::warp_operations<thread_block_tile<Size, void>>::sync;

    unsigned lane_mask() const { return this->mask_; }
    static unsigned int thread_rank() { return ::cuplate::self()->current & (Size - 1); }
    static constexpr unsigned int num_threads() { return Size; }
    static constexpr unsigned int size() { return Size; }
    unsigned int meta_group_rank() const { return this->meta_rank_; }
    unsigned int meta_group_size() const { return this->meta_size_; }

    template <class T>
    T shfl(T value, int source, CUPLATE_SITE) const {
        return ::cuplate::shuffled(lane_mask(), value, ::cuplate::source_index(source, Size), ::cuplate::OP_SHFL, site);
    }
    template <class T>
    T shfl_up(T value, unsigned int delta, CUPLATE_SITE) const {
        return ::cuplate::shuffled(lane_mask(), value, ::cuplate::source_up(delta, Size), ::cuplate::OP_SHFL_UP, site);
    }
    template <class T>
    T shfl_down(T value, unsigned int delta, CUPLATE_SITE) const {
        return ::cuplate::shuffled(lane_mask(), value, ::cuplate::source_down(delta, Size), ::cuplate::OP_SHFL_DOWN,
                                   site);
    }
    template <class T>
    T shfl_xor(T value, unsigned int lanes, CUPLATE_SITE) const {
        return ::cuplate::shuffled(lane_mask(), value, ::cuplate::source_xor((int)lanes, Size), ::cuplate::OP_SHFL_XOR,
                                   site);
    }
};
template <unsigned int Size, class Parent>
class thread_block_tile : public thread_block_tile<Size, void> {
  public:
    using thread_block_tile<Size, void>::thread_block_tile;
};

class coalesced_group : public thread_group, public details::warp_operations<coalesced_group> {
  public:
    explicit coalesced_group(unsigned mask, unsigned meta_rank = 0u, unsigned meta_size = 1u)
        : thread_group(details::coalesced_kind, mask, meta_rank, meta_size) {}
    using details::warp_operations<coalesced_group>::sync;

    unsigned lane_mask() const { return mask_; }
    unsigned int num_threads() const { return (unsigned int)__popc(mask_); }
    unsigned int size() const { return num_threads(); }
    unsigned int thread_rank() const { return (unsigned int)__popc(::cuplate::bits_below(mask_, ::cuplate::lane())); }
    unsigned int meta_group_rank() const { return meta_rank_; }
    unsigned int meta_group_size() const { return meta_size_; }

    // A rank that the group has not gives the caller its own value.
    template <class T>
    T shfl(T value, int source, CUPLATE_SITE) const {
        return from_rank(value, (long long)source, ::cuplate::OP_SHFL, site);
    }
    template <class T>
    T shfl_up(T value, unsigned int delta, CUPLATE_SITE) const {
        return from_rank(value, (long long)thread_rank() - delta, ::cuplate::OP_SHFL_UP, site);
    }
    template <class T>
    T shfl_down(T value, unsigned int delta, CUPLATE_SITE) const {
        return from_rank(value, (long long)thread_rank() + delta, ::cuplate::OP_SHFL_DOWN, site);
    }

  private:
    template <class T>
    T from_rank(const T& value, long long rank, int operation, ::cuplate::Site site) const {
        bool inside = rank >= 0 && rank < (long long)num_threads();
        unsigned lane = inside ? __fns(mask_, 0u, (int)rank + 1) : ::cuplate::lane();
        return ::cuplate::shuffled(mask_, value, lane, operation, site);
    }
};

// The lanes that are here now. A GPU promises no more than that the caller is among them.
CUPLATE_SHIM coalesced_group coalesced_threads(CUPLATE_SITE) { return coalesced_group(::cuplate::converged(site)); }

// Partitions -----------------------------------------------------------------------------------------------------
namespace details {
CUPLATE_SHIM unsigned tile_mask(unsigned size) {
    unsigned ones = size >= 32 ? 0xffffffffu : (1u << size) - 1u;
    unsigned first = ::cuplate::lane() & ~(size - 1);
    // The last warp of a block may be short.
    unsigned threads = ::cuplate::self()->threads, start = ::cuplate::self()->current & ~31u;
    unsigned in_block = threads - start >= 32 ? 0xffffffffu : (1u << (threads - start)) - 1u;
    return (ones << first) & in_block;
}
}  // namespace details

template <unsigned int Size>
CUPLATE_SHIM thread_block_tile<Size, thread_block> tiled_partition(const thread_block&) {
    return thread_block_tile<Size, thread_block>(details::tile_mask(Size), details::meta_of_tile<Size>::rank(),
                                                 details::meta_of_tile<Size>::size());
}
template <unsigned int Size, unsigned int ParentSize, class GrandParent>
CUPLATE_SHIM thread_block_tile<Size, thread_block_tile<ParentSize, GrandParent>> tiled_partition(
    const thread_block_tile<ParentSize, GrandParent>& parent) {
    static_assert(Size <= ParentSize, "a tile is no larger than what it is a tile of");
    return thread_block_tile<Size, thread_block_tile<ParentSize, GrandParent>>(
        details::tile_mask(Size), parent.thread_rank() / Size, ParentSize / Size);
}
CUPLATE_SHIM coalesced_group tiled_partition(const coalesced_group& parent, unsigned int size) {
    unsigned first = parent.thread_rank() / size * size, mask = 0;
    for (unsigned rank = first; rank < first + size && rank < parent.num_threads(); ++rank) {
        mask |= 1u << __fns(parent.lane_mask(), 0u, (int)rank + 1);
    }
    return coalesced_group(mask, parent.thread_rank() / size, (parent.num_threads() + size - 1) / size);
}
CUPLATE_SHIM thread_group tiled_partition(const thread_group& parent, unsigned int size) {
    return thread_group(details::tile_kind, details::tile_mask(size), (unsigned)parent.thread_rank() / size,
                        ((unsigned)parent.num_threads() + size - 1) / size);
}

// Groups of the threads that bring the same label, in the order of their lowest ranks.
template <class Group, class Label>
CUPLATE_SHIM coalesced_group labeled_partition(const Group& group, Label label, CUPLATE_SITE) {
    unsigned mask = ::cuplate::cuplate_match(group.lane_mask(), ::cuplate::pack<Label>(label),
                                             ::cuplate::OP_MATCH_ANY, site);
    unsigned leads = ::cuplate::cuplate_ballot(group.lane_mask(), (unsigned)(__ffs((int)mask) - 1) == ::cuplate::lane(),
                                               ::cuplate::OP_BALLOT, site);
    unsigned leader = (unsigned)__ffs((int)mask) - 1;
    return coalesced_group(mask, (unsigned)__popc(::cuplate::bits_below(leads, leader)), (unsigned)__popc(leads));
}
template <class Group>
CUPLATE_SHIM coalesced_group binary_partition(const Group& group, bool predicate, CUPLATE_SITE) {
    unsigned yes = ::cuplate::cuplate_ballot(group.lane_mask(), predicate, ::cuplate::OP_BALLOT, site);
    unsigned no = ::cuplate::present() & ~yes;
    return coalesced_group(predicate ? yes : no, predicate ? 0u : 1u, 2u);
}

// Free functions -------------------------------------------------------------------------------------------------
template <class Group>
CUPLATE_SHIM void sync(const Group& group, CUPLATE_SITE) {
    group.sync(site);
}
template <class Group>
CUPLATE_SHIM auto thread_rank(const Group& group) -> decltype(group.thread_rank()) {
    return group.thread_rank();
}
template <class Group>
CUPLATE_SHIM auto group_size(const Group& group) -> decltype(group.size()) {
    return group.size();
}
CUPLATE_SHIM dim3 group_index(const thread_block& block) { return block.group_index(); }
CUPLATE_SHIM dim3 thread_index(const thread_block& block) { return block.thread_index(); }

}  // namespace cooperative_groups
#endif
