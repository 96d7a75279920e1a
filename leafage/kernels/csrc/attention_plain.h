// Scores and weighted values in plain C++, one row at a time.
#pragma once
#include "attention_scratch.h"
#include "simd16.h"

namespace leafage {
namespace LEAFAGE_ISA_NAMESPACE {

struct Plain {
    using Operand = float;
    static constexpr int kBlockRows = 24;
    static constexpr bool kReadsInt8 = false;
    static constexpr int kScoreRows = 1, kValueRows = 1;
    static constexpr int score_tiles(int) { return 1; }
    static constexpr int value_blocks(int) { return 1; }

    static void store(Operand* p, const simd::V16& x) { simd::store(p, x); }

    template <int MR, int NT, bool kAhead>
    static void scores(const Operand* q, int head_dim, const uint16_t* const* k, const Ahead<uint16_t>& ahead, float* s) {
        float acc[16] = {};
        for (int d = 0; d < head_dim; d += 2) {
            if (kAhead) ahead.fetch<NT>(d * kTile);
            add_pairs(acc, q + d, k[0] + d * kTile);
        }
        std::memcpy(s, acc, sizeof acc);
    }

    template <int MR, int ND, bool kAhead>
    static void values(const Operand* p, const uint16_t* const* v, int tiles, int head_dim, const Next<uint16_t>& next,
                       float* out, const float* keep, const float* take) {
        float acc[16] = {};
        for (int t = 0; t < tiles; ++t)
            for (int i = 0; i < kTile; i += 2) {
                if constexpr (kAhead) next.fetch<ND>(t, i);
                add_pairs(acc, p + t * kTile + i, v[t] + i * head_dim);
            }
        for (int j = 0; j < 16; ++j) out[j] = keep != nullptr ? out[j] * keep[0] + acc[j] * take[0] : acc[j];
    }

  private:
    // acc[i] += x[0] * first[i] + x[1] * second[i] over 16 pairs, in two rounded additions.
    static void add_pairs(float* acc, const float* x, const uint16_t* pairs) {
        uint32_t words[16];
        std::memcpy(words, pairs, sizeof words);
        float first[16], second[16];
        for (int i = 0; i < 16; ++i) {
            uint32_t low = words[i] << 16, high = words[i] & 0xffff0000u;
            std::memcpy(&first[i], &low, 4);
            std::memcpy(&second[i], &high, 4);
        }
        for (int i = 0; i < 16; ++i) {
            acc[i] += x[0] * first[i];
            acc[i] += x[1] * second[i];
        }
    }
};

}  // namespace LEAFAGE_ISA_NAMESPACE
}  // namespace leafage
