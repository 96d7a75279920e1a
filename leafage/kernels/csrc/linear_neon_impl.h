// ARM NEON kernels with the dot product extension: one register holds a quad of inputs of 4 lanes, `sdot` multiplies
// it with four activations that are one lane of another. Codes go in as signed bytes. The same bits as AVX-512.
#include <arm_neon.h>

#include <cmath>

namespace leafage {
namespace LEAFAGE_ISA_NAMESPACE {

#include "linear_common_impl.h"

static inline void find_absmax(const float* x, int n, RowPass& pass) {
    const uint32x4_t magnitude = vdupq_n_u32(0x7fffffffu);
    for (int g = 0; g < n; ++g, x += kGroup) {
        uint32x4_t most = vdupq_n_u32(0);
#pragma GCC unroll 8
        for (int i = 0; i < kGroup; i += 4)
            most = vmaxq_u32(most, vandq_u32(vreinterpretq_u32_f32(vld1q_f32(x + i)), magnitude));
        pass.absmax[g] = vmaxvq_u32(most);
    }
}

static inline void quantize_groups(const float* x, int n, RowPass& pass, int8_t* q, size_t q_stride) {
    for (int g = 0; g < n; ++g, x += kGroup, q += q_stride) {
        const float inverse = pass.inverse[g];
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
            // Rounds to nearest even; NaN, which is what an infinity times the factor 0 is, becomes 0.
            auto four = [&](int i) { return vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 16 * h + i), inverse)); };
            int16x8_t low = vcombine_s16(vmovn_s32(four(0)), vmovn_s32(four(4)));
            int16x8_t high = vcombine_s16(vmovn_s32(four(8)), vmovn_s32(four(12)));
            int8x16_t bytes = vmaxq_s8(vcombine_s8(vqmovn_s16(low), vqmovn_s16(high)), vdupq_n_s8(-127));
            vst1q_s8(q + 16 * h, bytes);
            pass.sum[h][g] = vaddlvq_s8(bytes);
        }
    }
}

// Codes of 4 lanes of a group as 8 quads of signed bytes. p: 16 bytes per plane, planes 64 bytes apart.
template <Dtype T>
LEAFAGE_INLINE void load_codes(const uint8_t* p, int8x16_t q[8]) {
    constexpr Format f = format_of(T);
    constexpr int bits = f.bits;
    auto plane = [p](int i) __attribute__((always_inline)) { return vld1q_u8(p + 64 * i); };
    uint8x16_t code[8];
    if constexpr (bits == 8) {
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j) code[j] = veorq_u8(plane(j), vdupq_n_u8(128));
    } else if constexpr (bits <= 3) {
        const uint8x16_t low = vdupq_n_u8(3), bit = vdupq_n_u8(4);
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j) code[j] = vandq_u8(vshlq_u8(plane(j / 4), vdupq_n_s8(int8_t(-2 * (j % 4)))), low);
        if constexpr (bits == 3) {
            const uint8x16_t h = plane(2);
#pragma GCC unroll 8
            for (int j = 0; j < 8; ++j) code[j] = vorrq_u8(code[j], vandq_u8(vshlq_u8(h, vdupq_n_s8(int8_t(2 - j))), bit));
        }
    } else {
        const uint8x16_t low = vdupq_n_u8(15), bit = vdupq_n_u8(16), pair = vdupq_n_u8(48);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            const uint8x16_t v = plane(i);
            code[i] = vandq_u8(v, low);
            code[i + 4] = vshrq_n_u8(v, 4);
        }
        if constexpr (bits == 5) {
            const uint8x16_t h = plane(4);
#pragma GCC unroll 8
            for (int j = 0; j < 8; ++j) code[j] = vorrq_u8(code[j], vandq_u8(vshlq_u8(h, vdupq_n_s8(int8_t(4 - j))), bit));
        }
        if constexpr (bits == 6) {
#pragma GCC unroll 8
            for (int j = 0; j < 8; ++j) {
                const uint8x16_t v = vshlq_u8(plane(4 + j / 4), vdupq_n_s8(int8_t(4 - 2 * (j % 4))));
                code[j] = vorrq_u8(code[j], vandq_u8(v, pair));
            }
        }
    }
    if constexpr (f.table != Table::kNone) {
        const int8x16_t table = vld1q_s8(f.table == Table::kIQ4 ? kIQ4Values : kMXFP4Values);
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j) q[j] = vqtbl1q_s8(table, code[j]);
    } else {
        const int8x16_t offset = vdupq_n_s8(int8_t(bits == 8 ? 0 : f.offset));
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j) q[j] = vsubq_s8(vreinterpretq_s8_u8(code[j]), offset);
    }
}

