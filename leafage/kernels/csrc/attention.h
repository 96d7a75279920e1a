// Paged attention: the layout of the K/V cache and the arithmetic contract.
//
// Layout. The pool is [block][layer]: the tokens of a block lie together over all layers, so a block is one copy and
// a short sequence touches few pages. In a block of one layer all K heads come first, then all V heads, each head
// block_size * head_dim 16-bit (bf16) values:
//   * block_size a multiple of 16: a head is block_size / 16 tiles of 16 tokens, one after the other;
//     K of a tile is [head_dim / 2][16 tokens][2] (pairs along head_dim: one dot-product instruction takes a pair
//     of 16 tokens), V is [8 token pairs][head_dim][2].
//   * any other size: K is [head_dim / 2][block_size][2]; V is [block_size / 2][head_dim][2] when block_size is
//     even, [block_size][head_dim] when odd. Such blocks are gathered into tiles before use.
//
// Contract. For one row and head the float operations depend on its position and on K and V of the positions it
// sees, on nothing else: not on block size, other rows, chunking, number of threads or who computes what.
//   * positions are cut into tiles of 16 and partitions of 16 tiles, both counted from position 0;
//   * score: dot product along head_dim in order, query rounded as the variant says, in units of log2;
//   * partition: maximum over its visible scores, p = exp2(score - maximum), 16 lane sums over its tiles in order
//     and one fixed tree, and p * V over its tokens in order;
//   * partitions are merged in order, each into the running (maximum, sum, accumulator).
// Invisible lanes have score -inf, so p is exactly 0; a tile in which a row sees nothing adds exact zeros,
// the same as leaving it out. V of invisible positions is replaced by 0 where it is not finite (0 * NaN).
#pragma once
#include "kernels.h"

namespace leafage {

// Tokens of a partition.
constexpr int kPartition = 16 * kTile;
constexpr int kMaxHeadDim = 256;

// Whether attention should use bf16 dot products where the CPU has them: AMD issues one or two per cycle, Intel one
// in two cycles, where two float FMAs do twice the work.
bool bf16_dot_is_fast();

// Bytes of one block of one layer.
static inline size_t kv_layer_bytes(int block_size, int num_kv_heads, int head_dim) {
    return size_t(2) * size_t(num_kv_heads) * size_t(block_size) * size_t(head_dim) * 2;
}

// Private scratch attention needs per thread; worker_scratch_bytes() must not be less.
size_t attention_scratch_bytes();

// Copy whole blocks, all layers: block dst[i] becomes block src[i].
struct CopyBlocksArgs {
    uint8_t* base;
    size_t block_bytes;
    int num_copies;
    const int32_t* src;
    const int32_t* dst;
};

// Called by all members of a team with the same arguments, like the ops. No block may be source and
// destination, nor destination twice.
void copy_blocks(const CopyBlocksArgs& args, Worker& worker);

}  // namespace leafage
