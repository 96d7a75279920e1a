// One task: some rows of one item, or one row of each of several that share a prefix; some KV heads and partitions.
#pragma once
#include <type_traits>

#include "attention_plan.h"
#include "attention_rotate.h"
#include "attention_tiles.h"
#if defined(LEAFAGE_BF16)
#include "attention_dot.h"
#elif defined(LEAFAGE_AVX512)
#include "attention_avx512.h"
#elif defined(LEAFAGE_AVX2)
#include "attention_avx2.h"
#elif defined(LEAFAGE_NEON)
#include "attention_neon.h"
#else
#include "attention_plain.h"
#endif

namespace leafage {
namespace LEAFAGE_ISA_NAMESPACE {

// Maximum of a row that has seen nothing yet. Finite, so that no difference of two maxima is NaN.
constexpr float kNoMax = -3.0e38f;

// Numbers of rows that the kernels are compiled for; any number is a sum of them.
constexpr int fewer_rows(int rows) {
    return rows > 12 ? 12 : rows > 8 ? 8 : rows > 6 ? 6 : rows > 4 ? 4 : rows - 1;
}

#if defined(LEAFAGE_BF16)
static inline int score_rows(const uint16_t* q, int hd, const Tiles<uint16_t>& tiles, bool ahead, float* s) {
    attention_amx()->scores(q, hd, tiles.k, tiles.count, ahead ? tiles.v : nullptr, s);
    return 16;
}
static inline int value_rows(const uint16_t* p, int rows, const uint16_t* const* v, int tiles, int hd, float* out,
                             const float* keep, const float* take) {
    attention_amx()->values(p, rows < 16 ? rows : 16, v, tiles, hd, out, keep, take);
    return 16;
}
#endif

// int8 is read as it is for few rows only.
template <class T>
constexpr int most_rows(int rows) {
    return sizeof(T) == 1 && rows > kFewRows ? kFewRows : rows;
}

// Scores of up to MR rows, as many as fit the next smaller kernel; returns how many. Many rows find K in the
// cache, few rows (decode) fetch it ahead.
template <class A, int MR, class T>
static inline int score_rows(const typename A::Operand* q, int rows, int hd, const Tiles<T>& tiles, bool ahead, float* s) {
    if constexpr (MR > 1) {
        if (rows < MR) return score_rows<A, fewer_rows(MR)>(q, rows, hd, tiles, ahead, s);
    }
    constexpr int NT = A::score_tiles(MR);
    int i = 0, last = tiles.count - NT;
    for (; i <= last; i += NT) {
        Ahead<T> next{tiles.k + (i + NT <= last ? i + NT : i), tiles.v + i};
        if (ahead)
            A::template scores<MR, NT, true>(q, hd, tiles.k + i, next, s + i * kTile);
        else
            A::template scores<MR, NT, false>(q, hd, tiles.k + i, next, s + i * kTile);
    }
    for (; i < tiles.count; ++i) A::template scores<MR, 1, false>(q, hd, tiles.k + i, Ahead<T>{}, s + i * kTile);
    return MR;
}

template <class A, int MR, int ND, class T>
static inline void value_columns(const typename A::Operand* p, const T* const* v, int tiles, int column, int hd,
                                 const T* const* next, float* out, const float* keep, const float* take) {
    const T *at[kPartitionTiles], *next_at[kPartitionTiles];
    for (; column + ND * 16 <= hd; column += ND * 16) {
        for (int t = 0; t < tiles; ++t) at[t] = v[t] + column * 2;
        if (next != nullptr) {
            for (int t = 0; t < tiles; ++t) {
                next_at[t] = next[t] + column * kTile;
                if (sizeof(T) == 1 && column == 0) fetch_line(next[t] - 64);  // the scales
            }
            A::template values<MR, ND, true>(p, at, tiles, hd, Next<T>{next_at}, out + column, keep, take);
        } else {
            A::template values<MR, ND, false>(p, at, tiles, hd, Next<T>{}, out + column, keep, take);
        }
    }
    if constexpr (ND > 1) {
        if (column < hd) value_columns<A, MR, ND / 2>(p, v, tiles, column, hd, next, out, keep, take);
    }
}

// Weighted values of up to MR rows, merged into out when keep is not null; returns how many. next: K tiles to fetch
// meanwhile, one for each of V, or null.
template <class A, int MR, class T>
static inline int value_rows(const typename A::Operand* p, int rows, const T* const* v, int tiles, int hd,
                             const T* const* next, float* out, const float* keep, const float* take) {
    if constexpr (MR > 1) {
        if (rows < MR) return value_rows<A, fewer_rows(MR)>(p, rows, v, tiles, hd, next, out, keep, take);
    }
    value_columns<A, MR, A::value_blocks(MR)>(p, v, tiles, 0, hd, next, out, keep, take);
    return MR;
}

// Scores of one row of a partition, which becomes weights in place, in two passes: all rows' maxima first.
// base: position of the first score; low .. high: what the row sees.
struct Row {
    float* s;
    int tiles, first, last;  // tiles first .. last hold what it sees; none when last < first
    int from, to;            // first lane seen of tile `first`, last lane seen of tile `last`

