// The rotation of K and q of an int8 cache. A few dimensions of K are much larger than the others and would make the
// token's scale too coarse for these; rotated, every value is a sum over many dimensions. Scores stay what they are.
#pragma once
#include "kernels.h"
#include "simd16.h"

namespace leafage {
namespace LEAFAGE_ISA_NAMESPACE {

// 1 / sqrt(n), n a power of two.
constexpr float rotation_factor(int n) {
    return n > 2 ? rotation_factor(n / 4) / 2 : n == 2 ? 0.70710678f : 1.0f;
}

// keep(d, values d .. d + 15) of the Walsh-Hadamard transform of 16 * N values, times scale / sqrt(16 * N). In
// this order: sums and differences at distances 1, 2, 4, ..., one multiplication.
template <int N, class Keep>
static inline void rotate_block(const float* x, float scale, const Keep& keep) {
    simd::V16 v[N];
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i) {
        v[i] = simd::butterfly<2>(simd::butterfly<1>(simd::load(x + i * 16)));
        v[i] = simd::butterfly<8>(simd::butterfly<4>(v[i]));
    }
#pragma GCC unroll 4
    for (int step = 1; step < N; step *= 2)
#pragma GCC unroll 16
        for (int i = 0; i < N; ++i) {
            if (i & step) continue;
            const simd::V16 first = v[i], second = v[i + step];
            v[i] = simd::add(first, second);
            v[i + step] = simd::sub(first, second);
        }
    const simd::V16 factor = simd::splat(scale * rotation_factor(16 * N));
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i) keep(i * 16, simd::mul(v[i], factor));
}

// The same of a head, in blocks of the largest power of two that divides head_dim.
template <class Keep>
static inline void rotate_head(const float* x, int head_dim, float scale, const Keep& keep) {
    const int block = head_dim & -head_dim;
    for (int from = 0; from < head_dim; from += block) {
        auto keep_block = [&](int d, const simd::V16& values) { keep(from + d, values); };
        switch (block) {
            case 16: rotate_block<1>(x + from, scale, keep_block); break;
            case 32: rotate_block<2>(x + from, scale, keep_block); break;
            case 64: rotate_block<4>(x + from, scale, keep_block); break;
            case 128: rotate_block<8>(x + from, scale, keep_block); break;
            default: rotate_block<16>(x + from, scale, keep_block);
        }
    }
}

// keep(d, values d .. d + 15) of a query head times scale, rotated where K is.
template <class Keep>
static inline void load_query(const KVLayer& kv, const float* q, float scale, const Keep& keep) {
    if (kv.dtype == KVDtype::kInt8) return rotate_head(q, kv.head_dim, scale, keep);
    const simd::V16 factor = simd::splat(scale);
    for (int d = 0; d < kv.head_dim; d += 16) keep(d, simd::mul(simd::load(q + d), factor));
}

}  // namespace LEAFAGE_ISA_NAMESPACE
}  // namespace leafage
