// Scores and weighted values of bf16 operands: with dot products in 512-bit registers (one or two per cycle on AMD;
// Intel runs one in two cycles, which do twice the work in float FMAs), and on AMX tiles.
#pragma once
#include "attention_amx.h"
#include "attention_avx512.h"

namespace leafage {
namespace LEAFAGE_ISA_NAMESPACE {

// Operands are bf16 pairs, sums are float.
struct Dot {
    using Operand = uint16_t;
    static constexpr int kBlockRows = 24;
    static constexpr bool kReadsInt8 = true;
    static constexpr int kScoreRows = 8, kValueRows = 6;
    static constexpr int score_tiles(int rows) { return rows <= 4 ? 4 : 2; }
    static constexpr int value_blocks(int) { return 4; }

    static void store(Operand* p, simd::V16 x) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(x.v));
    }

    template <int MR, int NT, bool kAhead, class T>
    static void scores(const Operand* q, int head_dim, const T* const* k, const Ahead<T>& ahead, float* s) {
        __m512 acc[MR][NT];
#pragma GCC unroll 16
        for (int m = 0; m < MR; ++m)
#pragma GCC unroll 4
            for (int n = 0; n < NT; ++n) acc[m][n] = _mm512_setzero_ps();
        for (int d = 0; d < head_dim; d += 2) {
            if (kAhead) ahead.template fetch<NT>(d * kTile);
            __m512bh kv[NT];
#pragma GCC unroll 4
            for (int n = 0; n < NT; ++n) kv[n] = load_pairs(k[n] + d * kTile);
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
                __m512bh vv[ND];
#pragma GCC unroll 4
                for (int n = 0; n < ND; ++n) vv[n] = load_pairs(v[t] + i * head_dim + n * 32);
#pragma GCC unroll 16
                for (int m = 0; m < MR; ++m) {
                    __m512bh pv = pair(p + m * (kScoreStride * 2) + t * kTile + i);
#pragma GCC unroll 4
                    for (int n = 0; n < ND; ++n) acc[m][n] = _mm512_dpbf16_ps(acc[m][n], vv[n], pv);
                }
            }
#pragma GCC unroll 16
        for (int m = 0; m < MR; ++m)
#pragma GCC unroll 4
            for (int n = 0; n < ND; ++n) merge_store(out + m * head_dim + n * 16, acc[m][n], keep, take, m);
    }

  private:
    static __m512bh load_pairs(const uint16_t* p) { return (__m512bh)_mm512_loadu_si512(p); }
    static __m512bh load_pairs(const int8_t* p) {
        return (__m512bh)simd::upper_pairs(simd::load_int8(p), simd::load_int8(p + 16));
    }
    static __m512bh pair(const Operand* p) {
        int32_t x;
        std::memcpy(&x, p, 4);
        return (__m512bh)_mm512_set1_epi32(x);
    }
};

// Operands are bf16 pairs; the work is in attention_amx.cpp. A tile instruction adds the products of the first
// and of the second of each pair apart, so its bits are its own; they do not depend on the other rows.
struct Amx {
    using Operand = uint16_t;
    static constexpr int kBlockRows = 32;
    static constexpr bool kReadsInt8 = false;
    static void store(Operand* p, simd::V16 x) { Dot::store(p, x); }
};

}  // namespace LEAFAGE_ISA_NAMESPACE
}  // namespace leafage
