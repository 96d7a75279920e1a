// AVX-512 VNNI kernels: one register holds a quad of inputs of 16 lanes, `vpdpbusd` multiplies it with four
// activations broadcast from memory.
#include <immintrin.h>

#include <cmath>

namespace leafage {
namespace LEAFAGE_ISA_NAMESPACE {

#include "linear_common_impl.h"

LEAFAGE_INLINE __m512 load_half(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
LEAFAGE_INLINE __m512 load_u8(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
LEAFAGE_INLINE __m512 load_i8(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
LEAFAGE_INLINE __m512 negate(__m512 v) { return _mm512_xor_ps(v, _mm512_set1_ps(-0.0f)); }

// Codes of a group as 8 quads of bytes q + bias (Signed: q itself).
template <Dtype T, bool Signed>
LEAFAGE_INLINE void load_codes(const uint8_t* p, __m512i q[8]) {
    constexpr Format f = format_of(T);
    constexpr int bits = f.bits;
    auto plane = [p](int i) __attribute__((always_inline)) { return _mm512_loadu_si512(p + 64 * i); };
    if constexpr (bits == 8) {
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j) q[j] = plane(j);
    } else if constexpr (bits <= 3) {
        const __m512i low = _mm512_set1_epi8(3);
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) {
            __m512i v = plane(i);
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j) q[4 * i + j] = _mm512_and_si512(_mm512_srli_epi16(v, 2 * j), low);
        }
        if constexpr (bits == 3) {
            const __m512i h = plane(2), bit = _mm512_set1_epi8(4);
#pragma GCC unroll 8
            for (int j = 0; j < 8; ++j) {
                __m512i v = j < 2 ? _mm512_slli_epi16(h, 2 - j) : _mm512_srli_epi16(h, j - 2);
                q[j] = _mm512_ternarylogic_epi32(q[j], v, bit, 0xf8);  // q | (v & bit)
            }
        }
    } else {
        const __m512i low = _mm512_set1_epi8(15);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            __m512i v = plane(i);
            q[i] = _mm512_and_si512(v, low);
            q[i + 4] = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
        }
        if constexpr (bits == 5) {
            const __m512i h = plane(4), bit = _mm512_set1_epi8(16);
#pragma GCC unroll 8
            for (int j = 0; j < 8; ++j) {
                __m512i v = j < 4 ? _mm512_slli_epi16(h, 4 - j) : _mm512_srli_epi16(h, j - 4);
                q[j] = _mm512_ternarylogic_epi32(q[j], v, bit, 0xf8);
            }
        }
        if constexpr (bits == 6) {
            const __m512i pair = _mm512_set1_epi8(48);
#pragma GCC unroll 2
            for (int i = 0; i < 2; ++i) {
                const __m512i h = plane(4 + i);
#pragma GCC unroll 4
                for (int j = 0; j < 4; ++j) {
                    __m512i v = j < 2 ? _mm512_slli_epi16(h, 4 - 2 * j) : _mm512_srli_epi16(h, 2 * j - 4);
                    q[4 * i + j] = _mm512_ternarylogic_epi32(q[4 * i + j], v, pair, 0xf8);
                }
            }
        }
    }
    if constexpr (f.table != Table::kNone) {
        alignas(16) static constexpr int8_t values[2][16] = {
            {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113},
            {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}};
        __m128i t = _mm_load_si128(reinterpret_cast<const __m128i*>(values[f.table == Table::kMXFP4]));
        if constexpr (!Signed) t = _mm_xor_si128(t, _mm_set1_epi8(-128));
        const __m512i table = _mm512_broadcast_i32x4(t);
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j) q[j] = _mm512_shuffle_epi8(table, q[j]);
    } else if constexpr (Signed && f.offset != 0) {
        const __m512i offset = _mm512_set1_epi8(char(f.offset));
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j) q[j] = _mm512_sub_epi8(q[j], offset);
    }
}

