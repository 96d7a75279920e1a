// Portable kernels. Same integers as the others; a product is rounded before it is added.
#include <cmath>

namespace leafage {
namespace LEAFAGE_ISA_NAMESPACE {

#include "linear_quantize_impl.h"

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

template <int Subgroups, bool Min, int R>
static inline void group_rows(const uint8_t* group, int g, const uint8_t* tile, int stride, size_t dx_at, size_t aux_at,
                              float* acc) {
    constexpr int length = kGroup / Subgroups;
    const auto* w = reinterpret_cast<const int8_t*>(group);
    const auto* d = reinterpret_cast<const float*>(group + 512);
    const float* min = d + Subgroups * kPanel;
    for (int r = 0; r < R; ++r) {
        const auto* x = reinterpret_cast<const int8_t*>(tile) + (size_t(g) * stride + r) * kGroup;
        const float dx = reinterpret_cast<const float*>(tile + dx_at)[size_t(g) * stride + r];
        for (int h = 0; h < Subgroups; ++h) {
            int32_t dot[kPanel] = {};
            for (int i = h * length; i < (h + 1) * length; ++i)
                for (int l = 0; l < kPanel; ++l) dot[l] += int(w[i * kPanel + l]) * int(x[i]);
            float* to = acc + r * kPanel;
            for (int l = 0; l < kPanel; ++l) to[l] += float(dot[l]) * (d[h * kPanel + l] * dx);
            if (Min) {
                float sum = reinterpret_cast<const float*>(tile + aux_at)[size_t(g * Subgroups + h) * stride + r];
                for (int l = 0; l < kPanel; ++l) to[l] += min[h * kPanel + l] * sum;
            }
        }
    }
}

template <int Subgroups, bool Min, int R>
static void tile_groups(const uint8_t* weights, int begin, int end, const uint8_t* tile, const TileLayout& layout,
                        size_t aux_at, float* acc) {
    if (begin == 0) std::memset(acc, 0, sizeof(float) * R * kPanel);
    for (int g = begin; g < end; ++g, weights += unpacked_bytes(Subgroups, Min))
        group_rows<Subgroups, Min, R>(weights, g, tile, layout.tile_rows, layout.dx, aux_at, acc);
}

template <int R>
static void tile_float(const uint8_t* weights, int begin, int end, const uint8_t* tile, const TileLayout& layout,
                       float* acc) {
    constexpr int odd = kTileRows * kPanel;
    if (begin == 0)
        for (int c = 0; c < 2; ++c) std::memset(acc + c * odd, 0, sizeof(float) * R * kPanel);
    const auto* w = reinterpret_cast<const float*>(weights);
    const auto* x = reinterpret_cast<const float*>(tile + layout.floats);
    for (int k = begin; k < end; ++k, w += kPanel)
        for (int r = 0; r < R; ++r) {
            float* to = acc + (k % 2) * odd + r * kPanel;
            const float xk = x[size_t(k) * layout.tile_rows + r];
            for (int l = 0; l < kPanel; ++l) to[l] += w[l] * xk;
        }
}

template <Dtype T>
static const uint8_t* unpack(const uint8_t* panel, int k, int begin, int end, uint8_t* to) {
    constexpr Format f = format_of(T);
    if constexpr (f.quantized()) {
        const uint8_t* scales = panel + size_t(k / kGroup) * f.group_bytes();
        for (int g = begin; g < end; ++g)
            unpack_group<T>(panel + size_t(g) * f.group_bytes(), scales, g,
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

template <Dtype T, int R>
static void direct(const uint8_t* panel, const uint8_t* tile, const TileLayout& layout, float* acc) {
    constexpr Format f = format_of(T);
    constexpr int step = f.quantized() ? 8 : 128;
    alignas(64) uint8_t buffer[8 * unpacked_bytes(2, true) > 128 * 64 ? 8 * unpacked_bytes(2, true) : 128 * 64];
    const int units = f.quantized() ? layout.groups : layout.k;
    for (int begin = 0; begin < units; begin += step) {
        int end = begin + step < units ? begin + step : units;
        const uint8_t* weights = unpack<T>(panel, layout.k, begin, end, buffer);
        if constexpr (f.quantized())
            tile_groups<f.subgroups, f.has_min, R>(weights, begin, end, tile, layout, layout.aux[aux_of(f)], acc);
        else
            tile_float<R>(weights, begin, end, tile, layout, acc);
    }
}

#include "linear_types_impl.h"

}  // namespace LEAFAGE_ISA_NAMESPACE
}  // namespace leafage
