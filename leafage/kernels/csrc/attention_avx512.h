// Scores and weighted values in 512-bit registers: K and V widened from bf16 to float, FMA.
#pragma once
#include <immintrin.h>

#include "attention_scratch.h"
#include "simd16.h"

namespace leafage {
namespace LEAFAGE_ISA_NAMESPACE {

// out = x, or out * keep[m] + x * take[m] when keep is not null.
static inline void merge_store(float* out, __m512 x, const float* keep, const float* take, int m) {
    if (keep != nullptr)
        x = _mm512_fmadd_ps(_mm512_loadu_ps(out), _mm512_set1_ps(keep[m]),
                            _mm512_mul_ps(x, _mm512_set1_ps(take[m])));
    _mm512_storeu_ps(out, x);
}

struct Fma {
    using Operand = float;
    static constexpr int kBlockRows = 24;
    static constexpr bool kReadsInt8 = true;
    static constexpr int kScoreRows = 12, kValueRows = 12;
    static constexpr int score_tiles(int rows) { return rows <= 4 ? 4 : 2; }
    static constexpr int value_blocks(int rows) { return rows <= 4 ? 4 : 2; }

    static void store(Operand* p, simd::V16 x) { simd::store(p, x); }

    template <int MR, int NT, bool kAhead, class T>
    static void scores(const Operand* q, int head_dim, const T* const* k, const Ahead<T>& ahead, float* s) {
        __m512 acc[MR][NT];
#pragma GCC unroll 16
        for (int m = 0; m < MR; ++m)
#pragma GCC unroll 4
            for (int n = 0; n < NT; ++n) acc[m][n] = _mm512_setzero_ps();
        for (int d = 0; d < head_dim; d += 2) {
            if (kAhead) ahead.template fetch<NT>(d * kTile);
            Pairs kv[NT];
#pragma GCC unroll 4
            for (int n = 0; n < NT; ++n) kv[n] = widen(k[n] + d * kTile);
#pragma GCC unroll 16
            for (int m = 0; m < MR; ++m) {
                __m512 q0 = _mm512_set1_ps(q[m * head_dim + d]), q1 = _mm512_set1_ps(q[m * head_dim + d + 1]);
#pragma GCC unroll 4
                for (int n = 0; n < NT; ++n) acc[m][n] = _mm512_fmadd_ps(q0, kv[n].first, acc[m][n]);
#pragma GCC unroll 4
                for (int n = 0; n < NT; ++n) acc[m][n] = _mm512_fmadd_ps(q1, kv[n].second, acc[m][n]);
            }
        }
#pragma GCC unroll 16
        for (int m = 0; m < MR; ++m)
#pragma GCC unroll 4
            for (int n = 0; n < NT; ++n) _mm512_storeu_ps(s + m * kScoreStride + n * kTile, acc[m][n]);
    }

    template <int MR, int ND, bool kAhead, class T>
    static void values(const Operand* p, const T* const* v, int tiles, int head_dim, const Next<T>& next, float* out,
                       const float* keep, const float* take) {
        __m512 acc[MR][ND];
#pragma GCC unroll 16
        for (int m = 0; m < MR; ++m)
#pragma GCC unroll 4
            for (int n = 0; n < ND; ++n) acc[m][n] = _mm512_setzero_ps();
        for (int t = 0; t < tiles; ++t)
            for (int i = 0; i < kTile; i += 2) {
                if constexpr (kAhead) next.template fetch<ND>(t, i);
                Pairs vv[ND];
#pragma GCC unroll 4
                for (int n = 0; n < ND; ++n) vv[n] = widen(v[t] + i * head_dim + n * 32);
                const float* pt = p + t * kTile + i;
#pragma GCC unroll 16
                for (int m = 0; m < MR; ++m) {
                    __m512 p0 = _mm512_set1_ps(pt[m * kScoreStride]), p1 = _mm512_set1_ps(pt[m * kScoreStride + 1]);
#pragma GCC unroll 4
                    for (int n = 0; n < ND; ++n) acc[m][n] = _mm512_fmadd_ps(p0, vv[n].first, acc[m][n]);
#pragma GCC unroll 4
                    for (int n = 0; n < ND; ++n) acc[m][n] = _mm512_fmadd_ps(p1, vv[n].second, acc[m][n]);
                }
            }
#pragma GCC unroll 16
        for (int m = 0; m < MR; ++m)
#pragma GCC unroll 4
            for (int n = 0; n < ND; ++n) merge_store(out + m * head_dim + n * 16, acc[m][n], keep, take, m);
    }

  private:
    // 16 pairs: the first and the second of each as floats.
    struct Pairs {
        __m512 first, second;
    };
    static Pairs widen(const uint16_t* p) {
        __m512i x = _mm512_loadu_si512(p);
        return {_mm512_castsi512_ps(_mm512_slli_epi32(x, 16)),
                _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(int(0xffff0000))))};
    }
    static Pairs widen(const int8_t* p) { return {simd::load_int8(p).v, simd::load_int8(p + 16).v}; }
};

}  // namespace LEAFAGE_ISA_NAMESPACE
}  // namespace leafage
