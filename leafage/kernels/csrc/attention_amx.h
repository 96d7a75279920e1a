// Scores and weighted values on Intel AMX tiles: bf16 operands, 16 rows at a time.
#pragma once
#include <cstdint>

namespace leafage {

struct AttentionAmx {
    // Around the other two on a thread: set up its tile registers; free them.
    void (*begin)();
    void (*end)();
    // Scores of 16 rows (q [16][head_dim]; s rows kScoreStride apart). ahead_v: V tiles of the same tokens to
    // fetch, together with the next K tiles; null: none.
    void (*scores)(const uint16_t* q, int head_dim, const uint16_t* const* k, int tiles, const uint16_t* const* ahead_v,
                   float* s);
    // out [rows][head_dim] = merge(out, p V) for up to 16 rows of p, 2 * kScoreStride apart; 16 are read.
    // keep == null: no merge.
    void (*values)(const uint16_t* p, int rows, const uint16_t* const* v, int tiles, int head_dim, float* out,
                   const float* keep, const float* take);
};

// Null when this build, the CPU or the operating system has no AMX.
const AttentionAmx* attention_amx();

}  // namespace leafage
