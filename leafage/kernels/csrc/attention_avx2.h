// Scores and weighted values in 256-bit registers: K and V widened from bf16 to float, FMA.
#pragma once
#include <immintrin.h>

#include "attention_scratch.h"
#include "simd16.h"

namespace leafage {
namespace LEAFAGE_ISA_NAMESPACE {

struct Fma {
    using Operand = float;
    static constexpr int kBlockRows = 24;
    static constexpr bool kReadsInt8 = true;
    static constexpr int kScoreRows = 4, kValueRows = 4;
    static constexpr int score_tiles(int) { return 1; }
    static constexpr int value_blocks(int) { return 1; }

    static void store(Operand* p, simd::V16 x) { simd::store(p, x); }

    template <int MR, int NT, bool kAhead, class T>
    static void scores(const Operand* q, int head_dim, const T* const* k, const Ahead<T>& ahead, float* s) {
        __m256 acc[MR][2];
#pragma GCC unroll 4
        for (int m = 0; m < MR; ++m) acc[m][0] = acc[m][1] = _mm256_setzero_ps();
        for (int d = 0; d < head_dim; d += 2) {
            if (kAhead) ahead.template fetch<NT>(d * kTile);
            Pairs a = widen<0>(k[0] + d * kTile), b = widen<1>(k[0] + d * kTile);
#pragma GCC unroll 4
            for (int m = 0; m < MR; ++m) add_pairs(acc[m], a, b, q + m * head_dim + d);
        }
#pragma GCC unroll 4
        for (int m = 0; m < MR; ++m) {
            _mm256_storeu_ps(s + m * kScoreStride, acc[m][0]);
            _mm256_storeu_ps(s + m * kScoreStride + 8, acc[m][1]);
        }
    }

    template <int MR, int ND, bool kAhead, class T>
    static void values(const Operand* p, const T* const* v, int tiles, int head_dim, const Next<T>& next, float* out,
                       const float* keep, const float* take) {
        __m256 acc[MR][2];
#pragma GCC unroll 4
        for (int m = 0; m < MR; ++m) acc[m][0] = acc[m][1] = _mm256_setzero_ps();
        for (int t = 0; t < tiles; ++t)
            for (int i = 0; i < kTile; i += 2) {
                if constexpr (kAhead) next.template fetch<ND>(t, i);
                Pairs a = widen<0>(v[t] + i * head_dim), b = widen<1>(v[t] + i * head_dim);
#pragma GCC unroll 4
                for (int m = 0; m < MR; ++m) add_pairs(acc[m], a, b, p + m * kScoreStride + t * kTile + i);
            }
#pragma GCC unroll 4
        for (int m = 0; m < MR; ++m)
#pragma GCC unroll 2
            for (int n = 0; n < 2; ++n) {
                float* o = out + m * head_dim + n * 8;
                __m256 x = acc[m][n];
                if (keep != nullptr)
                    x = _mm256_fmadd_ps(_mm256_loadu_ps(o), _mm256_set1_ps(keep[m]),
                                        _mm256_mul_ps(x, _mm256_set1_ps(take[m])));
                _mm256_storeu_ps(o, x);
            }
    }

  private:
    // Eight of 16 pairs, lower or upper half: the first and the second of each as floats.
    struct Pairs {
        __m256 first, second;
    };
    template <int kHalf>
    static Pairs widen(const uint16_t* p) {
        __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + kHalf * 16));
        return {_mm256_castsi256_ps(_mm256_slli_epi32(x, 16)),
                _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(int(0xffff0000))))};
    }
    template <int kHalf>
    static Pairs widen(const int8_t* p) {
        return {simd::load_int8x8(p + kHalf * 8), simd::load_int8x8(p + 16 + kHalf * 8)};
    }
    static void add_pairs(__m256* acc, const Pairs& a, const Pairs& b, const float* x) {
        __m256 x0 = _mm256_broadcast_ss(x), x1 = _mm256_broadcast_ss(x + 1);
        acc[0] = _mm256_fmadd_ps(x0, a.first, acc[0]);
        acc[1] = _mm256_fmadd_ps(x0, b.first, acc[1]);
        acc[0] = _mm256_fmadd_ps(x1, a.second, acc[0]);
        acc[1] = _mm256_fmadd_ps(x1, b.second, acc[1]);
    }
};

}  // namespace LEAFAGE_ISA_NAMESPACE
}  // namespace leafage
