#include "sampler_plan.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string>

namespace leafage {

namespace {

void check_id(const char* name, int64_t id, int64_t low, int64_t vocab) {
    if (id < low || id >= vocab)
        throw std::invalid_argument(std::string("expected ") + name + " in [" + std::to_string(low) + ", " +
                                    std::to_string(vocab) + "), got " + std::to_string(id));
}

void check_length(const char* name, size_t got, size_t expected) {
    if (got != expected)
        throw std::invalid_argument(std::string("expected ") + std::to_string(expected) + " " + name + ", got " +
                                    std::to_string(got));
}

}  // namespace

void SamplingState::see(const std::vector<int32_t>& ids, bool output) {
    for (int32_t id : ids) check_id("seen ids", id, 0, vocab_);
    for (int32_t id : ids) {
        auto [at, added] = index_.try_emplace(id, int32_t(ids_.size()));
        if (added) {
            ids_.push_back(id);
            counts_.push_back(0);
        }
        counts_[size_t(at->second)] += output;
    }
}

SampleRow SamplingState::row() const {
    SampleRow row = params_;
    row.seen_ids = ids_.data();
    row.seen_counts = counts_.data();
    row.num_seen = int32_t(ids_.size());
    return row;
}

SamplingPlan::SamplingPlan(int vocab, const std::vector<const SamplingState*>& states,
                           const std::vector<int32_t>& num_draws, std::vector<uint64_t> draw_seeds,
                           std::vector<int64_t> draw_positions, std::vector<int32_t> draw_targets,
                           const std::vector<std::tuple<int32_t, int32_t, float>>& bias)
    : vocab(vocab),
      seeds(std::move(draw_seeds)),
      positions(std::move(draw_positions)),
      targets(std::move(draw_targets)) {
    check_length("numbers of draws", num_draws.size(), states.size());
    int32_t draws = 0;
    rows.reserve(states.size());
    for (size_t i = 0; i < states.size(); ++i) {
        if (states[i]->vocab() != vocab || num_draws[i] < 0)
            throw std::invalid_argument("expected states of " + std::to_string(vocab) + " tokens and draws >= 0, got " +
                                        std::to_string(states[i]->vocab()) + " and " + std::to_string(num_draws[i]));
        SampleRow row = states[i]->row();
        row.first_draw = draws;
        row.end_draw = draws += num_draws[i];
        max_top = std::max(max_top, int(row.num_top));
        rows.push_back(row);
    }
    check_length("seeds", seeds.size(), size_t(draws));
    check_length("positions", positions.size(), size_t(draws));
    check_length("targets", targets.size(), size_t(draws));
    for (int32_t target : targets) check_id("targets", target, -1, vocab);
    bias_ids_.reserve(bias.size());
    bias_values_.reserve(bias.size());
    int32_t last = 0;
    for (auto [row, id, value] : bias) {
        check_id("rows of bias in order", row, last, int64_t(rows.size()));
        check_id("bias ids", id, 0, vocab);
        last = row;
        if (rows[size_t(row)].num_bias++ == 0) {
            rows[size_t(row)].bias_ids = bias_ids_.data() + bias_ids_.size();
            rows[size_t(row)].bias_values = bias_values_.data() + bias_values_.size();
        }
        bias_ids_.push_back(id);
        bias_values_.push_back(value);
    }
    for (const SampleRow& row : rows) max_edits = std::max(max_edits, row.num_edits());
    tokens.resize(size_t(draws));
    ranks.resize(size_t(draws));
    logprobs.resize(size_t(draws), std::nan(""));
    usable.resize(rows.size());
    top_ids.resize(rows.size() * size_t(max_top));
    top_logprobs.resize(rows.size() * size_t(max_top));
}

Sampler::Sampler(int vocab, int num_threads) : vocab_(vocab) {
    size_t n = size_t(vocab);
    for (int i = 0; i < num_threads; ++i) {
        SampleScratch s{};
        s.maxima = allocate<float>(n / kSampleBlock + 1);
        s.sums = allocate<uint64_t>(n / kSampleBlock + 1);
        s.logits = allocate<float>(n + 16);
        s.ids = allocate<int32_t>(n + 16);
        s.close_logits = allocate<float>(n + 16);
        s.close_ids = allocate<int32_t>(n + 16);
        s.order = allocate<Candidate>(n);
        scratch_.push_back(s);
        saved_.emplace_back();
    }
}

template <class T>
T* Sampler::allocate(size_t n) {
    void* p = std::malloc(n * sizeof(T));
    if (p == nullptr) throw std::bad_alloc();
    memory_.emplace_back(p, &std::free);
    return static_cast<T*>(p);
}

void Sampler::check(const SamplingPlan& plan, int vocab, int rows, int num_threads) const {
    if (plan.vocab != vocab_ || vocab != vocab_ || int(plan.rows.size()) != rows || num_threads != this->num_threads())
        throw std::invalid_argument(
            "expected a plan of " + std::to_string(rows) + " rows and logits of " + std::to_string(vocab_) +
            " columns on " + std::to_string(this->num_threads()) + " threads, got " + std::to_string(plan.rows.size()) +
            ", " + std::to_string(vocab) + " and " + std::to_string(num_threads));
}

SampleArgs Sampler::args(SamplingPlan& plan, float* logits, int first, int rows) {
    for (size_t i = 0; i < scratch_.size(); ++i) {
        if (saved_[i].size() < size_t(plan.max_edits)) saved_[i].resize(size_t(plan.max_edits));
        scratch_[i].saved = saved_[i].data();
    }
    size_t top = size_t(first) * size_t(plan.max_top);
    return {logits, rows, vocab_, plan.rows.data() + first, plan.seeds.data(), plan.positions.data(),
            plan.targets.data(), plan.tokens.data(), plan.logprobs.data(), plan.ranks.data(), plan.max_top,
            plan.top_ids.data() + top, plan.top_logprobs.data() + top, plan.usable.data() + first, scratch_.data()};
}

}  // namespace leafage