// d and min of the subgroups of group g; record: its record's scales.
template <Dtype T>
LEAFAGE_INLINE void load_scales(const uint8_t* record, int g, __m512 d[2], __m512 min[2]) {
    constexpr Format f = format_of(T);
    const int sub = f.group_of_record(g) * f.subgroups;
    if constexpr (f.scales == Scales::kF16) {
        d[0] = load_half(record + 32 * sub);
    } else if constexpr (f.scales == Scales::kF16Min) {
        d[0] = load_half(record);
        min[0] = load_half(record + 32);
    } else if constexpr (f.scales == Scales::kE8M0) {
        __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(record + 16 * sub)));
        __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
        __mmask16 tiny = _mm512_cmplt_epu32_mask(e, _mm512_set1_epi32(2));
        d[0] = _mm512_castsi512_ps(_mm512_mask_sllv_epi32(normal, tiny, _mm512_set1_epi32(0x00200000), e));
    } else if constexpr (f.scales == Scales::kSub8Min) {
        d[0] = _mm512_mul_ps(load_half(record + 256), load_u8(record + sub * 16));
        min[0] = negate(_mm512_mul_ps(load_half(record + 288), load_u8(record + 128 + sub * 16)));
    } else if constexpr (f.scales == Scales::kSub4Min) {
        const __m512 dd = load_half(record + 256), dm = load_half(record + 288);
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
            const auto* at = reinterpret_cast<const __m128i*>(record + (sub + h) * 16);
            __m512i both = _mm512_cvtepu8_epi32(_mm_loadu_si128(at));
            d[h] = _mm512_mul_ps(dd, _mm512_cvtepi32_ps(_mm512_and_si512(both, _mm512_set1_epi32(15))));
            min[h] = negate(_mm512_mul_ps(dm, _mm512_cvtepi32_ps(_mm512_srli_epi32(both, 4))));
        }
    } else if constexpr (f.scales == Scales::kSub16) {
        const __m512 dd = load_half(record + 256);
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) d[h] = _mm512_mul_ps(dd, load_i8(record + (sub + h) * 16));
    } else {
        static_assert(f.scales == Scales::kSub8);
        d[0] = _mm512_mul_ps(load_half(record + 128), load_i8(record + sub * 16));
    }
}

// Where precise rows keep what int8 leaves of their widest quads; at a group, [R].
struct Extra {
    const uint8_t *four, *at;

    Extra(const uint8_t* tile, const TileLayout& layout, int group)
        : four(tile + layout.extra + 4 * size_t(group) * size_t(layout.tile_rows)),
          at(tile + layout.extra_at + 4 * size_t(group) * size_t(layout.tile_rows)) {}
    void advance(int rows) {
        four += 4 * rows;
        at += 4 * rows;
    }
    // The product of row r that belongs to subgroup h, added to dot. codes: of the group, in memory.
    template <int Subgroups>
    __m512i add(__m512i dot, int r, int h, const uint8_t* codes) const {
        int32_t bytes, where;
        std::memcpy(&bytes, four + 4 * r, 4);
        std::memcpy(&where, at + 4 * r, 4);
        if constexpr (Subgroups == 2) {
            bytes = where / (4 * kQuadBytes) == h ? bytes : 0;
            where = where % (4 * kQuadBytes) + h * 4 * kQuadBytes;
        }
        return _mm512_dpbusd_epi32(dot, _mm512_loadu_si512(codes + size_t(unsigned(where))), _mm512_set1_epi32(bytes));
    }
};

