// Scores and weighted values in 128-bit registers: K and V widened from bf16 to float, FMA.
#pragma once
#include <arm_neon.h>

#include "attention_scratch.h"
#include "simd16.h"

namespace leafage {
namespace LEAFAGE_ISA_NAMESPACE {

struct Fma {
    using Operand = float;
    static constexpr int kBlockRows = 24;
    static constexpr bool kReadsInt8 = false;
    static constexpr int kScoreRows = 4, kValueRows = 4;
    static constexpr int score_tiles(int) { return 1; }
    static constexpr int value_blocks(int) { return 1; }

    static void store(Operand* p, const simd::V16& x) { simd::store(p, x); }

    template <int MR, int NT, bool kAhead>
    static void scores(const Operand* q, int head_dim, const uint16_t* const* k, const Ahead<uint16_t>& ahead, float* s) {
        float32x4_t acc[MR][4];
        clear<MR>(acc);
        for (int d = 0; d < head_dim; d += 2) {
            if (kAhead) ahead.fetch<NT>(d * kTile);
            add_pairs<MR>(acc, k[0] + d * kTile, q + d, head_dim);
        }
#pragma GCC unroll 4
        for (int m = 0; m < MR; ++m)
#pragma GCC unroll 4
            for (int n = 0; n < 4; ++n) vst1q_f32(s + m * kScoreStride + 4 * n, acc[m][n]);
    }

    template <int MR, int ND, bool kAhead>
    static void values(const Operand* p, const uint16_t* const* v, int tiles, int head_dim, const Next<uint16_t>& next,
                       float* out, const float* keep, const float* take) {
        float32x4_t acc[MR][4];
        clear<MR>(acc);
        for (int t = 0; t < tiles; ++t)
            for (int i = 0; i < kTile; i += 2) {
                if constexpr (kAhead) next.fetch<ND>(t, i);
                add_pairs<MR>(acc, v[t] + i * head_dim, p + t * kTile + i, kScoreStride);
            }
#pragma GCC unroll 4
        for (int m = 0; m < MR; ++m)
#pragma GCC unroll 4
            for (int n = 0; n < 4; ++n) {
                float* o = out + m * head_dim + 4 * n;
                float32x4_t x = acc[m][n];
                if (keep != nullptr) x = vfmaq_n_f32(vmulq_n_f32(x, take[m]), vld1q_f32(o), keep[m]);
                vst1q_f32(o, x);
            }
    }

  private:
    template <int MR>
    static void clear(float32x4_t (*acc)[4]) {
#pragma GCC unroll 4
        for (int m = 0; m < MR; ++m)
#pragma GCC unroll 4
            for (int n = 0; n < 4; ++n) acc[m][n] = vdupq_n_f32(0);
    }

    // acc[m] += x[m][0] * the first + x[m][1] * the second of 16 pairs of bf16, rows of x `stride` apart.
    template <int MR>
    static void add_pairs(float32x4_t (*acc)[4], const uint16_t* pairs, const float* x, int stride) {
        float32x4_t first[4], second[4];
#pragma GCC unroll 4
        for (int n = 0; n < 4; ++n) {
            const uint32x4_t both = vreinterpretq_u32_u16(vld1q_u16(pairs + 8 * n));
            first[n] = vreinterpretq_f32_u32(vshlq_n_u32(both, 16));
            second[n] = vreinterpretq_f32_u32(vandq_u32(both, vdupq_n_u32(0xffff0000u)));
        }
#pragma GCC unroll 4
        for (int m = 0; m < MR; ++m) {
            const float32x2_t xm = vld1_f32(x + m * stride);
#pragma GCC unroll 4
            for (int n = 0; n < 4; ++n)
                acc[m][n] = vfmaq_lane_f32(vfmaq_lane_f32(acc[m][n], first[n], xm, 0), second[n], xm, 1);
        }
    }
};

}  // namespace LEAFAGE_ISA_NAMESPACE
}  // namespace leafage
