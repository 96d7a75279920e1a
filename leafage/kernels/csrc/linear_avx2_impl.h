// AVX2 kernels: `vpmaddubsw` on bytes, only where its 16-bit sums cannot saturate. The same bits as AVX-512.
#include <immintrin.h>

#include <cmath>

namespace leafage {
namespace LEAFAGE_ISA_NAMESPACE {

#include "linear_common_impl.h"

static inline void find_absmax(const float* x, int n, RowPass& pass) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    auto load = [&](const float* p) {
        return _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), magnitude);
    };
    for (int g = 0; g < n; ++g, x += kGroup) {
        __m256i low = _mm256_max_epu32(load(x), load(x + 8)), high = _mm256_max_epu32(load(x + 16), load(x + 24));
        __m256i m = _mm256_max_epu32(low, high);
        __m128i v = _mm_max_epu32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
        v = _mm_max_epu32(v, _mm_shuffle_epi32(v, 0x4e));
        v = _mm_max_epu32(v, _mm_shuffle_epi32(v, 0xb1));
        pass.absmax[g] = uint32_t(_mm_cvtsi128_si32(v));
    }
}

static inline void quantize_groups(const float* x, int n, RowPass& pass, int8_t* q, size_t q_stride) {
    const __m256i flip = _mm256_set1_epi8(-128), order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (int g = 0; g < n; ++g, x += kGroup, q += q_stride) {
        // Infinities and NaN times the factor 0 become 0x80000000, which the mask makes 0.
        const __m256 inverse = _mm256_set1_ps(pass.inverse[g]);
        const __m256i counts = _mm256_set1_epi32(pass.inverse[g] == 0.0f ? 0 : -1);
        __m256i v[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i)
            v[i] = _mm256_and_si256(_mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), inverse)), counts);
        __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
        bytes = _mm256_max_epi8(_mm256_permutevar8x32_epi32(bytes, order), _mm256_set1_epi8(-127));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), bytes);
        // Sums of 8 bytes shifted to 0 .. 255, two of them for each half.
        __m256i sums = _mm256_sad_epu8(_mm256_xor_si256(bytes, flip), _mm256_setzero_si256());
        sums = _mm256_add_epi64(sums, _mm256_shuffle_epi32(sums, 0x4e));
        pass.sum[0][g] = _mm_cvtsi128_si32(_mm256_castsi256_si128(sums)) - 16 * 128;
        pass.sum[1][g] = _mm_cvtsi128_si32(_mm256_extracti128_si256(sums, 1)) - 16 * 128;
    }
}

// Table and 8-bit types go in as signed bytes, the others as unsigned codes.
constexpr bool signed_codes(const Format& f) { return f.table != Table::kNone || f.bits == 8; }

// Quads whose products fit a signed 16-bit sum: n * 2 * 127 * (largest code) <= 32767.
constexpr int chain_of(const Format& f) {
    return signed_codes(f) ? 1 : f.bits <= 4 ? 8 / f.subgroups : f.bits == 5 ? 4 : 2;
}