// One group against R rows: xq [R][32], dx [R], aux [subgroups][stride] at this group. Two rows side by side: their
// chains of dot products hide each other's latency, and few enough are open for the scheduler of the CPU.
template <int Subgroups, bool Min, bool Precise, int R>
LEAFAGE_INLINE void group_rows(const __m512i q[8], const __m512 d[2], const __m512 min[2], const uint8_t* xq,
                               const float* dx, const uint8_t* aux, int stride, const Extra& extra,
                               const uint8_t* codes, __m512 acc[R]) {
    constexpr int quads = 8 / Subgroups;
#pragma GCC unroll 16
    for (int first = 0; first < R; first += 2) {
        constexpr int pair = R == 1 ? 1 : 2;  // the last one of an odd R is alone
#pragma GCC unroll 2
        for (int h = 0; h < Subgroups; ++h) {
            __m512i dot[pair];
#pragma GCC unroll 2
            for (int i = 0; i < pair; ++i) {
                int32_t start = 0;
                if (!Min && first + i < R)
                    std::memcpy(&start, aux + 4 * (size_t(h) * size_t(stride) + size_t(first + i)), 4);
                dot[i] = Min ? _mm512_setzero_si512() : _mm512_set1_epi32(start);
                if (Precise && first + i < R) dot[i] = extra.add<Subgroups>(dot[i], first + i, h, codes);
            }
#pragma GCC unroll 8
            for (int j = h * quads; j < (h + 1) * quads; ++j)
#pragma GCC unroll 2
                for (int i = 0; i < pair; ++i) {
                    if (first + i >= R) continue;
                    int32_t four;
                    std::memcpy(&four, xq + (first + i) * kGroup + 4 * j, 4);
                    dot[i] = _mm512_dpbusd_epi32(dot[i], q[j], _mm512_set1_epi32(four));
                }
#pragma GCC unroll 2
            for (int i = 0; i < pair; ++i) {
                const int r = first + i;
                if (r >= R) continue;
                const __m512 scale = _mm512_mul_ps(d[h], _mm512_set1_ps(dx[r]));
                acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[i]), scale, acc[r]);
                if constexpr (Min) {
                    float sum;
                    std::memcpy(&sum, aux + 4 * (size_t(h) * size_t(stride) + size_t(r)), 4);
                    acc[r] = _mm512_fmadd_ps(min[h], _mm512_set1_ps(sum), acc[r]);
                }
            }
        }
    }
}

// ahead: what is unpacked after these weights, fetched meanwhile, `ahead_bytes` for each group; or null.
template <int Subgroups, bool Min, bool Precise, int R>
static void tile_groups(const uint8_t* weights, int begin, int end, const uint8_t* tile, const TileLayout& layout,
                        size_t aux_at, const uint8_t* ahead, int ahead_bytes, float* out) {
    const uint8_t* xq = tile + size_t(begin) * kTileRows * kGroup;
    const float* dx = reinterpret_cast<const float*>(tile + layout.dx) + begin * kTileRows;
    const uint8_t* aux = tile + aux_at + size_t(begin) * kTileRows * 4 * Subgroups;
    Extra extra(tile, layout, begin);
    __m512 acc[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) acc[r] = begin == 0 ? _mm512_setzero_ps() : _mm512_load_ps(out + r * kPanel);
    for (int g = begin; g < end; ++g) {
        if (ahead != nullptr) {
            for (int i = 0; i < ahead_bytes; i += 64) __builtin_prefetch(ahead + i);
            ahead += ahead_bytes;
        }
        __m512i q[8];
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j) q[j] = _mm512_load_si512(weights + 64 * j);
        __m512 d[2], min[2];
#pragma GCC unroll 2
        for (int h = 0; h < Subgroups; ++h) {
            d[h] = _mm512_load_ps(weights + 512 + 64 * h);
            if constexpr (Min) min[h] = _mm512_load_ps(weights + 512 + 64 * (Subgroups + h));
        }
        group_rows<Subgroups, Min, Precise, R>(q, d, min, xq, dx, aux, kTileRows, extra, weights, acc);
        extra.advance(kTileRows);
        weights += unpacked_bytes(Subgroups, Min);
        xq += kTileRows * kGroup;
        dx += kTileRows;
        aux += kTileRows * 4 * Subgroups;
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) _mm512_store_ps(out + r * kPanel, acc[r]);
}

