// Tiles of a partition: found in place where the block size allows, gathered otherwise; and V tiles cleaned of
// invisible values that are not finite.
#pragma once
#include "attention_scratch.h"

namespace leafage {
namespace LEAFAGE_ISA_NAMESPACE {

struct Tiles {
    int first, count;  // absolute tile numbers first .. first + count - 1
    const uint16_t* k[kPartition / kTile];
    const uint16_t* v[kPartition / kTile];
};

static inline const uint16_t* block_values(const KVLayer& kv, int32_t block) {
    return reinterpret_cast<const uint16_t*>(kv.base + size_t(block) * kv.block_stride);
}

// K and V of one KV head, tile t, into [head_dim / 2][16][2] and [8][head_dim][2]; zeros behind `last`.
static void gather_tile(const KVLayer& kv, const int32_t* table, int head, int t, int last, uint16_t* k, uint16_t* v) {
    int bs = kv.block_size, hd = kv.head_dim;
    int end = last + 1 - t * kTile < kTile ? last + 1 - t * kTile : kTile;
    if (end < kTile) {
        std::memset(k, 0, size_t(2) * kTile * hd);
        std::memset(v, 0, size_t(2) * kTile * hd);
    }
    for (int j = 0; j < end;) {
        int position = t * kTile + j, offset = position % bs;
        int run = bs - offset < end - j ? bs - offset : end - j;
        const uint16_t* block = block_values(kv, table[position / bs]);
        const uint16_t* from = block + size_t(head) * bs * hd;
        for (int d = 0; d < hd; d += 2) std::memcpy(k + d * kTile + j * 2, from + d * bs + offset * 2, size_t(4) * run);
        from = block + size_t(kv.num_kv_heads + head) * bs * hd;
        for (int r = 0; r < run; ++r) {
            // In even blocks the parity of a token in its block is that in its tile: pairs move as a whole.
            uint16_t* to = v + (j + r) / 2 * hd * 2 + (j + r) % 2;
            if (bs % 2 != 0) {
                const uint16_t* row = from + (offset + r) * hd;
                for (int d = 0; d < hd; ++d) to[d * 2] = row[d];
            } else if ((offset + r) % 2 == 0 && r + 1 < run) {
                std::memcpy(to, from + (offset + r) * hd, size_t(4) * hd);
                ++r;
            } else {
                const uint16_t* row = from + (offset + r) / 2 * hd * 2 + (offset + r) % 2;
                for (int d = 0; d < hd; ++d) to[d * 2] = row[d * 2];
            }
        }
        j += run;
    }
}

// last: the last position that may be read.
static void find_tiles(const KVLayer& kv, const int32_t* table, int head, int last, AttentionScratch& scratch,
                       Tiles& tiles) {
    int bs = kv.block_size, hd = kv.head_dim;
    if (bs % kTile == 0) {
        int per_block = bs / kTile;
        int block = tiles.first / per_block, at = tiles.first % per_block;
        size_t k = size_t(head) * bs * hd, v = size_t(kv.num_kv_heads + head) * bs * hd;
        for (int i = 0; i < tiles.count; ++i) {
            const uint16_t* values = block_values(kv, table[block]) + size_t(at) * kTile * hd;
            tiles.k[i] = values + k;
            tiles.v[i] = values + v;
            if (++at == per_block) {
                at = 0;
                ++block;
            }
        }
        return;
    }
    for (int i = 0; i < tiles.count; ++i) {
        uint16_t* k = scratch.k + i * kTile * hd;
        uint16_t* v = scratch.v + i * kTile * hd;
        gather_tile(kv, table, head, tiles.first + i, last, k, v);
        tiles.k[i] = k;
        tiles.v[i] = v;
    }
}

static bool all_finite(const uint16_t* values, int count) {
    uint16_t bad = 0;
    for (int i = 0; i < count; ++i) bad |= uint16_t((values[i] & 0x7f80) == 0x7f80);
    return bad == 0;
}

// V pointers for one row that sees positions low .. high: zeros where it sees nothing.
static void clean_tiles(const Tiles& tiles, int low, int high, int hd, uint16_t* buffer, const uint16_t** v) {
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
