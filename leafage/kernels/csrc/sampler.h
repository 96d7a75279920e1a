// Tokens from logits. Penalties, bias and bans first (log-probabilities are taken here), then, as in vLLM,
// temperature, min_p, top_k, top_p and the draw. A row's result depends on its own logits and parameters alone.
//
// All sums are of integers, so no order of addition matters: the weight of a token is trunc(2^40 * e), e the
// float exponential of (logit - max) / temperature (vec.h: the same bits on every instruction set).
#pragma once
#include "kernels.h"

namespace leafage {

// A candidate of truncation.
struct Candidate {
    float logit;
    int32_t id;
    uint64_t weight;
};

// Private memory of one thread.
struct SampleScratch {
    float* exps;           // [vocab + 16]
    Candidate* candidates; // [vocab]
    Candidate* order;      // [vocab]
    uint64_t* blocks;      // [vocab / kSampleBlock + 2]
    float* saved;          // logits before edits, as many as the row with the most has edits
};

// Tokens whose weights are summed together; a draw skips whole blocks.
constexpr int kSampleBlock = 256;

struct SampleArgs {
    float* logits;  // [rows][vocab]; edited while a row is worked on, then restored
    int rows, vocab;
    // [rows][6]: temperature (0: greedy), top_p, min_p, repetition, presence and frequency penalty.
    const double* params;
    // [rows][2]: top_k (0: all), how many of the best tokens to report (-1: no log-probabilities).
    const int32_t* limits;
    // Ids seen and how often in the output (0: in the prompt only); ids and what is added to them (-inf bans).
    const int32_t *seen_offsets, *seen_ids, *seen_counts;
    const int32_t *bias_offsets, *bias_ids;
    const float* bias_values;
    // Draws of each row: key and counter of the generator, or a token to report instead (-1: draw).
    const int32_t* draw_offsets;
    const uint64_t* seeds;
    const int64_t* positions;
    const int32_t* targets;
    // Results per draw: token, log-probability, rank (1 is best).
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
