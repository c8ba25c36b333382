// The checker's run-time half: what every access of a checked kernel meets. regions.py lays out what is
// known of memory and reports.py tells what was found; checker.h says how the calls get here.
//
// Memory. A Region is a range of addresses the kernel may use: an array argument, a __shared__ variable
// (one ELF thread-local symbol), dynamic shared memory, a __device__ or __constant__ variable, or the
// runtime's own. An access outside every region stops the launch before memory is touched. Each place in
// the code remembers the region it met last, so that the common case is one compare.
//
// Time. One counter (`now`) rises at every event that can order threads: block, barrier, __syncwarp, fence.
// It never falls, not even between launches, so shadow memory is never cleared: what is older than the
// launch (for shared memory: than the block) has not happened. Checked launches run one block after another
// on one thread, so "time of the access is in this block" is one compare too.
//
// Races. A Cell of shadow memory per element keeps the last write, the last read, and an earlier read by a
// thread that is further away. Two accesses, one of them a write, by different threads race unless one of
// these orders them:
//   barrier     same block, and a __syncthreads lies between;
//   __syncwarp  same warp, and the two lanes have met since, directly or through others (a matrix of lanes
//               per warp);
//   fences      the earlier thread's access was followed by a fence, by itself or by a thread it met in
//               between; then by an atomic or volatile write; and the later thread (or one it met since)
//               read that element by an atomic or volatile access. Clocks are kept per element (`Location`)
//               as the time of the releasing fence, so a reader is taken to have seen every fence before
//               that one, also those released elsewhere: some races between threads that synchronise
//               through different elements are not seen, and no order is missed.
// Atomic and volatile accesses do not race with each other. What is a race by the letter and sound in
// practice is not reported: threads that store the value that is there already, and a plain first look
// before a compare-and-swap.
#define CUPLATE_RUNTIME 1
#include "runtime.h"

