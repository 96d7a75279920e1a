// Private working memory of attention, and the sizes that bound its tasks.
#pragma once
#include "attention.h"

namespace leafage {

// Query rows (query x head of a group) that share each K/V load, at most; each way has its own number.
constexpr int kMaxBlockRows = 32;
// Tasks of at most this many rows are bound by memory: they fetch ahead.
constexpr int kFewRows = 8;
// Rows whose running state a task carries, at most (a decode task takes several KV heads).
constexpr int kStateRows = 64;
// Query heads of one KV head that a task takes, at most.
constexpr int kGroupHeads = 24;
// Items of at most this many rows may be split over partitions.
constexpr int kSplitRows = 16;
// Rows whose prefix is computed together with others', at most.
constexpr int kSharedRows = 256;
// Floats per row of scores; a little more than a partition so that rows fall in different cache sets.
constexpr int kScoreStride = kPartition + 16;

// Bring a line into the second-level cache: more of its fetches can be under way than of the first level's, and
// scattered blocks come a third faster. Not the builtin: GCC 12 takes a function that only prefetches for one
// without effect and drops its calls.
static inline void fetch_line(const void* p) {
#if defined(__x86_64__)
    asm volatile("prefetcht1 %0" ::"m"(*static_cast<const char*>(p)));
#else
    __builtin_prefetch(p, 0, 2);
#endif
}

// What to bring into the cache while scores are computed: lines at an offset of the K tiles that come next, and
// of the V tiles of the same tokens.
template <class T>
struct Ahead {
    const T* const* k;
    const T* const* v;

    template <int NT>
    void fetch(int offset) const {
        if (offset * int(sizeof(T)) % 64 != 0) return;
        for (int n = 0; n < NT; ++n) {
            if (sizeof(T) == 1 && offset == 0) {  // the scales
                fetch_line(k[n] - 64);
                fetch_line(v[n] - 64);
            }
            fetch_line(k[n] + offset);
            fetch_line(v[n] + offset);
        }
    }
};

// What to bring in while values are weighted: the K tiles of the next head or partition, `tiles[t]` with tile t of
// V. Null: nothing.
template <class T>
struct Next {
    const T* const* tiles;

    // At token i of tile t: the share of ND * 16 columns.
    template <int ND>
    void fetch(int t, int i) const {
        const T* from = tiles[t] + i / 2 * ND * 32;
        if (sizeof(T) == 1 && i == 0) fetch_line(tiles[t] - 64);  // the scales
        for (int x = 0; x < ND * 32; x += 64 / int(sizeof(T))) fetch_line(from + x);
    }
};

// A partial result in memory: accumulator, maximum, sum.
static inline size_t partial_floats(int head_dim) { return size_t(head_dim) + 16; }

struct alignas(64) AttentionScratch {
    static constexpr int kPadded = (kMaxBlockRows + 15) / 16 * 16;
    float scores[kMaxBlockRows * kScoreStride];   // overwritten by the weights p
    float q[kStateRows * kMaxHeadDim];            // operands of the variant, at most float
    float acc[kStateRows * kMaxHeadDim];
    float max[kStateRows], sum[kStateRows];       // running
    // Of the partition, padded: they are worked on 16 at a time. keep, take: weights of running and partial
    // result in a merge.
    float part_max[kPadded], part_sum[kPadded], keep[kPadded], take[kPadded];
    uint16_t k[kPartition * kMaxHeadDim];         // gathered or widened tiles
    uint16_t v[kPartition * kMaxHeadDim];
    float k_scale[kPartition], v_scale[kPartition];
    int8_t narrow_k[kTile * kMaxHeadDim], narrow_v[kTile * kMaxHeadDim];  // one gathered int8 tile
    uint16_t clean[3 * kTile * kMaxHeadDim];      // V tiles without the invisible tokens of one row
};

}  // namespace leafage
