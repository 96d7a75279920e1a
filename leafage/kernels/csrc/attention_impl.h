// kv_write and attention, for one instruction set. Contract and layout: attention.h; who does what:
// attention_plan.h; the work on one partition: attention_task.h.
#pragma once
#include "attention_bf16.h"
#include "attention_run.h"

namespace leafage {
namespace LEAFAGE_ISA_NAMESPACE {

static void kv_write(const KVWriteArgs& a, Worker& worker) {
    const KVLayer& kv = a.kv;
    int bs = kv.block_size, hd = kv.head_dim;
    bool tiled = bs % kTile == 0;
    int tokens = tiled ? kTile : bs;     // tokens of a run of K
    bool paired = tiled || bs % 2 == 0;  // V in token pairs
    int64_t tasks = int64_t(a.rows) * kv.num_kv_heads;
    int64_t begin = tasks * worker.index / worker.count, end = tasks * (worker.index + 1) / worker.count;
    uint16_t values[kMaxHeadDim];
    for (int64_t i = begin; i < end; ++i) {
        int row = int(i / kv.num_kv_heads), head = int(i % kv.num_kv_heads);
        int32_t slot = a.slots[row];
        if (slot < 0) continue;
        int offset = slot % bs;
        int tile = tiled ? offset / kTile : 0, at = tiled ? offset % kTile : offset;
        uint16_t* block = reinterpret_cast<uint16_t*>(kv.base + size_t(slot / bs) * kv.block_stride);
        uint16_t* k = block + (size_t(head) * bs + size_t(tile) * kTile) * hd;
        uint16_t* v = block + (size_t(kv.num_kv_heads + head) * bs + size_t(tile) * kTile) * hd;
        const float* x = a.x + int64_t(row) * a.ldx + head * hd;
        for (int d = 0; d < hd; d += 16) simd::store_bf16(values + d, simd::load(x + a.k_column + d));
        for (int d = 0; d < hd; d += 2) std::memcpy(k + (d / 2 * tokens + at) * 2, values + d, 4);
        if (paired) {
            for (int d = 0; d < hd; d += 16) simd::store_bf16(values + d, simd::load(x + a.v_column + d));
            uint16_t* to = v + at / 2 * hd * 2 + at % 2;
            for (int d = 0; d < hd; ++d) to[d * 2] = values[d];
        } else {
            for (int d = 0; d < hd; d += 16) simd::store_bf16(v + at * hd + d, simd::load(x + a.v_column + d));
        }
    }
}

#if defined(LEAFAGE_AVX512)
void attention_fma(const AttentionArgs& a, Worker& worker) { attention_by<Fma>(a, worker); }
// The bits differ: chosen once per machine, never per call.
static void attention(const AttentionArgs& a, Worker& worker) {
    static const AttentionWay way = attention_tiles()                       ? attention_tiles()
                                    : attention_dot() && bf16_dot_is_fast() ? attention_dot()
                                                                            : attention_fma;
    way(a, worker);
}
#elif defined(LEAFAGE_AVX2) || defined(LEAFAGE_NEON)
static void attention(const AttentionArgs& a, Worker& worker) { attention_by<Fma>(a, worker); }
#else
static void attention(const AttentionArgs& a, Worker& worker) { attention_by<Plain>(a, worker); }
#endif

}  // namespace LEAFAGE_ISA_NAMESPACE
}  // namespace leafage