namespace cuplate {

typedef unsigned int u32;

#define CHK_INLINE static inline __attribute__((always_inline))
#define CHK_COLD static __attribute__((noinline, cold))
#define CHK_RARE(condition) __builtin_expect(!!(condition), 0)

enum : u32 {
    THREAD_BITS = 10,
    THREAD_MASK = (1u << THREAD_BITS) - 1,
    PLACE_BIT = 1u << 21,  // a site is an offset of code in the image, or, with this bit, an index of `places`
    MAX_PLACES = 4096,
    MAX_FIRST_LOOKS = 256,
    SITE_REGIONS = 4096,
    LOCATIONS = 1u << 16,
    SPINS = 16,
};

// Numbers that regions.py and reports.py share.
enum RegionFlag : u32 {
    REGION_SHARED = 1,     // lives as long as a block
    REGION_UNDEFINED = 2,  // elements are undefined until written
    REGION_READ_ONLY = 4,
    REGION_DYNAMIC = 8,    // low is an offset into dynamic shared memory
    REGION_THREAD = 16,    // low is an offset into this image's thread-local storage
    REGION_IMAGE = 32,     // low is an offset into this image
};

enum Kind : u32 {
    KIND_BOUNDS = 1,
    KIND_RACE = 2,
    KIND_UNINITIALISED = 3,
    KIND_MISALIGNED = 4,
    KIND_CONST = 5,
    KIND_INDEX = 6,   // of a declared array type
    KIND_DIVISION = 7,
    KIND_SHIFT = 8,
    KIND_UNWRITTEN = 9,
};

enum Access : u32 {
    ACCESS_READ = 0,
    ACCESS_WRITE = 1,
    ACCESS_ATOMIC = 2,          // bit: by an atomic operation
    ACCESS_VOLATILE = 4,        // bit: through a volatile lvalue
    ACCESS_SYNC = 8,            // bit: may be part of a protocol between threads, so races with no other such access
};

// When and by whom: word << 32 | time, where a word is site << 10 | thread in its block. One number, for it
// is always read and written whole.
typedef u64 Event;

// 24 bytes for each element of 1, 2, 4 or 8 bytes.
struct Cell {
    Event write, read, far;
};

struct Region {
    address_t low;
    u64 bytes;
    Cell* cells;      // null: only bounds
    u32 shift;        // log2 of the bytes that a cell stands for
    u32 flags;
    u32 since;        // what is older has not happened
    u32 defined_since;  // elements whose last write is older are undefined (0: never)
    u32 id;
    u32 plain;        // nothing to ask of an access but bounds and alignment
    u64 ends[5];      // offsets where accesses of 1, 2, 4, 8, 16 bytes may begin are below
};

struct PlaceOfReport {
    u64 pc;           // offset in the image, of the instruction after the access; 0: file and line say it
    const char* file;
    u32 line, column;
    u64 block;
    u32 thread;
    u32 access;
};

struct Report {
    u32 kind, bytes;
    u64 address;
    u64 offset;       // in the region
    u32 region;       // its id; ~0: none
    u32 first_look;   // 1 + index among sites whose plain reads may turn out to be first looks
    u64 count;
    PlaceOfReport here, other;
    char text[64];
};

struct BlockRecord {
    u32 begin;        // time
    u32 fenced;       // accesses of any of its threads that are older were fenced after a barrier
    u64 index;
};

struct CheckLaunch {
    Region* regions;
    u64 region_count;
    Report* reports;
    u64 report_capacity, report_count, dropped;
    BlockRecord* blocks;
    u64 block_capacity;
    u32* thread_fences;  // of each thread of the grid: its older accesses were fenced
    u64 thread_capacity;
    u64 anchor;       // offset of cuplate_tls_anchor in thread-local storage
    u64 data_low, data_high;  // offsets in the image of what can be written; the rest is tables of constants
    u32 full;         // 0: bounds, const and alignment only
    u32 now;          // in and out
};

// An instruction or a line that has no offset of code of its own, or whose accesses are of a special kind.
struct Place {
    u64 pc;
    const char* file;
    u32 line;
    u32 access;
};

struct SiteRegion {
    Region* region;
    u64 pc;
};

struct Location {
    address_t address;
    u32 fence_time;  // latest fence that was released through it
    u32 unused;
};

// A write that met another one: a race unless the value stays the same, which the next event will see.
struct PendingWrite {
    Report report;
    unsigned char before[16];
};

extern "C" {
CUPLATE_HIDDEN __thread unsigned cuplate_tls_anchor = 0;
extern CUPLATE_HIDDEN __attribute__((weak)) char __ehdr_start[];
extern CUPLATE_HIDDEN __attribute__((weak)) char _end[];
}

static struct Checker {
    CheckLaunch* launch;
    Worker* worker;
    u32 now, launch_begin, block_begin, barrier_time;
    u32 full;
    address_t image, image_end;
    Region* regions;
    u32 region_count;
    u64 ordinal;             // of the block among those that ran
    u32 acquired_block;      // fences that every thread of the block has seen, as of the last barrier
    u32 acquired_pending;    // the latest that one of them has seen
    u32 fence_at_barrier;    // last fence in this block before the last barrier
    u32 last_fence;          // last fence in this block
    u32 locations_used, fence_overflow;
    u32 place_count;
    u32 first_look_count;
    bool pending;
    address_t spin_address;  // what the current thread looked at last by an atomic or volatile access
    u64 spin_value;
    u32 spin_thread, spin_count;
    SiteRegion by_site[SITE_REGIONS];
    u32 warp_time[MAX_WARPS];            // when all lanes met last
    u32 pair_time[MAX_WARPS][WARP][WARP];  // when a lane met another, directly or not, as the first knows
    u32 acquired[MAX_THREADS];
    u32 own_fence[MAX_THREADS];
    u32 first_look[MAX_FIRST_LOOKS];     // sites of plain reads that a compare-and-swap followed
    Place places[MAX_PLACES];
    unsigned short place_hash[2 * MAX_PLACES];
    Location locations[LOCATIONS];
    PendingWrite pending_write;
} S;

CHK_INLINE u32 later(u32 a, u32 b) {
    return a > b ? a : b;
}

CHK_INLINE u32 time_of(Event e) {
    return (u32)e;
}

CHK_INLINE u32 word_of(Event e) {
    return (u32)(e >> 32);
}

CHK_INLINE Event event(u32 word, u32 time) {
    return (u64)word << 32 | time;
}

CHK_INLINE void tick() {
    // At the end of the counter everything becomes one moment: nothing more is found, nothing is invented.
    if (S.now != 0xffffffffu) ++S.now;
}

// -------------------------------------------------------------------------------------------------- places

CHK_INLINE u32 site_of_pc(u64 pc) {
    return (u32)(pc - S.image);
}

CHK_COLD u32 place(u64 pc, const char* file, u32 line, u32 access) {
    u64 key = (pc * 31 + (address_t)file) * 31 + line * 8 + access;
    u32 slot = (u32)((key * 0x9e3779b97f4a7c15ull) >> 40) & (2 * MAX_PLACES - 1);
    for (;; slot = (slot + 1) & (2 * MAX_PLACES - 1)) {
        u32 index = S.place_hash[slot];
        if (index == 0) break;
        const Place& known = S.places[index];
        if (known.pc == pc && known.file == file && known.line == line && known.access == access) {
            return PLACE_BIT | index;
        }
    }
    if (S.place_count + 1 >= MAX_PLACES) return PLACE_BIT;  // place 0: unknown
    u32 index = ++S.place_count;
    S.places[index] = Place{pc, file, line, access};
    S.place_hash[slot] = (unsigned short)index;
    return PLACE_BIT | index;
}

CHK_INLINE u32 access_of_site(u32 site, u32 base) {
    return site & PLACE_BIT ? S.places[site & (PLACE_BIT - 1)].access : base;
}

CHK_COLD void describe(PlaceOfReport* out, u32 site, u32 access, u32 thread, u64 block) {
    out->file = nullptr;
    out->line = out->column = 0;
    if (site & PLACE_BIT) {
        const Place& known = S.places[site & (PLACE_BIT - 1)];
        out->pc = known.pc;
        out->file = known.file;
        out->line = known.line;
    } else {
        out->pc = site;
    }
    out->access = access;
    out->thread = thread;
    out->block = block;
}

// ------------------------------------------------------------------------------------------------- reports

CHK_INLINE bool same_place(const PlaceOfReport& a, const PlaceOfReport& b) {
    return a.pc == b.pc && a.line == b.line && a.file == b.file && a.column == b.column;
}

CHK_COLD void keep(const Report& found) {
    CheckLaunch* launch = S.launch;
    for (u64 i = 0; i < launch->report_count; ++i) {
        Report& known = launch->reports[i];
        if (known.kind == found.kind && known.region == found.region && same_place(known.here, found.here) &&
            same_place(known.other, found.other)) {
            ++known.count;
            return;
        }
    }
    if (launch->report_count == launch->report_capacity) {
        ++launch->dropped;
        return;
    }
    Report& kept = launch->reports[launch->report_count++];
    kept = found;
    kept.count = 1;
}

CHK_COLD void empty(Report* report) {
    unsigned char* bytes = (unsigned char*)report;
    for (unsigned i = 0; i < sizeof(Report); ++i) bytes[i] = 0;
    report->region = ~0u;
}

__attribute__((noreturn)) CHK_COLD void stop() {
    cuplate_fail(REASON_REPORT, "", Site{"", 0});
}

CHK_COLD Report fault(u32 kind, Region* region, address_t address, u64 bytes, u32 access, u32 site) {
    Report report;
    empty(&report);
    report.kind = kind;
    report.bytes = (u32)bytes;
    report.address = address;
    if (region) {
        report.region = region->id;
        report.offset = address - region->low;
    }
    describe(&report.here, site, access, S.worker->current, S.worker->block_index);
    return report;
}

CHK_COLD void settle() {
    // The write that met another one has been made since: is it a different value?
    S.pending = false;
    PendingWrite& p = S.pending_write;
    const unsigned char* memory = (const unsigned char*)p.report.address;
    for (u32 i = 0; i < p.report.bytes; ++i) {
        if (memory[i] != p.before[i]) {
            keep(p.report);
            return;
        }
    }
}

// ------------------------------------------------------------------------------------------------- regions

CHK_INLINE bool inside(const Region* region, address_t address, u64 bytes) {
    u64 offset = address - region->low;
    return offset < region->bytes && bytes <= region->bytes - offset;
}

// Greatest region that starts at or below the address, or null.
static Region* below(address_t address) {
    u32 low = 0;
    u32 high = S.region_count;
    while (low < high) {
        u32 middle = (low + high) / 2;
        if (S.regions[middle].low <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low ? &S.regions[low - 1] : nullptr;
}

static bool of_kernel(const Region* region) {
    return region->id != ~0u;
}

// The region that an access outside of every one most likely meant.
CHK_COLD Region* nearest(address_t address, u64 pc) {
    SiteRegion& before = S.by_site[pc & (SITE_REGIONS - 1)];
    if (before.pc == pc && before.region && of_kernel(before.region)) return before.region;
    Region* best = nullptr;
    u64 best_distance = ~0ull;
    for (u32 i = 0; i < S.region_count; ++i) {
        Region* r = &S.regions[i];
        if (!of_kernel(r)) continue;
        u64 distance = address < r->low ? r->low - address : address - r->low - r->bytes;
        if (address >= r->low && address < r->low + r->bytes) distance = 0;
        if (distance < best_distance) {
            best_distance = distance;
            best = r;
        }
    }
    return best;
}

// The region of an access that its place has not met before; null: none is needed. Stops the launch if it
// is outside.
CHK_COLD Region* look_up(address_t address, u64 bytes, u32 access, u64 pc, u32 site) {
    Region* r = below(address);
    if (r && inside(r, address, bytes)) {
        S.by_site[pc & (SITE_REGIONS - 1)] = SiteRegion{r, pc};
        return r;
    }
    bool in_region = r && address - r->low < r->bytes;
    bool in_image = address >= S.image && address + bytes <= S.image_end;
    bool writable = address + bytes > S.image + S.launch->data_low && address < S.image + S.launch->data_high;
    if (!in_region && in_image && !writable) return nullptr;  // a table of constants
    Region* meant = in_region ? r : nearest(address, pc);
    keep(fault(KIND_BOUNDS, meant, address, bytes, access, site));
    stop();
}

// Small accesses to elements that were taken for larger ones: from now on a cell stands for fewer bytes.
// The cells are spread from the end, in the memory that regions.py reserved for one per byte.
CHK_COLD void refine(Region* r, u32 shift) {
    u32 times = r->shift - shift;
    u64 count = (r->bytes + ((1u << r->shift) - 1)) >> r->shift;
    for (u64 i = count; i-- > 0;) {
        Cell cell = r->cells[i];
        for (u64 k = 0; k < (1ull << times); ++k) r->cells[(i << times) + k] = cell;
    }
    r->shift = shift;
}

// --------------------------------------------------------------------------------------------------- order

// The block that ran at a time before this block; null: too many blocks to know.
static BlockRecord* block_at(u32 time, u64* ordinal) {
    CheckLaunch* launch = S.launch;
    u64 high = S.ordinal < launch->block_capacity ? S.ordinal : launch->block_capacity;
    u64 low = 0;
    while (low < high) {
        u64 middle = (low + high) / 2;
        if (launch->blocks[middle].begin <= time) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low == 0) return nullptr;
    *ordinal = low - 1;
    return &launch->blocks[low - 1];
}

CHK_INLINE u32* thread_fence(u64 ordinal, u32 thread) {
    u64 index = ordinal * S.worker->threads + thread;
    return index < S.launch->thread_capacity ? &S.launch->thread_fences[index] : nullptr;
}

// Does an access by `thread` at `time`, in this block or an earlier one, come before what the current
// thread does now?
CHK_COLD bool ordered(u32 time, u32 thread) {
    u32 me = S.worker->current;
    u32 acquired = later(S.acquired[me], S.acquired_block);
    if (time >= S.block_begin) {
        if (thread == me || time < S.barrier_time) return true;
        u32 warp = me / WARP;
        if (thread / WARP == warp) {
            if (time < S.warp_time[warp] || time < S.pair_time[warp][me % WARP][thread % WARP]) return true;
        }
        if (time >= acquired) return false;
        BlockRecord* own = S.ordinal < S.launch->block_capacity ? &S.launch->blocks[S.ordinal] : nullptr;
        u32* fence = thread_fence(S.ordinal, thread);
        return !own || !fence || time < own->fenced || time < *fence;
    }
    if (time >= acquired) {
        return false;
    }
    u64 ordinal = 0;
    BlockRecord* block = block_at(time, &ordinal);
    if (!block || time < block->fenced) return true;
    u32* fence = thread_fence(ordinal, thread);
    return !fence || time < *fence;
}

// Could an access at `time` with `word` be unordered with one of the current thread now? Cheap, and no for
// most.
CHK_INLINE bool suspicious(u32 time, u32 word, u32 mine, u32 since) {
    if (time >= S.barrier_time) return ((word ^ mine) & THREAD_MASK) != 0;
    return time < S.block_begin && time >= since;
}

struct Meeting {
    Region* region;
    address_t address;  // of the element
    u32 bytes;
    u32 access;         // of the current thread
    u32 site;
    const Cell* cell;   // null where none is at hand
};

// Was an atomic or volatile write at `time` followed by such a read of the same element, and that by the
// current thread or one before it? Then the element itself orders the two: coherence asks for no fence.
CHK_COLD bool seen_by(Event read, u32 time) {
    if (time_of(read) < time || !(access_of_site(word_of(read) >> THREAD_BITS, ACCESS_READ) & ACCESS_SYNC)) return false;
    return ordered(time_of(read), word_of(read) & THREAD_MASK);
}

CHK_COLD void race(const Meeting& m, u32 time, u32 word, u32 other_base) {
    u32 other_site = word >> THREAD_BITS;
    u32 other = access_of_site(other_site, other_base);
    if ((m.access & ACCESS_SYNC) && (other & ACCESS_SYNC)) return;
    if (ordered(time, word & THREAD_MASK)) return;
    bool sync_write = (other & ACCESS_SYNC) && (other & ACCESS_WRITE);
    if (sync_write && m.cell && (seen_by(m.cell->read, time) || seen_by(m.cell->far, time))) return;
    if (S.pending) settle();
    Report report = fault(KIND_RACE, m.region, m.address, m.bytes, m.access, m.site);
    u64 ordinal = 0;
    u64 block = S.worker->block_index;
    if (time < S.block_begin) {
        BlockRecord* record = block_at(time, &ordinal);
        block = record ? record->index : ~0ull;
    }
    describe(&report.other, other_site, other, word & THREAD_MASK, block);
    bool mine_atomic = m.access & ACCESS_ATOMIC;
    bool other_atomic = other & ACCESS_ATOMIC;
    // A plain read against an atomic: sound if a compare-and-swap follows the read, which is known at the
    // end.
    if (mine_atomic && !(other & (ACCESS_WRITE | ACCESS_SYNC))) report.first_look = 1 + other_site;
    if (other_atomic && !(m.access & (ACCESS_WRITE | ACCESS_SYNC))) report.first_look = 1 + m.site;
    bool both_write = (m.access & ACCESS_WRITE) && (other & ACCESS_WRITE);
    if (both_write && !mine_atomic && !other_atomic && m.bytes <= sizeof(S.pending_write.before)) {
        S.pending = true;
        S.pending_write.report = report;
        const unsigned char* memory = (const unsigned char*)m.address;
        for (u32 i = 0; i < m.bytes; ++i) S.pending_write.before[i] = memory[i];
        return;
    }
    keep(report);
}

CHK_COLD void undefined(const Meeting& m) {
    keep(fault(KIND_UNINITIALISED, m.region, m.address, m.bytes, m.access & ~(u32)ACCESS_WRITE, m.site));
}

// --------------------------------------------------------------------------------------------------- cells

CHK_INLINE void note_read(Cell* c, u32 word) {
    Event before = c->read;
    if (word_of(before) != word || time_of(before) < S.block_begin) {
        // Another thread's read: keep the former one too if it is far away, or nothing better is known.
        u32 difference = (word_of(before) ^ word) & THREAD_MASK;
        bool other_block = time_of(before) < S.block_begin;
        if (difference >= WARP || other_block || (difference && time_of(c->far) < S.barrier_time)) {
            c->far = before;
        }
    }
    c->read = event(word, S.now);
}

CHK_INLINE void read_cell(Cell* c, Region* r, address_t address, u32 bytes, u32 access, u32 site, bool* defined) {
    u32 word = site << THREAD_BITS | S.worker->current;
    u32 written = time_of(c->write);
    if (written >= r->since) {
        if (CHK_RARE(suspicious(written, word_of(c->write), word, r->since))) {
            race(Meeting{r, address, bytes, access, site, c}, written, word_of(c->write), ACCESS_WRITE);
        }
    }
    *defined = written >= r->defined_since;
    note_read(c, word);
}

CHK_INLINE void write_cell(Cell* c, Region* r, address_t address, u32 bytes, u32 access, u32 site) {
    u32 word = site << THREAD_BITS | S.worker->current;
    u32 since = r->since;
    if (time_of(c->write) >= since && CHK_RARE(suspicious(time_of(c->write), word_of(c->write), word, since))) {
        race(Meeting{r, address, bytes, access, site, c}, time_of(c->write), word_of(c->write), ACCESS_WRITE);
    }
    if (time_of(c->read) >= since && CHK_RARE(suspicious(time_of(c->read), word_of(c->read), word, since))) {
        race(Meeting{r, address, bytes, access, site, c}, time_of(c->read), word_of(c->read), ACCESS_READ);
    }
    if (time_of(c->far) >= since && CHK_RARE(suspicious(time_of(c->far), word_of(c->far), word, since))) {
        race(Meeting{r, address, bytes, access, site, c}, time_of(c->far), word_of(c->far), ACCESS_READ);
    }
    if ((access & ACCESS_SYNC) && time_of(c->write) >= S.barrier_time && !((word_of(c->write) ^ word) & THREAD_MASK) &&
        !(access_of_site(word_of(c->write) >> THREAD_BITS, ACCESS_WRITE) & ACCESS_SYNC)) {
        return;  // its own plain write, just before: others' atomics race with that
    }
    c->write = event(word, S.now);
}

// An access of any size to any cells of one region.
CHK_COLD void cells(Region* r, address_t address, u64 bytes, u32 access, u32 site) {
    u64 offset = address - r->low;
    u64 unit = (offset | bytes) & (0 - (offset | bytes));  // largest power of two that divides both
    if (unit < (1ull << r->shift)) refine(r, (u32)__builtin_ctzll(unit));
    u32 shift = r->shift;
    u64 first = offset >> shift;
    u64 last = (offset + bytes - 1) >> shift;
    bool reads = !(access & ACCESS_WRITE) || (access & ACCESS_ATOMIC);
    bool first_word_defined = false;
    bool any_defined = false;
    bool word_undefined = false;
    bool this_word = false;
    u64 word_index = ~0ull;
    for (u64 i = first; i <= last; ++i) {
        address_t element = r->low + (i << shift);
        bool defined = true;
        if (access & ACCESS_WRITE) {
            defined = time_of(r->cells[i].write) >= r->defined_since;
            write_cell(&r->cells[i], r, element, 1u << shift, access, site);
        } else {
            read_cell(&r->cells[i], r, element, 1u << shift, access, site, &defined);
        }
        any_defined |= defined;
        // Bytes of one 4-byte word count together: the padding of a struct is never written.
        u64 word = (i << shift) >> 2;
        if (word != word_index) {
            if (word_index != ~0ull && !this_word) word_undefined = true;
            word_index = word;
            this_word = false;
        }
        this_word |= defined;
        if (((i - first) << shift) < 4) first_word_defined |= defined;
    }
    if (!this_word) word_undefined = true;
    if (!reads) return;
    // In a copy of a larger struct a whole word may be padding, but never the first one.
    bool bad = bytes <= 8 ? word_undefined : !first_word_defined || !any_defined;
    if (bad) undefined(Meeting{r, address, (u32)bytes, access, site, nullptr});
}

// ------------------------------------------------------------------------------------------------ accesses

template <u32 N>
struct log2 {
    enum : u32 { value = 1 + log2<N / 2>::value };
};
template <>
struct log2<1> {
    enum : u32 { value = 0 };
};

CHK_COLD void refuse(u32 kind, Region* r, address_t address, u64 bytes, u32 access, u32 site) {
    keep(fault(kind, r, address, bytes, access, site));
    stop();
}

// Everything about a plain access of N bytes.
template <u32 N, bool WRITES, bool ALIGNED>
static __attribute__((noinline)) void whole(address_t address, u64 pc) {
    Region* r = S.by_site[pc & (SITE_REGIONS - 1)].region;
    if (!inside(r, address, N)) {
        if (!S.launch) return;
        r = look_up(address, N, WRITES, pc, site_of_pc(pc));
        if (!r) return;
    }
    if (!of_kernel(r)) return;
    if (ALIGNED && (address & (N - 1))) refuse(KIND_MISALIGNED, r, address, N, WRITES, site_of_pc(pc));
    if (WRITES && (r->flags & REGION_READ_ONLY)) refuse(KIND_CONST, r, address, N, WRITES, site_of_pc(pc));
    if (r->cells) cells(r, address, N, WRITES ? ACCESS_WRITE : ACCESS_READ, site_of_pc(pc));
}

// The common case of it, with few registers: the place's region again, one cell, and nothing that could be
// a race.
template <u32 N, bool WRITES, bool ALIGNED>
CHK_INLINE void plain(const void* pointer, const void* return_address) {
    enum : u32 { SHIFT = log2<N>::value };
    address_t address = (address_t)pointer;
    u64 pc = (u64)return_address;
    const Region* r = S.by_site[pc & (SITE_REGIONS - 1)].region;
    u64 offset = address - r->low;
    if (CHK_RARE(offset >= r->ends[SHIFT])) return whole<N, WRITES, ALIGNED>(address, pc);
    if (r->plain) {
        // Without cells: the runtime's own memory, or an array that is only read.
        bool ask = (WRITES && (r->flags & REGION_READ_ONLY)) || (ALIGNED && (address & (N - 1)));
        if (CHK_RARE(ask)) whole<N, WRITES, ALIGNED>(address, pc);
        return;
    }
    if (CHK_RARE(!ALIGNED || (address & (N - 1)) || r->shift != SHIFT)) return whole<N, WRITES, ALIGNED>(address, pc);
    Cell* c = &r->cells[offset >> SHIFT];
    u32 word = site_of_pc(pc) << THREAD_BITS | S.worker->current;
    u32 since = r->since;
    u32 written = time_of(c->write);
    bool unusual = written >= since && suspicious(written, word_of(c->write), word, since);
    if (WRITES) {
        unusual |= time_of(c->read) >= since && suspicious(time_of(c->read), word_of(c->read), word, since);
        unusual |= time_of(c->far) >= since && suspicious(time_of(c->far), word_of(c->far), word, since);
        if (CHK_RARE(unusual || (r->flags & REGION_READ_ONLY))) return whole<N, WRITES, ALIGNED>(address, pc);
        c->write = event(word, S.now);
    } else {
        if (CHK_RARE(unusual || written < r->defined_since)) return whole<N, WRITES, ALIGNED>(address, pc);
        note_read(c, word);
    }
}

// Any access that is not a plain one of 1, 2, 4, 8 or 16 bytes. alignment 1: none is asked.
CHK_COLD void general(address_t address, u64 bytes, u32 access, u32 alignment, u64 pc, u32 site) {
    if (!S.launch || bytes == 0) return;
    Region* r = S.by_site[pc & (SITE_REGIONS - 1)].region;
    if (!inside(r, address, bytes)) {
        r = look_up(address, bytes, access, pc, site);
        if (!r) return;
    }
    if (!of_kernel(r)) return;
    if (address & (alignment - 1)) refuse(KIND_MISALIGNED, r, address, bytes, access, site);
    if ((access & ACCESS_WRITE) && (r->flags & REGION_READ_ONLY)) refuse(KIND_CONST, r, address, bytes, access, site);
    if (r->cells) cells(r, address, bytes, access, site);
}

// ----------------------------------------------------------------------------------------- synchronisation

static Location* location(address_t address) {
    u32 slot = (u32)(((u64)address * 0x9e3779b97f4a7c15ull) >> 48) & (LOCATIONS - 1);
    for (;; slot = (slot + 1) & (LOCATIONS - 1)) {
        Location& found = S.locations[slot];
        if (found.fence_time < S.launch_begin || found.address == address) return &found;
    }
}

// A thread that looks at one element again and again, and finds the same, waits for another: let that one
// run. Before the look, so that nothing comes between it and what is noted of it, and by counting, so that
// every run is the same.
static void let_others_run(address_t address, u32 bytes) {
    u64 value = 0;
    const volatile unsigned char* memory = (const volatile unsigned char*)address;
    for (u32 i = 0; i < bytes && i < sizeof value; ++i) value |= (u64)memory[i] << (8 * i);
    u32 me = S.worker->current;
    if (S.spin_address != address || S.spin_thread != me || S.spin_value != value) {
        S.spin_address = address;
        S.spin_thread = me;
        S.spin_value = value;
        S.spin_count = 0;
        return;
    }
    if (++S.spin_count < SPINS) return;
    S.spin_count = 0;
    cuplate_yield();
}

// The current thread reads an element that other threads may have released something through.
static void acquire(address_t address) {
    const Location* found = location(address);
    u32 fence = found->fence_time >= S.launch_begin ? found->fence_time : S.fence_overflow;
    u32 me = S.worker->current;
    S.acquired[me] = later(S.acquired[me], fence);
    S.acquired_pending = later(S.acquired_pending, fence);
}

// The current thread writes one: what it fenced before is released.
static void release(address_t address) {
    u32 fence = later(S.own_fence[S.worker->current], S.fence_at_barrier);
    if (fence < S.block_begin) return;
    Location* found = location(address);
    bool known = found->fence_time >= S.launch_begin;
    if (!known && S.locations_used > LOCATIONS / 2) {
        S.fence_overflow = later(S.fence_overflow, fence);
        return;
    }
    if (!known) {
        ++S.locations_used;
        *found = Location{address, fence, 0};
    }
    found->fence_time = later(found->fence_time, fence);
}

CHK_COLD void first_look(Region* r, address_t address) {
    // The current thread's own plain read, just before: races of its line with atomics are none.
    if (!r || !r->cells || !inside(r, address, 1)) return;
    const Cell& c = r->cells[(address - r->low) >> r->shift];
    u32 site = word_of(c.read) >> THREAD_BITS;
    if (time_of(c.read) < S.block_begin || (word_of(c.read) & THREAD_MASK) != S.worker->current) return;
    if (access_of_site(site, ACCESS_READ) & ACCESS_SYNC) return;
    for (u32 i = 0; i < S.first_look_count; ++i) {
        if (S.first_look[i] == site) return;
    }
    if (S.first_look_count < MAX_FIRST_LOOKS) S.first_look[S.first_look_count++] = site;
}

// A volatile write is data, not a flag, if its thread has read the element too since it last met others or
// fenced, and the element is not zero: the warp reductions of before 2017, x[i] += x[i + 16] without
// __syncwarp.
static bool is_data(Region* r, address_t address, u32 bytes) {
    if (!(r->flags & REGION_SHARED) || !r->cells) return false;
    u32 me = S.worker->current;
    u32 met = later(later(S.barrier_time, S.warp_time[me / WARP]), S.own_fence[me]);
    met = later(met, S.pair_time[me / WARP][me % WARP][me % WARP]);
    const Cell& c = r->cells[(address - r->low) >> r->shift];
    if (time_of(c.read) < met || (word_of(c.read) & THREAD_MASK) != me) return false;
    const volatile unsigned char* memory = (const volatile unsigned char*)address;
    for (u32 i = 0; i < bytes; ++i) {
        if (memory[i]) return true;
    }
    return false;
}

CHK_COLD void volatile_access(const void* pointer, u32 bytes, bool writes, const void* return_address) {
    if (!S.launch) return;
    address_t address = (address_t)pointer;
    u64 pc = (u64)return_address;
    Region* r = below(address);
    bool known = r && inside(r, address, bytes);
    if (known && !of_kernel(r)) return;
    u32 access = (writes ? ACCESS_WRITE : ACCESS_READ) | ACCESS_VOLATILE | ACCESS_SYNC;
    if (S.full && known && writes && is_data(r, address, bytes)) access &= ~(u32)ACCESS_SYNC;
    u32 site = place(pc - S.image, nullptr, 0, access);
    if (S.full && known && !writes) {
        let_others_run(address, bytes);
        acquire(address);
    }
    general(address, bytes, access, bytes, pc, site);
    if (S.full && writes && (access & ACCESS_SYNC)) release(address);
}

// ---------------------------------------------------------------------------------------- launch and block

static void add_region(Region* list, u32* count, const Region& region) {
    u32 i = (*count)++;
    for (; i > 0 && list[i - 1].low > region.low; --i) list[i] = list[i - 1];
    list[i] = region;
}

static void measure(Region* r) {
    r->plain = !r->cells;
    for (u32 i = 0; i < 5; ++i) r->ends[i] = r->bytes >> i ? r->bytes - (1ull << i) + 1 : 0;
}

static void own_region(Region* list, u32* count, const void* low, u64 bytes) {
    if (!low || !bytes) return;
    Region region;
    region.low = (address_t)low;
    region.bytes = bytes;
    region.cells = nullptr;
    region.shift = region.flags = region.since = region.defined_since = 0;
    region.id = ~0u;
    measure(&region);
    add_region(list, count, region);
}

static Region nowhere;

extern "C" {

// Called by regions.py before run(), with null after it.
CUPLATE_EXPORT void cuplate_check(CheckLaunch* launch) {
    S.launch = launch;
}

void chk_launch_begin(Worker* w) {
    S.worker = w;
    CheckLaunch* launch = S.launch;
    for (u32 i = 0; i < SITE_REGIONS; ++i) S.by_site[i] = SiteRegion{&nowhere, 0};
    if (!launch) return;
    S.image = (address_t)__ehdr_start;
    S.image_end = (address_t)_end;
    S.full = launch->full;
    S.now = launch->now;
    tick();
    S.launch_begin = S.block_begin = S.barrier_time = S.now;
    S.ordinal = ~0ull;
    S.locations_used = S.fence_overflow = 0;
    S.place_count = S.first_look_count = 0;
    S.pending = false;
    for (u32 i = 0; i < 2 * MAX_PLACES; ++i) S.place_hash[i] = 0;
    S.places[0] = Place{0, nullptr, 0, ACCESS_SYNC};
    // The list has room for the runtime's own ranges behind those that Python knows. Sorted here, where
    // thread-local and dynamic memory have addresses.
    S.regions = launch->regions;
    S.region_count = 0;
    char* thread_storage = (char*)&cuplate_tls_anchor - launch->anchor;
    for (u64 i = 0; i < launch->region_count; ++i) {
        Region region = launch->regions[i];
        if (region.flags & REGION_THREAD) region.low += (address_t)thread_storage;
        if (region.flags & REGION_IMAGE) region.low += S.image;
        if (region.flags & REGION_DYNAMIC) region.low += (address_t)w->dynamic;
        region.since = S.launch_begin;
        region.defined_since = region.flags & REGION_UNDEFINED ? S.launch_begin : 0;
        if (!S.full) region.cells = nullptr;
        measure(&region);
        add_region(S.regions, &S.region_count, region);
    }
    own_region(S.regions, &S.region_count, w, sizeof(Worker));
    own_region(S.regions, &S.region_count, w->stacks, (u64)MAX_THREADS * w->stack_stride);
    own_region(S.regions, &S.region_count, w->launch, sizeof(Launch));
}

void chk_block_begin(Worker* w) {
    CheckLaunch* launch = S.launch;
    if (!launch || !S.full) return;
    if (S.pending) settle();
    tick();
    ++S.ordinal;
    S.block_begin = S.barrier_time = S.now;
    S.acquired_block = S.acquired_pending = 0;
    S.fence_at_barrier = S.last_fence = 0;
    if (S.ordinal < launch->block_capacity) {
        launch->blocks[S.ordinal] = BlockRecord{S.now, 0, w->block_index};
    }
    for (u32 i = 0; i < w->threads; ++i) S.acquired[i] = 0;
    for (u32 i = 0; i < S.region_count; ++i) {
        Region& r = S.regions[i];
        if (r.flags & REGION_SHARED) r.since = r.defined_since = S.now;
    }
}

// What the launch leaves undefined, and reports that turned out to be none.
static void unwritten(Region& r) {
    u64 count = (r.bytes + ((1u << r.shift) - 1)) >> r.shift;
    u64 missing = 0;
    u64 first = 0;
    for (u64 i = 0; i < count; ++i) {
        if (time_of(r.cells[i].write) >= S.launch_begin) continue;
        if (missing++ == 0) first = i;
    }
    if (!missing) return;
    Report report;
    empty(&report);
    report.kind = KIND_UNWRITTEN;
    report.region = r.id;
    report.offset = first << r.shift;
    report.address = r.low + report.offset;
    report.bytes = 1u << r.shift;
    keep(report);
    CheckLaunch* launch = S.launch;
    for (u64 i = 0; i < launch->report_count; ++i) {
        Report& known = launch->reports[i];
        if (known.kind == KIND_UNWRITTEN && known.region == r.id) known.count = missing;
    }
}

void chk_launch_end(Worker* w) {
    CheckLaunch* launch = S.launch;
    S.launch = nullptr;
    if (!launch || !S.full) return;
    S.launch = launch;
    if (S.pending) settle();
    u64 kept = 0;
    for (u64 i = 0; i < launch->report_count; ++i) {
        u32 look = launch->reports[i].first_look;
        bool sound = false;
        for (u32 k = 0; look && k < S.first_look_count; ++k) sound |= S.first_look[k] == look - 1;
        if (!sound) launch->reports[kept++] = launch->reports[i];
    }
    launch->report_count = kept;
    // A launch that stopped early says nothing about elements it did not get to.
    if (w->launch->stop == REASON_NONE) {
        for (u32 i = 0; i < S.region_count; ++i) {
            Region& r = S.regions[i];
            if ((r.flags & REGION_UNDEFINED) && !(r.flags & REGION_SHARED) && r.cells) unwritten(r);
        }
    }
    launch->now = S.now;
    S.launch = nullptr;
}

// --------------------------------------------------------------------------------------------- what orders

void chk_barrier(Worker* w) {
    (void)w;
    if (!S.launch || !S.full) return;
    if (S.pending) settle();
    tick();
    S.barrier_time = S.now;
    S.acquired_block = S.acquired_pending;
    S.fence_at_barrier = S.last_fence;
}

void chk_warp(Worker* w, unsigned warp, unsigned mask) {
    if (!S.launch || !S.full) return;
    if (S.pending) settle();
    tick();
    u32 first = warp * WARP;
    u32 lanes = w->threads - first < WARP ? (1u << (w->threads - first)) - 1 : ~0u;
    u32 acquired = 0;
    for (u32 m = mask; m; m &= m - 1) acquired = later(acquired, S.acquired[first + (u32)__builtin_ctz(m)]);
    for (u32 m = mask; m; m &= m - 1) S.acquired[first + (u32)__builtin_ctz(m)] = acquired;
    if ((mask & lanes) == lanes) {
        S.warp_time[warp] = S.now;
        return;
    }
    u32 joined[WARP];
    for (u32 k = 0; k < WARP; ++k) joined[k] = 0;
    for (u32 m = mask; m; m &= m - 1) {
        const u32* row = S.pair_time[warp][__builtin_ctz(m)];
        for (u32 k = 0; k < WARP; ++k) joined[k] = later(joined[k], row[k]);
    }
    for (u32 m = mask; m; m &= m - 1) joined[__builtin_ctz(m)] = S.now;
    for (u32 m = mask; m; m &= m - 1) {
        u32* row = S.pair_time[warp][__builtin_ctz(m)];
        for (u32 k = 0; k < WARP; ++k) row[k] = joined[k];
    }
}

void chk_fence(Worker* w, int scope) {
    (void)scope;  // a fence of the block counts as one of the device: what it misses is documented
    if (!S.launch || !S.full) return;
    if (S.pending) settle();
    tick();
    u32 me = w->current;
    u32 warp = me / WARP;
    S.own_fence[me] = S.last_fence = S.now;
    // Its own older accesses are fenced, and what it knows of: those of lanes it has met, of the block
    // before a barrier.
    for (u32 lane = 0; lane < WARP && warp * WARP + lane < w->threads; ++lane) {
        u32 thread = warp * WARP + lane;
        u32* fence = thread_fence(S.ordinal, thread);
        u32 met = later(S.warp_time[warp], S.pair_time[warp][me % WARP][lane]);
        u32 until = thread == me ? S.now : met;
        if (fence && until >= S.block_begin) *fence = later(*fence, until);
    }
    if (S.ordinal < S.launch->block_capacity) {
        BlockRecord& record = S.launch->blocks[S.ordinal];
        record.fenced = later(record.fenced, S.barrier_time);
    }
}

void chk_atomic(const volatile void* pointer, unsigned bytes, int kind, const char* file, int line) {
    if (!S.launch) return;
    if (S.pending) settle();
    address_t address = (address_t)pointer;
    u32 access = ACCESS_ATOMIC | ACCESS_SYNC | (kind == ATOMIC_LOAD ? ACCESS_READ : ACCESS_WRITE);
    u32 site = place(0, file, (u32)line, access);
    if (S.full) {
        Region* r = below(address);
        if (r && inside(r, address, bytes)) let_others_run(address, bytes);
        if (kind == ATOMIC_COMPARE) first_look(below(address), address);
        if (kind != ATOMIC_STORE) acquire(address);
    }
    general(address, bytes, kind == ATOMIC_STORE ? access & ~(u32)ACCESS_ATOMIC : access, bytes, (address_t)file + line,
            site);
    if (S.full && kind != ATOMIC_LOAD) release(address);
}

void chk_read(const volatile void* address, unsigned long bytes, const char* file, int line) {
    if (S.launch) general((address_t)address, bytes, ACCESS_READ, 1, (address_t)file + line, place(0, file, line, 0));
}

void chk_write(const volatile void* address, unsigned long bytes, const char* file, int line) {
    chk_aligned(address, 1, bytes, 1, file, line);
}

void chk_aligned(const volatile void* address, unsigned alignment, unsigned long bytes, int writes, const char* file,
                 int line) {
    if (!S.launch) return;
    u32 access = writes ? ACCESS_WRITE : ACCESS_READ;
    general((address_t)address, bytes, access, alignment, (address_t)file + line, place(0, file, (u32)line, access));
}

// ------------------------------------------------------------------------------------ call-backs: accesses

#define CHK_PLAIN(N)                                                                            \
    CUPLATE_HIDDEN void __tsan_read##N(void* p) {                                               \
        plain<N, false, true>(p, __builtin_return_address(0));                                  \
    }                                                                                           \
    CUPLATE_HIDDEN void __tsan_write##N(void* p) {                                              \
        plain<N, true, true>(p, __builtin_return_address(0));                                   \
    }                                                                                           \
    CUPLATE_HIDDEN void __tsan_unaligned_read##N(void* p) {                                     \
        plain<N, false, false>(p, __builtin_return_address(0));                                 \
    }                                                                                           \
    CUPLATE_HIDDEN void __tsan_unaligned_write##N(void* p) {                                    \
        plain<N, true, false>(p, __builtin_return_address(0));                                  \
    }                                                                                           \
    CUPLATE_HIDDEN void __tsan_read_write##N(void* p) {                                         \
        plain<N, false, true>(p, __builtin_return_address(0));                                  \
        plain<N, true, true>(p, __builtin_return_address(0));                                   \
    }                                                                                           \
    CUPLATE_HIDDEN void __tsan_unaligned_read_write##N(void* p) {                               \
        plain<N, false, false>(p, __builtin_return_address(0));                                 \
        plain<N, true, false>(p, __builtin_return_address(0));                                  \
    }                                                                                           \
    CUPLATE_HIDDEN void __tsan_volatile_read##N(void* p) {                                      \
        volatile_access(p, N, false, __builtin_return_address(0));                              \
    }                                                                                           \
    CUPLATE_HIDDEN void __tsan_volatile_write##N(void* p) {                                     \
        volatile_access(p, N, true, __builtin_return_address(0));                               \
    }                                                                                           \
    CUPLATE_HIDDEN void __tsan_unaligned_volatile_read##N(void* p) {                            \
        volatile_access(p, N, false, __builtin_return_address(0));                              \
    }                                                                                           \
    CUPLATE_HIDDEN void __tsan_unaligned_volatile_write##N(void* p) {                           \
        volatile_access(p, N, true, __builtin_return_address(0));                               \
    }