// Two inputs (even, odd) of 16 lanes as float.
template <Dtype T>
LEAFAGE_INLINE void load_pair(const uint8_t* panel, int k, __m512& even, __m512& odd) {
    if constexpr (T == Dtype::F32) {
        even = _mm512_loadu_ps(panel + size_t(k) * 64);
        odd = _mm512_loadu_ps(panel + size_t(k) * 64 + 64);
    } else if constexpr (T == Dtype::F16) {
        even = load_half(panel + size_t(k) * 32);
        odd = load_half(panel + size_t(k) * 32 + 32);
    } else {
        __m512i v = _mm512_loadu_si512(panel + size_t(k) * 32);
        even = _mm512_castsi512_ps(_mm512_slli_epi32(v, 16));
        odd = _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(int(0xffff0000u))));
    }
}

template <Dtype T>
LEAFAGE_INLINE __m512 load_last(const uint8_t* panel, int k) {  // k even, no pair
    if constexpr (T == Dtype::F32) {
        return _mm512_loadu_ps(panel + size_t(k) * 64);
    } else if constexpr (T == Dtype::F16) {
        return load_half(panel + size_t(k) * 32);
    } else {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(panel + size_t(k) * 32), 16));
    }
}

// Rows of a float tile: up to 8 at a time (16 accumulators). `x` is [k][stride].
template <Dtype T, int R>
LEAFAGE_INLINE void float_rows(const uint8_t* panel, int begin, int end, const float* x, int stride, float* out) {
    constexpr int odd_at = kTileRows * kPanel;
    __m512 even[R], odd[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        even[r] = begin == 0 ? _mm512_setzero_ps() : _mm512_load_ps(out + r * kPanel);
        odd[r] = begin == 0 ? _mm512_setzero_ps() : _mm512_load_ps(out + odd_at + r * kPanel);
    }
    int k = begin;
    x += size_t(begin) * size_t(stride);
    for (; k + 2 <= end; k += 2) {
        __m512 w0, w1;
        load_pair<T>(panel, k - begin, w0, w1);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            even[r] = _mm512_fmadd_ps(w0, _mm512_set1_ps(x[r]), even[r]);
            odd[r] = _mm512_fmadd_ps(w1, _mm512_set1_ps(x[stride + r]), odd[r]);
        }
        x += 2 * stride;
    }
    if (k < end) {
        __m512 w0 = load_last<T>(panel, k - begin);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) even[r] = _mm512_fmadd_ps(w0, _mm512_set1_ps(x[r]), even[r]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        _mm512_store_ps(out + r * kPanel, even[r]);
        _mm512_store_ps(out + odd_at + r * kPanel, odd[r]);
    }
}

template <int R>
static void tile_float(const uint8_t* weights, int begin, int end, const uint8_t* tile, const TileLayout& layout,
                       float* acc) {
    constexpr int first = R < 8 ? R : 8;
    const float* x = reinterpret_cast<const float*>(tile + layout.floats);
    float_rows<Dtype::F32, first>(weights, begin, end, x, kTileRows, acc);
    if constexpr (R > 8) float_rows<Dtype::F32, R - 8>(weights, begin, end, x + 8, kTileRows, acc + 8 * kPanel);
}

