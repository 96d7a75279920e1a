// The sampler: the oracle's tokens; log-probabilities up to the last bits of the C library's logarithm.
#include <cmath>

#include "driver.h"
#include "sampler_plan.h"

using namespace leafage;

namespace {

bool all_near(const std::vector<double>& a, const double* b) {
    for (size_t i = 0; i < a.size(); ++i)
        if (a[i] != b[i] && !(std::fabs(a[i] - b[i]) <= 1e-12)) return false;
    return true;
}

// The sequences of a case; what is counted n times was seen n times.
std::vector<SamplingState> states_of(const Case& one, int rows, int vocab) {
    const double* params = one.get<double>("params");
    const int32_t *limits = one.get<int32_t>("limits"), *offsets = one.get<int32_t>("seen_offsets");
    const int32_t *ids = one.get<int32_t>("seen_ids"), *counts = one.get<int32_t>("seen_counts");
    std::vector<SamplingState> states;
    for (int r = 0; r < rows; ++r, params += 6, limits += 2) {
        SampleRow row;
        row.temperature = params[0];
        row.top_p = params[1];
        row.min_p = params[2];
        row.repetition = float(params[3]);
        row.presence = float(params[4]);
        row.frequency = float(params[5]);
        row.top_k = limits[0];
        row.num_top = limits[1];
        states.emplace_back(vocab, row);
        for (int i = offsets[r]; i < offsets[r + 1]; ++i) {
            states.back().see({ids[i]}, false);
            states.back().see(std::vector<int32_t>(size_t(counts[i]), ids[i]), true);
        }
    }
    return states;
}

SamplingPlan plan_of(const Case& one, const std::vector<SamplingState>& states, int vocab) {
    const int32_t *draw_offsets = one.get<int32_t>("draw_offsets"), *bias_offsets = one.get<int32_t>("bias_offsets");
    std::vector<const SamplingState*> pointers;
    std::vector<int32_t> num_draws;
    std::vector<std::tuple<int32_t, int32_t, float>> bias;
    for (size_t r = 0; r < states.size(); ++r) {
        pointers.push_back(&states[r]);
        num_draws.push_back(draw_offsets[r + 1] - draw_offsets[r]);
        for (int i = bias_offsets[r]; i < bias_offsets[r + 1]; ++i)
            bias.emplace_back(int32_t(r), one.get<int32_t>("bias_ids")[i], one.get<float>("bias_values")[i]);
    }
    return SamplingPlan(vocab, pointers, num_draws, one.copy<uint64_t>("seeds"), one.copy<int64_t>("positions"),
                        one.copy<int32_t>("targets"), bias);
}

}  // namespace

void check_sample(const Case& one, Run& run) {
    const int rows = one.rows("logits"), vocab = one.columns("logits");
    const int32_t* draw_offsets = one.get<int32_t>("draw_offsets");
    const size_t draws = one.at("seeds").count(), tops = one.at("expected_top_ids").count();
    const std::vector<SamplingState> states = states_of(one, rows, vocab);

    // Rows in slices of `count`; the rest as one.
    auto compute = [&](const std::string& what, int count, int threads) {
        std::vector<float> logits = one.copy<float>("logits"), before = logits;
        SamplingPlan plan = plan_of(one, states, vocab);
        Sampler sampler(vocab, threads);
        for (int first = 0; first < rows; first += count) {
            SampleArgs args = sampler.args(plan, logits.data() + size_t(first) * size_t(vocab), first,
                                           rows - first < count ? rows - first : count);
            run.on_team(threads, [&](Worker& worker) { run.table.sample(args, worker); });
        }
        run.same("logits restored", logits.data(), before.data(), logits.size());
        const uint8_t* usable = one.get<uint8_t>("expected_usable");
        for (int r = 0; r < rows; ++r) {
            // What a row leaves behind that is unusable, or that nobody asked for, does not count.
            for (int d = draw_offsets[r]; d < draw_offsets[r + 1]; ++d) {
                if (!usable[r]) plan.tokens[size_t(d)] = plan.ranks[size_t(d)] = 0;
                if (plan.ranks[size_t(d)] == 0) plan.logprobs[size_t(d)] = 0;
            }
        }
        run.same_bytes(what + ", usable", plan.usable.data(), usable, size_t(rows));
        run.same_bytes(what + ", tokens", plan.tokens.data(), one.get<int32_t>("expected_tokens"), draws * 4);
        run.same_bytes(what + ", ranks", plan.ranks.data(), one.get<int32_t>("expected_ranks"), draws * 4);
        run.same_bytes(what + ", best tokens", plan.top_ids.data(), one.get<int32_t>("expected_top_ids"), tops * 4);
        run.check(what + ", log-probabilities",
                  all_near(plan.logprobs, one.get<double>("expected_logprobs")) &&
                      all_near(plan.top_logprobs, one.get<double>("expected_top_logprobs")),
                  "further than 1e-12 from the oracle's");
        if (threads == 1 && count == rows) run.note_bytes(plan.tokens.data(), draws * 4);
    };
    for (int threads : kThreads) compute(threads_text(threads), rows, threads);
    compute("rows alone", 1, 1);
    compute("slices of 3 rows", 3, 2);
}