// One 32-byte half (8 lanes) of the codes of a group: 8 quads, to + 64 j.
template <Dtype T>
LEAFAGE_INLINE void unpack_codes(const uint8_t* p, uint8_t* to) {
    constexpr Format f = format_of(T);
    constexpr int bits = f.bits;
    auto plane = [p](int i) __attribute__((always_inline)) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 64 * i));
    };
    __m256i q[8];
    if constexpr (bits == 8) {
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j) q[j] = _mm256_xor_si256(plane(j), _mm256_set1_epi8(-128));
    } else if constexpr (bits <= 3) {
        const __m256i low = _mm256_set1_epi8(3), bit = _mm256_set1_epi8(4);
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j) q[j] = _mm256_and_si256(_mm256_srli_epi16(plane(j / 4), 2 * (j % 4)), low);
        if constexpr (bits == 3) {
            const __m256i h = plane(2);
#pragma GCC unroll 8
            for (int j = 0; j < 8; ++j) {
                __m256i v = j < 2 ? _mm256_slli_epi16(h, 2 - j) : _mm256_srli_epi16(h, j - 2);
                q[j] = _mm256_or_si256(q[j], _mm256_and_si256(v, bit));
            }
        }
    } else {
        const __m256i low = _mm256_set1_epi8(15), bit = _mm256_set1_epi8(16), pair = _mm256_set1_epi8(48);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            __m256i v = plane(i);
            q[i] = _mm256_and_si256(v, low);
            q[i + 4] = _mm256_and_si256(_mm256_srli_epi16(v, 4), low);
        }
        if constexpr (bits == 5) {
            const __m256i h = plane(4);
#pragma GCC unroll 8
            for (int j = 0; j < 8; ++j) {
                __m256i v = j < 4 ? _mm256_slli_epi16(h, 4 - j) : _mm256_srli_epi16(h, j - 4);
                q[j] = _mm256_or_si256(q[j], _mm256_and_si256(v, bit));
            }
        }
        if constexpr (bits == 6) {
#pragma GCC unroll 8
            for (int j = 0; j < 8; ++j) {
                const __m256i h = plane(4 + j / 4);
                __m256i v = j % 4 < 2 ? _mm256_slli_epi16(h, 4 - 2 * (j % 4)) : _mm256_srli_epi16(h, 2 * (j % 4) - 4);
                q[j] = _mm256_or_si256(q[j], _mm256_and_si256(v, pair));
            }
        }
    }
    if constexpr (f.table != Table::kNone) {
        const int8_t* values = f.table == Table::kIQ4 ? kIQ4Values : kMXFP4Values;
        const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values)));
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j) q[j] = _mm256_shuffle_epi8(table, q[j]);
    }
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) _mm256_store_si256(reinterpret_cast<__m256i*>(to + 64 * j), q[j]);
}

LEAFAGE_INLINE __m256 load_half(const uint8_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
LEAFAGE_INLINE __m128i load_8_bytes(const uint8_t* p) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)); }
LEAFAGE_INLINE __m256 load_u8(const uint8_t* p) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load_8_bytes(p))); }
LEAFAGE_INLINE __m256 load_i8(const uint8_t* p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_8_bytes(p))); }
LEAFAGE_INLINE __m256 negate(__m256 v) { return _mm256_xor_ps(v, _mm256_set1_ps(-0.0f)); }

// scales: of the record of group g. d and min of 8 lanes from `lane` on, to + 16 floats for each subgroup, then for min.
template <Dtype T>
LEAFAGE_INLINE void unpack_scales(const uint8_t* scales, int g, int lane, float* to) {
    constexpr Format f = format_of(T);
    constexpr int min_at = f.subgroups * kPanel;
    const uint8_t* record = scales + lane;
    const uint8_t* halves = record + lane;  // half-precision entries are twice as far
    const int sub = f.group_of_record(g) * f.subgroups;
    if constexpr (f.scales == Scales::kF16) {
        _mm256_store_ps(to, load_half(halves + 32 * sub));
    } else if constexpr (f.scales == Scales::kF16Min) {
        _mm256_store_ps(to, load_half(halves));
        _mm256_store_ps(to + min_at, load_half(halves + 32));
    } else if constexpr (f.scales == Scales::kE8M0) {
        const __m256i e = _mm256_cvtepu8_epi32(load_8_bytes(record + 16 * sub));
        const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
        const __m256i tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
        const __m256i is_tiny = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
        _mm256_store_ps(to, _mm256_castsi256_ps(_mm256_blendv_epi8(normal, tiny, is_tiny)));
    } else if constexpr (f.scales == Scales::kSub8Min) {
        _mm256_store_ps(to, _mm256_mul_ps(load_half(halves + 256), load_u8(record + sub * 16)));
        _mm256_store_ps(to + min_at, negate(_mm256_mul_ps(load_half(halves + 288), load_u8(record + 128 + sub * 16))));
    } else if constexpr (f.scales == Scales::kSub4Min) {
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
            const __m256i both = _mm256_cvtepu8_epi32(load_8_bytes(record + (sub + h) * 16));
            const __m256 scale = _mm256_cvtepi32_ps(_mm256_and_si256(both, _mm256_set1_epi32(15)));
            const __m256 min = _mm256_cvtepi32_ps(_mm256_srli_epi32(both, 4));
            _mm256_store_ps(to + h * kPanel, _mm256_mul_ps(load_half(halves + 256), scale));
            _mm256_store_ps(to + min_at + h * kPanel, negate(_mm256_mul_ps(load_half(halves + 288), min)));
        }
    } else if constexpr (f.scales == Scales::kSub16) {
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h)
            _mm256_store_ps(to + h * kPanel, _mm256_mul_ps(load_half(halves + 256), load_i8(record + (sub + h) * 16)));
    } else {
        static_assert(f.scales == Scales::kSub8);
        _mm256_store_ps(to, _mm256_mul_ps(load_half(halves + 128), load_i8(record + sub * 16)));
    }
}

