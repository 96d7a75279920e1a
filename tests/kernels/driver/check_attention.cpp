// kv_write, copies of blocks, and attention: any block size, chunking and number of threads gives the same bits.
#include "attention.h"

#include "driver.h"

using namespace leafage;

namespace {

KVLayer layer_of(const Case& one, std::vector<uint8_t>& pool, int block_bytes, int block_size) {
    return {pool.data(), size_t(block_bytes), block_size, one.integer("num_kv_heads"), one.integer("head_dim"),
            one.integer("int8") ? KVDtype::kInt8 : KVDtype::kBf16};
}

}  // namespace

void check_kv_write(const Case& one, Run& run) {
    for (int threads : kThreads) {
        std::vector<uint8_t> pool = one.copy<uint8_t>("pool");
        KVWriteArgs args{layer_of(one, pool, one.columns("pool"), one.integer("block_size")),
                         one.get<float>("x"), one.columns("x"), one.rows("x"), one.integer("k_column"),
                         one.integer("v_column"), one.get<int32_t>("slots")};
        run.on_team(threads, [&](Worker& worker) { run.table.kv_write(args, worker); });
        run.same_bytes(threads_text(threads), pool.data(), one.get<uint8_t>("expected"), pool.size());
        if (threads == 1) run.note_bytes(pool.data(), pool.size());
    }
}

void check_copy_blocks(const Case& one, Run& run) {
    for (int threads : kThreads) {
        std::vector<uint8_t> pool = one.copy<uint8_t>("pool");
        CopyBlocksArgs args{pool.data(), size_t(one.columns("pool")), one.rows("src"), one.get<int32_t>("src"),
                            one.get<int32_t>("dst")};
        run.on_team(threads, [&](Worker& worker) { copy_blocks(args, worker); });
        run.same_bytes(threads_text(threads), pool.data(), one.get<uint8_t>("expected"), pool.size());
        if (threads == 1) run.note_bytes(pool.data(), pool.size());
    }
}

void check_attention(const Case& one, Run& run) {
    const int rows = one.rows("q"), width = one.columns("q"), head_dim = one.integer("head_dim");
    const auto block_sizes = one.copy<int32_t>("block_sizes");
    const auto item_rows = one.copy<int32_t>("rows"), counts = one.copy<int32_t>("num_rows");
    const auto starts = one.copy<int32_t>("starts");
    const float* q = one.get<float>("q");
    const size_t shared_bytes = attention_shared_bytes(rows, width / head_dim, head_dim);
    Aligned shared(shared_bytes);
    std::vector<float> whole;  // of the first run
    for (size_t i = 0; i < block_sizes.size(); ++i) {
        const std::string index = std::to_string(i), blocks = "blocks of " + std::to_string(block_sizes[i]);
        std::vector<uint8_t> pool = one.copy<uint8_t>("pool" + index);
        const KVLayer layer = layer_of(one, pool, one.columns("pool" + index), block_sizes[i]);
        const auto tables = one.copy<int32_t>("tables" + index), offsets = one.copy<int32_t>("offsets" + index);
        auto compute = [&](const std::vector<AttentionItem>& items, int threads) {
            std::vector<float> out(size_t(rows) * size_t(width));
            AttentionArgs args{layer, q, width, out.data(), width, width / head_dim, one.number("scale"),
                               one.number("softcap"), one.integer("window"), int(items.size()), items.data(),
                               shared.get(), shared_bytes};
            run.on_team(threads, [&](Worker& worker) { run.table.attention(args, worker); });
            return out;
        };
        std::vector<AttentionItem> items;
        for (size_t j = 0; j < counts.size(); ++j)
            items.push_back({item_rows[j], counts[j], starts[j], tables.data() + offsets[j]});
        for (int threads : kThreads) {
            std::vector<float> out = compute(items, threads);
            if (whole.empty()) {
                whole = out;
                run.note(whole.data(), whole.size());
                // Two of the three ways of AVX-512 have bf16 operands.
                const char* limit = run.is("avx512") ? "limit_bf16" : "limit";
                run.near("whole", whole.data(), one.doubles("expected"), one.doubles(limit));
            }
            run.same(blocks + ", " + threads_text(threads), out.data(), whole.data(), whole.size());
        }
        // Chunks of one row, and of five.
        for (int chunk : {1, 5}) {
            std::vector<float> out(whole.size());
            for (const AttentionItem& item : items)
                for (int r = 0; r < item.num_rows; r += chunk) {
                    const int count = item.num_rows - r < chunk ? item.num_rows - r : chunk;
                    const size_t at = size_t(item.row + r) * size_t(width), n = size_t(count) * size_t(width);
                    std::vector<float> part = compute({{item.row + r, count, item.start + r, item.table}}, 1 + r % 3);
                    std::copy_n(part.data() + at, n, out.data() + at);
                }
            run.same(blocks + ", chunks of " + std::to_string(chunk), out.data(), whole.data(), out.size());
        }
    }
}
