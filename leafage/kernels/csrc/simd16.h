// Sixteen floats at a time: the same few operations on each instruction set, and exp2 and tanh made of them.
// Included once per instruction set, in its namespace. `fma` is fused where the set has it; each set uses one
// form everywhere.
#pragma once
#if defined(LEAFAGE_AVX512) || defined(LEAFAGE_AVX2)
#include <immintrin.h>
#elif defined(LEAFAGE_NEON)
#include <arm_neon.h>
#endif
#include <cstdint>
#include <cstring>
#include <limits>

#include "common.h"

namespace leafage {
namespace LEAFAGE_ISA_NAMESPACE {
namespace simd {

// 1.5 * 2^23: adding it rounds to an integer, which then stands in the low bits.
constexpr float kRound = 12582912.0f;
// Below this exp2 gives 0: no result is subnormal.
constexpr float kExp2Low = -125.0f;

#if defined(LEAFAGE_AVX512)

struct V16 {
    __m512 v;
};
static inline V16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
static inline void store(float* p, V16 a) { _mm512_storeu_ps(p, a.v); }
static inline V16 load_int8(const int8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
// The upper halves of both, interleaved: bf16 pairs, exact where the lower halves are 0.
static inline __m512i upper_pairs(V16 first, V16 second) {
    return _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(first.v), 16), _mm512_castps_si512(second.v));
}
static inline void store_pairs(uint16_t* p, V16 first, V16 second) { _mm512_storeu_si512(p, upper_pairs(first, second)); }
static inline V16 splat(float x) { return {_mm512_set1_ps(x)}; }
static inline V16 add(V16 a, V16 b) { return {_mm512_add_ps(a.v, b.v)}; }
static inline V16 sub(V16 a, V16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
static inline V16 mul(V16 a, V16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
static inline V16 div(V16 a, V16 b) { return {_mm512_div_ps(a.v, b.v)}; }
static inline V16 fma(V16 a, V16 b, V16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// a > b ? a : b, so b when either is NaN.
static inline V16 max(V16 a, V16 b) { return {_mm512_max_ps(a.v, b.v)}; }
static inline V16 abs(V16 a) { return {_mm512_abs_ps(a.v)}; }
static inline V16 copy_sign(V16 a, V16 sign) {
    return {_mm512_castsi512_ps(_mm512_ternarylogic_epi32(_mm512_set1_epi32(0x7fffffff), _mm512_castps_si512(a.v),
                                                          _mm512_castps_si512(sign.v), 0xca))};
}
// a < b ? x : y, y where unordered.
static inline V16 select_less(V16 a, V16 b, V16 x, V16 y) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}
// Lanes i and i + S of each 2 * S (S: 1, 2, 4 or 8) become their sum and their difference.
template <int S>
static inline V16 butterfly(V16 a) {
    constexpr __mmask16 differences = S == 1 ? 0xaaaa : S == 2 ? 0xcccc : S == 4 ? 0xf0f0 : 0xff00;
    constexpr int swap = S == 1 || S == 4 ? 0xb1 : 0x4e;
    __m512 other = S < 4 ? _mm512_permute_ps(a.v, swap) : _mm512_shuffle_f32x4(a.v, a.v, swap);
    return {_mm512_mask_sub_ps(_mm512_add_ps(a.v, other), differences, other, a.v)};
}
// Lanes first .. last of a, -inf elsewhere.
static inline V16 keep_lanes(V16 a, int first, int last) {
    __mmask16 m = __mmask16((0xffffu << first) & (0xffffu >> (15 - last)));
    return {_mm512_mask_blend_ps(m, _mm512_set1_ps(-std::numeric_limits<float>::infinity()), a.v)};
}
// poly * 2^n for x >= kExp2Low, NaN where x is, else 0.
static inline V16 scale_exp2(V16 poly, V16 n, V16 /*rounded*/, V16 x) {
    __mmask16 m = _mm512_cmp_ps_mask(x.v, _mm512_set1_ps(kExp2Low), _CMP_NLT_UQ);
    return {_mm512_maskz_scalef_ps(m, poly.v, n.v)};
}
static inline void store_bf16(uint16_t* p, V16 a) {
    __m512i u = _mm512_castps_si512(a.v);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
    r = _mm512_mask_or_epi32(r, nan, u, _mm512_set1_epi32(64 << 16));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16)));
}

#elif defined(LEAFAGE_AVX2)

struct V16 {
    __m256 a, b;
};
static inline V16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline void store(float* p, V16 x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
static inline __m256 load_int8x8(const int8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
static inline V16 load_int8(const int8_t* p) { return {load_int8x8(p), load_int8x8(p + 8)}; }
static inline __m256i upper_pairs8(__m256 first, __m256 second) {
    return _mm256_or_si256(_mm256_srli_epi32(_mm256_castps_si256(first), 16), _mm256_castps_si256(second));
}
static inline void store_pairs(uint16_t* p, V16 first, V16 second) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), upper_pairs8(first.a, second.a));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 16), upper_pairs8(first.b, second.b));
}
static inline V16 splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static inline V16 add(V16 x, V16 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
static inline V16 sub(V16 x, V16 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
static inline V16 mul(V16 x, V16 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
static inline V16 div(V16 x, V16 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
static inline V16 fma(V16 x, V16 y, V16 z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
static inline V16 max(V16 x, V16 y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
static inline V16 abs(V16 x) {
    __m256 m = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    return {_mm256_and_ps(x.a, m), _mm256_and_ps(x.b, m)};
}
static inline V16 copy_sign(V16 x, V16 sign) {
    __m256 m = _mm256_castsi256_ps(_mm256_set1_epi32(int(0x80000000)));
    return {_mm256_or_ps(_mm256_andnot_ps(m, x.a), _mm256_and_ps(m, sign.a)),
            _mm256_or_ps(_mm256_andnot_ps(m, x.b), _mm256_and_ps(m, sign.b))};
}
static inline V16 select_less(V16 a, V16 b, V16 x, V16 y) {
    return {_mm256_blendv_ps(y.a, x.a, _mm256_cmp_ps(a.a, b.a, _CMP_LT_OQ)),
            _mm256_blendv_ps(y.b, x.b, _mm256_cmp_ps(a.b, b.b, _CMP_LT_OQ))};
}
template <int S>
static inline __m256 butterfly8(__m256 x) {
    __m256 other = S == 4 ? _mm256_permute2f128_ps(x, x, 1) : _mm256_permute_ps(x, S == 1 ? 0xb1 : 0x4e);
    return _mm256_blend_ps(_mm256_add_ps(x, other), _mm256_sub_ps(other, x), S == 1 ? 0xaa : S == 2 ? 0xcc : 0xf0);
}
template <int S>
static inline V16 butterfly(V16 x) {
    if constexpr (S == 8) return {_mm256_add_ps(x.a, x.b), _mm256_sub_ps(x.a, x.b)};
    else return {butterfly8<S>(x.a), butterfly8<S>(x.b)};
}
static inline __m256 keep_lanes8(__m256 x, int base, int first, int last) {
    __m256i i = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(base));
    __m256i out = _mm256_or_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(first), i),
                                  _mm256_cmpgt_epi32(i, _mm256_set1_epi32(last)));
    return _mm256_blendv_ps(x, _mm256_set1_ps(-std::numeric_limits<float>::infinity()), _mm256_castsi256_ps(out));
}
static inline V16 keep_lanes(V16 x, int first, int last) {
    return {keep_lanes8(x.a, 0, first, last), keep_lanes8(x.b, 8, first, last)};
}
static inline __m256 scale_exp2_8(__m256 poly, __m256 rounded, __m256 x) {
    __m256i shift = _mm256_slli_epi32(_mm256_castps_si256(rounded), 23);
    __m256 r = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(poly), shift));
    r = _mm256_and_ps(r, _mm256_cmp_ps(x, _mm256_set1_ps(kExp2Low), _CMP_GE_OQ));
    return _mm256_or_ps(r, _mm256_and_ps(x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
}
static inline V16 scale_exp2(V16 poly, V16 /*n*/, V16 rounded, V16 x) {
    return {scale_exp2_8(poly.a, rounded.a, x.a), scale_exp2_8(poly.b, rounded.b, x.b)};
}
static inline __m256i bf16_words(__m256 x) {
    __m256i u = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    r = _mm256_blendv_epi8(r, _mm256_or_si256(u, _mm256_set1_epi32(64 << 16)), nan);
    return _mm256_srli_epi32(r, 16);
}
static inline void store_bf16(uint16_t* p, V16 x) {
    __m256i packed = _mm256_packus_epi32(bf16_words(x.a), bf16_words(x.b));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}

#else

typedef float F4 __attribute__((vector_size(16)));
typedef int32_t I4 __attribute__((vector_size(16)));
struct V16 {
    F4 v[4];
};
#define LEAFAGE_EACH(i) _Pragma("GCC unroll 4") for (int i = 0; i < 4; ++i)
static inline V16 load(const float* p) {
    V16 r;
    std::memcpy(&r, p, sizeof r);
    return r;
}
static inline void store(float* p, const V16& a) { std::memcpy(p, &a, sizeof a); }
static inline V16 load_int8(const int8_t* p) {
    typedef int8_t B4 __attribute__((vector_size(4)));
    V16 r;
    LEAFAGE_EACH(i) {
        B4 b;
        std::memcpy(&b, p + 4 * i, sizeof b);
        r.v[i] = __builtin_convertvector(b, F4);
    }
    return r;
}
static inline void store_pairs(uint16_t* p, const V16& first, const V16& second) {
    typedef uint32_t U4 __attribute__((vector_size(16)));
    LEAFAGE_EACH(i) {
        U4 pairs = (U4)first.v[i] >> 16 | (U4)second.v[i];
        std::memcpy(p + 8 * i, &pairs, sizeof pairs);
    }
}
static inline V16 splat(float x) {
    F4 f = {x, x, x, x};
    return {{f, f, f, f}};
}
static inline V16 add(V16 a, const V16& b) {
    LEAFAGE_EACH(i) a.v[i] += b.v[i];
    return a;
}
static inline V16 sub(V16 a, const V16& b) {
    LEAFAGE_EACH(i) a.v[i] -= b.v[i];
    return a;
}
static inline V16 mul(V16 a, const V16& b) {
    LEAFAGE_EACH(i) a.v[i] *= b.v[i];
    return a;
}
static inline V16 div(V16 a, const V16& b) {
    LEAFAGE_EACH(i) a.v[i] /= b.v[i];
    return a;
}
#if defined(LEAFAGE_NEON)
static inline V16 fma(const V16& a, const V16& b, V16 c) {
    LEAFAGE_EACH(i) c.v[i] = (F4)vfmaq_f32((float32x4_t)c.v[i], (float32x4_t)a.v[i], (float32x4_t)b.v[i]);
    return c;
}
#else
static inline V16 fma(const V16& a, const V16& b, const V16& c) { return add(mul(a, b), c); }
#endif
static inline V16 max(V16 a, const V16& b) {
    LEAFAGE_EACH(i) a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
    return a;
}
static inline V16 abs(V16 a) {
    LEAFAGE_EACH(i) a.v[i] = (F4)((I4)a.v[i] & 0x7fffffff);
    return a;
}
static inline V16 copy_sign(V16 a, const V16& s) {
    LEAFAGE_EACH(i) a.v[i] = (F4)(((I4)a.v[i] & 0x7fffffff) | ((I4)s.v[i] & int32_t(0x80000000)));
    return a;
}
static inline V16 select_less(const V16& a, const V16& b, V16 x, const V16& y) {
    LEAFAGE_EACH(i) x.v[i] = a.v[i] < b.v[i] ? x.v[i] : y.v[i];
    return x;
}
template <int S>
static inline V16 butterfly(V16 a) {
    if constexpr (S >= 4) {
        constexpr int step = S / 4;
        for (int i = 0; i < 4; ++i) {
            if (i & step) continue;
            const F4 first = a.v[i], second = a.v[i + step];
            a.v[i] = first + second;
            a.v[i + step] = first - second;
        }
    } else {
        constexpr int32_t minus = std::numeric_limits<int32_t>::min();
        const I4 signs = S == 1 ? I4{0, minus, 0, minus} : I4{0, 0, minus, minus};
        LEAFAGE_EACH(i) {
            const F4 x = a.v[i];
            const F4 other = S == 1 ? F4{x[1], x[0], x[3], x[2]} : F4{x[2], x[3], x[0], x[1]};
            a.v[i] = other + (F4)((I4)x ^ signs);
        }
    }
    return a;
}
static inline V16 keep_lanes(const V16& a, int first, int last) {
    float x[16];
    store(x, a);
    for (int i = 0; i < 16; ++i)
        if (i < first || i > last) x[i] = -std::numeric_limits<float>::infinity();
    return load(x);
}
static inline V16 scale_exp2(V16 poly, const V16& /*n*/, const V16& rounded, const V16& x) {
    LEAFAGE_EACH(i) {
        I4 r = (I4)poly.v[i] + ((I4)rounded.v[i] << 23);
        r &= x.v[i] >= kExp2Low;
        r |= (I4)x.v[i] & (x.v[i] != x.v[i]);
        poly.v[i] = (F4)r;
    }
    return poly;
}
static inline void store_bf16(uint16_t* p, const V16& a) {
    typedef uint32_t U4 __attribute__((vector_size(16)));
    typedef uint16_t H4 __attribute__((vector_size(8)));
    LEAFAGE_EACH(i) {
        U4 u = (U4)a.v[i];
        U4 rounded = u + 0x7fff + (u >> 16 & 1), nan = (U4)(a.v[i] != a.v[i]);
        H4 h = __builtin_convertvector(((rounded & ~nan) | ((u | 64 << 16) & nan)) >> 16, H4);
        std::memcpy(p + 4 * i, &h, sizeof h);
    }
}
#undef LEAFAGE_EACH

#endif

// Fixed trees: lanes i and i + 8, then + 4, + 2, + 1.
#if defined(LEAFAGE_AVX512)
static inline float reduce_add(V16 a) { return _mm512_reduce_add_ps(a.v); }
static inline float reduce_max(V16 a) { return _mm512_reduce_max_ps(a.v); }
#else
static inline float reduce_add(const V16& a) {
    float x[16];
    store(x, a);
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) x[i] += x[i + half];
    return x[0];
}
static inline float reduce_max(const V16& a) {
    float x[16];
    store(x, a);
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) x[i] = x[i] > x[i + half] ? x[i] : x[i + half];
    return x[0];
}
#endif

// 2^x for x <= 0 within 1 ulp; 0 below -125; NaN stays NaN. Minimax polynomial of degree 6 on [-1/2, 1/2].
static inline V16 exp2(V16 x) {
    V16 rounded = add(x, splat(kRound));
    V16 n = sub(rounded, splat(kRound));
    V16 f = sub(x, n);
    V16 p = splat(1.5345812e-4f);
    p = fma(p, f, splat(1.33999309e-3f));
    p = fma(p, f, splat(9.61848907e-3f));
    p = fma(p, f, splat(5.55032864e-2f));
    p = fma(p, f, splat(2.40226462e-1f));
    p = fma(p, f, splat(6.93147182e-1f));
    p = fma(p, f, splat(1.0f));
    return scale_exp2(p, n, rounded, x);
}

// tanh within 3 ulp: an odd polynomial near 0, (1 - e) / (1 + e) with e = exp(-2|x|) elsewhere.
static inline V16 tanh(V16 x) {
    V16 a = abs(x);
    V16 x2 = mul(x, x);
    V16 p = splat(-5.70498872745e-3f);
    p = fma(p, x2, splat(2.06390887954e-2f));
    p = fma(p, x2, splat(-5.37397155531e-2f));
    p = fma(p, x2, splat(1.33314422036e-1f));
    p = fma(p, x2, splat(-3.33332819422e-1f));
    V16 small = fma(mul(p, x2), x, x);
    V16 e = exp2(mul(a, splat(-2.8853900818f)));
    V16 large = div(sub(splat(1.0f), e), add(splat(1.0f), e));
    return select_less(a, splat(0.625f), small, copy_sign(large, x));
}

}  // namespace simd
}  // namespace LEAFAGE_ISA_NAMESPACE
}  // namespace leafage
