#include "attention_amx.h"

#if defined(LEAFAGE_AMX)
#include <immintrin.h>

#include "amx_tiles.h"
#include "attention_scratch.h"
#endif

namespace leafage {

#if defined(LEAFAGE_AMX)

namespace {

// Tile registers, macros because the intrinsics stringify them: four sums [16 rows][16]; rows of operands
// [16][32 values] and their counterpart [16 pairs][16][2]; the same of half the depth.
#define TILE_SUM0 0
#define TILE_SUM1 1
#define TILE_SUM2 2
#define TILE_SUM3 3
#define TILE_ROWS 4
#define TILE_PAIRS 5
#define TILE_HALF_ROWS 6
#define TILE_HALF_PAIRS 7

void begin() {
    TileConfig config;
    for (int tile = 0; tile < 8; ++tile)
        config.set(tile, tile == TILE_HALF_PAIRS ? 8 : 16, tile == TILE_HALF_ROWS ? 32 : 64);
    config.load();
}

void end() { _tile_release(); }

void zero_sums() {
    _tile_zero(TILE_SUM0);
    _tile_zero(TILE_SUM1);
    _tile_zero(TILE_SUM2);
    _tile_zero(TILE_SUM3);
}

void scores(const uint16_t* q, int head_dim, const uint16_t* const* k, int tiles, const uint16_t* const* ahead_v,
            float* s) {
    for (int i = 0; i < tiles; i += 4) {
        int n = tiles - i < 4 ? tiles - i : 4;
        zero_sums();
        int d = 0;
        // What the products at depth d of tile i + j have read and what follows them.
        auto fetch = [&](int j, int depth) {
            if (ahead_v == nullptr) return;
            const uint16_t* next = k[i + j + 4 < tiles ? i + j + 4 : i + j] + d * kTile;
            const uint16_t* v = ahead_v[i + j] + d * kTile;
            for (int x = 0; x < depth * kTile; x += 32) {
                fetch_line(next + x);
                fetch_line(v + x);
            }
        };
#define ADD_PRODUCTS(j, rows, pairs, depth)                    \
    if (n > j) {                                               \
        _tile_loadd(pairs, k[i + j] + d * kTile, 64);          \
        _tile_dpbf16ps(j, rows, pairs);                        \
        fetch(j, depth);                                       \
    }
        for (; d + 32 <= head_dim; d += 32) {
            _tile_loadd(TILE_ROWS, q + d, head_dim * 2);
            ADD_PRODUCTS(TILE_SUM0, TILE_ROWS, TILE_PAIRS, 32)
            ADD_PRODUCTS(TILE_SUM1, TILE_ROWS, TILE_PAIRS, 32)
            ADD_PRODUCTS(TILE_SUM2, TILE_ROWS, TILE_PAIRS, 32)
            ADD_PRODUCTS(TILE_SUM3, TILE_ROWS, TILE_PAIRS, 32)
        }
        if (d < head_dim) {
            _tile_loadd(TILE_HALF_ROWS, q + d, head_dim * 2);
            ADD_PRODUCTS(TILE_SUM0, TILE_HALF_ROWS, TILE_HALF_PAIRS, 16)
            ADD_PRODUCTS(TILE_SUM1, TILE_HALF_ROWS, TILE_HALF_PAIRS, 16)
            ADD_PRODUCTS(TILE_SUM2, TILE_HALF_ROWS, TILE_HALF_PAIRS, 16)
            ADD_PRODUCTS(TILE_SUM3, TILE_HALF_ROWS, TILE_HALF_PAIRS, 16)
        }
#undef ADD_PRODUCTS
        _tile_stored(TILE_SUM0, s + i * kTile, kScoreStride * 4);
        if (n > 1) _tile_stored(TILE_SUM1, s + (i + 1) * kTile, kScoreStride * 4);
        if (n > 2) _tile_stored(TILE_SUM2, s + (i + 2) * kTile, kScoreStride * 4);
        if (n > 3) _tile_stored(TILE_SUM3, s + (i + 3) * kTile, kScoreStride * 4);
    }
}

void values(const uint16_t* p, int rows, const uint16_t* const* v, int tiles, int head_dim, float* out,
            const float* keep, const float* take) {
    alignas(64) float sums[4][16 * 16];
    for (int column = 0; column < head_dim; column += 64) {
        int n = head_dim - column < 64 ? (head_dim - column) / 16 : 4;
        zero_sums();
#define ADD_PRODUCTS(j)                                                \
    if (n > j) {                                                       \
        _tile_loadd(TILE_HALF_PAIRS, v[t] + (column + j * 16) * 2, head_dim * 4); \
        _tile_dpbf16ps(j, TILE_HALF_ROWS, TILE_HALF_PAIRS);            \
    }
        for (int t = 0; t < tiles; ++t) {
            _tile_loadd(TILE_HALF_ROWS, p + t * kTile, kScoreStride * 4);
            ADD_PRODUCTS(TILE_SUM0)
            ADD_PRODUCTS(TILE_SUM1)
            ADD_PRODUCTS(TILE_SUM2)
            ADD_PRODUCTS(TILE_SUM3)
        }
#undef ADD_PRODUCTS
        _tile_stored(TILE_SUM0, sums[0], 64);
        _tile_stored(TILE_SUM1, sums[1], 64);
        _tile_stored(TILE_SUM2, sums[2], 64);
        _tile_stored(TILE_SUM3, sums[3], 64);
        for (int m = 0; m < rows; ++m)
            for (int j = 0; j < n; ++j) {
                float* to = out + m * head_dim + column + j * 16;
                __m512 x = _mm512_load_ps(sums[j] + m * 16);
                if (keep != nullptr)
                    x = _mm512_fmadd_ps(_mm512_loadu_ps(to), _mm512_set1_ps(keep[m]),
                                        _mm512_mul_ps(x, _mm512_set1_ps(take[m])));
                _mm512_storeu_ps(to, x);
            }
    }
}

// Linux hands out the tile state on request, once per process.
bool available() {
    return cpu_has("amx-bf16") && cpu_has("amx-tile") && amx_granted();
}

constexpr AttentionAmx kKernels{begin, end, scores, values};

}  // namespace

const AttentionAmx* attention_amx() {
    static const bool found = available();
    return found ? &kKernels : nullptr;
}

#else

const AttentionAmx* attention_amx() { return nullptr; }

#endif

}  // namespace leafage
