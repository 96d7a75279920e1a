// Private working memory of attention, and the sizes that bound its tasks.
#pragma once
#include "attention.h"

namespace leafage {

// Query rows (query x head of a group) that share each K/V load, at most; each way has its own number.
constexpr int kMaxBlockRows = 32;
// Tasks of at most this many rows are bound by memory: they fetch ahead, as those of a shared prefix do.
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
