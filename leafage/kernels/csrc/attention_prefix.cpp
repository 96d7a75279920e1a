#include "attention_prefix.h"

#include <algorithm>
#include <vector>

namespace leafage {

namespace {

class Finder {
  public:
    Prefixes find(const AttentionArgs& a, int max_members, int rows_together) {
        a_ = &a;
        together_ = rows_together;
        members_.clear();
        shared_.clear();
        parts_.assign(size_t(a.num_items), 0);
        place_.assign(size_t(a.num_items), 0);
        if (a.window == 0)
            for (int i = 0; i < a.num_items; ++i)
                if (a.items[i].num_rows == 1 && whole_parts(i) > 0) members_.push_back(i);
        if (members_.size() >= 2) {
            std::sort(members_.begin(), members_.end(), [this](int i, int j) { return before(i, j); });
            choose(0, int(members_.size()), 0);
            place(max_members);
        }
        return {members_.data(), shared_.data(), int(shared_.size()), parts_.data(), place_.data()};
    }

  private:
    // Partitions that lie wholly before the row.
    int whole_parts(int i) const { return a_->items[i].start / kPartition; }
    // The block with the last token of partition p.
    int32_t last_block(int i, int p) const {
        return a_->items[i].table[((p + 1) * kPartition - 1) / a_->kv.block_size];
    }
    bool before(int i, int j) const {
        const int x = whole_parts(i), y = whole_parts(j);
        for (int p = 0; p < x && p < y; ++p)
            if (last_block(i, p) != last_block(j, p)) return last_block(i, p) < last_block(j, p);
        return x != y ? x < y : i < j;
    }
    bool same(int i, int j, int p) const {
        if (whole_parts(i) <= p || whole_parts(j) <= p) return false;
        const int from = p * kPartition / a_->kv.block_size, to = ((p + 1) * kPartition - 1) / a_->kv.block_size;
        const int32_t *x = a_->items[i].table, *y = a_->items[j].table;
        return std::equal(x + from, x + to + 1, y + from);
    }
    bool all_same(int begin, int end, int p) const {
        for (int m = begin + 1; m < end; ++m)
            if (!same(members_[size_t(begin)], members_[size_t(m)], p)) return false;
        return true;
    }

    // What members [begin, end), which agree on `depth` partitions, share: that, or more in smaller groups, whichever
    // saves more loads of partitions. Returns how many; the choice is appended to shared_.
    int choose(int begin, int end, int depth) {
        if (end - begin < 2) return 0;
        while (all_same(begin, end, depth)) ++depth;
        const size_t chosen = shared_.size();
        int apart = 0;
        for (int first = begin; first < end;) {
            int next = first + 1;
            while (next < end && same(members_[size_t(first)], members_[size_t(next)], depth)) ++next;
            apart += choose(first, next, depth + 1);
            first = next;
        }
        const int count = end - begin, saved = depth * (count - int(ceil_div(count, together_)));
        if (apart >= saved) return apart;
        shared_.resize(chosen);
        shared_.push_back({begin, count, depth});
        return saved;
    }

    void place(int max_members) {
        int rows = 0;
        for (SharedPrefix& prefix : shared_) {
            prefix.count = std::min(prefix.count, max_members - rows);
            for (int m = prefix.first; m < prefix.first + prefix.count; ++m, ++rows) {
                parts_[size_t(members_[size_t(m)])] = prefix.parts;
                place_[size_t(members_[size_t(m)])] = rows;
            }
        }
    }

    const AttentionArgs* a_ = nullptr;
    int together_ = 1;
    std::vector<int32_t> members_, parts_, place_;
    std::vector<SharedPrefix> shared_;
};

}  // namespace

Prefixes find_prefixes(const AttentionArgs& args, int max_members, int rows_together) {
    static thread_local Finder finder;  // kept: its vectors have their memory
    return finder.find(args, max_members, rows_together);
}

}  // namespace leafage
