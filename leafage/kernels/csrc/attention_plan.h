// Who computes what: cuts the items of a step into tasks. Every member of the team makes the same plan from the
// same arguments, so nothing is exchanged, and no cut changes a result.
#pragma once
#include "attention_prefix.h"
#include "attention_scratch.h"

namespace leafage {
namespace LEAFAGE_ISA_NAMESPACE {

// How one item is cut: blocks of `queries` rows x `heads` KV heads (x `chunk` partitions when split).
struct ItemPlan {
    int index;
    int first_part, num_parts;  // partitions that its rows see, but for those of a shared prefix
    int queries, heads, chunk;
    bool split;
    int64_t base;  // row-heads of split items before this one
};

struct Task {
    int item;
    const int* members;       // of a shared prefix: the items of its queries; null: all are of `item`
    int query, num_queries;
    int head, num_heads;      // virtual KV heads
    int part, num_parts;
    bool split;
    int64_t record;           // of the item's first row-head
    int first_part_of_round;
};

class Plan {
  public:
    // Row-heads of split items together; 0: nothing is split, and there is no merge.
    int64_t split_rows = 0;
    int num_rounds = 1;
    // Partitions of a split item done per round.
    int round_parts = 0;
    // A KV head whose group is larger than kGroupHeads counts as several virtual ones.
    int virtual_heads, group_heads, heads_per_kv;
    Prefixes prefixes;

    // block_rows: query rows that share each K/V load, at most.
    Plan(const AttentionArgs& a, int num_threads, int block_rows)
        : a_(a), threads_(num_threads), block_rows_(block_rows) {
        int group = a.num_heads / a.kv.num_kv_heads, cut = 1;
        while (group % cut != 0 || group / cut > kGroupHeads) ++cut;
        group_heads = group / cut;
        heads_per_kv = cut;
        virtual_heads = a.kv.num_kv_heads * cut;
        const int64_t state_bytes = stride() * int64_t(sizeof(float)) * a.num_heads;
        const int64_t fit = int64_t(a.shared_bytes / 2) / state_bytes, room = fit < kSharedRows ? fit : kSharedRows;
        prefixes = find_prefixes(a, int(room), block_rows / group_heads, virtual_heads, num_threads);
        // States of shared rows lie before those of split ones.
        records_at_ = stride() * a.num_heads * prefixes.num_rows;
        if (num_threads == 1) return;
        for (int i = 0; i < a.num_items; ++i) total_ += cost(i);
        limit_ = total_ / (4 * num_threads) + 1;
        int most = 0;
        for (int i = 0; i < a.num_items; ++i) {
            ItemPlan p = item(i, 0);
            if (!p.split) continue;
            split_rows += int64_t(a.items[i].num_rows) * a.num_heads;
            if (p.num_parts > most) most = p.num_parts;
        }
        if (split_rows == 0) return;
        int64_t records = (int64_t(a.shared_bytes / sizeof(float)) - records_at_) / stride();
        int64_t per_round = records / split_rows - 1;  // one record per row-head carries the state
        if (per_round < 1) {
            may_split_ = false;
            split_rows = 0;
            return;
        }
        round_parts = per_round < most ? int(per_round) : most;
        num_rounds = int(ceil_div(most, round_parts));
    }

    // base: row-heads of the split items before i.
    ItemPlan item(int i, int64_t base) const {
        const AttentionItem& it = a_.items[i];
        int last = it.start + it.num_rows - 1;
        int low = a_.window > 0 && it.start - a_.window + 1 > 0 ? it.start - a_.window + 1 : 0;
        const int shared = prefixes.parts[i];
        ItemPlan p{i, shared > 0 ? shared : low / kPartition, 0, 0, 1, 0, false, base};
        p.num_parts = last / kPartition - p.first_part + 1;
        p.queries = block_rows_ / group_heads;
        if (p.queries > it.num_rows) p.queries = it.num_rows;
        bool few_rows = it.num_rows * group_heads <= kSplitRows;
        int all_heads = kStateRows / (p.queries * group_heads);
        if (all_heads > virtual_heads) all_heads = virtual_heads;
        int64_t work = threads_ == 1 ? 0 : cost(i);
        if (threads_ == 1 || work <= limit_) {
            if (few_rows) p.heads = all_heads;
            return p;
        }
        if (may_split_ && it.num_rows <= kSplitRows && p.num_parts > 1) {
            p.split = true;
            p.chunk = int(p.num_parts * limit_ / work);
            if (p.chunk < 1) p.chunk = 1;
            int64_t pieces = ceil_div(it.num_rows, p.queries) * ceil_div(p.num_parts, p.chunk);
            if (few_rows && pieces >= 4 * threads_) p.heads = all_heads;
            return p;
        }
        while (p.queries > 1 && p.queries * group_heads > 12 &&
               work > limit_ * ceil_div(it.num_rows, p.queries) * virtual_heads)
            p.queries = (p.queries + 1) / 2;
        return p;
    }

