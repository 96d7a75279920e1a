// What the kernels share: fetching weights ahead, quantizing activation rows into a tile. Included inside the
// namespace of an instruction set.

#define LEAFAGE_INLINE static inline __attribute__((always_inline))

// How far ahead of the group in use its matrix is fetched: panels and groups follow each other in memory.
constexpr int kAheadBytes = 6144;

// Of a group of 32 inputs of a panel with its share of the scales.
template <Dtype T>
constexpr int kGroupBytes = format_of(T).record_bytes() / format_of(T).scale_groups;

template <Dtype T>
LEAFAGE_INLINE void fetch_ahead(const uint8_t* panel, int g) {
    const uint8_t* ahead = panel + size_t(g) * kGroupBytes<T> + kAheadBytes;
#pragma GCC unroll 9
    for (int i = 0; i < kGroupBytes<T>; i += 64) __builtin_prefetch(ahead + i);
}

// Where the memory that a member reads goes on when its run of panels ends: at end + jump.
struct Stream {
    const uint8_t* end;
    ptrdiff_t jump;
};

// Fetches weights that few rows read once. They must not push everything else out of the caches (what Python does
// between steps took three times as long before), so they pass by L2 where L1 can wait for enough lines at once.
template <int Bytes>
LEAFAGE_INLINE void fetch_lines_once(const uint8_t* p) {
    if (fetch_into_l2) {
#pragma GCC unroll 9
        for (int i = 0; i < Bytes; i += 64) __builtin_prefetch(p + i, 0, 2);
    } else {
#pragma GCC unroll 9
        for (int i = 0; i < Bytes; i += 64) __builtin_prefetch(p + i, 0, 0);
    }
}

template <Dtype T>
LEAFAGE_INLINE void fetch_passing(const uint8_t* group, const Stream& stream) {
    const uint8_t* ahead = group + kAheadBytes;
    ahead += ahead >= stream.end ? stream.jump : 0;
    asm("" : "+r"(ahead));  // GCC would make two sets of addresses of it
    fetch_lines_once<kGroupBytes<T>>(ahead);
}

// The first bytes of a stream that few rows read, which fetch_passing skips.
static inline void fetch_start(const uint8_t* p) {
    for (int i = 0; i < kAheadBytes; i += 64) fetch_lines_once<64>(p + i);
}

static inline uint32_t float_bits(float f) {
    uint32_t u;
    std::memcpy(&u, &f, 4);
    return u;
}

static inline float bits_float(uint32_t u) {
    float f;
    std::memcpy(&f, &u, 4);
    return f;
}

#if !defined(LEAFAGE_AVX512)
// Groups of a row that are quantized together: in passes, so that each of them vectorizes.
constexpr int kPassGroups = 64;

struct RowPass {
    uint32_t absmax[kPassGroups];  // bits: a NaN is the largest
    float range[kPassGroups];      // what becomes 127
    float dx[kPassGroups], inverse[kPassGroups];
    int32_t sum[2][kPassGroups];  // of xq over the two halves
    int8_t extra[kPassGroups][4];
    int32_t extra_at[kPassGroups];
};

// Defined per instruction set: absmax of n groups from x on; then xq (q_stride apart) and sum by `inverse`, where
// xq is the nearest of -127 .. 127.
static inline void find_absmax(const float* x, int n, RowPass& pass);
static inline void quantize_groups(const float* x, int n, RowPass& pass, int8_t* q, size_t q_stride);

// The range of precise groups, and where their widest quad is.
static inline void find_widest(const float* x, int n, RowPass& pass) {
    for (int g = 0; g < n; ++g, x += kGroup) {
        uint32_t first = 0, second = 0;
        int widest = 0;
        for (int j = 0; j < 8; ++j) {
            uint32_t most = 0;
            for (int i = 4 * j; i < 4 * j + 4; ++i) {
                const uint32_t bits = float_bits(x[i]) & 0x7fffffffu;
                most = bits > most ? bits : most;
            }
            const uint32_t less = most > first ? first : most;
            second = less > second ? less : second;
            widest = most > first ? j : widest;
            first = most > first ? most : first;
        }
        const float others = bits_float(second), half = bits_float(first) * 0.5f;
        pass.range[g] = others > half ? others : half;
        pass.extra_at[g] = widest * kQuadBytes;
    }
}

// What int8 leaves of the widest quads.
static inline void find_extra(const float* x, int n, RowPass& pass) {
    for (int g = 0; g < n; ++g, x += kGroup) {
        const int widest = pass.extra_at[g] / kQuadBytes;
        for (int i = 0; i < 4; ++i) {
            const int v = pass.inverse[g] == 0.0f ? 0 : int(lrintf(x[4 * widest + i] * pass.inverse[g]));
            const int extra = v > 127 ? v - 127 : v < -127 ? v + 127 : 0;
            pass.extra[g][i] = int8_t(extra);
            pass.sum[widest / 4][g] += extra;
        }
    }
}

