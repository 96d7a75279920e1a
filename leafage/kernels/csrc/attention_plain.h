// Scores and weighted values in plain C++, one row at a time.
#pragma once
#include "attention_scratch.h"
#include "simd16.h"

namespace leafage {
namespace LEAFAGE_ISA_NAMESPACE {
namespace attend {

using Operand = float;
constexpr int kScoreRows = 1;
constexpr int kValueRows = 1;
constexpr int kValueBlocks = 1;

static inline void store_operands(Operand* p, simd::V16 x) { simd::store(p, x); }

// acc[i] += x0 * first[i] + x1 * second[i] over 16 pairs, in two rounded additions.
static inline void add_pairs(float* acc, float x0, float x1, const uint16_t* pairs) {
    uint32_t words[16];
    std::memcpy(words, pairs, sizeof words);
    float first[16], second[16];
    for (int i = 0; i < 16; ++i) {
        uint32_t lo = words[i] << 16, hi = words[i] & 0xffff0000u;
        std::memcpy(&first[i], &lo, 4);
        std::memcpy(&second[i], &hi, 4);
    }
    for (int i = 0; i < 16; ++i) {
        acc[i] += x0 * first[i];
        acc[i] += x1 * second[i];
    }
}

template <int MR, int NT>
static inline void score_block(const Operand* q, int head_dim, const uint16_t* const* k, float* s) {
    static_assert(MR == 1, "one row");
    for (int n = 0; n < NT; ++n) {
        float acc[16] = {};
        for (int d = 0; d < head_dim; d += 2) add_pairs(acc, q[d], q[d + 1], k[n] + d * kTile);
        std::memcpy(s + n * kTile, acc, sizeof acc);
    }
}

template <int MR, int ND>
static inline void value_block(const Operand* p, const uint16_t* const* v, int tiles, int column, int head_dim,
                               float* out, int /*ldo*/, const float* keep, const float* take) {
    static_assert(MR == 1 && ND == 1, "one row");
    float acc[16] = {};
    for (int t = 0; t < tiles; ++t)
        for (int i = 0; i < kTile; i += 2)
            add_pairs(acc, p[t * kTile + i], p[t * kTile + i + 1], v[t] + i * head_dim + column * 2);
    for (int j = 0; j < 16; ++j) {
        float& o = out[column + j];
        o = keep != nullptr ? o * keep[0] + acc[j] * take[0] : acc[j];
    }
}

}  // namespace attend
}  // namespace LEAFAGE_ISA_NAMESPACE
}  // namespace leafage
