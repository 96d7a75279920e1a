// The work of one task: some rows of one item, some KV heads, a run of partitions.
#pragma once
#include "attention_plan.h"
#include "attention_tiles.h"
#if defined(LEAFAGE_AVX512)
#include "attention_avx512.h"
#elif defined(LEAFAGE_AVX2)
#include "attention_avx2.h"
#else
#include "attention_plain.h"
#endif

namespace leafage {
namespace LEAFAGE_ISA_NAMESPACE {

using attend::Operand;

// Maximum of a row that has seen nothing yet. Finite, so that no difference of two maxima is NaN.
constexpr float kNoMax = -3.0e38f;

template <int MR>
static inline void score_rows(const Operand* q, int rows, int hd, const uint16_t* const* k, int tiles, float* s) {
    if constexpr (MR > 1) {
        if (rows < MR) return score_rows<MR - 1>(q, rows, hd, k, tiles, s);
    }
    constexpr int NT = attend::kScoreRows == 1 ? 1 : MR <= 4 ? 4 : 2;
    int i = 0;
    for (; i + NT <= tiles; i += NT) attend::score_block<MR, NT>(q, hd, k + i, s + i * kTile);
    for (; i < tiles; ++i) attend::score_block<MR, 1>(q, hd, k + i, s + i * kTile);
}

template <int MR>
static inline void value_rows(const Operand* p, int rows, const uint16_t* const* v, int tiles, int hd, float* out,
                              int ldo, const float* keep, const float* take) {
    if constexpr (MR > 1) {
        if (rows < MR) return value_rows<MR - 1>(p, rows, v, tiles, hd, out, ldo, keep, take);
    }
    constexpr int ND = attend::kValueBlocks;
    int column = 0, blocks = hd / 16;
    for (; blocks >= ND; blocks -= ND, column += ND * 16)
        attend::value_block<MR, ND>(p, v, tiles, column, hd, out, ldo, keep, take);
    if constexpr (ND == 4) {
        if (blocks == 3) attend::value_block<MR, 3>(p, v, tiles, column, hd, out, ldo, keep, take);
        if (blocks == 2) attend::value_block<MR, 2>(p, v, tiles, column, hd, out, ldo, keep, take);
        if (blocks == 1) attend::value_block<MR, 1>(p, v, tiles, column, hd, out, ldo, keep, take);
    }
}

// Scores of one row to weights, in place. base: position of the first score; low .. high: what the row sees;
// cap > 0: scores are cap * tanh(score). Gives the maximum and the sum.
static inline void softmax_row(float* s, int tiles, int base, int low, int high, float cap, float* row_max,
                               float* row_sum) {
    Operand* p = reinterpret_cast<Operand*>(s);
    int first = low <= base ? 0 : (low - base) / kTile;
    int last = high < base ? -1 : (high - base) / kTile;
    if (last > tiles - 1) last = tiles - 1;
    simd::V16 top = simd::splat(kNoMax), zero = simd::splat(0.0f);
    for (int i = first; i <= last; ++i) {
        simd::V16 x = simd::load(s + i * kTile);
        int from = low - base - i * kTile, to = high - base - i * kTile;
        if (cap > 0) x = simd::mul(simd::tanh(x), simd::splat(cap));
        if (from > 0 || to < kTile - 1) x = simd::keep_lanes(x, from > 0 ? from : 0, to < kTile - 1 ? to : kTile - 1);
        if (cap > 0 || from > 0 || to < kTile - 1) simd::store(s + i * kTile, x);
        top = simd::max(x, top);
    }
    float m = simd::reduce_max(top);
    simd::V16 shift = simd::splat(m), sum = zero;
    for (int i = 0; i < first && i < tiles; ++i) attend::store_operands(p + i * kTile, zero);
    for (int i = first; i <= last; ++i) {
        simd::V16 x = simd::exp2(simd::sub(simd::load(s + i * kTile), shift));
        sum = simd::add(sum, x);
        attend::store_operands(p + i * kTile, x);
    }
    for (int i = last < first ? 0 : last + 1; i < tiles; ++i) attend::store_operands(p + i * kTile, zero);
    *row_max = m;
    *row_sum = simd::reduce_add(sum);
}

// Weights of running and partial results, and the merged maximum and sum, of 16 rows.
struct Merge {
    simd::V16 keep, take, max, sum;
};
static inline Merge merge_weights(simd::V16 max, simd::V16 sum, simd::V16 part_max, simd::V16 part_sum) {
    Merge m;
    m.max = simd::max(part_max, max);
    m.keep = simd::exp2(simd::sub(max, m.max));
    m.take = simd::exp2(simd::sub(part_max, m.max));
    m.sum = simd::fma(sum, m.keep, simd::mul(part_sum, m.take));
    return m;
}

class Attend {
  public:
    Attend(const AttentionArgs& a, const Plan& plan, AttentionScratch& scratch) : a_(a), plan_(plan), s_(scratch) {
        constexpr float log2e = 1.44269504f;
        cap_ = a.softcap > 0 ? a.softcap * log2e : 0.0f;
        scale_ = a.softcap > 0 ? a.scale / a.softcap : a.scale * log2e;
    }

