// Scores and weighted values with bf16 dot products: operands are bf16 pairs, sums are float.
#pragma once
#include <immintrin.h>

#include "attention_scratch.h"
#include "simd16.h"

namespace leafage {
namespace LEAFAGE_ISA_NAMESPACE {
namespace attend {

using Operand = uint16_t;
constexpr int kScoreRows = 8;  // rows at a time, registers permitting
constexpr int kValueRows = 6;
constexpr int kValueBlocks = 4;  // blocks of 16 values of head_dim at a time

static inline void store_operands(Operand* p, simd::V16 x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(x.v));
}

static inline __m512bh pair(const Operand* p) {
    int32_t x;
    std::memcpy(&x, p, 4);
    return (__m512bh)_mm512_set1_epi32(x);
}

// s[m][tile n] = q[m] . K for NT tiles at a time; dot products run along head_dim in pairs.
template <int MR, int NT>
static inline void score_block(const Operand* q, int head_dim, const uint16_t* const* k, float* s) {
    __m512 acc[MR][NT];
#pragma GCC unroll 16
    for (int m = 0; m < MR; ++m)
#pragma GCC unroll 4
        for (int n = 0; n < NT; ++n) acc[m][n] = _mm512_setzero_ps();
    const uint16_t* kp[NT];
#pragma GCC unroll 4
    for (int n = 0; n < NT; ++n) kp[n] = k[n];
    for (int d = 0; d < head_dim; d += 2) {
        __m512bh kv[NT];
#pragma GCC unroll 4
        for (int n = 0; n < NT; ++n) kv[n] = (__m512bh)_mm512_loadu_si512(kp[n] + d * kTile);
#pragma GCC unroll 16
        for (int m = 0; m < MR; ++m) {
            __m512bh qv = pair(q + m * head_dim + d);
#pragma GCC unroll 4
            for (int n = 0; n < NT; ++n) acc[m][n] = _mm512_dpbf16_ps(acc[m][n], kv[n], qv);
        }
    }
#pragma GCC unroll 16
    for (int m = 0; m < MR; ++m)
#pragma GCC unroll 4
        for (int n = 0; n < NT; ++n) _mm512_storeu_ps(s + m * kScoreStride + n * kTile, acc[m][n]);
}

// out[m][j] = merge(out[m][j], sum over tokens p[m] * V) for ND blocks of 16 values; keep == null: no merge.
// p rows are kScoreStride floats apart.
template <int MR, int ND>
static inline void value_block(const Operand* p, const uint16_t* const* v, int tiles, int column, int head_dim,
                               float* out, int ldo, const float* keep, const float* take) {
    __m512 acc[MR][ND];
#pragma GCC unroll 16
    for (int m = 0; m < MR; ++m)
#pragma GCC unroll 4
        for (int n = 0; n < ND; ++n) acc[m][n] = _mm512_setzero_ps();
    for (int t = 0; t < tiles; ++t) {
        const uint16_t* vt = v[t] + column * 2;
        const Operand* pt = p + t * kTile;
        for (int i = 0; i < kTile; i += 2) {
            __m512bh vv[ND];
#pragma GCC unroll 4
            for (int n = 0; n < ND; ++n) vv[n] = (__m512bh)_mm512_loadu_si512(vt + i * head_dim + n * 32);
#pragma GCC unroll 16
            for (int m = 0; m < MR; ++m) {
                __m512bh pv = pair(pt + m * (kScoreStride * 2) + i);
#pragma GCC unroll 4
                for (int n = 0; n < ND; ++n) acc[m][n] = _mm512_dpbf16_ps(acc[m][n], vv[n], pv);
            }
        }
    }
#pragma GCC unroll 16
    for (int m = 0; m < MR; ++m)
#pragma GCC unroll 4
        for (int n = 0; n < ND; ++n) {
            float* o = out + m * ldo + column + n * 16;
            __m512 a = acc[m][n];
            if (keep != nullptr)
                a = _mm512_fmadd_ps(_mm512_loadu_ps(o), _mm512_set1_ps(keep[m]),
                                    _mm512_mul_ps(a, _mm512_set1_ps(take[m])));
            _mm512_storeu_ps(o, a);
        }
}

}  // namespace attend
}  // namespace LEAFAGE_ISA_NAMESPACE
}  // namespace leafage
