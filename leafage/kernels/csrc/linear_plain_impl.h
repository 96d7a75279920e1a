// Portable kernels. Same integers as the others; a product is rounded before it is added.
#include <cmath>

namespace leafage {
namespace LEAFAGE_ISA_NAMESPACE {

#include "linear_common_impl.h"

static inline void find_absmax(const float* x, int n, RowPass& pass) {
    for (int g = 0; g < n; ++g) {
        uint32_t absmax = 0;
        for (int i = 0; i < kGroup; ++i) {
            uint32_t bits = float_bits(x[g * kGroup + i]) & 0x7fffffffu;
            absmax = bits > absmax ? bits : absmax;
        }
        pass.absmax[g] = absmax;
    }
}

static inline void quantize_groups(const float* x, int n, RowPass& pass, int8_t* q, size_t q_stride) {
    for (int g = 0; g < n; ++g, x += kGroup, q += q_stride) {
        const float inverse = pass.inverse[g];
        int sum[2] = {0, 0};
        for (int i = 0; i < kGroup; ++i) {
            int v = inverse == 0.0f ? 0 : int(lrintf(x[i] * inverse));
            v = v > 127 ? 127 : v < -127 ? -127 : v;
            q[i] = int8_t(v);
            sum[i / 16] += v;
        }
        pass.sum[0][g] = sum[0];
        pass.sum[1][g] = sum[1];
    }
}

// d and min [subgroups][16] of a group, with the roundings of dequantize_row.
static inline void group_scales(const Format& f, const uint8_t* record, int g, float* d, float* min) {
    const int sub = f.group_of_record(g) * f.subgroups;
    auto half = [&](int at, int lane) {
        uint16_t h;
        std::memcpy(&h, record + at + 2 * lane, 2);
        return f16_to_f32(h);
    };
    for (int l = 0; l < kPanel; ++l) switch (f.scales) {
            case Scales::kNone: break;
            case Scales::kF16: d[l] = half(32 * sub, l); break;
            case Scales::kF16Min:
                d[l] = half(0, l);
                min[l] = half(32, l);
                break;
            case Scales::kE8M0: {
                uint32_t e = record[16 * sub + l];
                d[l] = bits_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
                break;
            }
            case Scales::kSub8Min:
                d[l] = half(256, l) * float(record[sub * 16 + l]);
                min[l] = -(half(288, l) * float(record[128 + sub * 16 + l]));
                break;
            case Scales::kSub4Min:
                for (int h = 0; h < 2; ++h) {
                    uint8_t both = record[(sub + h) * 16 + l];
                    d[h * kPanel + l] = half(256, l) * float(both & 15);
                    min[h * kPanel + l] = -(half(288, l) * float(both >> 4));
                }
                break;
            case Scales::kSub16:
                for (int h = 0; h < 2; ++h)
                    d[h * kPanel + l] = half(256, l) * float(int8_t(record[(sub + h) * 16 + l]));
                break;
            case Scales::kSub8: d[l] = half(128, l) * float(int8_t(record[sub * 16 + l])); break;
        }
}

// The group in signed bytes [32 inputs][16 lanes], then d and min as float: what `unpack` makes of it.
template <Dtype T>
static inline void unpack_group(const uint8_t* codes, const uint8_t* scales, int g, uint8_t* to) {
    constexpr Format f = format_of(T);
    auto* q = reinterpret_cast<int8_t*>(to);
    for (int j = 0; j < 8; ++j)
        for (int b = 0; b < 64; ++b) {
            int code;
            if (f.bits == 8) {
                code = codes[64 * j + b];
            } else if (f.bits <= 3) {
                code = codes[64 * (j / 4) + b] >> (2 * (j % 4)) & 3;
                if (f.bits == 3) code |= (codes[128 + b] >> j & 1) << 2;
            } else {
                code = codes[64 * (j % 4) + b] >> (4 * (j / 4)) & 15;
                if (f.bits == 5) code |= (codes[256 + b] >> j & 1) << 4;
                if (f.bits == 6) code |= (codes[256 + 64 * (j / 4) + b] >> (2 * (j % 4)) & 3) << 4;
            }
            int value = f.table == Table::kIQ4     ? kIQ4Values[code]
                        : f.table == Table::kMXFP4 ? kMXFP4Values[code]
                                                   : code - f.offset;
            q[(4 * j + b % 4) * kPanel + b / 4] = int8_t(value);
        }
    auto* d = reinterpret_cast<float*>(to + 512);
    group_scales(f, scales, g, d, d + f.subgroups * kPanel);
}

template <int Subgroups, bool Min>
static inline void group_rows(int rows, const uint8_t* group, int g, const uint8_t* tile, const TileLayout& layout,
                              size_t aux_at, float* acc) {
    const int stride = layout.tile_rows;
    constexpr int length = kGroup / Subgroups;
    const auto* w = reinterpret_cast<const int8_t*>(group);
    const auto* d = reinterpret_cast<const float*>(group + 512);
    const float* min = d + Subgroups * kPanel;
    for (int r = 0; r < rows; ++r) {
        const auto* x = reinterpret_cast<const int8_t*>(tile) + (size_t(g) * stride + r) * kGroup;
        const float dx = reinterpret_cast<const float*>(tile + layout.dx)[size_t(g) * stride + r];
        const size_t extra = 4 * (size_t(g) * stride + r);
        int32_t widest = -1;
        if (layout.precise) {
            std::memcpy(&widest, tile + layout.extra_at + extra, 4);
            widest /= kQuadBytes;
        }
        for (int h = 0; h < Subgroups; ++h) {
            int32_t dot[kPanel] = {};
            for (int i = h * length; i < (h + 1) * length; ++i)
                for (int l = 0; l < kPanel; ++l) dot[l] += int(w[i * kPanel + l]) * int(x[i]);
            if (widest >= 0 && 4 * widest / length == h)
                for (int i = 0; i < 4; ++i)
                    for (int l = 0; l < kPanel; ++l)
                        dot[l] += int(w[(4 * widest + i) * kPanel + l]) * int(int8_t(tile[layout.extra + extra + i]));
            float* to = acc + r * kPanel;
            for (int l = 0; l < kPanel; ++l) to[l] += float(dot[l]) * (d[h * kPanel + l] * dx);
            if (Min) {
                float sum = reinterpret_cast<const float*>(tile + aux_at)[size_t(g * Subgroups + h) * stride + r];
                for (int l = 0; l < kPanel; ++l) to[l] += min[h * kPanel + l] * sum;
            }
        }
    }
}

template <Dtype T>
static void tile_any(int rows, const uint8_t* weights, int begin, int end, const uint8_t* tile,
                     const TileLayout& layout, const uint8_t*, float* acc) {
    constexpr Format f = format_of(T);
    constexpr int odd = kTileRows * kPanel;
    if (begin == 0) std::memset(acc, 0, sizeof(float) * size_t(rows) * kPanel);
    if constexpr (f.quantized()) {
        for (int g = begin; g < end; ++g, weights += unpacked_bytes(f.subgroups, f.has_min))
            group_rows<f.subgroups, f.has_min>(rows, weights, g, tile, layout, layout.aux[aux_of(f)], acc);
    } else {
        if (begin == 0) std::memset(acc + odd, 0, sizeof(float) * size_t(rows) * kPanel);
        const auto* w = reinterpret_cast<const float*>(weights);
        const auto* x = reinterpret_cast<const float*>(tile + layout.floats);
        for (int k = begin; k < end; ++k, w += kPanel)
            for (int r = 0; r < rows; ++r) {
                float* to = acc + (k % 2) * odd + r * kPanel;
                const float xk = x[size_t(k) * size_t(layout.tile_rows) + size_t(r)];
                for (int l = 0; l < kPanel; ++l) to[l] += w[l] * xk;
            }
    }
}

template <Dtype T, bool Signed>
static const uint8_t* unpack(const uint8_t* panel, int k, int begin, int end, uint8_t* to) {
    constexpr Format f = format_of(T);
    if constexpr (f.quantized()) {
        for (int g = begin; g < end; ++g)
            unpack_group<T>(panel + f.codes_at(g), panel + f.scales_at(g, k / kGroup), g,
                            to + (g - begin) * unpacked_bytes(f.subgroups, f.has_min));
        return to;
    } else if constexpr (T == Dtype::F32) {
        return panel + size_t(begin) * kPanel * 4;
    } else {
        auto* out = reinterpret_cast<float*>(to);
        for (int i = begin; i < end; ++i)
            for (int l = 0; l < kPanel; ++l) {
                uint16_t h;
                size_t at = T == Dtype::BF16 ? (size_t(i / 2) * kPanel + l) * 2 + i % 2 : size_t(i) * kPanel + l;
                std::memcpy(&h, panel + at * 2, 2);
                *out++ = T == Dtype::BF16 ? bf16_to_f32(h) : f16_to_f32(h);
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
