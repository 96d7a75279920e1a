#include "attention.h"

#include <algorithm>

#include "attention_scratch.h"

namespace leafage {

bool bf16_dot_is_fast() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_is("amd");
#else
    return false;
#endif
}

// Private scratch per thread: the largest need of any op (linear_layout.h has that of the matrix products).
size_t worker_scratch_bytes() { return std::max(attention_scratch_bytes(), size_t(1) << 20); }

size_t attention_scratch_bytes() { return sizeof(AttentionScratch) + 64; }

// Room for the partial results of partitions that different threads compute. A constant: longer contexts are
// done in rounds (attention_impl.h).
size_t attention_shared_bytes(int max_rows, int num_heads, int head_dim) {
    size_t record = partial_floats(head_dim) * sizeof(float);
    size_t least = size_t(std::min(max_rows, kSplitRows)) * num_heads * record * 8;
    return std::max<size_t>(least, size_t(2) << 20);
}

void copy_blocks(const CopyBlocksArgs& a, Worker& worker) {
    int64_t tasks = int64_t(a.num_copies) * a.num_layers;
    int64_t begin = tasks * worker.index / worker.count, end = tasks * (worker.index + 1) / worker.count;
    for (int64_t i = begin; i < end; ++i) {
        uint8_t* layer = a.base + (i / a.num_copies) * a.layer_bytes;
        int64_t c = i % a.num_copies;
        std::memcpy(layer + a.dst[c] * a.block_bytes, layer + a.src[c] * a.block_bytes, a.block_bytes);
    }
}

}  // namespace leafage
