// Scores and weighted values with float FMA: K and V widened from bf16, operands float.
#pragma once
#include <immintrin.h>

#include "attention_scratch.h"
#include "simd16.h"

namespace leafage {
namespace LEAFAGE_ISA_NAMESPACE {
namespace attend {

using Operand = float;
constexpr int kScoreRows = 4;
constexpr int kValueRows = 4;
constexpr int kValueBlocks = 1;

static inline void store_operands(Operand* p, simd::V16 x) { simd::store(p, x); }

// Eight pairs of bf16: the first and the second of each as floats.
struct Pairs {
    __m256 first, second;
};
static inline Pairs widen(const uint16_t* p) {
    __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(x, 16)),
            _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(int(0xffff0000))))};
}

template <int MR, int NT>
static inline void score_block(const Operand* q, int head_dim, const uint16_t* const* k, float* s) {
    for (int n = 0; n < NT; ++n) {
        __m256 acc[MR][2];
#pragma GCC unroll 4
        for (int m = 0; m < MR; ++m) acc[m][0] = acc[m][1] = _mm256_setzero_ps();
        for (int d = 0; d < head_dim; d += 2) {
            Pairs a = widen(k[n] + d * kTile), b = widen(k[n] + d * kTile + 16);
#pragma GCC unroll 4
            for (int m = 0; m < MR; ++m) {
                __m256 q0 = _mm256_broadcast_ss(q + m * head_dim + d);
                __m256 q1 = _mm256_broadcast_ss(q + m * head_dim + d + 1);
                acc[m][0] = _mm256_fmadd_ps(q0, a.first, acc[m][0]);
                acc[m][1] = _mm256_fmadd_ps(q0, b.first, acc[m][1]);
                acc[m][0] = _mm256_fmadd_ps(q1, a.second, acc[m][0]);
                acc[m][1] = _mm256_fmadd_ps(q1, b.second, acc[m][1]);
            }
        }
#pragma GCC unroll 4
        for (int m = 0; m < MR; ++m) {
            _mm256_storeu_ps(s + m * kScoreStride + n * kTile, acc[m][0]);
            _mm256_storeu_ps(s + m * kScoreStride + n * kTile + 8, acc[m][1]);
        }
    }
}

template <int MR, int ND>
static inline void value_block(const Operand* p, const uint16_t* const* v, int tiles, int column, int head_dim,
                               float* out, int ldo, const float* keep, const float* take) {
    static_assert(ND == 1, "registers");
    __m256 acc[MR][2];
#pragma GCC unroll 4
    for (int m = 0; m < MR; ++m) acc[m][0] = acc[m][1] = _mm256_setzero_ps();
    for (int t = 0; t < tiles; ++t) {
        const uint16_t* vt = v[t] + column * 2;
        const Operand* pt = p + t * kTile;
        for (int i = 0; i < kTile; i += 2) {
            Pairs a = widen(vt + i * head_dim), b = widen(vt + i * head_dim + 16);
#pragma GCC unroll 4
            for (int m = 0; m < MR; ++m) {
                __m256 p0 = _mm256_broadcast_ss(pt + m * kScoreStride + i);
                __m256 p1 = _mm256_broadcast_ss(pt + m * kScoreStride + i + 1);
                acc[m][0] = _mm256_fmadd_ps(p0, a.first, acc[m][0]);
                acc[m][1] = _mm256_fmadd_ps(p0, b.first, acc[m][1]);
                acc[m][0] = _mm256_fmadd_ps(p1, a.second, acc[m][0]);
                acc[m][1] = _mm256_fmadd_ps(p1, b.second, acc[m][1]);
            }
        }
    }
#pragma GCC unroll 4
    for (int m = 0; m < MR; ++m)
#pragma GCC unroll 2
        for (int n = 0; n < 2; ++n) {
            float* o = out + m * ldo + column + n * 8;
            __m256 a = acc[m][n];
            if (keep != nullptr)
                a = _mm256_fmadd_ps(_mm256_loadu_ps(o), _mm256_set1_ps(keep[m]),
                                    _mm256_mul_ps(a, _mm256_set1_ps(take[m])));
            _mm256_storeu_ps(o, a);
        }
}

}  // namespace attend
}  // namespace LEAFAGE_ISA_NAMESPACE
}  // namespace leafage
