// Which decode rows share a prefix: their block tables begin with the same blocks. The partitions of the prefix are
// computed for several rows at once, so K and V are loaded once for all of them; each row's running state is kept,
// and the row goes on from it alone. The bits are the same: a row's partitions are merged in order either way.
#pragma once
#include <algorithm>
#include <vector>

#include "attention_scratch.h"

namespace leafage {
namespace LEAFAGE_ISA_NAMESPACE {

// Items members[first] .. members[first + count - 1] share partitions 0 .. parts - 1.
struct SharedPrefix {
    int first, count, parts;
};

class Prefixes {
  public:
    std::vector<int> members;  // item numbers
    std::vector<SharedPrefix> shared;

    // max_members: rows whose state there is room for. rows_together: rows that a task can take.
    void find(const AttentionArgs& a, int max_members, int rows_together) {
        members.clear();
        shared.clear();
        parts_.assign(size_t(a.num_items), 0);
        place_.assign(size_t(a.num_items), 0);
        if (a.window > 0) return;
        a_ = &a;
        together_ = rows_together;
        for (int i = 0; i < a.num_items; ++i)
            if (a.items[i].num_rows == 1 && whole_parts(i) > 0) members.push_back(i);
        if (members.size() < 2) return;
        std::sort(members.begin(), members.end(), [this](int i, int j) {
            for (int p = 0, end = std::min(whole_parts(i), whole_parts(j)); p < end; ++p)
                if (key(i, p) != key(j, p)) return key(i, p) < key(j, p);
            return whole_parts(i) != whole_parts(j) ? whole_parts(i) < whole_parts(j) : i < j;
        });
        best(0, int(members.size()), 0);
        int rows = 0;
        for (SharedPrefix& run : shared) {
            run.count = std::min(run.count, max_members - rows);
            for (int m = run.first; m < run.first + run.count; ++m, ++rows) {
                parts_[size_t(members[size_t(m)])] = run.parts;
                place_[size_t(members[size_t(m)])] = rows;
            }
        }
    }

    // Partitions of item i that are computed with others, and where its state is.
    int parts(int i) const { return parts_[size_t(i)]; }
    int place(int i) const { return place_[size_t(i)]; }

  private:
    // Partitions that lie wholly before the row.
    int whole_parts(int i) const { return a_->items[i].start / kPartition; }
    // The block with the last token of partition p. A table that has it has the blocks before it, too: only whole
    // prefixes are shared.
    int32_t key(int i, int p) const { return a_->items[i].table[((p + 1) * kPartition - 1) / a_->kv.block_size]; }
    bool same(int i, int j, int p) const {
        if (whole_parts(i) <= p || whole_parts(j) <= p) return false;
        const int from = p * kPartition / a_->kv.block_size, to = ((p + 1) * kPartition - 1) / a_->kv.block_size;
        const int32_t *x = a_->items[i].table, *y = a_->items[j].table;
        return std::equal(x + from, x + to + 1, y + from);
    }

    // Choose what members[begin .. end), which agree on `depth` partitions, share: that, or more in smaller groups.
    // Returns the loads of partitions that are saved; the choice is appended to `shared`.
    int best(int begin, int end, int depth) {
        if (end - begin < 2) return 0;
        while (all_same(begin, end, depth)) ++depth;
        const size_t chosen = shared.size();
        int apart = 0;
        for (int first = begin; first < end;) {
            int next = first + 1;
            while (next < end && same(members[size_t(first)], members[size_t(next)], depth)) ++next;
            apart += best(first, next, depth + 1);
            first = next;
        }
        const int count = end - begin, saved = depth * (count - int(ceil_div(count, together_)));
        if (apart >= saved) return apart;
        shared.resize(chosen);
        shared.push_back({begin, count, depth});
        return saved;
    }
    bool all_same(int begin, int end, int p) const {
        for (int m = begin + 1; m < end; ++m)
            if (!same(members[size_t(begin)], members[size_t(m)], p)) return false;
        return true;
    }

    const AttentionArgs* a_ = nullptr;
    int together_ = 1;
    std::vector<int> parts_, place_;
};

}  // namespace LEAFAGE_ISA_NAMESPACE
}  // namespace leafage