CHK_PLAIN(1)
CHK_PLAIN(2)
CHK_PLAIN(4)
CHK_PLAIN(8)
CHK_PLAIN(16)

CHK_COLD void range(const void* p, u64 bytes, u32 access, void* return_address) {
    if (!S.launch) return;
    u64 pc = (u64)return_address;
    general((address_t)p, bytes, access, 1, pc, site_of_pc(pc));
}

CUPLATE_HIDDEN void __tsan_read_range(void* p, unsigned long bytes) {
    range(p, bytes, ACCESS_READ, __builtin_return_address(0));
}
CUPLATE_HIDDEN void __tsan_write_range(void* p, unsigned long bytes) {
    range(p, bytes, ACCESS_WRITE, __builtin_return_address(0));
}
CUPLATE_HIDDEN void* __tsan_memcpy(void* to, const void* from, unsigned long bytes) {
    range(from, bytes, ACCESS_READ, __builtin_return_address(0));
    range(to, bytes, ACCESS_WRITE, __builtin_return_address(0));
    return __builtin_memmove(to, from, bytes);
}
CUPLATE_HIDDEN void* __tsan_memmove(void* to, const void* from, unsigned long bytes) {
    range(from, bytes, ACCESS_READ, __builtin_return_address(0));
    range(to, bytes, ACCESS_WRITE, __builtin_return_address(0));
    return __builtin_memmove(to, from, bytes);
}
CUPLATE_HIDDEN void* __tsan_memset(void* to, int value, unsigned long bytes) {
    range(to, bytes, ACCESS_WRITE, __builtin_return_address(0));
    return __builtin_memset(to, value, bytes);
}

