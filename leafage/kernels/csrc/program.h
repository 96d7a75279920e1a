// The forward pass of a model as a list of ops, and the paged KV cache it works on. A step is one call of run().
#pragma once
#include <memory>
#include <vector>

#include "kernels.h"
#include "sampler_plan.h"

namespace leafage {

// The K/V pool of all layers, zero-filled by the OS, in huge pages where it gives them.
class KVCache {
  public:
    KVCache(KVDtype dtype, int num_layers, int num_blocks, int block_size, int num_kv_heads, int head_dim);
    ~KVCache();
    KVCache(const KVCache&) = delete;
    KVCache& operator=(const KVCache&) = delete;

    KVLayer layer(int index) const;
    size_t num_bytes() const { return block_bytes_ * size_t(num_blocks_); }
    uint8_t* base() const { return base_; }

    const KVDtype dtype_;
    const int num_layers_, num_blocks_, block_size_, num_kv_heads_, head_dim_;
    const size_t layer_bytes_, block_bytes_;  // of a block: one layer, all layers

  private:
    uint8_t* base_;
};

// Views of the arrays of kernels/step_inputs.py.
struct StepView {
    int num_rows, num_items, num_logit_rows, num_table_entries;
    const int32_t *token_ids, *positions, *slots;
    const int32_t *item_rows, *item_num_rows, *item_starts, *table_offsets, *tables, *logit_rows;
};

enum class OpKind {
    kEmbed, kRmsNorm, kLinear, kAdd, kRope, kKVWrite, kAttention, kActMul, kSelectLogitRows, kSoftcap,
};

struct Op {
    OpKind kind;
    int in = -1, in2 = -1, out = -1;  // buffers
    std::vector<const PackedWeight*> weights;
    std::vector<float> vec;
    float f0 = 0, f1 = 0;
    int layer = 0, column = 0, column2 = 0, num_heads = 0, head_dim = 0, window = 0;
    int rope = -1;
    int next = -1;  // the linear op after a linear op
    bool flag = false, precise = false;
    Activation activation = Activation::kSilu;
};

class Program {
  public:
    // buffers: (slot, width) of each; slots: floats per row of each arena slot.
    Program(int num_threads, int max_rows, int max_logit_rows, std::vector<std::pair<int, int>> buffers,
            std::vector<int> slot_widths, int head_start, KVCache* kv);
    void add(Op op) { ops_.push_back(std::move(op)); }
    // A rotary embedding: pair i turns by float(position) * inv_freq[i]; cos and sin are scaled.
    void add_rope(std::vector<float> inv_freq, double scale, int max_position, bool interleaved);
    // All ops added: allocate the shared scratch.
    void finish(int max_k, int max_heads, int head_dim);

    // Throws std::invalid_argument, naming the array, when a step would read or write out of bounds.
    void check(const StepView& step, int vocab_size, int max_position) const;

    // The whole forward pass; logits of the first min(L, max_logit_rows) logit rows, and what `sampling` asks of
    // them, if it is given: all in one parallel region.
    void run(const StepView& step, const Sampling& sampling);
    // The same from the output head on, for the logit rows from `first` on; the step's arrays must still be there.
    void run_head(const StepView& step, int first, const Sampling& sampling);

    // Copy whole blocks of the KV cache in all layers. Throws std::invalid_argument for blocks that do not exist
    // and for destinations that another copy names.
    void copy_blocks(const std::vector<int32_t>& src, const std::vector<int32_t>& dst);

    float* logits() const;
    int max_rows() const { return max_rows_; }
    int max_logit_rows() const { return max_logit_rows_; }
    int logits_width() const { return buffers_.back().width; }
    int num_threads() const { return team_.size(); }
    Team& team() { return team_; }
    size_t num_bytes() const;
    // Seconds per op kind since the last call, thread 0; filled only while profiling is on.
    bool profile = false;
    std::vector<double> op_seconds;

  private:
    struct Buffer { float* data; int width; };
    struct FreeDeleter { void operator()(void* p) const; };
    // Rows of cosines and sines by position. Most positions of a long context never come: rows are computed, and
    // their memory is touched, when a step first reaches them.
    struct RopeTable {
        std::vector<float> inv_freq;
        double scale;
        int max_position, num_rows;
        bool interleaved;
        std::unique_ptr<float, FreeDeleter> data;

        int rotary_dim() const { return 2 * int(inv_freq.size()); }
        void fill(int begin, int end);
    };
    void prepare(const StepView& step);
    SampleArgs sample_args(const Sampling& sampling, int first, int rows) const;
    void head(const StepView& step, int first, int rows, const SampleArgs& sample, Worker& worker);
    void extend_ropes(const StepView& step);
    void execute(size_t begin, size_t end, const StepView& step, int first, int rows, Worker& worker);
    void execute_op(const Op& op, const StepView& step, int first, int rows, Worker& worker);

    Team team_;
    int max_rows_, max_logit_rows_, head_start_;
    KVCache* kv_;
    std::vector<Buffer> buffers_;
    std::vector<Op> ops_;
    std::vector<RopeTable> ropes_;
    std::vector<AttentionItem> items_;
    uint64_t step_number_ = 0;  // of all programs, so that threads can tell steps apart
    std::unique_ptr<uint8_t, FreeDeleter> arena_, shared_;
    size_t arena_bytes_ = 0, shared_bytes_ = 0;
};

}  // namespace leafage