// One quad of weights times four activations, as 32-bit sums.
template <bool Signed>
LEAFAGE_INLINE __m256i quad_product(const uint8_t* codes, const void* four) {
    int32_t bytes;
    std::memcpy(&bytes, four, 4);
    const __m256i q = _mm256_load_si256(reinterpret_cast<const __m256i*>(codes));
    const __m256i x = Signed ? _mm256_sign_epi8(_mm256_set1_epi32(bytes), q) : _mm256_set1_epi32(bytes);
    return _mm256_madd_epi16(_mm256_maddubs_epi16(Signed ? _mm256_abs_epi8(q) : q, x), _mm256_set1_epi16(1));
}

// One group, 8 lanes, R rows. xq [R][32], dx [R], aux [subgroups][stride] at this group; extra [R] and extra_at [R], or
// null where activations are not precise; acc [R][16].
template <int Subgroups, bool Min, bool Signed, int Chain, int R>
LEAFAGE_INLINE void group_rows(const uint8_t* codes, const float* scales, const uint8_t* xq, const float* dx,
                               const uint8_t* aux, int stride, const int32_t* extra, const int32_t* extra_at,
                               float* acc) {
    constexpr int quads = 8 / Subgroups;
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 2
    for (int h = 0; h < Subgroups; ++h) {
        __m256i dot[R];
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            int32_t start = 0;
            if constexpr (!Min && !Signed) std::memcpy(&start, aux + 4 * (h * stride + r), 4);
            dot[r] = _mm256_set1_epi32(start);
        }
#pragma GCC unroll 8
        for (int first = 0; first < quads; first += Chain) {
            __m256i sum[R];
#pragma GCC unroll 8
            for (int j = first; j < first + Chain; ++j) {
                const __m256i q = _mm256_load_si256(reinterpret_cast<const __m256i*>(codes + 64 * (h * quads + j)));
                const __m256i magnitude = Signed ? _mm256_abs_epi8(q) : q;
#pragma GCC unroll 4
                for (int r = 0; r < R; ++r) {
                    int32_t four;
                    std::memcpy(&four, xq + r * kGroup + 4 * (h * quads + j), 4);
                    __m256i x = _mm256_set1_epi32(four);
                    if constexpr (Signed) x = _mm256_sign_epi8(x, q);
                    const __m256i products = _mm256_maddubs_epi16(magnitude, x);
                    sum[r] = j == first ? products : _mm256_add_epi16(sum[r], products);
                }
            }
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) dot[r] = _mm256_add_epi32(dot[r], _mm256_madd_epi16(sum[r], ones));
        }
        if (extra != nullptr)
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r)
                if (Subgroups == 1 || extra_at[r] / (quads * kQuadBytes) == h)
                    dot[r] = _mm256_add_epi32(dot[r], quad_product<Signed>(codes + extra_at[r], extra + r));
        const __m256 d = _mm256_load_ps(scales + h * kPanel);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            __m256 value = _mm256_load_ps(acc + r * kPanel);
            value = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[r]), _mm256_mul_ps(d, _mm256_set1_ps(dx[r])), value);
            if constexpr (Min) {
                float total;
                std::memcpy(&total, aux + 4 * (h * stride + r), 4);
                const __m256 min = _mm256_load_ps(scales + (Subgroups + h) * kPanel);
                value = _mm256_fmadd_ps(min, _mm256_set1_ps(total), value);
            }
            _mm256_store_ps(acc + r * kPanel, value);
        }
    }
}

