// The sampler: the oracle's tokens; log-probabilities up to the last bits of the C library's logarithm.
#include <cmath>

#include "driver.h"
#include "sampler.h"

using namespace leafage;

namespace {

bool all_near(const std::vector<double>& a, const double* b) {
    for (size_t i = 0; i < a.size(); ++i)
        if (a[i] != b[i] && !(std::fabs(a[i] - b[i]) <= 1e-12)) return false;
    return true;
}

}  // namespace

void check_sample(const Case& one, Run& run) {
    const int rows = one.rows("logits"), vocab = one.columns("logits");
    const int max_top = one.columns("expected_top_ids");
    const auto draw_offsets = one.copy<int32_t>("draw_offsets");
    const size_t draws = one.at("seeds").count(), tops = size_t(rows) * size_t(max_top);

    // Rows first .. first + count - 1 alone; results land where those of the whole do.
    struct Result {
        std::vector<int32_t> tokens, ranks, top_ids;
        std::vector<double> logprobs, top_logprobs;
        std::vector<uint8_t> usable;
    };
    auto compute = [&](int first, int count, int threads, Result& to) {
        std::vector<float> logits = one.copy<float>("logits"), before = logits;
        struct Memory {
            std::vector<float> exps, saved;
            std::vector<Candidate> candidates, order;
            std::vector<uint64_t> blocks;
        };
        const size_t edits = one.at("seen_ids").count() + one.at("bias_ids").count() + 1, n = size_t(vocab) + 16;
        std::vector<Memory> memory(size_t(threads), {std::vector<float>(n), std::vector<float>(edits),
                                                     std::vector<Candidate>(n), std::vector<Candidate>(n),
                                                     std::vector<uint64_t>(n / kSampleBlock + 2)});
        std::vector<SampleScratch> scratch;
        for (Memory& m : memory)
            scratch.push_back({m.exps.data(), m.candidates.data(), m.order.data(), m.blocks.data(), m.saved.data()});
        SampleArgs a{};
        a.logits = logits.data() + size_t(first) * size_t(vocab);
        a.rows = count;
        a.vocab = vocab;
        a.params = one.get<double>("params") + first * 6;
        a.limits = one.get<int32_t>("limits") + first * 2;
        a.seen_offsets = one.get<int32_t>("seen_offsets") + first;
        a.seen_ids = one.get<int32_t>("seen_ids");
        a.seen_counts = one.get<int32_t>("seen_counts");
        a.bias_offsets = one.get<int32_t>("bias_offsets") + first;
        a.bias_ids = one.get<int32_t>("bias_ids");
        a.bias_values = one.get<float>("bias_values");
        a.draw_offsets = draw_offsets.data() + first;
        a.seeds = one.get<uint64_t>("seeds");
        a.positions = one.get<int64_t>("positions");
        a.targets = one.get<int32_t>("targets");
        a.tokens = to.tokens.data();
        a.logprobs = to.logprobs.data();
        a.ranks = to.ranks.data();
        a.max_top = max_top;
        a.top_ids = to.top_ids.data() + first * max_top;
        a.top_logprobs = to.top_logprobs.data() + first * max_top;
        a.usable = to.usable.data() + first;
        a.scratch = scratch.data();
        run.on_team(threads, [&](Worker& worker) { run.table.sample(a, worker); });
        run.same("logits restored", logits.data(), before.data(), logits.size());
    };
    auto empty = [&] {
        return Result{std::vector<int32_t>(draws), std::vector<int32_t>(draws), std::vector<int32_t>(tops),
                      std::vector<double>(draws), std::vector<double>(tops), std::vector<uint8_t>(size_t(rows))};
    };
    auto compare = [&](const std::string& what, Result& got) {
        const uint8_t* usable = one.get<uint8_t>("expected_usable");
        // Whatever an unusable row left behind does not count.
        for (int r = 0; r < rows; ++r) {
            if (usable[r]) continue;
            for (int d = draw_offsets[size_t(r)]; d < draw_offsets[size_t(r) + 1]; ++d) {
                got.tokens[size_t(d)] = got.ranks[size_t(d)] = 0;
                got.logprobs[size_t(d)] = 0;
            }
        }
        run.same_bytes(what + ", usable", got.usable.data(), usable, size_t(rows));
        run.same_bytes(what + ", tokens", got.tokens.data(), one.get<int32_t>("expected_tokens"), draws * 4);
        run.same_bytes(what + ", ranks", got.ranks.data(), one.get<int32_t>("expected_ranks"), draws * 4);
        run.same_bytes(what + ", best tokens", got.top_ids.data(), one.get<int32_t>("expected_top_ids"), tops * 4);
        run.check(what + ", log-probabilities",
                  all_near(got.logprobs, one.get<double>("expected_logprobs")) &&
                      all_near(got.top_logprobs, one.get<double>("expected_top_logprobs")),
                  "further than 1e-12 from the oracle's");
    };
    for (int threads : kThreads) {
        Result whole = empty();
        compute(0, rows, threads, whole);
        compare(threads_text(threads), whole);
        if (threads == 1) run.note_bytes(whole.tokens.data(), draws * 4);
    }
    Result alone = empty();
    for (int r = 0; r < rows; ++r) compute(r, 1, 1, alone);
    compare("rows alone", alone);
}