    int64_t num_tasks(const ItemPlan& p, int round) const {
        int64_t blocks = ceil_div(a_.items[p.index].num_rows, p.queries) * ceil_div(virtual_heads, p.heads);
        if (!p.split) return round == 0 ? blocks : 0;
        return blocks * ceil_div(parts_in_round(p, round), p.chunk);
    }

    int parts_in_round(const ItemPlan& p, int round) const {
        int left = p.num_parts - round * round_parts;
        return left < 0 ? 0 : left < round_parts ? left : round_parts;
    }

    Task task(const ItemPlan& p, int round, int index) const {
        const AttentionItem& it = a_.items[p.index];
        int head_blocks = int(ceil_div(virtual_heads, p.heads));
        int query_blocks = int(ceil_div(it.num_rows, p.queries));
        Task t;
        t.item = p.index;
        t.members = nullptr;
        t.head = index % head_blocks * p.heads;
        index /= head_blocks;
        // Later rows see more: first, so that the team ends together.
        t.query = (query_blocks - 1 - index % query_blocks) * p.queries;
        index /= query_blocks;
        t.num_heads = virtual_heads - t.head < p.heads ? virtual_heads - t.head : p.heads;
        t.num_queries = it.num_rows - t.query < p.queries ? it.num_rows - t.query : p.queries;
        t.split = p.split;
        t.record = p.base;
        t.first_part_of_round = p.first_part + round * round_parts;
        if (p.split) {
            int left = parts_in_round(p, round) - index * p.chunk;
            t.part = t.first_part_of_round + index * p.chunk;
            t.num_parts = left < p.chunk ? left : p.chunk;
        } else {
            t.part = p.first_part;
            t.num_parts = p.num_parts;
        }
        return t;
    }

    // Tasks of a shared prefix: as many of its rows as fit, one KV head each.
    int queries_of_prefix() const { return block_rows_ / group_heads; }
    int64_t num_tasks(const SharedPrefix& p) const { return ceil_div(p.count, queries_of_prefix()) * virtual_heads; }
    Task task(const SharedPrefix& p, int index) const {
        Task t{};
        t.members = prefixes.members + p.first;
        t.item = t.members[0];
        t.head = index % virtual_heads;
        t.num_heads = 1;
        t.query = index / virtual_heads * queries_of_prefix();
        t.num_queries = p.count - t.query < queries_of_prefix() ? p.count - t.query : queries_of_prefix();
        t.num_parts = p.parts;
        return t;
    }

    // Partitions of item i's prefix that are done with others, and the state of its row after them.
    int shared_parts(int i) const { return prefixes.parts[i]; }
    float* prefix_state(int i, int head) const {
        return reinterpret_cast<float*>(a_.shared) + (int64_t(prefixes.place[i]) * a_.num_heads + head) * stride();
    }

    // The running state of a row-head of a split item, and its partial results of the round's partitions.
    float* state(int64_t row_head) const { return floats() + row_head * stride(); }
    float* partial(int64_t row_head, int part_of_round) const {
        return floats() + (split_rows + row_head * round_parts + part_of_round) * stride();
    }

  private:
    // Query-key pairs of one head, about.
    int64_t cost(int i) const {
        const AttentionItem& it = a_.items[i];
        int64_t low = it.start + 1, high = it.start + it.num_rows;
        if (a_.window > 0) {
            if (low > a_.window) low = a_.window;
            if (high > a_.window) high = a_.window;
        }
        return it.num_rows * (low + high) / 2 - int64_t(prefixes.parts[i]) * kPartition;
    }
    float* floats() const { return reinterpret_cast<float*>(a_.shared) + records_at_; }
    int64_t stride() const { return int64_t(partial_floats(a_.kv.head_dim)); }

    const AttentionArgs& a_;
    int threads_, block_rows_;
    int64_t records_at_ = 0;
    bool may_split_ = true;
    int64_t total_ = 0, limit_ = 0;
};

}  // namespace LEAFAGE_ISA_NAMESPACE
}  // namespace leafage
