// Tiles of a partition: found in place where the block size allows, gathered otherwise; int8 widened to bf16; and V
// tiles cleaned of invisible values that are not finite.
#pragma once
#include "kv_runs.h"
#include "attention_scratch.h"
#include "simd16.h"

namespace leafage {
namespace LEAFAGE_ISA_NAMESPACE {

constexpr int kPartitionTiles = kPartition / kTile;

// What to bring into the cache while scores are computed: lines at an offset of the K tiles that come next, and
// of the V tiles of the same tokens.
template <class T>
struct Ahead {
    const T* const* k;
    const T* const* v;

    template <int NT>
    void fetch(int offset) const {
        if (offset * int(sizeof(T)) % 64 != 0) return;
        for (int n = 0; n < NT; ++n) {
            if (sizeof(T) == 1 && offset == 0) {  // the scales
                fetch_line(k[n] - 64);
                fetch_line(v[n] - 64);
            }
            fetch_line(k[n] + offset);
            fetch_line(v[n] + offset);
        }
    }
};

// What to bring in while values are weighted: the K tiles of the next head or partition, `tiles[t]` with tile t of
// V. Null: nothing.
template <class T>
struct Next {
    const T* const* tiles;

    // At token i of tile t: the share of ND * 16 columns.
    template <int ND>
    void fetch(int t, int i) const {
        const T* from = tiles[t] + i / 2 * ND * 32;
        for (int x = 0; x < ND * 32; x += 64 / int(sizeof(T))) fetch_line(from + x);
    }
};

// T: uint16_t (bf16) or int8_t.
template <class T>
struct Tiles {
    int first, count;  // absolute tile numbers first .. first + count - 1
    const T* k[kPartitionTiles];
    const T* v[kPartitionTiles];
    // int8: scales of the 16 tokens of each tile.
    const float* k_scale[kPartitionTiles];
    const float* v_scale[kPartitionTiles];
};

static inline const uint8_t* block_bytes(const KVLayer& kv, int32_t block) {
    return kv.base + size_t(block) * kv.block_stride;
}

// Call f(j, run of K, run of V, offset in the run, number) for the tokens of tile t up to `last`, run by run; j
// counts the tokens of the tile.
template <class F>
static inline void for_runs(const KVLayer& kv, const Runs& runs, const int32_t* table, int head, int t, int last, F&& f) {
    int end = last + 1 - t * kTile < kTile ? last + 1 - t * kTile : kTile;
    for (int j = 0; j < end;) {
        int position = t * kTile + j, offset = position % kv.block_size;
        int count = kv.block_size - offset < end - j ? kv.block_size - offset : end - j;
        const uint8_t* block = block_bytes(kv, table[position / kv.block_size]);
        f(j, block + runs.k(head, 0), block + runs.v(head, 0), offset, count);
        j += count;
    }
}

// K and V of one KV head, tile t, of blocks that are no tiles; zeros behind `last`.
static void gather_tile(const KVLayer& kv, const Runs& runs, const int32_t* table, int head, int t, int last,
                        uint16_t* k, uint16_t* v) {
    int bs = kv.block_size, hd = kv.head_dim;
    if (last + 1 - t * kTile < kTile) {
        std::memset(k, 0, size_t(2) * kTile * hd);
        std::memset(v, 0, size_t(2) * kTile * hd);
    }
    for_runs(kv, runs, table, head, t, last, [&](int j, const uint8_t* k_run, const uint8_t* v_run, int offset, int count) {
        auto* from = reinterpret_cast<const uint16_t*>(k_run);
        for (int d = 0; d < hd; d += 2) std::memcpy(k + d * kTile + j * 2, from + d * bs + offset * 2, size_t(4) * count);
        from = reinterpret_cast<const uint16_t*>(v_run);
        for (int r = 0; r < count; ++r) {
            // In even blocks the parity of a token in its block is that in its tile: pairs move as a whole.
            uint16_t* to = v + (j + r) / 2 * hd * 2 + (j + r) % 2;
            if (bs % 2 != 0) {
                const uint16_t* row = from + (offset + r) * hd;
                for (int d = 0; d < hd; ++d) to[d * 2] = row[d];
            } else if ((offset + r) % 2 == 0 && r + 1 < count) {
                std::memcpy(to, from + (offset + r) * hd, size_t(4) * hd);
                ++r;
            } else {
                const uint16_t* row = from + (offset + r) / 2 * hd * 2 + (offset + r) % 2;
                for (int d = 0; d < hd; ++d) to[d * 2] = row[d * 2];
            }
        }
    });
}

// The same in int8, with the scales.
static void gather_tile(const KVLayer& kv, const Runs& runs, const int32_t* table, int head, int t, int last, int8_t* k,
                        int8_t* v, float* k_scale, float* v_scale) {
    int bs = kv.block_size, hd = kv.head_dim;
    if (last + 1 - t * kTile < kTile) {
        std::memset(k, 0, size_t(kTile) * hd);
        std::memset(v, 0, size_t(kTile) * hd);
        std::memset(k_scale, 0, sizeof(float) * kTile);
        std::memset(v_scale, 0, sizeof(float) * kTile);
    }
    for_runs(kv, runs, table, head, t, last, [&](int j, const uint8_t* k_run, const uint8_t* v_run, int offset, int count) {
        std::memcpy(k_scale + j, k_run + sizeof(float) * offset, sizeof(float) * count);
        std::memcpy(v_scale + j, v_run + sizeof(float) * offset, sizeof(float) * count);
        k_run += sizeof(float) * bs;
        v_run += sizeof(float) * bs;
        for (int d = 0; d < hd; ++d) std::memcpy(k + d * kTile + j, k_run + d * bs + offset, size_t(count));
        for (int r = 0; r < count; ++r)
            for (int d = 0; d < hd; d += 16)
                std::memcpy(v + ((j + r) / 2 * hd + d) * 2 + (j + r) % 2 * 16, v_run + (offset + r) * hd + d, 16);
    });
}

// A tile of int8 to bf16, exactly.
static void widen_tile(const int8_t* from, int hd, uint16_t* to) {
    for (int i = 0; i < kTile * hd; i += 32) simd::store_pairs(to + i, simd::load_int8(from + i), simd::load_int8(from + i + 16));
}

// Tiles in place, of blocks that are tiles.
template <class T>
static void find_tiles(const KVLayer& kv, const Runs& runs, const int32_t* table, int head, Tiles<T>& tiles) {
    int block = tiles.first / runs.per_block, run = tiles.first % runs.per_block;
    for (int i = 0; i < tiles.count; ++i) {
        const uint8_t* bytes = block_bytes(kv, table[block]);
        const uint8_t *k = bytes + runs.k(head, run), *v = bytes + runs.v(head, run);
        if (sizeof(T) == 1) {
            tiles.k_scale[i] = reinterpret_cast<const float*>(k);
            tiles.v_scale[i] = reinterpret_cast<const float*>(v);
            k += sizeof(float) * kTile;
            v += sizeof(float) * kTile;
        }
        tiles.k[i] = reinterpret_cast<const T*>(k);
        tiles.v[i] = reinterpret_cast<const T*>(v);
        if (++run == runs.per_block) {
            run = 0;
            ++block;
        }
    }
}

// bf16 tiles, in place or gathered or widened. last: the last position that may be read.
static void make_tiles(const KVLayer& kv, const Runs& runs, const int32_t* table, int head, int last,
                       AttentionScratch& scratch, Tiles<uint16_t>& tiles) {
    if (kv.dtype == KVDtype::kBf16 && runs.are_tiles()) return find_tiles(kv, runs, table, head, tiles);
    Tiles<int8_t> narrow;
    narrow.first = tiles.first;
    narrow.count = tiles.count;
    if (runs.are_tiles()) find_tiles(kv, runs, table, head, narrow);
    for (int i = 0; i < tiles.count; ++i) {
        uint16_t* k = scratch.k + i * kTile * kv.head_dim;
        uint16_t* v = scratch.v + i * kTile * kv.head_dim;
        tiles.k[i] = k;
        tiles.v[i] = v;
        if (kv.dtype == KVDtype::kBf16) {
            gather_tile(kv, runs, table, head, tiles.first + i, last, k, v);
            continue;
        }
        if (!runs.are_tiles()) {
            float *k_scale = scratch.k_scale + i * kTile, *v_scale = scratch.v_scale + i * kTile;
            gather_tile(kv, runs, table, head, tiles.first + i, last, scratch.narrow_k, scratch.narrow_v, k_scale, v_scale);
            narrow.k[i] = scratch.narrow_k;
            narrow.v[i] = scratch.narrow_v;
            narrow.k_scale[i] = k_scale;
            narrow.v_scale[i] = v_scale;
        }
        widen_tile(narrow.k[i], kv.head_dim, k);
        widen_tile(narrow.v[i], kv.head_dim, v);
        tiles.k_scale[i] = narrow.k_scale[i];
        tiles.v_scale[i] = narrow.v_scale[i];
    }
}

static bool all_finite(const uint16_t* values, int count) {
    uint16_t bad = 0;
    for (int i = 0; i < count; ++i) bad |= uint16_t((values[i] & 0x7f80) == 0x7f80);
    return bad == 0;
}

// V pointers for one row that sees positions low .. high: zeros where it sees nothing.
static void clean_tiles(const Tiles<uint16_t>& tiles, int low, int high, int hd, uint16_t* buffer, const uint16_t** v) {
    uint16_t* zeros = buffer;
    uint16_t* next = buffer + kTile * hd;
    std::memset(zeros, 0, size_t(2) * kTile * hd);
    for (int i = 0; i < tiles.count; ++i) {
        int base = (tiles.first + i) * kTile;
        if (low > base + kTile - 1 || high < base) {
            v[i] = zeros;
        } else if (low <= base && high >= base + kTile - 1) {
            v[i] = tiles.v[i];
        } else {  // at most two tiles: where the row's view begins and ends
            for (int j = 0; j < kTile; ++j) {
                bool seen = base + j >= low && base + j <= high;
                int at = j / 2 * hd * 2 + j % 2;
                for (int d = 0; d < hd; ++d) next[at + d * 2] = seen ? tiles.v[i][at + d * 2] : uint16_t(0);
            }
            v[i] = next;
            next += kTile * hd;
        }
    }
}

}  // namespace LEAFAGE_ISA_NAMESPACE
}  // namespace leafage