CUPLATE_HIDDEN void __tsan_func_entry(void*) {}
CUPLATE_HIDDEN void __tsan_func_exit() {}
CUPLATE_HIDDEN void __tsan_init() {}
CUPLATE_HIDDEN void __tsan_atomic_thread_fence(int) {}
CUPLATE_HIDDEN void __tsan_atomic_signal_fence(int) {}
CUPLATE_HIDDEN void __tsan_vptr_update(void**, void*) {}
CUPLATE_HIDDEN void __tsan_vptr_read(void**) {}

// --------------------------------------------------------------------------------------- call-backs: types

struct SourceLocation {
    const char* file;
    u32 line, column;
};

struct TypeName {
    unsigned short kind, info;
    char name[1];
};

CHK_COLD void misuse(u32 kind, const SourceLocation* where, const char* type, u64 value, void* return_address) {
    if (!S.launch) return;
    Report report;
    empty(&report);
    report.kind = kind;
    report.address = value;
    describe(&report.here, site_of_pc((u64)return_address), ACCESS_READ, S.worker->current, S.worker->block_index);
    report.here.file = where->file;
    report.here.line = where->line;
    report.here.column = where->column;
    for (u32 i = 0; i + 1 < sizeof(report.text) && type[i]; ++i) report.text[i] = type[i];
    keep(report);
    stop();
}

