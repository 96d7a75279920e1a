#include "linear_amx.h"

#include <atomic>

#if defined(LEAFAGE_AMX)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace leafage {

namespace {

std::atomic<bool> enabled{true};

#if defined(LEAFAGE_AMX)

// Tile registers: two dot-product tiles [rows][16 lanes] int32; activations [rows][32 or 16] and weights
// [8 or 4 quads][16 lanes][4] for one and for two subgroups. Macros, because the intrinsics stringify them.
#define TILE_DOT0 0
#define TILE_DOT1 1
#define TILE_X32 2
#define TILE_W32 3
#define TILE_X16 4
#define TILE_W16 5

struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};

void begin(int rows) {
    TileConfig config;
    auto set = [&](int tile, int tile_rows, int row_bytes) {
        config.rows[tile] = uint8_t(tile_rows);
        config.row_bytes[tile] = uint16_t(row_bytes);
    };
    set(TILE_DOT0, rows, 64);
    set(TILE_DOT1, rows, 64);
    set(TILE_X32, rows, 32);
    set(TILE_X16, rows, 16);
    set(TILE_W32, 8, 64);
    set(TILE_W16, 4, 64);
    // GCC's intrinsic declares 8 of the 64 bytes as read and drops the other stores.
    asm volatile("ldtilecfg %0" ::"m"(config));
}

void end() { _tile_release(); }

// acc += dot * (d * dx) (+ min * sum), as group_rows of the VNNI kernels.
template <int Subgroups, bool Min, int R>
static inline __attribute__((always_inline)) void finish_group(const int32_t* dots, const uint8_t* scales, const float* dx,
                                                               const uint8_t* aux, __m512 acc[R]) {
    __m512 d[2], min[2];
#pragma GCC unroll 2
    for (int h = 0; h < Subgroups; ++h) {
        d[h] = _mm512_load_ps(scales + 64 * h);
        if constexpr (Min) min[h] = _mm512_load_ps(scales + 64 * (Subgroups + h));
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (int h = 0; h < Subgroups; ++h) {
            __m512 dot = _mm512_cvtepi32_ps(_mm512_load_si512(dots + (h * R + r) * kPanel));
            acc[r] = _mm512_fmadd_ps(dot, _mm512_mul_ps(d[h], _mm512_set1_ps(dx[r])), acc[r]);
            if constexpr (Min) {
                float sum;
                std::memcpy(&sum, aux + 4 * (h * kTileRows + r), 4);
                acc[r] = _mm512_fmadd_ps(min[h], _mm512_set1_ps(sum), acc[r]);
            }
        }
    }
}

// The dot products of one group into dots [subgroups][R][16].
template <int Subgroups, int R>
static inline __attribute__((always_inline)) void start_group(const uint8_t* xq, const uint8_t* weights, int32_t* dots) {
    if constexpr (Subgroups == 1) {
        _tile_loadd(TILE_X32, xq, kGroup);
        _tile_loadd(TILE_W32, weights, 64);
        _tile_zero(TILE_DOT0);
        _tile_dpbssd(TILE_DOT0, TILE_X32, TILE_W32);
        _tile_stored(TILE_DOT0, dots, 64);
    } else {
        _tile_loadd(TILE_X16, xq, kGroup);
        _tile_loadd(TILE_W16, weights, 64);
        _tile_zero(TILE_DOT0);
        _tile_dpbssd(TILE_DOT0, TILE_X16, TILE_W16);
        _tile_stored(TILE_DOT0, dots, 64);
        _tile_loadd(TILE_X16, xq + 16, kGroup);
        _tile_loadd(TILE_W16, weights + 256, 64);
        _tile_zero(TILE_DOT1);
        _tile_dpbssd(TILE_DOT1, TILE_X16, TILE_W16);
        _tile_stored(TILE_DOT1, dots + R * kPanel, 64);
    }
}

template <int Subgroups, bool Min, int R>
void tile_groups(const uint8_t* weights, int begin, int end, const uint8_t* tile, const TileLayout& layout, size_t aux_at,
                 float* out) {
    constexpr int step = unpacked_bytes(Subgroups, Min);
    const uint8_t* xq = tile + size_t(begin) * kTileRows * kGroup;
    const float* dx = reinterpret_cast<const float*>(tile + layout.dx) + begin * kTileRows;
    const uint8_t* aux = tile + aux_at + size_t(begin) * kTileRows * 4 * Subgroups;
    alignas(64) int32_t dots[2][Subgroups * R * kPanel];
    __m512 acc[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) acc[r] = begin == 0 ? _mm512_setzero_ps() : _mm512_load_ps(out + r * kPanel);
    start_group<Subgroups, R>(xq, weights, dots[0]);
    for (int g = begin; g < end; ++g) {
        xq += kTileRows * kGroup;
        if (g + 1 < end) start_group<Subgroups, R>(xq, weights + step, dots[(g + 1 - begin) & 1]);
        finish_group<Subgroups, Min, R>(dots[(g - begin) & 1], weights + 512, dx, aux, acc);
        weights += step;
        dx += kTileRows;
        aux += kTileRows * 4 * Subgroups;
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) _mm512_store_ps(out + r * kPanel, acc[r]);
}

bool available() {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("amx-int8") || !__builtin_cpu_supports("amx-tile")) return false;
    constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

#endif

}  // namespace

const AmxKernels* amx_kernels() {
#if defined(LEAFAGE_AMX)
    static const AmxKernels table{
        begin, end,
        {{{tile_groups<1, false, 8>, tile_groups<1, false, 16>}, {tile_groups<1, true, 8>, tile_groups<1, true, 16>}},
         {{tile_groups<2, false, 8>, tile_groups<2, false, 16>}, {tile_groups<2, true, 8>, tile_groups<2, true, 16>}}}};
    static const bool here = available();
    return here && enabled.load(std::memory_order_relaxed) ? &table : nullptr;
#else
    return nullptr;
#endif
}

bool use_amx(bool on) {
    enabled.store(on, std::memory_order_relaxed);
    return amx_kernels() != nullptr;
}

}  // namespace leafage