    Row(float* scores, int tiles, int base, int low, int high) : s(scores), tiles(tiles) {
        low = low > base ? low - base : 0;
        high = high - base < tiles * kTile - 1 ? high - base : tiles * kTile - 1;
        bool some = low <= high;
        first = some ? low / kTile : tiles;
        last = some ? high / kTile : -1;
        from = low % kTile;
        to = some ? high % kTile : 0;
    }

    // scales: of K, by tile, or null. cap > 0: scores become cap * tanh(score).
    float mask_and_max(const float* const* scales, float cap) {
        if (scales != nullptr)
            for (int i = first; i <= last; ++i)
                simd::store(s + i * kTile, simd::mul(simd::load(s + i * kTile), simd::load(scales[i])));
        if (cap > 0)
            for (int i = first; i <= last; ++i) {
                simd::V16 x = simd::load(s + i * kTile);
                simd::store(s + i * kTile, simd::mul(simd::tanh(x), simd::splat(cap)));
            }
        if (last >= first && from > 0) hide(first, from, kTile - 1);
        if (last >= first && to < kTile - 1) hide(last, 0, to);
        simd::V16 even = simd::splat(kNoMax), odd = even;
        int i = first;
        for (; i < last; i += 2) {
            even = simd::max(simd::load(s + i * kTile), even);
            odd = simd::max(simd::load(s + i * kTile + kTile), odd);
        }
        if (i == last) even = simd::max(simd::load(s + i * kTile), even);
        return simd::reduce_max(simd::max(odd, even));
    }

    // Weights exp2(score - max), 0 where nothing is seen; returns their sum. scales: of V, by tile, or null; the
    // weights are multiplied by them behind the sum.
    template <class A>
    float weigh(float max, const float* const* scales) {
        auto* p = reinterpret_cast<typename A::Operand*>(s);
        simd::V16 shift = simd::splat(max), sum = simd::splat(0.0f);
        int i = 0;
        for (; i < first && i < tiles; ++i) A::store(p + i * kTile, simd::splat(0.0f));
        for (; i <= last; ++i) {
            simd::V16 x = simd::exp2(simd::sub(simd::load(s + i * kTile), shift));
            sum = simd::add(sum, x);
            if (scales != nullptr) x = scaled(x, scales[i], i);
            A::store(p + i * kTile, x);
        }
        for (; i < tiles; ++i) A::store(p + i * kTile, simd::splat(0.0f));
        return simd::reduce_add(sum);
    }

