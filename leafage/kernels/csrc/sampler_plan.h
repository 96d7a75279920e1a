// What sequences ask of the sampler over their lives, and what a step asks of it.
#pragma once
#include <memory>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "sampler.h"

namespace leafage {

// One sequence: its parameters, and the tokens that its penalties count.
class SamplingState {
  public:
    SamplingState(int vocab, const SampleRow& params) : vocab_(vocab), params_(params) {}

    // Append tokens of the prompt or of the output. Throws std::invalid_argument for ids outside the vocabulary.
    void see(const std::vector<int32_t>& ids, bool output);
    // A row with these parameters; valid until the next `see`.
    SampleRow row() const;
    int vocab() const { return vocab_; }

  private:
    const int vocab_;
    const SampleRow params_;
    std::unordered_map<int32_t, int32_t> index_;  // of an id in the lists
    std::vector<int32_t> ids_, counts_;
};

// All logit rows of one step, and what came of them.
struct SamplingPlan {
    // Per row its state and number of draws; per draw seed, position and target (-1: draw); bias as (row, id,
    // value) in order of rows. Throws std::invalid_argument for lengths that do not match and ids outside the
    // vocabulary. The states must live, and see nothing, until the plan has run.
    SamplingPlan(int vocab, const std::vector<const SamplingState*>& states, const std::vector<int32_t>& num_draws,
                 std::vector<uint64_t> seeds, std::vector<int64_t> positions, std::vector<int32_t> targets,
                 const std::vector<std::tuple<int32_t, int32_t, float>>& bias);

    const int vocab;
    std::vector<SampleRow> rows;
    std::vector<uint64_t> seeds;
    std::vector<int64_t> positions;
    std::vector<int32_t> targets;
    int max_top = 0, max_edits = 0;

    std::vector<int32_t> tokens, ranks, top_ids;
    std::vector<double> logprobs, top_logprobs;
    std::vector<uint8_t> usable;

  private:
    std::vector<int32_t> bias_ids_;
    std::vector<float> bias_values_;
};

// Working memory for the threads of a team. Pages that no draw touches cost nothing.
class Sampler {
  public:
    Sampler(int vocab, int num_threads);
    Sampler(const Sampler&) = delete;
    Sampler& operator=(const Sampler&) = delete;

    // For the rows first ... first + rows - 1 of a plan, of which `logits` is the first.
    SampleArgs args(SamplingPlan& plan, float* logits, int first, int rows);
    // Throws std::invalid_argument when plan, sampler and the logits of a program do not fit together.
    void check(const SamplingPlan& plan, int vocab, int rows, int num_threads) const;
    int vocab() const { return vocab_; }
    int num_threads() const { return int(scratch_.size()); }

  private:
    template <class T>
    T* allocate(size_t n);

    const int vocab_;
    std::vector<std::unique_ptr<void, void (*)(void*)>> memory_;
    std::vector<SampleScratch> scratch_;
    std::vector<std::vector<float>> saved_;
};

// What a program samples inside a step; may be nothing.
struct Sampling {
    Sampler* sampler = nullptr;
    SamplingPlan* plan = nullptr;
    explicit operator bool() const { return plan != nullptr; }
};

}  // namespace leafage
