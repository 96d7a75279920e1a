#include "program.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string>
#include <unordered_set>

#include "attention.h"

namespace leafage {

namespace {

constexpr size_t kHugePage = size_t(2) << 20;

void want_huge_pages([[maybe_unused]] void* p, [[maybe_unused]] size_t bytes) {
#if defined(MADV_HUGEPAGE)
    madvise(p, bytes, MADV_HUGEPAGE);
#endif
}

uint8_t* aligned_bytes(size_t bytes) {
    void* p = nullptr;
    size_t alignment = bytes >= kHugePage ? kHugePage : 64;
    if (posix_memalign(&p, alignment, size_t(round_up(int64_t(bytes), 64)) + 64) != 0) throw std::bad_alloc();
    if (alignment == kHugePage) want_huge_pages(p, bytes);
    return static_cast<uint8_t*>(p);
}

}  // namespace

KVCache::KVCache(KVDtype dtype, int num_layers, int num_blocks, int block_size, int num_kv_heads, int head_dim)
    : dtype_(dtype),
      num_layers_(num_layers),
      num_blocks_(num_blocks),
      block_size_(block_size),
      num_kv_heads_(num_kv_heads),
      head_dim_(head_dim),
      layer_bytes_(kv_layer_bytes(dtype, block_size, num_kv_heads, head_dim)),
      block_bytes_(layer_bytes_ * size_t(num_layers)) {
    void* p = mmap(nullptr, num_bytes() + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    base_ = static_cast<uint8_t*>(p);
    want_huge_pages(p, num_bytes() + kHugePage);
}

KVCache::~KVCache() { munmap(base_, num_bytes() + kHugePage); }

KVLayer KVCache::layer(int index) const {
    return {base_ + layer_bytes_ * size_t(index), block_bytes_, block_size_, num_kv_heads_, head_dim_,
            dtype_};
}

void Program::FreeDeleter::operator()(void* p) const { std::free(p); }

Program::Program(int num_threads, int max_rows, int max_logit_rows, std::vector<std::pair<int, int>> buffers,
                 std::vector<int> slot_widths, int head_start, KVCache* kv)
    : team_(num_threads, worker_scratch_bytes()),
      max_rows_(max_rows),
      max_logit_rows_(max_logit_rows),
      head_start_(head_start),
      kv_(kv) {
    // A negative width marks a slot of the output head, which has max_logit_rows rows.
    std::vector<size_t> offsets;
    size_t total = 0;
    for (int width : slot_widths) {
        offsets.push_back(total);
        size_t rows = size_t(width < 0 ? max_logit_rows : max_rows);
        total += size_t(round_up(int64_t(rows * size_t(std::abs(width)) * sizeof(float)), 64));
    }
    arena_bytes_ = total;
    arena_.reset(aligned_bytes(total));
    for (auto [slot, width] : buffers)
        buffers_.push_back({reinterpret_cast<float*>(arena_.get() + offsets[size_t(slot)]), width});
}

void Program::add_rope(std::vector<float> inv_freq, double scale, int max_position, bool interleaved) {
    RopeTable rope{std::move(inv_freq), scale, max_position, 0, interleaved, nullptr};
    size_t bytes = size_t(max_position) * size_t(rope.rotary_dim()) * sizeof(float);
    rope.data.reset(reinterpret_cast<float*>(aligned_bytes(bytes)));
    ropes_.push_back(std::move(rope));
}

void Program::RopeTable::fill(int begin, int end) {
    const size_t pairs = inv_freq.size();
    for (int position = begin; position < end; ++position) {
        float* row = data.get() + size_t(position) * 2 * pairs;
        for (size_t i = 0; i < pairs; ++i) {
            // The angle is a float product, as in the implementations that the models were trained with.
            const double angle = double(float(position) * inv_freq[i]);
            row[i] = float(std::cos(angle) * scale);
            row[pairs + i] = float(std::sin(angle) * scale);
        }
    }
}

void Program::extend_ropes(const StepView& step) {
    if (ropes_.empty()) return;
    constexpr int kRows = 128;
    const int need = *std::max_element(step.positions, step.positions + step.num_rows) + 1;
    for (RopeTable& rope : ropes_) {
        if (need <= rope.num_rows) continue;
        const int begin = rope.num_rows, end = std::min(int(round_up(need, kRows)), rope.max_position);
        team_.run([&](Worker& worker) {
            const int64_t count = end - begin;
            rope.fill(begin + int(count * worker.index / worker.count),
                      begin + int(count * (worker.index + 1) / worker.count));
        });
        rope.num_rows = end;
    }
}

size_t Program::num_bytes() const {
    size_t total = arena_bytes_ + shared_bytes_;
    for (const RopeTable& rope : ropes_) total += size_t(rope.num_rows) * size_t(rope.rotary_dim()) * sizeof(float);
    return total;
}

void Program::finish(int max_k, int max_heads, int head_dim) {
    shared_bytes_ = std::max(linear_shared_bytes(max_rows_, max_k), attention_shared_bytes(max_rows_, max_heads, head_dim));
    shared_.reset(aligned_bytes(shared_bytes_));
    int next = -1;
    for (int i = int(ops_.size()) - 1; i >= 0; --i) {
        if (ops_[size_t(i)].kind != OpKind::kLinear) continue;
        ops_[size_t(i)].next = next;
        next = i;
    }
}

float* Program::logits() const { return buffers_.back().data; }

void Program::check(const StepView& step, int vocab_size, int max_position) const {
    auto in_range = [](const char* name, const int32_t* values, int count, int64_t low, int64_t high) {
        int32_t least = INT32_MAX, most = INT32_MIN;
        for (int i = 0; i < count; ++i) {
            least = std::min(least, values[i]);
            most = std::max(most, values[i]);
        }
        if (count > 0 && (least < low || most >= high))
            throw std::invalid_argument(std::string("expected ") + name + " in [" + std::to_string(low) + ", " +
                                        std::to_string(high) + "), got " + std::to_string(least) + " to " +
                                        std::to_string(most));
    };
    if (step.num_rows < 1 || step.num_rows > max_rows_)
        throw std::invalid_argument("expected 1 to " + std::to_string(max_rows_) + " rows, got " +
                                    std::to_string(step.num_rows));
    in_range("token_ids", step.token_ids, step.num_rows, 0, vocab_size);
    in_range("positions", step.positions, step.num_rows, 0, max_position);
    in_range("slots", step.slots, step.num_rows, -1, int64_t(kv_->num_blocks_) * kv_->block_size_);
    in_range("tables", step.tables, step.num_table_entries, 0, kv_->num_blocks_);
    in_range("logit_rows", step.logit_rows, step.num_logit_rows, 0, step.num_rows);
    for (int i = 0; i < step.num_items; ++i) {
        int64_t row = step.item_rows[i], count = step.item_num_rows[i], begin = step.table_offsets[i];
        int64_t end = i + 1 < step.num_items ? step.table_offsets[i + 1] : step.num_table_entries;
        if (step.item_starts[i] < 0 || count < 1 || begin < 0 || end > step.num_table_entries ||
            (end - begin) * kv_->block_size_ < step.item_starts[i] + count)
            throw std::invalid_argument("expected block tables that cover every position of item " + std::to_string(i) +
                                        ", got " + std::to_string(end - begin) + " blocks for " +
                                        std::to_string(step.item_starts[i] + count) + " tokens");
        if (row < 0 || row + count > step.num_rows)
            throw std::invalid_argument("expected items inside the step's " + std::to_string(step.num_rows) +
                                        " rows, got rows " + std::to_string(row) + " to " +
                                        std::to_string(row + count));
    }
}

void Program::copy_blocks(const std::vector<int32_t>& src, const std::vector<int32_t>& dst) {
    std::unordered_set<int32_t> sources(src.begin(), src.end()), destinations;
    for (const auto* blocks : {&src, &dst})
        for (int32_t block : *blocks)
            if (block < 0 || block >= kv_->num_blocks_)
                throw std::invalid_argument("expected blocks in [0, " + std::to_string(kv_->num_blocks_) + "), got " +
                                            std::to_string(block));
    for (int32_t block : dst)
        if (sources.count(block) || !destinations.insert(block).second)
            throw std::invalid_argument("expected destinations that no other copy names, got block " +
                                        std::to_string(block) + " again");
    CopyBlocksArgs args{kv_->base(), kv_->block_bytes_, int(src.size()), src.data(), dst.data()};
    team_.run([&](Worker& worker) { leafage::copy_blocks(args, worker); });
}

void Program::prepare(const StepView& step) {
    static std::atomic<uint64_t> steps{0};
    step_number_ = ++steps;
    items_.resize(size_t(step.num_items));
    for (int i = 0; i < step.num_items; ++i)
        items_[size_t(i)] = {step.item_rows[i], step.item_num_rows[i], step.item_starts[i],
                             step.tables + step.table_offsets[i]};
}

void Program::run(const StepView& step, const Sampling& sampling) {
    prepare(step);
    extend_ropes(step);
    if (profile) op_seconds.assign(ops_.size(), 0.0);
    int rows = std::min(step.num_logit_rows, max_logit_rows_);
    SampleArgs sample = sample_args(sampling, 0, rows);
    team_.run([&](Worker& worker) {
        execute(0, size_t(head_start_), step, 0, step.num_rows, worker);
        head(step, 0, rows, sample, worker);
    });
}

void Program::run_head(const StepView& step, int first, const Sampling& sampling) {
    int rows = std::min(step.num_logit_rows - first, max_logit_rows_);
    SampleArgs sample = sample_args(sampling, first, rows);
    team_.run([&](Worker& worker) { head(step, first, rows, sample, worker); });
}

SampleArgs Program::sample_args(const Sampling& sampling, int first, int rows) const {
    return sampling ? sampling.sampler->args(*sampling.plan, logits(), first, rows) : SampleArgs{};
}

void Program::head(const StepView& step, int first, int rows, const SampleArgs& sample, Worker& worker) {
    if (rows <= 0) return;
    execute(size_t(head_start_), ops_.size(), step, first, rows, worker);
    if (sample.row != nullptr) kernels().sample(sample, worker);
}

void Program::execute(size_t begin, size_t end, const StepView& step, int first, int rows, Worker& worker) {
    using Clock = std::chrono::steady_clock;
    for (size_t i = begin; i < end; ++i) {
        auto start = profile && worker.index == 0 ? Clock::now() : Clock::time_point();
        execute_op(ops_[i], step, first, rows, worker);
        worker.barrier();
        if (profile && worker.index == 0)
            op_seconds[i] += std::chrono::duration<double>(Clock::now() - start).count();
    }
}

void Program::execute_op(const Op& op, const StepView& step, int first, int rows, Worker& worker) {
    const Kernels& k = kernels();
    Buffer in = op.in >= 0 ? buffers_[size_t(op.in)] : Buffer{nullptr, 0};
    Buffer out = op.out >= 0 ? buffers_[size_t(op.out)] : Buffer{nullptr, 0};
    switch (op.kind) {
        case OpKind::kEmbed:
            k.embed({op.weights[0], step.token_ids, rows, out.data, out.width, op.f0}, worker);
            break;
        case OpKind::kRmsNorm:
            k.rms_norm({in.data + op.column, in.width, out.data + op.column, out.width, rows, op.head_dim,
                        op.vec.data(), op.f0, op.num_heads},
                       worker);
            break;
        case OpKind::kLinear: {
            LinearArgs args{in.data, in.width, rows, int(op.weights.size()), op.weights.data(), out.data, out.width,
                            op.vec.empty() ? nullptr : op.vec.data(), op.flag, shared_.get(), op.precise};
            if (op.next >= 0) {
                args.num_next = int(ops_[size_t(op.next)].weights.size());
                args.next = ops_[size_t(op.next)].weights.data();
            }
            k.linear(args, worker);
            break;
        }
        case OpKind::kAdd:
            k.add({in.data, buffers_[size_t(op.in2)].data, rows, in.width}, worker);
            break;
        case OpKind::kRope: {
            const RopeTable& rope = ropes_[size_t(op.rope)];
            k.rope({in.data + op.column, in.width, rows, op.num_heads, op.head_dim, rope.rotary_dim(),
                    rope.interleaved, step.positions, rope.data.get()},
                   worker);
            break;
        }
        case OpKind::kKVWrite:
            k.kv_write({kv_->layer(op.layer), in.data, in.width, rows, op.column, op.column2, step.slots}, worker);
            break;
        case OpKind::kAttention:
            k.attention({kv_->layer(op.layer), in.data + op.column, in.width, out.data, out.width, op.num_heads, op.f0,
                         op.f1, op.window, step.num_items, items_.data(), shared_.get(), shared_bytes_, step_number_},
                        worker);
            break;
        case OpKind::kActMul:
            k.act_mul({in.data, in.width, out.data, out.width, rows, out.width, op.activation}, worker);
            break;
        case OpKind::kSelectLogitRows:
            for (int r = worker.index; r < rows; r += worker.count)
                std::memcpy(out.data + int64_t(r) * out.width,
                            in.data + int64_t(step.logit_rows[first + r]) * in.width, sizeof(float) * size_t(in.width));
            break;
        case OpKind::kSoftcap:
            k.softcap({in.data, rows, in.width, op.f0}, worker);
            break;
    }
}

}  // namespace leafage