  private:
    // Lanes that are not seen stay 0, whatever their scale.
    simd::V16 scaled(simd::V16 x, const float* scales, int tile) const {
        x = simd::mul(x, simd::load(scales));
        if ((tile > first || from == 0) && (tile < last || to == kTile - 1)) return x;
        x = simd::keep_lanes(x, tile == first ? from : 0, tile == last ? to : kTile - 1);
        return simd::max(simd::splat(0.0f), x);
    }
    void hide(int tile, int keep_first, int keep_last) {
        simd::store(s + tile * kTile, simd::keep_lanes(simd::load(s + tile * kTile), keep_first, keep_last));
    }
};

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

template <class A>
class Attend {
    using Operand = typename A::Operand;

  public:
    Attend(const AttentionArgs& a, const Plan& plan, AttentionScratch& scratch) : a_(a), plan_(plan), s_(scratch), runs_(a.kv) {
        constexpr float log2e = 1.44269504f;
        cap_ = a.softcap > 0 ? a.softcap * log2e : 0.0f;
        scale_ = a.softcap > 0 ? a.scale / a.softcap : a.scale * log2e;
    }

    void run(const Task& t) {
        rows_ = t.num_queries * plan_.group_heads;
        load_queries(t);
        if (!t.split && t.members == nullptr) fetch_output(t);
        if (!t.split) begin_states(t);
        for (int part = t.part; part < t.part + t.num_parts; ++part)
            for (int h = 0; h < t.num_heads; ++h) partition(t, part, h);
        if (t.members != nullptr)
            end_prefix(t);
        else if (!t.split)
            store_output(t);
    }