template <Dtype T, bool Signed>
static const uint8_t* unpack(const uint8_t* panel, int k, int begin, int end, uint8_t* to) {
    constexpr Format f = format_of(T);
    if constexpr (f.quantized()) {
        uint8_t* at = to;
        for (int g = begin; g < end; ++g, at += unpacked_bytes(f.subgroups, f.has_min)) {
            __m512i q[8];
            __m512 d[2], min[2];
            const uint8_t* codes = panel + f.codes_at(g);
            load_codes<T, Signed>(codes, q);
            load_scales<T>(panel + f.scales_at(g, k / kGroup), g, d, min);
#pragma GCC unroll 8
            for (int j = 0; j < 8; ++j) _mm512_store_si512(at + 64 * j, q[j]);
#pragma GCC unroll 2
            for (int h = 0; h < f.subgroups; ++h) {
                _mm512_store_ps(at + 512 + 64 * h, d[h]);
                if constexpr (f.has_min) _mm512_store_ps(at + 512 + 64 * (f.subgroups + h), min[h]);
            }
        }
        return to;
    } else if constexpr (T == Dtype::F32) {
        return panel + size_t(begin) * 64;
    } else {
        auto* out = reinterpret_cast<float*>(to);
        const uint8_t* from = panel + size_t(begin) * 32;
        int i = 0;
        for (; i + 2 <= end - begin; i += 2) {
            __m512 even, odd;
            load_pair<T>(from, i, even, odd);
            _mm512_store_ps(out + i * kPanel, even);
            _mm512_store_ps(out + (i + 1) * kPanel, odd);
        }
        if (i < end - begin) _mm512_store_ps(out + i * kPanel, load_last<T>(from, i));
        return to;
    }
}

// Few rows: codes go from the panel through registers into the dot products.
template <Dtype T, bool Precise, int R>
static void direct(const uint8_t* panel, const Stream& stream, const uint8_t* tile, const TileLayout& layout, float* out) {
    constexpr Format f = format_of(T);
    if constexpr (!f.quantized()) {
        const auto* x = reinterpret_cast<const float*>(tile + layout.floats);
        float_rows<T, R < 8 ? R : 8>(panel, 0, layout.k, x, R, out);
        if constexpr (R > 8) float_rows<T, R - 8>(panel, 0, layout.k, x + 8, R, out + 8 * kPanel);
    } else {
        const uint8_t* xq = tile;
        const float* dx = reinterpret_cast<const float*>(tile + layout.dx);
        const uint8_t* aux = tile + layout.aux[aux_of(f)];
        Extra extra(tile, layout, 0);
        alignas(64) uint8_t unpacked[8 * kQuadBytes];
        __m512 acc[R];
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) acc[r] = _mm512_setzero_ps();
        // Group i of a record of n groups; so little is left of a group of one row that addresses count.
        auto group = [&](const uint8_t* record, int i, int n) __attribute__((always_inline)) {
            fetch_passing<T>(record + i * kGroupBytes<T>, stream);
            __m512i q[8];
            __m512 d[2], min[2];
            const uint8_t* codes = record + i * f.group_bytes();
            load_codes<T, false>(codes, q);
            load_scales<T>(record + n * f.group_bytes(), i, d, min);
            if constexpr (Precise && f.bits != 8)
#pragma GCC unroll 8
                for (int j = 0; j < 8; ++j) _mm512_store_si512(unpacked + kQuadBytes * j, q[j]);
            const uint8_t* quads = f.bits == 8 ? codes : unpacked;
            group_rows<f.subgroups, f.has_min, Precise, R>(q, d, min, xq, dx, aux, R, extra, quads, acc);
            extra.advance(R);
            xq += R * kGroup;
            dx += R;
            aux += R * 4 * f.subgroups;
        };
        const uint8_t* record = panel;
        int left = layout.groups;
        for (; left >= f.scale_groups; left -= f.scale_groups, record += f.record_bytes()) {
            if constexpr (f.scale_groups == 2) {
                group(record, 0, 2);
                group(record, 1, 2);
            } else {
                for (int i = 0; i < f.scale_groups; ++i) group(record, i, f.scale_groups);
            }
        }
        for (int i = 0; i < left; ++i) group(record, i, left);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) _mm512_store_ps(out + r * kPanel, acc[r]);
    }
}

template <Dtype T, int R>
static inline void tile_of(const uint8_t* weights, int begin, int end, const uint8_t* tile, const TileLayout& layout,
                           const uint8_t* ahead, float* acc) {
    constexpr Format f = format_of(T);
    if constexpr (!f.quantized())
        tile_float<R>(weights, begin, end, tile, layout, acc);
    else
        (layout.precise ? tile_groups<f.subgroups, f.has_min, true, R> : tile_groups<f.subgroups, f.has_min, false, R>)(
            weights, begin, end, tile, layout, layout.aux[aux_of(f)], ahead, kGroupBytes<T>, acc);
}

