// Shared types of the native runtime. Nothing here depends on the instruction set. Functions in headers are
// static: a copy compiled for AVX-512 must never be the one that the linker keeps for all.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace leafage {

// Lanes of a weight panel: every packed matrix is cut into panels of 16 output rows.
constexpr int kPanel = 16;
// Activations are quantized in groups of 32 along k.
constexpr int kGroup = 32;
// Attention works in tiles of 16 tokens at absolute positions.
constexpr int kTile = 16;

static inline int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }
static inline int64_t ceil_div(int64_t x, int64_t by) { return (x + by - 1) / by; }

static inline float bf16_to_f32(uint16_t h) {
    uint32_t u = uint32_t(h) << 16;
    float f;
    std::memcpy(&f, &u, 4);
    return f;
}

// Round to nearest even; NaN stays NaN.
static inline uint16_t f32_to_bf16(float f) {
    uint32_t u;
    std::memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) return uint16_t((u >> 16) | 64);
    return uint16_t((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}

static inline float f16_to_f32(uint16_t h) {
    uint32_t sign = uint32_t(h & 0x8000u) << 16, e = (h >> 10) & 31, m = h & 1023, u;
    if (e == 31) {
        u = sign | 0x7f800000u | (m << 13);
    } else if (e != 0) {
        u = sign | ((e + 112) << 23) | (m << 13);
    } else if (m == 0) {
        u = sign;
    } else {  // subnormal half: normal float
        int shift = 0;
        while (!(m & 1024)) { m <<= 1; ++shift; }
        u = sign | (uint32_t(113 - shift) << 23) | ((m & 1023) << 13);
    }
    float f;
    std::memcpy(&f, &u, 4);
    return f;
}

}  // namespace leafage