// An index as UBSan passes it: by value up to a word; the type says if it is signed, and how wide.
static u64 integer(const TypeName* type, u64 value) {
    u32 bits = 1u << (type->info >> 1);
    bool negative = (type->info & 1) && bits < 64 && (value >> (bits - 1) & 1);
    return negative ? value | ~0ull << (bits & 63) : value;
}

struct OutOfBounds {
    SourceLocation where;
    TypeName* array;
    TypeName* index;
};
CUPLATE_HIDDEN void __ubsan_handle_out_of_bounds(OutOfBounds* data, address_t index) {
    misuse(KIND_INDEX, &data->where, data->array->name, integer(data->index, index), __builtin_return_address(0));
}

// Clang's -fsanitize=local-bounds, which is part of its -fsanitize=bounds, tells nothing but that it
// happened.
CUPLATE_HIDDEN void __ubsan_handle_local_out_of_bounds() {
    SourceLocation nowhere_known = {nullptr, 0, 0};
    misuse(KIND_INDEX, &nowhere_known, "", 0, __builtin_return_address(0));
}
CUPLATE_HIDDEN void __ubsan_handle_local_out_of_bounds_abort() {
    SourceLocation nowhere_known = {nullptr, 0, 0};
    misuse(KIND_INDEX, &nowhere_known, "", 0, __builtin_return_address(0));
}