LEAFAGE_INLINE float32x4_t load_half(const uint8_t* p) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}
LEAFAGE_INLINE uint32x4_t load_4_bytes(const uint8_t* p) {
    uint32_t four;
    std::memcpy(&four, p, 4);
    return vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four))));
}
LEAFAGE_INLINE float32x4_t load_u8(const uint8_t* p) { return vcvtq_f32_u32(load_4_bytes(p)); }
LEAFAGE_INLINE float32x4_t load_i8(const uint8_t* p) {
    uint32_t four;
    std::memcpy(&four, p, 4);
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(four)))));
}

// d and min of 4 lanes, per subgroup. load_scales: scales of the record of group g.
struct LaneScales {
    float32x4_t d[2], min[2];
};

template <Dtype T>
LEAFAGE_INLINE LaneScales load_scales(const uint8_t* scales, int g, int lane) {
    constexpr Format f = format_of(T);
    const uint8_t* record = scales + lane;
    const uint8_t* halves = record + lane;  // half-precision entries are twice as far
    const int sub = f.group_of_record(g) * f.subgroups;
    LaneScales s = {};
    if constexpr (f.scales == Scales::kF16) {
        s.d[0] = load_half(halves + 32 * sub);
    } else if constexpr (f.scales == Scales::kF16Min) {
        s.d[0] = load_half(halves);
        s.min[0] = load_half(halves + 32);
    } else if constexpr (f.scales == Scales::kE8M0) {
        const uint32x4_t e = load_4_bytes(record + 16 * sub);
        const uint32x4_t normal = vshlq_n_u32(vsubq_u32(e, vdupq_n_u32(1)), 23);
        const uint32x4_t tiny = vshlq_u32(vdupq_n_u32(0x00200000), vreinterpretq_s32_u32(e));
        s.d[0] = vreinterpretq_f32_u32(vbslq_u32(vcltq_u32(e, vdupq_n_u32(2)), tiny, normal));
    } else if constexpr (f.scales == Scales::kSub8Min) {
        s.d[0] = vmulq_f32(load_half(halves + 256), load_u8(record + sub * 16));
        s.min[0] = vnegq_f32(vmulq_f32(load_half(halves + 288), load_u8(record + 128 + sub * 16)));
    } else if constexpr (f.scales == Scales::kSub4Min) {
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
            const uint32x4_t both = load_4_bytes(record + (sub + h) * 16);
            s.d[h] = vmulq_f32(load_half(halves + 256), vcvtq_f32_u32(vandq_u32(both, vdupq_n_u32(15))));
            s.min[h] = vnegq_f32(vmulq_f32(load_half(halves + 288), vcvtq_f32_u32(vshrq_n_u32(both, 4))));
        }
    } else if constexpr (f.scales == Scales::kSub16) {
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) s.d[h] = vmulq_f32(load_half(halves + 256), load_i8(record + (sub + h) * 16));
    } else {
        static_assert(f.scales == Scales::kSub8);
        s.d[0] = vmulq_f32(load_half(halves + 128), load_i8(record + sub * 16));
    }
    return s;
}

// The activations of rows in one group: xq [rows][32], dx [rows], sums [subgroups][stride].
struct GroupRows {
    const int8_t* xq;
    const float* dx;
    const float* sums;
    const int32_t *extra, *extra_at;  // [rows]; null: not precise
    int stride;

    GroupRows(const uint8_t* tile, const TileLayout& layout, size_t aux_at, int subgroups, int g, int row)
        : stride(layout.tile_rows) {
        const size_t at = size_t(g) * size_t(stride) + size_t(row);
        xq = reinterpret_cast<const int8_t*>(tile) + at * kGroup;
        dx = reinterpret_cast<const float*>(tile + layout.dx) + at;
        sums = reinterpret_cast<const float*>(tile + aux_at) + size_t(g) * size_t(stride) * size_t(subgroups) + row;
        extra = layout.precise ? reinterpret_cast<const int32_t*>(tile + layout.extra) + at : nullptr;
        extra_at = layout.precise ? reinterpret_cast<const int32_t*>(tile + layout.extra_at) + at : nullptr;
    }
};

