// Where the runs of a layer's blocks are. Layout: attention.h.
#pragma once
#include "attention.h"

namespace leafage {
namespace LEAFAGE_ISA_NAMESPACE {

struct Runs {
    int tokens, per_block;  // of a run; runs of a head in a block
    int num_kv_heads;
    size_t bytes;  // of a run

    explicit Runs(const KVLayer& kv)
        : tokens(kv.block_size % kTile == 0 ? kTile : kv.block_size),
          per_block(kv.block_size / tokens),
          num_kv_heads(kv.num_kv_heads),
          bytes(size_t(tokens) * kv_head_bytes(kv.dtype, kv.head_dim)) {}

    bool are_tiles() const { return tokens == kTile; }
    // Offsets in a block.
    size_t k(int head, int run) const { return size_t(head * per_block + run) * bytes; }
    size_t v(int head, int run) const { return k(num_kv_heads + head, run); }
};

}  // namespace LEAFAGE_ISA_NAMESPACE
}  // namespace leafage
