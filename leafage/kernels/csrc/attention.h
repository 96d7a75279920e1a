// Paged attention: the layout of the K/V cache and the arithmetic contract.
//
// Layout. The pool is [block][layer]: the tokens of a block lie together over all layers, so a block is one copy and
// a short sequence touches few pages. In a block of one layer all K heads come first, then all V heads. A head is
// a row of runs: block_size / 16 tiles of 16 tokens when block_size is a multiple of 16, else one run of
// block_size tokens, which is gathered into tiles before use.
//   * bf16, tile: K is [head_dim / 2][16 tokens][2] (pairs along head_dim: one dot-product instruction takes a pair
//     of 16 tokens), V is [8 token pairs][head_dim][2].
//   * bf16, other run: K is [head_dim / 2][block_size][2]; V is [block_size / 2][head_dim][2] when block_size is
//     even, [block_size][head_dim] when odd.
//   * int8: a run begins with a float scale per token; a value is scale * q. K is [head_dim][tokens]. V of a tile
//     is [8 token pairs][head_dim / 16][2][16], of another run [block_size][head_dim]. So 16 pairs of a tile are
//     where they are in bf16, the 16 first ones before the 16 second ones.
//
// int8. scale = max|x| / 127 over a token's head, q = round(x / scale). Integers up to 127 are exact in bf16, so the
// kernels of the scores and values are those of bf16; a score is multiplied by the scale of its K, and a weight p by
// that of its V, in float. A head with a value that is not finite has scale NaN; one below 127 * FLT_MIN is 0.
// K is rotated before, and q when it is loaded: by an orthonormal Walsh-Hadamard matrix, which leaves scores as they
// are (attention_rotate.h). A head of K beyond FLT_MAX / head_dim may overflow there and have scale NaN.
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
#include <string>

#include "kernels.h"

namespace leafage {

// Tokens of a partition.
constexpr int kPartition = 16 * kTile;
constexpr int kMaxHeadDim = 256;

// Whether attention should use bf16 dot products where the CPU has them: AMD issues one or two per cycle, Intel one
// in two cycles, where two float FMAs do twice the work.
bool bf16_dot_is_fast();

// The type of that name: bfloat16 or int8. Throws std::invalid_argument for another one.
KVDtype kv_dtype(const std::string& name);

// Bytes of one token and KV head, K or V.
static inline size_t kv_head_bytes(KVDtype dtype, int head_dim) {
    return dtype == KVDtype::kInt8 ? size_t(head_dim) + sizeof(float) : size_t(head_dim) * 2;
}

// Bytes of one block of one layer.
static inline size_t kv_layer_bytes(KVDtype dtype, int block_size, int num_kv_heads, int head_dim) {
    return size_t(2) * size_t(num_kv_heads) * size_t(block_size) * kv_head_bytes(dtype, head_dim);
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