template <Dtype T>
static void tile_any(int rows, const uint8_t* weights, int begin, int end, const uint8_t* tile,
                     const TileLayout& layout, const uint8_t* ahead, float* acc) {
    switch (rows) {
        case 1: return tile_of<T, 1>(weights, begin, end, tile, layout, ahead, acc);
        case 2: return tile_of<T, 2>(weights, begin, end, tile, layout, ahead, acc);
        case 3:
        case 4: return tile_of<T, 4>(weights, begin, end, tile, layout, ahead, acc);
        case 6: return tile_of<T, 6>(weights, begin, end, tile, layout, ahead, acc);
        case 8: return tile_of<T, 8>(weights, begin, end, tile, layout, ahead, acc);
        case 10: return tile_of<T, 10>(weights, begin, end, tile, layout, ahead, acc);
        case 12: return tile_of<T, 12>(weights, begin, end, tile, layout, ahead, acc);
        case 14: return tile_of<T, 14>(weights, begin, end, tile, layout, ahead, acc);
        default: return tile_of<T, 16>(weights, begin, end, tile, layout, ahead, acc);
    }
}

template <Dtype T, bool Precise>
static void direct_of(int rows, const uint8_t* panel, const Stream& stream, const uint8_t* tile,
                      const TileLayout& layout, float* acc) {
    switch (rows) {
        case 1: return direct<T, Precise, 1>(panel, stream, tile, layout, acc);
        case 2: return direct<T, Precise, 2>(panel, stream, tile, layout, acc);
        case 3: return direct<T, Precise, 3>(panel, stream, tile, layout, acc);
        case 4: return direct<T, Precise, 4>(panel, stream, tile, layout, acc);
        case 6: return direct<T, Precise, 6>(panel, stream, tile, layout, acc);
        case 8: return direct<T, Precise, 8>(panel, stream, tile, layout, acc);
        case 10: return direct<T, Precise, 10>(panel, stream, tile, layout, acc);
        case 12: return direct<T, Precise, 12>(panel, stream, tile, layout, acc);
        case 14: return direct<T, Precise, 14>(panel, stream, tile, layout, acc);
        default: return direct<T, Precise, 16>(panel, stream, tile, layout, acc);
    }
}

template <Dtype T>
static void direct_any(int rows, const uint8_t* panel, const Stream& stream, const uint8_t* tile,
                       const TileLayout& layout, float* acc) {
    constexpr bool quantized = format_of(T).quantized();
    (quantized && layout.precise ? direct_of<T, quantized> : direct_of<T, false>)(rows, panel, stream, tile, layout, acc);
}

// acc (both chains of it) plus bias into the output, or added to it.
static inline void store_rows(const LinearArgs& a, int first_row, int rows, int column, int lanes, const float* acc,
                              bool two_chains) {
    const __mmask16 mask = __mmask16((1u << lanes) - 1);
    const __m512 bias = a.bias ? _mm512_maskz_loadu_ps(mask, a.bias + column) : _mm512_setzero_ps();
    float* out = a.out + size_t(first_row) * size_t(a.ldo) + column;
    for (int r = 0; r < rows; ++r, out += a.ldo) {
        __m512 value = _mm512_load_ps(acc + r * kPanel);
        if (two_chains) value = _mm512_add_ps(value, _mm512_load_ps(acc + (kTileRows + r) * kPanel));
        if (a.bias) value = _mm512_add_ps(value, bias);
        if (a.accumulate) value = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, out), value);
        _mm512_mask_storeu_ps(out, mask, value);
    }
}

#include "linear_types_impl.h"

}  // namespace LEAFAGE_ISA_NAMESPACE
}  // namespace leafage
