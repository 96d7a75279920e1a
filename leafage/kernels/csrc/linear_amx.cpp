#include "linear_amx.h"

#include <atomic>

#if defined(LEAFAGE_AMX)
#include <immintrin.h>

#include "amx_tiles.h"
#endif

namespace leafage {

namespace {

std::atomic<bool> enabled{true};

#if defined(LEAFAGE_AMX)

#define LEAFAGE_INLINE static inline __attribute__((always_inline))

// Tile registers: two dot-product tiles [rows][16 lanes] int32; activations [rows][32 or 16] and weights
// [8 or 4 quads][16 lanes][4] for one and for two subgroups. Macros, because the intrinsics stringify them.
#define TILE_DOT0 0
#define TILE_DOT1 1
#define TILE_X32A 2
#define TILE_W32A 3
#define TILE_X32B 4
#define TILE_W32B 5
#define TILE_X16 6
#define TILE_W16 7

void begin() {
    TileConfig config;
    config.set(TILE_DOT0, kTileRows, 64);
    config.set(TILE_DOT1, kTileRows, 64);
    config.set(TILE_X32A, kTileRows, 32);
    config.set(TILE_X32B, kTileRows, 32);
    config.set(TILE_X16, kTileRows, 16);
    config.set(TILE_W32A, 8, 64);
    config.set(TILE_W32B, 8, 64);
    config.set(TILE_W16, 4, 64);
    config.load();
}

void end() { _tile_release(); }

// Where the kernel stands: activations, dx and aux of a tile of 16 rows, unpacked weights.
template <int Subgroups, bool Min>
struct Cursor {
    const uint8_t *xq, *aux, *weights, *extra, *extra_at;
    const float* dx;

