#include "attention_prefix.h"

#include <algorithm>
#include <vector>

namespace leafage {

namespace {

class Finder {
  public:
    Prefixes find(const AttentionArgs& a, int max_members, int rows_together, int heads, int threads) {
        if (a.window > 0) {
            zeros_.resize(size_t(a.num_items));
            return {nullptr, nullptr, 0, 0, zeros_.data(), zeros_.data()};
        }
        // The layers of a step have the same items.
        if (a.step == 0 || a.step != step_ || a.num_items != int(parts_.size())) {
            a_ = &a;
            together_ = rows_together;
            heads_ = heads;
            threads_ = threads;
            rows_ = 0;
            members_.clear();
            shared_.clear();
            parts_.assign(size_t(a.num_items), 0);
            place_.assign(size_t(a.num_items), 0);
            for (int i = 0; i < a.num_items; ++i)
                if (a.items[i].num_rows == 1 && whole_parts(i) > 0) members_.push_back(i);
            if (members_.size() >= 2) {
                std::sort(members_.begin(), members_.end(), [this](int i, int j) { return before(i, j); });
                choose(0, int(members_.size()), 0);
                place(max_members);
            }
            step_ = a.step;
        }
        return {members_.data(), shared_.data(), int(shared_.size()), rows_, parts_.data(), place_.data()};
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

    // Partitions that `count` rows which share `depth` of them need not compute one by one. Tasks are counted in
    // rounds of all threads: few large ones would leave threads idle, where rows alone are cut into small ones.
    int64_t saving(int count, int depth) const {
        const int64_t tasks = round_up(ceil_div(count, together_) * heads_, threads_);
        return depth * (int64_t(count) * heads_ - tasks);
    }

    // What members [begin, end), which agree on `depth` partitions, share: that, or more in smaller groups, whichever
    // saves more. Returns how much; the choice is appended to shared_.
    int64_t choose(int begin, int end, int depth) {
        if (end - begin < 2) return 0;
        while (all_same(begin, end, depth)) ++depth;
        const size_t chosen = shared_.size();
        int64_t apart = 0;
        for (int first = begin; first < end;) {
            int next = first + 1;
            while (next < end && same(members_[size_t(first)], members_[size_t(next)], depth)) ++next;
            apart += choose(first, next, depth + 1);
            first = next;
        }
        const int64_t saved = saving(end - begin, depth);
        if (apart >= saved || saved <= 0) return apart;
        shared_.resize(chosen);
        shared_.push_back({begin, end - begin, depth});
        return saved;
    }

    void place(int max_members) {
        for (size_t i = 0; i < shared_.size(); ++i) {
            SharedPrefix& prefix = shared_[i];
            prefix.count = std::min(prefix.count, max_members - rows_);
            if (saving(prefix.count, prefix.parts) <= 0) {  // the room is used up
                shared_.resize(i);
                break;
            }
            for (int m = prefix.first; m < prefix.first + prefix.count; ++m, ++rows_) {
                parts_[size_t(members_[size_t(m)])] = prefix.parts;
                place_[size_t(members_[size_t(m)])] = rows_;
            }
        }
    }

    const AttentionArgs* a_ = nullptr;
    uint64_t step_ = 0;
    int together_ = 1, heads_ = 1, threads_ = 1, rows_ = 0;
    std::vector<int32_t> members_, parts_, place_, zeros_;
    std::vector<SharedPrefix> shared_;
};

}  // namespace

Prefixes find_prefixes(const AttentionArgs& args, int max_members, int rows_together, int heads, int threads) {
    static thread_local Finder finder;  // kept: its vectors have their memory
    return finder.find(args, max_members, rows_together, heads, threads);
}

}  // namespace leafage
