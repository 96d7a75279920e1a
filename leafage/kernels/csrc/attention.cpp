#include "attention.h"

#include <algorithm>
#include <stdexcept>

#include "attention_scratch.h"

namespace leafage {

bool bf16_dot_is_fast() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_is("amd");
#else
    return false;
#endif
}

KVDtype kv_dtype(const std::string& name) {
    if (name == "bfloat16") return KVDtype::kBf16;
    if (name == "int8") return KVDtype::kInt8;
    throw std::invalid_argument("expected a KV cache of bfloat16 or int8, got " + name);
}

// Private scratch per thread: the largest need of any op (linear_layout.h has that of the matrix products).
size_t worker_scratch_bytes() { return std::max(attention_scratch_bytes(), size_t(1) << 20); }

size_t attention_scratch_bytes() { return sizeof(AttentionScratch) + 64; }

// Room for the partial results of partitions that different threads compute, and for the states of rows that share
// a prefix. A constant: longer contexts are done in rounds (attention_run.h).
size_t attention_shared_bytes(int max_rows, int num_heads, int head_dim) {
    size_t record = partial_floats(head_dim) * sizeof(float);
    size_t least = size_t(std::min(max_rows, kSplitRows)) * num_heads * record * 8;
    size_t prefixes = size_t(std::min(max_rows, kSharedRows)) * num_heads * record * 2;  // half is for the records
    return std::max<size_t>({least, prefixes, size_t(2) << 20});
}

void copy_blocks(const CopyBlocksArgs& a, Worker& worker) {
    // A share of every block: with one copy, as with many, all members work.
    auto edge = [&](int member) { return a.block_bytes * size_t(member) / size_t(worker.count); };
    size_t begin = edge(worker.index), bytes = edge(worker.index + 1) - begin;
    for (int i = 0; i < a.num_copies; ++i)
        std::memcpy(a.base + size_t(a.dst[i]) * a.block_bytes + begin, a.base + size_t(a.src[i]) * a.block_bytes + begin,
                    bytes);
}

}  // namespace leafage