    void advance() {
        xq += kTileRows * kGroup;
        dx += kTileRows;
        aux += kTileRows * 4 * Subgroups;
        weights += unpacked_bytes(Subgroups, Min);
        extra += kTileRows * 4;
        extra_at += kTileRows * 4;
    }
    // What unsigned codes add to the dot product of row r is taken back; its widest quad gets its second int8.
    __m512i add_extra(__m512i dot, int h, int r) const {
        int32_t start = 0, four, where;
        if (!Min) std::memcpy(&start, aux + 4 * (h * kTileRows + r), 4);
        std::memcpy(&four, extra + 4 * r, 4);
        std::memcpy(&where, extra_at + 4 * r, 4);
        if constexpr (Subgroups == 2) {
            four = where / (4 * kQuadBytes) == h ? four : 0;
            where = where % (4 * kQuadBytes) + h * 4 * kQuadBytes;
        }
        dot = _mm512_add_epi32(dot, _mm512_set1_epi32(start));
        return _mm512_dpbusd_epi32(dot, _mm512_load_si512(weights + where), _mm512_set1_epi32(four));
    }
};

// acc += dot * (d * dx) (+ min * sum) for subgroup h, as group_rows of the VNNI kernels. dots [16 rows][16].
template <bool Precise, int Subgroups, bool Min>
LEAFAGE_INLINE void add_dots(const int32_t* dots, const Cursor<Subgroups, Min>& at, int h, __m512 acc[kTileRows]) {
    const __m512 d = _mm512_load_ps(at.weights + 512 + 64 * h);
    const __m512 min = Min ? _mm512_load_ps(at.weights + 512 + 64 * (Subgroups + h)) : d;
#pragma GCC unroll 16
    for (int r = 0; r < kTileRows; ++r) {
        __m512i products = _mm512_load_si512(dots + r * kPanel);
        if constexpr (Precise) products = at.add_extra(products, h, r);
        const __m512 dot = _mm512_cvtepi32_ps(products);
        acc[r] = _mm512_fmadd_ps(dot, _mm512_mul_ps(d, _mm512_set1_ps(at.dx[r])), acc[r]);
        if constexpr (Min) {
            float sum;
            std::memcpy(&sum, at.aux + 4 * (h * kTileRows + r), 4);
            acc[r] = _mm512_fmadd_ps(min, _mm512_set1_ps(sum), acc[r]);
        }
    }
}

// Activations times codes, unsigned ones where Precise.
#define MULTIPLY(dot, x, w)                                     \
    do {                                                        \
        if constexpr (Precise) _tile_dpbsud(dot, x, w);         \
        else _tile_dpbssd(dot, x, w);                           \
    } while (0)

// The next dot products into the two dot tiles: of two groups (or one, the last), or of a group's two halves.
template <bool Precise, int Subgroups, bool Min>
LEAFAGE_INLINE void start(const Cursor<Subgroups, Min>& at, bool second) {
    if constexpr (Subgroups == 1) {
        _tile_loadd(TILE_X32A, at.xq, kGroup);
        _tile_loadd(TILE_W32A, at.weights, 64);
        _tile_zero(TILE_DOT0);
        MULTIPLY(TILE_DOT0, TILE_X32A, TILE_W32A);
        if (!second) return;
        _tile_loadd(TILE_X32B, at.xq + kTileRows * kGroup, kGroup);
        _tile_loadd(TILE_W32B, at.weights + unpacked_bytes(1, Min), 64);
        _tile_zero(TILE_DOT1);
        MULTIPLY(TILE_DOT1, TILE_X32B, TILE_W32B);
    } else {
        _tile_loadd(TILE_X16, at.xq, kGroup);
        _tile_loadd(TILE_W16, at.weights, 64);
        _tile_zero(TILE_DOT0);
        MULTIPLY(TILE_DOT0, TILE_X16, TILE_W16);
        _tile_loadd(TILE_X16, at.xq + 16, kGroup);
        _tile_loadd(TILE_W16, at.weights + 256, 64);
        _tile_zero(TILE_DOT1);
        MULTIPLY(TILE_DOT1, TILE_X16, TILE_W16);
    }
}

// A step is one pair of dot tiles: it goes from `start` through memory into the accumulators. Vector loads wait
// until a tile store has left the store buffer, so a step lies between a store and its loads; and the dot
// products of a step are computed while an older one is added up, before they are stored.
template <bool Precise, int Subgroups, bool Min>
void tile_groups(const uint8_t* weights, int begin, int end, const uint8_t* tile, const TileLayout& layout,
                 size_t aux_at, float* out) {
    constexpr int groups = 3 - Subgroups, ahead = 1, slots = ahead + 1;
    const int steps = (end - begin + groups - 1) / groups;
    Cursor<Subgroups, Min> at{tile + size_t(begin) * kTileRows * kGroup,
                              tile + aux_at + size_t(begin) * kTileRows * 4 * Subgroups, weights,
                              tile + layout.extra + size_t(begin) * kTileRows * 4,
                              tile + layout.extra_at + size_t(begin) * kTileRows * 4,
                              reinterpret_cast<const float*>(tile + layout.dx) + begin * kTileRows};
    Cursor<Subgroups, Min> next = at;
    alignas(64) int32_t dots[slots][2][kTileRows * kPanel];
    __m512 acc[kTileRows];
#pragma GCC unroll 16
    for (int r = 0; r < kTileRows; ++r) acc[r] = begin == 0 ? _mm512_setzero_ps() : _mm512_load_ps(out + r * kPanel);
    for (int s = 0; s < ahead && s < steps; ++s) {
        start<Precise>(next, begin + s * groups + 1 < end);
        _tile_stored(TILE_DOT0, dots[s][0], 64);
        _tile_stored(TILE_DOT1, dots[s][1], 64);
        next.advance();
        if (groups == 2) next.advance();
    }
    int slot = 0, next_slot = ahead;
    for (int s = 0; s < steps; ++s) {
        const bool more = s + ahead < steps;
        if (more) start<Precise>(next, begin + (s + ahead) * groups + 1 < end);
        add_dots<Precise>(dots[slot][0], at, 0, acc);
        if (groups == 1) {
            add_dots<Precise>(dots[slot][1], at, 1, acc);
            at.advance();
        } else {
            at.advance();
            if (begin + s * groups + 1 < end) add_dots<Precise>(dots[slot][1], at, 0, acc);
            at.advance();
        }
        if (more) {
            _tile_stored(TILE_DOT0, dots[next_slot][0], 64);
            _tile_stored(TILE_DOT1, dots[next_slot][1], 64);
            next.advance();
            if (groups == 2) next.advance();
        }
        slot = slot + 1 == slots ? 0 : slot + 1;
        next_slot = next_slot + 1 == slots ? 0 : next_slot + 1;
    }
#pragma GCC unroll 16
    for (int r = 0; r < kTileRows; ++r) _mm512_store_ps(out + r * kPanel, acc[r]);
}

bool available() {
    return cpu_has("amx-int8") && cpu_has("amx-tile") && amx_granted();
}

#endif

}  // namespace

const AmxKernels* amx_kernels() {
#if defined(LEAFAGE_AMX)
    static const AmxKernels table{
        begin, end,
        {{{tile_groups<false, 1, false>, tile_groups<false, 1, true>},
          {tile_groups<false, 2, false>, tile_groups<false, 2, true>}},
         {{tile_groups<true, 1, false>, tile_groups<true, 1, true>},
          {tile_groups<true, 2, false>, tile_groups<true, 2, true>}}}};
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