static inline void find_factors(int n, RowPass& pass) {
    for (int g = 0; g < n; ++g) {
        bool finite = pass.absmax[g] < 0x7f800000u, counts = finite && bits_float(pass.absmax[g]) >= 1e-30f;
        float dx = pass.range[g] / 127.0f, inverse = 127.0f / pass.range[g];
        pass.inverse[g] = counts ? inverse : 0.0f;
        pass.dx[g] = counts ? dx : finite ? 0.0f : bits_float(0x7fc00000u);
    }
}

// dx and the aux values of row r, groups first .. first + n - 1.
static inline void write_aux(uint8_t* tile, const TileLayout& layout, unsigned mask, int first, int n, int r,
                             const RowPass& pass) {
    const size_t stride = size_t(layout.tile_rows), at = size_t(first) * stride + size_t(r);
    auto* dx = reinterpret_cast<float*>(tile + layout.dx) + at;
    for (int g = 0; g < n; ++g) dx[size_t(g) * stride] = pass.dx[g];
    for (int g = 0; g < n && layout.precise; ++g) {
        std::memcpy(tile + layout.extra + 4 * (at + size_t(g) * stride), pass.extra[g], 4);
        std::memcpy(tile + layout.extra_at + 4 * (at + size_t(g) * stride), &pass.extra_at[g], 4);
    }
    for (int a = 0; a < kNumAux; ++a) {
        if (!(mask & (1u << a))) continue;
        const int bias = kAuxBias[a], halves = aux_is_half(a) ? 2 : 1;
        uint8_t* to = tile + layout.aux[a] + 4 * (size_t(first) * stride * size_t(halves) + size_t(r));
        for (int h = 0; h < halves; ++h)
            for (int g = 0; g < n; ++g) {
                int32_t sum = halves == 2 ? pass.sum[h][g] : pass.sum[0][g] + pass.sum[1][g];
                float scaled = pass.dx[g] * float(sum);
                int32_t value = -bias * sum;
                if (bias == 0) std::memcpy(&value, &scaled, 4);
                std::memcpy(to + 4 * stride * size_t(g * halves + h), &value, 4);
            }
    }
}

// Groups begin .. end - 1 of the tile; see fill_tile.
static void fill_groups(const float* x, int ldx, int rows, unsigned mask, const TileLayout& layout, int begin, int end,
                        uint8_t* tile) {
    const size_t tile_rows = size_t(layout.tile_rows);
    RowPass pass;
    for (int r = 0; r < layout.tile_rows && begin < end; ++r) {
        if (r == rows) std::memset(&pass, 0, sizeof pass);
        for (int g = begin; g < end; g += kPassGroups) {
            const int n = end - g < kPassGroups ? end - g : kPassGroups;
            auto* q = reinterpret_cast<int8_t*>(tile) + (size_t(g) * tile_rows + size_t(r)) * kGroup;
            const size_t q_stride = tile_rows * kGroup;
            if (r < rows) {
                const float* from = x + size_t(r) * size_t(ldx) + size_t(g) * kGroup;
                find_absmax(from, n, pass);
                for (int i = 0; i < n; ++i) pass.range[i] = bits_float(pass.absmax[i]);
                if (layout.precise) find_widest(from, n, pass);
                find_factors(n, pass);
                quantize_groups(from, n, pass, q, q_stride);
                if (layout.precise) find_extra(from, n, pass);
            } else {
                for (int i = 0; i < n; ++i) std::memset(q + size_t(i) * q_stride, 0, kGroup);
            }
            write_aux(tile, layout, mask, g, n, r, pass);
        }
    }
}
#else
#include "linear_avx512_quantize.h"
#endif

// Part `part` of `parts` of the inputs of x [rows, k] into the tile; rows up to tile_rows become zero.
static void fill_tile(const float* x, int ldx, int rows, unsigned mask, const TileLayout& layout, int part, int parts,
                      uint8_t* tile) {
    fill_groups(x, ldx, rows, mask, layout, int(int64_t(layout.groups) * part / parts),
                int(int64_t(layout.groups) * (part + 1) / parts), tile);
    if (mask & (1u << kFloatRows)) {
        const size_t tile_rows = size_t(layout.tile_rows);
        const int first = int(int64_t(layout.k) * part / parts), last = int(int64_t(layout.k) * (part + 1) / parts);
        auto* to = reinterpret_cast<float*>(tile + layout.floats);
        for (int r = 0; r < layout.tile_rows; ++r)
            for (int i = first; i < last; ++i)
                to[size_t(i) * tile_rows + size_t(r)] = r < rows ? x[size_t(r) * size_t(ldx) + size_t(i)] : 0.0f;
    }
}