template <Dtype T, int R>
static void tile_groups(const uint8_t* weights, int begin, int end, const uint8_t* tile, const TileLayout& layout,
                        int row, float* acc) {
    constexpr Format f = format_of(T);
    const int stride = layout.tile_rows;
    for (int g = begin; g < end; ++g, weights += unpacked_bytes(f.subgroups, f.has_min)) {
        const size_t at = size_t(g) * size_t(stride) + size_t(row);
        const auto* scales = reinterpret_cast<const float*>(weights + 512);
        const auto* dx = reinterpret_cast<const float*>(tile + layout.dx) + at;
        const uint8_t* aux = tile + layout.aux[aux_of(f)] + 4 * (size_t(g) * size_t(stride) * f.subgroups + size_t(row));
        const auto* extra = layout.precise ? reinterpret_cast<const int32_t*>(tile + layout.extra) + at : nullptr;
        const auto* extra_at = layout.precise ? reinterpret_cast<const int32_t*>(tile + layout.extra_at) + at : nullptr;
        for (int half = 0; half < 2; ++half)
            group_rows<f.subgroups, f.has_min, signed_codes(f), chain_of(f), R>(
                weights + 32 * half, scales + 8 * half, tile + at * kGroup, dx, aux, stride, extra, extra_at,
                acc + 8 * half);
    }
}

// 8 lanes, R rows; x [k][stride]; acc as for all float types.
template <int R>
static void tile_float(const float* w, int begin, int end, const float* x, int stride, float* acc) {
    constexpr int odd_at = kTileRows * kPanel;
    __m256 even[R], odd[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
        even[r] = _mm256_load_ps(acc + r * kPanel);
        odd[r] = _mm256_load_ps(acc + odd_at + r * kPanel);
    }
    x += size_t(begin) * size_t(stride);
    int k = begin;
    for (; k + 2 <= end; k += 2, w += 2 * kPanel, x += 2 * stride) {
        const __m256 w0 = _mm256_loadu_ps(w), w1 = _mm256_loadu_ps(w + kPanel);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            even[r] = _mm256_fmadd_ps(w0, _mm256_set1_ps(x[r]), even[r]);
            odd[r] = _mm256_fmadd_ps(w1, _mm256_set1_ps(x[stride + r]), odd[r]);
        }
    }
    if (k < end) {
        const __m256 w0 = _mm256_loadu_ps(w);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) even[r] = _mm256_fmadd_ps(w0, _mm256_set1_ps(x[r]), even[r]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
        _mm256_store_ps(acc + r * kPanel, even[r]);
        _mm256_store_ps(acc + odd_at + r * kPanel, odd[r]);
    }
}

#include "linear_rows_impl.h"

template <Dtype T, bool Signed>
static const uint8_t* unpack(const uint8_t* panel, int k, int begin, int end, uint8_t* to) {
    constexpr Format f = format_of(T);
    if constexpr (f.quantized()) {
        uint8_t* at = to;
        for (int g = begin; g < end; ++g, at += unpacked_bytes(f.subgroups, f.has_min)) {
            const uint8_t *codes = panel + f.codes_at(g), *scales = panel + f.scales_at(g, k / kGroup);
            fetch_ahead<T>(panel, g);
            for (int half = 0; half < 2; ++half) {
                unpack_codes<T>(codes + 32 * half, at + 32 * half);
                unpack_scales<T>(scales, g, 8 * half, reinterpret_cast<float*>(at + 512) + 8 * half);
            }
        }
        return to;
    } else if constexpr (T == Dtype::F32) {
        return panel + size_t(begin) * 64;
    } else if constexpr (T == Dtype::F16) {
        auto* out = reinterpret_cast<float*>(to);
        for (int i = 0; i < 2 * (end - begin); ++i)
            _mm256_store_ps(out + 8 * i, load_half(panel + size_t(begin) * 32 + size_t(i) * 16));
        return to;
    } else {
        auto* out = reinterpret_cast<float*>(to);
        const __m256i upper = _mm256_set1_epi32(int(0xffff0000u));
        for (int i = begin; i < end; i += 2, out += 2 * kPanel)
            for (int half = 0; half < 2; ++half) {
                const auto* from = reinterpret_cast<const __m256i*>(panel + size_t(i) * 32 + 32 * half);
                const __m256i v = _mm256_loadu_si256(from);
                const __m256i even = _mm256_slli_epi32(v, 16), odd = _mm256_and_si256(v, upper);
                _mm256_store_ps(out + 8 * half, _mm256_castsi256_ps(even));
                if (i + 1 < end) _mm256_store_ps(out + kPanel + 8 * half, _mm256_castsi256_ps(odd));
            }
        return to;
    }
}

#include "linear_direct_impl.h"
template <Dtype T>
constexpr auto direct_any = direct_unpacked<T>;

#include "linear_store_impl.h"
#include "linear_types_impl.h"

}  // namespace LEAFAGE_ISA_NAMESPACE
}  // namespace leafage