struct TypeMismatch {
    SourceLocation where;
    TypeName* type;
    unsigned char log_alignment, access;
};
CUPLATE_HIDDEN void __ubsan_handle_type_mismatch_v1(TypeMismatch* data, address_t pointer) {
    if (!S.launch) return;
    u64 pc = (u64)__builtin_return_address(0);
    u32 access = data->access == 1 ? ACCESS_WRITE : ACCESS_READ;
    u64 alignment = 1ull << data->log_alignment;
    if (!(pointer & (alignment - 1))) return;  // a null pointer: the access itself will tell
    Region* r = below(pointer);
    if (!r || !inside(r, pointer, 1)) {
        r = nearest(pointer, pc);
    } else if (!of_kernel(r)) {
        return;
    }
    Report report = fault(KIND_MISALIGNED, r, pointer, alignment, access, site_of_pc(pc));
    report.here.file = data->where.file;
    report.here.line = data->where.line;
    report.here.column = data->where.column;
    for (u32 i = 0; i + 1 < sizeof(report.text) && data->type->name[i]; ++i) report.text[i] = data->type->name[i];
    keep(report);
    stop();
}

struct TypedPlace {
    SourceLocation where;
    TypeName* type;
};
struct AlignmentAssumption {
    SourceLocation where, assumed_at;
    TypeName* type;
};
CUPLATE_HIDDEN void __ubsan_handle_alignment_assumption(
    AlignmentAssumption* data, address_t pointer, address_t alignment, address_t offset
) {
    if (!S.launch || !((pointer - offset) & (alignment - 1))) return;
    u64 pc = (u64)__builtin_return_address(0);
    Region* r = below(pointer);
    if (!r || !inside(r, pointer, 1)) r = nearest(pointer, pc);
    Report report = fault(KIND_MISALIGNED, r, pointer, alignment, ACCESS_READ, site_of_pc(pc));
    report.here.file = data->where.file;
    report.here.line = data->where.line;
    report.here.column = data->where.column;
    keep(report);
    stop();
}

CUPLATE_HIDDEN void __ubsan_handle_divrem_overflow(TypedPlace* data, address_t, address_t) {
    misuse(KIND_DIVISION, &data->where, data->type->name, 0, __builtin_return_address(0));
}

struct ShiftOutOfBounds {
    SourceLocation where;
    TypeName* left;
    TypeName* right;
};
CUPLATE_HIDDEN void __ubsan_handle_shift_out_of_bounds(ShiftOutOfBounds* data, address_t, address_t count) {
    misuse(KIND_SHIFT, &data->where, data->left->name, integer(data->right, count), __builtin_return_address(0));
}

}  // extern "C"
}  // namespace cuplate
