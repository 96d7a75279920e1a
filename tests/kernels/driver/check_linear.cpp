// linear and embed: the oracle's bits, for rows alone and in batches of many sizes.
#include "driver.h"
#include "weights.h"

using namespace leafage;

namespace {

constexpr int kBatches[] = {1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 33};

PackedWeight packed(int dtype, int rows, int cols, const Case& one, const std::string& key) {
    size_t expected = file_bytes(Dtype(dtype), rows, cols);
    if (one.at(key).count() != expected) throw std::runtime_error(one.name + ": " + key + " has a wrong size");
    return pack({{Dtype(dtype), rows, cols, one.get<uint8_t>(key)}}, 1)[0];
}

}  // namespace

void check_linear(const Case& one, Run& run) {
    const int rows = one.rows("x"), k = one.columns("x");
    const auto dtypes = one.copy<int32_t>("dtypes"), sizes = one.copy<int32_t>("rows");
    std::vector<PackedWeight> weights;
    std::vector<const PackedWeight*> pointers;
    size_t width = 0;
    for (size_t i = 0; i < dtypes.size(); ++i) {
        weights.push_back(packed(dtypes[i], sizes[i], k, one, "weight" + std::to_string(i)));
        width += size_t(sizes[i]);
    }
    for (const auto& weight : weights) pointers.push_back(&weight);
    const float* x = one.get<float>("x");
    const float* expected = one.get<float>(run.is("plain") ? "rounded" : "fused");
    const float* bias = one.has("bias") ? one.get<float>("bias") : nullptr;
    const float* before = one.has("before") ? one.get<float>("before") : nullptr;
    Aligned shared(linear_shared_bytes(rows, k));

    // Rows first .. first + count - 1 in a call of their own.
    auto compute = [&](int first, int count, int threads) {
        std::vector<float> out(size_t(count) * width, -1.0f);
        if (before != nullptr) std::copy_n(before + size_t(first) * width, out.size(), out.begin());
        LinearArgs args{x + size_t(first) * size_t(k), k, count, int(pointers.size()), pointers.data(), out.data(),
                        int(width), bias, before != nullptr, shared.get(), one.integer("precise") != 0};
        run.on_team(threads, [&](Worker& worker) { run.table.linear(args, worker); });
        std::string what = std::to_string(count) + " rows from " + std::to_string(first) + ", " + threads_text(threads);
        run.same(what, out.data(), expected + size_t(first) * width, out.size());
        return out;
    };
    for (int threads : kThreads) {
        std::vector<float> whole = compute(0, rows, threads);
        if (threads == 1) run.note(whole.data(), whole.size());
        for (int batch : kBatches)
            if (batch <= rows) compute(batch * 5 % (rows - batch + 1), batch, threads);
    }
    for (int r = 0; r < rows && rows <= 64; ++r) compute(r, 1, 1);
}

void check_embed(const Case& one, Run& run) {
    const int cols = one.columns("expected"), rows = one.rows("ids");
    PackedWeight table = packed(one.integer("dtype"), one.integer("rows"), cols, one, "raw");
    for (int threads : kThreads) {
        std::vector<float> out(one.at("expected").count());
        EmbedArgs args{&table, one.get<int32_t>("ids"), rows, out.data(), cols, one.number("scale")};
        run.on_team(threads, [&](Worker& worker) { run.table.embed(args, worker); });
        run.same(threads_text(threads), out.data(), one.get<float>("expected"), out.size());
        if (threads == 1) run.note(out.data(), out.size());
    }
}