    void run(const Task& t) {
        rows_ = t.num_queries * plan_.group_heads;
        load_queries(t);
        for (int i = 0; i < t.num_heads * rows_; ++i) {
            s_.max[i] = kNoMax;
            s_.sum[i] = 0;
        }
        std::memset(s_.acc, 0, sizeof(float) * size_t(t.num_heads * rows_) * size_t(a_.kv.head_dim));
        for (int part = t.part; part < t.part + t.num_parts; ++part)
            for (int h = 0; h < t.num_heads; ++h) partition(t, part, h);
        if (!t.split) store_output(t);
    }

    // Merge the round's partial results of one row-head of a split item into its state, or into the output.
    void merge(const ItemPlan& item, int round, int row_head) const {
        int hd = a_.kv.head_dim;
        float* state = plan_.state(item.base + row_head);
        if (round == 0) {
            std::memset(state, 0, sizeof(float) * size_t(hd));
            state[hd] = kNoMax;
            state[hd + 1] = 0;
        }
        int parts = plan_.parts_in_round(item, round);
        for (int i = 0; i < parts; ++i) {
            const float* part = plan_.partial(item.base + row_head, i);
            Merge m = merge_weights(simd::splat(state[hd]), simd::splat(state[hd + 1]), simd::splat(part[hd]),
                                    simd::splat(part[hd + 1]));
            for (int d = 0; d < hd; d += 16)
                simd::store(state + d, simd::fma(simd::load(state + d), m.keep, simd::mul(simd::load(part + d), m.take)));
            float lanes[16];
            simd::store(lanes, m.max);
            state[hd] = lanes[0];
            simd::store(lanes, m.sum);
            state[hd + 1] = lanes[0];
        }
        if (round + 1 < plan_.num_rounds) return;
        int row = a_.items[item.index].row + row_head / a_.num_heads;
        finish(state, state[hd + 1], a_.out + int64_t(row) * a_.ldo + row_head % a_.num_heads * hd);
    }

  private:
    int low(int position) const {
        return a_.window > 0 && position - a_.window + 1 > 0 ? position - a_.window + 1 : 0;
    }
    // Query head of virtual KV head h, member g.
    int query_head(int h, int g) const { return h * plan_.group_heads + g; }

    void load_queries(const Task& t) {
        int hd = a_.kv.head_dim;
        simd::V16 scale = simd::splat(scale_);
        Operand* to = reinterpret_cast<Operand*>(s_.q);
        for (int h = 0; h < t.num_heads; ++h)
            for (int i = 0; i < t.num_queries; ++i)
                for (int g = 0; g < plan_.group_heads; ++g, to += hd) {
                    const float* q = a_.q + int64_t(a_.items[t.item].row + t.query + i) * a_.ldq +
                                     query_head(t.head + h, g) * hd;
                    for (int d = 0; d < hd; d += 16)
                        attend::store_operands(to + d, simd::mul(simd::load(q + d), scale));
                }
    }

    void partition(const Task& t, int part, int h) {
        const AttentionItem& item = a_.items[t.item];
        int hd = a_.kv.head_dim, group = plan_.group_heads;
        int first = item.start + t.query, last = first + t.num_queries - 1;
        Tiles tiles;
        tiles.first = part * (kPartition / kTile);
        int end = tiles.first + kPartition / kTile;
        if (tiles.first < low(first) / kTile) tiles.first = low(first) / kTile;
        if (end > last / kTile + 1) end = last / kTile + 1;
        tiles.count = end - tiles.first;
        if (tiles.count <= 0) {
            if (t.split) store_nothing(t, part, h);
            return;
        }
        find_tiles(a_.kv, item.table, (t.head + h) / plan_.heads_per_kv, last, s_, tiles);

        const Operand* q = reinterpret_cast<const Operand*>(s_.q) + int64_t(h) * rows_ * hd;
        for (int r = 0; r < rows_; r += attend::kScoreRows)
            score_rows<attend::kScoreRows>(q + r * hd, rows_ - r, hd, tiles.k, tiles.count, s_.scores + r * kScoreStride);

        int base = tiles.first * kTile;
        for (int r = 0; r < rows_; ++r) {
            int position = first + r / group;
            softmax_row(s_.scores + r * kScoreStride, tiles.count, base, low(position), position, cap_,
                        &s_.part_max[r], &s_.part_sum[r]);
        }
        if (!t.split) update_sums(h);

        const float* keep = t.split ? nullptr : s_.keep;
        float* acc = s_.acc + int64_t(h) * rows_ * hd;
        const float* scores = s_.scores;
        if (edges_finite(tiles, low(last), first)) {
            for (int r = 0; r < rows_; r += attend::kValueRows)
                value_rows<attend::kValueRows>(reinterpret_cast<const Operand*>(scores + r * kScoreStride), rows_ - r,
                                               tiles.v, tiles.count, hd, acc + r * hd, hd, keep ? keep + r : nullptr,
                                               s_.take + r);
        } else {
            const uint16_t* v[kPartition / kTile];
            for (int r = 0; r < rows_; ++r) {
                int position = first + r / group;
                clean_tiles(tiles, low(position), position, hd, s_.clean, v);
                value_rows<1>(reinterpret_cast<const Operand*>(scores + r * kScoreStride), 1, v, tiles.count, hd,
                              acc + r * hd, hd, keep ? keep + r : nullptr, s_.take + r);
            }
        }
        if (t.split) store_partial(t, part, h);
    }

