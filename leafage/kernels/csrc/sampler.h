// Tokens from logits. Penalties, bias and bans first (log-probabilities are taken here), then, as in vLLM,
// temperature, min_p, top_k, top_p and the draw. A row's result depends on its own logits and parameters alone.
//
// All sums are of integers, so no order of addition matters: the weight of a token is trunc(2^40 * e), e the
// float exponential of (logit - max) / temperature, without fused operations: the same bits on every instruction set.
#pragma once
#include "kernels.h"

namespace leafage {

// Tokens whose weights are summed together and whose largest logit is known: passes skip whole blocks.
constexpr int kSampleBlock = 256;

struct Candidate {
    float logit;
    int32_t id;
};

// Private memory of one thread.
struct SampleScratch {
    float* maxima;        // [vocab / kSampleBlock + 1] largest logit of each block
    uint64_t* sums;       // [vocab / kSampleBlock + 1] weights of each block
    float* logits;        // [vocab + 16] logits near the largest, and their ids
    int32_t* ids;         // [vocab + 16]
    float* close_logits;  // [vocab + 16] those around the cut of a truncation
    int32_t* close_ids;   // [vocab + 16]
    Candidate* order;     // [vocab]
    float* saved;         // logits before edits, as many as the row with the most has edits
};

// What is asked of one row of logits.
struct SampleRow {
    double temperature = 0;  // 0: greedy
    double top_p = 1, min_p = 0;
    float repetition = 1, presence = 0, frequency = 0;
    int32_t top_k = 0;     // 0: all
    int32_t num_top = -1;  // how many of the best tokens to report; -1: no log-probabilities at all
    // Ids seen and how often in the output (0: in the prompt only). Null: no penalties.
    const int32_t *seen_ids = nullptr, *seen_counts = nullptr;
    int32_t num_seen = 0;
    // What is added to logits; -inf bans.
    const int32_t* bias_ids = nullptr;
    const float* bias_values = nullptr;
    int32_t num_bias = 0;
    // Its draws; a row without any is left alone.
    int32_t first_draw = 0, end_draw = 0;

    int num_edits() const { return num_seen + num_bias; }
};

struct SampleArgs {
    float* logits;  // [rows][vocab]; edited while a row is worked on, then restored
    int rows, vocab;
    const SampleRow* row;
    // Per draw: key and counter of the generator, or a token to report instead (-1: draw).
    const uint64_t* seeds;
    const int64_t* positions;
    const int32_t* targets;
    // Results per draw: token; where asked for, log-probability and rank (1 is best).
    int32_t* tokens;
    double* logprobs;
    int32_t* ranks;
    // Per row: the best tokens, [rows][max_top]; whether its logits could be used (no NaN, a finite maximum).
    int max_top;
    int32_t* top_ids;
    double* top_logprobs;
    uint8_t* usable;
    SampleScratch* scratch;  // one per member of the team
};

}  // namespace leafage