    // Merge the round's partial results of one row-head of a split item into its state, or into the output.
    void merge(const ItemPlan& item, int round, int row_head) const {
        int hd = a_.kv.head_dim;
        float* state = plan_.state(item.base + row_head);
        if (round == 0 && plan_.shared_parts(item.index) > 0) {
            std::memcpy(state, plan_.prefix_state(item.index, row_head), sizeof(float) * size_t(hd + 2));
        } else if (round == 0) {
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
    // Row of query i of the task, in q and out.
    int64_t row_of(const Task& t, int i) const {
        return t.members != nullptr ? a_.items[t.members[t.query + i]].row : a_.items[t.item].row + t.query + i;
    }
    // Position of query i: what it sees. Of a shared prefix all see all.
    int position_of(const Task& t, int i) const {
        return t.members != nullptr ? (t.part + t.num_parts) * kPartition - 1 : a_.items[t.item].start + t.query + i;
    }
    // Query head of virtual KV head h, member g.
    int query_head(int h, int g) const { return h * plan_.group_heads + g; }

    void load_queries(const Task& t) {
        int hd = a_.kv.head_dim;
        Operand* to = reinterpret_cast<Operand*>(s_.q);
        for (int h = 0; h < t.num_heads; ++h)
            for (int i = 0; i < t.num_queries; ++i)
                for (int g = 0; g < plan_.group_heads; ++g, to += hd) {
                    const float* q = a_.q + row_of(t, i) * a_.ldq + query_head(t.head + h, g) * hd;
                    load_query(a_.kv, q, scale_, [to](int d, const simd::V16& x) { A::store(to + d, x); });
                }
    }

    // The output rows are written at the end: have them by then.
    void fetch_output(const Task& t) const {
        int width = t.num_heads * plan_.group_heads * a_.kv.head_dim;
        for (int i = 0; i < t.num_queries; ++i) {
            const float* out = a_.out + row_of(t, i) * a_.ldo + query_head(t.head, 0) * a_.kv.head_dim;
            for (int d = 0; d < width; d += 16) fetch_line(out + d);
        }
    }

    void partition(const Task& t, int part, int h) {
        const AttentionItem& item = a_.items[t.item];
        int first = position_of(t, 0), last = position_of(t, t.num_queries - 1);
        int from = part * kPartitionTiles, end = from + kPartitionTiles;
        if (from < low(first) / kTile) from = low(first) / kTile;
        if (end > last / kTile + 1) end = last / kTile + 1;
        if (from >= end) {
            if (t.split) store_nothing(t, part, h);
            return;
        }
        int head = (t.head + h) / plan_.heads_per_kv;
        // Few rows read int8 as it is, each value once; for many it is widened before.
        if constexpr (A::kReadsInt8)
            if (a_.kv.dtype == KVDtype::kInt8 && rows_ <= kFewRows && runs_.are_tiles()) {
                Tiles<int8_t> tiles;
                tiles.first = from;
                tiles.count = end - from;
                find_tiles(a_.kv, runs_, item.table, head, tiles);
                return attend(t, part, h, tiles);
            }
        Tiles<uint16_t> tiles;
        tiles.first = from;
        tiles.count = end - from;
        make_tiles(a_.kv, runs_, item.table, head, last, s_, tiles);
        attend(t, part, h, tiles);
    }

    template <class T>
    void attend(const Task& t, int part, int h, const Tiles<T>& tiles) {
        int hd = a_.kv.head_dim, group = plan_.group_heads;
        int first = position_of(t, 0), last = position_of(t, t.num_queries - 1);
        bool scaled = a_.kv.dtype == KVDtype::kInt8;
        const float* const* k_scale = scaled ? tiles.k_scale : nullptr;
        const float* const* v_scale = scaled ? tiles.v_scale : nullptr;

        const Operand* q = reinterpret_cast<const Operand*>(s_.q) + int64_t(h) * rows_ * hd;
        // Rows of a decode step read K and V from memory, once; what was gathered or widened is in the cache.
        bool in_place = runs_.are_tiles() && (sizeof(T) == 1 || !scaled);
        bool few = in_place && (rows_ <= kFewRows || t.members != nullptr);
        for (int r = 0; r < rows_;) r += scores(q + r * hd, rows_ - r, tiles, few, s_.scores + r * kScoreStride);

        int base = tiles.first * kTile;
        auto row = [&](int r) {
            int position = position_of(t, r / group);
            return Row(s_.scores + r * kScoreStride, tiles.count, base, low(position), position);
        };
        for (int r = 0; r < rows_; ++r) s_.part_max[r] = row(r).mask_and_max(k_scale, cap_);
        for (int r = 0; r < rows_; ++r) s_.part_sum[r] = row(r).template weigh<A>(s_.part_max[r], v_scale);
        if (!t.split) update_sums(h);

        const float* keep = t.split ? nullptr : s_.keep;
        float* acc = s_.acc + int64_t(h) * rows_ * hd;
        if (scaled || edges_finite(tiles, low(last), first)) {
            const T* following[kPartitionTiles];
            const T* const* next = few && find_next(t, part, h, tiles, following) ? following : nullptr;
            for (int r = 0; r < rows_; next = nullptr)
                r += values(r, rows_ - r, tiles.v, tiles.count, next, acc, keep);
        } else if constexpr (sizeof(T) == 2) {
            const T* v[kPartitionTiles];
            for (int r = 0; r < rows_; ++r) {
                int position = position_of(t, r / group);
                clean_tiles(tiles, low(position), position, hd, s_.clean, v);
                values<T>(r, 1, v, tiles.count, nullptr, acc, keep);
            }
        }
        if (t.split) store_partial(t, part, h);
    }

    // Scores of some of the next `rows` rows; how many.
    template <class T>
    int scores(const Operand* q, int rows, const Tiles<T>& tiles, bool ahead, float* s) const {
#if defined(LEAFAGE_BF16)
        if constexpr (std::is_same_v<A, Amx>) return score_rows(q, a_.kv.head_dim, tiles, ahead, s);
        else
#endif
            return score_rows<A, most_rows<T>(A::kScoreRows)>(q, rows, a_.kv.head_dim, tiles, ahead, s);
    }

    // Weighted values of some of the next `rows` rows from `row` on into acc; how many.
    template <class T>
    int values(int row, int rows, const T* const* v, int tiles, const T* const* next, float* acc,
               const float* keep) const {
        int hd = a_.kv.head_dim;
        auto* p = reinterpret_cast<const Operand*>(s_.scores + row * kScoreStride);
        acc += row * hd;
        if (keep != nullptr) keep += row;
#if defined(LEAFAGE_BF16)
        if constexpr (std::is_same_v<A, Amx>) return value_rows(p, rows, v, tiles, hd, acc, keep, s_.take + row);
        else
#endif
            return value_rows<A, most_rows<T>(A::kValueRows)>(p, rows, v, tiles, hd, next, acc, keep, s_.take + row);
    }

    // The K tiles that are scored after these: of the next head, or of the next partition; one for each tile, the
    // last ones perhaps again. False: nothing follows in this task, or the same head again.
    template <class T>
    bool find_next(const Task& t, int part, int h, const Tiles<T>& tiles, const T** next) const {
        const KVLayer& kv = a_.kv;
        if (h + 1 < t.num_heads) {
            if ((t.head + h + 1) / plan_.heads_per_kv == (t.head + h) / plan_.heads_per_kv) return false;
            for (int i = 0; i < tiles.count; ++i) next[i] = tiles.k[i] + runs_.bytes * runs_.per_block / sizeof(T);
            return true;
        }
        if (part + 1 >= t.part + t.num_parts) return false;
        const AttentionItem& item = a_.items[t.item];
        const int last = (item.start + item.num_rows - 1) / kTile;
        for (int i = 0; i < tiles.count; ++i) {
            int tile = (part + 1) * kPartitionTiles + i;
            if (tile > last) tile = last;
            int position = tile * kTile;
            next[i] = reinterpret_cast<const T*>(block_bytes(kv, item.table[position / kv.block_size]) +
                                                 runs_.k(t.head / plan_.heads_per_kv, position % kv.block_size / kTile)) +
                      (sizeof(T) == 1 ? kTile * sizeof(float) : 0);
        }
        return true;
    }

    // Running states before the task's first partition: nothing seen, or what the shared prefix left.
    void begin_states(const Task& t) {
        const int hd = a_.kv.head_dim;
        const bool resumes = t.members == nullptr && plan_.shared_parts(t.item) > 0;
        if (!resumes) std::memset(s_.acc, 0, sizeof(float) * size_t(t.num_heads * rows_) * size_t(hd));
        for (int h = 0; h < t.num_heads; ++h)
            for (int r = 0; r < rows_; ++r) {
                const int i = h * rows_ + r;
                const float* state = resumes ? plan_.prefix_state(t.item, query_head(t.head + h, r)) : nullptr;
                if (resumes) std::memcpy(s_.acc + int64_t(i) * hd, state, sizeof(float) * size_t(hd));
                s_.max[i] = resumes ? state[hd] : kNoMax;
                s_.sum[i] = resumes ? state[hd + 1] : 0;
            }
    }

    // Keep the states after a shared prefix.
    void end_prefix(const Task& t) const {
        const int hd = a_.kv.head_dim, group = plan_.group_heads;
        for (int r = 0; r < rows_; ++r) {
            float* state = plan_.prefix_state(t.members[t.query + r / group], query_head(t.head, r % group));
            std::memcpy(state, s_.acc + int64_t(r) * hd, sizeof(float) * size_t(hd));
            state[hd] = s_.max[r];
            state[hd + 1] = s_.sum[r];
        }
    }

    // Whether V is finite in all tiles of which some row sees not all: rows see at least low .. high.
    bool edges_finite(const Tiles<int8_t>&, int, int) const { return true; }
    bool edges_finite(const Tiles<uint16_t>& tiles, int low, int high) const {
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
                finish(s_.acc + int64_t(i) * hd, s_.sum[i], a_.out + row_of(t, query - t.query) * a_.ldo + head * hd);
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
            std::memset(to, 0, sizeof(float) * size_t(hd + 2));
            to[hd] = kNoMax;
        });
    }

    const AttentionArgs& a_;
    const Plan& plan_;
    AttentionScratch& s_;
    const Runs runs_;
    float cap_, scale_;
    int rows_ = 0;
};

}  // namespace LEAFAGE_ISA_NAMESPACE
}  // namespace leafage