// Quad j of a row's 8 quads against 4 lanes.
template <int J>
LEAFAGE_INLINE int32x4_t add_quad(int32x4_t dot, int8x16_t q, const int8x16_t x[2]) {
    return vdotq_laneq_s32(dot, q, x[J / 4], J % 4);
}
template <int First, int End>
LEAFAGE_INLINE int32x4_t add_quads(int32x4_t dot, const int8x16_t q[8], const int8x16_t x[2]) {
    if constexpr (First < End) return add_quads<First + 1, End>(add_quad<First>(dot, q[First], x), q, x);
    else return dot;
}

// acc [R][16] at 4 lanes: one group, codes and scales in registers.
template <int Subgroups, bool Min, int R>
LEAFAGE_INLINE void add_group(const int8x16_t q[8], const LaneScales& s, const GroupRows& rows, float* acc) {
    constexpr int quads = 8 / Subgroups;
    int8_t codes[8][16];  // where the extra dot products find their quad
    if (rows.extra != nullptr)
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j) vst1q_s8(codes[j], q[j]);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        const int8x16_t x[2] = {vld1q_s8(rows.xq + r * kGroup), vld1q_s8(rows.xq + r * kGroup + 16)};
        float32x4_t value = vld1q_f32(acc + r * kPanel);
        int32x4_t start[2] = {vdupq_n_s32(0), vdupq_n_s32(0)};
        if (rows.extra != nullptr) {
            const int widest = rows.extra_at[r] / kQuadBytes;
            const int8x16_t four = vreinterpretq_s8_s32(vdupq_n_s32(rows.extra[r]));
            const int32x4_t dot = vdotq_s32(start[0], vld1q_s8(codes[widest]), four);
            (widest < quads ? start[0] : start[1]) = dot;
        }
        value = vfmaq_f32(value, vcvtq_f32_s32(add_quads<0, quads>(start[0], q, x)), vmulq_n_f32(s.d[0], rows.dx[r]));
        if constexpr (Min) value = vfmaq_n_f32(value, s.min[0], rows.sums[r]);
        if constexpr (Subgroups == 2) {
            value = vfmaq_f32(value, vcvtq_f32_s32(add_quads<4, 8>(start[1], q, x)), vmulq_n_f32(s.d[1], rows.dx[r]));
            if constexpr (Min) value = vfmaq_n_f32(value, s.min[1], rows.sums[rows.stride + r]);
        }
        vst1q_f32(acc + r * kPanel, value);
    }
}

// From unpacked weights: codes [8 quads][16 lanes][4], then scales.
template <Dtype T, int R>
static void tile_groups(const uint8_t* weights, int begin, int end, const uint8_t* tile, const TileLayout& layout,
                        int row, float* acc) {
    constexpr Format f = format_of(T);
    for (int g = begin; g < end; ++g, weights += unpacked_bytes(f.subgroups, f.has_min)) {
        const GroupRows rows(tile, layout, layout.aux[aux_of(f)], f.subgroups, g, row);
        const auto* scales = reinterpret_cast<const float*>(weights + 512);
#pragma GCC unroll 4
        for (int lane = 0; lane < kPanel; lane += 4) {
            int8x16_t q[8];
#pragma GCC unroll 8
            for (int j = 0; j < 8; ++j) q[j] = vld1q_s8(reinterpret_cast<const int8_t*>(weights) + 64 * j + 4 * lane);
            LaneScales s = {};
#pragma GCC unroll 2
            for (int h = 0; h < f.subgroups; ++h) {
                s.d[h] = vld1q_f32(scales + h * kPanel + lane);
                if constexpr (f.has_min) s.min[h] = vld1q_f32(scales + (f.subgroups + h) * kPanel + lane);
            }
            add_group<f.subgroups, f.has_min, R>(q, s, rows, acc + lane);
        }
    }
}

// Straight from the panel.
template <Dtype T, int R>
static void direct_groups(const uint8_t* panel, const Stream& stream, const uint8_t* tile, const TileLayout& layout,
                          float* acc) {
    constexpr Format f = format_of(T);
    std::memset(acc, 0, sizeof(float) * R * kPanel);
    for (int g = 0; g < layout.groups; ++g) {
        const uint8_t *codes = panel + f.codes_at(g), *scales = panel + f.scales_at(g, layout.groups);
        fetch_passing<T>(panel + size_t(g) * kGroupBytes<T>, stream);
        const GroupRows rows(tile, layout, layout.aux[aux_of(f)], f.subgroups, g, 0);
#pragma GCC unroll 4
        for (int lane = 0; lane < kPanel; lane += 4) {
            int8x16_t q[8];
            load_codes<T>(codes + 4 * lane, q);
            add_group<f.subgroups, f.has_min, R>(q, load_scales<T>(scales, g, lane), rows, acc + lane);
        }
    }
}