    // Whether V is finite in all tiles of which some row sees not all: rows see at least low .. high.
    bool edges_finite(const Tiles& tiles, int low, int high) const {
        for (int i = 0; i < tiles.count; ++i) {
            int base = (tiles.first + i) * kTile;
            if ((base < low || base + kTile - 1 > high) && !all_finite(tiles.v[i], kTile * a_.kv.head_dim)) return false;
        }
        return true;
    }

    void update_sums(int h) {
        float *max = s_.max + h * rows_, *sum = s_.sum + h * rows_;
        for (int r = 0; r < rows_; r += 16) {
            int n = rows_ - r < 16 ? rows_ - r : 16;
            float m[16] = {}, l[16] = {};
            std::memcpy(m, max + r, sizeof(float) * size_t(n));
            std::memcpy(l, sum + r, sizeof(float) * size_t(n));
            Merge merged = merge_weights(simd::load(m), simd::load(l), simd::load(s_.part_max + r),
                                         simd::load(s_.part_sum + r));
            simd::store(s_.keep + r, merged.keep);
            simd::store(s_.take + r, merged.take);
            simd::store(m, merged.max);
            simd::store(l, merged.sum);
            std::memcpy(max + r, m, sizeof(float) * size_t(n));
            std::memcpy(sum + r, l, sizeof(float) * size_t(n));
        }
    }

    // Out = accumulator / sum; + 0 turns -0, which depends on the tiles left out, into 0.
    void finish(const float* acc, float sum, float* out) const {
        simd::V16 inverse = simd::splat(1.0f / sum);
        for (int d = 0; d < a_.kv.head_dim; d += 16)
            simd::store(out + d, simd::add(simd::mul(simd::load(acc + d), inverse), simd::splat(0.0f)));
    }

    template <class F>
    void for_rows(const Task& t, int h, F&& f) const {
        int group = plan_.group_heads;
        for (int r = 0; r < rows_; ++r) f(r, t.query + r / group, query_head(t.head + h, r % group));
    }

    void store_output(const Task& t) {
        int hd = a_.kv.head_dim;
        for (int h = 0; h < t.num_heads; ++h)
            for_rows(t, h, [&](int r, int query, int head) {
                int i = h * rows_ + r;
                finish(s_.acc + int64_t(i) * hd, s_.sum[i],
                       a_.out + int64_t(a_.items[t.item].row + query) * a_.ldo + head * hd);
            });
    }

    float* record(const Task& t, int part, int query, int head) const {
        return plan_.partial(t.record + int64_t(query) * a_.num_heads + head, part - t.first_part_of_round);
    }

    void store_partial(const Task& t, int part, int h) const {
        int hd = a_.kv.head_dim;
        for_rows(t, h, [&](int r, int query, int head) {
            float* to = record(t, part, query, head);
            std::memcpy(to, s_.acc + (int64_t(h) * rows_ + r) * hd, sizeof(float) * size_t(hd));
            to[hd] = s_.part_max[r];
            to[hd + 1] = s_.part_sum[r];
        });
    }

    void store_nothing(const Task& t, int part, int h) const {
        int hd = a_.kv.head_dim;
        for_rows(t, h, [&](int, int query, int head) {
            float* to = record(t, part, query, head);
            std::memset(to, 0, sizeof(float) * size_t(hd));
            to[hd] = kNoMax;
            to[hd + 1] = 0;
        });
    }

    const AttentionArgs& a_;
    const Plan& plan_;
    AttentionScratch& s_;
    float cap_, scale_;
    int rows_ = 0;
};

}  // namespace LEAFAGE_ISA_NAMESPACE
}  // namespace leafage