// 8 lanes, R rows; x [k][stride]; acc as for all float types.
template <int R>
static void tile_float(const float* w, int begin, int end, const float* x, int stride, float* acc) {
    constexpr int odd_at = kTileRows * kPanel;
    float32x4_t even[R][2], odd[R][2];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
            even[r][h] = vld1q_f32(acc + r * kPanel + 4 * h);
            odd[r][h] = vld1q_f32(acc + odd_at + r * kPanel + 4 * h);
        }
    x += size_t(begin) * size_t(stride);
    int k = begin;
    for (; k + 2 <= end; k += 2, w += 2 * kPanel, x += 2 * stride)
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
            const float32x4_t w0 = vld1q_f32(w + 4 * h), w1 = vld1q_f32(w + kPanel + 4 * h);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) {
                even[r][h] = vfmaq_n_f32(even[r][h], w0, x[r]);
                odd[r][h] = vfmaq_n_f32(odd[r][h], w1, x[stride + r]);
            }
        }
    if (k < end)
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
            for (int h = 0; h < 2; ++h) even[r][h] = vfmaq_n_f32(even[r][h], vld1q_f32(w + 4 * h), x[r]);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
            vst1q_f32(acc + r * kPanel + 4 * h, even[r][h]);
            vst1q_f32(acc + odd_at + r * kPanel + 4 * h, odd[r][h]);
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
            auto* floats = reinterpret_cast<float*>(at + 512);
#pragma GCC unroll 4
            for (int lane = 0; lane < kPanel; lane += 4) {
                int8x16_t q[8];
                load_codes<T>(codes + 4 * lane, q);
#pragma GCC unroll 8
                for (int j = 0; j < 8; ++j) vst1q_s8(reinterpret_cast<int8_t*>(at) + 64 * j + 4 * lane, q[j]);
                const LaneScales s = load_scales<T>(scales, g, lane);
#pragma GCC unroll 2
                for (int h = 0; h < f.subgroups; ++h) {
                    vst1q_f32(floats + h * kPanel + lane, s.d[h]);
                    if constexpr (f.has_min) vst1q_f32(floats + (f.subgroups + h) * kPanel + lane, s.min[h]);
                }
            }
        }
        return to;
    } else if constexpr (T == Dtype::F32) {
        return panel + size_t(begin) * 64;
    } else if constexpr (T == Dtype::F16) {
        auto* out = reinterpret_cast<float*>(to);
        for (int i = 0; i < 4 * (end - begin); ++i)
            vst1q_f32(out + 4 * i, load_half(panel + size_t(begin) * 32 + size_t(i) * 8));
        return to;
    } else {
        auto* out = reinterpret_cast<float*>(to);
        for (int i = begin; i < end; i += 2, out += 2 * kPanel)
            for (int lane = 0; lane < kPanel; lane += 4) {
                const uint32x4_t v = vreinterpretq_u32_u8(vld1q_u8(panel + size_t(i) * 32 + size_t(lane) * 4));
                vst1q_f32(out + lane, vreinterpretq_f32_u32(vshlq_n_u32(v, 16)));
                if (i + 1 < end)
                    vst1q_f32(out + kPanel + lane, vreinterpretq_f32_u32(vandq_u32(v, vdupq_n_u32(0xffff0000u))));
            }
        return to;
    }
}

#include "linear_direct_impl.h"

template <Dtype T>
static void direct_any(int rows, const uint8_t* panel, const Stream& stream, const uint8_t* tile,
                       const TileLayout& layout, float* acc) {
    if constexpr (format_of(T).quantized()) {
        switch (rows) {
            case 1: return direct_groups<T, 1>(panel, stream, tile, layout, acc);
            case 2: return direct_groups<T, 2>(panel, stream, tile, layout, acc);
            case 3: return direct_groups<T, 3>(panel, stream, tile, layout, acc);
            case 4: return direct_groups<T, 4>(panel, stream, tile, layout, acc);
            case 6: return direct_groups<T, 6>(panel, stream, tile, layout, acc);
            default: return direct_groups<T, 8>(panel, stream, tile, layout, acc);
        }
    } else {
        direct_unpacked<T>(rows, panel, stream, tile, layout, acc);
    }
}

#include "linear_store_impl.h"
#include "linear_types_impl.h"

}  // namespace LEAFAGE_ISA_NAMESPACE
}  // namespace leafage
